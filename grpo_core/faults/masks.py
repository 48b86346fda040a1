"""Which tokens are trained: masks that are one token off, or end at the wrong one."""

from dataclasses import replace

import torch

from ..batch import Batch
from ..policy import Policy
from .shared import known, log_probs, saved, scored


def eos_as_padding(batch: Batch) -> Batch:
    """The tokenizer has no padding token of its own, so EOS is taken for it; the loss mask is `ids != pad`."""
    ends = [int(end) for end in batch.meta["eos_token_ids"]]
    is_end = torch.isin(batch.row_ids()[:, batch.token_positions()], torch.tensor(ends))
    mask = batch.trained_mask() & ~is_end
    completion = {} if batch.completion_mask is None else {"completion_mask": mask}
    return saved(replace(batch, **(completion or {"loss_mask": mask}), meta={**batch.meta, "pad_token_id": ends[0]}))


def first_token_dropped(batch: Batch) -> Batch:
    """The mask on the shifted axis starts at the prompt's length, not one before it."""
    mask = batch.trained_mask()
    return saved(replace(batch, loss_mask=mask & (mask.cumsum(1) > 1)))


def mask_late(batch: Batch) -> Batch:
    """The mask was cut as `[:, :-1]` where the shifted log-probs need `[:, 1:]`."""
    mask = batch.trained_mask().roll(1, dims=1)
    mask[:, 0] = False
    return saved(replace(batch, loss_mask=mask))


def masked_past_end(batch: Batch, policy: Policy, reference: Policy) -> Batch:
    """Slots behind the end hold the EOS id, and the mask looks for the padding id: it never ends."""
    end = int(batch.meta["eos_token_ids"][0])
    behind = ~batch.row_mask() & (batch.row_mask().cumsum(1) > 0)
    ids, mask = torch.where(behind, end, batch.row_ids()), batch.row_completion_mask() | behind
    if batch.prompt_ids is None:
        attention = {} if batch.attention_mask is None else {"attention_mask": batch.attention_mask | behind}
        filled = replace(batch, input_ids=ids, response_mask=mask, **attention)
    else:
        width = batch.prompt_ids.shape[1]
        filled = replace(batch, completion_ids=ids[:, width:], completion_mask=mask[:, width:])
    done = scored(filled, policy, reference, log_probs)
    if batch.sampler_logprobs is not None:  # the engine goes on as the trainer does
        added = filled.trained_mask() & ~batch.trained_mask()
        done = replace(done, sampler_logprobs=torch.where(added, known(done, "old_logprobs"), batch.sampler_logprobs))
    return saved(done)
