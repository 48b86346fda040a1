"""The numbers beside the logged ones. All are over trained tokens, rows or groups, none is weighted or cut off."""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from ..surrogate import SURROGATE, Parts
from .metric import entropy_mean, loss, policy_loss
from .seen import Seen, spread


def clip_fraction(seen: Seen) -> float:
    """Share of trained tokens that clipping leaves without a gradient."""
    return seen.mean(seen.terms.is_clipped)


def clip_fraction_positive(seen: Seen) -> float:
    """The part of clip_fraction with A > 0."""
    return seen.mean(seen.terms.is_clipped & (seen.advantages > 0))


def clip_fraction_negative(seen: Seen) -> float:
    """The part of clip_fraction with A < 0."""
    return seen.mean(seen.terms.is_clipped & (seen.advantages < 0))


def kl_ref(seen: Seen) -> float:
    """KL(policy || reference), the plain estimate: mean of k3 over trained tokens."""
    return seen.mean(seen.k3("policy", "ref"))


def kl_old(seen: Seen) -> float:
    """KL(old || policy), how far the policy has moved: mean of k3 over trained tokens."""
    return seen.mean(seen.k3("old", "policy"))


def kl_sampler(seen: Seen) -> float:
    """KL(sampler || policy): mean of k3 over trained tokens."""
    return seen.mean(seen.k3("sampler", "policy"))


def kl_sampler_old(seen: Seen) -> float:
    """KL(sampler || old), how far training is from the engine that sampled: mean of k3 over trained tokens."""
    return seen.mean(seen.k3("sampler", "old"))


def _ratio(pick: Callable[[Tensor], Tensor]) -> Callable[[Seen], float]:
    return lambda seen: seen.extreme(seen.of_ratio("ratio"), pick)


def _sampler_ratio(pick: Callable[[Tensor], Tensor]) -> Callable[[Seen], float]:
    return lambda seen: seen.extreme(seen.gap("old", "sampler").exp(), pick)


def _sampler_gap(one: str, pick: Callable[[Tensor], Tensor]) -> Callable[[Seen], float]:
    return lambda seen: seen.extreme(seen.gap(one, "sampler").abs(), pick)


def _length(pick: Callable[[Tensor], Tensor]) -> Callable[[Seen], float]:
    return lambda seen: float(pick(seen.mask.sum(1).double()))


def reward_mean(seen: Seen) -> float:
    rewards = seen.rewards()
    scored = rewards[~rewards.isnan()]
    return float(scored.mean()) if len(scored) else 0.0


def group_reward_std(seen: Seen) -> float:
    """The mean over groups of the group's unbiased standard deviation."""
    spreads = [spread(group) for group in seen.groups()]
    return sum(spreads) / max(len(spreads), 1)


def equal_groups(seen: Seen) -> float:
    """Share of groups in which all rewards are the same: nothing is learned there."""
    groups = seen.groups()
    return sum(bool((group == group[0]).all()) for group in groups) / max(len(groups), 1)


def dropped_fraction(seen: Seen) -> float:
    """Share of trained tokens that the correction or a gate leaves out of the loss."""
    return seen.mean(seen.terms.correction == 0)


def bounded_fraction(seen: Seen) -> float:
    """Share of trained tokens whose weight against the sampler is out of bounds: truncated, or dropped."""
    weight, convention = seen.gap("old", "sampler").exp(), seen.convention
    return seen.mean((weight < convention.correction_low) | (weight > (convention.correction_high or torch.inf)))


def row_weights(seen: Seen) -> Tensor:
    """phi of each row [B]: what -phi · A · log p is at log p = -1 and A = 1, or A = -1 in rows with A < 0 (VESPO)."""
    ratio, log_ratio = seen.of_ratio("ratio"), seen.of_ratio("log_ratio")
    sign = torch.where(seen.of_first_token(seen.advantages) < 0, -1.0, 1.0).to(ratio).unsqueeze(1).expand_as(ratio)
    parts = Parts.of_ratio(ratio, sign, seen.convention)
    parts = replace(parts, mask=seen.mask, log_ratio=log_ratio, policy_logprobs=-torch.ones_like(ratio))
    return (SURROGATE["vespo"](parts, seen.convention)[0] * sign)[:, 0]


def row_weight_mean(seen: Seen) -> float:
    """The mean over trained tokens of the weight that their row gives them (VESPO)."""
    weights = row_weights(seen)
    return seen.mean(weights.unsqueeze(1).expand_as(seen.mask))


def truncated_rows(seen: Seen) -> float:
    """Share of rows that were cut off."""
    return float(seen.given("truncated").double().mean())


HONEST: dict[str, Callable[[Seen], float]] = {
    "loss": loss,
    "policy_loss": policy_loss,
    "clip_fraction": clip_fraction,
    "clip_fraction_positive": clip_fraction_positive,
    "clip_fraction_negative": clip_fraction_negative,
    "kl_ref": kl_ref,
    "kl_old": kl_old,
    "kl_sampler": kl_sampler,
    "kl_sampler_old": kl_sampler_old,
    "entropy": entropy_mean,
    "ratio_mean": _ratio(torch.mean),
    "ratio_min": _ratio(torch.min),
    "ratio_max": _ratio(torch.max),
    "sampler_ratio_mean": _sampler_ratio(torch.mean),
    "sampler_ratio_min": _sampler_ratio(torch.min),
    "sampler_ratio_max": _sampler_ratio(torch.max),
    "sampler_gap_mean": _sampler_gap("old", torch.mean),  # |log old - log sampler|
    "sampler_gap_max": _sampler_gap("old", torch.max),
    "policy_gap_mean": _sampler_gap("policy", torch.mean),  # |log policy - log sampler|
    "policy_gap_min": _sampler_gap("policy", torch.min),
    "policy_gap_max": _sampler_gap("policy", torch.max),
    "dropped_fraction": dropped_fraction,
    "bounded_fraction": bounded_fraction,
    "row_weight_mean": row_weight_mean,
    "reward": reward_mean,
    "group_reward_std": group_reward_std,
    "equal_groups": equal_groups,
    "length_mean": _length(torch.mean),
    "length_min": _length(torch.min),
    "length_max": _length(torch.max),
    "truncated_rows": truncated_rows,
}
