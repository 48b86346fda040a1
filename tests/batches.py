"""Random batches for the comparisons with live trainers: what a loss needs, from the harmless to the hostile."""

from dataclasses import dataclass, replace

import torch
from hypothesis import strategies as st
from torch import Tensor

from grpo_core.inputs import LossInputs

SPREADS = (0.0, 1e-6, 0.01, 0.3, 1.0, 2.0, 3.0, 4.0, 6.0)  # nats that two policies' log-probs are apart; .2 is clipped
FAR = 100.0  # e^100 is finite in fp64 and infinite in fp32
GARBAGE = (float("nan"), float("inf"), -float("inf"), 1e30, -1e6)
REWARDS = (st.sampled_from([0.0, 0.5, 1.0]), st.floats(-100, 100, width=32, allow_subnormal=False))


@dataclass(frozen=True)
class DrawnBatch:
    """fp64 values that fp32 holds exactly, so that a peer computing in fp32 reads the same numbers."""

    policy_logprobs: Tensor  # [B T], and so are the next five
    old_logprobs: Tensor
    ref_logprobs: Tensor
    sampler_logprobs: Tensor
    entropy: Tensor
    mask: Tensor  # bool, real tokens at the left; a row may have none
    rewards: Tensor  # [B]
    group_ids: Tensor  # [B] int
    truncated: Tensor  # [B] bool

    def inputs(self, max_completion_length: int = 0) -> LossInputs:
        """The same for grpo_core."""
        return LossInputs(
            mask=self.mask, policy_logprobs=self.policy_logprobs, old_logprobs=self.old_logprobs,
            ref_logprobs=self.ref_logprobs, sampler_logprobs=self.sampler_logprobs, entropy=self.entropy,
            rewards=tuple((float(reward),) for reward in self.rewards), group_ids=self.group_ids, truncated=self.truncated,
            max_completion_length=max_completion_length,
        )  # fmt: skip

    def fp32(self) -> "DrawnBatch":
        return replace(self, **{name: v.float() for name, v in vars(self).items() if v.dtype == torch.float64})


@st.composite
def loss_batches(draw, *, alone=False, uneven=False, empty=True, far=False, garbage=False) -> DrawnBatch:
    """1 to 4 groups of 2 to 4 rows with 1 to 7 tokens.

    `alone`: groups of one as well. `uneven`: groups of different sizes, rows in any order (which makes groups of one, too).
    `empty`: rows without a token. `far`: log-ratios up to ±100. `garbage`: padding holds NaN, infinities or huge numbers.
    """
    groups, size = draw(st.integers(1, 4)), draw(st.integers(1 if alone else 2, 4))
    ids = torch.arange(groups).repeat_interleave(size)
    if uneven:
        ids = torch.tensor(draw(st.lists(st.integers(0, groups - 1), min_size=len(ids), max_size=len(ids))))
    rows = len(ids)
    lengths = torch.tensor(draw(st.lists(st.integers(0 if empty else 1, 7), min_size=rows, max_size=rows)))
    lengths[0] = max(int(lengths[0]), 1)  # a batch without any token has tests of its own
    mask = torch.arange(int(lengths.max())) < lengths.unsqueeze(1)
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32 - 1)))
    policy = -4 * _random(mask.shape, generator) - 1e-3
    others = [_other(policy, draw(st.sampled_from(SPREADS + (FAR,) * 3 * far)), generator) for _ in range(3)]
    if far and draw(st.booleans()):  # the policy itself is the far one
        policy, others[0] = others[0], policy
    entropy = 3 * _random(mask.shape, generator)
    padding = draw(st.sampled_from(GARBAGE)) if garbage else 0.0
    per_token = [torch.where(mask, values, padding).double() for values in (policy, *others, entropy)]
    cut = draw(st.integers(0, 2**rows - 1))  # one bit per row
    truncated = torch.tensor([bool(cut >> row & 1) for row in range(rows)])
    return DrawnBatch(*per_token, mask, _rewards(draw, ids), ids, truncated)


def _random(shape: torch.Size, generator: torch.Generator) -> Tensor:
    return torch.rand(shape, generator=generator, dtype=torch.float32)


def _other(policy: Tensor, spread: float, generator: torch.Generator) -> Tensor:
    """Log-probs up to `spread` nats away; one above 0 is reflected, so that probabilities stay probabilities."""
    noise = 2 * _random(policy.shape, generator) - 1
    return policy if spread == 0 else -(policy + spread * noise).abs()


def _rewards(draw, group_ids: Tensor) -> Tensor:
    """[B]; every now and then a group has one reward throughout."""
    kind = REWARDS[draw(st.integers(0, 1))]
    values = torch.tensor(draw(st.lists(kind, min_size=len(group_ids), max_size=len(group_ids))), dtype=torch.float64)
    equal = draw(st.integers(0, 255))  # two bits per group
    for group in group_ids.unique().tolist():
        if equal >> 2 * group & 3 == 3:
            rows = (group_ids == group).nonzero().flatten()
            values[rows] = float(values[rows[0]])
    return values
