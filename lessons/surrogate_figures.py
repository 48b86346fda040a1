"""The surrogate as a curve: what is maximised against the ratio, or the weight that the ratio gives to the log-prob."""

from math import isfinite
from typing import Any

from grpo_core.explain import surrogate_curve, weight_curve

from .figures import BLUE, GREY, ORANGE, curve, figure, largest, token_dots
from .lesson import Context
from .quantities import tensor_of

BY_MIN = ("min-clip", "dual-clip", "two-sided", "clip-cov")  # the smaller of two branches
BY_RATIO = (*BY_MIN, "none", "sapo", "kl-cov", "dppo-ratio")  # the ratio alone makes the curve
BY_WEIGHT = ("log-prob", "cispo", "tis", "topr", "dppo-tv", "dppo-kl", "vespo")  # a constant times the log-prob


def clip_figure(context: Context) -> dict[str, Any]:
    """ratio · A as it is and what is maximised, for the selected token's advantage; every token as a dot."""
    advantage = context.value(context.advantage, context.row, context.pos) if context.is_trained else 0.0
    advantage = advantage if advantage and isfinite(advantage) else 1.0
    config = context.recipe.loss_config()
    curves = surrogate_curve(config, advantage, *reach(context, "ratio"))
    data = [
        curve(context.label("unclipped"), curves["ratio"], curves["surrogate"], GREY, dash="dot"),
        curve(context.label("objective"), curves["ratio"], curves["objective"], BLUE, width=4),
    ]
    bounds = (1 - config.clip_low, 1 + config.clip_high) if config.surrogate in BY_MIN else ()
    dashes = {"color": GREY, "width": 1, "dash": "dash"}
    edges = [{"type": "line", "x0": x, "x1": x, "yref": "paper", "y0": 0, "y1": 1, "line": dashes} for x in bounds]
    return figure([*data, *dots(context, "ratio", "surrogate")], "ratio", "surrogate", shapes=edges)


def weight_figure(context: Context) -> dict[str, Any]:
    """What multiplies A · log p, against the ratio; for `vespo` against the row's."""
    config, x = context.recipe.loss_config(), "row_ratio" if context.recipe.surrogate == "vespo" else "ratio"
    sign, reward = (context.branch.sign if context.branch else 0) or 1, context.value("reward", context.row)
    curves = weight_curve(config, float(sign), reward, *reach(context, x))
    data = [curve(context.label("weight_of_logprob"), curves["ratio"], curves["weight"], BLUE, width=4)]
    return figure([*data, *dots(context, x, "logprob_weight")], x, "logprob_weight")


def reach(context: Context, x: str) -> tuple[float, float]:
    """From which ratio to which: all tokens and the bounds, closer where both are close to 1."""
    farthest = largest(tensor_of(context, x) - 1, context.trace.batch.trained_mask())
    half = max(1.2 * farthest, 2 * context.recipe.clip_low, 2 * abs(context.recipe.clip_high))
    return (0.0, min(1 + half, 6.0)) if half >= 0.3 else (1 - half, 1 + half)


def dots(context: Context, x: str, y: str) -> list[dict[str, Any]]:
    """Every token, the clipped ones as crosses. A token without an advantage has no weight to show."""
    clipped = context.terms.is_clipped
    weighed = (tensor_of(context, "token_advantages") != 0) | (y != "logprob_weight")
    groups = []
    for keep, name, colour, symbol in (
        (~clipped, context.label("dots_kept"), BLUE, "circle"), (clipped, context.label("dots_clipped"), ORANGE, "x")
    ):  # fmt: skip
        group = token_dots(context, x, y, name, colour, keep & weighed)
        group["marker"]["symbol"] = symbol
        groups.append(group)
    return groups
