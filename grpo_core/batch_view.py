"""What can be looked at in a batch, token by token and row by row, under one trainer's settings.

Axes as in `types`. A number that the file holds is shown as it is; what it does not hold is computed from what it does hold,
or is absent: nothing is filled in with zeros. `BatchView` is what the Debug page's grid and a report read.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from .batch import Batch
from .batch_step import inputs_of_batch, recipe_of_batch
from .compare import evaluate
from .convention import Convention
from .inputs import LossInputs, missing
from .kl import KL
from .presets import PRESETS, Preset
from .trainer_metrics import Logged, trainer_metrics

STORED = ("policy_logprobs", "old_logprobs", "sampler_logprobs", "ref_logprobs", "entropy")
COMPARED = ("ratio", "log_ratio", "sampler_log_ratio", "kl")  # two stored log-probs against each other
OF_LOSS = ("token_loss", "token_weight", "is_clipped", "logprob_grad")
QUANTITIES = ("ratio", "log_ratio", "kl", "advantages", *STORED, "sampler_log_ratio", *OF_LOSS, "loss_mask", "input_ids")
EVERYWHERE = ("loss_mask", "input_ids")  # said of tokens that are not trained as well
LOGARITHMIC = ("ratio",)  # twice and half are equally far from 1; the others' size is their distance from 0
SORTS = ("row", "finding", "ratio", "kl", "advantage", "length", "reward")
LEVELS = 9  # of an overview, above "nothing here"


@dataclass(frozen=True, kw_only=True)
class BatchView:
    """A batch, and every quantity of it that can be had."""

    batch: Batch
    preset: Preset
    values: Mapping[str, Float[Tensor, "B T"] | Bool[Tensor, "B T"] | Any]  # by the names of `QUANTITIES`
    trained: Bool[Tensor, "B T"]
    needs: tuple[str, ...]  # what this trainer's loss needs and the batch lacks
    loss: float | None  # None: see `needs`
    logged: tuple[Logged, ...]  # the numbers that the trainer would print
    derived: tuple[str, ...]  # a sentence per field that was not there as such

    def seen(self, name: str) -> Bool[Tensor, "B T"]:
        """Where a quantity has a number: on trained tokens, ids and masks on all."""
        return torch.ones_like(self.trained) if name in EVERYWHERE else self.trained


# ---- the numbers -----------------------------------------------------------------------------------------------------------
def preset_of(batch: Batch) -> Preset:
    """The preset that the file names, else the one that its framework goes by, else the paper's."""
    return PRESETS[recipe_of_batch(batch).preset]


def view_of(batch: Batch, preset: str | None = None) -> BatchView:
    """Every quantity under a preset's settings (default: the file's own), with what the file says of its run on top.

    The loss is the trainer's own: on its advantages where the file has them, and on its mask.
    """
    recipe, inputs, trained = recipe_of_batch(batch, preset), inputs_of_batch(batch), batch.trained_mask()
    values: dict[str, Any] = {"loss_mask": trained, "input_ids": batch.row_ids()[:, batch.token_positions()]}
    if inputs is None:  # no policy log-probs: the stored numbers are still there to be looked at
        values |= {name: getattr(batch, name) for name in STORED} | {"advantages": _advantages(batch)}
        needs, derived = ("policy_logprobs or logits",), batch.derived
        loss, logged = None, ()
    else:
        values |= {name: getattr(inputs, name) for name in (*STORED, "advantages")} | compared(inputs, recipe)
        needs, derived = missing(inputs, recipe), inputs.derived
        loss, logged = None, ()
    if inputs is not None and not needs:
        done = evaluate(inputs, recipe.convention())
        loss, logged = done.loss, trainer_metrics(done, inputs, PRESETS[recipe.preset])
        values |= {name: getattr(done.terms, name) for name in OF_LOSS if name != "logprob_grad"}
        values |= {"logprob_grad": done.grad, "advantages": done.advantages}
    return BatchView(
        batch=batch, preset=PRESETS[recipe.preset], values=_there(values), trained=trained, needs=needs, loss=loss,
        logged=logged, derived=derived,
    )  # fmt: skip


def _there(values: Mapping[str, Tensor | None]) -> dict[str, Tensor]:
    return {name: value for name in QUANTITIES if (value := values.get(name)) is not None}


def compared(inputs: LossInputs, convention: Convention) -> dict[str, Tensor | None]:
    """Ratio, KL and the gap to the sampler, straight from the stored log-probs: no bound hides what is there."""
    policy, old, ref, sampler = inputs.policy_logprobs, inputs.old_logprobs, inputs.ref_logprobs, inputs.sampler_logprobs
    log_ratio = None if old is None else policy - old
    return {
        "log_ratio": log_ratio, "ratio": None if log_ratio is None else log_ratio.exp(),
        "kl": None if ref is None else KL[convention.kl_estimator](policy - ref),
        "sampler_log_ratio": None if sampler is None else (policy if old is None else old) - sampler,
    }  # fmt: skip


