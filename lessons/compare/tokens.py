"""The batch token by token: where A and B push it, their gradients side by side, and the selected token under both."""

from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from grpo_core.compare import DIRECTIONS, Evaluation, directions, push

from .. import prose
from ..components import number, table, tensor_grid, token_map
from ..figures import VISIBLE, largest
from ..numbers import shown, sign
from .link import Wanted
from .source import Source

MOST = 4096  # cells of a map or grid
MOST_ROWS = 32
PAIRS = {  # which way A and B push, by the names of DIRECTIONS: the signs of the two pushes
    "both_up": ((1, 1),), "both_down": ((-1, -1),), "opposite": ((1, -1), (-1, 1)), "only_first": ((1, 0), (-1, 0)),
    "only_second": ((0, 1), (0, -1)), "neither": ((0, 0),),
}  # fmt: skip
CODES = {pair: chr(ord("a") + place) for place, pair in enumerate(pair for pairs in PAIRS.values() for pair in pairs)}
ARROWS = {1: "▲", -1: "▼", 0: "·"}
assert tuple(PAIRS) == DIRECTIONS


@dataclass(frozen=True)
class Window:
    """The rows and scored columns that are drawn: all of a small batch, else those round the selected token."""

    rows: tuple[int, ...]
    columns: tuple[int, ...]
    row: int  # of the selected token
    column: int
    whole: bool


