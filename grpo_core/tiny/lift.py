"""Lift the built-in model with GRPO: ``python -m grpo_core.tiny.lift [--steps N] [--out FILE]``.

Covers the check that ``grpo_core``'s own ``sample`` and ``grpo_step`` turn the careless model into a careful
one within minutes, and the curve of it.
Does not cover saving the lifted weights: the model in the repository is the one before this.
"""

from __future__ import annotations

import argparse
import random
import time
from dataclasses import asdict, replace
from pathlib import Path

import torch

from grpo_core import Recipe, Rollout, grpo_step, load_policy, sample
from grpo_core.policy import Policy
from grpo_core.step import make_optimizer
from grpo_core.tiny import record
from grpo_core.tiny.measure import ANSWER_LIMIT, measure
from grpo_core.tiny.questions import draw_question, draw_questions

STEPS = 120
PROMPTS_PER_STEP = 32
MEASURED_QUESTIONS, MEASURED_SEED = 1000, 7
# One thread, for the reasons given in ``make.py``.
THREADS = 1

# One on-policy update per rollout and no KL: there is nothing worth keeping of the careless habits.
RECIPE = Recipe(
    group_size=8,
    max_completion_length=ANSWER_LIMIT,
    learning_rate=3e-4,
    updates=1,
    beta=0.0,
    max_grad_norm=1.0,
)


def curve_entry(step: int, rollout: Rollout) -> dict:
    """What the step's own samples say about the policy that drew them, so before the step's update."""
    correct = rollout.reward_names.index("correct")
    rows = list(zip(rollout.rewards, rollout.finish_reasons, strict=True))
    total = sum(w * r for rewards, _ in rows for w, r in zip(RECIPE.reward_weights, rewards, strict=True))
    return {
        "step": step,
        "reward": round(total / len(rows), 4),
        "accuracy": sum(rewards[correct] == 1 and finish == "stop" for rewards, finish in rows) / len(rows),
        "length": round(rollout.completion_mask.sum().item() / len(rows), 3),
    }


def lift(policy: Policy, steps: int, seed: int = 0) -> list[dict]:
    """Train ``policy`` in place on fresh questions every step. Returns one curve entry per step."""
    rng = random.Random(seed)
    optimizer = make_optimizer(policy, RECIPE)
    curve, started = [], time.perf_counter()
    for step in range(steps):
        prompts = tuple(draw_question(rng).text for _ in range(PROMPTS_PER_STEP))
        recipe = replace(RECIPE, seed=rng.randrange(2**31))
        rollout = sample(policy, prompts, recipe)
        grpo_step(policy, None, rollout, recipe, optimizer)
        curve.append(curve_entry(step, rollout) | {"seconds": round(time.perf_counter() - started, 1)})
        if step % 10 == 0 or step == steps - 1:
            print(curve[-1], flush=True)
    return curve


def lifted_scores(policy: Policy) -> dict:
    """Scores at T=1 and greedy on fixed questions, through transformers' ``generate``."""
    questions = draw_questions(MEASURED_QUESTIONS, MEASURED_SEED)
    torch.manual_seed(MEASURED_SEED)
    sampled = measure(policy.model, policy.tokenizer, questions)
    greedy = measure(policy.model, policy.tokenizer, questions, greedy=True)
    return {"questions": len(questions), "sampled": asdict(sampled), "greedy": asdict(greedy)}


def main() -> None:
    parser = argparse.ArgumentParser(description="Lift the built-in model with GRPO and record the curve.")
    parser.add_argument("--model", default="tiny", help="'tiny' or a folder that grpo_core.tiny.make wrote")
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--out", type=Path, help="record the curve and the scores in this JSON file")
    arguments = parser.parse_args()
    torch.set_num_threads(THREADS)
    policy = load_policy(arguments.model)
    before = lifted_scores(policy)
    print("before", before["sampled"])
    curve = lift(policy, arguments.steps)
    after = lifted_scores(policy)
    print("after", after["sampled"])
    if arguments.out:
        result = {
            "recipe": asdict(RECIPE),
            "prompts_per_step": PROMPTS_PER_STEP,
            "before": before,
            "after": after,
        }
        record(arguments.out, "grpo", result | {"curve": curve})


if __name__ == "__main__":
    main()
