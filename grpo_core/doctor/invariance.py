"""What must not matter to a number: what stands in masked slots, the padding beside a row, a second pass over the same row.

Axes: B rows · T scored positions · S prompt + completion tokens. Log-probs in nats.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..compare import evaluate
from ..convention import Convention
from ..inputs import LossInputs, missing
from ..logprobs import position_ids
from ..metrics import summarize
from ..policy import Policy
from ..types import Batch
from .model_candidates import Pass, real_mask, values_of
from .sources import telling_rows

FILLED = ("policy_logprobs", "old_logprobs", "ref_logprobs", "sampler_logprobs", "entropy", "advantages")
FILLS = ("noise", "+100", "-100", "NaN")
SLOTS = 2**18  # slots that the loss is computed again on: the invariance is the code's, a part of the rows shows it
LossOf = Callable[[Batch], Mapping[str, Tensor]]  # a batch -> its loss, gradient and metrics by name


@dataclass(frozen=True)
class Moved:
    """A number that changed although only masked slots did."""

    quantity: str
    fill: str  # what was put there
    tensors: tuple[str, ...]  # the fields that do it on their own; all that were filled where none does
    before: float
    after: float


def core_loss(convention: Convention) -> LossOf:
    """Our own loss under a convention, its gradient and its metrics."""

    def loss_of(batch: Batch) -> Mapping[str, Tensor]:
        inputs = LossInputs.of_batch(batch)
        done = evaluate(inputs, convention)
        metrics = {name: torch.tensor(value) for name, value in summarize(done.terms, inputs.mask).items()}
        return {**metrics, "grad": done.grad}

    return loss_of


def computable(batch: Batch, convention: Convention) -> bool:
    """The batch has what this convention's loss needs."""
    if batch.policy_logprobs is None and batch.logits is None:
        return False
    return not missing(LossInputs.of_batch(_part(batch)), convention)


def padding_invariance(batch: Batch, loss_of: LossOf) -> tuple[Moved, ...]:
    """Fill the masked slots of every stored tensor with noise, ±100 and NaN: what `loss_of` returns may not move.

    `loss_of` is `core_loss(convention)` or a trainer's own function. Nothing is changed in place.
    """
    batch = _part(batch)
    before = loss_of(batch)
    moved = []
    for fill in FILLS:
        after = loss_of(filled(batch, fill, FILLED))
        changed = [name for name in before if not _same(before[name], after[name])]
        if not changed:
            continue
        alone = tuple(
            name for name in _there(batch) if not _same(before[changed[0]], loss_of(filled(batch, fill, (name,)))[changed[0]])
        )
        moved += [
            Moved(name, fill, alone or _there(batch), float(before[name].sum()), float(after[name].sum())) for name in changed
        ]
    return tuple(moved)


def filled(batch: Batch, fill: str, names: tuple[str, ...]) -> Batch:
    """The batch with something else in the untrained slots of these fields."""
    mask = batch.trained_mask()
    noise = torch.empty(mask.shape).uniform_(-10, 10, generator=torch.Generator().manual_seed(0))
    values = noise if fill == "noise" else torch.full(mask.shape, float(fill))
    changed = {name: torch.where(mask, getattr(batch, name), values) for name in _there(batch) if name in names}
    return replace(batch, **changed)


def _there(batch: Batch) -> tuple[str, ...]:
    return tuple(name for name in FILLED if getattr(batch, name) is not None and getattr(batch, name).dim() == 2)