def window_of(source: Source, wanted: Wanted) -> Window:
    """The selected token is the nearest trained one; without any selection the first."""
    mask = source.inputs.mask
    row, column = _selected(source, wanted)
    used = mask.any(0).nonzero().flatten().tolist() or [0]
    rows = _around(list(range(len(mask))), row, MOST_ROWS)
    columns = _around(list(range(used[0], used[-1] + 1)), column, max(16, MOST // len(rows)))
    whole = len(rows) == len(mask) and len(columns) == used[-1] + 1 - used[0]
    return Window(tuple(rows), tuple(columns), row, column, whole)


def _selected(source: Source, wanted: Wanted) -> tuple[int, int]:
    trained = source.inputs.mask.nonzero().tolist() or [[0, 0]]
    row = min((place[0] for place in trained), key=lambda row: abs(row - wanted.selection.row))
    columns = [place[1] for place in trained if place[0] == row]
    behind = [column for column in columns if source.positions[column] >= wanted.selection.pos]
    return row, behind[0] if behind else columns[-1]


def _around(places: list[int], centre: int, most: int) -> list[int]:
    start = min(max(0, places.index(centre) - most // 2), max(0, len(places) - most)) if centre in places else 0
    return places[start : start + most]


def settled(source: Source, wanted: Wanted) -> Wanted:
    """With the token that is really selected."""
    row, column = _selected(source, wanted)
    return replace(wanted, selection=replace(wanted.selection, row=row, pos=source.positions[column]))


def _map(source: Source, codes: list[list[str]], window: Window, **panel: Any) -> dict[str, Any]:
    names = dict(source.lines)
    rows = [{"row": row, "label": names[row], "codes": "".join(line)} for row, line in zip(window.rows, codes, strict=True)]
    return token_map(positions=[source.positions[column] for column in window.columns], rows=rows, **panel)


def marked_map(source: Source, marked: Tensor, window: Window) -> dict[str, Any]:
    """The whole batch small, some of its tokens lit."""
    mask = source.inputs.mask
    codes = [["." if not mask[r, c] else "y" if marked[r, c] else "n" for c in window.columns] for r in window.rows]
    return _map(source, codes, window, small=True)


def tokens_at(source: Source, marked: Tensor, most: int) -> list[dict[str, Any]]:
    """The first tokens that are marked, as text with their places."""
    names = dict(source.lines)
    return [
        {"r": row, "p": source.positions[column], "text": source.text(row, column).translate(VISIBLE), "label": names[row]}
        for row, column in marked.nonzero()[:most].tolist()
    ]


def panels(source: Source, wanted: Wanted, first: Evaluation, second: Evaluation, window: Window) -> list[dict[str, Any]]:
    """Directions, both gradients, and the selected token under A and under B."""
    lang = wanted.selection.lang
    part = "" if window.whole else prose.render(prose.label(lang, "compare_window"))
    most = max(largest(evaluation.grad, source.inputs.mask & evaluation.grad.isfinite()) for evaluation in (first, second))
    grids = [
        _grid(source, name, side, evaluation, window, lang, most)
        for side, name, evaluation in (("A", wanted.a, first), ("B", wanted.b, second))
    ]
    return [_directions(source, wanted, first, second, window, part), _token(source, wanted, first, second, window), *grids]


def _directions(
    source: Source, wanted: Wanted, first: Evaluation, second: Evaluation, window: Window, part: str
) -> dict[str, Any]:
    lang, mask = wanted.selection.lang, source.inputs.mask
    found, names = directions(first.grad, second.grad, mask), {"a": wanted.a, "b": wanted.b}
    classes = [
        {
            "name": name, "count": int(found[name].sum()), "label": prose.label(lang, f"direction_{name}", **names),
            "codes": "".join(CODES[pair] for pair in pairs), "glyphs": ["".join(ARROWS[s] for s in pair) for pair in pairs],
        }
        for name, pairs in PAIRS.items()
    ]  # fmt: skip
    signs = torch.stack([push(first.grad), push(second.grad)], dim=-1).tolist()
    codes = [[CODES[tuple(signs[r][c])] if mask[r, c] else "." for c in window.columns] for r in window.rows]
    caption = prose.render(prose.label(lang, "direction_caption")) + part
    return _map(source, codes, window, classes=classes, title=prose.label(lang, "direction_map", **names), caption_html=caption)


def _grid(
    source: Source, name: str, side: str, evaluation: Evaluation, window: Window, lang: str, most: float
) -> dict[str, Any]:
    """d loss / d log-prob of every token drawn. `most`: what gets the full colour."""
    mask, names = source.inputs.mask, dict(source.lines)
    values = evaluation.grad
    rows = [
        {"row": r, "label": names[r], "cells": [shown(float(values[r, c])) if mask[r, c] else None for c in window.columns]}
        for r in window.rows
    ]
    return tensor_grid(
        quantity=f"logprob_grad@{name}", positions=[source.positions[c] for c in window.columns], rows=rows,
        max=most, title=prose.label(lang, "compare_grad", side=side, preset=name),
        caption_html=prose.render(prose.label(lang, "compare_grad_caption")),
    )  # fmt: skip


def _token(source: Source, wanted: Wanted, first: Evaluation, second: Evaluation, window: Window) -> dict[str, Any]:
    """The selected token's numbers under A and under B."""
    lang, row, column = wanted.selection.lang, window.row, window.column
    pos, lines = source.positions[column], []
    for name in ("advantages", "ratio", "token_loss", "token_weight", "kl", "contribution", "logprob_grad"):
        cells: list[Any] = []
        for preset, evaluation in ((wanted.a, first), (wanted.b, second)):
            value = float(_tensor(evaluation, name)[row, column])
            cells.append(number(f"{name}@{preset}", row, pos, shown(value), s=sign(value)))
        lines.append([prose.label(lang, f"quantity_{name}"), *cells])
    text = source.text(row, column).translate(VISIBLE)
    title = prose.label(lang, "compare_token", text=text, row=dict(source.lines)[row], pos=pos)
    return table(
        columns=[prose.label(lang, "column_quantity"), f"A: {wanted.a}", f"B: {wanted.b}"], rows=lines, title=title, wide=True
    )


def _tensor(evaluation: Evaluation, name: str) -> Tensor:
    if name == "contribution":
        return evaluation.contributions()
    if name in {field.name for field in fields(evaluation.terms)}:
        return getattr(evaluation.terms, name)
    return evaluation.grad if name == "logprob_grad" else getattr(evaluation, name)
