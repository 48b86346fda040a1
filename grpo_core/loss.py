"""The GRPO loss as its named intermediates: `policy_loss` returns `LossTerms`, and nothing else ever computes them.

A variant is one row out of each table: how the ratio is taken (`RATIO`), what is maximised (`surrogate.SURROGATE`), how the KL
is estimated (`kl.KL`, `kl.KL_GRADIENT`), what a token is multiplied with (`correction`) and how much it weighs
(`aggregation.AGGREGATION`). Whatever is masked is taken out before the first operation, so that a NaN or 1e6 in a padding slot
reaches neither value nor gradient.
"""

from collections.abc import Iterator

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from .aggregation import AGGREGATION, Totals
from .convention import LossConfig
from .correction import correction_of
from .kl import token_kl
from .surrogate import SURROGATE, Parts
from .types import LossTerms


# ---- ratio: [B T] log-prob differences -> [B T] log-ratio ----------------------------------------------------------------
def token_log_ratio(difference: Float[Tensor, "B T"], mask: Bool[Tensor, "B T"]) -> Float[Tensor, "B T"]:
    """log pi/pi_old of each token (PPO, GRPO)."""
    return difference


def sequence_log_ratio(difference: Float[Tensor, "B T"], mask: Bool[Tensor, "B T"]) -> Float[Tensor, "B T"]:
    """The row's mean log-ratio, on each of its tokens (GSPO, arXiv 2507.18071, eq. 7)."""
    trained = torch.where(mask, difference, 0.0)  # or a masked slot would get a share of the gradient
    mean = trained.sum(1, keepdim=True) / mask.sum(1, keepdim=True).clamp(min=1)
    return torch.where(mask, mean, 0.0)


def sequence_token_log_ratio(difference: Float[Tensor, "B T"], mask: Bool[Tensor, "B T"]) -> Float[Tensor, "B T"]:
    """The row's mean log-ratio as value, each token's own gradient (GSPO-token, eq. 14; verl's `gspo`)."""
    mean = sequence_log_ratio(difference, mask).detach()
    return mean + torch.where(mask, difference - difference.detach(), 0.0)


def segment_log_ratio(difference: Float[Tensor, "B T"], mask: Bool[Tensor, "B T"]) -> Float[Tensor, "B T"]:
    """The mean log-ratio of each unbroken run of trained tokens: one agent turn (ROLL's agentic `segment`)."""
    starts = mask & ~torch.nn.functional.pad(mask, (1, 0))[:, :-1]
    run = torch.where(mask, starts.cumsum(1), 0)  # 0 = masked, 1 = the row's first run, …
    runs = torch.zeros(mask.shape[0], mask.shape[1] + 1, dtype=difference.dtype, device=mask.device)
    sums = runs.scatter_add(1, run, torch.where(mask, difference, 0.0))
    counts = runs.scatter_add(1, run, mask.to(difference.dtype)).clamp(min=1)
    return torch.where(mask, (sums / counts).gather(1, run), 0.0)


RATIO = {
    "token": token_log_ratio, "sequence": sequence_log_ratio, "sequence-token": sequence_token_log_ratio,
    "segment": segment_log_ratio,
}  # fmt: skip


