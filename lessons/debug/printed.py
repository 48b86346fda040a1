"""What my trainer would print for this batch: its own names, its own oddities, beside what the file says it printed."""

from typing import Any

from grpo_core.batch_view import BatchView
from grpo_core.presets import PRESETS

from .. import prose
from ..components import trainer_prints
from ..numbers import shown, signed
from .link import Wanted
from .source import Source


def panel(wanted: Wanted, batch: Source, view: BatchView) -> dict[str, Any]:
    """A preset to choose, and its numbers."""
    lang, chosen = wanted.selection.lang, view.preset
    presets = [{"name": row.name, "trainer": row.trainer, "version": row.version} for row in PRESETS.values()]
    reported = batch.batch.reported
    needs = prose.label(lang, "compare_pair_needs", preset=chosen.name, needs=", ".join(view.needs)) if view.needs else ""
    lines = [] if view.loss is None else [_line("loss", signed(view.loss), prose.label(lang, "debug_loss"), None, "", reported)]
    lines += [
        _line(
            one.name, shown(one.value), one.honest_name, None if one.honest_value is None else shown(one.honest_value),
            one.note, reported,
        )
        for one in view.logged
    ]  # fmt: skip
    own = not wanted.as_preset
    said = prose.label(lang, "debug_prints_own" if own else "debug_prints_other", preset=chosen.name, version=chosen.version)
    return trainer_prints(
        presets=presets, preset=chosen.name, own=own, said=said, needs=needs, lines=lines, derived=list(view.derived),
        quirk=chosen.quirk,
    )  # fmt: skip


def _line(name: str, value: str, honest: str, honest_value: str | None, note: str, reported: Any) -> dict[str, Any]:
    """`reported`: what the file says under this very name."""
    said = reported.get(name)
    number = isinstance(said, (int, float)) and not isinstance(said, bool)
    return {
        "name": name, "value": value, "honest_name": honest, "honest_value": honest_value, "note": note,
        "reported": shown(float(said)) if number else "",
    }  # fmt: skip
