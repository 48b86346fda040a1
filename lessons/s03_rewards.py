"""Lesson 3: one row per completion, one column per reward function; every cell can be edited. Explains tasks."""

from grpo_core import tasks
from grpo_core.advantages import group_advantages, reward_kl_of
from grpo_core.step import rewards_after_edits

from .components import table, text
from .figures import nothing_to_learn, row_label
from .formulas import kl_after, kl_before, reward_formula
from .lesson import Context
from .numbers import shown
from .source import assignment, whole

slug = "rewards"
tensors = ("rewards", "reward_weights", "reward")
checks = ("reward_finite",)
journey = ("reward",)
needs = ("rewards",)


def formula(context: Context) -> str:
    """The weighted sum over the functions that answered, and what the convention makes of it."""
    answered = (~context.trace.advantages.missing[context.row]).nonzero().flatten().tolist()
    return reward_formula(context.recipe, answered) if answered else ""


def cell(context: Context, row: int, function: int) -> dict:
    """An input field that holds a reward; empty where the function returned none. A batch file's are what they are."""
    if context.of_file:
        missing = bool(context.trace.advantages.missing[row, function])
        return {"v": context.label("reward_none")} if missing else context.number("rewards", row, place=function)
    value = rewards_after_edits(context.trace.sampled(), context.recipe)[row][function]
    edited = any((row, function) == edit[:2] for edit in context.recipe.edited_rewards)
    number = context.number("rewards", row, place=function) if value is not None else {}
    return number | {
        "edit": {"row": row, "function": function}, "value": "" if value is None else shown(value),
        "placeholder": context.label("reward_none"), "edited": edited,
    }  # fmt: skip


def build(context: Context) -> list[dict]:
    names, rows = context.rows.reward_names, context.rows.shown
    weights = context.trace.advantages.weights.tolist() if context.of_file else context.recipe.reward_weights
    heads = [f"{name} × {shown(weight)}" for name, weight in zip(names, weights, strict=True)]
    valid = context.trace.advantages.valid
    columns = [context.label("column_row"), context.label("column_completion"), *heads, "reward"]
    lines = [
        [row_label(context, row), context.rows.text(row),
         *(cell(context, row, function) for function in range(len(names))),
         context.number("reward", row) if valid[row] else "–"]
        for row in rows
    ]  # fmt: skip
    return [*nothing_to_learn(context), *kl_in_reward(context), table(
        columns=columns, rows=lines, row_ids=rows, wide=True, title=context.label("reward_table"),
        caption_html=context.html(context.label("reward_file_caption" if context.of_file else "reward_table_caption")),
    )]  # fmt: skip


def kl_in_reward(context: Context) -> list[dict]:
    """Where the KL is taken off the reward: how, and why it is 0 on a step that starts from the reference."""
    kind = "before" if kl_before(context.recipe) else "after" if kl_after(context.recipe) else ""
    return [text(html=context.html(context.label(f"kl_in_reward_{kind}")))] if kind else []


def source(context: Context) -> list[dict]:
    recipe = context.recipe
    functions = [] if context.of_file else [whole(tasks.REWARDS[name]) for name in context.rows.reward_names]
    changed = (recipe.reward_shift, recipe.reward_scale, recipe.reward_clip) != (0, 1, 0) or kl_before(recipe)
    exact = [assignment(group_advantages, "exact")] if changed else []
    penalty = [whole(reward_kl_of)] if kl_before(recipe) else []
    typed = assignment(rewards_after_edits, "rewards[row][function]")
    return [*functions, typed, assignment(group_advantages, "reward"), *exact, *penalty]


def check(context: Context, answer: str) -> bool:
    """What does a reward of None do? It is left out, in every mean and spread."""
    return answer == "left-out"
