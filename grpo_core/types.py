"""What one GRPO step is made of: frozen, shape-typed records, in the order in which they come to be.

Axes: B rows (one completion each) · S prompt + completion tokens · P prompt width · C completion width ·
T scored positions (S-1 in layout `sequence`, C in layout `prompt_completion`) · R reward functions · V vocabulary.

A `[B T]` tensor holds one number per *scored token*. In layout `sequence` column t belongs to token t+1 of the row
(the shifted convention of verl, ROLL, OpenRLHF); in layout `prompt_completion` to `completion_ids[:, t]` (TRL, Liger).
`Batch.token_positions()` is the one place that turns a column into the token's place in the row.

Shapes are checked in tests only (`pytest --jaxtyping-packages=grpo_core,beartype.beartype`).
"""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from .batch import Batch as Batch  # the names of the batch file

if TYPE_CHECKING:
    from .config import Recipe
else:
    Recipe = object  # config builds on this file; at run time any recipe will do

LAYOUTS = ("prompt_completion", "sequence")


@dataclass(frozen=True, kw_only=True)
class Rollout:
    """G completions of each prompt, as they were sampled and rewarded. Prompts are padded left, completions right."""

    prompts: tuple[str, ...]  # one text per prompt, as the person typed it
    prompt_ids: Int[Tensor, "B P"]
    prompt_mask: Bool[Tensor, "B P"]  # False on the padding at the left
    completion_ids: Int[Tensor, "B C"]
    completion_mask: Bool[Tensor, "B C"]  # True up to and including the first EOS
    group_ids: Int[Tensor, " B"]  # rows with the same id answer the same prompt
    sampler_logprobs: Float[Tensor, "B C"]  # nats, full vocabulary at the sampling temperature; 0 where masked
    kept_mass: Float[Tensor, "B C"]  # probability that top-k/top-p left to sample from; 1 without them
    finish_reasons: tuple[str, ...]  # "stop" (an EOS was sampled) or "length" (cut at max_completion_length)
    completions: tuple[str, ...]  # decoded text, special tokens left out
    rewards: tuple[tuple[float | None, ...], ...]  # [B][R]; None where a reward function returned nothing
    reward_names: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Advantages:
    """Rewards on their way to one advantage per row."""

    rewards: Float[Tensor, "B R"]  # NaN where `missing`
    missing: Bool[Tensor, "B R"]  # the function returned None
    weights: Float[Tensor, " R"]
    reward: Float[Tensor, " B"]  # weighted sum over the functions that answered; NaN where none did
    valid: Bool[Tensor, " B"]  # at least one function answered: the row counts in its group
    baseline: Float[Tensor, " B"]  # what is subtracted from the reward
    scale: Float[Tensor, " B"]  # what the difference is divided by, eps included
    group_mean: Float[Tensor, " B"]
    group_std: Float[Tensor, " B"]  # with the chosen convention; 0 where the convention takes none
    zero_std: Bool[Tensor, " B"]  # the row's group has one and the same reward throughout
    advantages: Float[Tensor, " B"]  # 0 where not valid


@dataclass(frozen=True, kw_only=True)
class LossTerms:
    """Every named tensor of the loss, in order of computation. Where a token is masked every field is 0 or False
    (`correction`: 1); with `count_padding` padding has the ratio 1 and its row's advantage.

    `policy_loss = (token_weight * token_loss).sum()`, `kl_loss = (kl_weight * kl).sum()`,
    `entropy_loss = (entropy_weight * entropy).sum()`, `loss = policy_loss + beta * kl_loss - entropy_coef * entropy_loss`.
    The fields are the graph: `torch.autograd.grad(terms.loss, terms.policy_logprobs)` is d loss / d log-prob.
    """

    policy_logprobs: Float[Tensor, "B T"]
    log_ratio: Float[Tensor, "B T"]  # per token, or the row's mean for the sequence ratio
    ratio: Float[Tensor, "B T"]
    clipped_ratio: Float[Tensor, "B T"]
    surrogate: Float[Tensor, "B T"]  # ratio · A
    clipped_surrogate: Float[Tensor, "B T"]  # clipped ratio · A
    is_clipped: Bool[Tensor, "B T"]  # clipping leaves this token without a gradient
    correction: Float[Tensor, "B T"]  # weight against the sampler, detached; ones where there is none
    token_loss: Float[Tensor, "B T"]
    token_weight: Float[Tensor, "B T"]
    policy_loss: Float[Tensor, ""]
    kl: Float[Tensor, "B T"]
    kl_weight: Float[Tensor, "B T"]
    kl_loss: Float[Tensor, ""]
    entropy: Float[Tensor, "B T"]
    entropy_weight: Float[Tensor, "B T"]
    entropy_loss: Float[Tensor, ""]
    loss: Float[Tensor, ""]


@dataclass(frozen=True, kw_only=True)
class Scored:
    """One policy's opinion of a batch's tokens."""

    logprobs: Float[Tensor, "B T"]
    entropy: Float[Tensor, "B T"]  # nats, at the sampling temperature
    hidden: Float[Tensor, "N D"]  # last hidden states of the trained positions, row by row; detached


@dataclass(frozen=True, kw_only=True)
class Update:
    """One optimizer step on the rollout: the loss before it and the gradients that it followed. All detached."""

    terms: LossTerms
    logprob_grad: Float[Tensor, "B T"]  # d loss / d policy_logprobs
    hidden: Float[Tensor, "N D"]
    grad_norms: dict[str, float] = field(hash=False)  # parameter name -> L2 norm, before gradient clipping
    grad_norm: float  # over all parameters, before gradient clipping
    applied: bool  # False: the gradient was not finite, or the step was not run; no weight moved


@dataclass(frozen=True, kw_only=True)
class StepTrace:
    """Everything that one GRPO step computed, or that a batch file holds of one; all tensors detached, no weights."""

    recipe: Recipe  # what it was computed from
    rollout: Rollout | None  # None: the step was read from a batch file
    batch: Batch
    advantages: Advantages
    token_advantages: Float[Tensor, "B T"]  # the row's, unless the KL is in the reward or they are whitened
    # None in these two: a batch file does not hold it
    old_logprobs: Float[Tensor, "B T"] | None  # at the start of the step; denominator of the ratio
    ref_logprobs: Float[Tensor, "B T"] | None  # frozen reference; only in the KL. Equal to old where none was given
    ref_hidden: Float[Tensor, "N D"] | None  # None where no reference was given
    updates: tuple[Update, ...]  # empty where a batch file lacks what the loss needs
    needs: tuple[str, ...] = ()  # and what that is

    def sampled(self) -> Rollout:
        """The rollout of a step that was run here."""
        assert self.rollout is not None, "the step was read from a batch file: it has no rollout"
        return self.rollout

    def known(self, values: Float[Tensor, "B T"] | None) -> Float[Tensor, "B T"]:
        """Log-probs of this step; NaN throughout where a batch file does not hold them."""
        return torch.full(self.batch.trained_mask().shape, torch.nan) if values is None else values
