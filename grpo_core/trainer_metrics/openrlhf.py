"""What OpenRLHF 0.11.2 logs (openrlhf/models/loss.py, trainer/ray/ppo_actor.py, trainer/ppo_utils/experience_maker.py)."""

from ..convention import Convention
from ..kl import KL
from .honest import bounded_fraction
from .metric import (
    Metric,
    clipped_branch_mean,
    kl_loss,
    policy_loss,
    token_corrected,
    with_entropy_bonus,
    with_kl,
)  # fmt: skip
from .seen import Seen, spread


def ppo_kl(seen: Seen) -> float:
    return seen.mean(seen.gap("old", "policy"))


def logprobs_diff(seen: Seen) -> float:
    return seen.mean(seen.gap("policy", "ref"))


# ---- with the KL in the reward both are taken before the first update, as means of rows ------------------------------
def kl_of_rollout(seen: Seen) -> float:
    estimate = KL[seen.convention.reward_kl_estimator](seen.gap("old", "ref"))
    return seen.mean_of_rows(estimate.clamp(-10.0, 10.0))


def logprobs_diff_of_rollout(seen: Seen) -> float:
    return seen.mean_of_rows(seen.gap("old", "ref"))


def group_reward_std(seen: Seen) -> float:
    """The mean over rows of their group's unbiased std."""
    groups = seen.groups()
    return sum(spread(group) * len(group) for group in groups) / max(sum(len(group) for group in groups), 1)


def entropy_loss(seen: Seen) -> float:
    seen.given("entropy")
    return float(seen.terms.entropy_loss)


def vllm_kl(seen: Seen) -> float:
    return seen.mean(seen.gap("sampler", "old"))


def _kl_in_reward(convention: Convention) -> bool:
    return convention.reward_kl != "none" and not with_kl(convention)


OPENRLHF = (
    Metric("policy_loss", policy_loss, "policy_loss"),
    Metric("ppo_clip_ratio", clipped_branch_mean, "clip_fraction", "What dual clip cuts off is not in it."),
    Metric("ppo_kl", ppo_kl, "kl_old", "The mean of log old - log policy: may be negative, and large moves in opposite "
           "directions cancel."),
    Metric("kl", kl_loss, "kl_ref", "Clamped to 10. Always a token mean, whatever the policy part is.", with_kl),
    Metric("kl", kl_of_rollout, "kl_ref", "Of the old policy, before any update, as the mean of the rows' means; with k1, the "
           "default, it may be negative.", _kl_in_reward),
    Metric("logprobs_diff", logprobs_diff, "kl_ref", "The mean of log policy - log reference: k1, may be negative.", with_kl),
    Metric("logprobs_diff", logprobs_diff_of_rollout, "kl_ref", "k1 of the old policy, as the mean of the rows' means.",
           _kl_in_reward),
    Metric("entropy_loss", entropy_loss, "entropy", "The entropy itself, not a loss.", with_entropy_bonus),
    Metric("vllm_kl", vllm_kl, "kl_sampler_old", "The mean of log sampler - log old: k1, may be negative.", token_corrected),
    Metric("is_filter_ratio", bounded_fraction, "bounded_fraction", applies=token_corrected),
    Metric("group_reward_std", group_reward_std, "group_reward_std", "A mean over rows: large groups count more."),
)  # fmt: skip
