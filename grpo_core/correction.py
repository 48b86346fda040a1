"""Weights that a token's policy loss is multiplied with: how far training is from the engine that sampled, and which tokens
are left out. All are constants: no gradient flows through them.

`CORRECTION` takes old/sampler per token, per row, or as the row's geometric mean; `BOUND` truncates it (TIS) or drops what is
out of bounds (IcePop). `GATE` keeps or drops tokens.
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from .convention import LossConfig
from .surrogate import Parts

Weight = Float[Tensor, "B T"]


# ---- log of old/sampler per token -> log of the weight -------------------------------------------------------------------
def token_weight(log_weight: Weight, mask: Bool[Tensor, "B T"]) -> Weight:
    """Each token its own."""
    return log_weight


def sequence_weight(log_weight: Weight, mask: Bool[Tensor, "B T"]) -> Weight:
    """The row's probability ratio, on each of its tokens."""
    return torch.where(mask, log_weight, 0.0).sum(1, keepdim=True).expand_as(log_weight)


def geometric_weight(log_weight: Weight, mask: Bool[Tensor, "B T"]) -> Weight:
    """The row's geometric mean, on each of its tokens."""
    mean = torch.where(mask, log_weight, 0.0).sum(1, keepdim=True) / mask.sum(1, keepdim=True).clamp(min=1)
    return mean.expand_as(log_weight)


CORRECTION = {"none": None, "token": token_weight, "sequence": sequence_weight, "geometric": geometric_weight}


# ---- weight -> weight within bounds ----------------------------------------------------------------------------------------
def truncate(weight: Weight, low: float, high: float) -> Weight:
    """Clamped to the bounds (TIS: truncated importance sampling)."""
    return weight.clamp(low, high)


def drop(weight: Weight, low: float, high: float) -> Weight:
    """0 outside the bounds (IcePop; TRL's *_mask modes)."""
    return torch.where((weight >= low) & (weight <= high), weight, 0.0)


BOUND = {"truncate": truncate, "drop": drop}


# ---- which tokens stay -------------------------------------------------------------------------------------------------------
def on_policy_rows(parts: Parts, config: LossConfig) -> Bool[Tensor, "B T"]:
    """Rows with A < 0 go where the policy has moved from old by more than off_policy_threshold nats a token
    (off-policy sequence masking, DeepSeek-V3.2; TRL without vLLM)."""
    return _close_enough(parts.old_logprobs, parts, config)


def sampler_rows(parts: Parts, config: LossConfig) -> Bool[Tensor, "B T"]:
    """The same, measured from the sampler (TRL with vLLM)."""
    return _close_enough(parts.sampler_logprobs, parts, config)


def _close_enough(logprobs: Weight, parts: Parts, config: LossConfig) -> Bool[Tensor, "B T"]:
    moved = torch.where(parts.mask, logprobs - parts.policy_logprobs.detach(), 0.0).sum(1, keepdim=True)
    mean = moved / parts.mask.sum(1, keepdim=True).clamp(min=1)
    return (parts.advantages >= 0) | (mean <= config.off_policy_threshold)


def top_entropy(parts: Parts, config: LossConfig) -> Bool[Tensor, "B T"]:
    """Only the entropy_quantile of tokens with the highest entropy (arXiv 2506.01939; TRL's top_entropy_quantile)."""
    entropy = parts.entropy.detach()
    rising = torch.where(parts.mask, entropy, torch.inf).flatten().sort().values  # fixed shapes: one graph for torch.compile
    rank = (parts.mask.sum().to(entropy) - 1).clamp(min=0) * (1 - config.entropy_quantile)
    below, above = rising.gather(0, torch.stack([rank.floor(), rank.ceil()]).long())
    return entropy >= torch.where(below == above, below, torch.lerp(below, above, rank - rank.floor()))  # inf - inf is NaN


GATE = {"on-policy-rows": on_policy_rows, "sampler-rows": sampler_rows, "top-entropy": top_entropy}


def correction_of(parts: Parts, config: LossConfig) -> Weight:
    """The product of the weight against the sampler and of the gates; detached, ones where there are none."""
    weight = torch.ones_like(parts.ratio)
    level = CORRECTION[config.correction]
    if level:
        log_weight = level(parts.old_logprobs - parts.sampler_logprobs, parts.mask).clamp(-80.0, 80.0)
        weight = BOUND[config.correction_bound](log_weight.exp(), config.correction_low, config.correction_high or torch.inf)
    for gate in config.gates:
        weight = torch.where(GATE[gate](parts, config), weight, 0.0)
    return torch.where(parts.mask, weight, 1.0).detach()
