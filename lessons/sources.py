"""Where a step comes from: a model that the server was started with, a step that a training run has kept, a batch file.

A link names a source and never a folder: what is not in the tables below does not exist.
"""

import re
import threading
from collections import OrderedDict
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from grpo_core import Policy, Recipe, Rollout, load_policy
from grpo_core.checkpoint import MODEL
from grpo_core.snapshot import Snapshot, is_snapshot, load_snapshot
from grpo_core.step import make_optimizer
from grpo_core.types import Batch

from .batches import Batches, BatchSource
from .batches import is_batch as is_batch

OPEN = 6  # kept steps whose weights stay in memory

KEPT = re.compile(r"run-[0-9a-f]+-step-\d+")


def kept_name(run: str, step: int) -> str:
    """What a link calls a kept step."""
    return f"run-{run}-step-{step}"


def is_kept(name: str) -> bool:
    """Whether a name is a kept step's, be it still there or not."""
    return bool(KEPT.fullmatch(name))


@dataclass(frozen=True, kw_only=True)
class Source:
    """The weights that a step starts from, those that its KL is taken to, and all else that a kept step brings."""

    policy: Policy
    reference: Policy
    recipe: Recipe  # what to show first
    weights: str  # the name under which `load_policy` finds the weights
    snapshot: Snapshot | None = None

    def optimizer_for(self, trained: Policy, recipe: Recipe) -> torch.optim.Optimizer:
        """A fresh optimizer, or a kept step's own, with the recipe's learning rate."""
        if self.snapshot is None:
            return make_optimizer(trained, recipe)
        if recipe.optimizer != self.snapshot.recipe.optimizer:
            return make_optimizer(trained, recipe, self.snapshot.weight_decay)
        optimizer = self.snapshot.optimizer_for(trained)
        for group in optimizer.param_groups:
            group["lr"] = recipe.learning_rate
        return optimizer

    def rollout(self, recipe: Recipe) -> Rollout | None:
        """What the run sampled, unless the recipe samples in another way."""
        known = self.snapshot is not None and recipe.rollout_key() == self.recipe.rollout_key()
        return self.snapshot.rollout if known and self.snapshot else None


def open_source(name: str, place: str | Path) -> Source:
    """A model, or a kept step, as a source of this name. Raises ValueError with one line."""
    if not is_snapshot(str(place)):
        policy = load_policy(str(place))
        return Source(policy=policy, reference=policy, recipe=Recipe(model=name), weights=name)
    kept = load_snapshot(place)
    return Source(
        policy=kept.policy, reference=kept.reference or kept.policy, recipe=replace(kept.recipe, model=name),
        weights=str(Path(place).expanduser() / MODEL), snapshot=kept,
    )  # fmt: skip


class Sources:
    """All that this server offers, by name. Kept steps come and go while it runs; the newest opened are in memory."""

    def __init__(self, models: tuple[str, ...]):
        self.models = models
        self._lock = threading.Lock()
        self._fixed = {name: open_source(name, name) for name in models}
        self._kept: dict[str, Path] = {}
        self._origins: dict[str, str] = {}  # of a kept step: the model that its run began with
        self._open: OrderedDict[str, Source] = OrderedDict()
        self.batches = Batches()

    def __contains__(self, name: str) -> bool:
        return name in self._fixed or name in self._kept or name in self._open or name in self.batches

    def __getitem__(self, name: str) -> Source:
        """Raises ValueError where the name is no longer, or never was, on offer."""
        if name in self._fixed:
            return self._fixed[name]
        with self._lock:
            if name not in self._open:
                if name not in self._kept:
                    raise ValueError(f"model: found {name!r}, which is not on offer here")
                self._open[name] = open_source(name, self._kept[name])
            self._open.move_to_end(name)
            while len(self._open) > OPEN:
                self._open.popitem(last=False)
            return self._open[name]

    def fixed(self) -> list[Policy]:
        return [source.policy for source in self._fixed.values()]

    def offer(self, name: str, folder: Path, origin: str) -> None:
        """A kept step, under a name for links."""
        self._kept[name], self._origins[name] = folder, origin

    def origin(self, name: str) -> str:
        """The model that a run begins with: a kept step's run began with it too."""
        return name if name in self._fixed else self._origins.get(name, self.models[0])

    def withdraw(self, name: str) -> None:
        """Not on offer any more; who has it open may go on looking for as long as it stays in memory."""
        self._kept.pop(name, None)
        self._origins.pop(name, None)

    def offer_batch(self, batch: Batch, name: str, policy: Policy | None = None, preset: str | None = None) -> str:
        """A batch file called `name`, for the lessons: returns what links call it. Raises ValueError where it is too large.

        `policy` is the model that the batch belongs to; `preset` its convention, where the file does not say.
        """
        return self.batches.offer(batch, name, policy, preset)

    def batch(self, name: str) -> BatchSource | None:
        """The batch file of that name; None where it is none, or no longer here."""
        return self.batches.get(name)

    def recipe(self, name: str) -> Recipe:
        """What to show first. Raises ValueError where the name is no longer on offer."""
        batch = self.batch(name)
        return batch.recipe if batch else self[name].recipe

    def step_of(self, name: str) -> int | None:
        """Which step of its run a kept step is; None for a model or a batch."""
        snapshot = None if is_batch(name) else self[name].snapshot
        return snapshot.step if snapshot else None
