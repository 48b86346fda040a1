"""bf16 beside fp32, and what it costs in numbers: `python tests/benchmarks/bench_bf16.py`.

Scoring + backward of the group of `bench_scoring` on SmolLM2-135M, packed, fp32 weights: products in fp32, and in bf16 under
autocast as `autocast = true` has them. Each in a process of its own, in turns. The error is that of the log-probs, in nats,
and of the gradient, relative to its norm.
"""

import statistics
from functools import partial

import torch
from peer import group, interleaved, median_ratio, seconds_in, smollm2

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


def main() -> None:
    calls = interleaved({"fp32": partial(scoring, False), "bf16": partial(scoring, True)}, ROUNDS)
    for name, made in calls.items():
        print(f"{name}  {statistics.median(seconds_in(made)):6.2f} s (median of {ROUNDS})")
    print(f"bf16 / fp32  {median_ratio(seconds_in(calls['bf16']), seconds_in(calls['fp32'])):.2f} in time (median of pairs)")
    (exact, gradient), (rough, other) = calls["fp32"][0].result, calls["bf16"][0].result
    gaps = (rough - exact).abs()
    print(f"log-probs: {float(gaps.mean()):.4f} nats apart in the mean, {float(gaps.max()):.4f} at most")
    print(f"gradient: {float((other - gradient).norm() / gradient.norm()):.3f} of its norm apart")


if __name__ == "__main__":
    main()
