"""Lesson 12: every aggregation is a matrix of weights over the same token losses. Explains aggregation.AGGREGATION."""

from grpo_core import aggregation as weights
from grpo_core import loss as core

from .components import table, text
from .figures import grid, row_label
from .formulas import aggregation_formula, loss_formula
from .lesson import Context
from .source import assignment, whole

slug = "aggregation"
tensors = ("token_loss", "token_weight", "policy_loss", "kl_loss", "entropy_loss", "loss")
checks = ("denominator_matches_mask", "split_invariance", "loss_zero_explain")
journey = ("token_weight", "weighted_token_loss")
needs = ("token_loss",)


def formula(context: Context) -> str:
    return aggregation_formula(context.recipe) + "\n" + loss_formula(context.recipe)


def build(context: Context) -> list[dict]:
    losses = table(
        columns=["aggregation", context.label("column_weight_here"), "policy_loss"],
        rows=[
            [name.replace("-", "-\u200b"), *(
                context.number(f"{quantity}@{name}", *at, hot=name == context.recipe.aggregation)
                for quantity, at in (("token_weight", (context.row, context.pos)), ("policy_loss", ()))
            )]
            for name in context.aggregations
        ],
        title=context.label("aggregation_table"), caption_html=context.html(context.label("aggregation_table_caption")),
    )  # fmt: skip
    parts = table(
        columns=[context.label(f"column_{key}") for key in ("part", "value", "coefficient")],
        rows=[
            ["policy_loss", context.number("policy_loss"), ""],
            ["+ beta · kl_loss", context.number("kl_loss"), context.number("beta")],
            ["\N{MINUS SIGN} entropy_coef · entropy_loss", context.number("entropy_loss"), context.number("entropy_coef")],
            ["loss", context.number("loss"), ""],
        ],
        title=context.label("loss_parts"), caption_html=context.html(context.label("loss_parts_caption")),
    )  # fmt: skip
    count, columns = context.rows.shown, ("row_tokens", "advantages", "weighted_row_loss")
    rows = table(
        columns=[context.label("column_row"), context.label("column_tokens"), "advantages", "weighted_\u200brow_\u200bloss"],
        rows=[[row_label(context, row), *(context.number(name, row) for name in columns)] for row in count],
        row_ids=count, title=context.label("loss_by_row"),
    )  # fmt: skip
    weights = grid(
        context, "token_weight", diverging=False, title=context.label("weight_grid", name=context.recipe.aggregation),
        caption_html=context.html(context.label("weight_grid_caption")),
    )  # fmt: skip
    padded = context.recipe.count_padding
    summed = None if padded else context.html(context.label("weighted_grid_caption"))
    adds = grid(context, "weighted_token_loss", title=context.label("weighted_grid"), caption_html=summed)
    padding = [text(html=context.html(context.label("padding_counts")))] if padded else []
    return [losses, parts, weights, *padding, adds, rows]


def source(context: Context) -> list[dict]:
    recipe, names = context.recipe, ("token_weight", "policy_part", "loss")
    used = [recipe.aggregation, recipe.kl_aggregation if recipe.beta else "same"]
    used += [recipe.entropy_aggregation if recipe.entropy_coef else "same"]
    own = [whole(weights.AGGREGATION[name]) for name in dict.fromkeys(used) if name != "same"]
    return [*own, *(assignment(core.policy_loss, name) for name in names)]


def check(context: Context, answer: str) -> bool:
    """Which aggregation gives a token of a long completion less weight than one of a short completion?"""
    weight = {name: context.aggregations[name].token_weight for name in context.aggregations}
    lengths = context.trace.batch.trained_mask().sum(1)
    short, long = int(lengths.argmin()), int(lengths.argmax())
    return answer in weight and bool(weight[answer][long].max() < weight[answer][short].max())
