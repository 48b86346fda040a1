"""A traced step over an untraced one: `python tests/benchmarks/bench_step.py [MODEL]`.

Untraced is the plain loop that a trainer without a trace would run: score, loss, backward, clip, optimizer, keeping
nothing. Both run interleaved in one process on the same rollout; medians and their ratio are printed.
"""

import statistics
import sys
import time
from dataclasses import replace
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[2]))

from grpo_core import Recipe, grpo_step, load_policy, policy_loss, sample, to_batch  # noqa: E402
from grpo_core.logprobs import score_tokens  # noqa: E402
from grpo_core.step import advantages_of, make_optimizer  # noqa: E402
from lessons.trace import SMALL  # noqa: E402

ROUNDS = 15


def untraced(policy, reference, rollout, recipe, optimizer) -> None:
    batch = to_batch(rollout, recipe.layout)
    mask, config = batch.trained_mask(), recipe.loss_config()
    with torch.no_grad():
        ref = score_tokens(reference, batch, recipe.temperature).logprobs
    old = advantages = None
    for _ in range(recipe.updates):
        scored = score_tokens(policy, batch, recipe.temperature)
        if old is None:
            old = scored.logprobs.detach()
            _, advantages = advantages_of(rollout, batch, old, ref, recipe)
        loss = policy_loss(scored.logprobs, old, ref, advantages, mask, scored.entropy, config).loss
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(policy.model.parameters(), recipe.max_grad_norm)
        optimizer.step()


def main() -> None:
    recipe = replace(Recipe(), model=sys.argv[1] if len(sys.argv) > 1 else "tiny")
    reference = load_policy(recipe.model)
    if sum(parameter.numel() for parameter in reference.model.parameters()) < SMALL:
        torch.set_num_threads(1)  # as the app does
    rollout = sample(reference, recipe.prompts, recipe)
    seconds: dict[str, list[float]] = {"traced": [], "untraced": []}
    policies = {name: reference.clone() for name in seconds}
    optimizers = {name: make_optimizer(policy, recipe) for name, policy in policies.items()}
    for _ in range(ROUNDS + 1):
        for name, run in (("traced", grpo_step), ("untraced", untraced)):
            start = time.perf_counter()
            run(policies[name], reference, rollout, recipe, optimizers[name])
            seconds[name].append(time.perf_counter() - start)
    medians = {name: statistics.median(values[1:]) for name, values in seconds.items()}  # the first round warms up
    ratios = [a / b for a, b in zip(seconds["traced"][1:], seconds["untraced"][1:], strict=True)]
    for name, median in medians.items():
        print(f"{name:9} {1000 * median:8.2f} ms a step (median of {ROUNDS})")
    print(f"traced / untraced  {statistics.median(ratios):.3f} (median of pairs)")


if __name__ == "__main__":
    main()
