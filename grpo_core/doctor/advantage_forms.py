"""The stored advantages against what the rewards give: under the convention that was stated, or any that trainers use."""

from collections.abc import Iterator
from dataclasses import replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ..advantages import WHITEN, group_advantages
from ..convention import AdvantageConfig
from .finding import Evidence
from .reading import groups_of

EPS_OF = {"trl": 1e-4, "ms-swift": 1e-4, "verl": 1e-6, "slime": 1e-6, "roll": 1e-6, "openrlhf": 1e-9}  # (std + eps)
EPS = (1e-4, 1e-6, 1e-9, 0.0)
MEANS, STDS = ("group", "leave-one-out"), ("unbiased", "biased", "none", "batch", "leave-one-out")
Rows = Float[Tensor, " B"]


def rewards_of(evidence: Evidence) -> list[list[float | None]]:
    """[B][R], None where a function returned nothing."""
    assert evidence.batch.rewards is not None
    pairs = zip(evidence.batch.rewards.tolist(), missing_rewards(evidence).tolist(), strict=True)
    return [[None if gone else value for value, gone in zip(*row, strict=True)] for row in pairs]


def weights_of(evidence: Evidence) -> list[float]:
    weights, rewards = evidence.batch.reward_weights, evidence.batch.rewards
    assert rewards is not None
    return [1.0] * rewards.shape[1] if weights is None else weights.tolist()


def missing_rewards(evidence: Evidence) -> Bool[Tensor, "B R"]:
    """True where a function returned nothing."""
    batch = evidence.batch
    assert batch.rewards is not None
    return torch.zeros_like(batch.rewards, dtype=torch.bool) if batch.rewards_missing is None else batch.rewards_missing


def unjudged(evidence: Evidence) -> set[int]:
    """Rows for which no function returned anything."""
    return set() if evidence.batch.rewards is None else set(missing_rewards(evidence).all(1).nonzero().flatten().tolist())


def total_rewards(evidence: Evidence) -> Float[Tensor, " B"]:
    """The weighted sum of a row's rewards; a missing one adds nothing."""
    assert evidence.batch.rewards is not None
    weights = torch.tensor(weights_of(evidence)).double()
    return (torch.where(missing_rewards(evidence), 0.0, evidence.batch.rewards).double() * weights).sum(1)


def row_advantages(evidence: Evidence) -> Rows | None:
    """What is stored, one per row; None where nothing is, or where a row's tokens differ."""
    stored, mask = evidence.batch.advantages, evidence.batch.trained_mask()
    if stored is None or stored.dim() == 1:
        return stored
    first = stored.gather(1, mask.int().argmax(1, keepdim=True)).squeeze(1)
    same = (stored - first.unsqueeze(1)).abs() <= 1e-5 * (1 + first.abs().unsqueeze(1))
    return first if bool((same | ~mask | first.isnan().unsqueeze(1)).all()) else None


def in_loss(evidence: Evidence) -> bool:
    """Whether nothing says that the KL, or another per-token part, is in the rewards."""
    return evidence.batch.meta.get("kl_in") != "reward" and evidence.settings.convention.reward_kl == "none"


def compares_within_groups(evidence: Evidence) -> bool:
    """Whether the baseline is the group's, as far as anybody says; else a group is no more than a label."""
    return evidence.settings.convention.advantage_mean in MEANS


def stated_config(evidence: Evidence) -> AdvantageConfig:
    """The convention that was stated; where it was not, GRPO's with the epsilon of the framework."""
    config, said = evidence.settings.advantage_config(), evidence.settings.said
    if "advantage_eps" in said:
        return config
    eps = EPS_OF.get(str(evidence.batch.meta.get("framework", "")).lower(), 1e-4)
    return replace(config, advantage_eps=eps)


