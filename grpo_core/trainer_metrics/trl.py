"""What TRL's GRPOTrainer 1.16.0 logs (trl/trainer/grpo_trainer.py), and what it logged in February 2025 (0.15)."""

from collections.abc import Callable

import torch
from torch import Tensor

from . import metric
from .honest import group_reward_std, reward_mean, row_weights, truncated_rows
from .metric import Metric, corrected, surrogate_in, with_entropy_bonus, with_kl
from .seen import Seen, Values, spread

Flags = Callable[[Seen], Tensor]
CLIPPED = surrogate_in("min-clip", "two-sided")  # the loss types that log clip_ratio


# ---- token-weighted means; one value a row where the ratio is the row's ----------------------------------------------
def _mean(seen: Seen, values: Tensor) -> float:
    """TRL's global_masked_mean: a tensor of one column counts rows, empty ones included."""
    count = len(values) if values.shape[1] == 1 else int(seen.mask.sum())
    return float(values.sum()) / max(count, 1)


def _at_level(seen: Seen, values: Values) -> Tensor:
    """[B 1] for the sequence ratio, else [B T]."""
    return seen.of_first_token(values).unsqueeze(1) if seen.convention.ratio == "sequence" else seen.cleared(values)


def _ratio(seen: Seen) -> Tensor:
    """After `delta`: what is cut off there is no longer seen to be out of bounds."""
    ratio = seen.of_ratio("ratio")
    return ratio.clamp(max=seen.convention.dual_clip) if seen.convention.surrogate == "two-sided" else ratio


def too_low(seen: Seen) -> Tensor:
    return (_ratio(seen) < 1 - seen.convention.clip_low) & (seen.advantages < 0)


def too_high(seen: Seen) -> Tensor:
    return (_ratio(seen) > 1 + seen.convention.clip_high) & (seen.advantages > 0)


def out_of_region(seen: Seen) -> Tensor:
    return too_low(seen) | too_high(seen)


def _share(flags: Flags) -> Callable[[Seen], float]:
    return lambda seen: _mean(seen, _at_level(seen, flags(seen)))


def _extreme_row(flags: Flags, pick: Callable[[Tensor], Tensor]) -> Callable[[Seen], float]:
    """The smallest or largest share that a row has; rows without tokens are passed over, unless they have one column."""

    def value(seen: Seen) -> float:
        values = _at_level(seen, flags(seen))
        rows = values.squeeze(1) if values.shape[1] == 1 else seen.row_means(values)[seen.mask.any(1)]
        return float(pick(rows)) if len(rows) else 0.0

    return value


def kl(seen: Seen) -> float:
    seen.given("ref_logprobs")
    return _mean(seen, seen.terms.kl)


def entropy(seen: Seen) -> float:
    return _mean(seen, seen.entropy)


def cispo_clip_ratio(seen: Seen) -> float:
    return _mean(seen, seen.cleared(too_high(seen)))


def phi_seq_mean(seen: Seen) -> float:
    return float(row_weights(seen).mean())


def loss_before_entropy(seen: Seen) -> float:
    return float(seen.terms.loss + seen.convention.entropy_coef * seen.terms.entropy_loss)


# ---- rewards, lengths, the sampler -----------------------------------------------------------------------------------
def reward_std(seen: Seen) -> float:
    rewards = seen.rewards()
    return spread(rewards[~rewards.isnan()])


def frac_reward_zero_std(seen: Seen) -> float:
    """Share of rows whose std is 0 to within 1e-8: the group's, or the batch's with scale_rewards batch."""
    rewards, ids = seen.rewards(), seen.given("group_ids")
    whole = seen.convention.advantage_std == "batch"
    peers = [rewards if whole else rewards[ids == group] for group in ids]
    scored = [group[~group.isnan()] for group in peers]
    return sum(len(group) > 1 and spread(group) <= 1e-8 for group in scored) / len(scored)


def _weight(pick: Callable[[Tensor], Tensor]) -> Callable[[Seen], float]:
    """Over rows, empty ones included, at sequence level; else over trained tokens."""

    def value(seen: Seen) -> float:
        weight = seen.sampler_weight()
        return seen.extreme(weight, pick) if seen.convention.correction == "token" else float(pick(weight[:, 0]))

    return value


