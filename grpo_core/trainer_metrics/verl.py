"""What verl 0.9.1 logs (verl/workers/utils/losses.py and trainer/ppo/core_algos.py)."""

from collections.abc import Callable

from torch import Tensor

from ..convention import Convention
from .metric import Metric, clipped_branch_mean, kl_loss, policy_loss, surrogate_in, with_kl
from .seen import FARTHEST, Seen


# ---- pg_clipfrac: each loss_mode has its own -------------------------------------------------------------------------
def nothing(seen: Seen) -> float:
    return 0.0


def beyond_bounds(seen: Seen) -> float:
    """The ratio is clipped, whatever the sign of A (cispo)."""
    return seen.mean(seen.of_ratio("ratio") != seen.of_ratio("clipped_ratio"))


def left_out(seen: Seen) -> float:
    """The probability moved too far (dppo)."""
    return seen.mean(seen.terms.is_clipped)


def drawn(seen: Seen) -> float:
    """The few tokens that the draw took out; those that the clip takes are not among them (clip_cov)."""
    return seen.mean(seen.terms.is_clipped & ~seen.clipped_branch)


def _far_log_ratio(seen: Seen) -> Tensor:
    log_ratio = seen.of_ratio("log_ratio")
    return log_ratio != log_ratio.clamp(-seen.convention.clip_low, seen.convention.clip_high)


def far_positive(seen: Seen) -> float:
    """The log-ratio is out of either bound and A > 0 (geo_mean)."""
    return seen.mean(_far_log_ratio(seen) & (seen.advantages > 0))


def far_negative(seen: Seen) -> float:
    return seen.mean(_far_log_ratio(seen) & (seen.advantages < 0))


def over_ceiling(seen: Seen) -> float:
    return seen.mean(seen.over_ceiling)


def truncated_ratio(seen: Seen) -> float:
    """The ratio is above clip_ratio_c on a token that stays (dppo)."""
    return seen.mean((seen.of_ratio("ratio") > seen.convention.dual_clip) & ~seen.terms.is_clipped)


CLIPFRAC: dict[str, Callable[[Seen], float]] = {
    "dual-clip": clipped_branch_mean, "min-clip": clipped_branch_mean, "cispo": beyond_bounds, "sapo": nothing,
    "dppo-tv": left_out, "dppo-kl": left_out, "geometric-mean": far_positive, "clip-cov": drawn,
}  # fmt: skip
CLIPFRAC_LOWER: dict[str, Callable[[Seen], float]] = {
    "dual-clip": over_ceiling, "min-clip": nothing, "cispo": nothing, "sapo": nothing, "dppo-tv": truncated_ratio,
    "dppo-kl": truncated_ratio, "geometric-mean": far_negative,
}  # fmt: skip
TOKEN_MEAN_ALL_THE_SAME = ("sapo", "geometric-mean")  # fix the policy part's aggregation; the entropy keeps loss_agg_mode


def pg_clipfrac(seen: Seen) -> float:
    return CLIPFRAC[seen.convention.surrogate](seen)


def pg_clipfrac_lower(seen: Seen) -> float:
    return CLIPFRAC_LOWER[seen.convention.surrogate](seen)


def _moved_back(seen: Seen) -> Tensor:
    """log old - log policy per token, within the loss's own bound; gspo's is for the row's ratio alone."""
    bound = seen.convention.log_ratio_bound if seen.convention.ratio == "token" else FARTHEST
    return seen.gap("old", "policy").clamp(-bound, bound)


def ppo_kl(seen: Seen) -> float:
    return seen.mean(_moved_back(seen))


def ppo_kl_abs(seen: Seen) -> float:
    return seen.mean(_moved_back(seen).abs())


def entropy_loss(seen: Seen) -> float:
    entropy = seen.entropy
    if seen.convention.surrogate in TOKEN_MEAN_ALL_THE_SAME:
        return seen.mean(entropy)
    return float(seen.terms.entropy_loss)


def _logs_ppo_kl(convention: Convention) -> bool:
    return convention.surrogate not in ("log-prob", "kl-cov")


VERL = (
    Metric("actor/pg_loss", policy_loss, "policy_loss"),
    Metric("actor/pg_clipfrac", pg_clipfrac, "clip_fraction", "Leaves out what dual clip cuts off, which has no gradient "
           "either. Cispo counts every clipped weight though none loses its gradient; geo_mean counts A > 0 only; clip_cov "
           "only what it drew.", surrogate_in(*CLIPFRAC)),
    Metric("actor/pg_clipfrac_lower", pg_clipfrac_lower, "clip_fraction_negative", "Only what dual clip cuts off. "
           "In dppo those whose weight is truncated (they keep a gradient), in geo_mean those with A < 0.",
           surrogate_in(*CLIPFRAC_LOWER)),
    Metric("actor/ppo_kl", ppo_kl, "kl_old", "The mean of log old - log policy: may be negative, and large moves in "
           "opposite directions cancel.", _logs_ppo_kl),
    Metric("actor/ppo_kl", ppo_kl_abs, "kl_old", "The mean absolute log-ratio in this loss_mode: not a KL.",
           surrogate_in("kl-cov")),
    Metric("actor/kl_loss", kl_loss, "kl_ref", "Clamped, and aggregated like the loss: a sum where that is one.", with_kl),
    Metric("actor/entropy_loss", entropy_loss, "entropy", "The entropy itself, not a loss, aggregated like the loss."),
)  # fmt: skip
