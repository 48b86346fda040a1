"""Our own Markdown, rendered."""

from typing import Any

from ..shared.component import panel


def text(*, html: str, title: str | None = None, caption_html: str | None = None, wide: bool = False) -> dict[str, Any]:
    """html: from our own Markdown files only, never from what people or models wrote."""
    return panel("text", title, caption_html, wide, html=html)
