"""The micro-batches of one of TRL's optimizer steps as one batch."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from ..batch import Batch
from .trl_settings import Settings

PER_TOKEN = {
    "old": "old_per_token_logps", "ref": "ref_per_token_logps", "sampler": "sampling_per_token_logps", "tool_mask": "tool_mask",
}  # fmt: skip


LOGGED = ("entropy", "kl", "clip_ratio/", "cispo_", "vespo/")  # beginnings of the names that are kept
TOKEN_MEANS = ("entropy", "kl")


@dataclass(frozen=True, kw_only=True)
class MicroBatch:
    """What one call of TRL's loss was given and gave; detached, on the CPU, None where TRL has none. Axes as in `batch`."""

    prompt_ids: Tensor
    prompt_mask: Tensor
    completion_ids: Tensor
    completion_mask: Tensor  # as the loss counted and the model attended: 0 on rows that TRL masks for being cut off
    advantages: Tensor
    policy: Tensor
    entropy: Tensor | None
    old: Tensor | None
    ref: Tensor | None
    sampler: Tensor | None
    tool_mask: Tensor | None
    weights: Tensor | None  # against the sampler, [B] or [B T]
    num_items: float
    loss: float  # this micro-batch's share
    rewards: Tensor | None
    lengths: Tensor | None
    groups: Tensor | None
    metrics: Mapping[str, float]
    iteration: int | None

    @classmethod
    def of(
        cls, inputs: Mapping[str, Any], policy: Tensor, entropy: Tensor | None, loss: Tensor,
        riders: Mapping[str, Tensor | None], metrics: Mapping[str, Any], iteration: int | None,
    ) -> "MicroBatch":  # fmt: skip
        names = ("prompt_ids", "prompt_mask", "completion_ids", "completion_mask", "advantages")
        held = {name: inputs[name] for name in names} | {ours: inputs.get(theirs) for ours, theirs in PER_TOKEN.items()}
        held |= {"policy": policy, "entropy": entropy, "weights": inputs.get("importance_sampling_ratio")}
        held |= {name: riders[name] for name in ("rewards", "lengths", "groups")}
        if riders["groups"] is not None and riders["generation"] is not None:  # several generations in one step
            held["groups"] = riders["groups"] + riders["generation"] * 2**32
        kept: dict[str, Any] = {name: None if value is None else value.detach().cpu().clone() for name, value in held.items()}
        return cls(
            **kept, num_items=float(inputs["num_items_in_batch"]), loss=float(loss.detach()), iteration=iteration,
            metrics={name: float(value) for name, value in metrics.items()},
        )  # fmt: skip


def batch_of_step(parts: Sequence[MicroBatch], settings: Settings, names: Sequence[str], weights: Tensor) -> Batch:
    """All rows of one optimizer step, micro-batch after micro-batch."""
    pad = settings.meta.get("pad_token_id") or 0
    counted = _joined(parts, lambda part: part.completion_mask).bool()
    completion = counted if parts[0].lengths is None else _by_lengths(parts, counted)
    tool = _maybe(parts, "tool_mask", 1)
    trained = counted if tool is None else counted & tool.bool()
    prompt_mask = _joined(parts, lambda part: part.prompt_mask, left=True).bool()
    policy, old = _joined(parts, lambda part: part.policy), _maybe(parts, "old")
    derived = [] if old is not None else ["old_logprobs: TRL keeps none here and takes policy_logprobs, detached"]
    attended = torch.cat([prompt_mask, counted], dim=1)
    batch = Batch(
        prompt_ids=_joined(parts, lambda part: part.prompt_ids, pad, left=True), prompt_mask=prompt_mask,
        completion_ids=_joined(parts, lambda part: part.completion_ids, pad), completion_mask=completion,
        attention_mask=None if bool((completion == counted).all()) else attended,
        loss_mask=None if torch.equal(trained, completion if tool is None else completion & tool.bool()) else trained,
        tool_mask=None if tool is None else tool.bool(),
        policy_logprobs=policy, old_logprobs=policy.clone() if old is None else old, ref_logprobs=_maybe(parts, "ref"),
        sampler_logprobs=_maybe(parts, "sampler"), entropy=_maybe(parts, "entropy"),
        advantages=_advantages(parts), meta=settings.meta | _of_parts(parts), reported=_reported(parts, trained, settings),
    )  # fmt: skip
    batch = replace(batch, finish_reasons=_finish_reasons(batch, settings), **_weights(parts))
    return _with_rewards(batch, parts, settings, names, weights, derived)


# ---- tensors of several micro-batches --------------------------------------------------------------------------------------
def _joined(parts: Sequence[MicroBatch], of: Callable[[MicroBatch], Tensor], fill: int = 0, left: bool = False) -> Tensor:
    """[B of all, widest]: prompts padded on the left, the rest on the right."""
    values = [of(part) for part in parts]
    width = max(value.shape[1] for value in values)
    gaps = [(width - value.shape[1], 0) if left else (0, width - value.shape[1]) for value in values]
    return torch.cat([torch.nn.functional.pad(value, gap, value=fill) for value, gap in zip(values, gaps, strict=True)])


