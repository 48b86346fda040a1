"""The app's pages, as links that keep what is looked at, and the lessons, of which the last is a page of its own."""

from dataclasses import replace
from typing import Any

from grpo_core import Recipe

from . import BY_SLUG, link, prose
from .lesson import Selection

TRAIN = "train"  # the page, and the lesson that it is
# Beside each other, wherever the app is served.
PATHS = {"learn": "./", "debug": "debug", "museum": "museum", "compare": "compare", TRAIN: "train"}


def links(lang: str, current: str, lesson: str, **own: str) -> list[dict[str, Any]]:
    """For the navigation: where each page is, with the lessons' query or its `own`."""
    return [
        {
            "title": prose.label(lang, f"page_{name}"), "href": path + own.get(name, lesson), "current": name == current,
            "page": name,
        }
        for name, path in PATHS.items()
    ]  # fmt: skip


def lessons(recipe: Recipe, selection: Selection, page: str) -> list[dict[str, Any]]:
    """All lessons as links. `away`: on another page than this one."""
    listed = []
    for number, slug in enumerate((*BY_SLUG, TRAIN), start=1):
        own = TRAIN if slug == TRAIN else "learn"
        query = link.query(recipe, selection if slug == TRAIN else replace(selection, lesson=slug))
        href = query if own == page else PATHS[own] + query
        title = prose.sections(selection.lang, slug)["title"]
        listed.append({"slug": slug, "number": number, "title": title, "href": href, "away": own != page})
    return listed


def languages(selection: Selection, query: Any) -> list[dict[str, Any]]:
    """The same page in the others; `query(selection)` is its address."""
    return [
        {
            "title": prose.labels(lang)["language_name"], "lang": lang, "current": lang == selection.lang,
            "href": query(replace(selection, lang=lang)),
        }
        for lang in prose.LANGUAGES if len(prose.LANGUAGES) > 1
    ]  # fmt: skip
