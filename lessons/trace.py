"""Recipe -> finished step, cached: the only bridge from the lessons to `grpo_core`.

A step is computed once, however many people ask for it at the same time; the cache is bounded in bytes and keeps no
weights but the loaded models' and one replayed copy. Whoever opens the same link shares one entry, nobody's state is kept
here. What a step may start from is in `sources.py`: a link cannot make the server load anything else.
"""

from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from grpo_core import Policy, Recipe, Rollout, StepTrace, grpo_step, reweigh, sample
from grpo_core.batch_step import trace_of_batch
from grpo_core.explain import VocabularyRow, exact_token_kl, logprobs_after, row_of_logits, vocabulary_row

from .batches import Tokens, of_batch
from .cache import ByteCache
from .sources import Sources, is_batch, is_kept
from .turns import Turns

CACHE_BYTES = 512 * 2**20
VALUES_BYTES = 64 * 2**20
AT_ONCE = 2**17  # rows x scored columns of a batch file whose loss nobody has to wait for
SMALL = 5_000_000  # parameters; below, handing work to a second core costs more than the work (8 x on a busy machine)


@dataclass(frozen=True, kw_only=True)
class Step:
    """A finished step and what was asked of the trained weights before they were dropped."""

    trace: StepTrace
    after: Tensor | None = None  # [B T] the same tokens under the weights after the last update
    again: Rollout | None = None  # sampled anew with the same seed from those weights

    @property
    def is_quick(self) -> bool:
        """True where only the loss was computed anew: gradients of weights and what follows are out of date."""
        return self.after is None and self.trace.rollout is not None


def _require_tokens(rollout: Rollout, recipe: Recipe) -> None:
    """Raises ValueError where the recipe trains none of the rollout's tokens: there would be nothing to show."""
    if recipe.mask_truncated and "stop" not in rollout.finish_reasons:
        raise ValueError("mask_truncated: found only answers that were cut off, allowed: at least one that ended by itself")