def _maybe(parts: Sequence[MicroBatch], name: str, fill: int = 0) -> Tensor | None:
    """Joined where every micro-batch has it."""
    if any(getattr(part, name) is None for part in parts):
        return None
    return _joined(parts, lambda part: getattr(part, name), fill)


def _by_lengths(parts: Sequence[MicroBatch], counted: Tensor) -> Tensor:
    """The completions as they were sampled, also of rows that TRL masks for being cut off."""
    lengths = torch.cat([part.lengths for part in parts if part.lengths is not None])
    return torch.arange(counted.shape[1]) < lengths.unsqueeze(1)


def _advantages(parts: Sequence[MicroBatch]) -> Float[Tensor, "B ..."]:
    if parts[0].advantages.dim() == 1:
        return torch.cat([part.advantages for part in parts])
    return _joined(parts, lambda part: part.advantages)


def _weights(parts: Sequence[MicroBatch]) -> dict[str, Any]:
    """TRL's weights against the sampler: one per row, or under their own name where each token has one."""
    values = [part.weights for part in parts]
    if any(value is None for value in values):
        return {}
    if all(value is not None and value.shape[-1] == 1 for value in values):
        return {"sequence_weights": torch.cat([value.flatten() for value in values if value is not None])}
    return {"extra": {"importance_sampling_ratio": _maybe(parts, "weights")}}


# ---- rows ------------------------------------------------------------------------------------------------------------------
def _finish_reasons(batch: Batch, settings: Settings) -> tuple[str, ...]:
    """As TRL sees it: a completion that does not end in a stop or padding id was cut off."""
    assert batch.completion_ids is not None and batch.completion_mask is not None
    last = (batch.completion_mask.sum(1, keepdim=True) - 1).clamp(min=0)
    ends = torch.isin(batch.completion_ids.gather(1, last).squeeze(1), torch.tensor(settings.ends))
    return tuple("stop" if end else "length" for end in ends.tolist())


def _with_rewards(
    batch: Batch, parts: Sequence[MicroBatch], settings: Settings, names: Sequence[str], weights: Tensor, derived: list[str]
) -> Batch:
    """Rewards belong to whole groups: without the rest of its group a row's advantage cannot be had from them."""
    given = [part.rewards for part in parts if part.rewards is not None]
    groups = [part.groups for part in parts if part.groups is not None]
    if len(given) < len(parts):
        return replace(batch, derived=tuple([*derived, "rewards: sampled before the capture began"]))
    ids, group_ids, sizes = torch.cat(groups).unique(return_inverse=True, return_counts=True)
    rewards = torch.cat(given).float()
    missing = rewards.isnan()
    if bool((sizes != settings.group_size).any()) or settings.rewards_elsewhere:
        why = settings.rewards_elsewhere or "this step trains parts of groups, whose other rows are not here"
        said = (*derived, f"rewards: left out, {why}")
        return replace(batch, group_ids=group_ids, derived=said, extra={**batch.extra, "rewards_of_rows": rewards})
    return replace(
        batch, group_ids=group_ids, rewards=rewards, rewards_missing=missing if missing.any() else None,
        reward_names=tuple(map(str, names)), reward_weights=weights.detach().cpu().float(), derived=tuple(derived),
    )  # fmt: skip


# ---- numbers ---------------------------------------------------------------------------------------------------------------
def _of_parts(parts: Sequence[MicroBatch]) -> dict[str, Any]:
    sizes = [len(part.policy) for part in parts]
    starts = [sum(sizes[:at]) for at in range(len(sizes))]
    meta: dict[str, Any] = {"micro_batches": [list(range(s, s + n)) for s, n in zip(starts, sizes, strict=True)]}
    meta |= {"dtype": str(parts[0].policy.dtype).removeprefix("torch."), "gradient_accumulation_steps": len(parts)}
    first = parts[0].iteration
    return meta | ({} if first is None else {"iteration": first, "updates_since_sampling": first})


def _reported(parts: Sequence[MicroBatch], trained: Tensor, settings: Settings) -> dict[str, Any]:
    """TRL's loss of the step, which is the sum of its micro-batches', and what it logged of it, under its own names.

    Its entropy and KL are means over tokens of each micro-batch; here they are means over those of the step.
    """
    rows = trained.split([len(part.policy) for part in parts])
    tokens = torch.tensor([float(of_part.sum()) for of_part in rows]).clamp(min=1)
    reported: dict[str, Any] = {"loss": sum(part.loss for part in parts)}
    items = round(parts[0].num_items * settings.share(len(parts)))
    if settings.meta.get("aggregation") == "token-mean" or items == int(trained.sum()):  # else no loss is divided by it
        reported["num_items"] = items
    shared = set.intersection(*(set(part.metrics) for part in parts))
    for name in sorted(name for name in shared if name.startswith(LOGGED)):
        values = torch.tensor([part.metrics[name] for part in parts], dtype=torch.float64)
        weight = tokens.double() if name in TOKEN_MEANS else torch.ones_like(values)
        reported[name] = float((values * weight).sum() / weight.sum())
    return reported
