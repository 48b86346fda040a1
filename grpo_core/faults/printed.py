"""From token losses to the printed numbers: another estimator, another mean, another denominator."""

from dataclasses import replace

import torch

from ..batch import Batch
from ..compare import reaggregated
from ..kl import KL
from .shared import evaluated, known, numbers, saved


def k1_in_loss(batch: Batch) -> Batch:
    """The KL in the loss is k1, whose derivative does not contain the reference."""
    return saved(replace(batch, meta={**batch.meta, "kl_estimator": "k1"}))


def k3_inverted(batch: Batch) -> Batch:
    """k3 with policy and reference exchanged: exp(x) - x - 1 of x = policy - reference."""
    done, _ = evaluated(batch)
    kl = KL["k3"](torch.where(batch.trained_mask(), known(batch, "ref_logprobs") - known(batch, "policy_logprobs"), 0.0))
    loss = float(done.terms.policy_loss + done.convention.beta * (done.terms.kl_weight * kl).sum())
    return replace(batch, reported=numbers(batch, done) | {"loss": loss, "kl": float(kl[batch.trained_mask()].mean())})


def other_mean(batch: Batch) -> Batch:
    """One loss path averages over all tokens where the mean of each row's mean is meant, or the other way round."""
    done, inputs = evaluated(batch)
    other = "seq-mean-token-mean" if done.convention.aggregation == "token-mean" else "token-mean"
    return replace(batch, reported=numbers(batch, done) | {"loss": reaggregated(inputs, done, other)[0]})


def own_denominators(batch: Batch) -> Batch:
    """Each of two micro-batches divides by its own tokens, and the two losses are averaged."""
    done, _ = evaluated(batch)
    halves = torch.arange(len(batch.trained_mask())).tensor_split(2)
    losses = [evaluated(batch.rows(rows))[0].loss for rows in halves]
    meta = {**batch.meta, "micro_batches": [rows.tolist() for rows in halves]}
    return replace(batch, meta=meta, reported=numbers(batch, done) | {"loss": sum(losses) / len(losses)})
