"""Lesson 13: d loss/d log-prob per token, d loss/d logits of one row, norms per layer. Explains step._update."""

from grpo_core import closed_forms, step
from grpo_core.engine import Engine

from .absent import lacking, said
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
needs = ("logprob_grad",)


def formula(context: Context) -> str:
    whole_vocabulary = [] if lacking(context, ("logit_grad",)) else [logit_formula(context.recipe)]
    lines = [gradient_formula(context.recipe, context.branch) if context.branch else "", *whole_vocabulary]
    return "\n".join(line for line in lines if line)


def build(context: Context) -> list[dict]:
    tokens = grid(
        context, "logprob_grad", title=context.label("grad_grid"), caption_html=context.html(context.label("grad_grid_caption"))
    )
    return [tokens, *vocabulary(context), *layers(context), *(said(context, ("grad_norm",)))]


def vocabulary(context: Context) -> list[dict]:
    """d loss / d logits of the selected token's row."""
    if lacking(context, ("logit_grad",)):
        return said(context, ("logit_grad",))
    ids = top_ids(context)
    row = vocab_bars(
        row=context.row, pos=context.pos, from_=context.pos - 1, columns=["probs", "logit_grad"],
        entries=entries(context, ("probs", "logit_grad"), ids, "logit_grad"), wide=True,
        rest=context.label("logits_rest", count=context.vocabulary.probs.shape[0] - len(ids)),
        title=context.label("logit_grad_row"), caption_html=context.html(context.label("logit_grad_caption")),
    )  # fmt: skip
    return [row]


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
        assignment(step._update, "logprob_grad"), *written, whole(closed_forms.closed_form_logit_grad),
        whole(Engine.norms), assignment(step._apply, "norm"),
    ]  # fmt: skip


def check(context: Context, answer: str) -> bool:
    """Which way does the sampled token's logit go? Against its gradient."""
    if lacking(context, ("logit_grad",)):
        grad = context.value("logprob_grad", context.row, context.pos)  # of the sampled token's logit it has the sign
    else:
        grad = context.value("logit_grad", place=context.token_id)
    return answer == ("up" if grad < 0 else "down" if grad > 0 else "still")
