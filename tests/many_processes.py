"""Runs that `test_train_processes` compares: each in one process and shared by two (`torch.distributed.run THIS OUT`).

Everything is in fp64, so that only what is really computed otherwise differs by more than 1e-10.
"""

import sys
import traceback
from dataclasses import replace

import torch

from grpo_core import Policy, load_policy
from grpo_core.aggregation import AGGREGATION
from grpo_core.engine import LOCAL, Engine
from grpo_core.train_config import TrainConfig
from grpo_core.trainer import Trainer

BASE = {
    "prompts_per_step": 4, "group_size": 4, "steps": 1, "optimizer": "sgd", "learning_rate": 0.05, "scoring": "padded",
    "max_completion_length": 12, "threads": 1, "seed": 3,
}  # fmt: skip
TWICE = {"steps": 2, "updates": 2}
DROPPED = {"drop_zero_std": True, "micro_batch_rows": 3, "group_size": 3, "seed": 5, "prompts_per_step": 6}
CASES = {
    **{f"aggregation {name}": {"aggregation": name} for name in AGGREGATION if not name.startswith("micro-")},
    "aggregation micro-token-mean": {"aggregation": "micro-token-mean", "micro_batch_rows": 4},
    "sequence layout": {"layout": "sequence", "aggregation": "sum-over-width", "micro_batch_rows": 3},
    "counted padding": {"aggregation": "length-over-cells", "count_padding": True},
    "kl and entropy": {"beta": 0.1, "entropy_coef": 0.01, "kl_aggregation": "token-mean", **TWICE},
    "adamw": {"optimizer": "adamw", "learning_rate": 1e-3, "weight_decay": 0.1, **TWICE},
    "whitened over tokens": {"advantage_whiten": "unbiased"},
    "mean and std of the batch": {"advantage_std": "batch", "advantage_mean": "batch"},
    "kl in the reward": {"reward_kl": "after", "reward_kl_coef": 0.1, "advantage_whiten": "unbiased", **TWICE},
    "dropped groups": DROPPED,
    "dropped groups and minibatches": DROPPED | {"minibatches": 9},  # a process keeps 2 or 3 groups of 3
    "cut rows": {"mask_truncated": True, "count_empty_rows": False, "max_completion_length": 7},
    "minibatches": {"minibatches": 2, **TWICE},
    "checkpointed": {"gradient_checkpointing": True},
    "packed": {"scoring": "packed", "micro_batch_rows": 3},
    "shard": {"sharding": "shard", "beta": 0.1, **TWICE},
    "shard packed": {"sharding": "shard", "scoring": "packed"},
    "shard dropped groups": {"sharding": "shard"} | DROPPED,
    "shard adamw": {"sharding": "shard", "optimizer": "adamw", "learning_rate": 1e-3, "max_grad_norm": 0.1},
}  # fmt: skip


def outcome(policy: Policy, config: TrainConfig, engine: Engine = LOCAL) -> dict:
    """What a run of a copy of the policy comes to: weights, metrics, completions; groups that were dropped, by process."""
    trainer = Trainer(config, engine, policy=policy.clone())
    metrics, texts, dropped = [], [], 0
    for record in trainer.run():
        metrics.append({name: value for name, value in record.metrics.items() if not name.startswith("seconds/")})
        texts.append(sorted(engine.everyones(list(record.rollout.completions))))
        kept = record.trace.rollout if record.trace else record.rollout
        dropped += (len(record.rollout.completions) - len(kept.completions)) // config.group_size
    assert trainer.scoring is not None
    return {
        "weights": engine.weights(trainer.policy), "metrics": metrics, "texts": texts,
        "dropped": engine.everyones([dropped]), "packed": trainer.scoring.packed,
    }  # fmt: skip


def main(out: str) -> None:
    from grpo_core.distributed import Processes  # here: a machine without accelerate reads the cases above all the same

    policy = load_policy("tiny")
    policy.model.double()
    found: dict = {}
    for number, (name, settings) in enumerate(CASES.items()):
        config = TrainConfig(**BASE | settings)
        engine = Processes(config)
        try:
            found[name] = {"two": outcome(policy, config, engine)}
            if number % 2 == engine.process:
                found[name]["one"] = outcome(policy, replace(config, sharding="replicate"))
        except Exception:  # noqa: BLE001 - the test shows it; where one process alone raises, it runs into its limit
            found[name] = {"error": traceback.format_exc()}
    torch.save(found, f"{out}.{engine.process}")
    engine.close()


if __name__ == "__main__":
    main(sys.argv[1])
