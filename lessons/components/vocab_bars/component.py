"""Some entries of one position's vocabulary row, with a bar each; the sampled one is marked."""

from collections.abc import Sequence
from typing import Any

from ..shared.component import panel


def vocab_bars(
    *,
    row: int,
    pos: int,
    from_: int,
    columns: Sequence[str],
    entries: Sequence[dict[str, Any]],
    rest: str | None = None,
    title: str | None = None,
    caption_html: str | None = None,
    wide: bool = False,
) -> dict[str, Any]:
    """entries: {id, text, rank, sampled, values: [Number per column], bar: -1..1}; rest: what the others add up to."""
    place = {"row": row, "pos": pos, "from": from_}
    return panel("vocab_bars", title, caption_html, wide, **place, columns=list(columns), entries=list(entries), rest=rest)
