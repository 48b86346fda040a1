"""What slime, AReaL, NeMo-RL, prime-rl, SkyRL and tinker-cookbook log, read from the sources that their presets name."""

from collections.abc import Callable

import torch
from torch import Tensor

from ..convention import Convention
from ..kl import k3
from . import verl
from .metric import (
    Metric,
    clipped_branch_mean,
    corrected,
    entropy_mean,
    kl_loss,
    loss,
    policy_loss,
    surrogate_in,
    token_corrected,
    with_kl,
)  # fmt: skip
from .seen import FARTHEST, Seen

CANCELS = "The mean of log old - log policy: may be negative, and large moves in opposite directions cancel."
NO_DUAL_CLIP = "What dual clip cuts off is not in it."


def _mean_of(name: str) -> Callable[[Seen], float]:
    return lambda seen: seen.mean(seen.of_ratio(name))


def _extreme_of(name: str, pick: Callable[[Tensor], Tensor]) -> Callable[[Seen], float]:
    return lambda seen: seen.extreme(seen.of_ratio(name), pick)


# ---- slime: everything is aggregated like the loss -------------------------------------------------------------------
def slime_clipfrac(seen: Seen) -> float:
    cut = seen.of_ratio("ratio") != seen.of_ratio("clipped_ratio")
    return seen.as_loss(cut if seen.convention.surrogate == "cispo" else seen.clipped_branch)


def slime_ppo_kl(seen: Seen) -> float:
    """Of the row with the sequence ratio."""
    return seen.as_loss(-seen.of_ratio("log_ratio"))


def slime_entropy(seen: Seen) -> float:
    return seen.as_loss(seen.entropy)


def slime_difference(seen: Seen) -> float:
    return seen.as_loss(seen.gap("old", "sampler").abs())


def _raw_weight(seen: Seen) -> Tensor:
    return seen.gap("old", "sampler").exp()


def opsm_clipfrac(seen: Seen) -> float:
    moved = seen.row_means(seen.gap("old", "policy")) > seen.convention.off_policy_threshold
    return float((moved & (seen.of_first_token(seen.advantages) < 0)).double().mean())


def _masks_rows(convention: Convention) -> bool:
    """The count of rows is divided by rows only where the loss is a mean over rows."""
    return "on-policy-rows" in convention.gates and convention.aggregation == "seq-mean-token-mean"


SLIME = (
    Metric("train/loss", loss, "loss"),
    Metric("train/pg_loss", policy_loss, "policy_loss"),
    Metric("train/entropy_loss", slime_entropy, "entropy", "The entropy itself, as the mean of the rows' means by default."),
    Metric("train/pg_clipfrac", slime_clipfrac, "clip_fraction", NO_DUAL_CLIP + " A mean of the rows' means by default; with "
           "cispo it counts tokens that keep their gradient."),
    Metric("train/ppo_kl", slime_ppo_kl, "kl_old", CANCELS),
    Metric("train/kl_loss", kl_loss, "kl_ref", "With --use-unbiased-kl multiplied by the ratio.", with_kl),
    Metric("train/train_rollout_logprob_abs_diff", slime_difference, "sampler_gap_mean", "By default a mean of rows."),
    Metric("train/ois", lambda seen: seen.as_loss(seen.of_ratio("ratio")), "ratio_mean", "policy/old, although it is logged "
           "with the weights against the sampler.", corrected),
    Metric("train/tis", lambda seen: seen.as_loss(_raw_weight(seen)), "sampler_ratio_mean", "Before truncation.", corrected),
    Metric("train/tis_clipfrac", lambda seen: seen.as_loss(seen.sampler_weight() != _raw_weight(seen)), "bounded_fraction",
           "By default a mean of rows.", corrected),
    Metric("train/tis_abs", lambda seen: seen.as_loss((_raw_weight(seen) - 1).abs()), "sampler_gap_mean",
           "The mean distance of the weight from 1.", corrected),
    Metric("train/opsm_clipfrac", opsm_clipfrac, "dropped_fraction", "Share of rows, not of tokens.", _masks_rows),
)  # fmt: skip


# ---- AReaL: means over trained tokens --------------------------------------------------------------------------------
def areal_dual_clip(seen: Seen) -> float:
    return verl.over_ceiling(seen) if seen.convention.surrogate == "dual-clip" else 0.0


