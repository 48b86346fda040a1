"""The GRPO loss as its named intermediates: `policy_loss` returns `LossTerms`, and nothing else ever computes them.

A variant is one row out of each table: how the ratio is taken (`RATIO`), what is maximised (`SURROGATE`), how the KL is
estimated (`kl.KL`) and how much each token weighs (`AGGREGATION`). Whatever is masked is taken out before the first
operation, so that a NaN or 1e6 in a padding slot reaches neither value nor gradient.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from .kl import KL
from .types import LossTerms


@dataclass(frozen=True, kw_only=True)
class LossConfig:
    """Settings of the loss. Defaults: GRPO as in DeepSeekMath (arXiv 2402.03300), eq. 3."""

    ratio: str = "token"
    surrogate: str = "min-clip"
    clip_low: float = 0.2  # the ratio is clipped to 1 - clip_low … 1 + clip_high
    clip_high: float = 0.2
    dual_clip: float = 3.0
    kl_estimator: str = "k3"
    beta: float = 0.04
    aggregation: str = "seq-mean-token-mean"
    entropy_coef: float = 0.0
    max_completion_length: int = 16  # the constant of the aggregation `dr_grpo`


@dataclass(frozen=True)
class Totals:
    """Denominators over all micro-batches and ranks that one optimizer step sums. Default: this batch alone."""

    rows: int | Tensor
    tokens: int | Tensor


# ---- ratio: [B T] log-probs -> [B T] log-ratio ---------------------------------------------------------------------------
def token_log_ratio(difference: Float[Tensor, "B T"], mask: Bool[Tensor, "B T"]) -> Float[Tensor, "B T"]:
    """log pi/pi_old of each token (PPO, GRPO)."""
    return difference


def sequence_log_ratio(difference: Float[Tensor, "B T"], mask: Bool[Tensor, "B T"]) -> Float[Tensor, "B T"]:
    """The row's mean log-ratio, on each of its tokens (GSPO, arXiv 2507.18071, eq. 7)."""
    trained = torch.where(mask, difference, 0.0)  # or a masked slot would get a share of the gradient
    mean = trained.sum(1, keepdim=True) / mask.sum(1, keepdim=True).clamp(min=1)
    return torch.where(mask, mean, 0.0)


RATIO = {"token": token_log_ratio, "sequence": sequence_log_ratio}


# ---- surrogate: -> (token loss, True where no gradient is left) ----------------------------------------------------------
def unclipped(terms: dict, config: LossConfig) -> tuple[Float[Tensor, "*B T"], Bool[Tensor, "*B T"]]:
    """-ratio · A, with no clip (the importance-weighted policy gradient)."""
    return -terms["surrogate"], torch.zeros_like(terms["surrogate"], dtype=torch.bool)


def min_clip(terms: dict, config: LossConfig) -> tuple[Float[Tensor, "*B T"], Bool[Tensor, "*B T"]]:
    """-min(ratio · A, clipped ratio · A) (PPO, arXiv 1707.06347, eq. 7; clip-higher is clip_high > clip_low: DAPO)."""
    ratio, advantages = terms["ratio"], terms["advantages"]
    too_high = (ratio > 1 + config.clip_high) & (advantages > 0)
    too_low = (ratio < 1 - config.clip_low) & (advantages < 0)
    return -torch.min(terms["surrogate"], terms["clipped_surrogate"]), too_high | too_low


def dual_clip(terms: dict, config: LossConfig) -> tuple[Float[Tensor, "*B T"], Bool[Tensor, "*B T"]]:
    """min-clip, and for A < 0 never above dual_clip · |A| (arXiv 1912.09729, eq. 5; on by default in verl with 3)."""
    token_loss, clipped = min_clip(terms, config)
    advantages = terms["advantages"]
    ceiling = -config.dual_clip * advantages
    capped = (advantages < 0) & (token_loss > ceiling)
    return torch.where(advantages < 0, torch.min(token_loss, ceiling), token_loss), clipped | capped


SURROGATE = {"min-clip": min_clip, "dual-clip": dual_clip, "none": unclipped}


# ---- aggregation: mask (as 0.0 and 1.0) -> the weight of each token's loss in the one loss -------------------------------
def seq_mean_token_mean(mask: Float[Tensor, "B T"], totals: Totals, config: LossConfig) -> Float[Tensor, "B T"]:
    """1 / (rows · tokens of the row): every completion counts the same (GRPO's paper, TRL `grpo`, ROLL)."""
    return mask / (totals.rows * mask.sum(1, keepdim=True).clamp(min=1))


