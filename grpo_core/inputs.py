"""What a loss needs of one batch, whoever made it: a traced step, a batch file, a test. And what a convention needs of that."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from .convention import Convention
from .logprobs import CHUNK_ELEMENTS, gather, labels, log_softmax, row_entropy
from .loss import reads_rewards, reads_sampler
from .step import rewards_after_edits
from .types import Batch, StepTrace


@dataclass(frozen=True, kw_only=True)
class LossInputs:
    """One batch between sampling and loss. None: the batch does not have it. Log-probs in nats, 0 rewards are rewards."""

    mask: Bool[Tensor, "B T"]  # trained tokens
    policy_logprobs: Float[Tensor, "B T"]
    old_logprobs: Float[Tensor, "B T"] | None = None
    ref_logprobs: Float[Tensor, "B T"] | None = None
    sampler_logprobs: Float[Tensor, "B T"] | None = None
    entropy: Float[Tensor, "B T"] | None = None
    rewards: tuple[tuple[float | None, ...], ...] | None = None  # [B][R]
    reward_weights: tuple[float, ...] = (1.0,)
    group_ids: Int[Tensor, " B"] | None = None
    advantages: Float[Tensor, "B T"] | None = None  # as the trainer stored them; used where there are no rewards
    stored_first: bool = False  # the loss takes the stored advantages though there are rewards
    truncated: Bool[Tensor, " B"] | None = None  # the row was cut off, not finished
    width: int = 0  # scored positions of the whole row, prompt included: S - 1; 0 = as wide as the mask
    max_completion_length: int = 0  # what the trainer allowed; 0 = the width of the mask
    micro_batches: tuple[tuple[int, ...], ...] | None = None  # the rows of each; None: one
    derived: tuple[str, ...] = ()  # a sentence per field that was not there as such, and where it was taken from

    @classmethod
    def of_trace(cls, trace: StepTrace, update: int) -> "LossInputs":
        """One update of a traced step."""
        terms = trace.updates[update].terms
        return cls(
            mask=trace.batch.completion_columns(), policy_logprobs=terms.policy_logprobs, old_logprobs=trace.old_logprobs,
            ref_logprobs=trace.ref_logprobs, sampler_logprobs=trace.batch.sampler_logprobs, entropy=terms.entropy,
            rewards=rewards_after_edits(trace.sampled(), trace.recipe), reward_weights=trace.recipe.reward_weights,
            group_ids=trace.sampled().group_ids,
            truncated=torch.tensor([reason == "length" for reason in trace.sampled().finish_reasons]),
            width=trace.batch.row_ids().shape[1] - 1, max_completion_length=trace.recipe.max_completion_length,
        )  # fmt: skip

    @classmethod
    def of_batch(cls, batch: Batch) -> "LossInputs":
        """A batch file's. Raises ValueError where it holds no policy log-probs and no logits to take them from."""
        derived = list(batch.derived)
        policy, entropy = _policy_and_entropy(batch, derived)
        mask, meta = batch.trained_mask(), batch.meta
        advantages = batch.advantages
        if advantages is not None and advantages.dim() == 1:
            advantages = advantages.unsqueeze(1).expand_as(mask)
        return cls(
            mask=mask, policy_logprobs=policy, entropy=entropy, sampler_logprobs=batch.sampler_logprobs,
            old_logprobs=_or_policy(batch.old_logprobs, policy, meta.get("iteration"), "old_logprobs", "iteration", derived),
            ref_logprobs=_or_policy(batch.ref_logprobs, policy, meta.get("step"), "ref_logprobs", "step", derived),
            rewards=_rewards(batch), reward_weights=_reward_weights(batch), group_ids=_group_ids(batch, derived),
            advantages=advantages, truncated=_truncated(batch, derived), width=batch.row_ids().shape[1] - 1,
            max_completion_length=int(meta.get("max_completion_length") or 0),
            micro_batches=_micro_batches(meta.get("micro_batches"), len(mask)), derived=tuple(derived),
        )  # fmt: skip


def _policy_and_entropy(batch: Batch, derived: list[str]) -> tuple[Tensor, Tensor | None]:
    """As stored; else from the logits at the sampling temperature."""
    if batch.policy_logprobs is not None and (batch.entropy is not None or batch.logits is None):
        return batch.policy_logprobs, batch.entropy
    if batch.logits is None:
        raise ValueError("policy_logprobs: found neither policy_logprobs nor logits, needed for every loss")
    logprobs, entropies = _of_logits(batch)
    policy, entropy = batch.policy_logprobs, batch.entropy
    if policy is None:
        policy = torch.where(batch.trained_mask(), logprobs, 0.0)
        derived.append("policy_logprobs: taken from the logits at the sampling temperature")
    if entropy is None:
        entropy = entropies
        derived.append("entropy: taken from the logits at the sampling temperature")
    return policy, entropy


