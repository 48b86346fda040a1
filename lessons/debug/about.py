"""The first section: which batch this is, how large, what it holds and what it lacks; and the way to another one."""

from collections.abc import Mapping
from typing import Any

from grpo_core.batch_summary import EXPECTED, Spread, Summary
from grpo_core.planted import PLANTED

from .. import prose
from ..components import batch_about, batch_chooser, report_saver
from . import link, source
from .link import EXAMPLE, STEP, Wanted
from .source import Source

LONGEST = 160  # characters of a value that a file brings


def chooser(wanted: Wanted, batch: Source | None) -> dict[str, Any]:
    """Drop a file, or try something."""
    lang = wanted.selection.lang
    offered = [(EXAMPLE + name, f"debug_example_{name}", f"debug_example_{name}_info") for name in PLANTED]
    offered.append((STEP, "debug_step", "debug_step_info"))
    first = source.first_file()
    cards = [
        {
            "batch": key, "label": prose.label(lang, title), "info": prose.label(lang, info),
            "current": wanted.batch == key,
        }
        for key, title, info in offered
    ]  # fmt: skip
    if first:
        current = batch is not None and batch.key == first.key
        cards.append(
            {"batch": first.key, "label": first.name, "info": prose.label(lang, "debug_first_file"), "current": current}
        )
    return batch_chooser(cards=cards, open=batch is None, most=source.MAX_FILE_BYTES)


def title(wanted: Wanted, batch: Source) -> str:
    lang = wanted.selection.lang
    if batch.planted:
        return prose.label(lang, f"debug_example_{batch.planted}")
    if batch.recipe:
        return prose.label(lang, "batch_step", update=batch.update + 1, updates=batch.updates)
    return batch.name


def panel(wanted: Wanted, batch: Source, said: Summary) -> dict[str, Any]:
    """The batch in numbers, what it holds, what it lacks and what that would make possible."""
    lang = wanted.selection.lang
    updates = [
        {"index": index, "label": prose.label(lang, "update_number", number=index + 1), "current": index == batch.update}
        for index in range(batch.updates if batch.updates > 1 and not batch.planted else 0)
    ]
    compare = f"compare?batch={batch.compare}&lang={lang}" if batch.compare else ""
    return batch_about(
        name=title(wanted, batch), numbers=numbers(said, lang), updates=updates, compare=compare,
        preset=said.preset, framework=_text(said.framework), recognised=batch.title,
        present=[{"name": name, "shape": shape} for name, shape in said.present.items()],
        absent=[{"name": name, "enables": prose.label(lang, f"debug_absent_{name}")} for name in said.absent],
        settings=[{"name": _text(name), "value": _text(value)} for name, value in said.settings.items()],
        reported=[{"name": _text(name), "value": _text(value)} for name, value in said.reported.items()],
        remarks=[_text(remark, 400) for remark in dict.fromkeys((*batch.remarks, *said.remarks))],
    )  # fmt: skip


def report() -> dict[str, Any]:
    """The ways to take the report along."""
    return report_saver(kinds=("html", "json"))


def numbers(said: Summary, lang: str) -> list[dict[str, str]]:
    """The size of the batch: a name, a number, and what it is."""
    sizes = "" if said.group_sizes is None else prose.label(lang, "debug_group_sizes", **_ends(said.group_sizes))
    listed = [
        ("rows", str(said.rows), ""), ("groups", "–" if said.groups is None else str(said.groups), sizes),
        ("trained", str(said.trained), prose.label(lang, "debug_per_row", **_spread(said.trained_per_row))),
        ("completion", _range(said.completion), prose.label(lang, "debug_median", median=said.completion.median)),
        ("prompt", _range(said.prompt), prose.label(lang, "debug_median", median=said.prompt.median)),
        ("layout", said.layout, prose.label(lang, f"debug_layout_{said.layout}")),
    ]  # fmt: skip
    return [{"name": name, "label": prose.label(lang, f"debug_{name}"), "value": v, "note": n} for name, v, n in listed]


def _ends(sizes: tuple[int, int]) -> Mapping[str, str]:
    return {"sizes": str(sizes[0]) if sizes[0] == sizes[1] else f"{sizes[0]}–{sizes[1]}"}


def _spread(said: Spread) -> Mapping[str, int]:
    return {"least": said.least, "median": said.median, "most": said.most}


def _range(said: Spread) -> str:
    return str(said.least) if said.least == said.most else f"{said.least}–{said.most}"


def _text(value: Any, longest: int = LONGEST) -> str:
    text = str(value)
    return text if len(text) <= longest else f"{text[:longest]}…"


assert all(f"debug_absent_{name}" in prose.labels(prose.DEFAULT) for name in EXPECTED)
assert link.EXAMPLES == tuple(EXAMPLE + name for name in PLANTED)
