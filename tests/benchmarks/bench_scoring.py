"""Scoring + backward of one group of SmolLM2-135M against TRL on the same tensors: `python tests/benchmarks/bench_scoring.py`.

fp32, prompt 128, 8 ragged completions of at most 64 tokens. Time is measured interleaved in one process; memory in a process
of its own for each, from loaded weights to the peak. TRL runs with its own default, gradient checkpointing, and without.
"""

import statistics
import subprocess
import sys

from peer import LENGTHS, group, interleaved, machine_gflops, median_ratio, peak_mib, smollm2, trl_inputs, trl_trainer
from torch import linspace

from grpo_core import LossConfig, load_policy, policy_loss, score_tokens
from grpo_core.packing import choose_scoring, packs_of

ROUNDS = 5
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


def built(name: str, batch):
    """The run of this name, ready."""
    if name.startswith("TRL"):
        checkpointing = name.endswith("checkpointing")
        return trls(trl_trainer(smollm2(), len(LENGTHS), max(LENGTHS), gradient_checkpointing=checkpointing), batch)
    policy = load_policy(smollm2())
    if name == "packed":
        print("packed:", choose_scoring(policy, batch, 1.0, "packed").reason)
    return ours(policy, batch)


NAMES = ("packed", "padded", "TRL checkpointing", "TRL plain")


def memory(name: str, batch) -> None:
    run = built(name, batch)
    loaded = peak_mib()
    run()
    run()
    print(f"peak {name}: {loaded:.0f} {peak_mib():.0f}")


def main() -> None:
    policy = load_policy(smollm2())
    batch = group(policy.vocab_size)
    if len(sys.argv) > 1:
        return memory(sys.argv[1], batch)
    before = machine_gflops()
    seconds = interleaved({name: built(name, batch) for name in NAMES}, ROUNDS)
    gflops = (before + machine_gflops()) / 2
    for name, values in seconds.items():
        print(f"{name:18} {statistics.median(values):6.2f} s (median of {ROUNDS})")
    for name in NAMES[1:]:
        print(f"{name} / packed  {median_ratio(seconds[name], seconds['packed']):.2f} (median of pairs)")
    tokens, scored = sum(pack.ids.shape[1] for pack in packs_of(policy, batch)), sum(LENGTHS)
    head = policy.vocab_size * policy.model.config.hidden_size
    useful = 6 * (policy.body_parameters * tokens + head * scored) / statistics.median(seconds["packed"]) / 1e9
    print(f"useful {useful:.0f} GFLOP/s of the machine's {gflops:.0f}: {useful / gflops:.2f}")
    peaks = {}
    for name in NAMES:
        said = subprocess.run([sys.executable, __file__, name], capture_output=True, text=True, check=True).stdout
        loaded, peak = map(float, said.split(f"peak {name}: ")[1].split())
        peaks[name] = peak
        print(f"{name:18} peak {peak:6.0f} MiB, loaded {loaded:6.0f} MiB")
    for name in NAMES[1:]:
        print(f"packed / {name}  peak memory {peaks['packed'] / peaks[name]:.2f}")


if __name__ == "__main__":
    main()
