"""What each token is asked for: ratio and advantage -> the token's loss, one small function per trainer's or paper's idea.

Three families: a ratio with the gradient in it, clipped somewhere (PPO, GRPO, GSPO, DAPO); a detached weight times the
log-prob (CISPO, TIS, VESPO, DPPO: REINFORCE with a weight); and what is neither. Each returns the token's loss and where the
clipping leaves no gradient.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from .convention import LossConfig


@dataclass(frozen=True)
class Parts:
    """What surrogates, corrections, gates and KL gradients may read; masked slots hold 0."""

    mask: Bool[Tensor, "*B T"]
    policy_logprobs: Float[Tensor, "*B T"]
    denominator: Float[Tensor, "*B T"]  # log-probs of the policy that the ratio divides by: old, or the sampler
    old_logprobs: Float[Tensor, "*B T"]
    sampler_logprobs: Float[Tensor, "*B T"]
    entropy: Float[Tensor, "*B T"]
    rewards: Float[Tensor, "*B T"]  # the row's, on each of its tokens
    advantages: Float[Tensor, "*B T"]
    log_ratio: Float[Tensor, "*B T"]
    ratio: Float[Tensor, "*B T"]
    clipped_ratio: Float[Tensor, "*B T"]
    surrogate: Float[Tensor, "*B T"]
    clipped_surrogate: Float[Tensor, "*B T"]

    @classmethod
    def of_ratio(cls, ratio: Tensor, advantages: Tensor, config: LossConfig) -> "Parts":
        """Tokens of which nothing is known but ratio and advantage: the old log-prob is 0, the reward the advantage."""
        nothing, log_ratio = torch.zeros_like(ratio), ratio.clamp(min=1e-12).log()
        clipped = ratio.clamp(1 - config.clip_low, 1 + config.clip_high)
        return cls(
            torch.ones_like(ratio, dtype=torch.bool), log_ratio, nothing, nothing, nothing, nothing, advantages, advantages,
            log_ratio, ratio, clipped, ratio * advantages, clipped * advantages,
        )  # fmt: skip


TokenLoss = tuple[Float[Tensor, "*B T"], Bool[Tensor, "*B T"]]


def _by_sign(condition: Tensor, true: float, false: float, like: Tensor) -> Tensor:
    """One of two constants per token, in the dtype of `like`."""
    return torch.where(condition, like.new_tensor(true), like.new_tensor(false))


# ---- a ratio with its gradient -------------------------------------------------------------------------------------------
def unclipped(parts: Parts, config: LossConfig) -> TokenLoss:
    """-ratio · A, with no clip (the importance-weighted policy gradient)."""
    return -parts.surrogate, torch.zeros_like(parts.mask)


def min_clip(parts: Parts, config: LossConfig) -> TokenLoss:
    """-min(ratio · A, clipped ratio · A) (PPO, arXiv 1707.06347, eq. 7; clip-higher is clip_high > clip_low: DAPO)."""
    too_high = (parts.ratio > 1 + config.clip_high) & (parts.advantages > 0)
    too_low = (parts.ratio < 1 - config.clip_low) & (parts.advantages < 0)
    return -torch.min(parts.surrogate, parts.clipped_surrogate), too_high | too_low


def dual_clip(parts: Parts, config: LossConfig) -> TokenLoss:
    """min-clip, and for A < 0 never above dual_clip · |A| (arXiv 1912.09729, eq. 5; on by default in verl with 3)."""
    token_loss, clipped = min_clip(parts, config)
    ceiling = -config.dual_clip * parts.advantages
    negative = parts.advantages < 0
    return torch.where(negative, torch.min(token_loss, ceiling), token_loss), clipped | (negative & (token_loss > ceiling))


def two_sided(parts: Parts, config: LossConfig) -> TokenLoss:
    """-min(min(ratio, dual_clip) · A, clipped ratio · A) (INTELLECT-2, arXiv 2505.07291; TRL's `delta`)."""
    capped = parts.ratio.clamp(max=config.dual_clip) * parts.advantages
    flat_from = max(config.dual_clip, 1 + config.clip_high)  # for A < 0 the clipped branch has a gradient up to here
    over = parts.ratio > _by_sign(parts.advantages > 0, config.dual_clip, flat_from, like=parts.ratio)
    _, clipped = min_clip(parts, config)
    return -torch.min(capped, parts.clipped_surrogate), clipped | (over & (parts.advantages != 0))


def sapo(parts: Parts, config: LossConfig) -> TokenLoss:
    """-(4 / tau) · sigmoid(tau · (ratio - 1)) · A: a soft gate in the place of the clip (SAPO, arXiv 2511.20347)."""
    tau = _by_sign(parts.advantages > 0, *config.sapo_temperatures, like=parts.ratio)
    gate = torch.sigmoid(tau * (parts.ratio - 1)) * 4 / tau
    return -gate * parts.advantages, torch.zeros_like(parts.mask)


def geometric_mean(parts: Parts, config: LossConfig) -> TokenLoss:
    """-A · the geometric mean of the row's ratios, each clipped to exp(±clip) on the side that A forbids (GMPO, 2507.20673)."""
    sign = parts.advantages.sign()
    clipped = parts.log_ratio.clamp(-config.clip_low, config.clip_high)
    kept = sign * torch.min(sign * parts.log_ratio, sign * clipped)
    mean = torch.where(parts.mask, kept, 0.0).sum(-1, keepdim=True) / parts.mask.sum(-1, keepdim=True).clamp(min=1)
    return torch.where(parts.mask, -parts.advantages * mean.exp(), 0.0), (kept != parts.log_ratio) & (sign != 0)


def clip_cov(parts: Parts, config: LossConfig) -> TokenLoss:
    """min-clip without a few tokens, drawn among those whose log-prob and advantage vary together (arXiv 2505.22617)."""
    token_loss, clipped = min_clip(parts, config)
    low, high = config.cov_bounds
    covariance = _covariance(parts)
    drawn = (parts.mask & ~clipped & (covariance > low) & (covariance < high)).nonzero()
    generator = torch.Generator().manual_seed(config.cov_seed)
    order = torch.randperm(len(drawn), generator=generator).to(drawn.device)
    chosen = drawn[order[: int(_share(parts, config))]]
    left_out = torch.zeros_like(parts.mask)
    left_out[chosen[:, 0], chosen[:, 1]] = True
    return torch.where(left_out, 0.0, token_loss), clipped | left_out


def kl_cov(parts: Parts, config: LossConfig) -> TokenLoss:
    """-ratio · A, plus cov_coef · |log ratio| on the tokens with the largest covariance (arXiv 2505.22617)."""
    covariance = torch.where(parts.mask, _covariance(parts), -torch.inf).flatten()
    falling = covariance.argsort(descending=True, stable=True)
    ranks = torch.arange(len(falling), device=falling.device)
    held = torch.zeros_like(falling, dtype=torch.bool).scatter(0, falling, ranks < _share(parts, config)).view_as(parts.mask)
    penalty = config.cov_coef * parts.log_ratio.abs()
    return -parts.surrogate + torch.where(held & parts.mask, penalty, 0.0), torch.zeros_like(parts.mask)


def _covariance(parts: Parts) -> Tensor:
    """(A - mean A) · (log p - mean log p), means over trained tokens; detached."""
    logprobs, count = parts.policy_logprobs.detach(), parts.mask.sum().clamp(min=1)
    advantages = torch.where(parts.mask, parts.advantages, 0.0)  # padding has one too where it is counted
    return (advantages - advantages.sum() / count) * (logprobs - logprobs.sum() / count)


def _share(parts: Parts, config: LossConfig) -> Tensor:
    """How many tokens cov_fraction of them are, rounded down, at least one. A tensor: one graph under torch.compile."""
    return (config.cov_fraction * parts.mask.sum().double()).floor().clamp(min=1)


# ---- a detached weight times the log-prob ----------------------------------------------------------------------------------
def _weighted_logprob(weight: Tensor, parts: Parts) -> Tensor:
    return -weight.detach() * parts.advantages * parts.policy_logprobs


def log_prob(parts: Parts, config: LossConfig) -> TokenLoss:
    """-A · log p: the policy gradient itself, with no ratio (REINFORCE; GPG; verl's `gpg`)."""
    return _weighted_logprob(torch.ones_like(parts.ratio), parts), torch.zeros_like(parts.mask)


def cispo(parts: Parts, config: LossConfig) -> TokenLoss:
    """-clipped ratio · A · log p, the ratio a constant: no token loses its gradient (CISPO, MiniMax-M1, arXiv 2506.13585)."""
    return _weighted_logprob(parts.clipped_ratio, parts), torch.zeros_like(parts.mask)


def tis(parts: Parts, config: LossConfig) -> TokenLoss:
    """-min(ratio, 1) · A · log p: truncated importance sampling (ROLL's pg_variant `tis`)."""
    return _weighted_logprob(parts.ratio.clamp(max=1.0), parts), torch.zeros_like(parts.mask)


def topr(parts: Parts, config: LossConfig) -> TokenLoss:
    """tis for rows without a reward above 0, log_prob for the others: success is learned at full weight (TOPR, 2503.14286)."""
    weight = torch.where(parts.rewards > 0, 1.0, parts.ratio.clamp(max=1.0))
    return _weighted_logprob(weight, parts), torch.zeros_like(parts.mask)


def vespo(parts: Parts, config: LossConfig) -> TokenLoss:
    """-phi(w) · A · log p; phi(w) = w^k · exp(lambda · (1 - w)), w the ratio of the whole row (VESPO, arXiv 2602.10693)."""
    k_positive, rate_positive, k_negative, rate_negative = config.vespo_shape
    logs = torch.where(parts.mask, parts.log_ratio, 0.0).clamp(-20.0, 20.0).sum(-1, keepdim=True)
    logs = logs.clamp(VESPO_LOWEST, 20.0)
    k = _by_sign(parts.advantages >= 0, k_positive, k_negative, like=logs)
    rate = _by_sign(parts.advantages >= 0, rate_positive, rate_negative, like=logs)
    phi = (rate + k * logs - rate * logs.exp()).exp()
    return _weighted_logprob(phi, parts), torch.zeros_like(parts.mask)


VESPO_LOWEST = -18.420680743952367  # log(1e-8), where TRL and Liger bound the row's log-ratio


def dppo_tv(parts: Parts, config: LossConfig) -> TokenLoss:
    """-min(ratio, dual_clip) · A · log p, dropped where the probability itself moved too far (DPPO, arXiv 2602.04879; verl)."""
    left_out = _moved_too_far(parts, config)
    weight = torch.where(left_out, 0.0, parts.ratio.clamp(max=config.dual_clip))
    return _weighted_logprob(weight, parts), left_out


def dppo_kl(parts: Parts, config: LossConfig) -> TokenLoss:
    """dppo-tv with the KL between "this token" and "any other" as the measure of how far (verl's `dppo_kl`)."""
    old, new = parts.denominator.exp(), parts.policy_logprobs.detach().exp()
    others = (1 - old) * ((1 - old + 1e-8) / (1 - new + 1e-8)).log()
    moved = old * (parts.denominator - parts.policy_logprobs.detach()) + others
    up = (moved > config.clip_high) & (new > old)
    down = (moved > config.clip_low) & (new < old)
    left_out = torch.where(parts.advantages > 0, up, down) & parts.mask
    weight = torch.where(left_out, 0.0, parts.ratio.clamp(max=config.dual_clip))
    return _weighted_logprob(weight, parts), left_out


def dppo_ratio(parts: Parts, config: LossConfig) -> TokenLoss:
    """-ratio · A, dropped where the probability itself moved too far (prime-rl's default)."""
    left_out = _moved_too_far(parts, config)
    return torch.where(left_out, 0.0, -parts.surrogate), left_out


def _moved_too_far(parts: Parts, config: LossConfig) -> Tensor:
    moved = parts.policy_logprobs.detach().exp() - parts.denominator.exp()
    return torch.where(parts.advantages > 0, moved > config.clip_high, moved < -config.clip_low) & parts.mask


def quadratic(parts: Parts, config: LossConfig) -> TokenLoss:
    """-(A · log p - quadratic_coef / 2 · log-ratio^2) (Kimi k1.5, arXiv 2501.12599; verl's `dro`)."""
    token_loss = config.quadratic_coef / 2 * parts.log_ratio.square() - parts.advantages * parts.policy_logprobs
    return token_loss, torch.zeros_like(parts.mask)


SURROGATE = {
    "min-clip": min_clip, "dual-clip": dual_clip, "two-sided": two_sided, "none": unclipped, "sapo": sapo,
    "geometric-mean": geometric_mean, "clip-cov": clip_cov, "kl-cov": kl_cov, "log-prob": log_prob, "cispo": cispo,
    "tis": tis, "topr": topr, "vespo": vespo, "dppo-tv": dppo_tv, "dppo-kl": dppo_kl, "dppo-ratio": dppo_ratio,
    "quadratic": quadratic,
}  # fmt: skip
