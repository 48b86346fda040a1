"""One GRPO batch in memory, in the layout and with the names of the batch file (`batch_file` reads and writes it).

Axes as in `types`. Everything but ids and masks is optional and None where nobody said it; nothing is filled in silently.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Ids and masks in one of the two layouts (the other layout's fields are None), and what else is known of the rows.

    Prompts are padded on the left, completions on the right. Log-probs and entropy are in nats.
    """

    # layout sequence
    input_ids: Int[Tensor, "B S"] | None = None
    response_mask: Bool[Tensor, "B S"] | None = None  # the completion: after the prompt, before the padding
    # layout prompt_completion
    prompt_ids: Int[Tensor, "B P"] | None = None
    prompt_mask: Bool[Tensor, "B P"] | None = None
    completion_ids: Int[Tensor, "B C"] | None = None
    completion_mask: Bool[Tensor, "B C"] | None = None
    # both; S is P + C in layout prompt_completion, where attention_mask is given only if it is not the two masks joined
    attention_mask: Bool[Tensor, "B S"] | None = None
    position_ids: Int[Tensor, "B S"] | None = None  # as the model got them
    prompt_lengths: Int[Tensor, " B"] | None = None  # in tokens, where the mask itself is in doubt
    loss_mask: Bool[Tensor, "B T"] | None = None  # what the trainer's loss counted
    tool_mask: Bool[Tensor, "B T"] | None = None  # False on tokens that a tool or an environment wrote
    # what the rows are worth
    group_ids: Int[Tensor, " B"] | None = None  # rows with the same id answer the same prompt
    rewards: Float[Tensor, "B R"] | None = None  # as the functions returned them; NaN where `rewards_missing`
    rewards_missing: Bool[Tensor, "B R"] | None = None  # the function returned nothing; None: they all answered
    reward_names: tuple[str, ...] | None = None
    reward_weights: Float[Tensor, " R"] | None = None
    advantages: Float[Tensor, " B"] | Float[Tensor, "B T"] | None = None  # as the trainer computed them
    sequence_weights: Float[Tensor, " B"] | None = None  # an off-policy correction per row, as stored
    # what the policies say
    policy_logprobs: Float[Tensor, "B T"] | None = None  # the policy being trained
    old_logprobs: Float[Tensor, "B T"] | None = None  # at the start of the update; denominator of the ratio
    ref_logprobs: Float[Tensor, "B T"] | None = None  # the frozen reference, only in the KL
    sampler_logprobs: Float[Tensor, "B T"] | None = None  # what the engine reported while sampling
    logits: Float[Tensor, "B S V"] | None = None  # raw, not divided by the temperature
    entropy: Float[Tensor, "B T"] | None = None  # at the sampling temperature
    # what the engine saw and said
    sampled_ids: Int[Tensor, "B _"] | None = None  # any width, padded on the right
    sampler_prompt_ids: Int[Tensor, "B _"] | None = None  # any width, padded on the left
    finish_reasons: tuple[str, ...] | None = None  # "stop", "length", "abort", "tool", …
    # what the trainer said
    reported: Mapping[str, Any] = field(default_factory=dict, hash=False)  # numbers it printed
    meta: Mapping[str, Any] = field(default_factory=dict, hash=False)  # its settings
    # how the file was read
    row_lengths: Mapping[str, tuple[int, ...]] = field(default_factory=dict, hash=False)  # {} where the rows agree
    derived: tuple[str, ...] = ()  # a sentence per mask that the file did not hold
    extra: Mapping[str, Any] = field(default_factory=dict, hash=False)  # top-level names that the format does not know

    @property
    def layout(self) -> str:
        return "sequence" if self.input_ids is not None else "prompt_completion"

    def rows(self, index: Int[Tensor, " M"]) -> "Batch":
        """These rows of the batch, in this order, with everything that is known of them."""
        picked: dict[str, Any] = {}
        for f in fields(self):
            value = getattr(self, f.name)
            if isinstance(value, Tensor) and f.name != "reward_weights":
                picked[f.name] = value[index]
        if self.finish_reasons is not None:
            picked["finish_reasons"] = tuple(self.finish_reasons[row] for row in index.tolist())
        lengths = {name: tuple(of_rows[row] for row in index.tolist()) for name, of_rows in self.row_lengths.items()}
        return replace(self, **picked, row_lengths=lengths)

    def row_ids(self) -> Int[Tensor, "B S"]:
        """Prompt + completion, as the model reads them."""
        if self.input_ids is not None:
            return self.input_ids
        assert self.prompt_ids is not None and self.completion_ids is not None
        return torch.cat([self.prompt_ids, self.completion_ids], dim=1)

    def row_mask(self) -> Bool[Tensor, "B S"]:
        """True on every real token, prompt and completion: the model's attention mask."""
        if self.attention_mask is not None:
            return self.attention_mask
        assert self.prompt_mask is not None and self.completion_mask is not None
        return torch.cat([self.prompt_mask, self.completion_mask], dim=1)

    def row_completion_mask(self) -> Bool[Tensor, "B S"]:
        """True on completion tokens, over the whole row."""
        if self.response_mask is not None:
            return self.response_mask
        assert self.prompt_mask is not None and self.completion_mask is not None
        return torch.cat([torch.zeros_like(self.prompt_mask), self.completion_mask], dim=1)

    def token_positions(self) -> Int[Tensor, " T"]:
        """The place in the row (0 … S-1, padding included) of the token that each column scores."""
        width = self.row_ids().shape[1]
        first = 1 if self.prompt_ids is None else self.prompt_ids.shape[1]
        return torch.arange(first, width)

    def completion_columns(self) -> Bool[Tensor, "B T"]:
        """True where a column's token belongs to the completion: the mask at the position of the *target*."""
        return self.row_completion_mask()[:, self.token_positions()]

    def trained_mask(self) -> Bool[Tensor, "B T"]:
        """True where a column's token is trained: the trainer's `loss_mask`, else the completion without tool tokens."""
        if self.loss_mask is not None:
            return self.loss_mask
        columns = self.completion_columns()
        return columns if self.tool_mask is None else columns & self.tool_mask
