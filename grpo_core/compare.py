"""One batch under any convention: its advantages, its loss with every part, its gradient; and many of them in one table."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from .advantages import batch_advantages, group_advantages
from .convention import AdvantageConfig, Convention, LossConfig, part
from .inputs import LossInputs, missing
from .loss import policy_loss, times, token_weights, totals_of
from .presets import PRESETS, Preset, preset
from .types import LossTerms


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """One batch under one convention. All detached."""

    convention: Convention
    advantages: Float[Tensor, "B T"]
    terms: LossTerms
    grad: Float[Tensor, "B T"]  # d loss / d policy_logprobs

    @property
    def loss(self) -> float:
        return float(self.terms.loss)

    @property
    def kl_part(self) -> float:
        """What the KL adds to the loss: beta · kl_loss."""
        return float(times(self.convention.beta, self.terms.kl_loss))

    @property
    def entropy_part(self) -> float:
        """What the entropy bonus adds to the loss: -entropy_coef · entropy_loss."""
        return 0.0 - float(times(self.convention.entropy_coef, self.terms.entropy_loss))

    def contributions(self) -> Float[Tensor, "B T"]:
        """What each token adds to the loss, all three parts; they sum to it."""
        terms, convention = self.terms, self.convention
        kl = times(convention.beta, terms.kl_weight * terms.kl)
        entropy = times(convention.entropy_coef, terms.entropy_weight * terms.entropy)
        return terms.token_weight * terms.token_loss + kl - entropy


def evaluate(inputs: LossInputs, convention: Convention, micro_batches: Sequence[Sequence[int]] | None = None) -> Evaluation:
    """The batch under a convention, as one optimizer step of these micro-batches (lists of rows; default: the
    batch's own, or one).

    Raises ValueError naming what the convention needs and the batch lacks.
    """
    lacking = missing(inputs, convention)
    if lacking:
        raise ValueError(f"needs {', '.join(lacking)}")
    config = config_of(inputs, convention)
    mask = trained(inputs, convention)
    advantages, rewards = advantages_of(inputs, mask, part(AdvantageConfig, convention))
    splits = [list(rows) for rows in micro_batches or inputs.micro_batches or (range(len(mask)),)]
    totals = totals_of(mask, config, inputs.width or mask.shape[1], len(splits))
    leaf = inputs.policy_logprobs.detach().clone().requires_grad_()
    nothing = torch.zeros_like(leaf)
    given = [nothing if t is None else t for t in (inputs.old_logprobs, inputs.ref_logprobs, inputs.entropy)]
    pieces = []
    for rows in splits:
        old, ref, entropy = (values[rows] for values in given)
        sampler = None if inputs.sampler_logprobs is None else inputs.sampler_logprobs[rows]
        reward = None if rewards is None else rewards[rows]
        terms = policy_loss(leaf[rows], old, ref, advantages[rows], mask[rows], entropy, config, totals, sampler, reward)
        pieces.append(terms)
    (grad,) = torch.autograd.grad(torch.stack([terms.loss for terms in pieces]).sum(), leaf)
    return Evaluation(convention=convention, advantages=advantages, terms=_joined(pieces, splits), grad=grad)


def config_of(inputs: LossInputs, convention: Convention) -> LossConfig:
    """The loss's settings, with the run's own length limit."""
    limit = inputs.max_completion_length or inputs.mask.shape[1]
    return replace(part(LossConfig, convention), max_completion_length=limit)


def trained(inputs: LossInputs, convention: Convention) -> Tensor:
    """The tokens [B T] that this convention trains."""
    cut = inputs.truncated if convention.mask_truncated else None
    return inputs.mask if cut is None else inputs.mask & ~cut.unsqueeze(1)


def reaggregated(inputs: LossInputs, evaluation: Evaluation, aggregation: str) -> tuple[float, float]:
    """(loss, policy part) of the same token losses under another aggregation."""
    convention = replace(evaluation.convention, aggregation=aggregation)
    config, mask, terms = config_of(inputs, convention), trained(inputs, convention), evaluation.terms
    totals = totals_of(mask, config, inputs.width or mask.shape[1])
    weights = token_weights(mask, terms.ratio, totals, config)
    policy, kl, entropy = (
        float((weight * values).sum())
        for weight, values in zip(weights, (terms.token_loss, terms.kl, terms.entropy), strict=True)
    )
    kl_part = config.beta * kl if config.beta else 0.0
    return policy + kl_part - (config.entropy_coef * entropy if config.entropy_coef else 0.0), policy


def advantages_of(inputs: LossInputs, mask: Tensor, config: AdvantageConfig) -> tuple[Tensor, Tensor | None]:
    """The convention's advantages per token [B T] and the rewards [B] behind them; the stored advantages and no rewards
    where the batch has none."""
    if inputs.advantages is not None and (inputs.rewards is None or inputs.stored_first):
        return inputs.advantages, _plain_rewards(inputs, config)
    assert inputs.rewards is not None
    assert inputs.group_ids is not None
    nothing = torch.zeros_like(inputs.policy_logprobs)
    old, ref = (nothing if t is None else t for t in (inputs.old_logprobs, inputs.ref_logprobs))
    rows, per_token = batch_advantages(inputs.rewards, inputs.reward_weights, inputs.group_ids, old, ref, mask, config)
    return per_token.to(inputs.policy_logprobs), rows.reward.nan_to_num(0.0).to(inputs.policy_logprobs)


def _plain_rewards(inputs: LossInputs, config: AdvantageConfig) -> Tensor | None:
    """The rewards [B] behind stored advantages, compared with nothing; None where the batch has none."""
    if inputs.rewards is None:
        return None
    alone = torch.arange(len(inputs.rewards))
    reward = group_advantages(inputs.rewards, inputs.reward_weights, alone, config).reward
    return reward.nan_to_num(0.0).to(inputs.policy_logprobs)


NUMBERS = ("loss", "policy_loss", "kl_part", "entropy_part", "clip_fraction", "grad_norm", "cosine")


@dataclass(frozen=True, kw_only=True)
class Compared:
    """One preset's line in the table. Without an evaluation: `needs` says what the batch lacks."""

    preset: Preset
    needs: tuple[str, ...] = ()
    evaluation: Evaluation | None = None
    clip_fraction: float | None = None  # share of trained tokens that clipping leaves without a gradient
    grad_norm: float | None = None  # of d loss / d log-prob
    cosine: float | None = None  # of its gradient and that of the preset compared against; None where one is 0

    def numbers(self) -> dict[str, float | None]:
        """The line's numbers, by the names of `NUMBERS`; empty where the batch lacks something."""
        got = self.evaluation
        if got is None:
            return {}
        return {
            "loss": got.loss, "policy_loss": float(got.terms.policy_loss), "kl_part": got.kl_part,
            "entropy_part": got.entropy_part, "clip_fraction": self.clip_fraction, "grad_norm": self.grad_norm,
            "cosine": self.cosine,
        }  # fmt: skip


def compare(inputs: LossInputs, names: Iterable[str] = PRESETS, against: str = "") -> tuple[Compared, ...]:
    """The batch under every named preset, in the order given; cosines to the preset `against` where it can be computed."""
    reference = None
    if against and not missing(inputs, preset(against).convention()):
        reference = evaluate(inputs, preset(against).convention()).grad
    return tuple(_compared(inputs, preset(name), reference) for name in names)


def _compared(inputs: LossInputs, row: Preset, reference: Tensor | None) -> Compared:
    lacking = missing(inputs, row.convention())
    if lacking:
        return Compared(preset=row, needs=lacking)
    evaluation = evaluate(inputs, row.convention())
    clipped, trained = evaluation.terms.is_clipped & inputs.mask, max(int(inputs.mask.sum()), 1)
    return Compared(
        preset=row, evaluation=evaluation, clip_fraction=int(clipped.sum()) / trained,
        grad_norm=float(evaluation.grad.double().norm()),
        cosine=None if reference is None else cosine(evaluation.grad, reference),
    )  # fmt: skip


def cosine(one: Tensor, other: Tensor) -> float | None:
    """Of two gradients; None where one of them is 0 or not finite."""
    one, other = one.double().flatten(), other.double().flatten()
    size = float(one.norm() * other.norm())
    return float(one @ other) / size if 0 < size < float("inf") else None


def cosines(grads: Sequence[Tensor]) -> list[list[float | None]]:
    """Of every gradient with every other, all at once; None where one of them is 0 or not finite, as in `cosine`."""
    if not grads:
        return []
    flat = torch.stack([grad.double().flatten() for grad in grads])
    norms = flat.norm(dim=1)
    sizes = norms.unsqueeze(1) * norms
    pairs = zip((flat @ flat.T / sizes).tolist(), sizes.tolist(), strict=True)
    return [[c if 0 < size < float("inf") else None for c, size in zip(*row, strict=True)] for row in pairs]


def push(grad: Float[Tensor, "B T"]) -> Int[Tensor, "B T"]:
    """Which way a gradient pushes each log-prob: 1 up, -1 down, 0 not at all. Descent: a negative gradient pushes up."""
    return -grad.nan_to_num(0.0).sign().int()


DIRECTIONS = ("both_up", "both_down", "opposite", "only_first", "only_second", "neither")


def directions(first: Tensor, second: Tensor, mask: Bool[Tensor, "B T"]) -> dict[str, Bool[Tensor, "B T"]]:
    """Which way two gradients push each token of the mask, by the names of `DIRECTIONS`."""
    one, other = push(first), push(second)
    kinds = (
        (one > 0) & (other > 0), (one < 0) & (other < 0), one * other < 0,
        (one != 0) & (other == 0), (one == 0) & (other != 0), (one == 0) & (other == 0),
    )  # fmt: skip
    return {name: kind & mask for name, kind in zip(DIRECTIONS, kinds, strict=True)}


def _joined(pieces: Sequence[LossTerms], splits: Sequence[Sequence[int]]) -> LossTerms:
    """The micro-batches' terms as those of the whole batch: rows in their places, sums added up."""
    order = torch.tensor([row for rows in splits for row in rows]).argsort()

    def join(name: str) -> Tensor:
        values = [getattr(terms, name).detach() for terms in pieces]
        return torch.cat(values)[order] if values[0].dim() else torch.stack(values).sum()

    return LossTerms(**{f.name: join(f.name) for f in fields(LossTerms)})
