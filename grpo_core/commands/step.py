"""`python -m grpo_core step`: one real GRPO step, printed."""

import argparse
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any

from torch import Tensor

from .. import CHECKS, Evidence, Recipe, StepTrace, grpo_step, load_policy, run_checks, sample, summarize
from ..explain import logprobs_after, update_effect, vocabulary_row
from ..presets import preset
from .output import plain


def quantities(value: Any, prefix: str = "") -> Iterator[tuple[str, Tensor]]:
    """Every tensor of a trace under its name, `updates.0.terms.ratio` and the like."""
    for field in fields(value):
        inner, name = getattr(value, field.name), f"{prefix}{field.name}"
        if isinstance(inner, Tensor):
            yield name, inner
        elif isinstance(inner, tuple) and inner and is_dataclass(inner[0]):
            for place, part in enumerate(inner):
                yield from quantities(part, f"{name}.{place}.")
        elif is_dataclass(inner) and not isinstance(inner, Recipe):
            yield from quantities(inner, f"{name}.")


def summary(tensor: Tensor) -> dict[str, Any]:
    values = tensor.double()
    numbers = {"min": values.min(), "mean": values.mean(), "max": values.max()} if values.numel() else {}
    shape = {"shape": list(tensor.shape), "dtype": str(tensor.dtype).removeprefix("torch.")}
    return shape | {name: plain(number.item()) for name, number in numbers.items()}


def run_step(recipe: Recipe) -> tuple[StepTrace, dict[str, str], float]:
    """One real step: its trace, the status of every check on its first update, and the seconds it took."""
    policy = load_policy(recipe.model)
    start = time.perf_counter()
    rollout = sample(policy, recipe.prompts, recipe)
    trained = policy.clone()
    trace = grpo_step(trained, policy, rollout, recipe)
    seconds = time.perf_counter() - start
    column = int(trace.batch.trained_mask()[0].nonzero()[0])
    evidence = Evidence.of_trace(
        trace, policy=policy, token=(0, column), row=vocabulary_row(policy, trace, 0, 0, column),
        effect=update_effect(trace, 0, logprobs_after(trained, trace)),
    )  # fmt: skip
    outcomes = run_checks(evidence, CHECKS.values())
    return trace, {outcome.check: outcome.status for outcome in outcomes}, seconds


def report(trace: StepTrace, checks: dict[str, str], seconds: float) -> dict[str, Any]:
    """What `step --json` prints. `loss` is the first update's."""
    return {
        "loss": plain(trace.updates[0].terms.loss.item()),
        "quantities": {name: summary(tensor) for name, tensor in quantities(trace)},
        "checks": checks,
        "rewards": [list(row) for row in trace.sampled().rewards],
        "advantages": [plain(value) for value in trace.advantages.advantages.tolist()],
        "completions": list(trace.sampled().completions),
        "seconds": seconds,
    }


def print_step(trace: StepTrace, checks: dict[str, str], seconds: float) -> None:
    rollout = trace.sampled()
    for row, completion in enumerate(rollout.completions):
        prompt = rollout.prompts[int(rollout.group_ids[row])]
        rewards = " ".join("-" if value is None else f"{value:g}" for value in rollout.rewards[row])
        print(f"{prompt!r} -> {completion!r}  rewards {rewards}  advantage {trace.advantages.advantages[row]:+.4f}")
    for number, update in enumerate(trace.updates, start=1):
        numbers = summarize(update.terms, trace.batch.trained_mask())
        shown = "  ".join(f"{name} {numbers[name]:.6g}" for name in ("loss", "policy_loss", "kl", "entropy", "clip_fraction"))
        print(f"update {number}: {shown}  grad_norm {update.grad_norm:.6g}")
    for name, status in checks.items():
        print(f"{status:8} {name}")
    print(f"{seconds:.2f} s")


def recipe_of(arguments: argparse.Namespace) -> Recipe:
    """The recipe of the command line: a preset's settings first, what is given beside it on top."""
    given = {name: value for name, value in vars(arguments).items() if name in _STEP_FLAGS and value is not None}
    if arguments.prompt:
        given["prompts"] = tuple(arguments.prompt)
    start = preset(arguments.preset).values() | {"preset": arguments.preset} if arguments.preset else {}
    return Recipe(**(start | given))


_STEP_FLAGS = {
    "model": str, "group_size": int, "temperature": float, "seed": int, "beta": float, "updates": int,
    "learning_rate": float, "aggregation": str, "max_completion_length": int, "layout": str,
}  # fmt: skip


def add(commands: Any) -> None:
    """The command's arguments."""
    step = commands.add_parser("step", help="one real GRPO step, printed")
    step.add_argument("--json", action="store_true", help="one JSON object instead of text")
    step.add_argument("--prompt", action="append", help="a prompt; give it again for another group")
    step.add_argument("--preset", help="a trainer's or paper's settings, such as trl, verl/gspo, paper/dr_grpo")
    for name, kind in _STEP_FLAGS.items():
        step.add_argument(f"--{name.replace('_', '-')}", type=kind, help=f"default: {getattr(Recipe, name)!r}")
    step.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Exit status. Raises ValueError for what cannot be done."""
    result = run_step(recipe_of(arguments))
    if arguments.json:
        json.dump(report(*result), sys.stdout, indent=1, allow_nan=False)
        print()
    else:
        print_step(*result)
    return 0
