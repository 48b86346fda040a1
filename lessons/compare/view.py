"""The page's values: a heading, and five sections of panels. No Gradio in here."""

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from grpo_core.bridge import Bar
from grpo_core.compare import Evaluation, evaluate
from grpo_core.presets import PRESETS

from .. import pages, prose
from ..cache import ByteCache
from ..components import Compare, batch_source, text
from . import bridge, link, printed, source, table, tokens
from .link import STEP, Wanted
from .source import Source

SECTIONS = ("batch", "table", "bridge", "tokens", "printed")
_values = ByteCache(32 * 2**20)  # finished sections, as the page gets them


def nav(wanted: Wanted) -> dict[str, Any]:
    """The pages, and the sections of this one."""
    lang = wanted.selection.lang
    lesson = link.lesson_query(wanted)
    links = pages.links(lang, "compare", lesson, compare=link.query(wanted))
    sections = [{"id": name, "number": place, "title": title(lang, name)} for place, name in enumerate(SECTIONS, start=1)]
    others = pages.languages(wanted.selection, lambda there: link.query(replace(wanted, selection=there)))
    return {"pages": links, "sections": sections, "lessons": [], "current": "", "languages": others}


def title(lang: str, name: str) -> str:
    return prose.sections(lang, "compare")[name].split("\n", 1)[0]


def page(wanted: Wanted, batch: Source | None, notices: Sequence[str], fresh: bool = False) -> dict[str, Any]:
    """The whole page. `batch` None: the model has yet to run. `fresh`: an address was opened, the browser's own state goes."""
    lang, words = wanted.selection.lang, prose.sections(wanted.selection.lang, "compare")
    full = batch is not None and source.is_ready(batch, bool(printed.printed_of(batch, wanted)))
    settled = tokens.settled(batch, wanted) if batch else wanted
    selected = {"row": settled.selection.row, "pos": settled.selection.pos} if batch else None
    return {
        "title": words["title"], "lead_html": prose.render(words["lead"]), "notice": list(notices), "running": not full,
        "sections": sections(settled, batch), "table": table_state(wanted), "fresh": fresh, "selected": selected,
        "details": table.details(batch, wanted) if batch and table_ready(batch) else None, "query": link.query(wanted),
        "place": "|".join(map(str, (wanted.batch, wanted.update, wanted.a, wanted.b, wanted.order, wanted.printed))),
        "hide": list(wanted.selection.hide), "lang": lang, "labels": labels(lang), "turn": time.monotonic_ns(),
    }  # fmt: skip


def part(wanted: Wanted, batch: Source | None, **more: Any) -> dict[str, Any]:
    """What answers a change of the table's state alone: the page as it is, its address, what an unfolded row says."""
    said = table.details(batch, wanted) if batch and table_ready(batch) else None
    return {"part": True, "details": said, "query": link.query(wanted), "turn": time.monotonic_ns()} | more


def labels(lang: str) -> dict[str, str]:
    texts = prose.labels(lang)
    return {key: texts[key] for key in Compare.LABELS}


def table_state(wanted: Wanted) -> dict[str, Any]:
    return {name: getattr(wanted, name) for name in ("sort", "filter", "trainer", "all", "open")}


def table_ready(batch: Source) -> bool:
    return source.is_ready(batch, False)


def sections(wanted: Wanted, batch: Source | None) -> list[dict[str, Any]]:
    """Those that can be drawn now."""
    lang = wanted.selection.lang
    if batch is None:
        return []
    drawn = {"batch": [batch_panel(wanted, batch)]}
    if table_ready(batch):
        drawn["table"] = [table.panel(source.compared(batch), wanted)]
        key = (batch.key, wanted.a, wanted.b, wanted.order, wanted.selection)
        drawn["bridge"], drawn["tokens"] = _values.get(key, lambda: pair(wanted, batch))
        drawn["printed"] = [printed.panel(batch, wanted, source.is_ready(batch, True))]
    return [
        {"id": name, "number": SECTIONS.index(name) + 1, "title": title(lang, name), "panels": panels,
         "lead_html": prose.render(prose.sections(lang, "compare")[name].partition("\n")[2])}
        for name, panels in drawn.items()
    ]  # fmt: skip


def pair(wanted: Wanted, batch: Source) -> tuple[list[dict], list[dict]]:
    """Bridge and tokens of A and B."""
    lang, window, bars = wanted.selection.lang, tokens.window_of(batch, wanted), bridge.bars_of(batch, wanted)
    chosen = bridge.pair_panel(batch, wanted)
    if bars is None:
        return [chosen], [text(html=prose.render(prose.label(lang, "compare_no_pair")))]
    first, second = ends(wanted, batch, bars)
    panels = [chosen, *bridge.panels(batch, wanted, bars, window, first.loss)]
    return panels, tokens.panels(batch, wanted, first, second, window)


def ends(wanted: Wanted, batch: Source, bars: Sequence[Bar]) -> tuple[Evaluation, Evaluation]:
    """A's and B's evaluation: the bridge begins and ends with them."""
    if bars:
        return bars[0].before, bars[-1].after
    one = evaluate(batch.inputs, PRESETS[wanted.a].convention())
    return one, one


def batch_panel(wanted: Wanted, batch: Source) -> dict[str, Any]:
    lang, mask = wanted.selection.lang, batch.inputs.mask
    size = prose.label(lang, "batch_size", rows=len(mask), tokens=int(mask.sum()))
    if batch.recipe is None:
        name = prose.label(lang, "batch_file", name=batch.name)
        step = {"label": prose.label(lang, "batch_to_step"), "batch": STEP}
        return batch_source(name=name, size=size, remarks=list(batch.remarks), other=step, updates=[], note_html=None)
    name = prose.label(lang, "batch_step", update=batch.update + 1, updates=batch.updates)
    note = prose.label(lang, "batch_first_update") if batch.update == 0 else None
    updates = [
        {"index": index, "label": prose.label(lang, "update_number", number=index + 1), "current": index == batch.update}
        for index in range(batch.updates)
    ]
    first = source.first_file()
    back = {"label": prose.label(lang, "batch_to_file", name=first.name), "batch": first.key} if first else None
    return batch_source(
        name=name, size=size, remarks=[], other=back, updates=updates, note_html=prose.render(note) if note else None
    )