def token_mean(mask: Float[Tensor, "B T"], totals: Totals, config: LossConfig) -> Float[Tensor, "B T"]:
    """1 / all tokens: every token counts the same (DAPO, TRL's default, verl's default)."""
    return mask / torch.as_tensor(totals.tokens).clamp(min=1)


def token_sum(mask: Float[Tensor, "B T"], totals: Totals, config: LossConfig) -> Float[Tensor, "B T"]:
    """1: the bare sum (tinker)."""
    return mask


def seq_mean_token_sum(mask: Float[Tensor, "B T"], totals: Totals, config: LossConfig) -> Float[Tensor, "B T"]:
    """1 / rows: sum over each completion's tokens, mean over completions."""
    return mask / totals.rows


def constant_length(mask: Float[Tensor, "B T"], totals: Totals, config: LossConfig) -> Float[Tensor, "B T"]:
    """1 / (rows · max_completion_length): no length enters the weight (Dr. GRPO, arXiv 2503.20783; TRL `dr_grpo`)."""
    return mask / (totals.rows * config.max_completion_length)


AGGREGATION = {
    "seq-mean-token-mean": seq_mean_token_mean,
    "token-mean": token_mean,
    "dr_grpo": constant_length,
    "seq-mean-token-sum": seq_mean_token_sum,
    "token-sum": token_sum,
}


def times(coefficient: float, part: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """coefficient · part; 0 switches the part off even where it has overflown (0 · inf is NaN)."""
    return coefficient * part if coefficient else torch.zeros_like(part)


def policy_loss(
    policy_logprobs: Float[Tensor, "B T"],
    old_logprobs: Float[Tensor, "B T"],
    ref_logprobs: Float[Tensor, "B T"],
    advantages: Float[Tensor, " B"] | Float[Tensor, "B T"],
    mask: Bool[Tensor, "B T"],
    entropy: Float[Tensor, "B T"],
    config: LossConfig,
    totals: Totals | None = None,
) -> LossTerms:
    """The loss of one batch, with every intermediate. Log-probs in nats; `advantages` is [B] or [B T].

    `totals` gives the denominators of the whole optimizer step where this batch is one of its micro-batches.
    """
    totals = totals or Totals(rows=mask.shape[0], tokens=mask.sum())
    advantages = advantages.unsqueeze(1).expand_as(mask) if advantages.dim() == 1 else advantages
    policy_logprobs, old_logprobs, ref_logprobs, advantages, entropy = (
        torch.where(mask, tensor, 0.0) for tensor in (policy_logprobs, old_logprobs, ref_logprobs, advantages, entropy)
    )
    log_ratio = RATIO[config.ratio](policy_logprobs - old_logprobs, mask)
    ratio = torch.where(mask, log_ratio.exp(), 0.0)
    clipped_ratio = torch.where(mask, ratio.clamp(1 - config.clip_low, 1 + config.clip_high), 0.0)
    surrogate = ratio * advantages
    clipped_surrogate = clipped_ratio * advantages
    parts = {"ratio": ratio, "advantages": advantages, "surrogate": surrogate, "clipped_surrogate": clipped_surrogate}
    uncorrected_loss, is_clipped = SURROGATE[config.surrogate](parts, config)
    correction = torch.ones_like(ratio)
    token_loss = uncorrected_loss * correction
    token_weight = AGGREGATION[config.aggregation](mask.to(ratio.dtype), totals, config)
    policy_part = (token_weight * token_loss).sum()

    kl = KL[config.kl_estimator](policy_logprobs, ref_logprobs)
    kl_weight = token_weight
    kl_part = (kl_weight * kl).sum()
    entropy_weight = token_weight
    entropy_part = (entropy_weight * entropy).sum()
    loss = policy_part + times(config.beta, kl_part) - times(config.entropy_coef, entropy_part)
    return LossTerms(
        policy_logprobs=policy_logprobs, log_ratio=log_ratio, ratio=ratio, clipped_ratio=clipped_ratio,
        surrogate=surrogate, clipped_surrogate=clipped_surrogate, is_clipped=is_clipped, correction=correction,
        token_loss=token_loss, token_weight=token_weight, policy_loss=policy_part,
        kl=kl, kl_weight=kl_weight, kl_loss=kl_part,
        entropy=entropy, entropy_weight=entropy_weight, entropy_loss=entropy_part, loss=loss,
    )  # fmt: skip
