"""Rewards and groups: who is compared with whom, and what one missing number does."""

from dataclasses import replace

import torch

from ..batch import Batch
from .shared import advantages_of_groups, missing_of, saved


def advantages_rolled(batch: Batch) -> Batch:
    """Rows come in another order than the one that their advantages were computed in: here one place on."""
    assert batch.advantages is not None
    return saved(replace(batch, advantages=batch.advantages.roll(1, dims=0)))


def whole_batch(batch: Batch) -> Batch:
    """Mean and spread are taken over the whole batch where a group's are meant."""
    assert batch.group_ids is not None
    return saved(
        replace(batch, advantages=advantages_of_groups(batch, batch.group_ids, advantage_mean="batch", advantage_std="batch"))
    )


def row_alone(batch: Batch) -> Batch:
    """All rows of the last group but one were filtered out; the spread of one number, divided by 0, is NaN."""
    assert batch.group_ids is not None
    last = batch.group_ids == batch.group_ids[-1]
    kept = batch.rows(torch.arange(len(last))[~last | (last.cumsum(0) == 1)])
    assert kept.advantages is not None
    advantages = kept.advantages.clone()
    advantages[-1] = torch.nan
    return saved(replace(kept, advantages=advantages))


def reward_missing(batch: Batch) -> Batch:
    """One answer got no reward; it entered its group's mean, and the group's advantages are NaN."""
    assert batch.rewards is not None and batch.group_ids is not None and batch.advantages is not None
    missing, row = missing_of(batch).clone(), int(len(batch.rewards) > 1)
    missing[row] = True
    group = (batch.group_ids == batch.group_ids[row]).view(-1, *[1] * (batch.advantages.dim() - 1))
    advantages = torch.where(group, torch.nan, batch.advantages)
    rewards = torch.where(missing, torch.nan, batch.rewards)
    return saved(replace(batch, rewards=rewards, rewards_missing=missing, advantages=advantages))