def times(coefficient: float, part: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """coefficient · part; 0 switches the part off even where it has overflown (0 · inf is NaN)."""
    return coefficient * part if coefficient else torch.zeros_like(part)


def policy_loss(
    policy_logprobs: Float[Tensor, "B T"], old_logprobs: Float[Tensor, "B T"], ref_logprobs: Float[Tensor, "B T"],
    advantages: Float[Tensor, " B"] | Float[Tensor, "B T"],
    mask: Bool[Tensor, "B T"],
    entropy: Float[Tensor, "B T"],
    config: LossConfig,
    totals: Totals | None = None,
    sampler_logprobs: Float[Tensor, "B T"] | None = None,
    rewards: Float[Tensor, " B"] | None = None,
) -> LossTerms:  # fmt: skip
    """The loss of one batch, with every intermediate. Log-probs in nats; `advantages` is [B] or [B T].

    `totals` gives the denominators of the whole optimizer step where this batch is one of its micro-batches.
    `sampler_logprobs` is needed where the config weighs against the sampler, `rewards` by the surrogate `topr`; raises
    ValueError where one is needed and missing.
    """
    sampler_logprobs, rewards = _optional(sampler_logprobs, rewards, old_logprobs, config)
    scored, old, ref, sampler, entropy = (
        torch.where(mask, values, 0.0) for values in (policy_logprobs, old_logprobs, ref_logprobs, sampler_logprobs, entropy)
    )
    policy = torch.where(mask, scored, 0.0)  # again: counted padding adds a constant, `scored` has no gradient there
    counted = torch.ones_like(mask) if config.count_padding else mask
    advantages = torch.where(counted, advantages.unsqueeze(1) if advantages.dim() == 1 else advantages, 0.0)
    denominator = {"old": old, "sampler": sampler}[config.ratio_against]
    log_ratio = RATIO[config.ratio](policy - denominator, mask).clamp(-config.log_ratio_bound, config.log_ratio_bound)
    ratio = torch.where(counted, log_ratio.exp(), 0.0)
    clipped_ratio = torch.where(counted, ratio.clamp(1 - config.clip_low, 1 + config.clip_high), 0.0)
    surrogate = ratio * advantages
    clipped_surrogate = clipped_ratio * advantages
    parts = Parts(mask, policy, denominator, old, sampler, entropy, rewards.unsqueeze(1).expand_as(mask), advantages,
                  log_ratio, ratio, clipped_ratio, surrogate, clipped_surrogate)  # fmt: skip
    uncorrected_loss, is_clipped = SURROGATE[config.surrogate](parts, config)
    correction = correction_of(parts, config)
    token_loss = uncorrected_loss * correction
    kl = token_kl(policy - {"ref": ref, "sampler": sampler}[config.kl_against], parts, config)
    token_weight, kl_weight, entropy_weight = token_weights(mask, ratio, totals or totals_of(mask, config), config)
    policy_part, kl_part, entropy_part = (
        (weight * values).sum() for weight, values in ((token_weight, token_loss), (kl_weight, kl), (entropy_weight, entropy))
    )
    loss = policy_part + times(config.beta, kl_part) - times(config.entropy_coef, entropy_part)
    return LossTerms(
        policy_logprobs=scored, log_ratio=log_ratio, ratio=ratio, clipped_ratio=clipped_ratio, surrogate=surrogate,
        clipped_surrogate=clipped_surrogate, is_clipped=is_clipped, correction=correction,
        token_loss=token_loss, token_weight=token_weight, policy_loss=policy_part, kl=kl, kl_weight=kl_weight,
        kl_loss=kl_part, entropy=entropy, entropy_weight=entropy_weight, entropy_loss=entropy_part, loss=loss,
    )  # fmt: skip


def _optional(
    sampler_logprobs: Tensor | None, rewards: Tensor | None, old_logprobs: Tensor, config: LossConfig
) -> tuple[Tensor, Tensor]:
    """The two as given; where nothing reads a missing one, any values will do."""
    if sampler_logprobs is None and reads_sampler(config):
        raise ValueError("sampler_logprobs: found none, needed by a ratio, correction, gate or KL against the sampler")
    if rewards is None and reads_rewards(config):
        raise ValueError(f"rewards: found none, needed by the surrogate {config.surrogate!r}")
    return (
        old_logprobs if sampler_logprobs is None else sampler_logprobs,
        torch.zeros_like(old_logprobs[:, 0]) if rewards is None else rewards,
    )


def token_weights(mask: Tensor, like: Tensor, totals: Totals, config: LossConfig) -> Iterator[Tensor]:
    """The weight matrices [B T] of the policy part, the KL and the entropy, in the dtype of `like`."""
    real = mask.to(like.dtype)
    for name in (config.aggregation, config.kl_aggregation, config.entropy_aggregation):
        yield AGGREGATION[config.aggregation if name == "same" else name](real, totals, config)


def totals_of(mask: Bool[Tensor, "B T"], config: LossConfig, width: int = 0, micro_batches: int = 1) -> Totals:
    """The denominators of a batch that is a whole optimizer step. `width`: scored positions of the whole row (S - 1)."""
    rows = mask.shape[0] if config.count_empty_rows else mask.any(1).sum().clamp(min=1)
    return Totals(rows=rows, tokens=mask.sum(), width=width, micro_batches=micro_batches)


def reads_sampler(config: LossConfig) -> bool:
    """Whether the loss needs the sampler's log-probs."""
    return (
        "sampler" in (config.ratio_against, config.kl_against if config.beta else "ref")
        or config.correction != "none" or "sampler-rows" in config.gates
        or (config.beta != 0 and config.kl_gradient == "times-sampler-ratio")
    )  # fmt: skip


def reads_rewards(config: LossConfig) -> bool:
    """Whether the loss itself needs the rows' rewards, beside their advantages."""
    return config.surrogate == "topr"
