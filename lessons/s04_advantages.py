"""Lesson 4: rewards minus their group's mean, over its spread. Explains advantages.py."""

from grpo_core import advantages as core
from grpo_core.explain import winner_advantages

from .components import chart, table, text
from .figures import BLUE, GREY, ORANGE, figure, grid, nothing_to_learn, plain, row_label
from .formulas import advantage_formula, kl_after, per_token, token_lines
from .lesson import Context
from .numbers import shown, sign
from .quantities import tensor_of
from .source import assignment, whole

slug = "advantages"
tensors = ("reward", "baseline", "scale", "group_std", "advantages", "token_advantages")
checks = ("advantage_group_sum", "advantage_magnitude", "zero_std_groups", "group_size_min")
journey = ("advantages",)


def formula(context: Context) -> str:
    if not context.trace.advantages.valid[context.row]:
        return "\n".join(token_lines(context.recipe, context.branch))
    return advantage_formula(context.recipe, context.branch)


def build(context: Context) -> list[dict]:
    line = chart(
        figure=group_figure(context), alt=context.label("advantage_chart_alt"), height=150 + 90 * len(context.recipe.prompts),
        title=context.label("advantage_chart"), caption_html=context.html(context.label("advantage_chart_caption")), wide=True,
    )  # fmt: skip
    picture = [line] if bool(context.trace.advantages.valid.any()) else []
    return [
        *nothing_to_learn(context), *picture, row_table(context), *own_advantages(context), conventions(context),
        winners(context),
    ]  # fmt: skip


def own_advantages(context: Context) -> list[dict]:
    """Every token's own advantage, where the convention gives it one."""
    recipe = context.recipe
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


def group_figure(context: Context) -> dict:
    """Each group's rewards on a line, with the mean and one spread either side."""
    trace, groups = context.trace, context.trace.batch.group_ids
    data = []
    for group in groups.unique().tolist():
        rows = ((groups == group) & trace.advantages.valid).nonzero().flatten().tolist()
        if not rows:
            continue
        mean, spread = float(tensor_of(context, "group_mean")[rows[0]]), float(tensor_of(context, "group_std")[rows[0]])
        data.append({
            "type": "scatter", "mode": "lines+markers", "x": [mean - spread, mean, mean + spread], "y": [group] * 3,
            "line": {"color": GREY, "width": 3}, "marker": {"symbol": ["line-ns-open", "diamond", "line-ns-open"], "size": 16},
            "name": context.label("mean_and_std"), "showlegend": group == 0, "hoverinfo": "x",
        })  # fmt: skip
        for place, row in enumerate(rows):
            value, advantage = float(trace.advantages.reward[row]), float(trace.advantages.advantages[row])
            height = group + 0.12 + min(0.1, 0.75 / len(rows)) * place
            data.append({
                "type": "scatter", "mode": "markers+text", "x": [value], "y": [height],
                "customdata": [[row, pos] for pos in context.trained_positions(row)[:1]],
                "text": [f"{plain(row_label(context, row))}  A = {shown(advantage)}"],
                "textposition": "middle right", "showlegend": False, "hovertext": plain(row_label(context, row)),
                "hoverinfo": "text+x", "cliponaxis": False,
                "marker": {"size": 15 if row == context.row else 11, "color": (GREY, BLUE, ORANGE)[sign(advantage)],
                           "symbol": ("circle", "triangle-right", "triangle-left")[sign(advantage)]},
            })  # fmt: skip
    ticks = groups.unique().tolist()
    texts = [context.label("prompt_number", number=group + 1) for group in ticks]
    return figure(
        data, "reward", "", yaxis={"tickvals": ticks, "ticktext": texts, "autorange": "reversed", "zeroline": False},
        margin={"l": 90, "r": 110, "t": 24, "b": 44},
    )  # fmt: skip


def row_table(context: Context) -> dict:
    names = ("reward", "baseline", "scale", "advantages")
    valid = context.trace.advantages.valid
    rows = range(len(valid))
    return table(
        columns=[context.label("column_row"), *names],
        rows=[
            [row_label(context, row), *(context.number(n, row) if valid[row] or n == "advantages" else "–" for n in names)]
            for row in rows
        ],
        row_ids=list(rows), title=context.label("advantage_rows"),
    )  # fmt: skip


def conventions(context: Context) -> dict:
    """The same rewards under every baseline and spread."""
    rows = range(len(context.trace.batch.group_ids))
    names = [f"advantages@{mean}/{std}" for mean, std in context.conventions]
    own = f"advantages@{context.recipe.advantage_mean}/{context.recipe.advantage_std}"
    return table(
        columns=[context.label("column_row"), *(name.split("@")[1].replace("/", "/\u200b") for name in names)],
        rows=[[row_label(context, row), *(context.number(name, row, hot=name == own) for name in names)] for row in rows],
        row_ids=list(rows), title=context.label("conventions"), wide=True,
        caption_html=context.html(context.label("conventions_caption")),
    )  # fmt: skip


def winners(context: Context) -> dict:
    """What one success is worth, by how many of the group succeed."""
    size = max(2, context.recipe.group_size)
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
