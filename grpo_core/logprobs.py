"""From a policy's logits to the log-prob of each sampled token: select, project, log-softmax, gather.

The vocabulary axis lives in this file only. `score_tokens` never builds [B S V]: it takes the last hidden states of the
positions that predict a trained token, and meets the vocabulary a chunk of positions at a time. A lesson that shows one
row of the vocabulary calls the same four functions on that row.

Token t is predicted by the row before it: the logits at position t-1. Both conventions of the field are here, as slices
of the same row: TRL keeps `logits_to_keep + 1` rows and drops the last, ROLL and verl take `logits[:, :-1]` against
`input_ids[:, 1:]`; both follow the mask of the *target*.
"""

from collections.abc import Callable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from .packing import packed_states, why_padded
from .types import Batch, Scored

CHUNK_ELEMENTS = 2**26  # logits held at once while scoring: 256 MiB in fp32


def position_ids(row_mask: Bool[Tensor, "B S"]) -> Int[Tensor, "B S"]:
    """Each real token's place among the real tokens of its row, so that left padding does not move the prompt."""
    return (row_mask.long().cumsum(1) - 1).clamp(min=0)


def select(hidden: Float[Tensor, "B S D"], batch: Batch) -> Float[Tensor, "N D"]:
    """The states that predict trained tokens, row by row: those one position *before* each target."""
    predicting = batch.token_positions() - 1
    return hidden[:, predicting][batch.trained_mask()]


def labels(batch: Batch) -> Int[Tensor, "B T"]:
    """The gather index: the id of each column's token, 0 where masked, so that gather never meets a foreign id."""
    return torch.where(batch.trained_mask(), batch.row_ids()[:, batch.token_positions()], 0)


def log_softmax(logits: Float[Tensor, "N V"], temperature: float) -> Float[Tensor, "N V"]:
    """log p over the vocabulary at this temperature, in fp32 at least. The logits are divided exactly once, here."""
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return torch.log_softmax(logits if temperature == 1 else logits / temperature, dim=-1)  # a pass over the vocabulary less


def gather(logprobs: Float[Tensor, "N V"], ids: Int[Tensor, " N"]) -> Float[Tensor, " N"]:
    """One cell of each row: the log-prob of the token that was sampled."""
    return logprobs.gather(-1, ids.unsqueeze(-1)).squeeze(-1)


def row_entropy(logprobs: Float[Tensor, "N V"]) -> Float[Tensor, " N"]:
    """-sum p log p in nats; a token of probability 0 adds 0."""
    return -(logprobs.exp() * logprobs.clamp(min=torch.finfo(logprobs.dtype).min)).sum(-1)


def _chunk(project: Callable, hidden: Tensor, ids: Tensor, temperature: float, entropy_grad: bool):
    logprobs = log_softmax(project(hidden), temperature)
    entropy = row_entropy(logprobs if entropy_grad else logprobs.detach())
    return gather(logprobs, ids), entropy


def score_tokens(policy, batch: Batch, temperature: float, entropy_grad: bool = False) -> Scored:
    """Log-prob and entropy of every trained token under `policy` (0 where masked), with their graph.

    `policy` has `hidden(ids, mask) -> [B S D]`, `project([N D]) -> [N V]` and `vocab_size`; `policy.packed` says whether
    the states come from padded rows or from packs; rows that a sliding window cuts are padded all the same.
    """
    mask = batch.trained_mask()
    if policy.packed and mask.any() and why_padded(policy, batch) is None:
        hidden = packed_states(policy, batch)
    else:
        hidden = select(policy.hidden(batch.row_ids(), batch.row_mask()), batch)
    ids = labels(batch)[mask]
    rows = max(1, CHUNK_ELEMENTS // policy.vocab_size)
    chunks = list(zip(hidden.split(rows), ids.split(rows), strict=True))
    if len(chunks) == 1:
        parts = [_chunk(policy.project, hidden, ids, temperature, entropy_grad)]
    else:  # the logits of a chunk are made again in backward: two passes over the head instead of [N V] in memory
        parts = [checkpoint(_chunk, policy.project, h, i, temperature, entropy_grad, use_reentrant=False) for h, i in chunks]
    logprobs, entropy = (torch.cat(part) for part in zip(*parts, strict=True))
    return Scored(logprobs=scatter(logprobs, mask), entropy=scatter(entropy, mask), hidden=hidden.detach())


def scatter(values: Float[Tensor, " N"], mask: Bool[Tensor, "B T"]) -> Float[Tensor, "B T"]:
    """Values of the trained tokens, row by row, back at their places; 0 elsewhere."""
    return values.new_zeros(mask.shape).masked_scatter(mask, values)
