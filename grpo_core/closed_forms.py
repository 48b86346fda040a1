"""Gradients written out: what autograd must return, for lessons and checks. Training never calls them.

Each token's loss moves with its log-prob in two ways: through the ratio, and directly (where the surrogate is a weight
times the log-prob). `SURROGATE_SLOPE` and `KL_GRADIENT_SLOPE` hold both derivatives per token; the ratio's own averaging over a
row or a turn is linear, so its transpose carries the first back to the tokens.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from .kl import KL
from .loss import RATIO, times
from .types import LossTerms, StepTrace

Slopes = tuple[Tensor, Tensor]  # d token_loss / d log_ratio, d token_loss / d log-prob beside it


# ---- the policy part: terms, advantages [B T] and settings -> slopes ------------------------------------------------------
def _clipped_ratio(terms: LossTerms, advantages: Tensor, config) -> Slopes:
    """-A · ratio, and 0 where clipped."""
    slope = torch.where(terms.is_clipped, 0.0, -advantages * terms.ratio)
    return slope, torch.zeros_like(slope)


def _soft_gate(terms: LossTerms, advantages: Tensor, config) -> Slopes:
    """-A · 4 · s · (1 - s) · ratio with s = sigmoid(tau · (ratio - 1))."""
    positive, other = (terms.ratio.new_tensor(value) for value in config.sapo_temperatures)
    s = torch.sigmoid(torch.where(advantages > 0, positive, other) * (terms.ratio - 1))
    slope = -advantages * 4 * s * (1 - s) * terms.ratio
    return slope, torch.zeros_like(slope)


def _weighted_logprob(weight):
    """-A · weight, the weight a constant."""

    def slopes(terms: LossTerms, advantages: Tensor, config) -> Slopes:
        slope = -advantages * weight(terms)
        return torch.zeros_like(slope), slope

    return slopes


def _quadratic(terms: LossTerms, advantages: Tensor, config) -> Slopes:
    """coef · log ratio through the ratio, -A directly."""
    return config.quadratic_coef * terms.log_ratio, -advantages


SURROGATE_SLOPE = {
    **dict.fromkeys(("min-clip", "dual-clip", "two-sided", "none", "clip-cov", "dppo-ratio"), _clipped_ratio),
    "sapo": _soft_gate,
    "log-prob": _weighted_logprob(lambda terms: torch.ones_like(terms.ratio)),
    "cispo": _weighted_logprob(lambda terms: terms.clipped_ratio),
    "tis": _weighted_logprob(lambda terms: terms.ratio.clamp(max=1.0)),
    "quadratic": _quadratic,
}

# ---- the KL: x = policy - reference log-probs -> d estimate / d x ------------------------------------------------------------
KL_SLOPE = {
    "k1": torch.ones_like,
    "k2": lambda x: x,
    "k3": lambda x: -torch.expm1(-x),
    "abs": torch.sign,
}


# value, its slope, x, ratio, and policy/sampler with its slope -> slopes, and what kl_output_bound is put on
KL_GRADIENT_SLOPE = {
    "plain": lambda value, slope, x, ratio, sampled: ((0 * slope, slope), value),
    "times-ratio": lambda value, slope, x, ratio, sampled: ((ratio * value, ratio * slope), ratio * value),
    "straight-through": lambda value, slope, x, ratio, sampled: ((0 * x, x), 0 * x),
    "weighted-straight-through": lambda value, slope, x, ratio, sampled: ((0 * x, ratio.clamp(max=10.0) * x), 0 * x),
    "score": lambda value, slope, x, ratio, sampled: ((0 * slope, value + slope), value),
    "times-sampler-ratio": lambda value, slope, x, ratio, sampled: (
        (0 * slope, sampled[1] * value + sampled[0] * slope), sampled[0] * value
    ),
}  # fmt: skip


def _kl_slopes(trace: StepTrace, terms: LossTerms) -> Slopes:
    mask, config = trace.batch.trained_mask(), trace.recipe
    ref, sampler = trace.known(trace.ref_logprobs), trace.known(trace.batch.sampler_logprobs)
    against = {"ref": ref, "sampler": sampler}[config.kl_against]
    x = torch.where(mask, terms.policy_logprobs - against, 0.0)
    apart = torch.where(mask, terms.policy_logprobs - sampler, 0.0)
    sampled = apart.clamp(-80.0, 80.0).exp()
    sampled = sampled, torch.where(apart.abs() <= 80.0, sampled, 0.0)
    bounded = x.clamp(-config.kl_input_bound, config.kl_input_bound)
    value, slope = KL[config.kl_estimator](bounded), KL_SLOPE[config.kl_estimator](bounded)
    inside = mask & (x.abs() <= config.kl_input_bound)
    slope, straight = torch.where(inside, slope, 0.0), torch.where(inside, bounded, 0.0)
    slopes, size = KL_GRADIENT_SLOPE[config.kl_gradient](value, slope, straight, terms.ratio, sampled)
    free = size.abs() <= (config.kl_output_bound or torch.inf)
    return torch.where(free, slopes[0], 0.0), torch.where(free, slopes[1], 0.0)


def _to_tokens(through_ratio: Tensor, trace: StepTrace, terms: LossTerms) -> Tensor:
    """d / d log_ratio -> d / d log-prob: each token's share of the ratio that it is averaged into."""
    bound, mask = trace.recipe.log_ratio_bound, trace.batch.trained_mask()
    difference = torch.zeros_like(through_ratio).requires_grad_()
    log_ratio = RATIO[trace.recipe.ratio](difference, mask)
    live = torch.where(mask & (terms.log_ratio.abs() < bound), through_ratio, 0.0)
    return torch.autograd.grad(log_ratio, difference, live)[0]


