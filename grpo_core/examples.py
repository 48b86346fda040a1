"""Worked examples small enough to check by hand, and well-known mistakes beside what is right.

Every number is computed here by the functions that train; the inputs are the ones that two widely read Chinese
explanations of TRL's and ROLL's GRPO use. Lessons show them, tests hold them.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from .convention import LossConfig
from .kl import exact_kl, k3
from .logprobs import gather, labels, log_softmax
from .surrogate import SURROGATE, Parts
from .types import Batch


@dataclass(frozen=True, kw_only=True)
class GatherByHand:
    logprobs: Tensor  # [3 5]
    ids: Tensor  # [3]
    picked: Tensor  # [3]
    probability_sums: Tensor  # [3] of each row: 1 for a real distribution
    broadcast_shape: tuple[int, ...]  # what gather returns for input (2,3,5) and index (1,3,1)


def gather_by_hand() -> GatherByHand:
    logprobs = torch.tensor([[-1.6, -2.1, -0.9, -3.0, -1.8], [-0.5, -1.1, -2.5, -1.3, -4.0], [-3.2, -1.9, -1.0, -2.2, -0.8]])
    ids = torch.tensor([2, 0, 4])
    smaller = logprobs.expand(2, 3, 5).gather(2, ids.reshape(1, 3, 1))
    return GatherByHand(
        logprobs=logprobs, ids=ids, picked=gather(logprobs, ids), probability_sums=logprobs.exp().sum(-1),
        broadcast_shape=tuple(smaller.shape),
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class MaskedLabels:
    input_ids: Tensor  # [1 7]
    response_mask: Tensor  # [1 7]
    loss_mask: Tensor  # [1 6]
    targets: Tensor  # [1 6] ids[:, 1:]
    labels: Tensor  # [1 6] 0 where masked
    gathered: Tensor  # [1 6]
    logprobs: Tensor  # [1 6] 0 where masked


def masked_labels() -> MaskedLabels:
    """Labels of masked tokens become 0 before gather, their log-probs 0 after it (ROLL's op_compute_log_probs)."""
    ids = torch.tensor([[101, 102, 201, 202, 203, 0, 0]])
    response_mask = torch.tensor([[0, 0, 1, 1, 1, 0, 0]]).bool()
    batch = Batch(
        input_ids=ids, attention_mask=ids > 0, response_mask=response_mask,
        group_ids=torch.zeros(1, dtype=torch.long), sampler_logprobs=torch.zeros(1, 6),
    )  # fmt: skip
    index, mask = labels(batch), batch.trained_mask()
    table = torch.full((6, 204), -6.0)  # only the cells that gather reads are given
    table[torch.arange(6), index[0]] = torch.tensor([-3.2, -1.1, -0.8, -1.5, -4.5, -4.8])
    gathered = gather(table, index[0]).unsqueeze(0)
    return MaskedLabels(
        input_ids=ids, response_mask=response_mask, loss_mask=mask, targets=ids[:, batch.token_positions()], labels=index,
        gathered=gathered, logprobs=torch.where(mask, gathered, 0.0),
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class TwoDistributions:
    ref: Tensor  # [3]
    policy: Tensor  # [3]
    kl_ref_policy: float  # KL(ref || policy): what torch.nn.functional.kl_div(policy.log(), ref, reduction="sum") returns
    kl_policy_ref: float  # KL(policy || ref): what GRPO penalises
    k3_expectation: float  # E over tokens sampled from the policy
    linear_formula: float  # E of ref · (ref / policy - 1), a formula that is sometimes given for it


def two_distributions() -> TwoDistributions:
    ref, policy = torch.tensor([0.1, 0.4, 0.5]), torch.tensor([0.2, 0.3, 0.5])
    return TwoDistributions(
        ref=ref, policy=policy,
        kl_ref_policy=float(torch.nn.functional.kl_div(policy.log(), ref, reduction="sum")),
        kl_policy_ref=float(exact_kl(policy.log(), ref.log())),
        k3_expectation=float((policy * k3(policy.log() - ref.log())).sum()),
        linear_formula=float((ref * (ref / policy - 1)).sum()),
    )  # fmt: skip


def log_of_softmax() -> dict[float, tuple[float, float]]:
    """Logit beside a 0 -> (log of its softmax, its log-softmax), in fp32."""
    result = {}
    for logit in (-100.0, -104.0):
        row = torch.tensor([[0.0, logit]])
        result[logit] = (float(torch.softmax(row, -1).log()[0, 1]), float(log_softmax(row, 1.0)[0, 1]))
    return result


def dual_clip_table() -> dict[float, tuple[float, float]]:
    """Ratio -> (token loss with the plain clip, with dual clip at 1 + 2 · 0.2) for A = -1 and clip 0.2."""
    ratio = torch.tensor([0.5, 1.0, 1.3, 1.5, 3.0])
    advantages = -torch.ones_like(ratio)
    config = LossConfig(clip_low=0.2, clip_high=0.2, dual_clip=1 + 2 * 0.2)
    parts = Parts.of_ratio(ratio, advantages, config)
    plain, dual = SURROGATE["min-clip"](parts, config)[0], SURROGATE["dual-clip"](parts, config)[0]
    return {round(float(r), 4): (float(p), float(d)) for r, p, d in zip(ratio, plain, dual, strict=True)}


def clip_fraction_over_padding() -> tuple[float, float]:
    """(mean over all positions, mean over trained ones) where half are masked and every trained token is clipped."""
    mask = torch.tensor([[True, True, False, False]])
    clipped = mask.float()
    return float(clipped.mean()), float(clipped[mask].mean())


def nan_times_zero() -> tuple[float, float]:
    """(mask by multiplying, mask with where) of a row whose padding holds a NaN, summed."""
    values, mask = torch.tensor([-1.0, float("nan")]), torch.tensor([True, False])
    return float((values * mask).sum()), float(torch.where(mask, values, 0.0).sum())


def mixed_temperature_kl() -> float:
    """KL of logits [2, 1, 0] scored at T = 0.5 to the very same logits scored at T = 1: not 0."""
    logits = torch.tensor([[2.0, 1.0, 0.0]])
    return float(exact_kl(log_softmax(logits, 0.5), log_softmax(logits, 1.0)))


def mask_shift() -> tuple[list[int], list[int]]:
    """[prompt, prompt, r1, r2, r3, EOS]: the mask of the targets, and the one that stays with the predicting position."""
    mask = [0, 0, 1, 1, 1, 1]
    return mask[1:], mask[:-1]
