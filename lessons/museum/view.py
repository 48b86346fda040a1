"""The page's values: the shelf, and the exhibit that was taken from it. No Gradio in here."""

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from grpo_core.doctor import Diagnosis
from grpo_core.planted import EXHIBITS, Exhibit

from .. import LESSONS, link, pages, prose
from ..components import Museum
from ..debug.findings import SIGNS, numbers
from ..figures import VISIBLE
from . import source
from .link import NONE, Wanted, lesson_query, query
from .source import Badge, Shown

TOKENS = 6  # that are listed


def nav(wanted: Wanted) -> dict[str, Any]:
    """The pages; the sections of this one."""
    lang = wanted.selection.lang
    return {
        "pages": pages.links(lang, "museum", lesson_query(wanted), museum=query(wanted)), "sections": [], "lessons": [],
        "current": "", "languages": pages.languages(wanted.selection, lambda there: query(replace(wanted, selection=there))),
        "anchor": "museum",
    }  # fmt: skip


def page(wanted: Wanted, made: Shown | None, notices: Sequence[str]) -> dict[str, Any]:
    """The whole page. `made` None: none was chosen, or it is being put in."""
    lang = wanted.selection.lang
    words, texts = prose.sections(lang, "museum"), prose.labels(lang)
    current = next((exhibit for exhibit in EXHIBITS if exhibit.slug == wanted.exhibit), None)
    return {
        "title": words["title"], "lead_html": prose.render(words["lead"]), "notice": list(notices), "shelf": shelf(wanted),
        "open": exhibit(wanted, current, made) if current else None, "running": current is not None and made is None,
        "query": query(wanted), "place": "|".join((wanted.exhibit, wanted.recipe.model)), "hide": list(wanted.selection.hide),
        "lang": lang, "labels": {key: texts[key] for key in Museum.LABELS}, "turn": time.monotonic_ns(),
    }  # fmt: skip


def words_of(lang: str, slug: str) -> tuple[str, str, str]:
    """An exhibit's symptom in a line, as its owner tells it, and what it was."""
    sections = prose.sections(lang, "museum")
    title, _, told = sections[slug].partition("\n")
    return title, told.strip(), sections[f"{slug} answer"]


def shelf(wanted: Wanted) -> list[dict[str, Any]]:
    """A card for each exhibit: what somebody would say, not what it is."""
    cards = []
    for number, one in enumerate(EXHIBITS, start=1):
        title, told, _ = words_of(wanted.selection.lang, one.slug)
        cards.append({"slug": one.slug, "number": number, "title": title, "told": told, "current": one.slug == wanted.exhibit})
    return cards


def exhibit(wanted: Wanted, one: Exhibit, made: Shown | None) -> dict[str, Any]:
    """The exhibit on the table: the symptom, the walk, the guess, and the answer once it is known or asked for."""
    lang = wanted.selection.lang
    title, told, _ = words_of(lang, one.slug)
    after = EXHIBITS[(EXHIBITS.index(one) + 1) % len(EXHIBITS)].slug
    said = {"slug": one.slug, "number": EXHIBITS.index(one) + 1, "title": title, "told": told, "following": after}
    if made is None:
        return said
    if made.lacks:
        return said | {"lacks": prose.label(lang, f"museum_need_{made.lacks}"), "carries": carries(wanted)}
    right = wanted.guess == (made.answer.faulty.check if made.answer else NONE)
    known = wanted.told or (bool(wanted.guess) and right)
    return said | {
        "walk": walk(wanted, made), "options": options(wanted, made), "guess": wanted.guess,
        "right": right if wanted.guess else None, "known": known,
        "hint": "" if right or not wanted.guess else hint(wanted, made), "answer": answer(wanted, made) if known else None,
    }  # fmt: skip


def carries(wanted: Wanted) -> str:
    """The recipe that can carry it, as the settings in which it differs."""
    lang, settings = wanted.selection.lang, source.BY_SLUG[wanted.exhibit].settings
    texts = {name: " / ".join(value) if isinstance(value, tuple) else value for name, value in settings.items()}
    named = ", ".join(f"{name} = {value}" for name, value in texts.items())
    return prose.label(lang, "museum_carry", settings=named or prose.label(lang, "museum_first"))


def walk(wanted: Wanted, made: Shown) -> list[dict[str, Any]]:
    """The fourteen lessons on the faulty batch."""
    return [
        {
            "slug": lesson.slug, "number": number, "title": prose.sections(wanted.selection.lang, lesson.slug)["title"],
            "href": lesson_href(wanted, made, lesson.slug),
        }
        for number, lesson in enumerate(LESSONS, start=1)
    ]  # fmt: skip