def policy_logprob_grad(trace: StepTrace, update: int) -> Float[Tensor, "B T"] | None:
    """d policy_loss / d log-prob written out; None where no closed form is written for the surrogate."""
    terms, mask = trace.updates[update].terms, trace.batch.trained_mask()
    slopes = SURROGATE_SLOPE.get(trace.recipe.surrogate)
    if slopes is None:
        return None
    advantages = torch.where(mask, trace.token_advantages, 0.0)
    factor = torch.where(mask, terms.token_weight * terms.correction, 0.0)
    through, direct = slopes(terms, advantages, trace.recipe)
    return _to_tokens(factor * through, trace, terms) + factor * direct


def kl_logprob_grad(trace: StepTrace, update: int) -> Float[Tensor, "B T"]:
    """beta · d kl_loss / d log-prob written out."""
    terms, beta = trace.updates[update].terms, trace.recipe.beta
    through, direct = _kl_slopes(trace, terms)
    through, direct = times(beta, terms.kl_weight * through), times(beta, terms.kl_weight * direct)
    return _to_tokens(through, trace, terms) + torch.where(trace.batch.trained_mask(), direct, 0.0)


def closed_form_logprob_grad(trace: StepTrace, update: int) -> Float[Tensor, "B T"] | None:
    """d loss / d log-prob written out, entropy bonus left out; None where none is written for the surrogate."""
    policy = policy_logprob_grad(trace, update)
    return None if policy is None else policy + kl_logprob_grad(trace, update)


def closed_form_logit_grad(row, logprob_grad: Tensor, temperature: float) -> Float[Tensor, " V"]:
    """(one-hot of the sampled token - probabilities) · d loss/d log-prob / T, of an `explain.VocabularyRow`.

    An entropy bonus adds -p · (log p + entropy) · d loss/d entropy / T.
    """
    one_hot = torch.zeros_like(row.probs)
    one_hot[row.sampled_id] = 1.0
    pull = (one_hot - row.probs) * logprob_grad
    bonus = -row.probs * (row.logprobs + row.entropy)
    return (pull + times(row.entropy_grad, bonus)) / temperature
