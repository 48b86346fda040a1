"""From token losses to one number: every aggregation is a matrix of weights, and the loss is the weighted sum."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from .convention import LossConfig

Mask = Float[Tensor, "B T"]  # 0.0 and 1.0


@dataclass(frozen=True)
class Totals:
    """Denominators over all micro-batches and ranks that one optimizer step sums.

    `policy_loss` counts them on its own batch where none are given: right for a batch that is the whole step.
    """

    rows: int | Tensor
    tokens: int | Tensor
    width: int = 0  # scored positions of the whole row, prompt included: S - 1. Only ROLL's sum-norm reads it
    micro_batches: int = 1


# ---- mask -> the weight of each token's loss in the one loss --------------------------------------------------------------
def seq_mean_token_mean(mask: Mask, totals: Totals, config: LossConfig) -> Mask:
    """1 / (rows · tokens of the row): every completion counts the same (GRPO's paper, TRL `grpo`, ROLL)."""
    return mask / (totals.rows * mask.sum(1, keepdim=True).clamp(min=1))


def token_mean(mask: Mask, totals: Totals, config: LossConfig) -> Mask:
    """1 / all tokens: every token counts the same (DAPO, TRL's default, verl's default)."""
    return mask / torch.as_tensor(totals.tokens).clamp(min=1)


def token_sum(mask: Mask, totals: Totals, config: LossConfig) -> Mask:
    """1: the bare sum (tinker)."""
    return mask


def seq_mean_token_sum(mask: Mask, totals: Totals, config: LossConfig) -> Mask:
    """1 / rows: sum over each completion's tokens, mean over completions (LUSPO)."""
    return mask / totals.rows


def constant_length(mask: Mask, totals: Totals, config: LossConfig) -> Mask:
    """1 / (rows · max_completion_length): no length enters the weight (Dr. GRPO, arXiv 2503.20783; TRL `dr_grpo`)."""
    return mask / (totals.rows * config.max_completion_length)


def sum_over_width(mask: Mask, totals: Totals, config: LossConfig) -> Mask:
    """1 / (prompt + completion width - 1), and no rows in it (ROLL's seq-mean-token-sum-norm)."""
    return mask / (totals.width or mask.shape[1])


def micro_token_mean(mask: Mask, totals: Totals, config: LossConfig) -> Mask:
    """1 / the micro-batch's own tokens, then the mean over micro-batches: depends on the split (TRL `bnpo`)."""
    return mask / (mask.sum().clamp(min=1) * totals.micro_batches)


def micro_seq_mean_token_mean(mask: Mask, totals: Totals, config: LossConfig) -> Mask:
    """seq-mean-token-mean of each micro-batch, then the mean over micro-batches (SkyRL's KL)."""
    return mask / (mask.shape[0] * totals.micro_batches * mask.sum(1, keepdim=True).clamp(min=1))


def length_over_cells(mask: Mask, totals: Totals, config: LossConfig) -> Mask:
    """Tokens of the row / all cells, padding included (Liger 0.8.5's `luspo` at token level)."""
    return (mask.sum(1, keepdim=True) / (totals.rows * mask.shape[1])).expand_as(mask)


AGGREGATION = {
    "seq-mean-token-mean": seq_mean_token_mean,
    "token-mean": token_mean,
    "dr_grpo": constant_length,
    "seq-mean-token-sum": seq_mean_token_sum,
    "token-sum": token_sum,
    "sum-over-width": sum_over_width,
    "micro-token-mean": micro_token_mean,
    "micro-seq-mean-token-mean": micro_seq_mean_token_mean,
    "length-over-cells": length_over_cells,
}