def lesson_href(wanted: Wanted, made: Shown, slug: str, row: int = 0, pos: int = -1) -> str:
    recipe = source.view.bench().first_recipe(made.model)
    return "./" + link.query(recipe, replace(wanted.selection, lesson=slug, row=row, pos=pos, update=0))


def options(wanted: Wanted, made: Shown) -> list[dict[str, Any]]:
    """Every badge that this batch can answer, by lesson, each once: where it hangs first."""
    lang, checks, seen, listed = wanted.selection.lang, prose.lines(wanted.selection.lang, "checks"), set[str](), []
    for number, lesson in enumerate(LESSONS, start=1):
        told = [badge.faulty for badge in made.badges if badge.lesson == lesson.slug]
        fresh = [outcome.check for outcome in told if outcome.status != "skipped" and outcome.check not in seen]
        seen.update(fresh)
        if fresh:
            title = prose.sections(lang, lesson.slug)["title"]
            listed.append(
                {"number": number, "title": title, "checks": [{"check": n, "label": checks.get(n, n)} for n in fresh]}
            )
    return listed


def hint(wanted: Wanted, made: Shown) -> str:
    """What is wrong with a guess, without the answer."""
    lang = wanted.selection.lang
    if made.answer is None:
        return prose.label(lang, "museum_hint_quiet")
    if wanted.guess == NONE:
        return prose.label(lang, "museum_hint_some", count=len({badge.faulty.check for badge in made.turned}))
    places = {badge.faulty.check: badge.lesson for badge in reversed(made.badges)}
    if wanted.guess in {badge.faulty.check for badge in made.turned}:
        return prose.label(lang, "museum_hint_later")
    return prose.label(lang, "museum_hint_lesson" if places.get(wanted.guess) == made.answer.lesson else "museum_hint_green")


# ---- the answer ----------------------------------------------------------------------------------------------------------
def answer(wanted: Wanted, made: Shown) -> dict[str, Any]:
    """The badge, the numbers, the mend, the place, and whose bug it was."""
    lang, one = wanted.selection.lang, made.answer or made.explaining
    first = made.answer
    of_batch = link.query(source.view.bench().first_recipe(made.model), wanted.selection)
    said = {
        "verdict": prose.label(lang, "museum_is" if first else "museum_is_right"), "debug": f"debug{of_batch}",
        "why_html": prose.render(words_of(lang, made.exhibit.slug)[2]), "reports": list(made.exhibit.reports),
        "badge": badge(wanted, made, one) if one else None,
        "turned": [chip(wanted, other) for other in followers(made)], "cause": "",
    }  # fmt: skip
    cause = source.cause_of(made)
    if first and cause and cause != first.faulty.check:
        said["cause"] = prose.label(lang, "museum_cause", check=prose.lines(lang, "checks").get(cause, cause))
    return said


def followers(made: Shown) -> list[Badge]:
    """What turns behind the first, each check once."""
    by_check = {badge.faulty.check: badge for badge in reversed(made.turned)}
    return sorted((badge for badge in by_check.values() if badge is not made.answer), key=made.badges.index)


def chip(wanted: Wanted, one: Badge) -> dict[str, Any]:
    checks, status = prose.lines(wanted.selection.lang, "checks"), one.faulty.status
    number = next(n for n, lesson in enumerate(LESSONS, start=1) if lesson.slug == one.lesson)
    return {
        "check": one.faulty.check, "label": checks.get(one.faulty.check, one.faulty.check), "status": status,
        "sign": SIGNS.get(status, "✓"), "number": number,
        "title": prose.sections(wanted.selection.lang, one.lesson)["title"],
    }  # fmt: skip


def badge(wanted: Wanted, made: Shown, one: Badge) -> dict[str, Any]:
    """A badge with its finding: this batch's numbers, found and expected, the mend, and where to see it."""
    finding, batch = one.faulty.findings[0], made.batch
    assert batch is not None
    (plain,) = Diagnosis(findings=(finding,), passed=(), skipped=()).as_json(batch)["findings"]
    tokens = [{"row": row, "pos": pos, "text": text(made, row, pos)} for row, pos in finding.tokens[:TOKENS]]
    row, pos = finding.tokens[0] if finding.tokens else (finding.rows[0] if finding.rows else 0, -1)
    return chip(wanted, one) | {
        "message": finding.message, "fix": finding.fix, "numbers": numbers(plain["found"], plain["expected"]),
        "tokens": tokens, "all_tokens": len(finding.tokens), "rows": list(finding.rows),
        "href": lesson_href(wanted, made, one.lesson, row, pos),
    }  # fmt: skip


def text(made: Shown, row: int, pos: int) -> str:
    """A token as text."""
    held = source.view.bench().sources.batch(made.model)
    return held.tokens.piece(int(held.batch.row_ids()[row, pos])).translate(VISIBLE) if held else ""