def _advantages(batch: Batch) -> Tensor | None:
    values = batch.advantages
    return values.unsqueeze(1).expand_as(batch.trained_mask()) if values is not None and values.dim() == 1 else values


# ---- rows ------------------------------------------------------------------------------------------------------------------
def row_rewards(batch: Batch) -> list[float | None]:
    """Each row's weighted reward; None where nothing was returned, or the file has none."""
    if batch.rewards is None:
        return [None] * len(batch.row_ids())
    weights = torch.ones(batch.rewards.shape[1]) if batch.reward_weights is None else batch.reward_weights
    gone = torch.zeros_like(batch.rewards, dtype=torch.bool) if batch.rewards_missing is None else batch.rewards_missing
    total = torch.where(gone, 0.0, batch.rewards * weights).sum(1).tolist()
    return [None if nothing else value for value, nothing in zip(total, gone.all(1).tolist(), strict=True)]


def row_keys(view: BatchView, found: Mapping[int, int]) -> dict[str, list[float | None]]:
    """What rows can be sorted by: the largest |ratio - 1| and |KL| of a trained token, the mean advantage, the trained tokens,
    the reward, the findings (`found`: row -> how many)."""
    mask, rows = view.trained, len(view.trained)
    keys: dict[str, list[float | None]] = {
        "row": [float(row) for row in range(rows)], "length": [float(n) for n in mask.sum(1).tolist()],
        "finding": [float(found.get(row, 0)) for row in range(rows)], "reward": row_rewards(view.batch),
    }  # fmt: skip
    for name, still in (("ratio", 1.0), ("kl", 0.0)):
        if name in view.values:
            size = (view.values[name].float() - still).abs().nan_to_num(nan=torch.inf)
            keys[name] = torch.where(mask, size, 0.0).amax(1).tolist()
    if "advantages" in view.values:
        total = torch.where(mask, view.values["advantages"], 0.0).sum(1)
        keys["advantage"] = (total / mask.sum(1).clamp(min=1)).nan_to_num(nan=torch.inf).tolist()
    return keys


def ordered(rows: Sequence[int], key: Sequence[float | None], falling: bool) -> list[int]:
    """Rows by a key, those without one last; ties stay in the file's order."""
    known = [row for row in rows if key[row] is not None]
    known.sort(key=lambda row: -_number(key[row]) if falling else _number(key[row]))
    return known + [row for row in rows if key[row] is None]


def _number(value: float | None) -> float:
    return 0.0 if value is None else value


# ---- all of it at once -------------------------------------------------------------------------------------------------------
def sizes(name: str, values: Tensor) -> Tensor:
    """How far each value is from what changes nothing."""
    return values.float().log().abs() if name in LOGARITHMIC else values.float().abs()


@dataclass(frozen=True, kw_only=True)
class Overview:
    """A whole [rows columns] quantity in a few cells: each shows the largest size among those that it stands for."""

    levels: tuple[tuple[int, ...], ...]  # -1 nothing trained here, 0 … LEVELS, LEVELS + 1 not a finite number
    peak: float  # the size that gets LEVELS, as `sizes` says it


def overview(view: BatchView, name: str, rows: Sequence[int], columns: range, height: int, width: int) -> Overview:
    """A quantity over these rows and columns, in at most `height` x `width` cells."""
    index = torch.tensor(list(rows), dtype=torch.long)
    values = view.values[name][index][:, columns.start : columns.stop]
    mask = view.seen(name)[index][:, columns.start : columns.stop]
    size = torch.where(mask, sizes(name, values).nan_to_num(nan=torch.inf), -1.0)
    shape = (min(height, size.shape[0]), min(width, size.shape[1]))
    cells = torch.nn.functional.adaptive_max_pool2d(size[None, None], shape)[0, 0]
    finite = cells[cells.isfinite() & (cells > 0)]
    peak = float(finite.max()) if len(finite) else 0.0
    levels = torch.where(cells.isfinite(), (cells / (peak or 1.0) * LEVELS).ceil(), float(LEVELS + 1))
    levels = torch.where(cells < 0, -1.0, levels)
    return Overview(levels=tuple(tuple(map(int, row)) for row in levels.tolist()), peak=peak)


def largest(view: BatchView, name: str) -> float:
    """The largest finite size of a quantity's trained tokens: what gets the full colour."""
    size = sizes(name, view.values[name])
    size = torch.where(view.seen(name) & size.isfinite(), size, 0.0)
    return float(size.max()) if size.numel() else 0.0
