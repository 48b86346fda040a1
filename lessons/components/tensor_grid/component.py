"""A whole [B T] tensor as a heat grid: spans up to 1000 numbers, a canvas above."""

from collections.abc import Sequence
from typing import Any

from ..shared.component import panel


def tensor_grid(
    *,
    quantity: str,
    positions: Sequence[int],
    rows: Sequence[dict[str, Any]],
    max: float,
    diverging: bool = True,
    title: str | None = None,
    caption_html: str | None = None,
    wide: bool = True,
) -> dict[str, Any]:
    """rows: {row, label, cells: [text or None]}, a cell per position; None is masked and drawn hatched.

    max: the magnitude that gets the full colour.
    """
    return panel(
        "tensor_grid", title, caption_html, wide,
        quantity=quantity, positions=list(positions), rows=list(rows), max=max, diverging=diverging,
    )  # fmt: skip
