"""A small table; a cell may be a number of a tensor, or a field to type in."""

from collections.abc import Sequence
from typing import Any

from ..shared.component import panel


def table(
    *,
    columns: Sequence[str],
    rows: Sequence[Sequence[Any]],
    row_ids: Sequence[int | None] = (),
    title: str | None = None,
    caption_html: str | None = None,
    wide: bool = False,
) -> dict[str, Any]:
    """A cell: text, Number, {"html": ours}, or an input {"edit": {row, function}, value, placeholder, edited}."""
    return panel("table", title, caption_html, wide, columns=list(columns), rows=[list(r) for r in rows], row_ids=list(row_ids))
