"""Lesson 11: the surrogate, the clip, and which branch of the min won. Explains loss.SURROGATE."""

from grpo_core import loss as core
from grpo_core.explain import surrogate_curve

from .components import chart, text
from .examples import clip_fraction_example, dual_clip_example
from .figures import BLUE, GREY, ORANGE, curve, figure, lines_table, not_moved_yet, token_dots
from .lesson import Context
from .source import assignment, whole

slug = "clip"
tensors = ("ratio", "clipped_ratio", "surrogate", "clipped_surrogate", "is_clipped", "token_loss")
checks = ("clip_fraction_by_gradient",)
journey = ("token_loss",)

FORMULAS = {
    "min-clip": r"<<token_loss>> = -\min(<<ratio>> \cdot <<advantages>>,\; <<clipped_ratio>> \cdot <<advantages>>)",
    "dual-clip": r"<<token_loss>> = -\max(\min(<<ratio>> \cdot <<advantages>>,\; <<clipped_ratio>> \cdot <<advantages>>),\;"
    r" <<dual_clip>> \cdot <<advantages>>)",
    "none": r"<<token_loss>> = -<<ratio>> \cdot <<advantages>>",
}


def formula(context: Context) -> str:
    kind = context.recipe.surrogate
    positive = float(context.trace.advantages.advantages[context.row]) >= 0
    return FORMULAS["min-clip" if kind == "dual-clip" and positive else kind]


def winning(context: Context, name: str, pos: int) -> bool:
    """Whether this line holds the branch that the min took."""
    if name not in ("surrogate", "clipped_surrogate"):
        return False
    clipped = bool(context.value("is_clipped", context.row, pos))
    return clipped == (name == "clipped_surrogate")


def build(context: Context) -> list[dict]:
    diagram = chart(
        figure=clip_figure(context), alt=context.label("clip_chart_alt"), title=context.label("clip_chart"), height=400,
        caption_html=context.html(context.label("clip_chart_caption")), wide=True,
    )  # fmt: skip
    names = ("ratio", "clipped_ratio", "surrogate", "clipped_surrogate", "is_clipped", "token_loss")
    table = lines_table(
        context, names, title=context.label("clip_lines"), caption_html=context.html(context.label("clip_lines_caption")),
        hot=lambda name, pos: winning(context, name, pos),
    )  # fmt: skip
    flat = (
        [] if float(context.trace.advantages.advantages[context.row]) else [text(html=context.html(context.label("clip_flat")))]
    )
    return [
        *not_moved_yet(context, "clip", 1),
        *flat,
        diagram,
        table,
        dual_clip_example(context),
        clip_fraction_example(context),
    ]


def clip_figure(context: Context) -> dict:
    """ratio · A as it is and as it is clipped, for the selected token's advantage; every token as a dot."""
    advantage = float(context.trace.advantages.advantages[context.row]) or 1.0
    config = context.recipe.loss_config()
    highest = max(1 + 2 * config.clip_high, 1.2 * float(context.terms.ratio.max()))
    curves = surrogate_curve(config, advantage, 0.0, min(highest, 6.0))
    data = [
        curve(context.label("unclipped"), curves["ratio"], curves["surrogate"], GREY, dash="dot"),
        curve(context.label("objective"), curves["ratio"], curves["objective"], BLUE, width=4),
    ]
    clipped = context.terms.is_clipped
    for keep, name, colour, symbol in (
        (~clipped, context.label("dots_kept"), BLUE, "circle"), (clipped, context.label("dots_clipped"), ORANGE, "x")
    ):  # fmt: skip
        dots = token_dots(context, "ratio", "surrogate", name, colour, keep)
        dots["marker"]["symbol"] = symbol
        data.append(dots)
    bounds = (1 - config.clip_low, 1 + config.clip_high)
    dashes = {"color": GREY, "width": 1, "dash": "dash"}
    edges = [{"type": "line", "x0": x, "x1": x, "yref": "paper", "y0": 0, "y1": 1, "line": dashes} for x in bounds]
    return figure(data, "ratio", "surrogate", shapes=edges)


def source(context: Context) -> list[dict]:
    names = ("clipped_ratio", "surrogate", "clipped_surrogate")
    return [*(assignment(core.policy_loss, name) for name in names), whole(core.SURROGATE[context.recipe.surrogate])]


def check(context: Context, answer: str) -> bool:
    """Does clipping act on the first update? Only if a ratio is outside the bounds."""
    return answer == ("yes" if bool(context.trace.updates[0].terms.is_clipped.any()) else "no")
