"""Any quantity over the batch: a window of rows and positions, the order of its rows, and the selected token's numbers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from grpo_core.batch_view import LOGARITHMIC, QUANTITIES, SORTS, BatchView, largest, ordered, overview, row_keys
from grpo_core.doctor.diagnose import Diagnosis

from .. import prose
from ..components import batch_grid, number, token_card
from ..figures import VISIBLE
from ..numbers import shown, sign
from . import findings, made, source
from .link import FOUND, Wanted
from .source import Source

ROWS, COLUMNS = 16, 32  # of a window; two spans a cell
HIGH, WIDE = 48, 160  # cells of the overview
FEW = 24  # rows and columns up to which the overview says no more than the window


@dataclass(frozen=True)
class Window:
    """What is drawn: rows in their order, scored columns, and how many there are in all."""

    rows: tuple[int, ...]
    columns: range
    top: int
    left: int
    all_rows: tuple[int, ...]  # sorted and filtered
    all_columns: range


def quantity_of(wanted: Wanted, view: BatchView) -> str:
    """The one that is asked for, or the first that the batch has."""
    return wanted.show if wanted.show in view.values else next(iter(view.values))


def rows_of(wanted: Wanted, batch: Source, view: BatchView, found: Diagnosis) -> list[int]:
    """The rows that pass the filter, sorted."""
    kind, _, value = wanted.filter.partition(":")
    rows: Sequence[int] = range(len(view.trained))
    if wanted.filter == FOUND or kind == "check":
        named = named_by(batch, found, value)
        rows = [row for row in rows if row in named]
    elif kind == "group" and batch.batch.group_ids is not None:
        groups = batch.batch.group_ids.tolist()
        rows = [row for row in rows if groups[row] == int(value)]
    keys = keys_of(batch, view, found)
    name = wanted.sort.removeprefix("-")
    return ordered(rows, keys[name] if name in keys else keys["row"], wanted.sort.startswith("-"))


def window_of(wanted: Wanted, batch: Source, view: BatchView, found: Diagnosis) -> Window:
    rows, columns = rows_of(wanted, batch, view, found), batch.columns
    top = min(wanted.top, max(0, len(rows) - ROWS))
    left = min(wanted.left, max(0, len(columns) - COLUMNS))
    return Window(tuple(rows[top : top + ROWS]), columns[left : left + COLUMNS], top, left, tuple(rows), columns)


def showing(wanted: Wanted, batch: Source, view: BatchView, found: Diagnosis) -> Wanted:
    """With the window moved to the selected token, where it is outside; a row that is filtered away lifts the filter."""
    row, column = source.selected(batch, wanted)
    rows = rows_of(wanted, batch, view, found)
    if row not in rows:
        wanted = replace(wanted, filter="")
        rows = rows_of(wanted, batch, view, found)
    place, offset = rows.index(row), column - batch.columns.start
    top = wanted.top if wanted.top <= place < wanted.top + ROWS else max(0, place - ROWS // 2)
    left = wanted.left if wanted.left <= offset < wanted.left + COLUMNS else max(0, offset - COLUMNS // 2)
    return replace(wanted, top=top, left=left)


def panel(wanted: Wanted, batch: Source, view: BatchView, found: Diagnosis) -> dict[str, Any]:
    """The grid with its controls."""
    lang, name, window = wanted.selection.lang, quantity_of(wanted, view), window_of(wanted, batch, view, found)
    keys = keys_of(batch, view, found)
    marked = made.kept(("tokens", batch.key), lambda: findings.tokens_named(found))
    rows = [
        _row(batch, view, name, row, window.columns, marked.get(row, set())) | {"facts": facts(keys, row)}
        for row in window.rows
    ]
    rows = [line | {"named": int(keys["finding"][line["row"]] or 0)} for line in rows]
    small = len(window.all_rows) <= ROWS and len(window.all_columns) <= COLUMNS
    return batch_grid(
        quantity=name, positions=[batch.positions[column] for column in window.columns], rows=rows,
        max=largest(view, name), log=name in LOGARITHMIC, top=window.top, left=window.left,
        all_rows=len(window.all_rows), all_columns=len(window.all_columns), step=[ROWS, COLUMNS],
        quantities=[{"name": one, "label": label(lang, one)} for one in view.values],
        missing=[label(lang, one) for one in QUANTITIES if one not in view.values],
        sorts=[{"name": one, "label": prose.label(lang, f"debug_sort_{one}")} for one in SORTS], sort=wanted.sort,
        filters=filters(wanted, batch, found), filter=wanted.filter, caption=prose.label(lang, f"debug_about_{name}"),
        overview=None if small or not window.all_rows else _overview(view, name, window),
    )  # fmt: skip


def label(lang: str, name: str) -> str:
    return prose.label(lang, f"debug_quantity_{name}")


def _row(batch: Source, view: BatchView, name: str, row: int, columns: range, marked: set[int]) -> dict[str, Any]:
    """One row's cells: the token's text, its number where it has one, and whether a finding names it."""
    values, seen, trained = view.values[name][row], view.seen(name)[row], view.trained[row]
    real = batch.completion[row]
    cells = []
    for column in columns:
        pos = batch.positions[column]
        has = bool(seen[column]) and (bool(real[pos]) or bool(trained[column]))
        cell: dict[str, Any] = {"v": shown(values[column].item()) if has else None}
        cell |= {"t": batch.text(row, pos).translate(VISIBLE)} if bool(real[pos]) or bool(trained[column]) else {}
        cell |= {"f": 1} if pos in marked else {}
        cells.append(cell)
    return {"row": row, "label": batch.labels[row], "cells": cells}


def facts(keys: Mapping[str, Sequence[float | None]], row: int) -> list[dict[str, Any]]:
    """What is known of a whole row, by the names that rows are sorted by."""
    known = [(name, keys[name][row]) for name in ("reward", "advantage", "length") if name in keys]
    return [
        number(f"row_{name}", row, None, shown(int(value) if name == "length" else value)) | {"name": name}
        for name, value in known if value is not None
    ]  # fmt: skip


def keys_of(batch: Source, view: BatchView, found: Diagnosis) -> Mapping[str, Sequence[float | None]]:
    """What rows are sorted by, computed once."""
    return made.kept(("rows", batch.key, view.preset.name), lambda: row_keys(view, named_by(batch, found)))


def named_by(batch: Source, found: Diagnosis, check: str = "") -> Mapping[int, int]:
    """Row -> how many findings name it, counted once."""
    return made.kept(("named", batch.key, check), lambda: findings.rows_named(found, check))


def filters(wanted: Wanted, batch: Source, found: Diagnosis) -> list[dict[str, str]]:
    """What rows can be filtered by: those of any finding, of one check, of one group."""
    lang = wanted.selection.lang
    listed = [{"name": "", "label": prose.label(lang, "debug_filter_all")}]
    if named_by(batch, found):
        listed.append({"name": FOUND, "label": prose.label(lang, "debug_filter_found")})
    checks = dict.fromkeys(f.check for f in found.findings if f.rows or f.tokens)
    listed += [{"name": f"check:{c}", "label": prose.label(lang, "debug_filter_check", check=c)} for c in checks]
    groups = [] if batch.batch.group_ids is None else batch.batch.group_ids.tolist()
    numbers = {group: label.split("·")[0] for group, label in zip(groups, batch.labels, strict=False)}
    listed += [
        {"name": f"group:{group}", "label": prose.label(lang, "debug_filter_group", group=number)}
        for group, number in list(numbers.items())[:200] if group >= 0
    ]  # fmt: skip
    if wanted.filter not in {one["name"] for one in listed}:
        listed.append({"name": wanted.filter, "label": wanted.filter})
    return listed


def _overview(view: BatchView, name: str, window: Window) -> dict[str, Any]:
    """The whole batch in one picture, a character a cell."""
    seen = overview(view, name, window.all_rows, window.all_columns, HIGH, WIDE)
    lines = ["".join("." if level < 0 else "!" if level > 9 else str(level) for level in line) for line in seen.levels]
    return {"lines": lines, "peak": shown(seen.peak), "log": name in LOGARITHMIC}


def token(wanted: Wanted, batch: Source, view: BatchView, found: Diagnosis) -> dict[str, Any]:
    """The selected token: its text, its id, and every quantity that it has."""
    lang = wanted.selection.lang
    row, column = source.selected(batch, wanted)
    pos, trained = batch.positions[column], bool(view.trained[row, column])
    lines = []
    for name, values in view.values.items():
        if not bool(view.seen(name)[row, column]):
            continue
        value = values[row, column].item()
        lines.append({"label": label(lang, name), "name": name, "n": number(name, row, pos, shown(value), s=sign(value))})
    said = prose.label(lang, "debug_token_trained" if trained else "debug_token_untrained")
    return token_card(
        text=batch.text(row, pos).translate(VISIBLE), row=row, pos=pos, label=batch.labels[row], said=said, lines=lines,
        facts=facts(keys_of(batch, view, found), row),
    )  # fmt: skip
