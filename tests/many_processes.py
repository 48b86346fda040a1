"""Runs that `test_train_processes` compares: each in one process and shared by two (`torch.distributed.run THIS OUT`).

Everything is in fp64, so that only what is really computed otherwise differs by more than 1e-10; but for DeepSpeed, which knows
fp32 only. Its runs are stopped once more behind their first step, and gone on with.
"""

import importlib.util
import sys
import traceback
from dataclasses import replace
from pathlib import Path

import torch

from grpo_core import Policy, load_policy
from grpo_core.aggregation import AGGREGATION
from grpo_core.checkpoint import Checkpoint, read, save
from grpo_core.commands.train import engine_of
from grpo_core.engine import LOCAL, Engine
from grpo_core.train_config import TrainConfig
from grpo_core.trainer import Trainer

BASE = {
    "prompts_per_step": 4, "group_size": 4, "steps": 1, "optimizer": "sgd", "learning_rate": 0.05, "scoring": "padded",
    "max_completion_length": 12, "threads": 1, "seed": 3,
}  # fmt: skip
STAGES = ("zero1", "zero2", "zero3")
TWICE = {"steps": 2, "updates": 2}
DROPPED = {"drop_zero_std": True, "micro_batch_rows": 3, "group_size": 3, "seed": 5, "prompts_per_step": 6}
ZERO = {
    "optimizer": "adamw", "learning_rate": 3e-4, "weight_decay": 0.1, "max_grad_norm": 0.1, "beta": 0.1, "minibatches": 2,
    "micro_batch_rows": 3, "steps": 2,
}  # fmt: skip
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
    **{f"zero{stage}": {"sharding": f"zero{stage}"} | ZERO for stage in (1, 2, 3)},
    "zero2 dropped groups": {"sharding": "zero2"} | DROPPED,
    "zero3 dropped groups": {"sharding": "zero3"} | DROPPED,
    "zero3 packed": {"sharding": "zero3", "scoring": "packed", "gradient_checkpointing": True},
    "zero1 adapters": {"sharding": "zero1", "lora_rank": 2} | ZERO,
}  # fmt: skip


def outcome(policy: Policy, config: TrainConfig, engine: Engine = LOCAL, checkpoint: Checkpoint | None = None) -> dict:
    """What a run of a copy of the policy comes to: weights, metrics, completions; groups that were dropped, by process."""
    trainer = Trainer(config, engine, checkpoint, policy=policy.clone())
    metrics, texts, dropped = [], [], 0
    for record in trainer.run():
        metrics.append({name: value for name, value in record.metrics.items() if not name.startswith("seconds/")})
        texts.append(sorted(engine.everyones(list(record.rollout.completions))))
        kept = record.trace.rollout if record.trace else record.rollout
        dropped += (len(record.rollout.completions) - len(kept.completions)) // config.group_size
    assert trainer.scoring is not None
    return {
        "weights": engine.weights(trainer.policy), "metrics": metrics, "texts": texts,
        "optimizer": engine.optimizer_state(trainer.policy, trainer.optimizer) if config.sharding != "shard" else {},
        "dropped": engine.everyones([dropped]), "packed": trainer.scoring.packed,
    }  # fmt: skip


def resumed(policy: Policy, config: TrainConfig, folder: Path) -> dict:
    """What it comes to from a checkpoint behind its first step."""
    engine = engine_of(config)
    trainer = Trainer(config, engine, policy=policy.clone())
    next(trainer.run())
    weights, optimizer = engine.weights(trainer.policy), engine.optimizer_state(trainer.policy, trainer.optimizer)
    if engine.process == 0:
        save(folder, trainer.policy, weights, optimizer, trainer.state())
    engine.wait()
    return outcome(policy, config, engine_of(config), read(folder))


def main(out: str) -> None:
    single, double = load_policy("tiny"), load_policy("tiny")
    double.model.double()
    found: dict = {}
    for number, (name, settings) in enumerate(CASES.items()):
        config = TrainConfig(**BASE | settings)
        zero = config.sharding in STAGES
        if zero and not importlib.util.find_spec("deepspeed"):
            continue  # the test says so
        engine, policy = engine_of(config), single if zero else double
        try:
            found[name] = {"two": outcome(policy, config, engine)}
            if zero and config.steps > 1:
                found[name]["resumed"] = resumed(policy, config, Path(f"{out}-{name}"))
            if number % 2 == engine.process:
                found[name]["one"] = outcome(policy, replace(config, sharding="replicate"))
        except Exception:  # noqa: BLE001 - the test shows it; where one process alone raises, it runs into its limit
            found[name] = {"error": traceback.format_exc()}
    torch.save(found, f"{out}.{engine.process}")
    engine.close()


if __name__ == "__main__":
    main(sys.argv[1])
