"""The bars of a bridge, one card each: the setting before and after, its formula, and the tokens that it touches."""

from collections.abc import Sequence
from typing import Any

from ..shared.component import panel


def bridge_bars(
    *,
    bars: Sequence[dict[str, Any]],
    idle: Sequence[dict[str, str]],
    sentence: str | None = None,
    sum: dict[str, Any] | None = None,
    changed: bool = False,
    title: str | None = None,
) -> dict[str, Any]:
    """bars: {knobs, label, delta: {v, s}, from, to, changes, mathml, after_mathml?, touched, chips, more, map, first, last}.

    idle: knobs {knob, label} that differ and change nothing; sentence: said in the place of bars; changed: the order is not
    the usual one. sum: {a, b: {name, v}, deltas: [{v, s, knob}], total: {v, s}}.
    """
    return panel(
        "bridge_bars", title, None, True,
        bars=list(bars), idle=list(idle), sentence=sentence, sum=sum, changed=changed or None,
    )  # fmt: skip
