"""Lesson 10: k1, k2, k3 per token against the exact sum over the vocabulary. Explains kl.py."""

from grpo_core import kl as core
from grpo_core.explain import kl_curves
from grpo_core.loss import policy_loss

from .components import chart, text
from .examples import kl_examples
from .figures import BLUE, GREEN, GREY, ORANGE, curve, figure, grid, largest, lines_table, not_moved_yet, still, token_dots
from .formulas import kl_formula
from .lesson import Context
from .source import assignment, whole

slug = "kl"
tensors = ("policy_logprobs", "ref_logprobs", "kl", "exact_kl")
checks = ("kl_nonnegative", "kl_step0_zero")
journey = ("kl",)
needs = ("kl",)


def formula(context: Context) -> str:
    return kl_formula(context.recipe, context.branch)


def build(context: Context) -> list[dict]:
    recipe = context.recipe
    estimators = [name for name in core.KL if name != "abs" or recipe.kl_estimator == "abs"]
    # of the sampler's and of a file's policies the whole distribution is not known
    exact = ["exact_kl"] if recipe.kl_against == "ref" and not context.of_file else []
    seen = "file" if context.of_file else recipe.kl_against
    table = lines_table(
        context, ("policy_logprobs", f"{recipe.kl_against}_logprobs", *sorted(estimators), *exact, "kl"),
        title=context.label("kl_lines"), caption_html=context.html(context.label(f"kl_lines_caption_{seen}")),
        hot=lambda name, pos: name == recipe.kl_estimator,
    )  # fmt: skip
    curves = chart(
        figure=kl_figure(context), alt=context.label("kl_chart_alt"), title=context.label("kl_chart"), height=380, wide=True,
        caption_html=context.html(context.label("kl_chart_caption")),
    )  # fmt: skip
    whole_batch = grid(
        context, "kl", title=context.label("kl_grid"), caption_html=context.html(context.label("kl_grid_caption"))
    )
    return [*not_moved_yet(context, "kl", 0), *where_it_counts(context), table, curves, whole_batch, *kl_examples(context)]


def where_it_counts(context: Context) -> list[dict]:
    """What a convention does differently with the KL: nothing in the loss, its value multiplied, another gradient."""
    recipe = context.recipe
    keys = [] if recipe.beta else ["kl_not_in_loss"]
    keys += ["kl_against_sampler"] if recipe.kl_against == "sampler" else []
    keys += [f"kl_gradient_{recipe.kl_gradient}"] if recipe.kl_gradient != "plain" and recipe.beta else []
    return [text(html=context.html(" ".join(context.label(key) for key in keys)))] if keys else []


def kl_figure(context: Context) -> dict:
    """The estimators as functions of x = policy - ref, and where each token sits on the chosen one."""
    x = context.kl_estimates["k1"]
    reach = min(3.0, max(0.5, 1.2 * largest(x, context.trace.batch.trained_mask())))
    curves = kl_curves(-reach, reach)
    colours = {"k1": GREY, "k2": GREEN, "k3": BLUE, "abs": GREY}
    names = ("k1", "k2", "k3", *(["abs"] if context.recipe.kl_estimator == "abs" else []))
    data = [curve(name, curves["x"], curves[name], colours[name], dash="dot" if name == "abs" else "solid") for name in names]
    data.append(token_dots(context, "k1", "kl", context.label("tokens"), ORANGE))
    return figure(data, f"policy_logprobs − {context.recipe.kl_against}_logprobs", "kl")


def source(context: Context) -> list[dict]:
    estimator, gradient = core.KL[context.recipe.kl_estimator], core.KL_GRADIENT[context.recipe.kl_gradient]
    return [whole(estimator), whole(gradient), whole(core.token_kl), whole(core.exact_kl), assignment(policy_loss, "kl")]


def check(context: Context, answer: str) -> bool:
    """What is the KL on the first update?"""
    return answer == ("zero" if still(context.trace.updates[0].terms.kl, 0) else "positive")
