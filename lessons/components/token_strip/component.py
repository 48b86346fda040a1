"""Rows of tokens as chips that wrap onto lines, or one column per position."""

from collections.abc import Sequence
from typing import Any

from ..shared.component import panel


def token_strip(
    *,
    rows: Sequence[dict[str, Any]],
    legend: Sequence[dict[str, Any]] = (),
    aligned: str | None = None,
    title: str | None = None,
    caption_html: str | None = None,
    wide: bool = False,
) -> dict[str, Any]:
    """rows: {row, label, badge?, note?, tokens: [{p, text, id, k, tint?, sub?, mark?}]}; legend: {k or tint, label}.

    k: prompt, completion, pad, special, eos or cut. tint: 0..1, or -1..1 where the sign matters.
    aligned: "full" or "bands" (no second line, padding without text): one column per position, instead of wrapping.
    """
    return panel("token_strip", title, caption_html, wide, rows=list(rows), legend=list(legend), aligned=aligned)
