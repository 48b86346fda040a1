"""Lesson 4's picture: the rewards of each group on a line, with what they are compared with."""

from .figures import BLUE, GREY, ORANGE, figure, plain, row_label
from .lesson import Context
from .numbers import shown, sign
from .quantities import tensor_of


def shown_groups(context: Context) -> dict[int, list[int]]:
    """Group -> those of its rows that have a reward, among the rows that are shown."""
    shown: dict[int, list[int]] = {context.rows.groups[row]: [] for row in context.rows.shown}
    valid = context.trace.advantages.valid.tolist()
    for row in context.rows.shown:
        shown[context.rows.groups[row]] += [row] * valid[row]
    return shown


def group_figure(context: Context) -> dict:
    """Each group's rewards on a line, with the mean and one spread either side."""
    trace, groups = context.trace, shown_groups(context)
    data = []
    for group, rows in groups.items():
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
    ticks = list(groups)
    texts = [context.label("prompt_number", number=group + 1) for group in ticks]
    return figure(
        data, "reward", "", yaxis={"tickvals": ticks, "ticktext": texts, "autorange": "reversed", "zeroline": False},
        margin={"l": 90, "r": 110, "t": 24, "b": 44},
    )  # fmt: skip