def configs(evidence: Evidence, any_at_all: bool = False) -> Iterator[AdvantageConfig]:
    """Every convention that what was said allows; with `any_at_all` also those that it does not."""
    config, said = evidence.settings.advantage_config(), () if any_at_all else evidence.settings.said
    means = (config.advantage_mean,) if "advantage_mean" in said else MEANS
    stds = (config.advantage_std,) if "advantage_std" in said else STDS
    epsilons = (config.advantage_eps,) if "advantage_eps" in said else EPS
    whitens = (config.advantage_whiten,) if "advantage_whiten" in said else tuple(WHITEN)
    for whiten in whitens:
        for mean in means:
            for std in stds:
                for eps in epsilons:
                    yield replace(
                        config, advantage_mean=mean, advantage_std=std, advantage_eps=eps, advantage_whiten=whiten
                    )  # fmt: skip


def under(evidence: Evidence, config: AdvantageConfig, keys: Int[Tensor, " B"], rewards: list | None = None) -> Rows:
    """Advantages of the batch's rewards with these rows grouped together."""
    values = group_advantages(rewards or rewards_of(evidence), weights_of(evidence), keys, config).advantages
    if config.advantage_whiten != "none":
        mask = evidence.batch.trained_mask()
        per_token = values.unsqueeze(1).expand_as(mask)
        whitened = torch.zeros(mask.shape, dtype=values.dtype).masked_scatter(
            mask, WHITEN[config.advantage_whiten](per_token[mask])
        )
        values = torch.where(mask.any(1), whitened.gather(1, mask.int().argmax(1, keepdim=True)).squeeze(1), values)
    limit = config.advantage_clip
    return values.clamp(-limit, limit) if limit else values


def recomputed(evidence: Evidence, keys: Int[Tensor, " B"] | None = None) -> Rows | None:
    """Advantages under the stated convention; None where rewards or groups are missing."""
    keys = evidence.group_ids if keys is None else keys
    if keys is None or evidence.batch.rewards is None:
        return None
    return under(evidence, replace(stated_config(evidence), advantage_whiten="none"), keys)


def equal(stored: Rows, values: Rows) -> bool:
    """Up to printed digits and what the epsilons in use differ by."""
    return bool(torch.allclose(values.to(stored), stored, rtol=1e-3, atol=2e-4))


def match(
    evidence: Evidence, stored: Rows, keys: Int[Tensor, " B"], any_at_all: bool = False, rewards: list | None = None
) -> AdvantageConfig | None:
    """The first convention that gives the stored advantages."""
    for config in configs(evidence, any_at_all):
        if equal(stored, under(evidence, config, keys, rewards)):
            return config
    return None


def is_sound(evidence: Evidence) -> bool:
    """Whether some convention that was not ruled out gives the stored advantages, or nobody can say."""
    stored, keys = row_advantages(evidence), evidence.group_ids
    if stored is None or keys is None or evidence.batch.rewards is None:
        return True
    return match(evidence, stored, keys) is not None


def complete_groups(evidence: Evidence) -> list[tuple[int, tuple[int, ...]]]:
    """Groups of which every row is in the batch, as far as `num_generations` says; of one row none is."""
    size = evidence.batch.meta.get("num_generations")
    return [(g, rows) for g, rows in groups_of(evidence) if len(rows) > 1 and (not size or len(rows) >= size)]


def follows_rewards(evidence: Evidence, stored: Rows, rows: tuple[int, ...]) -> bool:
    """Whether a group's advantages are its rewards, moved and scaled by a positive factor: true of every convention that
    subtracts one baseline and divides by one spread, rows missing or not."""
    picked = [row for row in rows if row not in unjudged(evidence)]
    rewards, values = total_rewards(evidence)[picked], stored[picked].double()
    spread = rewards - rewards.mean()
    if not spread.any():
        return float((values - values.mean()).abs().max()) <= 1e-4 if picked else True
    slope = float((spread * values).sum() / spread.square().sum())
    fitted = values.mean() + slope * spread
    return slope >= 0 and float((values - fitted).abs().max()) <= 1e-3 * (1 + float(values.abs().max()))
