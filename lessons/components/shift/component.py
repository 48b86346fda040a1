"""Two aligned strips with an arrow from the position that predicts to the token that it predicts."""

from collections.abc import Sequence
from typing import Any

from ..shared.component import panel


def shift(
    *,
    row: int,
    top: Sequence[dict[str, Any]],
    bottom: Sequence[dict[str, Any]],
    label_top: str,
    label_bottom: str,
    title: str | None = None,
    caption_html: str | None = None,
    wide: bool = True,
) -> dict[str, Any]:
    """top: {p, text}, positions whose logits are read; bottom: {p, text, trained}. Top p points at bottom p + 1."""
    return panel(
        "shift", title, caption_html, wide,
        row=row, top=list(top), bottom=list(bottom), label_top=label_top, label_bottom=label_bottom,
    )  # fmt: skip
