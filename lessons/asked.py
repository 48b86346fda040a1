"""What `grpo_core` says about the step that is looked at: functions of its trace, asked when a lesson first needs them."""

from functools import cached_property
from typing import TYPE_CHECKING

from torch import Tensor

from grpo_core.batch_step import differ_within_rows
from grpo_core.explain import VocabularyRow, kl_estimates, other_advantages, other_aggregations, update_effect
from grpo_core.metrics import layer_norms
from grpo_core.workings import Branch, advantage_workings, branch_of, logprob_weights, loss_workings

from .formulas import advantage_of

if TYPE_CHECKING:
    from .lesson import Context


class Asked:
    """The part of a `Context` that is computed. Every answer is made once."""

    @cached_property
    def distribution(self: "Context") -> VocabularyRow | None:
        """The selected token's row of the vocabulary; None where a batch file brings no logits."""
        return self.distribution_at(self.row, self.pos)

    def distribution_at(self: "Context", row: int, pos: int) -> VocabularyRow | None:
        if self.of_file:
            return self.bench.file_row(self.step, row, pos)
        return self.bench.vocabulary_row(self.step, self.update_index, row, self.column_of(pos))

    @property
    def vocabulary(self: "Context") -> VocabularyRow:
        assert self.distribution is not None, "asked for the vocabulary of a batch file without logits"
        return self.distribution

    @property
    def policy_logprobs(self: "Context") -> Tensor | None:
        """Of the policy being trained, as far as they are known."""
        return self.terms.policy_logprobs if self.trace.updates else self.trace.batch.policy_logprobs

    @cached_property
    def exact_kl(self: "Context"):
        return self.bench.exact_kl(self.step, self.update_index)

    @cached_property
    def kl_estimates(self: "Context"):
        return kl_estimates(self.trace, self.update_index)

    @cached_property
    def aggregations(self: "Context"):
        return other_aggregations(self.trace, self.update_index)

    @cached_property
    def conventions(self: "Context"):
        return other_advantages(self.trace)

    @cached_property
    def advantage_workings(self: "Context"):
        return advantage_workings(self.trace)

    @cached_property
    def loss_workings(self: "Context"):
        return loss_workings(self.trace, self.update_index)

    @cached_property
    def logprob_weights(self: "Context"):
        return logprob_weights(self.trace, self.update_index)

    @cached_property
    def branch(self: "Context") -> Branch | None:
        """Which case of every rule the selected token went through; None where there is no loss, or it does not read it."""
        through = bool(self.trace.updates) and self.is_trained
        return branch_of(self.trace, self.update_index, self.row, self.column) if through else None

    @cached_property
    def own_advantages(self: "Context") -> bool:
        """Whether a batch file stores other advantages for tokens of one row."""
        return self.of_file and differ_within_rows(self.trace.batch)

    @property
    def advantage(self: "Context") -> str:
        """The quantity that a token's loss multiplies with: its row's advantage, or its own."""
        return "token_advantages" if self.own_advantages else advantage_of(self.recipe)

    @cached_property
    def layer_norms(self: "Context"):
        return layer_norms(self.update.grad_norms)

    @cached_property
    def effect(self: "Context"):
        """None while the update has not been run with this recipe."""
        return None if self.step.after is None else update_effect(self.trace, self.update_index, self.step.after)
