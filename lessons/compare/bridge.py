"""From A's loss to B's, one knob at a time: the waterfall, and what each of its bars is about."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from grpo_core.bridge import Bar, bridge, differing
from grpo_core.compare import Evaluation, config_of
from grpo_core.convention import Convention
from grpo_core.inputs import missing
from grpo_core.presets import PRESETS

from .. import formulas, prose
from ..components import bridge_bars, chart, preset_pair
from ..figures import BLUE, GREY, ORANGE, figure
from ..formula import SLOT, symbols
from ..numbers import shown, sign, signed
from ..quantities import QUANTITIES
from .link import Wanted
from .source import Source
from .tokens import Window, marked_map, tokens_at

CHIPS = 12  # tokens of a bar that are named one by one
BAR_HEIGHT = 54
ZOOM = 0.1  # closer together than this share of them


def _advantages(convention: Convention, functions: int) -> str:
    return formulas.advantage_formula(convention)


def _kl(convention: Convention, functions: int) -> str:
    return formulas.kl_formula(convention) if convention.beta else ""


FORMULAS: dict[str, Callable[[Convention, int], str]] = {
    "reward": lambda c, functions: formulas.reward_formula(c, range(functions)),
    **dict.fromkeys(("kl_in_reward", "baseline", "std", "std_eps", "group_of_one", "whitening", "advantage_clip"), _advantages),
    **dict.fromkeys(("ratio_against", "ratio", "log_ratio_bound"), lambda c, _: formulas.ratio_formula(c)),
    **dict.fromkeys(("surrogate", "clip", "correction", "gates"), lambda c, _: formulas.surrogate_formula(c)),
    **dict.fromkeys(("aggregation", "empty_rows", "kl_aggregation"), lambda c, _: formulas.aggregation_formula(c)),
    **dict.fromkeys(("kl_estimator", "kl_against", "kl_gradient"), _kl),
    **dict.fromkeys(("kl", "entropy"), lambda c, _: formulas.loss_formula(c)),
}


def bars_of(source: Source, wanted: Wanted) -> tuple[Bar, ...] | None:
    """None where the batch lacks what one of the two needs."""
    start, end = (PRESETS[name].convention() for name in (wanted.a, wanted.b))
    if missing(source.inputs, start) or missing(source.inputs, end):
        return None
    return bridge(source.inputs, start, end, wanted.order)


def pair_panel(source: Source, wanted: Wanted) -> dict[str, Any]:
    """The two that are compared, and what the batch lacks for them."""
    lang = wanted.selection.lang
    needs = [
        prose.label(lang, "compare_pair_needs", preset=name, needs=", ".join(lacking))
        for name in dict.fromkeys((wanted.a, wanted.b))
        if (lacking := missing(source.inputs, PRESETS[name].convention()))
    ]
    presets = [{"name": row.name, "trainer": row.trainer, "version": row.version} for row in PRESETS.values()]
    return preset_pair(presets=presets, a=wanted.a, b=wanted.b, needs=needs)


def panels(source: Source, wanted: Wanted, bars: Sequence[Bar], window: Window, loss: float) -> list[dict[str, Any]]:
    """The waterfall and its bars. `loss`: A's."""
    lang = wanted.selection.lang
    seen = [bar for bar in bars if bar.touched.any()]
    idle = [knob for bar in bars if not bar.touched.any() for knob in bar.knobs]
    if not seen:
        same = prose.label(lang, "bridge_same", a=wanted.a, b=wanted.b, loss=signed(loss))
        return [bridge_bars(bars=[], sentence=same, idle=_words(idle, lang))]
    end = seen[-1].after.loss
    zoomed = axis_start([loss, *(bar.after.loss for bar in seen)]) != 0
    drawn = chart(
        figure=waterfall(seen, wanted, loss), alt=prose.label(lang, "bridge_alt", a=wanted.a, b=wanted.b), wide=True,
        height=56 + BAR_HEIGHT * (len(seen) + 2), title=prose.label(lang, "bridge_chart", a=wanted.a, b=wanted.b),
        caption_html=prose.render(prose.label(lang, "bridge_zoomed")) if zoomed else None,
    )  # fmt: skip
    return [
        *([drawn] if all(math.isfinite(bar.after.loss) for bar in seen) and math.isfinite(loss) else []),
        bridge_bars(
            bars=[_bar(source, bar, window, lang, place, len(seen)) for place, bar in enumerate(seen)],
            sum={
                "a": {"name": wanted.a, "v": signed(loss)}, "b": {"name": wanted.b, "v": signed(end)},
                "deltas": [{"v": signed(bar.delta), "s": sign(bar.delta), "knob": "+".join(bar.knobs)} for bar in seen],
                "total": {"v": signed(math.fsum(bar.delta for bar in seen)), "s": sign(end - loss)},
            },
            idle=_words(idle, lang), title=prose.label(lang, "bridge_bars"), changed=bool(wanted.order),
        ),
    ]  # fmt: skip


