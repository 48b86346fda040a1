"""Does a real model learn: `python tests/benchmarks/bench_task.py [TASK] [MINUTES]`, SmolLM2-135M on a task of reasoning-gym.

All weights are trained, fp32, 8 prompts x 8 completions of at most 16 tokens a step, AdamW 1e-5, Dr. GRPO, no KL. Each line is
CSV: step, seconds of sampling and training so far, mean reward of the step's samples, their mean length in tokens; every 25
steps also the mean reward on the first 32 questions, sampled. `syllogism.csv` beside this file is one such run on one core of a
machine that did other work as well. What it learned there is the form: one word, and soon the same word ("No", which is right
for 72 % of the questions), after which every group has equal rewards and nothing more is learned.
"""

import sys
import time

import peer

from grpo_core.memory import keep_freed_memory
from grpo_core.train_config import from_values
from grpo_core.trainer import Trainer

EVALUATE = 25
SETTINGS = {
    "reward_functions": ["reasoning-gym"], "reward_weights": [1.0], "prompts_per_step": 8, "group_size": 8,
    "max_completion_length": 16, "preset": "paper/dr_grpo", "learning_rate": 1e-5, "warmup_steps": 5, "steps": 10_000,
    "scoring": "packed", "eval_prompts": 32,
}  # fmt: skip


def main() -> None:
    task, minutes = [*sys.argv[1:], *("syllogism", "60")[len(sys.argv) - 1 :]][:2]
    keep_freed_memory()
    config = from_values(SETTINGS | {"model": peer.smollm2(), "data": f"reasoning-gym:{task}", "threads": peer.THREADS}, [])
    trainer, busy, end = Trainer(config), 0.0, time.perf_counter() + 60 * float(minutes)
    print("step,seconds,reward,completion_length,eval_reward")
    for record in trainer.run():
        numbers = record.metrics
        evaluated = f"{trainer.evaluate()['eval/reward']:.4f}" if record.step % EVALUATE == 0 else ""
        busy += numbers["seconds/sample"] + numbers["seconds/train"]
        print(f"{record.step},{busy:.0f},{numbers['reward']:.4f},{numbers['completion_length']:.1f},{evaluated}", flush=True)
        if time.perf_counter() > end:
            return


if __name__ == "__main__":
    main()
