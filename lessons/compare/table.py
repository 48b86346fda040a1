"""Every preset on this batch: the table, what its unfolded row says, and the same as CSV."""

import csv
import io
import math
from typing import Any

from grpo_core.compare import NUMBERS, evaluate
from grpo_core.inputs import missing
from grpo_core.presets import PRESETS, Preset
from grpo_core.trainer_metrics import trainer_metrics

from .. import prose
from ..components import preset_table
from ..numbers import shown, signed
from .link import TRAINERS, Wanted
from .source import Comparison, Source

SIGNED = ("loss", "policy_loss", "kl_part", "entropy_part")
FIRST = "paper/grpo"  # what the lessons start with


def is_default(row: Preset) -> bool:
    """The trainer as it comes, not one of its variants."""
    return "/" not in row.name or row.name == FIRST


def panel(comparison: Comparison, wanted: Wanted) -> dict[str, Any]:
    """The table of every preset; which of them are seen is the browser's business."""
    lang = wanted.selection.lang
    rows = []
    for line in comparison.lines:
        row = PRESETS[line.preset]
        rows.append(
            {"name": row.name, "trainer": row.trainer, "version": row.version, "summary": row.summary}
            | ({"default": True} if is_default(row) else {})
            | ({"needs": prose.label(lang, "compare_needs", needs=", ".join(line.needs))} if line.needs else {})
            | {"cells": [_cell(name, value) for name, value in comparison.numbers(line, wanted.a).items()]}
        )
    columns = [{"name": name, "label": prose.label(lang, f"compare_{name}", a=wanted.a)} for name in NUMBERS]
    return preset_table(columns=columns, rows=rows, trainers=TRAINERS, a=wanted.a, b=wanted.b)


def _cell(name: str, value: float | None) -> dict[str, Any] | None:
    """The text, and the number itself to sort by."""
    if value is None:
        return None
    text = signed(value) if name in SIGNED else shown(value)
    return {"v": text, "x": value if math.isfinite(value) else None}


def details(source: Source, wanted: Wanted) -> dict[str, Any] | None:
    """What an unfolded row says: what the preset is, and what its trainer would have logged."""
    if not wanted.open:
        return None
    row = PRESETS[wanted.open]
    said = {"preset": row.name, "version": row.version, "quirk": row.quirk, "source": row.source, "logged": []}
    if missing(source.inputs, row.convention()):
        return said
    logged = trainer_metrics(evaluate(source.inputs, row.convention()), source.inputs, row)
    return said | {"logged": [
        {
            "name": one.name, "value": shown(one.value), "honest_name": one.honest_name, "note": one.note,
            "honest_value": None if one.honest_value is None else shown(one.honest_value),
        }
        for one in logged
    ]}  # fmt: skip


def csv_text(comparison: Comparison, against: str) -> str:
    """The whole table, as the command line writes it."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["preset", "trainer", "version", *NUMBERS, "needs"])
    for line in comparison.lines:
        row, said = PRESETS[line.preset], comparison.numbers(line, against)
        writer.writerow([row.name, row.trainer, row.version, *(said.get(name) for name in NUMBERS), " ".join(line.needs)])
    return out.getvalue()