def _behave(values: Callable[[Seen], Tensor]) -> Callable[[Seen], float]:
    return lambda seen: seen.mean(values(seen), seen.sampler_weight() > 0)


UPDATE = "ppo_actor/update/"
KEPT = "Over the tokens that are not dropped."
AREAL = (
    Metric(UPDATE + "actor_loss/avg", lambda seen: seen.mean(seen.terms.token_loss), "policy_loss"),
    Metric(UPDATE + "importance_weight/avg", _mean_of("ratio"), "ratio_mean"),
    Metric(UPDATE + "importance_weight/min", _extreme_of("ratio", torch.min), "ratio_min"),
    Metric(UPDATE + "importance_weight/max", _extreme_of("ratio", torch.max), "ratio_max"),
    Metric(UPDATE + "approx_kl/avg", lambda seen: seen.mean(seen.gap("policy", "old")), "kl_old", "The mean of log policy - "
           "log old on tokens of the old policy: minus a KL, so usually negative."),
    Metric(UPDATE + "clip_ratio/avg", clipped_branch_mean, "clip_fraction", NO_DUAL_CLIP),
    Metric(UPDATE + "dual_clip_ratio/avg", areal_dual_clip, "clip_fraction_negative", "Only what dual clip cuts off."),
    Metric(UPDATE + "entropy/avg", entropy_mean, "entropy"),
    Metric(UPDATE + "behave_imp_weight/avg", _behave(lambda seen: seen.sampler_weight()), "sampler_ratio_mean", KEPT,
           token_corrected),
    Metric(UPDATE + "behave_approx_kl/avg", _behave(lambda seen: seen.gap("old", "sampler")), "kl_sampler_old",
           "The mean of log old - log sampler: minus a KL. " + KEPT, token_corrected),
)  # fmt: skip


# ---- NeMo-RL ---------------------------------------------------------------------------------------------------------
def nemo_kl(seen: Seen) -> float:
    return kl_loss(seen) if with_kl(seen.convention) else 0.0


def nemo_entropy(seen: Seen) -> float:
    return -seen.mean(seen.gap("policy", "sampler").exp() * seen.policy)


def js_divergence(seen: Seen) -> float:
    old, sampler = seen.logprobs("old"), seen.logprobs("sampler")
    mixture = torch.logaddexp(old, sampler) - torch.log(torch.tensor(2.0, dtype=old.dtype))
    return seen.mean((k3(mixture - old) + k3(mixture - sampler)) / 2)


def sampling_importance_ratio(seen: Seen) -> float:
    """One weight a row with the sequence ratio."""
    gap = seen.gap("old", "sampler")
    if seen.convention.ratio != "sequence":
        return seen.mean(gap.exp())
    return float(gap.sum(1).clamp(-FARTHEST, FARTHEST).exp().mean())


ONE_SIDED = "An estimate on the sampled tokens alone."
NEMO = (
    Metric("train/loss", loss, "loss"),
    Metric("train/probs_ratio", _mean_of("ratio"), "ratio_mean"),
    Metric("train/probs_ratio_min", _extreme_of("ratio", torch.min), "ratio_min"),
    Metric("train/probs_ratio_max", _extreme_of("ratio", torch.max), "ratio_max"),
    Metric("train/probs_ratio_clamped", _mean_of("clipped_ratio"), "ratio_mean", "After clamping on both sides, whatever the "
           "sign of A: not what the loss uses."),
    Metric("train/probs_ratio_clamped_min", _extreme_of("clipped_ratio", torch.min), "ratio_min", "Never below the bound."),
    Metric("train/probs_ratio_clamped_max", _extreme_of("clipped_ratio", torch.max), "ratio_max", "Never above the bound."),
    Metric("train/kl_penalty", nemo_kl, "kl_ref", "Logged as 0 where the KL is not in the loss, however large it is."),
    Metric("train/token_mult_prob_error", lambda seen: seen.mean(seen.gap("old", "sampler").abs().exp()), "sampler_gap_mean",
           "The mean of the larger of old/sampler and sampler/old: 1 at best."),
    Metric("train/gen_kl_error", lambda seen: seen.mean(seen.k3("sampler", "old")), "kl_sampler_old"),
    Metric("train/policy_kl_error", lambda seen: seen.mean(seen.k3("old", "sampler")), "kl_sampler_old", "KL(old || sampler), "
           "estimated on tokens that the sampler drew, not old: biased."),
    Metric("train/js_divergence_error", js_divergence, "kl_sampler_old", "Both halves estimated on the sampler's tokens."),
    Metric("train/sampling_importance_ratio", sampling_importance_ratio, "sampler_ratio_mean", "One value a row with the "
           "sequence ratio, the product over its tokens."),
    Metric("train/approx_entropy", nemo_entropy, "entropy", "-policy/sampler · log policy of the sampled tokens: no sum over "
           "the vocabulary, and noisy where the two are far apart."),
)  # fmt: skip


