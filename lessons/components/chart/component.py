"""A Plotly figure, drawn by the plotly.js that our own server sends."""

from typing import Any

from ..shared.component import panel


def chart(
    *,
    figure: dict[str, Any],
    alt: str,
    height: int = 340,
    title: str | None = None,
    caption_html: str | None = None,
    wide: bool = False,
) -> dict[str, Any]:
    """figure: plain JSON with data and layout; customdata [row, pos] per point makes the point select its token."""
    return panel("chart", title, caption_html, wide, figure=figure, alt=alt, height=height)
