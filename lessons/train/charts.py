"""The curves of a run: which there are, how they look, and their points. The browser appends points as they come."""

import math
from collections.abc import Sequence
from typing import Any

from grpo_core.train_config import TrainConfig
from grpo_core.trainer import needs_reference

from .. import prose
from ..components import chart

COLOURS = ("var(--pos)", "var(--neg)", "var(--ok)", "var(--warn)")
DASHES = ("dash", "dot", "dashdot", "longdash")
SINGLE = ("loss", "kl", "entropy", "clip_fraction", "completion_length")
HEIGHT, WIDE_HEIGHT = 190, 300


def series(config: TrainConfig) -> tuple[str, ...]:
    """The metrics that are drawn, by the trainer's names."""
    return ("reward", *(f"reward/{name}" for name in config.reward_functions), *SINGLE)


def title(name: str, lang: str) -> str:
    """What a metric is called."""
    kind, _, function = name.partition("/")
    return prose.label(lang, "train_reward_of", name=function) if function else prose.label(lang, f"train_{kind}")


def panels(config: TrainConfig, lang: str) -> list[dict[str, Any]]:
    """One chart for the rewards, one for each other metric; without points."""
    names = series(config)
    rewards = [name for name in names if name.startswith("reward")]
    lines = [line(rewards[0], lang, "var(--accent)", "solid", 3)]
    lines += [line(name, lang, COLOURS[i % len(COLOURS)], DASHES[i % len(DASHES)], 1.75) for i, name in enumerate(rewards[1:])]
    drawn = [one("reward", lines, config, lang, wide=True)]
    for name in SINGLE:
        key = "kl_start" if name == "kl" and not needs_reference(config) else name
        drawn.append(one(key, [line(name, lang, "var(--accent)", "solid", 2)], config, lang))
    return drawn


def line(name: str, lang: str, colour: str, dash: str, width: float) -> dict[str, Any]:
    """An empty curve; `series` is the metric that fills it."""
    return {
        "type": "scatter", "mode": "lines", "name": title(name, lang), "series": name, "x": [], "y": [],
        "line": {"color": colour, "dash": dash, "width": width}, "connectgaps": False,
    }  # fmt: skip


def one(key: str, lines: list[dict], config: TrainConfig, lang: str, wide: bool = False) -> dict[str, Any]:
    heading = prose.label(lang, f"train_chart_{key}")
    axis = {"text": prose.label(lang, "train_chart_axis"), "font": {"size": 12}, "standoff": 4}
    layout = {
        "xaxis": {"range": [1, max(2, config.steps)], "title": axis} | ({"dtick": 1} if config.steps <= 12 else {}),
        "yaxis": {"rangemode": "normal" if key == "loss" else "tozero"}, "uirevision": "run", "hovermode": "x unified",
        "showlegend": wide, "legend": {"orientation": "h", "y": 1.03, "yanchor": "bottom", "x": 0},
    }  # fmt: skip
    return chart(
        figure={"data": lines, "layout": layout}, alt=prose.label(lang, "train_chart_alt", title=heading), title=heading,
        height=WIDE_HEIGHT if wide else HEIGHT, wide=wide,
        caption_html=prose.render(prose.label(lang, f"train_chart_{key}_caption")),
    )  # fmt: skip


def points(history: Sequence[dict[str, float]], config: TrainConfig, since: int) -> dict[str, Any]:
    """The steps from `since` on. A step in which nothing was trained has a gap."""
    new = list(history[since:])
    return {
        "from": since, "x": list(range(since + 1, since + 1 + len(new))),
        "y": {name: [drawable(metrics.get(name)) for metrics in new] for name in series(config)},
    }  # fmt: skip


def drawable(value: float | None) -> float | None:
    """A number with as many digits as can be seen."""
    return float(f"{value:.6g}") if value is not None and math.isfinite(value) else None
