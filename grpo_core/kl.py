"""Per-token estimators of KL(policy || reference), from the log-probs of the sampled token alone.

With x = policy_logprobs - ref_logprobs on a token sampled from the policy (Schulman, "Approximating KL Divergence", 2020):
k1 = x is unbiased and may be negative, k2 = x^2/2 is biased and never negative, k3 = exp(-x) + x - 1 is unbiased and never
negative (GRPO, DeepSeekMath eq. 4). None clamps. `exact_kl` is what they estimate: the sum over the vocabulary.
"""

import torch
from jaxtyping import Float
from torch import Tensor


def k1(policy_logprobs: Float[Tensor, "..."], ref_logprobs: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    return policy_logprobs - ref_logprobs


def k2(policy_logprobs: Float[Tensor, "..."], ref_logprobs: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    return (policy_logprobs - ref_logprobs).square() / 2


def k3(policy_logprobs: Float[Tensor, "..."], ref_logprobs: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    difference = ref_logprobs - policy_logprobs
    return difference.expm1() - difference  # expm1: near 0 the 1 would eat the digits that matter


def absolute(policy_logprobs: Float[Tensor, "..."], ref_logprobs: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    return (policy_logprobs - ref_logprobs).abs()


KL = {"k3": k3, "k1": k1, "k2": k2, "abs": absolute}


def exact_kl(policy_logprobs: Float[Tensor, "*N V"], ref_logprobs: Float[Tensor, "*N V"]) -> Float[Tensor, "*N"]:
    """KL(policy || reference) of whole rows of log-probs: sum_v p_v (log p_v - log q_v), in nats; p_v = 0 adds 0."""
    terms = policy_logprobs.exp() * (policy_logprobs - ref_logprobs)
    return torch.where(policy_logprobs > -torch.inf, terms, 0.0).sum(-1)