# ---- prime-rl: a mean over the samples of their means ----------------------------------------------------------------
def _mismatch(seen: Seen) -> Tensor:
    return seen.k3("sampler", "policy")


def masked_mismatch(seen: Seen) -> float:
    return seen.mean_of_rows(_mismatch(seen), seen.terms.is_clipped)


def unmasked_mismatch(seen: Seen) -> float:
    return seen.mean_of_rows(_mismatch(seen), ~seen.terms.is_clipped)


def _masked(sign: int) -> Callable[[Seen], float]:
    return lambda seen: seen.mean_of_rows(seen.terms.is_clipped & (seen.advantages * sign > 0))


ROWS = "A mean over samples of each one's mean; samples without such a token count as 0."
PRIME = (
    Metric("mismatch_kl/all/mean", lambda seen: seen.mean(_mismatch(seen)), "kl_sampler"),
    Metric("masked_mismatch_kl/mean", masked_mismatch, "kl_sampler", "Over dropped tokens. " + ROWS),
    Metric("unmasked_mismatch_kl/mean", unmasked_mismatch, "kl_sampler", "Over the tokens that stay. " + ROWS),
    Metric("is_masked/mean", lambda seen: seen.mean_of_rows(seen.terms.is_clipped), "clip_fraction", ROWS),
    Metric("is_masked_low/mean", _masked(-1), "clip_fraction_negative", ROWS),
    Metric("is_masked_high/mean", _masked(1), "clip_fraction_positive", ROWS),
    Metric("entropy/all/mean", entropy_mean, "entropy"),
)


# ---- SkyRL -----------------------------------------------------------------------------------------------------------
def skyrl_entropy(seen: Seen) -> float:
    seen.given("entropy")
    return float(seen.terms.entropy_loss)


def _policy_gap(pick: Callable[[Tensor], Tensor]) -> Callable[[Seen], float]:
    """Over all slots of the completions, where padding holds 0."""
    return lambda seen: float(pick(seen.cleared(seen.gap("policy", "sampler").abs())))


GAP = "policy/minibatch_rollout_logprobs_abs_diff_"
SKYRL = (
    Metric("policy/final_loss", loss, "loss"),
    Metric("policy/policy_loss", policy_loss, "policy_loss"),
    Metric("policy/policy_entropy", skyrl_entropy, "entropy"),
    Metric("policy/policy_kl", kl_loss, "kl_ref", "The mean of the rows' means, clamped to 10.", with_kl),
    Metric("policy/loss_metrics/clip_ratio", clipped_branch_mean, "clip_fraction", NO_DUAL_CLIP,
           surrogate_in("min-clip", "dual-clip")),
    Metric(GAP + "mean", lambda seen: seen.mean(seen.gap("policy", "sampler").abs()), "policy_gap_mean"),
    Metric(GAP + "max", _policy_gap(torch.max), "policy_gap_max"),
    Metric(GAP + "min", _policy_gap(torch.min), "policy_gap_min", "Padding takes part as 0: it is 0 wherever there is any."),
)  # fmt: skip


# ---- tinker-cookbook -------------------------------------------------------------------------------------------------
TINKER = (
    Metric("optim/kl_sample_train_v1", lambda seen: seen.mean(seen.gap("sampler", "policy")), "kl_sampler", "The mean of log "
           "sampler - log policy, k1: may be negative."),
    Metric("optim/kl_sample_train_v2", lambda seen: seen.mean(seen.gap("sampler", "policy").square() / 2), "kl_sampler", "k2: "
           "never negative, biased where the two are far apart."),
    Metric("optim/entropy", lambda seen: -seen.mean(seen.logprobs("sampler")), "entropy", "Minus the mean log-prob that the "
           "sampler gave its own tokens: the sampler's entropy, not the policy's, and an estimate."),
)  # fmt: skip
