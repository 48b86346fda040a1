"""One step of a training run, kept so that the lessons can take it again: weights, optimizer and rollout of before it.

A snapshot is a checkpoint (`checkpoint.py`) whose `state.json` also holds the step's recipe, its rollout and the name of its
reference. `app.py --model FOLDER` and `load_snapshot` open one; the step taken from it is the run's own, bit for bit.
"""

import copy
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from . import checkpoint
from .config import Recipe
from .convention import tuples
from .loading import load_policy
from .policy import Policy
from .step import make_optimizer
from .types import Rollout

BOOLEAN = ("prompt_mask", "completion_mask")


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """Everything that a step is about to read."""

    step: int
    policy: Policy
    reference: Policy | None  # None: the KL is taken to the start of the step
    optimizer: dict[str, Any]
    weight_decay: float
    recipe: Recipe
    rollout: Rollout

    def optimizer_for(self, policy: Policy) -> torch.optim.Optimizer:
        """The run's optimizer, as it was, over a clone of the policy."""
        optimizer = make_optimizer(policy, self.recipe, self.weight_decay)
        optimizer.load_state_dict(copy.deepcopy(self.optimizer))  # it takes the tensors themselves, and steps in them
        return optimizer


def rollout_values(rollout: Rollout) -> dict[str, Any]:
    """A rollout as JSON can hold it."""
    return {name: value.tolist() if isinstance(value, Tensor) else value for name, value in vars(rollout).items()}


def rollout_of(values: dict[str, Any]) -> Rollout:
    """The rollout back: numbers as tensors, lists of texts and rewards as tuples."""
    known: dict[str, Any] = {}
    for f in fields(Rollout):
        value = values[f.name]
        if f.name in ("prompts", "finish_reasons", "completions", "reward_names"):
            known[f.name] = tuple(value)
        elif f.name == "rewards":
            known[f.name] = tuple(map(tuple, value))
        else:
            known[f.name] = torch.tensor(value, dtype=torch.bool if f.name in BOOLEAN else None)
    return Rollout(**known)


def save_snapshot(
    folder: Path, step: int, policy: Policy, reference: str | None, weights: dict[str, Any], optimizer: dict[str, Any],
    recipe: Recipe, rollout: Rollout, weight_decay: float = 0.0,
) -> None:  # fmt: skip
    """Writes what `load_snapshot` opens. `reference` is a name for `load_policy`. Raises one of checkpoint.WRITE_ERRORS."""
    state = {
        "step": step, "recipe": asdict(recipe), "rollout": rollout_values(rollout), "reference": reference,
        "weight_decay": weight_decay, "packed": policy.packed, "block_cost": policy.block_cost,
    }  # fmt: skip
    checkpoint.save(folder, policy, weights, optimizer, state)


def is_snapshot(name: str) -> bool:
    """Whether a model's name is the folder of a snapshot."""
    return (Path(name).expanduser() / checkpoint.STATE).is_file()


def load_snapshot(folder: str | Path) -> Snapshot:
    """Opens a snapshot; its recipe's `model` is the folder. Raises ValueError where it is not whole."""
    path = Path(folder).expanduser()
    found = checkpoint.read(path)
    state = found.state
    if "rollout" not in state:
        raise ValueError(f"model: found the checkpoint {path}, allowed: a step that trace_steps kept, or {found.model}")
    values: dict[str, Any] = {name: tuples(value) for name, value in state["recipe"].items()}
    values["model"] = str(folder)
    policy = load_policy(str(found.model))
    reference = load_policy(state["reference"]) if state["reference"] else None
    for each in (policy, reference):
        if each:
            each.packed, each.block_cost = state["packed"], state.get("block_cost")
    return Snapshot(
        step=state["step"], policy=policy, reference=reference, optimizer=found.optimizer(),
        weight_decay=state["weight_decay"], recipe=Recipe(**values), rollout=rollout_of(state["rollout"]),
    )  # fmt: skip
