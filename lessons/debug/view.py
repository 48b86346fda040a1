"""The page's values: a heading, and its sections of panels. No Gradio in here."""

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from .. import pages, prose
from ..components import Debug
from . import about, findings, grid, link, made, printed, source
from .link import Wanted
from .source import Source

SECTIONS = ("batch", "findings", "grid", "printed", "report")


def nav(wanted: Wanted, batch: Source | None) -> dict[str, Any]:
    """The pages, and the sections of this one."""
    lang, recipe = wanted.selection.lang, wanted.recipe
    if batch is not None and made.is_ready(batch, wanted):  # the lessons then walk through this batch
        recipe = findings.lesson_recipe(wanted, batch) or recipe
    lesson = link.lesson_query(replace(wanted, recipe=recipe))
    links = pages.links(lang, "debug", lesson, debug=link.query(wanted))
    shown = SECTIONS if batch else SECTIONS[:1]
    listed = [{"id": name, "number": place, "title": title(lang, name)} for place, name in enumerate(shown, start=1)]
    others = pages.languages(wanted.selection, lambda there: link.query(replace(wanted, selection=there)))
    return {
        "pages": links, "sections": listed, "lessons": [], "current": "", "languages": others, "anchor": "debug",
    }  # fmt: skip


def title(lang: str, name: str) -> str:
    return prose.sections(lang, "debug")[name].split("\n", 1)[0]


def page(wanted: Wanted, batch: Source | None, notices: Sequence[str], pending: bool = False) -> dict[str, Any]:
    """The whole page. `batch` None: none was chosen, or (`pending`) the model has yet to run for it."""
    lang, words = wanted.selection.lang, prose.sections(wanted.selection.lang, "debug")
    ready = batch is not None and made.is_ready(batch, wanted)
    settled = source.settled(batch, wanted) if batch else wanted
    selected = {"row": settled.selection.row, "pos": settled.selection.pos} if batch else None
    panels = sections(settled, batch, ready)
    return {
        "title": words["title"], "lead_html": prose.render(words["lead"]), "notice": list(notices),
        "running": pending or (batch is not None and not ready), "selected": selected, "query": link.query(wanted),
        "sections": [section(lang, name, place, panels[name]) for place, name in enumerate(SECTIONS, 1) if name in panels],
        "place": "|".join(map(str, (wanted.batch, wanted.update, wanted.as_preset))), "hide": list(wanted.selection.hide),
        "lang": lang, "labels": labels(lang), "turn": time.monotonic_ns(), "name": batch.name if batch else "",
    }  # fmt: skip


def section(lang: str, name: str, place: int, panels: list[dict[str, Any]]) -> dict[str, Any]:
    lead = prose.sections(lang, "debug")[name].partition("\n")[2]
    return {"id": name, "number": place, "title": title(lang, name), "panels": panels, "lead_html": prose.render(lead)}


def sections(wanted: Wanted, batch: Source | None, ready: bool) -> dict[str, list[dict[str, Any]]]:
    """Those that can be drawn now."""
    drawn = {"batch": [about.chooser(wanted, batch)]}
    if batch is None or not ready:
        return drawn
    view, found = made.seen(batch, wanted), made.diagnosis(batch)
    drawn["batch"].append(about.panel(wanted, batch, made.summed(batch)))
    return drawn | {
        "findings": [findings.panel(wanted, batch, found)],
        "grid": [grid.panel(wanted, batch, view, found), grid.token(wanted, batch, view, found)],
        "printed": [printed.panel(wanted, batch, view)], "report": [about.report()],
    }  # fmt: skip


def saved(wanted: Wanted, text: str, file: str, kind: str) -> dict[str, Any]:
    """What answers a wish for a file: the page as it is, and the file's text."""
    return {"part": True, "text": text, "file": file, "type": kind, "query": link.query(wanted), "turn": time.monotonic_ns()}


def labels(lang: str) -> dict[str, str]:
    texts = prose.labels(lang)
    return {key: texts[key] for key in Debug.LABELS}