def _of_logits(batch: Batch) -> tuple[Float[Tensor, "B T"], Float[Tensor, "B T"]]:
    """Each column's log-prob and entropy, some positions at a time: logits may lie on the disk, larger than the memory."""
    assert batch.logits is not None
    predicting, ids = batch.token_positions() - 1, labels(batch)
    outside = ((ids < 0) | (ids >= batch.logits.shape[-1])).nonzero()
    if len(outside):
        row, column = outside[0].tolist()
        raise ValueError(
            f"logits: found {batch.logits.shape[-1]} numbers per position, but row {row} trains the id {int(ids[row, column])}"
        )
    at_once, pairs = max(1, CHUNK_ELEMENTS // batch.logits.shape[-1]), []
    for row, logits in enumerate(batch.logits):
        for chunk, wanted in zip(logits[predicting].split(at_once), ids[row].split(at_once), strict=True):
            rows = log_softmax(chunk.float(), float(batch.meta.get("temperature") or 1.0))
            pairs.append((gather(rows, wanted), row_entropy(rows)))
    logprobs, entropies = (torch.cat(values).view(ids.shape) for values in zip(*pairs, strict=True))
    return logprobs, entropies


def _or_policy(
    stored: Tensor | None, policy: Tensor, count: object, name: str, counter: str, derived: list[str]
) -> Tensor | None:
    """Before the first optimizer step old and policy are the same weights, at the run's start reference and policy."""
    if stored is None and count == 0 and not isinstance(count, bool):
        derived.append(f"{name}: the policy's, since meta.{counter} is 0")
        return policy.detach()
    return stored


def _micro_batches(split: object, rows: int) -> tuple[tuple[int, ...], ...] | None:
    if split is None:
        return None
    lists = split if isinstance(split, (list, tuple)) and all(isinstance(part, (list, tuple)) for part in split) else []
    if sorted(row for part in lists for row in part) != list(range(rows)):
        raise ValueError(f"meta.micro_batches: found {str(split)[:60]}, allowed: lists that hold each row 0 to {rows - 1} once")
    return tuple(tuple(part) for part in lists if part)


def _rewards(batch: Batch) -> tuple[tuple[float | None, ...], ...] | None:
    if batch.rewards is None:
        return None
    missing = torch.zeros_like(batch.rewards, dtype=torch.bool) if batch.rewards_missing is None else batch.rewards_missing
    pairs = zip(batch.rewards.tolist(), missing.tolist(), strict=True)
    return tuple(tuple(None if gone else value for value, gone in zip(*row, strict=True)) for row in pairs)


def _reward_weights(batch: Batch) -> tuple[float, ...]:
    if batch.reward_weights is not None:
        return tuple(batch.reward_weights.tolist())
    return (1.0,) * (1 if batch.rewards is None else batch.rewards.shape[1])


def _group_ids(batch: Batch, derived: list[str]) -> Tensor | None:
    rows, size = len(batch.row_ids()), batch.meta.get("num_generations")
    if batch.group_ids is None and isinstance(size, int) and size > 0 and rows % size == 0:
        derived.append(f"group_ids: {size} consecutive rows each, as meta.num_generations says")
        return torch.arange(rows) // size
    return batch.group_ids


def _truncated(batch: Batch, derived: list[str]) -> Tensor | None:
    """From the finish reasons; else where a completion does not end in an EOS id."""
    if batch.finish_reasons is not None:
        return torch.tensor([reason == "length" for reason in batch.finish_reasons])
    ends = batch.meta.get("eos_token_ids")
    if not ends:
        return None
    derived.append("truncated: rows whose last completion token is none of meta.eos_token_ids")
    columns = batch.completion_columns()
    places = torch.arange(columns.shape[1]).expand_as(columns)
    last = torch.where(columns, places, -1).max(1).values.clamp(min=0)
    ids = batch.row_ids()[:, batch.token_positions()].gather(1, last.unsqueeze(1)).squeeze(1)
    return columns.any(1) & ~torch.isin(ids, torch.tensor(list(ends)))


def missing(inputs: LossInputs, convention: Convention) -> tuple[str, ...]:
    """The fields that this convention needs and this batch lacks; never replaced by zeros."""
    rewards_stand_in = inputs.advantages is not None and (inputs.rewards is None or inputs.stored_first)
    reward_kl = convention.reward_kl != "none" and not rewards_stand_in
    kl_reads_ratio = convention.beta != 0 and convention.kl_gradient in ("times-ratio", "weighted-straight-through")
    reads_ratio = convention.surrogate != "log-prob" or kl_reads_ratio
    needed = {
        "old_logprobs": convention.ratio_against == "old" and reads_ratio or convention.correction != "none" or reward_kl
        or "on-policy-rows" in convention.gates,
        "ref_logprobs": convention.beta != 0 and convention.kl_against == "ref" or reward_kl,
        "sampler_logprobs": reads_sampler(convention),
        "entropy": convention.entropy_coef != 0 or "top-entropy" in convention.gates,
        "rewards": not rewards_stand_in or reads_rewards(convention),
        "group_ids": not rewards_stand_in,
        "truncated": convention.mask_truncated,
    }  # fmt: skip
    return tuple(name for name, wanted in needed.items() if wanted and getattr(inputs, name) is None)
