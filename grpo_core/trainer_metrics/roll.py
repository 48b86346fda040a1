"""What ROLL 0.3.0 logs (roll/pipeline/rlvr/actor_worker.py, actor_pg_worker.py), and the earlier one that the seed document
explains. `@sum` and its like are part of the logged name: they say how micro-batches are joined.

Several of these are computed without a mask. Log-probs are 0 in prompt and padding there, so the ratio is 1 and nothing is
out of bounds; but a sequence ratio is written to every position of its row.
"""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from .metric import Metric, loss, policy_loss, surrogate_in
from .seen import Seen

LOWEST = 1e10  # what ratio_min sees in masked slots


# ---- ratio against the bounds, whatever the sign of A ----------------------------------------------------------------
def low(seen: Seen) -> Tensor:
    return seen.of_ratio("ratio") < 1 - seen.convention.clip_low


def high(seen: Seen) -> Tensor:
    return seen.of_ratio("ratio") > 1 + seen.convention.clip_high


def outside(seen: Seen) -> Tensor:
    return low(seen) | high(seen)


def positions(seen: Seen, flags: Tensor) -> float:
    """How many positions of the whole rows have it."""
    if seen.convention.ratio == "sequence":
        return float(seen.of_first_token(flags).sum()) * seen.width
    return float(seen.cleared(flags).sum())


def per_token(flags: Callable[[Seen], Tensor]) -> Callable[[Seen], float]:
    """All positions that have it / trained tokens (ROLL's token-mean, which applies no mask)."""
    return lambda seen: positions(seen, flags(seen)) / max(int(seen.mask.sum()), 1)


def per_position(flags: Callable[[Seen], Tensor]) -> Callable[[Seen], float]:
    """All positions that have it / all positions: a plain mean."""
    return lambda seen: positions(seen, flags(seen)) / (len(seen.mask) * seen.width)


def truncated(seen: Seen) -> Tensor:
    """tis and topr truncate the weight to 1."""
    return seen.of_ratio("ratio") > 1


def truncated_failures(seen: Seen) -> Tensor:
    """In rows without a reward above 0."""
    return truncated(seen) & ~(seen.rewards().nan_to_num(0.0) > 0).unsqueeze(1)


# ---- means over the rows that have tokens ----------------------------------------------------------------------------
def over_valid_rows(seen: Seen, values: Tensor) -> float:
    return float(seen.row_means(values).sum() / seen.mask.any(1).sum().clamp(min=1))


def ratio_mean(seen: Seen) -> float:
    return over_valid_rows(seen, seen.of_ratio("ratio"))


def ratio_max(seen: Seen) -> float:
    return float(seen.cleared(seen.of_ratio("ratio")).max())


def ratio_min(seen: Seen) -> float:
    return float(torch.where(seen.mask, seen.of_ratio("ratio"), LOWEST).min())


def tis_ratio_mean(seen: Seen) -> float:
    return over_valid_rows(seen, seen.of_ratio("ratio").clamp(0.0, 1.0))


def clipfrac(seen: Seen) -> float:
    return seen.as_loss(seen.clipped_branch)


def kl_loss(seen: Seen) -> float:
    """k3 against the reference, clamped to 10, logged with and without use_kl_loss."""
    return seen.as_loss(seen.k3("policy", "ref").clamp(-10.0, 10.0))


def approxkl(seen: Seen) -> float:
    return seen.as_loss(seen.gap("policy", "old").square() / 2)


def policykl(seen: Seen) -> float:
    return seen.as_loss(seen.gap("policy", "old"))


ANY_SIGN = "Ratios outside the bounds whatever the sign of A: most of these tokens keep their gradient. "
UNMASKED = "A sequence ratio is counted at every position, padding and prompt included, and divided by tokens: above 1 then."
PLAIN = "A plain mean over all positions, prompt and padding included: the longer the prompt, the smaller the number."
AGGREGATED = "Aggregated like the loss: a sum over tokens in the sum modes, not a mean."
BACKWARDS = "The mean of log policy - log old on tokens of the old policy: minus a KL, so usually negative. " + AGGREGATED
CLIPS = surrogate_in("min-clip", "dual-clip")

COMMON = (
    Metric("actor/ratio_mean@sum", ratio_mean, "ratio_mean", "The mean of the rows' means: a token of a short completion "
           "counts more."),
    Metric("actor/ratio_max@max", ratio_max, "ratio_max"),
    Metric("actor/ratio_min@min", ratio_min, "ratio_min", "1e10 where nothing is trained."),
    Metric("actor/pg_loss@sum", policy_loss, "policy_loss"),
    Metric("actor/kl_loss@sum", kl_loss, "kl_ref", "Always k3, clamped to 10, and logged even where the KL is not in the loss. "
           + AGGREGATED),
    Metric("actor/total_loss@sum", loss, "loss"),
    Metric("actor/approxkl@sum", approxkl, "kl_old", "Half the squared log-ratio, k2. " + AGGREGATED),
    Metric("actor/policykl@sum", policykl, "kl_old", BACKWARDS),
)  # fmt: skip
RATIO_CLIPFRACS = (
    ("actor/ppo_ratio_high_clipfrac", high, "clip_fraction_positive"),
    ("actor/ppo_ratio_low_clipfrac", low, "clip_fraction_negative"),
    ("actor/ppo_ratio_clipfrac", outside, "clip_fraction"),
)
CLIPFRAC = Metric("actor/clipfrac@sum", clipfrac, "clip_fraction", "What dual clip cuts off is not in it. " + AGGREGATED, CLIPS)
TIS = surrogate_in("tis")

ROLL = (
    *(Metric(name + "@sum", per_token(flags), honest, ANY_SIGN + UNMASKED, CLIPS) for name, flags, honest in RATIO_CLIPFRACS),
    CLIPFRAC,
    *COMMON,
    Metric("actor/tis_upper_clipfrac", per_position(truncated), "clip_fraction", PLAIN, TIS),
    Metric("actor/tis_total_clipfrac", per_position(truncated), "clip_fraction", PLAIN, TIS),
    Metric("actor/tis_clipped_ratio_mean@sum", tis_ratio_mean, "ratio_mean", "A mean of rows, after truncation.", TIS),
    Metric("actor/topr_negative_total_clipfrac", per_position(truncated_failures), "clip_fraction", PLAIN,
           surrogate_in("topr")),
    *(
        Metric(f"actor/cispo_cispo_{name}_clipfrac", per_position(flags), "clip_fraction",
               PLAIN + " None of these tokens loses its gradient.", surrogate_in("cispo"))
        for name, flags in (("lower", low), ("upper", high), ("total", outside))
    ),
)  # fmt: skip


def ratio_mean_of_rows(seen: Seen) -> float:
    return seen.mean_of_rows(seen.of_ratio("ratio"))


# The earlier ROLL: names without a suffix, and plain means where today's divides by tokens or by rows that have any.
SEED = (
    *(Metric(name, per_position(flags), honest, ANY_SIGN + PLAIN, CLIPS) for name, flags, honest in RATIO_CLIPFRACS),
    Metric("actor/ratio_mean", ratio_mean_of_rows, "ratio_mean", "The mean of the rows' means; an empty row counts as 0."),
    *(replace(row, name=row.name.split("@")[0]) for row in (*COMMON[1:], CLIPFRAC)),
)
