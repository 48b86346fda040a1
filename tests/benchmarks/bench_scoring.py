"""Scoring + backward of one group of SmolLM2-135M against TRL on the same tensors: `python tests/benchmarks/bench_scoring.py`.

fp32, prompt 128, 8 ragged completions of at most 64 tokens. Each way runs in a process of its own, in turns; the peak is that
process's, weights included. TRL runs with its own default, gradient checkpointing, and without.
"""

import statistics
from functools import partial

from peer import LENGTHS, group, interleaved, machine_gflops, median_ratio, seconds_in, smollm2, trl_inputs, trl_trainer
from torch import linspace

from grpo_core import LossConfig, load_policy, policy_loss, score_tokens
from grpo_core.memory import keep_freed_memory
from grpo_core.packing import choose_scoring, packs_of

ROUNDS = 3
CONFIG = LossConfig(beta=0.0, aggregation="token-mean")


def ours(policy, batch):
    mask, advantages = batch.trained_mask(), linspace(-1, 1, len(LENGTHS))

    def run() -> None:
        policy.model.zero_grad(set_to_none=True)
        scored = score_tokens(policy, batch, 1.0)
        old = scored.logprobs.detach()
        policy_loss(scored.logprobs, old, old, advantages, mask, scored.entropy, CONFIG).loss.backward()

    return run


def trls(trainer, batch):
    inputs = trl_inputs(batch)

    def run() -> None:
        trainer.model.zero_grad(set_to_none=True)
        trainer.compute_loss(trainer.model, dict(inputs)).backward()

    return run


def packed():
    keep_freed_memory()  # as the train command does
    policy = load_policy(smollm2())
    batch = group(policy.vocab_size)
    print("packed:", choose_scoring(policy, batch, 1.0, "packed").reason)
    return ours(policy, batch)


def padded():
    policy = load_policy(smollm2())
    return ours(policy, group(policy.vocab_size))


def trl(checkpointing: bool):
    trainer = trl_trainer(smollm2(), len(LENGTHS), max(LENGTHS), gradient_checkpointing=checkpointing)
    return trls(trainer, group(trainer.model.config.vocab_size))


def products():
    return machine_gflops


RUNS = {"packed": packed, "padded": padded, "TRL checkpointing": partial(trl, True), "TRL plain": partial(trl, False)}


def useful_gflop() -> float:
    """6 x body parameters x packed tokens + 6 x head x scored tokens; nothing that is computed again counts."""
    policy = load_policy(smollm2())
    tokens = sum(pack.ids.shape[1] for pack in packs_of(policy, group(policy.vocab_size)))
    head = policy.vocab_size * policy.model.config.hidden_size
    return 6 * (policy.body_parameters * tokens + head * sum(LENGTHS)) / 1e9


def main() -> None:
    calls = interleaved({"products": products} | RUNS, ROUNDS)
    gflops = [call.result for call in calls.pop("products")]  # the machine's own speed drifts: measured in every round
    seconds = {name: seconds_in(made) for name, made in calls.items()}
    peaks = {name: max(call.peak_mib for call in made) for name, made in calls.items()}
    for name in RUNS:
        print(f"{name:18} {statistics.median(seconds[name]):6.2f} s (median of {ROUNDS}), peak {peaks[name]:6.0f} MiB")
    for name in list(RUNS)[1:]:
        print(f"{name} / packed  {median_ratio(seconds[name], seconds['packed']):.2f} in time (median of pairs)")
        print(f"packed / {name}  {peaks['packed'] / peaks[name]:.2f} in memory")
    useful = useful_gflop()
    shares = [useful / s / speed for s, speed in zip(seconds["packed"], gflops, strict=True)]
    print(f"useful {useful / statistics.median(seconds['packed']):.0f} GFLOP/s, machine {statistics.median(gflops):.0f}")
    print(f"useful / machine  {statistics.median(shares):.2f} (median of rounds)")


if __name__ == "__main__":
    main()
