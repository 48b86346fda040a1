"""Our own Markdown, rendered."""

from typing import Any

from ..shared.component import panel


def text(
    *,
    html: str,
    go: dict[str, Any] | None = None,
    title: str | None = None,
    caption_html: str | None = None,
    wide: bool = False,
) -> dict[str, Any]:
    """html: from our own Markdown files only, never from what people or models wrote. go: {label, update}, a button."""
    return panel("text", title, caption_html, wide, html=html, go=go)
