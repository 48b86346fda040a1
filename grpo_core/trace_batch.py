"""A traced step as a batch: what the debugger, the batch file and a stranger's trainer would have of it."""

from dataclasses import fields, replace
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from .advantages import reward_tensor
from .batch import Batch
from .config import Recipe
from .convention import Convention
from .metrics import summarize
from .policy import Policy
from .presets import PRESETS
from .step import rewards_after_edits
from .types import StepTrace


def batch_of_trace(
    trace: StepTrace, update: int = -1, policy: Policy | None = None, every_row: bool = False
) -> Batch:  # fmt: skip
    """Everything that the trace holds of one update (the last by default), edited rewards included.

    `policy` adds what only the model and its tokenizer know: special ids, vocabulary size, the tokens' texts. An update on a
    minibatch gives its rows, with their advantages and without the rewards: those were compared over the whole rollout.
    With `every_row` it gives them all, and a `loss_mask` that leaves the other minibatches' out.
    """
    rewards, missing = reward_tensor(rewards_after_edits(trace.sampled(), trace.recipe))
    terms = trace.updates[update].terms
    rows = rows_of_update(trace, update)
    whole = replace(
        trace.batch,
        rewards=rewards, rewards_missing=missing if missing.any() else None,
        reward_names=trace.sampled().reward_names, reward_weights=trace.advantages.weights,
        advantages=trace.token_advantages if _per_token(trace) else trace.advantages.advantages,
        policy_logprobs=terms.policy_logprobs, old_logprobs=trace.old_logprobs, ref_logprobs=trace.ref_logprobs,
        entropy=terms.entropy, finish_reasons=trace.sampled().finish_reasons,
        reported=_reported(trace, update, rows), meta=_meta(trace, update) | _tokens(trace, policy),
    )  # fmt: skip
    if len(rows) == len(rewards):
        return whole
    if every_row:
        mine = torch.isin(torch.arange(len(rewards)), rows).unsqueeze(1)
        return replace(whole, loss_mask=whole.trained_mask() & mine)
    return replace(whole.rows(rows), rewards=None, rewards_missing=None, reward_names=None, reward_weights=None)


def rows_of_update(trace: StepTrace, update: int) -> Int[Tensor, " M"]:
    """The rows of the minibatch that this update was made on; all of them in a step without minibatches."""
    parts = max(1, len(trace.updates) // trace.recipe.updates)
    return torch.arange(len(trace.sampled().completions)).tensor_split(parts)[update % parts]


def _per_token(trace: StepTrace) -> bool:
    """A row's tokens differ in their advantage, or are clipped after the row's was taken."""
    recipe = trace.recipe
    return recipe.reward_kl == "after" or recipe.advantage_whiten != "none" or recipe.advantage_clip != 0


def _reported(trace: StepTrace, update: int, rows: Tensor) -> dict[str, Any]:
    step, trained = trace.updates[update], trace.batch.trained_mask()
    mask = torch.zeros_like(trained)
    mask[rows] = trained[rows]
    numbers = summarize(step.terms, mask)
    reported: dict[str, Any] = {name: numbers[name] for name in ("loss", "kl", "entropy", "clip_fraction")}
    reported["num_items"] = int(mask.sum())
    return reported | ({"grad_norm": step.grad_norm} if step.grad_norms else {})  # a reweighed step ran no backward pass


def _meta(trace: StepTrace, update: int) -> dict[str, Any]:
    recipe = trace.recipe
    names = (
        "preset", "temperature", "top_p", "top_k", "max_completion_length", "beta", "clip_low", "clip_high", "kl_estimator",
        "aggregation", "mask_truncated", "advantage_mean", "advantage_std", "advantage_eps",
    )  # fmt: skip
    steps = sum(step.applied for step in trace.updates[:update])  # those before it
    meta = {"framework": "grpo_core"} | {name: getattr(recipe, name) for name in names}
    meta |= {
        "num_generations": recipe.group_size, "iteration": steps, "updates_since_sampling": steps,
        "kl_in": "loss" if recipe.reward_kl == "none" else "reward", "sampler_logprobs_over": "full",
        "training_mode": False, "dtype": str(trace.known(trace.old_logprobs).dtype).removeprefix("torch."),
    }  # fmt: skip
    return (
        meta | ({"dual_clip": recipe.dual_clip} if recipe.surrogate == "dual-clip" else {}) | _beside_the_preset(recipe, meta)
    )


def _beside_the_preset(recipe: Recipe, meta: dict[str, Any]) -> dict[str, Any]:
    """Settings for which the format has no name, where they are not those of the preset that the file names."""
    of_preset = PRESETS[recipe.preset].convention() if recipe.preset in PRESETS else Convention()
    mine = {f.name: getattr(recipe, f.name) for f in fields(Convention) if f.name not in meta and f.name != "dual_clip"}
    changed = {name: value for name, value in mine.items() if value != getattr(of_preset, name)}
    return {name: list(value) if isinstance(value, tuple) else value for name, value in changed.items()}


def _tokens(trace: StepTrace, policy: Policy | None) -> dict[str, Any]:
    if policy is None:
        return {}
    bos = {} if policy.bos_id is None else {"bos_token_id": policy.bos_id}
    ids = trace.batch.row_ids().unique().tolist()
    return bos | {
        "pad_token_id": policy.pad_id, "eos_token_ids": sorted(policy.eos_ids), "vocab_size": policy.vocab_size,
        "tokens": {str(token): policy.piece(token) for token in ids},
    }  # fmt: skip
