"""A mistake that is often made, beside what is right, each with its number."""

from typing import Any

from ..shared.component import panel


def exhibit(
    *,
    name: str,
    said: str,
    said_value: Any,
    right: str,
    right_value: Any,
    why_html: str,
    title: str | None = None,
    caption_html: str | None = None,
    wide: bool = False,
) -> dict[str, Any]:
    """said and right are texts; their values are Numbers or texts; why_html is our own prose."""
    return panel(
        "exhibit", title, caption_html, wide,
        name=name, said=said, said_value=said_value, right=right, right_value=right_value, why_html=why_html,
    )  # fmt: skip
