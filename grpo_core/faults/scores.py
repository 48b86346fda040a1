"""How the log-probs were made: another temperature, another slot, another context, another precision."""

from dataclasses import replace

import torch
from torch import Tensor

from ..batch import Batch
from ..doctor.candidates import Sampling, kept_only
from ..logprobs import labels, scatter, select
from ..policy import Policy
from .shared import AT_ONCE, behind, columns_from, known, log_probs, log_probs_unshifted, of_hidden, saved, scored

DROPPED = 0.1  # share of the hidden state that the faulty dropout removes
MARKER = 1.0  # what one engine writes where it has no log-prob


def old_shifted(batch: Batch) -> Batch:
    """`logits[:, 1:]` where `logits[:, :-1]` was meant: each token's old log-prob is that of the token behind it."""
    values, mask = known(batch, "old_logprobs"), batch.trained_mask()
    inside = torch.cat([mask[:, 1:], torch.zeros_like(mask[:, :1])], dim=1)  # the last keeps its own
    return saved(replace(batch, old_logprobs=torch.where(mask & inside, values.roll(-1, dims=1), values)))


def unshifted(batch: Batch, policy: Policy, reference: Policy) -> Batch:
    """`log_softmax(logits).gather(ids)` without a shift: the row at a token scores that token, which it has just read."""
    return saved(scored(batch, policy, reference, log_probs_unshifted))


def temperature_missing(batch: Batch, policy: Policy, reference: Policy) -> Batch:
    """Sampled at T, scored from logits that were never divided by it."""
    return saved(scored(batch, policy, reference, lambda b, p: log_probs(b, p, 1.0)))


def dropout_on(batch: Batch, policy: Policy, reference: Policy) -> Batch:
    """The policy is scored in train mode, a tenth of its last hidden state dropped; old and reference are not."""
    chance = torch.Generator().manual_seed(int(batch.row_ids().sum()))

    def dropping(hidden: Tensor) -> Tensor:
        keep = torch.rand(hidden.shape, generator=chance).to(hidden.device) >= DROPPED
        return hidden * keep / (1 - DROPPED)

    values = of_hidden(batch, policy, dropping)
    return saved(replace(batch, policy_logprobs=values, meta={**batch.meta, "training_mode": True}))


def old_rounded(batch: Batch) -> Batch:
    """The old log-probs went through bf16, the policy's did not."""
    old = known(batch, "old_logprobs")
    return saved(replace(batch, old_logprobs=old.bfloat16().to(old.dtype)))


def renormalised(batch: Batch, policy: Policy, reference: Policy) -> Batch:
    """The engine reports log-probs over the tokens that top-p and top-k kept, the trainer over the whole vocabulary."""
    mask, sampling = batch.trained_mask(), Sampling.of(batch)
    with torch.no_grad():
        parts = select(policy.hidden(batch.row_ids(), batch.row_mask()), batch).split(AT_ONCE)
        ids = labels(batch)[mask].split(AT_ONCE)
        values = [kept_only(policy.project(part), of, sampling) for part, of in zip(parts, ids, strict=True)]
    return replace(batch, sampler_logprobs=scatter(torch.cat(values), mask))


def prompt_cut(batch: Batch, policy: Policy, reference: Policy) -> Batch:
    """The engine saw the whole prompt, the trainer a copy cut on the left to half of the shortest."""
    width = int(batch.row_completion_mask().int().argmax(1).min())  # all completions begin in one column
    kept = max(1, int(batch.row_mask()[:, :width].sum(1).min()) // 2)
    cut, whole = width - kept, batch.row_ids()[:, :width]
    if batch.prompt_ids is not None and batch.prompt_mask is not None:
        shorter = replace(batch, prompt_ids=batch.prompt_ids[:, cut:], prompt_mask=batch.prompt_mask[:, cut:])
    else:
        shorter = columns_from(batch, cut)
    meta = {**batch.meta, "max_prompt_length": kept}
    return saved(scored(replace(shorter, sampler_prompt_ids=whole, meta=meta), policy, reference, log_probs))


def nan_under_mask(batch: Batch) -> Batch:
    """An old log-prob behind a row's end is NaN; times a mask of 0 it stays NaN, and with it the loss."""
    old, mask = known(batch, "old_logprobs"), batch.trained_mask()
    done = saved(replace(batch, old_logprobs=torch.where(behind(mask), torch.nan, old)))
    return replace(done, reported={**done.reported, "loss": float("nan")})


def marked_invalid(batch: Batch) -> Batch:
    """A marker stands where there is no log-prob, and the printed entropy averages over it."""
    old, mask = known(batch, "old_logprobs"), batch.trained_mask()
    done = saved(replace(batch, old_logprobs=torch.where(mask, old, MARKER)))
    return replace(done, reported={**done.reported, "entropy": float(-known(done, "old_logprobs").mean())})


def weights_summed(batch: Batch) -> Batch:
    """The weight per row is a sum of token ratios where their product is meant."""
    assert batch.sampler_logprobs is not None
    ratios = (known(batch, "old_logprobs") - batch.sampler_logprobs).exp()
    return replace(batch, sequence_weights=torch.where(batch.trained_mask(), ratios, 0.0).sum(1))
