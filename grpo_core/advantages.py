"""Rewards -> one advantage per completion: A = (reward - baseline) / scale.

`ADVANTAGE_MEAN` names the baseline, `ADVANTAGE_STD` what the difference is divided by. Rows whose reward functions all
returned None take no part in any mean or spread and get A = 0. A spread of exactly 0 (equal rewards, a group of one, or
leave-one-out where the others are equal) divides by nothing: the scale is 1, as in NeMo-RL; where the group's own mean is
the baseline, A is 0 there anyway.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from .types import Advantages

Group = Float[Tensor, " G"]  # the valid rewards of one group
Valid = Float[Tensor, " N"]  # those of the whole batch


# ---- baselines: the valid rewards of a group (and of the batch) -> what is subtracted from each -------------------------
def group_mean(group: Group, batch: Valid) -> Group:
    """The group's own mean (GRPO, arXiv 2402.03300)."""
    return group.mean().expand_as(group)


def leave_one_out_mean(group: Group, batch: Valid) -> Group:
    """The mean of the others in the group (RLOO, arXiv 2402.14740); a row alone is its own baseline."""
    others = len(group) - 1
    return (group.sum() - group) / others if others else group


def batch_mean(group: Group, batch: Valid) -> Group:
    return batch.mean().expand_as(group)


def no_mean(group: Group, batch: Valid) -> Group:
    return torch.zeros_like(group)


ADVANTAGE_MEAN = {
    "group": group_mean, "leave-one-out": leave_one_out_mean, "batch": batch_mean, "none": no_mean,
}  # fmt: skip


# ---- spreads: the same -> what the difference is divided by, before eps ----------------------------------------------------
def _std(values: Valid, correction: int) -> Tensor:
    # Equal values have no spread; a mean that is rounded would give them one in the last digits.
    spread = len(values) > correction and not bool((values == values[:1]).all())
    return values.std(correction=correction) if spread else values.new_zeros(())


def unbiased_std(group: Group, batch: Valid) -> Group:
    """Divided by G - 1 (torch.std's default; TRL, verl, ROLL, OpenRLHF)."""
    return _std(group, 1).expand_as(group)


def biased_std(group: Group, batch: Valid) -> Group:
    """Divided by G (numpy's default)."""
    return _std(group, 0).expand_as(group)


def batch_std(group: Group, batch: Valid) -> Group:
    """One spread for the whole batch, unbiased (TRL scale_rewards="batch")."""
    return _std(batch, 1).expand_as(group)


def leave_one_out_std(group: Group, batch: Valid) -> Group:
    """The unbiased spread of the others in the group (NeMo-RL's default); 0 where fewer than two others are left."""
    rows = range(len(group))
    return torch.stack([_std(group[[other for other in rows if other != row]], 1) for row in rows])


ADVANTAGE_STD = {
    "unbiased": unbiased_std, "biased": biased_std, "none": None, "batch": batch_std, "leave-one-out": leave_one_out_std,
}  # fmt: skip


def reward_tensor(rewards: Sequence[Sequence[float | None]]) -> tuple[Float[Tensor, "B R"], Bool[Tensor, "B R"]]:
    """Rewards as they were returned -> values (NaN where None) and where they were None. NaN itself is a value."""
    missing = torch.tensor([[value is None for value in row] for row in rewards])
    values = [[float("nan") if value is None else float(value) for value in row] for row in rewards]
    return torch.tensor(values), missing


def group_advantages(
    rewards: Sequence[Sequence[float | None]],
    weights: Sequence[float],
    group_ids: Int[Tensor, " B"],
    mean: str = "group",
    std: str = "unbiased",
    eps: float = 1e-4,
) -> Advantages:
    """Advantages of a batch of rewards [B][R]; `mean` and `std` name rows of the tables above."""
    values, missing = reward_tensor(rewards)
    weight = torch.tensor(list(weights), dtype=values.dtype)
    valid = ~missing.all(1)
    reward = torch.where(missing, 0.0, values * weight).sum(1)
    # Means and spreads in fp64: in fp32 those of rewards near a million would be noise.
    exact = reward.double()
    baseline, group_average, spread = torch.zeros_like(exact), torch.zeros_like(exact), torch.zeros_like(exact)
    zero_std = torch.zeros_like(valid)
    for group in group_ids.unique():
        rows = ((group_ids == group) & valid).nonzero().flatten()
        if len(rows) == 0:
            continue
        members = exact[rows]
        baseline[rows] = ADVANTAGE_MEAN[mean](members, exact[valid])
        group_average[rows] = members.mean()
        zero_std[rows] = (members == members[0]).all()
        if ADVANTAGE_STD[std] is not None:
            spread[rows] = ADVANTAGE_STD[std](members, exact[valid])
    scale = torch.where(spread == 0, 1.0, spread + eps)
    # Equal rewards have advantage 0 by definition; their rounded mean may differ from them in the last bit.
    centred = torch.where(zero_std & (mean in ("group", "leave-one-out")), 0.0, exact - baseline)
    return Advantages(
        rewards=values, missing=missing, weights=weight, valid=valid,
        reward=torch.where(valid, reward, float("nan")), baseline=baseline.to(reward), scale=scale.to(reward),
        group_mean=group_average.to(reward), group_std=spread.to(reward), zero_std=zero_std,
        advantages=torch.where(valid, centred / scale, 0.0).to(reward),
    )  # fmt: skip
