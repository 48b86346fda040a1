"""Per-token estimators of KL(policy || reference), from the log-probs of the sampled token alone.

With x = policy_logprobs - ref_logprobs on a token sampled from the policy (Schulman, "Approximating KL Divergence", 2020):
k1 = x is unbiased and may be negative, k2 = x^2/2 is biased and never negative, k3 = exp(-x) + x - 1 is unbiased and never
negative (GRPO, DeepSeekMath eq. 4). `exact_kl` is what they estimate: the sum over the vocabulary.

An estimator's gradient is not an estimator of the KL's gradient: `KL_GRADIENT` holds what trainers do about it. With x the
gradient of k2, and 1 - exp(-x) that of k3, k3 + d k3/dx = x: multiplying k3 by a ratio of value 1 turns the one into the other.
"""

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from .convention import LossConfig
from .surrogate import Parts

Values = Float[Tensor, "..."]
Bound = Callable[[Tensor], Tensor]


def k1(x: Values) -> Values:
    return x


def k2(x: Values) -> Values:
    return x.square() / 2


def k3(x: Values) -> Values:
    return torch.expm1(-x) + x  # expm1: near 0 the 1 would eat the digits that matter


def absolute(x: Values) -> Values:
    return x.abs()


KL = {"k3": k3, "k1": k1, "k2": k2, "abs": absolute}


# ---- value and x -> the same value with the gradient that is wanted, its size bounded ------------------------------------
# A weight comes before the bound, as in slime and NeMo-RL; where only the gradient is exchanged, the bound is on the value.
def plain(value: Values, x: Values, parts: Parts, bound: Bound) -> Values:
    """The estimator's own gradient: 1 for k1, x for k2, 1 - exp(-x) for k3."""
    return bound(value)


def times_ratio(value: Values, x: Values, parts: Parts, bound: Bound) -> Values:
    """ratio · value: k3 then has the gradient ratio · x (TRL's use_bias_correction_kl, slime's --use-unbiased-kl)."""
    return bound(parts.ratio * value)


def straight_through(value: Values, x: Values, parts: Parts, bound: Bound) -> Values:
    """The value of the estimator, the gradient of k2: x (verl's estimators with a `+`)."""
    return bound(value).detach() + k2(x) - k2(x).detach()


def weighted_straight_through(value: Values, x: Values, parts: Parts, bound: Bound) -> Values:
    """The value of the estimator, the gradient min(ratio, 10) · x (OpenRLHF's unbiased_gradient)."""
    weight = parts.ratio.clamp(max=10.0).detach()
    return bound(value).detach() + weight * (k2(x) - k2(x).detach())


def score(value: Values, x: Values, parts: Parts, bound: Bound) -> Values:
    """value · exp(log p - its own value): k3 then has the gradient x (NeMo-RL's default)."""
    return bound(value * (parts.policy_logprobs - parts.policy_logprobs.detach()).exp())


def times_sampler_ratio(value: Values, x: Values, parts: Parts, bound: Bound) -> Values:
    """value · policy/sampler (NeMo-RL's use_on_policy_kl_approximation)."""
    return bound(value * (parts.policy_logprobs - parts.sampler_logprobs).clamp(-80.0, 80.0).exp())


KL_GRADIENT = {
    "plain": plain, "times-ratio": times_ratio, "straight-through": straight_through,
    "weighted-straight-through": weighted_straight_through, "score": score, "times-sampler-ratio": times_sampler_ratio,
}  # fmt: skip


def token_kl(x: Values, parts: Parts, config: LossConfig) -> Values:
    """The per-token KL of a convention: estimator, bounds and gradient. x = policy - reference log-probs."""
    x = x.clamp(-config.kl_input_bound, config.kl_input_bound)
    limit = config.kl_output_bound

    def bound(values: Values) -> Values:
        return values.clamp(-limit, limit) if limit else values

    return KL_GRADIENT[config.kl_gradient](KL[config.kl_estimator](x), x, parts, bound)


def exact_kl(policy_logprobs: Float[Tensor, "*N V"], ref_logprobs: Float[Tensor, "*N V"]) -> Float[Tensor, "*N"]:
    """KL(policy || reference) of whole rows of log-probs: sum_v p_v (log p_v - log q_v), in nats; p_v = 0 adds 0."""
    terms = policy_logprobs.exp() * (policy_logprobs - ref_logprobs)
    return torch.where(policy_logprobs > -torch.inf, terms, 0.0).sum(-1)