def _difference(pick: Callable[[Tensor], Tensor]) -> Callable[[Seen], float]:
    return lambda seen: seen.extreme(seen.gap("old", "sampler").abs(), pick)


def _length(pick: Callable[[Tensor], Tensor]) -> Callable[[Seen], float]:
    return lambda seen: float(pick(seen.lengths()))


def kl_mean_of_rows(seen: Seen) -> float:
    seen.given("ref_logprobs")
    return seen.mean_of_rows(seen.terms.kl)


def _completion_length(seen: Seen) -> float:
    return float(seen.lengths().mean())


REGION = "Counts rows at sequence level, tokens otherwise. What `delta` cuts off loses its gradient as well and is not counted."
EXTREME = "A share within a single row: one short completion sets it."
LENGTH = "Cut-off completions count, even where mask_truncated_completions keeps them out of the loss."
WEIGHT = "After truncation or dropping, where what is dropped counts as 0; one value a row in the sequence modes."

TRL = (
    Metric("loss", metric.loss, "loss"),
    Metric("policy_loss", loss_before_entropy, "policy_loss", "The KL is still in it; only the entropy bonus is not.",
           with_entropy_bonus),
    Metric("kl", kl, "kl_ref", "Multiplied by the ratio with use_bias_correction_kl, the default: an estimate for tokens of "
           "the policy itself, set by the few with a large ratio.", with_kl),
    Metric("entropy", entropy, "entropy"),
    Metric("clip_ratio/low_mean", _share(too_low), "clip_fraction_negative", REGION, CLIPPED),
    Metric("clip_ratio/low_min", _extreme_row(too_low, torch.min), "clip_fraction_negative", EXTREME, CLIPPED),
    Metric("clip_ratio/high_mean", _share(too_high), "clip_fraction_positive", REGION, CLIPPED),
    Metric("clip_ratio/high_max", _extreme_row(too_high, torch.max), "clip_fraction_positive", EXTREME, CLIPPED),
    Metric("clip_ratio/region_mean", _share(out_of_region), "clip_fraction", REGION, CLIPPED),
    Metric("cispo_clip_ratio", cispo_clip_ratio, "clip_fraction", "Weights cut off where A > 0. Every one of these tokens "
           "keeps its gradient, and those with A < 0 are cut off uncounted.", surrogate_in("cispo")),
    Metric("vespo/phi_seq_mean", phi_seq_mean, "row_weight_mean", "One value a row, so a short completion counts as "
           "much as a long one. 1 where nothing has moved, near 0 where rows are far from the old policy.",
           lambda c: c.surrogate == "vespo" and not corrected(c)),
    Metric("frac_reward_zero_std", frac_reward_zero_std, "equal_groups", "Counts rows. With scale_rewards batch it looks at "
           "the batch's std and no longer sees groups with equal rewards."),
    Metric("reward", reward_mean, "reward"),
    Metric("reward_std", reward_std, "group_reward_std", "Over the whole batch: the spread between prompts is in it. "
           "Advantages are divided by the group's."),
    Metric("sampling/sampling_logp_difference/mean", _difference(torch.mean), "sampler_gap_mean", applies=corrected),
    Metric("sampling/sampling_logp_difference/max", _difference(torch.max), "sampler_gap_max", applies=corrected),
    Metric("sampling/importance_sampling_ratio/min", _weight(torch.min), "sampler_ratio_min", WEIGHT, corrected),
    Metric("sampling/importance_sampling_ratio/mean", _weight(torch.mean), "sampler_ratio_mean", WEIGHT, corrected),
    Metric("sampling/importance_sampling_ratio/max", _weight(torch.max), "sampler_ratio_max", WEIGHT, corrected),
    Metric("completions/mean_length", _length(torch.mean), "length_mean", LENGTH),
    Metric("completions/min_length", _length(torch.min), "length_min", LENGTH),
    Metric("completions/max_length", _length(torch.max), "length_max", LENGTH),
    Metric("completions/clipped_ratio", truncated_rows, "truncated_rows"),
)  # fmt: skip

EARLY = (
    Metric("loss", metric.loss, "loss"),
    Metric("kl", kl_mean_of_rows, "kl_ref", "The mean of the rows' means: a token of a short completion counts more."),
    Metric("reward", reward_mean, "reward"),
    Metric("reward_std", group_reward_std, "group_reward_std"),
    Metric("completion_length", _completion_length, "length_mean"),
)
