"""From tensors to what is drawn: token chips, grids, tables and Plotly figures. No mathematics, no Gradio.

What is too wide is shown through a window round the selected token: at most WINDOW columns of a table, CHIPS chips.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from torch import Tensor

from .absent import lacking, said
from .components import tensor_grid, text, token_strip, token_table
from .lesson import Context
from .numbers import shown
from .quantities import QUANTITIES, tensor_of

WINDOW = 40
CHIPS = 480
CELLS = 6000  # of a grid; a lesson may have two
VISIBLE = str.maketrans({" ": "·", "\n": "↵", "\t": "→"})
BLUE, ORANGE, GREY, GREEN = "var(--pos)", "var(--neg)", "#8a8f98", "#2e9e6b"  # the theme's, or read on both


def piece(context: Context, token_id: int) -> str:
    """A token's text with its white space visible."""
    return context.tokens.piece(token_id).translate(VISIBLE)


def kind(context: Context, row: int, pos: int) -> str:
    """What a place in the row holds: pad, prompt, special, completion, eos or cut (behind the end)."""
    rows, tokens = context.rows, context.tokens
    token = int(rows.ids[row, pos])
    if not rows.real(row, pos):
        return "pad" if pos < context.positions[-1] and pos < prompt_width(context) else "cut"
    if rows.completions[row, pos]:
        if context.of_file and not rows.is_trained(row, pos):
            return "untrained"
        return "eos" if token in tokens.eos_ids else "completion"
    return "special" if tokens.is_special(token) else "prompt"


def prompt_width(context: Context) -> int:
    return context.rows.prompt_width


