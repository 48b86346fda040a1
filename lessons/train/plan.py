"""From what is wanted to the trainer's own config: the lessons' recipe, new prompts at every step, and which steps are kept."""

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from grpo_core import Policy, Recipe
from grpo_core.batch_step import FIXED, BatchRecipe
from grpo_core.rules import MAX_PROMPTS, MAX_ROWS
from grpo_core.train_config import TrainConfig

from .. import choice, view
from ..trace import SMALL
from .link import START, Wanted

MOST_STEPS = 500
KEPT_BYTES = 256 * 2**20  # of one run's steps on disk
ROLLOUT_BYTES = 300_000  # of a kept step, beside weights and optimizer


def recipe_of(wanted: Wanted) -> Recipe:
    """The lessons' recipe with this page's preset and settings. Raises ValueError."""
    recipe = replace(_of_a_model(wanted.recipe), edited_rewards=())
    recipe = choice.under(recipe, wanted.preset) if wanted.preset else recipe
    given = {name: getattr(wanted, name) for name in ("learning_rate", "beta", "clip_low", "clip_high", "seed")}
    return replace(recipe, **{name: value for name, value in given.items() if value is not None})


def _of_a_model(recipe: Recipe) -> Recipe:
    """The recipe; of a batch file its convention with the lessons' own prompts and sampling: a file trains nothing."""
    if not isinstance(recipe, BatchRecipe):
        return recipe
    return Recipe(**{f.name: getattr(recipe, f.name) for f in fields(Recipe) if f.name not in FIXED})


def config_of(wanted: Wanted) -> TrainConfig:
    """A run as the trainer takes it. Raises ValueError with one line where it would not run, or not fit the lessons."""
    if not 1 <= wanted.steps <= MOST_STEPS:
        raise ValueError(f"steps: found {wanted.steps}, allowed here: 1 to {MOST_STEPS}")
    rows = wanted.prompts_per_step * wanted.group_size
    if wanted.prompts_per_step > MAX_PROMPTS or rows > MAX_ROWS:
        raise ValueError(
            f"prompts_per_step: found {wanted.prompts_per_step} prompts x {wanted.group_size} answers, allowed here: "
            f"{MAX_PROMPTS} prompts and {MAX_ROWS} rows, so that the lessons can hold every step whole"
        )
    recipe = recipe_of(wanted)
    values = {f.name: getattr(recipe, f.name) for f in fields(Recipe)}
    own = {name: getattr(wanted, name) for name in ("group_size", "prompts_per_step", "steps")}
    # "auto" would choose by the clock: the same seed would not be the same curve
    return TrainConfig(**values | own | {"prompts": (), "data": "sums", "scoring": "padded"})


def keeping(config: TrainConfig, policy: Policy, weights: str, out: Path) -> TrainConfig:
    """The config with the folder of its kept steps, and as many of these, evenly spread, as the disk is lent for."""
    copies = 3 if config.optimizer == "adamw" else 1  # the weights, and the optimizer's two moments
    each = copies * sum(p.numel() * p.element_size() for p in policy.model.parameters()) + ROLLOUT_BYTES
    most = KEPT_BYTES // each
    every = -(-config.steps // most) if most else 0
    steps = tuple(range(0, config.steps, every)) if every else ()
    large = sum(p.numel() for p in policy.model.parameters()) >= SMALL  # there packing saves more than a curve's last digits
    scoring = "auto" if large else config.scoring
    return replace(config, model=weights, out=str(out), trace_steps=steps, scoring=scoring)


def shown(wanted: Wanted) -> dict[str, Any]:
    """What the form shows: every setting as a run started now would have it."""
    recipe = recipe_of(wanted)
    own = {name: getattr(wanted, name) for name in ("group_size", "prompts_per_step", "steps")}
    return {name: getattr(recipe, name) for name in ("learning_rate", "beta", "clip_low", "clip_high", "seed", "preset")} | own


def accepted(wanted: Wanted, before: Wanted, messages: list[str]) -> Wanted:
    """`wanted` where a run could be made of it, else `before`, and why."""
    try:
        config_of(wanted)
    except (ValueError, TypeError) as error:
        messages.append(" ".join(str(error).split()))
        return before
    return wanted


def fallback(wanted: Wanted) -> Wanted:
    """The same recipe with this page's own defaults; without it where even these do not fit."""
    plain = replace(START, recipe=wanted.recipe, selection=wanted.selection)
    return accepted(plain, replace(plain, recipe=Recipe(model=view.bench().models[0])), [])
