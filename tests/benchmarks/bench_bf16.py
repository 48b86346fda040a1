"""bf16 beside fp32, and what it costs in numbers: `python tests/benchmarks/bench_bf16.py`.

SmolLM2-135M, fp32 weights: products in fp32, and in bf16 under autocast as `autocast = true` has them. Scoring + backward of
the group of `bench_scoring`, packed; the sampling of `bench_sampling` and its whole step, where the two draw different texts.
Each in a process of its own, in turns. The error is that of the log-probs, in nats, and of the gradient, relative to its norm.
"""

import statistics
from collections.abc import Callable
from functools import partial

import torch
from bench_sampling import Ours
from peer import Measured, group, interleaved, median_ratio, seconds_in, smollm2

from grpo_core import LossConfig, load_policy, policy_loss, score_tokens
from grpo_core.memory import keep_freed_memory
from grpo_core.packing import choose_scoring

ROUNDS = 3


def scoring(bf16: bool):
    keep_freed_memory()
    policy = load_policy(smollm2())
    batch = group(policy.vocab_size)
    choose_scoring(policy, batch, 1.0, "packed")
    mask, advantages = batch.trained_mask(), torch.linspace(-1, 1, len(batch.trained_mask()))

    def run() -> tuple[torch.Tensor, torch.Tensor]:
        policy.model.zero_grad(set_to_none=True)
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            scored = score_tokens(policy, batch, 1.0)
        old = scored.logprobs.detach()
        loss_config = LossConfig(beta=0.0, aggregation="token-mean")
        policy_loss(scored.logprobs, old, old, advantages, mask, scored.entropy, loss_config).loss.backward()
        gradient = torch.cat([p.grad.flatten()[::97] for p in policy.model.parameters() if p.grad is not None])
        return old[mask], gradient

    return run


def of_step(what: str, bf16: bool):
    return getattr(Ours(bf16), what)


def compared(name: str, make: Callable) -> dict[str, list[Measured]]:
    calls = interleaved({"fp32": partial(make, False), "bf16": partial(make, True)}, ROUNDS)
    seconds = {kind: seconds_in(made) for kind, made in calls.items()}
    medians = "  ".join(f"{kind} {statistics.median(values):5.2f} s" for kind, values in seconds.items())
    print(
        f"{name:8}  {medians}  bf16 / fp32 {median_ratio(seconds['bf16'], seconds['fp32']):.2f} (medians of {ROUNDS})",
        flush=True,
    )
    return calls


def main() -> None:
    calls = compared("scoring", scoring)
    (exact, gradient), (rough, other) = calls["fp32"][0].result, calls["bf16"][0].result
    gaps = (rough - exact).abs()
    print(f"log-probs: {float(gaps.mean()):.4f} nats apart in the mean, {float(gaps.max()):.4f} at most")
    print(f"gradient: {float((other - gradient).norm() / gradient.norm()):.3f} of its norm apart")
    for what in ("sample", "step"):
        compared(what, partial(of_step, what))


if __name__ == "__main__":
    main()