def _words(knobs: Sequence[str], lang: str) -> list[dict[str, str]]:
    return [{"knob": knob, "label": prose.label(lang, f"bridge_{knob}")} for knob in knobs]


def waterfall(bars: Sequence[Bar], wanted: Wanted, loss: float) -> dict[str, Any]:
    """Plotly: A's loss, one bar from each loss to the next, B's loss. Top to bottom, each under its name."""
    lang, end = wanted.selection.lang, bars[-1].after.loss
    names = [" + ".join(prose.label(lang, f"bridge_{knob}") for knob in bar.knobs) for bar in bars]
    low = axis_start([loss, *(bar.after.loss for bar in bars)])
    ends = _trace("ends", [0, len(bars) + 1], [loss - low, end - low], [low, low], [GREY, GREY])
    steps = _trace(
        "bars", list(range(1, len(bars) + 1)), [bar.delta for bar in bars], [bar.before.loss for bar in bars],
        [BLUE if bar.delta > 0 else ORANGE for bar in bars],
    )  # fmt: skip
    numbers = [signed(value) for value in (loss, *steps["x"], end)]
    titles = [
        f"<b>{number}</b>  {name}" for number, name in zip(numbers, (f"A: {wanted.a}", *names, f"B: {wanted.b}"), strict=True)
    ]
    reach = [low, loss, *(bar.after.loss for bar in bars)]
    room = 0.06 * (max(reach) - min(reach)) or 1.0
    left = low if low else min(reach) - room * any(value < 0 for value in (*ends["x"], *steps["x"]))
    return figure(
        [ends, steps], prose.label(lang, "compare_loss"), "", margin={"l": 6, "r": 6, "t": 4, "b": 44},
        yaxis={"visible": False, "range": [len(titles) - 0.6, -0.75], "fixedrange": True},
        xaxis={"range": [left, max(reach) + room], "fixedrange": True, "nticks": 7}, showlegend=False,
        annotations=[_name(text, place) for place, text in enumerate(titles)],
    )  # fmt: skip


def _name(text: str, place: int) -> dict[str, Any]:
    """Our own words over a bar."""
    return {
        "text": text, "x": 0, "xref": "paper", "xanchor": "left", "y": place - 0.22, "yanchor": "bottom", "showarrow": False,
        "align": "left", "font": {"size": 13},
    }  # fmt: skip


def axis_start(losses: Sequence[float]) -> float:
    """0, unless the losses lie so close together that their differences would not be seen."""
    low, high = min(losses), max(losses)
    return low - (high - low) if 0 < high - low < ZOOM * min(abs(low), abs(high)) and low * high > 0 else 0.0


def _trace(name: str, y: list[int], x: list[float], base: list[float], colours: list[str]) -> dict[str, Any]:
    return {
        "type": "bar", "orientation": "h", "name": name, "y": y, "x": x, "base": base, "width": 0.44,
        "marker": {"color": colours}, "hoverinfo": "none",
    }  # fmt: skip


