"""Lesson 4: rewards minus their group's mean, over its spread. Explains advantages.py."""

from grpo_core import advantages as core
from grpo_core.explain import winner_advantages

from . import stored
from .absent import lacking
from .advantage_figure import group_figure, shown_groups
from .components import chart, table, text
from .figures import grid, nothing_to_learn, row_label
from .formulas import advantage_formula, kl_after, per_token, token_lines
from .lesson import Context
from .numbers import shown
from .source import assignment, whole

slug = "advantages"
tensors = ("reward", "baseline", "scale", "group_std", "advantages", "token_advantages")
checks = ("advantage_group_sum", "advantage_magnitude", "zero_std_groups", "group_size_min")
journey = ("advantages",)


def formula(context: Context) -> str:
    if context.of_file:
        return stored.formula(context)
    if not context.trace.advantages.valid[context.row]:
        return "\n".join(token_lines(context.recipe, context.branch))
    return advantage_formula(context.recipe, context.branch)


def build(context: Context) -> list[dict]:
    line = chart(
        figure=group_figure(context), alt=context.label("advantage_chart_alt"), height=150 + 90 * len(shown_groups(context)),
        title=context.label("advantage_chart"), caption_html=context.html(context.label("advantage_chart_caption")), wide=True,
    )  # fmt: skip
    picture = [line] if bool(context.trace.advantages.valid.any()) and context.rows.grouped else []
    if context.of_file:
        others = [] if lacking(context, (stored.recomputed(context),)) else [conventions(context), winners(context)]
        return [*picture, *stored.rows(context), *own_advantages(context), *others]
    return [
        *nothing_to_learn(context), *picture, row_table(context), *own_advantages(context), conventions(context),
        winners(context),
    ]  # fmt: skip


def own_advantages(context: Context) -> list[dict]:
    """Every token's own advantage, where the convention gives it one."""
    recipe = context.recipe
    if context.own_advantages or context.of_file:
        return [grid(context, "token_advantages", title=context.label("own_advantages"))] if context.own_advantages else []
    if not per_token(recipe):
        return []
    why = [key for key, holds in (
        ("kl", kl_after(recipe)), ("whiten", recipe.advantage_whiten != "none"), ("clip", bool(recipe.advantage_clip))
    ) if holds]  # fmt: skip
    words = " ".join(context.label(f"own_advantages_{key}") for key in why)
    tokens = grid(
        context, "token_advantages", title=context.label("own_advantages"),
        caption_html=context.html(context.label("own_advantages_caption")),
    )  # fmt: skip
    return [text(html=context.html(words)), tokens]


def row_table(context: Context) -> dict:
    names = ("reward", "baseline", "scale", "advantages")
    valid = context.trace.advantages.valid
    rows = context.rows.shown
    return table(
        columns=[context.label("column_row"), *names],
        rows=[
            [row_label(context, row), *(context.number(n, row) if valid[row] or n == "advantages" else "–" for n in names)]
            for row in rows
        ],
        row_ids=rows, title=context.label("advantage_rows"),
    )  # fmt: skip


def conventions(context: Context) -> dict:
    """The same rewards under every baseline and spread."""
    rows = context.rows.shown
    names = [f"advantages@{mean}/{std}" for mean, std in context.conventions]
    own = f"advantages@{context.recipe.advantage_mean}/{context.recipe.advantage_std}"
    return table(
        columns=[context.label("column_row"), *(name.split("@")[1].replace("/", "/\u200b") for name in names)],
        rows=[[row_label(context, row), *(context.number(name, row, hot=name == own) for name in names)] for row in rows],
        row_ids=rows, title=context.label("conventions"), wide=True,
        caption_html=context.html(context.label("conventions_caption")),
    )  # fmt: skip


def winners(context: Context) -> dict:
    """What one success is worth, by how many of the group succeed."""
    size = max(2, min(context.recipe.group_size, 64))
    lines = [
        [f"{count} / {size}", shown(winner), shown(loser)]
        for count, (winner, loser) in winner_advantages(context.recipe, size).items()
    ]
    return table(
        columns=[context.label("column_winners"), context.label("column_winner"), context.label("column_loser")],
        rows=lines, title=context.label("winners"), caption_html=context.html(context.label("winners_caption")),
    )  # fmt: skip


def source(context: Context) -> list[dict]:
    recipe = context.recipe
    rows = [whole(core.ADVANTAGE_MEAN[recipe.advantage_mean]), whole(core.ADVANTAGE_STD[recipe.advantage_std])]
    own = [whole(core.token_advantages)] if per_token(recipe) else []
    own += [whole(core.WHITEN[recipe.advantage_whiten])] if recipe.advantage_whiten != "none" else []
    own += [whole(core.reward_kl_of)] if kl_after(recipe) else []
    return [*rows, assignment(core.group_advantages, "scale"), assignment(core.group_advantages, "advantages"), *own]


def check(context: Context, answer: str) -> bool:
    """All rewards of a group equal: what is its advantage?"""
    return answer == "zero"
