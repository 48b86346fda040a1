"""Rows of log-probs over a few vocabulary columns, and the index that picks one cell of each row."""

from collections.abc import Sequence
from typing import Any

from ..shared.component import panel


def matrix(
    *,
    rows: Sequence[dict[str, Any]],
    columns: Sequence[dict[str, Any]],
    cells: Sequence[Sequence[dict[str, Any] | None]],
    picked: Sequence[int | None],
    title: str | None = None,
    caption_html: str | None = None,
    wide: bool = True,
) -> dict[str, Any]:
    """rows: {p, label, index: Number}; columns: {id, text}; picked: the column that each row's index names."""
    return panel(
        "matrix", title, caption_html, wide,
        rows=list(rows), columns=list(columns), cells=[list(c) for c in cells], picked=list(picked),
    )  # fmt: skip
