"""Batches with nothing wrong: steps of our own under settings drawn at random, as a batch file would hold them."""

import random
from collections.abc import Iterator
from dataclasses import replace

from grpo_core import Batch, Policy, Recipe, batch_of_trace, grpo_step, sample
from grpo_core.presets import PRESETS

SETTINGS = {
    "group_size": (2, 3, 4), "temperature": (0.7, 1.0, 1.3), "top_p": (0.8, 1.0, 1.0), "top_k": (0, 0, 12),
    "layout": ("prompt_completion", "sequence"), "updates": (1, 2, 3), "learning_rate": (1e-4, 2e-3, 2e-2),
    "mask_truncated": (False, False, True), "max_completion_length": (6, 12), "seed": range(1000),
    "optimizer": ("adamw", "sgd"),
}  # fmt: skip
CONVENTION = {
    "aggregation": ("token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "dr_grpo", "token-sum"),
    "advantage_mean": ("group", "leave-one-out", "batch", "none"), "advantage_std": ("unbiased", "biased", "none", "batch"),
    "advantage_eps": (1e-4, 1e-6, 1e-8), "beta": (0.0, 0.04), "kl_estimator": ("k2", "k3", "abs"),
    "clip_high": (0.2, 0.28), "entropy_coef": (0.0, 0.0, 0.01), "reward_kl": ("none", "none", "before", "after"),
    "advantage_whiten": ("none", "unbiased"), "surrogate": ("min-clip", "dual-clip", "cispo"), "ratio": ("token", "sequence"),
}  # fmt: skip
REWARDS = (0.0, 0.0, 1.0, 1.0, 0.5, 0.25)


def sound_batches(policy: Policy, recipe: Recipe, count: int, seed: int = 0) -> Iterator[tuple[dict, Batch]]:
    """(what was drawn, the batch): one update of one step each, often of a minibatch."""
    draw = random.Random(seed)
    for _ in range(count):
        chosen = {name: draw.choice(list(values)) for name, values in SETTINGS.items()}
        if draw.random() < 0.5:
            name = draw.choice(list(PRESETS))
            chosen |= PRESETS[name].values() | {"preset": name, "mask_truncated": chosen["mask_truncated"]}
        else:
            chosen |= {name: draw.choice(values) for name, values in CONVENTION.items()}
            chosen["reward_kl_coef"] = 0.1 if chosen["reward_kl"] != "none" else 0.0
        rows = len(recipe.prompts) * chosen["group_size"]
        edits = tuple((row, 0, draw.choice(REWARDS)) for row in range(rows))
        mine = replace(recipe, **chosen, edited_rewards=edits)
        parts = draw.choice((1, 1, 2))
        trace = grpo_step(policy.clone(), policy, sample(policy, mine.prompts, mine), mine, minibatches=parts)
        update = draw.randrange(len(trace.updates))
        known = policy if draw.random() < 0.7 else None
        yield chosen | {"minibatches": parts, "update": update}, batch_of_trace(trace, update, known)
