"""Lesson 13: d loss/d log-prob per token, d loss/d logits of one row, norms per layer. Explains step._update."""

from grpo_core import closed_forms, step

from .components import chart, vocab_bars
from .figures import BLUE, figure, grid, plain
from .formulas import gradient_formula, logit_formula
from .lesson import Context
from .s06_logits import entries, top_ids
from .source import assignment, whole

slug = "backward"
tensors = ("logprob_grad", "logit_grad", "grad_norm")
checks = ("logprob_gradient_closed_form", "logit_gradient_closed_form", "backward_finite")
journey = ("logprob_grad",)


def formula(context: Context) -> str:
    lines = (gradient_formula(context.recipe, context.branch), logit_formula(context.recipe))
    return "\n".join(line for line in lines if line)


def build(context: Context) -> list[dict]:
    tokens = grid(
        context, "logprob_grad", title=context.label("grad_grid"), caption_html=context.html(context.label("grad_grid_caption"))
    )
    ids = top_ids(context)
    row = vocab_bars(
        row=context.row, pos=context.pos, from_=context.pos - 1, columns=["probs", "logit_grad"],
        entries=entries(context, ("probs", "logit_grad"), ids, "logit_grad"), wide=True,
        rest=context.label("logits_rest", count=context.vocabulary.probs.shape[0] - len(ids)),
        title=context.label("logit_grad_row"), caption_html=context.html(context.label("logit_grad_caption")),
    )  # fmt: skip
    return [tokens, row, *layers(context)]


def layers(context: Context) -> list[dict]:
    """The gradient's norm in each block, once a backward pass has run with this recipe."""
    norms = context.layer_norms
    if not norms:
        return []
    bars = {"type": "bar", "x": [plain(name) for name in norms], "y": list(norms.values()), "marker": {"color": BLUE},
            "hoverinfo": "x+y"}  # fmt: skip
    return [
        chart(
            figure=figure([bars], "", "grad_norm"), alt=context.label("layer_chart_alt"), height=300, wide=True,
            title=context.label("layer_chart"), caption_html=context.html(context.label("layer_chart_caption")),
        )
    ]  # fmt: skip


def source(context: Context) -> list[dict]:
    recipe, written = context.recipe, []
    if recipe.surrogate in closed_forms.SURROGATE_SLOPE:
        written = [whole(closed_forms.SURROGATE_SLOPE[recipe.surrogate]), whole(closed_forms.policy_logprob_grad)]
    return [
        assignment(step._update, "logprob_grad"), *written, whole(closed_forms.closed_form_logit_grad), whole(step.grad_norms),
    ]  # fmt: skip


def check(context: Context, answer: str) -> bool:
    """Which way does the sampled token's logit go? Against its gradient."""
    grad = context.value("logit_grad", place=context.vocabulary.sampled_id)
    return answer == ("up" if grad < 0 else "down" if grad > 0 else "still")
