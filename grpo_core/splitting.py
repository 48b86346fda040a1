"""One optimizer step in parts: rows into minibatches and micro-batches, their denominators, and the parts as one again."""

from dataclasses import fields, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from .advantages import batch_advantages
from .aggregation import Totals
from .convention import AdvantageConfig, LossConfig
from .engine import Engine
from .loss import totals_of
from .types import Advantages, Batch, LossTerms

Rows = Int[Tensor, " _"]  # of one micro-batch; they differ in number


def split_rows(rows: int, minibatches: int, micro_batch_rows: int) -> list[list[Rows]]:
    """Minibatches of the rows 0 … rows-1, in order and of about equal size, each as its micro-batches.

    Raises ValueError where a minibatch would be empty.
    """
    if minibatches > rows:
        raise ValueError(f"minibatches: found {minibatches} for {rows} rows, allowed: at most one per row")
    return [list(part.split(micro_batch_rows or rows)) for part in torch.arange(rows).tensor_split(minibatches)]


def pick_rows(values: Tensor, rows: Rows | None) -> Tensor:
    """These rows; the first one for an empty micro-batch; the values themselves where that is all of them."""
    if rows is None:
        return values[:1]
    return values if len(rows) == len(values) else values[rows.to(values.device)]


def part_of(batch: Batch, rows: Rows | None) -> Batch:
    """A micro-batch. None makes one in which nothing is trained: for a process that has fewer of them than the others."""
    mask = batch.trained_mask()
    if rows is None:
        return replace(batch.rows(torch.zeros(1, dtype=torch.long)), loss_mask=torch.zeros_like(mask[:1]))
    return batch if len(rows) == len(mask) else batch.rows(rows.to(mask.device))


def step_totals(batch: Batch, micro_batches: list[Rows], config: LossConfig, engine: Engine) -> Totals:
    """Denominators of one optimizer step, over all its micro-batches on all processes."""
    mask, width = batch.trained_mask()[torch.cat(micro_batches)], batch.row_ids().shape[1] - 1
    here = totals_of(mask, config)
    if engine.processes == 1:
        return replace(here, width=width, micro_batches=len(micro_batches))
    counts = torch.tensor([int(mask.shape[0]), int(mask.any(1).sum()), int(mask.sum()), len(micro_batches)])
    rows, filled, tokens, micro = engine.total(counts).tolist()
    rows = rows if config.count_empty_rows else max(1, filled)
    return Totals(rows=rows, tokens=tokens, width=engine.most(width), micro_batches=micro)


def detached(terms: LossTerms) -> LossTerms:
    return LossTerms(**{f.name: getattr(terms, f.name).detach() for f in fields(terms)})


def joined(
    pieces: list[tuple[Rows, LossTerms, Tensor, Tensor]], batch: Batch
) -> tuple[LossTerms, Float[Tensor, "B T"], Float[Tensor, "N D"]]:
    """Terms, log-prob gradient and hidden states of the micro-batches as those of the batch; rows of other minibatches are
    masked. Numbers are summed: each is its micro-batch's share."""
    mask = batch.trained_mask()
    if len(pieces) == 1 and len(pieces[0][0]) == len(mask):
        return pieces[0][1:]
    rows = torch.cat([piece[0] for piece in pieces]).to(mask.device)

    def whole(parts: list[Tensor], masked: float = 0.0) -> Tensor:
        values = torch.cat(parts)
        return values.new_full(mask.shape, masked).index_copy(0, rows, values)

    named = {f.name: [getattr(terms, f.name) for _, terms, _, _ in pieces] for f in fields(LossTerms)}
    joined_terms = {
        name: torch.stack(parts).sum() if parts[0].dim() == 0 else whole(parts, masked=float(name == "correction"))
        for name, parts in named.items()
    }
    states = torch.cat([hidden for *_, hidden in pieces])
    if len(states):
        kept = torch.zeros_like(mask).index_copy(0, rows, mask[rows])[mask]
        states = states.new_zeros(len(kept), states.shape[1]).masked_scatter(kept.unsqueeze(1), states)
    return LossTerms(**joined_terms), whole([gradient for _, _, gradient, _ in pieces]), states


# ---- advantages that need more than a group --------------------------------------------------------------------------------
def looks_beyond_the_group(config: AdvantageConfig) -> bool:
    return "batch" in (config.advantage_mean, config.advantage_std) or config.advantage_whiten != "none"


def everyones_advantages(
    rewards, weights, group_ids: Tensor, old: Tensor, ref: Tensor, mask: Tensor, config: AdvantageConfig, engine: Engine
) -> tuple[Advantages, Float[Tensor, "B T"]]:
    """`batch_advantages` of the rows of all processes, cut down to this process's."""
    here, width = len(mask), mask.shape[1]
    counts = engine.everyones([here])
    first, widest = sum(counts[: engine.process]), engine.most(width)

    def all_rows(values: Tensor) -> Tensor:
        padded = torch.nn.functional.pad(values, (widest - width, 0))
        return torch.cat([piece.to(values.device) for piece in engine.everyones([padded.cpu()])])

    groups = [(process, group) for process, count in enumerate(counts) for group in range(count)]
    numbers = {name: place for place, name in enumerate(groups)}
    own = [numbers[engine.process, group] for group in group_ids.tolist()]
    rows, per_token = batch_advantages(
        engine.everyones(list(rewards)), weights, torch.tensor(engine.everyones(own)), all_rows(old), all_rows(ref),
        all_rows(mask), config,
    )  # fmt: skip
    cut = slice(first, first + here)
    mine = {f.name: getattr(rows, f.name) for f in fields(Advantages)}
    mine = {name: values if name == "weights" else values[cut] for name, values in mine.items()}
    return Advantages(**mine), per_token[cut, widest - width :]
