"""A batch as metrics read it: what the loss computed, and the means that trainers take of it.

Every tensor is 0 in masked slots. Asking for log-probs or rewards that the batch does not have raises `Lacking`; the metric
that asked is then left out.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ..advantages import reward_tensor
from ..compare import Evaluation, trained
from ..convention import Convention
from ..correction import BOUND, CORRECTION
from ..inputs import LossInputs
from ..kl import k3
from ..types import LossTerms

Values = Float[Tensor, "B T"] | Bool[Tensor, "B T"]
FARTHEST = 80.0  # nats; exp of more would be infinite in fp32


class Lacking(Exception):
    """The batch has no such field."""


@dataclass(frozen=True)
class Seen:
    """One evaluated batch."""

    evaluation: Evaluation
    inputs: LossInputs

    # ---- what there is -----------------------------------------------------------------------------------------------------
    @property
    def convention(self) -> Convention:
        return self.evaluation.convention

    @property
    def terms(self) -> LossTerms:
        return self.evaluation.terms

    @cached_property
    def mask(self) -> Bool[Tensor, "B T"]:
        """The tokens that the convention trains."""
        return trained(self.inputs, self.convention)

    @property
    def width(self) -> int:
        """Scored positions of a whole row, prompt and padding included."""
        return self.inputs.width or self.mask.shape[1]

    @cached_property
    def advantages(self) -> Float[Tensor, "B T"]:
        return torch.where(self.mask, self.evaluation.advantages, 0.0)

    @property
    def policy(self) -> Float[Tensor, "B T"]:
        return self.terms.policy_logprobs

    def given(self, name: str) -> Any:
        """A field of the inputs. Raises Lacking where it is None."""
        values = getattr(self.inputs, name)
        if values is None:
            raise Lacking(name)
        return values

    def logprobs(self, whose: str) -> Float[Tensor, "B T"]:
        """Those of `old`, `ref` or `sampler`."""
        return torch.where(self.mask, self.given(f"{whose}_logprobs"), 0.0)

    @property
    def entropy(self) -> Float[Tensor, "B T"]:
        self.given("entropy")
        return self.terms.entropy

    def of_ratio(self, name: str) -> Float[Tensor, "B T"]:
        """A term that the ratio is in: ratio, log_ratio, clipped_ratio, surrogate, clipped_surrogate."""
        self.given(f"{self.convention.ratio_against}_logprobs")
        return getattr(self.terms, name)

    @cached_property
    def clipped_branch(self) -> Bool[Tensor, "B T"]:
        """min(ratio · A, clipped ratio · A) is the clipped one, and the smaller. The clip metric of most trainers."""
        return self.of_ratio("clipped_surrogate") < self.of_ratio("surrogate")

    @property
    def over_ceiling(self) -> Bool[Tensor, "B T"]:
        """A < 0 and the loss above dual_clip · |A|: cut off by dual clip."""
        advantages, ceiling = self.advantages, -self.convention.dual_clip * self.advantages
        return (advantages < 0) & (-torch.min(self.of_ratio("surrogate"), self.of_ratio("clipped_surrogate")) > ceiling)

    def gap(self, one: str, other: str) -> Float[Tensor, "B T"]:
        """log-probs of one minus those of the other (`policy`, `old`, `ref`, `sampler`), within ±80."""
        first, second = (self.policy if whose == "policy" else self.logprobs(whose) for whose in (one, other))
        return (first - second).clamp(-FARTHEST, FARTHEST)

    def k3(self, sampled_by: str, other: str) -> Float[Tensor, "B T"]:
        """The estimate of KL(one || other) on tokens that the first has sampled: never negative."""
        return k3(self.gap(sampled_by, other))

    def sampler_weight(self) -> Float[Tensor, "B T"]:
        """old/sampler at the convention's level and within its bounds."""
        convention = self.convention
        level = CORRECTION[convention.correction]
        assert level is not None, "only where the convention corrects"
        weight = level(self.gap("old", "sampler"), self.mask).clamp(-FARTHEST, FARTHEST).exp()
        return BOUND[convention.correction_bound](weight, convention.correction_low, convention.correction_high or torch.inf)

    # ---- means over tokens, rows and the loss's own weights ------------------------------------------------------------------
    def cleared(self, values: Values) -> Float[Tensor, "B T"]:
        """As numbers, 0 where masked."""
        return torch.where(self.mask, values, 0.0).to(self.policy.dtype)

    def mean(self, values: Values, among: Bool[Tensor, "B T"] | None = None) -> float:
        """Over trained tokens, or over some of them; 0 where there are none."""
        counted = self.mask if among is None else self.mask & among
        return float(torch.where(counted, values, 0.0).to(self.policy.dtype).sum() / counted.sum().clamp(min=1))

    def row_means(self, values: Values, among: Bool[Tensor, "B T"] | None = None) -> Float[Tensor, " B"]:
        """Over the trained tokens of each row; 0 for a row without any."""
        counted = self.mask if among is None else self.mask & among
        return torch.where(counted, values, 0.0).to(self.policy.dtype).sum(1) / counted.sum(1).clamp(min=1)

    def mean_of_rows(self, values: Values, among: Bool[Tensor, "B T"] | None = None) -> float:
        """The mean of the rows' means; a row without tokens counts as 0."""
        return float(self.row_means(values, among).mean())

    def as_loss(self, values: Values) -> float:
        """Aggregated as the policy loss is: a sum where that is a sum."""
        return float((self.terms.token_weight * self.cleared(values)).sum())

    def extreme(self, values: Values, pick: Callable[[Tensor], Tensor]) -> float:
        """torch.min or torch.max over trained tokens; 0 where there are none."""
        found = values[self.mask]
        return float(pick(found)) if found.numel() else 0.0

    def of_first_token(self, values: Values) -> Float[Tensor, " B"]:
        """The value of each row's first trained token; 0 for a row without any."""
        first = self.mask.int().argmax(1, keepdim=True)
        return self.cleared(values).gather(1, first).squeeze(1)

    # ---- rewards and lengths -----------------------------------------------------------------------------------------------
    def rewards(self) -> Float[Tensor, " B"]:
        """Weighted sum of what the reward functions returned, in fp64; NaN where all returned None."""
        values, missing = reward_tensor(self.given("rewards"))
        weights = torch.tensor(self.inputs.reward_weights, dtype=torch.float64)
        total = torch.where(missing, 0.0, values.double() * weights).sum(1)
        return torch.where(missing.all(1), float("nan"), total)

    def groups(self) -> list[Float[Tensor, " G"]]:
        """The rewards of each group that has any, rows without a reward left out."""
        rewards, ids = self.rewards(), self.given("group_ids")
        found = (rewards[(ids == group) & ~rewards.isnan()] for group in ids.unique())
        return [group for group in found if len(group)]

    def lengths(self) -> Float[Tensor, " B"]:
        """Completion tokens of each row, those of cut-off rows included."""
        return self.inputs.mask.sum(1).to(self.policy.dtype)


def spread(rewards: Float[Tensor, " N"]) -> float:
    """Unbiased standard deviation; 0 for equal values and for fewer than two."""
    return float(rewards.std()) if len(rewards) > 1 and bool((rewards != rewards[0]).any()) else 0.0
