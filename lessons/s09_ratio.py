"""Lesson 9: four policies score the same token; the ratio is exp of a difference. Explains loss.policy_loss, first half."""

from grpo_core import loss as core
from grpo_core.step import grpo_step

from .components import text
from .figures import grid, lines_table, not_moved_yet, still
from .formulas import ratio_formula
from .lesson import Context
from .source import assignment, whole

slug = "ratio"
tensors = ("policy_logprobs", "old_logprobs", "ref_logprobs", "sampler_logprobs", "log_ratio", "ratio")
checks = ("ratio_first_step", "sampler_logprobs_match")
journey = ("ratio",)
asks = ("ratio",)


def formula(context: Context) -> str:
    return ratio_formula(context.recipe, context.branch)


def build(context: Context) -> list[dict]:
    four = ("sampler_logprobs", "old_logprobs", "policy_logprobs", "ref_logprobs", "log_ratio", "ratio")
    said = "ratio_lines_caption_file" if context.of_file else "ratio_lines_caption"
    table = lines_table(
        context, four, title=context.label("ratio_lines"), caption_html=context.html(context.label(said)),
        hot=lambda name, pos: name in ("policy_logprobs", f"{context.recipe.ratio_against}_logprobs") and pos == context.pos,
    )  # fmt: skip
    whole_batch = grid(
        context, "log_ratio", title=context.label("ratio_grid"), caption_html=context.html(context.label("ratio_grid_caption"))
    )
    keys = [f"ratio_{context.recipe.ratio}"] if context.recipe.ratio != "token" else []
    keys += ["ratio_against_sampler"] if context.recipe.ratio_against == "sampler" else []
    words = [text(html=context.html(context.label(key))) for key in keys]
    return [*(not_moved_yet(context, "ratio", 1) if context.trace.updates else []), *words, table, whole_batch]


def source(context: Context) -> list[dict]:
    return [
        assignment(grpo_step, "old"), assignment(core.policy_loss, "denominator"), assignment(core.policy_loss, "log_ratio"),
        whole(core.RATIO[context.recipe.ratio]), assignment(core.policy_loss, "ratio"),
    ]  # fmt: skip


def check(context: Context, answer: str) -> bool:
    """What is the ratio on the first update?"""
    first = context.trace.updates[0].terms.ratio[context.trace.batch.trained_mask()]
    return answer == ("one" if still(first, 1) else "other")
