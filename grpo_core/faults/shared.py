"""What the faults have in common: a batch scored anew, and the numbers that the faulty run would have printed."""

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import torch
from torch import Tensor

from ..advantages import group_advantages
from ..batch import Batch
from ..batch_step import inputs_of_batch, recipe_of_batch
from ..compare import Evaluation, evaluate
from ..convention import AdvantageConfig
from ..inputs import LossInputs
from ..logprobs import gather, labels, log_softmax, scatter, select
from ..policy import Policy

AT_ONCE = 256  # rows of logits
TRAINER = ("policy_logprobs", "old_logprobs", "ref_logprobs")
ROW_WIDE = ("input_ids", "response_mask", "attention_mask", "position_ids")


def saved(batch: Batch) -> Batch:
    """With the numbers that the faulty run itself would have printed: its loss uses its own advantages, mask and log-probs."""
    return replace(batch, reported=numbers(batch, evaluated(batch)[0]))


def evaluated(batch: Batch) -> tuple[Evaluation, LossInputs]:
    inputs = inputs_of_batch(batch)
    assert inputs is not None
    return evaluate(inputs, recipe_of_batch(batch).convention()), inputs


def numbers(batch: Batch, done: Evaluation) -> dict[str, Any]:
    trained = batch.trained_mask()
    reported: dict[str, Any] = {"loss": done.loss, "num_items": int(trained.sum())}
    if batch.entropy is not None and trained.any():
        reported["entropy"] = float(batch.entropy[trained].mean())
    return reported


def known(batch: Batch, name: str) -> Tensor:
    values = getattr(batch, name)
    assert values is not None, name
    return values


def behind(mask: Tensor) -> Tensor:
    """True on the slots behind each row's last trained token."""
    return ~mask & (mask.cumsum(1) == mask.sum(1, keepdim=True)) & mask.any(1, keepdim=True)


def advantages_of_groups(batch: Batch, groups: Tensor, **settings: str) -> Tensor:
    """[B] of these groups under the batch's own convention, `settings` aside."""
    assert batch.rewards is not None
    pairs = zip(batch.rewards.tolist(), missing_of(batch).tolist(), strict=True)
    rewards = [[None if gone else value for value, gone in zip(*row, strict=True)] for row in pairs]
    weights = [1.0] * batch.rewards.shape[1] if batch.reward_weights is None else batch.reward_weights.tolist()
    config: AdvantageConfig = replace(recipe_of_batch(batch).advantage_config(), **settings)  # type: ignore[arg-type]
    return group_advantages(rewards, weights, groups, config).advantages


def missing_of(batch: Batch) -> Tensor:
    """[B R] True where a reward function returned nothing."""
    assert batch.rewards is not None
    return torch.zeros_like(batch.rewards, dtype=torch.bool) if batch.rewards_missing is None else batch.rewards_missing


def columns_from(batch: Batch, cut: int) -> Batch:
    """Layout sequence without the first `cut` columns."""
    scored = batch.trained_mask().shape
    cells = {f.name: getattr(batch, f.name) for f in fields(batch)}
    wide = {name: value[:, cut:] for name, value in cells.items() if name in ROW_WIDE and value is not None}
    tensors = {name: value for name, value in cells.items() if isinstance(value, Tensor) and value.shape == scored}
    return replace(batch, **wide, **{name: value[:, cut:] for name, value in tensors.items()})


def scored(batch: Batch, policy: Policy, reference: Policy, score: Callable[[Batch, Policy], Tensor]) -> Batch:
    """With policy, old and reference log-probs as `score` makes them; no update has been made, so policy and old are one."""
    now, ref = score(batch, policy), score(batch, reference)
    return replace(batch, **dict(zip(TRAINER, (now, now, ref), strict=True)))


def log_probs(batch: Batch, policy: Policy, temperature: float | None = None) -> Tensor:
    return of_hidden(batch, policy, lambda hidden: hidden, temperature)


def log_probs_unshifted(batch: Batch, policy: Policy) -> Tensor:
    """The last hidden states moved by one, so that what is selected before a token stands at it."""
    return of_hidden(batch, policy, lambda hidden: hidden.roll(-1, dims=1))


def of_hidden(batch: Batch, policy: Policy, change: Callable[[Tensor], Tensor], temperature: float | None = None) -> Tensor:
    """[B T] log-probs of the trained tokens from the model's last hidden states [B S D], changed."""
    mask, at = batch.trained_mask(), temperature or float(batch.meta.get("temperature") or 1.0)
    with torch.no_grad():
        parts = select(change(policy.hidden(batch.row_ids(), batch.row_mask())), batch).split(AT_ONCE)
        ids = labels(batch)[mask].split(AT_ONCE)
        values = [gather(log_softmax(policy.project(part), at), of) for part, of in zip(parts, ids, strict=True)]
    return scatter(torch.cat(values), mask)
