"""Rewards -> one advantage per completion: A = (reward - baseline) / scale.

`ADVANTAGE_MEAN` names the baseline, `ADVANTAGE_STD` what the difference is divided by. Rows whose reward functions all
returned None take no part in any mean or spread and get A = 0. A spread of exactly 0 (equal rewards, a group of one, or
leave-one-out where the others are equal) divides by nothing: the scale is 1, as in NeMo-RL; where the group's own mean is
the baseline, A is 0 there anyway. `token_advantages` makes [B T] of [B]: KL in the reward, whitening, clipping.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from .convention import AdvantageConfig
from .kl import KL
from .types import Advantages

PAPER = AdvantageConfig()
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


def no_std(group: Group, batch: Valid) -> Group:
    """Nothing: the difference itself (Dr. GRPO)."""
    return torch.zeros_like(group)


def leave_one_out_std(group: Group, batch: Valid) -> Group:
    """The unbiased spread of the others in the group (NeMo-RL's default); 0 where fewer than two others are left."""
    rows = range(len(group))
    return torch.stack([_std(group[[other for other in rows if other != row]], 1) for row in rows])


ADVANTAGE_STD = {
    "unbiased": unbiased_std, "biased": biased_std, "none": no_std, "batch": batch_std, "leave-one-out": leave_one_out_std,
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
    config: AdvantageConfig = PAPER,
    penalty: Float[Tensor, " B"] | None = None,
) -> Advantages:
    """Advantages of a batch of rewards [B][R]. `penalty` is taken off each row's reward before anything is subtracted
    (KL in the reward)."""
    values, missing = reward_tensor(rewards)
    weight = torch.tensor(list(weights), dtype=values.dtype)
    valid = ~missing.all(1)
    reward = torch.where(missing, 0.0, values * weight).sum(1)
    # Means and spreads in fp64: in fp32 those of rewards near a million would be noise.
    exact = (reward.double() + config.reward_shift) * config.reward_scale
    exact = exact.clamp(-config.reward_clip, config.reward_clip) if config.reward_clip else exact
    exact = exact if penalty is None else exact - penalty.double()
    baseline, group_average, spread = torch.zeros_like(exact), torch.zeros_like(exact), torch.zeros_like(exact)
    zero_std, alone = torch.zeros_like(valid), torch.zeros_like(valid)
    for group in group_ids.unique():
        rows = ((group_ids == group) & valid).nonzero().flatten()
        if len(rows) == 0:
            continue
        members = exact[rows]
        baseline[rows] = ADVANTAGE_MEAN[config.advantage_mean](members, exact[valid])
        group_average[rows] = members.mean()
        zero_std[rows] = (members == members[0]).all()
        alone[rows] = len(rows) == 1
        spread[rows] = ADVANTAGE_STD[config.advantage_std](members, exact[valid])
    # Equal rewards have advantage 0 by definition; their rounded mean may differ from them in the last bit.
    baseline = torch.where(zero_std & (config.advantage_mean in ("group", "leave-one-out")), exact, baseline)
    if config.advantage_alone == "reward":
        baseline = torch.where(alone, 0.0, baseline)
        spread = torch.where(alone & (config.advantage_std != "none"), 1.0, spread)  # verl: r / (1 + eps), or r itself
    scale = torch.where(spread == 0, 1.0, spread + config.advantage_eps)
    return Advantages(
        rewards=values, missing=missing, weights=weight, valid=valid,
        reward=torch.where(valid, exact, float("nan")).to(reward), baseline=baseline.to(reward), scale=scale.to(reward),
        group_mean=group_average.to(reward), group_std=spread.to(reward), zero_std=zero_std,
        advantages=torch.where(valid, (exact - baseline) / scale, 0.0).to(reward),
    )  # fmt: skip


# ---- whitening: [B T] over all trained tokens ------------------------------------------------------------------------------
def no_whitening(values: Float[Tensor, " N"]) -> Float[Tensor, " N"]:
    return values


def whiten_unbiased(values: Float[Tensor, " N"]) -> Float[Tensor, " N"]:
    """(A - mean) / sqrt(unbiased variance + 1e-8) (verl's and ROLL's masked_whiten); one token alone stays as it is."""
    return (values - values.mean()) * (values.var(correction=1) + 1e-8).rsqrt() if len(values) > 1 else values


def whiten_biased(values: Float[Tensor, " N"]) -> Float[Tensor, " N"]:
    """(A - mean) / sqrt(biased variance, at least 1e-8) (OpenRLHF)."""
    return (values - values.mean()) * values.var(correction=0).clamp(min=1e-8).rsqrt() if len(values) else values


def whiten_std(values: Float[Tensor, " N"]) -> Float[Tensor, " N"]:
    """(A - mean) / (unbiased std + 1e-5) (AReaL's adv_norm)."""
    return (values - values.mean()) / (values.std(correction=1) + 1e-5) if len(values) > 1 else values


WHITEN = {"none": no_whitening, "unbiased": whiten_unbiased, "biased": whiten_biased, "std": whiten_std}


def reward_kl_of(
    old_logprobs: Float[Tensor, "B T"], ref_logprobs: Float[Tensor, "B T"], mask: Bool[Tensor, "B T"], config: AdvantageConfig
) -> Float[Tensor, "B T"]:
    """What the KL takes off the reward of each token: coefficient · estimator of old against the reference; 0 where masked."""
    difference = torch.where(mask, old_logprobs - ref_logprobs, 0.0)
    return config.reward_kl_coef * KL[config.reward_kl_estimator](difference)


def token_advantages(
    advantages: Float[Tensor, " B"],
    mask: Bool[Tensor, "B T"],
    config: AdvantageConfig = PAPER,
    reward_kl: Float[Tensor, "B T"] | None = None,
) -> Float[Tensor, "B T"]:
    """The advantage of each token: its row's, minus the KL still to come where that is in the reward, whitened, clipped."""
    values = advantages.unsqueeze(1).expand_as(mask)
    if config.reward_kl == "after" and reward_kl is not None:  # reward-to-go with gamma 1
        values = values - reward_kl.flip(1).cumsum(1).flip(1)
    whitened = torch.zeros_like(values).masked_scatter(mask, WHITEN[config.advantage_whiten](values[mask]))
    values = torch.where(mask, whitened, values)  # padding keeps the row's: Liger's luspo counts it
    return values.clamp(-config.advantage_clip, config.advantage_clip) if config.advantage_clip else values


def batch_advantages(
    rewards: Sequence[Sequence[float | None]], weights: Sequence[float], group_ids: Int[Tensor, " B"],
    old_logprobs: Float[Tensor, "B T"], ref_logprobs: Float[Tensor, "B T"], mask: Bool[Tensor, "B T"],
    config: AdvantageConfig = PAPER,
) -> tuple[Advantages, Float[Tensor, "B T"]]:  # fmt: skip
    """Rewards -> (advantages per row, advantages per token) in one convention, KL in the reward included."""
    in_reward = config.reward_kl != "none"
    reward_kl = reward_kl_of(old_logprobs, ref_logprobs, mask, config) if in_reward else None
    penalty = reward_kl.sum(1) if reward_kl is not None and config.reward_kl == "before" else None
    advantages = group_advantages(rewards, weights, group_ids, config, penalty)
    return advantages, token_advantages(advantages.advantages, mask, config, reward_kl)
