"""Lesson 10: k1, k2, k3 per token against the exact sum over the vocabulary. Explains kl.py."""

from grpo_core import kl as core
from grpo_core.explain import kl_curves
from grpo_core.loss import policy_loss

from .components import chart
from .examples import kl_examples
from .figures import BLUE, GREEN, GREY, ORANGE, curve, figure, grid, lines_table, not_moved_yet, token_dots
from .lesson import Context
from .source import assignment, whole

slug = "kl"
tensors = ("policy_logprobs", "ref_logprobs", "kl", "exact_kl")
checks = ("kl_nonnegative", "kl_step0_zero")
journey = ("kl",)

FORMULAS = {
    "k1": r"<<kl>> = <<policy_logprobs>> - <<ref_logprobs>>",
    "k2": r"<<kl>> = \tfrac{1}{2} (<<policy_logprobs>> - <<ref_logprobs>>)^2",
    "k3": "d = <<ref_logprobs>> - <<policy_logprobs>>\n" r"<<kl>> = e^{d} - d - 1",
    "abs": r"<<kl>> = |<<policy_logprobs>> - <<ref_logprobs>>|",
}


def formula(context: Context) -> str:
    return FORMULAS[context.recipe.kl_estimator]


def build(context: Context) -> list[dict]:
    table = lines_table(
        context, ("policy_logprobs", "ref_logprobs", "k1", "k2", "k3", "exact_kl"), title=context.label("kl_lines"),
        caption_html=context.html(context.label("kl_lines_caption")),
        hot=lambda name, pos: name == context.recipe.kl_estimator,
    )  # fmt: skip
    curves = chart(
        figure=kl_figure(context), alt=context.label("kl_chart_alt"), title=context.label("kl_chart"), height=380, wide=True,
        caption_html=context.html(context.label("kl_chart_caption")),
    )  # fmt: skip
    whole_batch = grid(
        context, "kl", title=context.label("kl_grid"), caption_html=context.html(context.label("kl_grid_caption"))
    )
    return [*not_moved_yet(context, "kl", 0), table, curves, whole_batch, *kl_examples(context)]


def kl_figure(context: Context) -> dict:
    """The estimators as functions of x = policy - ref, and where each token sits on the chosen one."""
    x = context.kl_estimates["k1"]
    reach = min(3.0, max(0.5, 1.2 * float(x.abs().max())))
    curves = kl_curves(-reach, reach)
    colours = {"k1": GREY, "k2": GREEN, "k3": BLUE, "abs": GREY}
    data = [curve(name, curves["x"], curves[name], colours[name]) for name in ("k1", "k2", "k3")]
    data.append(token_dots(context, "k1", "kl", context.label("tokens"), ORANGE))
    return figure(data, "policy_logprobs − ref_logprobs", "kl")


def source(context: Context) -> list[dict]:
    estimator = core.KL[context.recipe.kl_estimator]
    return [whole(estimator), whole(core.exact_kl), assignment(policy_loss, "kl")]


def check(context: Context, answer: str) -> bool:
    """What is the KL on the first update?"""
    first = context.trace.updates[0].terms.kl.abs().max()
    return answer == ("zero" if float(first) < 1e-6 else "positive")