class Workbench:
    """The loaded models and everything computed with them. One per process."""

    def __init__(self, models: tuple[str, ...] = ("tiny",)):
        self.models, self.sources, self.turns = models, Sources(models), Turns()
        parameters = sum(p.numel() for policy in self.sources.fixed() for p in policy.model.parameters())
        if parameters < SMALL:
            torch.set_num_threads(1)
        self._cache = ByteCache(CACHE_BYTES)
        self._replayed = ByteCache(0)  # holds the newest copy only
        self.values = ByteCache(VALUES_BYTES)  # finished lessons, as the page gets them
        self._finished: dict[Recipe, Recipe] = {}  # rollout key -> the newest recipe finished on it

    def tokens(self, recipe: Recipe) -> Tokens:
        """What the ids stand for."""
        batch = self.sources.batch(recipe.model)
        return batch.tokens if batch else self.policy(recipe)

    def policy(self, recipe: Recipe) -> Policy:
        """The weights that the step starts from; a batch file has none."""
        return self.sources[recipe.model].policy

    def reference(self, recipe: Recipe) -> Policy:
        return self.sources[recipe.model].reference

    def first_recipe(self, model: str | None = None) -> Recipe:
        """What a bare address means here, or one that names a model and nothing else."""
        return self.sources.recipe(model or self.models[0])

    def allowed(self, recipe: Recipe, bare: bool = True) -> tuple[Recipe, list[str]]:
        """The recipe, with a model that this server offers; where nothing but the model is asked for, that model's first.

        `bare`: the address named no setting, not even one that is at its default.
        """
        if batch := self.sources.batch(recipe.model):
            return of_batch(batch, recipe, bare)
        messages = []
        if recipe.model not in self.sources:
            found = f"found {recipe.model!r}, allowed here: {', '.join(self.models)}"
            if is_kept(recipe.model):
                found = "the kept step has gone (its run was replaced, or the server was started anew)"
            if is_batch(recipe.model):
                found = "the batch file is no longer in this server's memory; open it again on the page Debug"
            messages = [f"model: {found}; {self.models[0]!r} is used"]
            recipe = replace(recipe, model=self.models[0])
        return self.first_recipe(recipe.model) if recipe == Recipe(model=recipe.model) else recipe, messages

    def rollout(self, recipe: Recipe) -> Rollout:
        key = recipe.rollout_key()
        return self._cache.get(("rollout", key), lambda: self._sample(key))

    def _sample(self, key: Recipe) -> Rollout:
        if kept := self.sources[key.model].rollout(key):
            return kept
        with self.turns:
            return sample(self.policy(key), key.prompts, key)

    def step(self, recipe: Recipe) -> Step:
        if batch := self.sources.batch(recipe.model):
            of_file = partial(trace_of_batch, batch.batch, batch.policy, recipe=recipe)
            return self._cache.get(("step", recipe), lambda: Step(trace=of_file()))
        rollout = self.rollout(recipe)
        return self._cache.get(("step", recipe), lambda: self._run(recipe, rollout))

    def _run(self, recipe: Recipe, rollout: Rollout) -> Step:
        _require_tokens(rollout, recipe)
        with self.turns:
            trained, trace = self._train(recipe, rollout)
            after, again = logprobs_after(trained, trace), sample(trained, recipe.prompts, recipe)
        self._finished[recipe.rollout_key()] = recipe
        return Step(trace=trace, after=after, again=again)

    def _train(self, recipe: Recipe, rollout: Rollout) -> tuple[Policy, StepTrace]:
        """The step, on a copy of the weights."""
        source = self.sources[recipe.model]
        trained = source.policy.clone()
        optimizer = source.optimizer_for(trained, recipe)
        return trained, grpo_step(trained, source.reference, rollout, recipe, optimizer)

    def has_step(self, recipe: Recipe) -> bool:
        return self._cache.ready(("step", recipe)) is not None

    def keep(self, key: Hashable, make: Callable[[], Any]) -> Any:
        """Something computed from a step, for as long as there is room."""
        return self._cache.get(key, make)

    def hurry(self, recipe: Recipe) -> None:
        """Make the step of a batch file that is not large now: it is a loss, no model runs."""
        batch = self.sources.batch(recipe.model)
        if batch and batch.policy is None and batch.batch.trained_mask().numel() <= AT_ONCE:
            self.step(recipe)

    def related_step(self, recipe: Recipe) -> Step | None:
        """A finished step on the very rollout that this recipe samples."""
        finished = self._finished.get(recipe.rollout_key())
        return self._cache.ready(("step", finished)) if finished else None

    def quick_step(self, recipe: Recipe) -> Step | None:
        """The loss under this recipe from a finished step on its rollout; None where there is none."""
        related = self.related_step(recipe)
        if related:
            _require_tokens(related.trace.rollout, recipe)
        return Step(trace=reweigh(related.trace, recipe)) if related else None

    def policy_at(self, recipe: Recipe, update: int) -> Policy:
        """The weights that scored the tokens of this update."""
        if update == 0:
            return self.policy(recipe)
        rollout = self.rollout(recipe)
        return self._replayed.get((replace(recipe, updates=8), update), lambda: self._replay(recipe, rollout, update))

    def _replay(self, recipe: Recipe, rollout: Rollout, update: int) -> Policy:
        with self.turns:
            return self._train(replace(recipe, updates=update), rollout)[0]

    def vocabulary_row(self, step: Step, update: int, row: int, column: int) -> VocabularyRow:
        recipe = step.trace.recipe
        key = ("row", recipe, step.is_quick, update, row, column)
        assert step.trace.rollout is not None
        return self._cache.get(key, lambda: vocabulary_row(self.policy_at(recipe, update), step.trace, update, row, column))

    def file_row(self, step: Step, row: int, pos: int) -> VocabularyRow | None:
        """The same of a batch file: out of its logits, or of the model that it was given with; None without both."""
        trace, logits = step.trace, step.trace.batch.logits
        column = pos - int(trace.batch.token_positions()[0])
        token, trained = int(trace.batch.row_ids()[row, pos]), trace.batch.trained_mask()
        if not 0 <= column < trained.shape[1]:
            return None
        source = self.sources.batch(trace.recipe.model)
        if logits is not None and 0 <= token < logits.shape[2]:
            return row_of_logits(logits[row, pos - 1].float(), trace, 0, row, column)
        if source and source.policy and logits is None and trace.updates and trained[row, column]:
            return vocabulary_row(source.policy, trace, 0, row, column)
        return None

    def exact_kl(self, step: Step, update: int) -> Tensor:
        recipe = step.trace.recipe
        make = lambda: exact_token_kl(  # noqa: E731 - one use, and the key stands right beside it
            self.policy_at(recipe, update), self.reference(recipe), step.trace, update
        )
        return self._cache.get(("exact_kl", recipe, update), make)