def window(context: Context, positions: Sequence[int], size: int = WINDOW) -> list[int]:
    """At most `size` neighbouring positions, with the selected one among them."""
    positions = list(positions)
    if len(positions) <= size:
        return positions
    centre = min(range(len(positions)), key=lambda i: abs(positions[i] - context.pos))
    start = min(max(0, centre - size // 2), len(positions) - size)
    return positions[start : start + size]


def row_label(context: Context, row: int) -> str:
    """Which answer to which prompt a row is."""
    rows = context.rows
    return context.label("row_label", prompt=rows.groups[row] + 1, answer=rows.answers[row]) if rows.grouped else str(row + 1)


def token(context: Context, row: int, pos: int) -> dict[str, Any]:
    token_id = int(context.rows.ids[row, pos])
    return {"p": pos, "text": piece(context, token_id), "id": token_id, "k": kind(context, row, pos)}


def strip(
    context: Context,
    rows: Iterable[int],
    positions: Callable[[int], Sequence[int]],
    sub: str | None = None,
    tint: Callable[[int, int], float | None] | None = None,
    badge: Callable[[int], str | None] = lambda row: None,
    mark: Callable[[int, int], str | None] = lambda row, pos: None,
    label: Callable[[Context, int], str] | None = None,
    **panel: Any,
) -> dict[str, Any]:
    """Rows of token chips; under each piece its id, or the number of the quantity `sub`."""
    rows, lines = list(rows), []
    sub = None if sub and lacking(context, (sub,)) else sub
    limit = max(16, CHIPS // max(1, len(rows)))
    for row in rows:
        chips, trained = [], set(context.trained_positions(row))
        for pos in window(context, positions(row), limit):
            chip = token(context, row, pos)
            known = not sub or QUANTITIES[sub].axes == "BS" or pos in trained  # a row that is not trained has no numbers
            chip["sub"] = context.number(sub, row, pos) if sub and known else None
            chip |= {"tint": tint(row, pos) if tint and known else None, "mark": mark(row, pos) if known else None}
            chips.append({key: value for key, value in chip.items() if value is not None})
        lines.append({"row": row, "label": (label or row_label)(context, row), "tokens": chips})
        if badge(row):
            lines[-1]["badge"] = badge(row)
    return token_strip(rows=lines, **panel)


def all_positions(context: Context) -> Callable[[int], list[int]]:
    return lambda row: list(range(context.rows.width))


def completion_positions(context: Context) -> Callable[[int], list[int]]:
    return context.rows.completion


def told_apart(context: Context) -> list[int]:
    """The columns of the selected row's table: what is trained; of a batch file all of its completion, tool tokens as well."""
    return context.rows.completion(context.row) if context.of_file else context.trained_positions(context.row)


def columns(context: Context, row: int, name: str, cells: Sequence[int]) -> list[dict | None]:
    """A quantity's numbers at these positions; None where there is no scored token."""
    trained, first = set(context.trained_positions(row)), context.positions[0]
    everywhere = QUANTITIES[name.split("@")[0]].axes == "BS"
    scored = everywhere or name in ("loss_mask", "labels")
    return [
        context.number(name, row, pos) if (scored and (everywhere or pos >= first)) or pos in trained else None for pos in cells
    ]


def lines_table(
    context: Context,
    names: Sequence[str],
    positions: Sequence[int] | None = None,
    hot: Callable[[str, int], bool] = lambda name, pos: False,
    **panel: Any,
) -> dict[str, Any]:
    """The selected row's tokens as columns and one line per quantity."""
    shown_at = window(context, told_apart(context) if positions is None else positions)
    lines, missing = [], lacking(context, names)
    for name in (name for name in names if not lacking(context, (name,))):
        cells = columns(context, context.row, name, shown_at)
        for pos, cell in zip(shown_at, cells, strict=True):
            if cell and hot(name, pos):
                cell["hot"] = True
        lines.append({"label": quantity_label(context, name), "quantity": name, "cells": cells})
    tokens = [token(context, context.row, pos) for pos in shown_at]
    if missing:
        panel["caption_html"] = (panel.get("caption_html") or "") + said(context, names)[0]["html"]
    return token_table(row=context.row, tokens=tokens, lines=lines, **panel)


def quantity_label(context: Context, name: str) -> str:
    """The tensor's own name: one name per quantity in code, chart, prose and log."""
    return name


def grid(context: Context, name: str, diverging: bool = True, **panel: Any) -> dict[str, Any]:
    """A whole [B T] tensor, or the part of it round the selected token; masked entries are None."""
    missing = said(context, (name,))
    if missing:
        return missing[0]
    values, mask = tensor_of(context, name), context.trace.batch.trained_mask()
    first = prompt_width(context) - context.positions[0]  # columns of the prompt hold nothing that is trained
    chosen = context.rows.shown
    at = window(context, context.positions[max(0, first) :], max(WINDOW, CELLS // len(chosen)))
    columns = slice(context.column_of(at[0]), context.column_of(at[-1]) + 1) if at else slice(0)
    numbers, trained = values[chosen, columns].tolist(), mask[chosen, columns].tolist()
    rows = [
        {
            "row": row,
            "label": row_label(context, row),
            "cells": [shown(v) if m else None for v, m in zip(*line, strict=True)],
        }
        for row, line in zip(chosen, zip(numbers, trained, strict=True), strict=True)
    ]
    return tensor_grid(quantity=name, positions=at, rows=rows, max=largest(values, mask), diverging=diverging, **panel)


def still(values: Tensor, value: float) -> bool:
    """Whether all of them are this number, up to what a sampler rounds otherwise than a trainer."""
    return bool(((values - value).abs() < 1e-4).all())


def not_moved_yet(context: Context, key: str, value: float) -> list[dict[str, Any]]:
    """Why every number is still the same on the first update, and the way to the second."""
    values = tensor_of(context, "ratio" if key == "clip" else key)[context.trace.batch.trained_mask()]
    if context.update_index or not len(values) or not still(values, value):
        return []
    if context.of_file:
        return [text(html=context.html(context.label(f"still_batch_{key}")))]
    if not bool(context.trace.token_advantages.any()):
        return nothing_to_learn(context)
    if len(context.trace.updates) == 1:
        return [text(html=context.html(f"{context.label(f'still_{key}')} {context.label('still_one_update')}"))]
    there = {"label": context.label("see_update", number=2), "update": 1}
    return [text(html=context.html(context.label(f"still_{key}")), go=there)]


def nothing_to_learn(context: Context) -> list[dict[str, Any]]:
    """Why a step has no advantages at all: no reward, or nobody to compare with."""
    if context.of_file:
        return said(context, ("advantages" if not context.own_advantages else "token_advantages",))
    valid, pushes = context.trace.advantages.valid, bool(context.trace.token_advantages.any())
    if context.recipe.group_size == 1 and bool(valid.any()) and not pushes:
        return [text(html=context.html(context.label("group_of_one")))]
    return [] if bool(valid.any()) else [text(html=context.html(context.label("no_reward_at_all")))]


def largest(values: Tensor, mask: Tensor) -> float:
    """The magnitude that gets the full colour."""
    sizes = values.float().abs()[mask & values.isfinite()]
    return float(sizes.max()) if len(sizes) else 0.0


# ---- Plotly --------------------------------------------------------------------------------------------------------------
def figure(data: list[dict], x: str, y: str, **layout: Any) -> dict[str, Any]:
    """A Plotly figure in the app's style: transparent, so that light and dark both show through."""
    base = {
        "margin": {"l": 56, "r": 16, "t": 16, "b": 48}, "paper_bgcolor": "rgba(0,0,0,0)", "plot_bgcolor": "rgba(0,0,0,0)",
        "xaxis": {"title": {"text": x}, "zeroline": True}, "yaxis": {"title": {"text": y}, "zeroline": True},
        "legend": {"orientation": "h", "y": 1.03, "yanchor": "bottom", "x": 0}, "hovermode": "closest",
    }  # fmt: skip
    for key, value in layout.items():
        base[key] = base[key] | value if isinstance(value, dict) and key in base else value
    return {"data": data, "layout": base}


def curve(name: str, x: Tensor, y: Tensor, colour: str, **line: Any) -> dict[str, Any]:
    return {
        "type": "scatter", "mode": "lines", "name": name, "x": x.tolist(), "y": y.tolist(),
        "line": {"color": colour, "width": 2} | line, "hoverinfo": "name+x+y",
    }  # fmt: skip


def token_dots(context: Context, x_name: str, y_name: str, name: str, colour: str, keep: Tensor | None = None, **more):
    """One dot per trained token, whose click selects it. The selected one is ringed."""
    mask = context.trace.batch.trained_mask() if keep is None else keep & context.trace.batch.trained_mask()
    x, y = tensor_of(context, x_name), tensor_of(context, y_name)
    places = (mask & x.isfinite() & y.isfinite()).nonzero()[:2000].tolist()
    where = [[row, context.positions[column]] for row, column in places]
    here = [context.row, context.pos]
    ids = context.trace.batch.row_ids()
    return {
        "type": "scatter", "mode": "markers", "name": name, "customdata": where,
        "x": [float(x[row, column]) for row, column in places], "y": [float(y[row, column]) for row, column in places],
        "text": [plain(piece(context, int(ids[row, pos]))) for row, pos in where],
        "hovertemplate": "%{text}<br>%{x:.4g}, %{y:.4g}<extra></extra>",
        "marker": {
            "color": colour, "size": [14 if place == here else 9 for place in where], "opacity": 0.85,
            "line": {"width": [3 if place == here else 1 for place in where], "color": "var(--card)"},
        },
    } | more  # fmt: skip


def plain(text: str) -> str:
    """Text for Plotly, which reads a few HTML tags in labels: no tag can begin."""
    return text.replace("&", "&amp;").replace("<", "&lt;")
