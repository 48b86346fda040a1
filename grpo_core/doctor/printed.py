"""Numbers that a trainer printed as means over trained tokens: over which slots were they really taken?

Axes: B rows · T scored positions. The KL and the entropy are in nats.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..aggregation import AGGREGATION
from ..compare import Evaluation, evaluate, reaggregated
from ..convention import Convention
from ..inputs import LossInputs
from ..kl import KL
from ..types import Batch
from .candidates import number
from .model_candidates import real_mask
from .settings import Settings

RIGHT = 1e-3  # relative: a printed number this close to the right one is right
OF_THE_BATCH = [name for name in AGGREGATION if not name.startswith("micro-")]  # the others ask for a split
OTHER = 1e-4  # relative: and this close to another one it is that


@dataclass(frozen=True)
class Misread:
    """A printed number that is the mean over other slots than the trained ones."""

    quantity: str  # the key in `reported`
    name: str  # what was averaged: "kl", "entropy", "entropy_estimate" (minus the log-prob), "loss", "clip_fraction"
    slots: str  # which slots it was taken over
    mask: Tensor  # [B T] those slots
    right: float
    printed: float
    by_row: tuple[Tensor, Tensor] | None = None  # [B] means of each row, right and over those slots


def misread(batch: Batch, settings: Settings) -> Iterator[Misread]:
    """Every printed number that other slots explain and the trained ones do not. Of what nobody said, the KL's estimator
    may be any; a loss is not judged without its aggregation, nor a clip fraction without its bounds."""
    masks = other_masks(batch)
    if not masks or not batch.trained_mask().any():
        return
    for quantity, name, values in token_values(batch, settings.get("kl_estimator")):
        printed = number(batch.reported.get(quantity))
        if printed is not None:
            found = _mean_over(batch.trained_mask(), values, masks, printed)
            if found is not None:
                right, slots, rows = found
                yield Misread(quantity, name, slots, masks[slots], right, printed, rows)
    known = {"loss": settings.get("aggregation"), "clip_fraction": settings.get("clip_low")}
    printed = {name: None if known[name] is None else number(batch.reported.get(name)) for name in known}
    if any(value is not None for value in printed.values()):
        yield from _of_the_loss(batch, settings.convention, masks, printed)


def other_masks(batch: Batch) -> dict[str, Tensor]:
    """name -> [B T] slots that a mean may have been taken over by mistake; each holds all trained tokens and more."""
    trained = batch.trained_mask()
    span = (trained.cumsum(1) > 0) & (trained.flip(1).cumsum(1).flip(1) > 0)
    named = {
        "every completion token, untrained ones included": batch.completion_columns() | trained,
        "all slots between the first and the last trained token": span,
        "every real token, the prompt included": real_mask(batch)[:, batch.token_positions()] | trained,
        "all slots": torch.ones_like(trained),
    }
    found: dict[str, Tensor] = {}
    for name, mask in named.items():
        if (mask & ~trained).any() and not any(torch.equal(mask, other) for other in found.values()):
            found[name] = mask
    return found


def token_values(batch: Batch, estimator: str | None) -> Iterator[tuple[str, str, Tensor]]:
    """(key in `reported`, what it is, [B T] values) of the means that a trainer prints."""
    policy, ref = batch.policy_logprobs, batch.ref_logprobs
    if policy is not None and ref is not None and number(batch.reported.get("kl")) is not None:
        for name in [estimator] if estimator in KL else KL:
            yield "kl", "kl", KL[name](policy - ref)
    if batch.entropy is not None:
        yield "entropy", "entropy", batch.entropy
    elif policy is not None:
        yield "entropy", "entropy_estimate", -policy


def _mean_over(
    trained: Tensor, values: Tensor, masks: dict[str, Tensor], printed: float
) -> tuple[float, str, tuple[Tensor, Tensor]] | None:
    """(right mean, the slots that give the printed one, both per row); None where the trained ones give it or none do."""
    right = _mean(values, trained)
    if _near(printed, right, RIGHT):
        return None
    for name, mask in masks.items():
        if _near(printed, _mean(values, mask), OTHER):
            return right, name, (_by_row(values, trained), _by_row(values, mask))
    return None


def _mean(values: Tensor, mask: Tensor) -> float:
    return float(torch.where(mask, values, 0.0).sum(dtype=torch.float64) / mask.sum())


def _by_row(values: Tensor, mask: Tensor) -> Tensor:
    return torch.where(mask, values, 0.0).double().sum(1) / mask.sum(1).clamp(min=1)


def _of_the_loss(
    batch: Batch, convention: Convention, masks: dict[str, Tensor], printed: dict[str, float | None]
) -> Iterator[Misread]:
    """The printed loss and clip fraction, with the KL or everything taken over other slots."""
    try:
        inputs = LossInputs.of_batch(batch)
        right = evaluate(inputs, convention)
    except ValueError:
        return  # the batch lacks what this loss reads: there is nothing to compare with
    missed = {name for name, value in _numbers(right).items() if not _near(printed[name], value, RIGHT)}
    if any(_near(printed["loss"], reaggregated(inputs, right, name)[0], OTHER) for name in OF_THE_BATCH):
        missed.discard("loss")  # another reduction over the right slots: `aggregation_fingerprint`
    for name, mask in masks.items() if missed else ():
        other = evaluate(replace(inputs, mask=mask), convention)
        clipped, whole = _numbers(other)["clip_fraction"], other.loss
        candidates = {"loss": (right.loss - right.kl_part + other.kl_part, whole), "clip_fraction": (clipped,)}
        for quantity in sorted(missed):
            value = printed[quantity]
            if value is not None and any(_near(value, candidate, OTHER) for candidate in candidates[quantity]):
                yield Misread(quantity, quantity, name, mask, _numbers(right)[quantity], value)
                missed.discard(quantity)


def _numbers(done: Evaluation) -> dict[str, float]:
    mask = done.terms.token_weight != 0
    clipped = done.terms.is_clipped.double().sum() / mask.sum().clamp(min=1)
    return {"loss": done.loss, "clip_fraction": float(clipped)}


def _near(printed: float | None, value: float, relative: float) -> bool:
    """A number that was not printed is as good as right."""
    return printed is None or abs(printed - value) <= relative * abs(value) + 1e-6