def _bar(source: Source, bar: Bar, window: Window, lang: str, place: int, bars: int) -> dict[str, Any]:
    touched, trained = int(bar.touched.sum()), int(source.inputs.mask.sum())
    before, after = (_formula(bar, side, source) for side in (bar.before, bar.after))
    text = prose.label(lang, "bridge_touches", touched=touched, trained=trained)
    return {
        "knobs": list(bar.knobs), "label": " + ".join(item["label"] for item in _words(bar.knobs, lang)),
        "delta": {"v": signed(bar.delta), "s": sign(bar.delta)}, "from": signed(bar.before.loss), "to": signed(bar.after.loss),
        "changes": [
            {"name": name, "label": prose.label(lang, f"knob_{name}"), "before": written(old), "after": written(new)}
            for name, (old, new) in bar.changes.items()
        ],
        "mathml": before, "after_mathml": after if after != before else None, "touched": text,
        "gradient_only": bar.delta == 0,
        "chips": tokens_at(source, bar.touched, CHIPS), "more": max(0, touched - CHIPS),
        "map": marked_map(source, bar.touched, window), "first": place == 0, "last": place == bars - 1,
    }  # fmt: skip


def written(value: Any) -> str:
    """A setting's value."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, tuple):
        return ", ".join(map(written, value)) or "none"
    return shown(value) if isinstance(value, float) else str(value)


def _formula(bar: Bar, side: Evaluation, source: Source) -> str:
    """The formulas in which the bar's knobs stand, and the settings that they read, as far as the bar does not say them."""
    functions = len(source.inputs.rewards[0]) if source.inputs.rewards else 1
    length = config_of(source.inputs, side.convention).max_completion_length
    convention = replace(side.convention, max_completion_length=length)
    templates = dict.fromkeys(FORMULAS[knob](convention, functions) for knob in bar.knobs if knob in FORMULAS)
    slots = dict.fromkeys(slot[1] for template in templates for slot in SLOT.finditer(template))
    read = [name for name in slots if QUANTITIES[name.partition(".")[0]].axes == "recipe" and name not in bar.changes]
    settings: Any = SimpleNamespace(recipe=convention)  # all that a setting's quantity looks at
    values = [rf"{_symbol(name)} = {shown(QUANTITIES[name].get(settings))}" for name in read]
    lines = [template for template in templates if template] + ([r",\quad ".join(values)] if values else [])
    return "".join(symbols(line, _symbol) for line in lines)


def _symbol(name: str) -> str:
    plain, _, index = name.partition("@")[0].partition(".")
    symbol = QUANTITIES[plain].symbol
    return rf"{symbol}^{{({int(index) + 1})}}" if index else symbol


# ---- the order of the bars ---------------------------------------------------------------------------------------------
def moved(bars: Sequence[Bar], knob: str, by: int, ends: tuple[Convention, Convention]) -> tuple[str, ...]:
    """The order in which `knob` (the first of a bar) is turned one bar earlier or later, as short as it can be said."""
    order = [list(bar.knobs) for bar in bars]
    seen = [place for place, bar in enumerate(bars) if bar.touched.any()]
    here = next((i for i, place in enumerate(seen) if order[place][0] == knob), None)
    if here is not None and 0 <= here + by < len(seen):
        order.insert(seen[here + by], order.pop(seen[here]))
    return shortest([name for knobs in order for name in knobs], ends)


def shortest(sequence: Sequence[str], ends: tuple[Convention, Convention]) -> tuple[str, ...]:
    """The least part of a sequence from which the rest follows by itself, in the step's order."""
    usual = differing(*ends)
    for length in range(len(sequence)):
        said = tuple(sequence[:length])
        if [*said, *(knob for knob in usual if knob not in said)] == list(sequence):
            return said
    return tuple(sequence)
