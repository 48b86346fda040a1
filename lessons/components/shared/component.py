"""What all panels share: the plain dict that a panel is, and the number that can be traced back to its tensor."""

from typing import Any


def panel(kind: str, title: str | None, caption_html: str | None, wide: bool, **values: Any) -> dict[str, Any]:
    """One panel's value. Absent parts are left out, so that the payload holds only what is drawn."""
    heading = {"title": title, "caption_html": caption_html, "wide": wide or None}
    return {"kind": kind} | {name: value for name, value in (heading | values).items() if value is not None}


def number(quantity: str, row: int | None, pos: int | None, text: str, **extra: Any) -> dict[str, Any]:
    """A number as it is shown: `text` is printed verbatim; the rest says which element of which tensor it is.

    `extra`: from_ (the position that a logits row stands at), token (vocabulary id), s (sign), and the flags of a
    table cell: hot, off, word.
    """
    renamed = {name.rstrip("_"): value for name, value in extra.items() if value is not None}
    return {"q": quantity, "r": row, "p": pos, "v": text} | renamed
