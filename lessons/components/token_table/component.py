"""One row's tokens as columns, one line per quantity."""

from collections.abc import Sequence
from typing import Any

from ..shared.component import panel


def token_table(
    *,
    row: int,
    tokens: Sequence[dict[str, Any]],
    lines: Sequence[dict[str, Any]],
    title: str | None = None,
    caption_html: str | None = None,
    wide: bool = True,
) -> dict[str, Any]:
    """tokens: {p, text, k}; lines: {label, quantity, note?, cells}, a cell per token: Number, text or None.

    A cell may carry hot (the winning branch, the picked cell), off (masked, hatched) and word (a text under it).
    """
    return panel("token_table", title, caption_html, wide, row=row, tokens=list(tokens), lines=list(lines))
