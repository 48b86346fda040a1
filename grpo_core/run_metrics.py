"""A step's numbers over all processes, by the names that are logged. Each is a sum and a count, summed separately."""

import math
from dataclasses import replace

import torch

from .advantages import group_advantages
from .engine import Engine
from .metrics import summarize
from .rewards import short_names
from .step import rewards_after_edits
from .train_config import TrainConfig
from .types import Rollout, StepTrace


def averaged(numbers: dict[str, tuple[float, float]], engine: Engine) -> dict[str, float]:
    """name -> (sum, count) of every process -> means; NaN where there was nothing to count."""
    pairs = engine.total(torch.tensor(list(numbers.values()), dtype=torch.float64)).tolist()
    return {name: total / count if count else math.nan for name, (total, count) in zip(numbers, pairs, strict=True)}


def reward_metrics(rollout: Rollout, config: TrainConfig, engine: Engine) -> dict[str, float]:
    """What the samples say of the policy that drew them."""
    rewards = rewards_after_edits(rollout, config)
    within = replace(config.advantage_config(), advantage_mean="group", advantage_std="unbiased")  # whatever the loss takes
    found = group_advantages(rewards, config.reward_weights, rollout.group_ids, within)
    valid, rows, lengths = found.valid, len(rewards), rollout.completion_mask.sum(1)
    numbers = {
        "reward": (float(found.reward[valid].sum()), float(valid.sum())),
        "reward_std": (float(found.group_std.sum()), rows),
        "zero_std": (float(found.zero_std.sum()), rows),  # share of rows whose group has equal rewards
        "completion_length": (float(lengths.sum()), rows),
        "truncated": (float(sum(reason == "length" for reason in rollout.finish_reasons)), rows),
    }
    for place, name in enumerate(short_names(rollout.reward_names)):
        answered = [value for row in rewards if (value := row[place]) is not None]
        numbers[f"reward/{name}"] = (float(sum(answered)), len(answered))
    return averaged(numbers, engine)


def update_metrics(trace: StepTrace, engine: Engine) -> dict[str, float]:
    """`metrics.summarize` over the updates of a step: sums for what is a share of the loss, token means for the rest."""
    mask, numbers = trace.batch.trained_mask(), dict[str, tuple[float, float]]()
    updates = len(trace.updates)
    for update in trace.updates:
        trained = mask & (update.terms.token_weight != 0)  # a minibatch's own
        summary = summarize(update.terms, trained)
        tokens = summary["num_tokens"]
        for name in ("loss", "policy_loss", "kl_loss", "entropy_loss"):  # each process holds its share
            total, _ = numbers.get(name, (0.0, 0))
            numbers[name] = (total + summary[name], updates / engine.processes)
        for name in ("kl", "entropy", "clip_fraction", "ratio_mean"):
            total, count = numbers.get(name, (0.0, 0))
            numbers[name] = (total + summary[name] * tokens, count + tokens)
    assert trace.batch.sampler_logprobs is not None  # of a rollout
    gap = (trace.known(trace.old_logprobs) - trace.batch.sampler_logprobs).abs()[mask]
    numbers["sampler_gap"] = (float(gap.sum()), len(gap))  # nats between the log-probs of trainer and sampler
    applied = sum(update.applied for update in trace.updates)
    norm = sum(update.grad_norm for update in trace.updates) / updates
    tokens = engine.total(torch.tensor([float(mask.sum())])).item()
    return averaged(numbers, engine) | {"grad_norm": norm, "applied": applied / updates, "num_tokens": tokens}
