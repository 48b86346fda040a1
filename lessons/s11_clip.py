"""Lesson 11: the surrogate, the clip, and which branch of the min won. Explains surrogate.SURROGATE and correction.py."""

from collections.abc import Callable
from dis import get_instructions
from inspect import isfunction, unwrap

from grpo_core import correction as weights
from grpo_core import loss as core
from grpo_core import surrogate as surrogates

from .components import chart, text
from .examples import clip_fraction_example, dual_clip_example
from .figures import lines_table, not_moved_yet
from .formulas import corrected, surrogate_formula
from .lesson import Context
from .source import assignment, whole
from .surrogate_figures import BY_MIN, BY_RATIO, BY_WEIGHT, clip_figure, weight_figure

slug = "clip"
tensors = ("ratio", "clipped_ratio", "surrogate", "clipped_surrogate", "is_clipped", "correction", "token_loss")
checks = ("clip_fraction_by_gradient",)
journey = ("token_loss",)
needs = ("token_loss",)


def formula(context: Context) -> str:
    return surrogate_formula(context.recipe, context.branch)


def winning(context: Context, name: str, pos: int) -> bool:
    """Whether this line holds the branch that the min took."""
    if name not in ("surrogate", "clipped_surrogate") or context.recipe.surrogate not in BY_MIN:
        return False
    clipped = bool(context.value("is_clipped", context.row, pos))
    return clipped == (name == "clipped_surrogate")


def quantities(context: Context) -> tuple[str, ...]:
    """The lines of the table: what this surrogate reads, and what it gives."""
    kind = context.recipe.surrogate
    read = ("ratio", "policy_logprobs", "logprob_weight") if kind in BY_WEIGHT else ("ratio", "surrogate")
    read = ("ratio", "clipped_ratio", "surrogate", "clipped_surrogate") if kind in BY_MIN else read
    read = ("ratio", "clipped_ratio", "policy_logprobs", "logprob_weight") if kind == "cispo" else read
    read = ("log_ratio", "policy_logprobs") if kind == "quadratic" else read
    factor = ("correction",) if corrected(context.recipe) else ()
    return (*read, context.advantage, "is_clipped", *factor, "token_loss")


def build(context: Context) -> list[dict]:
    kind = context.recipe.surrogate
    words = "clip" if kind in BY_MIN else "weight" if kind in BY_WEIGHT else "curve"
    table = lines_table(
        context, quantities(context), title=context.label("clip_lines" if words == "clip" else "surrogate_lines"),
        caption_html=context.html(context.label("clip_lines_caption")) if words == "clip" else None,
        hot=lambda name, pos: winning(context, name, pos),
    )  # fmt: skip
    said = [f"surrogate_{kind}"] if kind not in ("min-clip", "dual-clip") else []
    said += ["surrogate_corrected"] if corrected(context.recipe) else []
    flat = context.is_trained and not context.value(context.advantage, context.row, context.pos)
    said += ["clip_flat"] if flat and words != "weight" else []
    return [
        *not_moved_yet(context, "clip", 1),
        *(text(html=context.html(context.label(key))) for key in said),
        *diagram(context, words),
        table,
        dual_clip_example(context),
        clip_fraction_example(context),
    ]


def diagram(context: Context, words: str) -> list[dict]:
    """The curve of the chosen surrogate, where the ratio alone makes it."""
    kind = context.recipe.surrogate
    if kind not in BY_RATIO + BY_WEIGHT:
        return []
    drawn = weight_figure(context) if words == "weight" else clip_figure(context)
    return [
        chart(
            figure=drawn, alt=context.label(f"{words}_chart_alt"), title=context.label(f"{words}_chart"), height=400,
            caption_html=context.html(context.label(f"{words}_chart_caption")), wide=True,
        )
    ]  # fmt: skip


def source(context: Context) -> list[dict]:
    recipe = context.recipe
    row = surrogates.SURROGATE[recipe.surrogate]
    named = [name for name in ("clipped_ratio", "surrogate", "clipped_surrogate") if name in quantities(context)]
    used = [whole(helper) for helper in helpers(row)]
    weight: list[Callable] = [weights.CORRECTION[recipe.correction]] if recipe.correction != "none" else []
    weight += [weights.BOUND[recipe.correction_bound]] if weight else []
    weight += [weights.GATE[gate] for gate in recipe.gates] + ([weights.correction_of] if corrected(recipe) else [])
    product = [assignment(core.policy_loss, "token_loss")] if corrected(recipe) else []
    return [*(assignment(core.policy_loss, name) for name in named), whole(row), *used, *map(whole, weight), *product]


def helpers(row: Callable) -> list[Callable]:
    """The functions beside it that a surrogate calls."""
    called = dict.fromkeys(step.argval for step in get_instructions(unwrap(row)) if step.opname == "LOAD_GLOBAL")
    return [value for value in map(vars(surrogates).get, called) if isfunction(value)]


def check(context: Context, answer: str) -> bool:
    """Does clipping act on the first update? Only if a ratio is outside the bounds."""
    first = context.trace.updates[0].terms
    capped = context.recipe.surrogate == "cispo" and bool((first.ratio != first.clipped_ratio).any())
    return answer == ("yes" if capped or bool(first.is_clipped.any()) else "no")
