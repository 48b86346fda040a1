"""Every token of a batch as a cell of one of a few kinds: glyphs up to 1000 cells, a canvas above and where it is small."""

from collections.abc import Sequence
from typing import Any

from ..shared.component import panel


def token_map(
    *,
    positions: Sequence[int],
    rows: Sequence[dict[str, Any]],
    classes: Sequence[dict[str, Any]] = (),
    small: bool = False,
    title: str | None = None,
    caption_html: str | None = None,
) -> dict[str, Any]:
    """rows: {row, label, codes}, a character per position, "." where nothing is trained; small: "y" is lit, "n" is not.

    classes: {name, label, count, codes, glyphs}, a glyph per code, in the order of the legend.
    """
    return panel(
        "token_map", title, caption_html, True,
        positions=list(positions), rows=list(rows), classes=list(classes), small=small or None,
    )  # fmt: skip
