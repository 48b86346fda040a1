"""Lesson 12: every aggregation is a matrix of weights over the same token losses. Explains loss.AGGREGATION."""

from grpo_core import loss as core

from .components import table
from .figures import grid, row_label
from .lesson import Context
from .source import assignment, whole

slug = "aggregation"
tensors = ("token_loss", "token_weight", "policy_loss", "kl_loss", "entropy_loss", "loss")
checks = ("denominator_matches_mask", "split_invariance", "loss_zero_explain")
journey = ("token_weight", "weighted_token_loss")

WEIGHTS = {
    "seq-mean-token-mean": r"<<token_weight>> = \frac{1}{<<num_rows>> \cdot <<row_tokens>>}",
    "token-mean": r"<<token_weight>> = \frac{1}{<<num_tokens>>}",
    "dr_grpo": r"<<token_weight>> = \frac{1}{<<num_rows>> \cdot <<max_completion_length>>}",
    "seq-mean-token-sum": r"<<token_weight>> = \frac{1}{<<num_rows>>}",
    "token-sum": r"<<token_weight>> = 1",
}
LOSS = r"<<loss>> = <<policy_loss>> + <<beta>> \cdot <<kl_loss>>"


def formula(context: Context) -> str:
    bonus = r" - <<entropy_coef>> \cdot <<entropy_loss>>" if context.recipe.entropy_coef else ""
    return WEIGHTS[context.recipe.aggregation] + "\n" + LOSS + bonus


def build(context: Context) -> list[dict]:
    losses = table(
        columns=["aggregation", context.label("column_weight_here"), "policy_loss"],
        rows=[
            [name, context.number(f"token_weight@{name}", context.row, context.pos), context.number(f"policy_loss@{name}")]
            for name in context.aggregations
        ],
        title=context.label("aggregation_table"), caption_html=context.html(context.label("aggregation_table_caption")),
    )  # fmt: skip
    parts = table(
        columns=[context.label(f"column_{key}") for key in ("part", "value", "times", "coefficient")],
        rows=[
            ["policy_loss", context.number("policy_loss"), "1", ""],
            ["kl_loss", context.number("kl_loss"), "beta", context.number("beta")],
            ["entropy_loss", context.number("entropy_loss"), "\N{MINUS SIGN} entropy_coef", context.number("entropy_coef")],
            ["loss", context.number("loss"), "", ""],
        ],
        title=context.label("loss_parts"), caption_html=context.html(context.label("loss_parts_caption")),
    )  # fmt: skip
    count, columns = range(len(context.trace.batch.group_ids)), ("row_tokens", "advantages", "weighted_row_loss")
    rows = table(
        columns=[context.label("column_row"), context.label("column_tokens"), *columns[1:]],
        rows=[[row_label(context, row), *(context.number(name, row) for name in columns)] for row in count],
        row_ids=list(count), title=context.label("loss_by_row"),
    )  # fmt: skip
    weights = grid(
        context, "token_weight", diverging=False, title=context.label("weight_grid", name=context.recipe.aggregation),
        caption_html=context.html(context.label("weight_grid_caption")),
    )  # fmt: skip
    adds = grid(
        context, "weighted_token_loss", title=context.label("weighted_grid"),
        caption_html=context.html(context.label("weighted_grid_caption")),
    )  # fmt: skip
    return [losses, parts, weights, adds, rows]


def source(context: Context) -> list[dict]:
    names = ("token_weight", "policy_part", "loss")
    return [whole(core.AGGREGATION[context.recipe.aggregation]), *(assignment(core.policy_loss, name) for name in names)]


def check(context: Context, answer: str) -> bool:
    """Which aggregation gives a token of a long completion less weight than one of a short completion?"""
    weight = {name: context.aggregations[name].token_weight for name in context.aggregations}
    lengths = context.trace.batch.trained_mask().sum(1)
    short, long = int(lengths.argmin()), int(lengths.argmax())
    return answer in weight and bool(weight[answer][long].max() < weight[answer][short].max())