def _part(batch: Batch) -> Batch:
    rows, width = batch.trained_mask().shape
    meta = {name: value for name, value in batch.meta.items() if name != "micro_batches"}  # it names all rows
    return replace(batch.rows(torch.arange(min(rows, max(2, SLOTS // max(width, 1))))), meta=meta)


def _same(before: Tensor, after: Tensor) -> bool:
    return torch.allclose(before, after, rtol=1e-5, atol=1e-7, equal_nan=True)


# ---- the padding beside a row --------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class RowGap:
    """A row scored as it stands in the batch against the same row alone."""

    row: int
    pads: int  # padding slots at its left
    gap: float  # largest difference of a log-prob
    alone: Tensor  # [T] log-probs of the row alone, NaN where not trained
    batched: Tensor  # [T]


def left_pads(batch: Batch) -> Tensor:
    """[B] slots before the first real token of each row."""
    real = real_mask(batch)
    return torch.where(real.any(1), real.long().argmax(1), real.shape[1])


def stored_pass(batch: Batch) -> Pass:
    """The pass as the file describes it: its attention mask, and its position ids where it has them."""
    mask = batch.row_mask()
    positions = position_ids(mask) if batch.position_ids is None else batch.position_ids.clamp(min=0)
    return Pass(batch.row_ids(), mask, positions, batch.token_positions().expand(len(mask), -1))


def alone(batch: Batch, row: int) -> Pass:
    """One row without the padding around it, all its real tokens seen, positions from 0."""
    real = real_mask(batch)[row]
    first, last = int(real.long().argmax()), len(real) - int(real.flip(0).long().argmax())
    ids, seen = batch.row_ids()[row : row + 1, first:last], real[first:last].unsqueeze(0)
    targets = (batch.token_positions() - first).clamp(1, last - first - 1).unsqueeze(0)
    return Pass(ids, seen, position_ids(seen), targets)


def padding_invariance_model(batch: Batch, policy: Policy, temperature: float = 1.0) -> tuple[RowGap, ...]:
    """Each row of some alone, and in the batch as the file describes the pass: the two agree to rounding."""
    index = telling_rows(batch)
    part = batch.rows(index)
    trained, gaps = part.trained_mask(), []
    places = trained.nonzero()
    if not len(places) or int(part.row_ids().max()) >= policy.vocab_size or int(part.row_ids().min()) < 0:
        return ()
    together = torch.full(trained.shape, torch.nan)
    together[places[:, 0], places[:, 1]] = values_of(policy, stored_pass(part), places, temperature)
    pads = left_pads(part).tolist()
    for row in range(len(part.row_ids())):
        columns = trained[row].nonzero().flatten()
        own = torch.full(trained.shape[1:], torch.nan)
        own[columns] = values_of(policy, alone(part, row), torch.stack([torch.zeros_like(columns), columns], 1), temperature)
        gap = (own - together[row])[columns].abs().max()
        gaps.append(RowGap(int(index[row]), pads[row], float(gap), own, together[row]))
    return tuple(gaps)


# ---- the same tokens twice -----------------------------------------------------------------------------------------------
def repeated_pass(batch: Batch, policy: Policy, temperature: float = 1.0) -> float:
    """Largest difference between two passes of the model over the same rows: 0 unless dropout or the like is on."""
    part = batch.rows(telling_rows(batch)[:4])
    places = part.trained_mask().nonzero()
    if not len(places) or int(part.row_ids().max()) >= policy.vocab_size or int(part.row_ids().min()) < 0:
        return 0.0
    first, second = (values_of(policy, stored_pass(part), places, temperature) for _ in range(2))
    return float((first - second).abs().max())


def contexts(batch: Batch) -> Tensor:
    """[B T] a number for each scored token and all real tokens before it: equal where two rows agree up to there.

    A sum of id · (a random odd number of the place) modulo 2^64, so that a long batch needs no loop over its columns.
    """
    real, ids = real_mask(batch), batch.row_ids()
    generator = torch.Generator().manual_seed(0)
    factors = torch.randint(-(2**62), 2**62, (ids.shape[1],), generator=generator) * 2 + 1
    terms = torch.where(real, (ids + 1) * factors[position_ids(real)], 0)
    return terms.cumsum(1)[:, batch.token_positions()]


def repeats(batch: Batch) -> Tensor:
    """[B T] for each trained token that stands behind the same tokens as one of another row: the number of its set, from 0;
    -1 elsewhere."""
    mask = batch.trained_mask()
    out, place, known = torch.full(mask.shape, -1), mask.cumsum(1) - 1, contexts(batch)
    rows, reach, width = mask.any(1).nonzero().flatten(), 1, mask.shape[1]
    while reach // 2 < width and len(rows):  # rows that differ at a token differ at all later ones: few go on for long
        column = ((place[rows] == reach - 1) & mask[rows]).long().argmax(1)
        there = place[rows, column] == reach - 1
        _, sets, counts = known[rows, column].unique(return_inverse=True, return_counts=True)
        still = there & (counts[sets] > 1)
        used, inside = rows, mask[rows] & (place[rows] >= reach // 2) & (place[rows] < reach)
        found = _sets(known[used], inside)
        out[used] = torch.where(found >= 0, found + int(out.max()) + 1, out[used])
        rows, reach = rows[still], reach * 2
    return out


def _sets(known: Tensor, inside: Tensor) -> Tensor:
    """Numbers of equal contexts among these slots, -1 for one that stands alone."""
    _, sets, counts = known[inside].unique(return_inverse=True, return_counts=True)
    out = torch.full(known.shape, -1)
    out[inside] = torch.where(counts[sets] > 1, sets, -1)
    return out


def spreads(values: Tensor, sets: Tensor) -> Tensor:
    """[B T] largest minus smallest value in the token's set of repeats; NaN where it has none."""
    inside = (sets >= 0) & values.isfinite()
    index, kept = sets[inside], values[inside].float()
    size = int(index.max()) + 1 if len(index) else 0
    high = torch.full((size,), -torch.inf).scatter_reduce(0, index, kept, "amax")
    low = torch.full((size,), torch.inf).scatter_reduce(0, index, kept, "amin")
    out = torch.full(values.shape, torch.nan)
    out[inside] = (high - low)[index]
    return out
