"""How time and memory grow, beside what the formulas of `grpo_core.scale` say: `python tests/benchmarks/bench_growth.py`.

A random Llama, fp32, one thread, one group in packs. One axis at a time is doubled; each point runs in a process of its own,
forked before torch has started a thread. Time: CPU seconds of that thread, whatever else the machine does; the median of a
few runs behind a first one. Memory: the highest resident set (VmHWM) above that of weights and gradients. A slope is that of
the straight line through the points on logarithmic axes: 1 = doubles when its axis doubles. The formula's time is FLOP, its
memory `Scoring.total` and `Sampling.total`.
"""

import math
import multiprocessing
import statistics
import sys
import time
from pathlib import Path

import torch
from peer import group
from transformers import LlamaConfig, LlamaForCausalLM

sys.path.insert(0, str(Path(__file__).parents[1]))

from builders import byte_tokenizer  # noqa: E402

from grpo_core import Policy, score_tokens  # noqa: E402
from grpo_core.blocks import BLOCK_COST  # noqa: E402
from grpo_core.decoding import noting_inputs, read_few_rows_well  # noqa: E402
from grpo_core.rollout import generate  # noqa: E402
from grpo_core.scale import Estimate, estimate  # noqa: E402
from grpo_core.train_config import TrainConfig  # noqa: E402

BASE = {"G": 8, "prompt": 128, "completion": 64, "vocabulary": 8192, "width": 256, "layers": 4}
AXES = {
    "G": (4, 8, 16, 32), "prompt": (64, 128, 256, 512, 1024), "completion": (32, 64, 128, 256),
    "vocabulary": (8192, 16384, 32768, 65536), "width": (128, 256, 512), "layers": (2, 4, 8, 16),
}  # fmt: skip
ROUNDS, ENOUGH = 5, 1.5  # runs behind the first, fewer where they take so many seconds together
MEASURES = ("scoring s", "scoring MiB", "sampling s", "sampling MiB")


def model_of(point: dict[str, int]) -> LlamaConfig:
    heads = point["width"] // 64
    return LlamaConfig(
        vocab_size=point["vocabulary"], hidden_size=point["width"], intermediate_size=3 * point["width"],
        num_hidden_layers=point["layers"], num_attention_heads=heads, num_key_value_heads=heads // 2 or 1,
        max_position_embeddings=4096, tie_word_embeddings=False,
    )  # fmt: skip


def config_of(point: dict[str, int]) -> TrainConfig:
    return TrainConfig(
        prompts_per_step=1, group_size=point["G"], max_completion_length=point["completion"], scoring="packed"
    )  # fmt: skip


def policy_of(point: dict[str, int]) -> Policy:
    model = LlamaForCausalLM(model_of(point))
    read_few_rows_well(model)  # as `load_policy` does
    with noting_inputs(model), torch.no_grad():
        model(torch.zeros(1, 2, dtype=torch.long))
    policy = Policy(model, byte_tokenizer(), "random")
    policy.reorders_cache = policy.packed = True
    policy.block_cost = BLOCK_COST["cpu"]
    policy.eos_ids = frozenset({point["vocabulary"]})  # never drawn: every row is as long as it may be
    return policy


def resident_peak_mib(reset: bool = False) -> float:
    if reset:
        Path("/proc/self/clear_refs").write_text("5")
    status = Path("/proc/self/status").read_text().split()
    return int(status[status.index("VmHWM:") + 1]) / 1024


def seconds_of(run) -> float:
    start = time.process_time()
    run()
    return time.process_time() - start


def measured(run) -> tuple[float, float]:
    """Median seconds, and MiB above what was there."""
    before = resident_peak_mib(reset=True)
    run()
    peak, seconds = resident_peak_mib() - before, [seconds_of(run)]
    while len(seconds) < ROUNDS and sum(seconds) < ENOUGH:
        seconds.append(seconds_of(run))
    return statistics.median(seconds), peak


def scoring(point: dict[str, int]) -> tuple[float, float]:
    policy = policy_of(point)
    batch = group(point["vocabulary"], point["prompt"], (point["completion"],) * point["G"])

    def run(batch=batch) -> None:
        score_tokens(policy, batch, 1.0).logprobs.mean().backward()

    run(group(point["vocabulary"], 4, (4,)))  # gradients are there, as in any micro-batch but the first
    return measured(run)


def sampling(point: dict[str, int]) -> tuple[float, float]:
    policy, config = policy_of(point), config_of(point)
    ids = torch.randint(3, point["vocabulary"], (1, point["prompt"]))
    draws = torch.rand(point["G"], point["completion"])
    few = draws[:1, :2], TrainConfig(max_completion_length=2)
    generate(policy, ids[:, :4], torch.ones_like(ids[:, :4], dtype=torch.bool), few[1], few[0])
    return measured(lambda: generate(policy, ids, torch.ones_like(ids, dtype=torch.bool), config, draws))


def child(point: dict[str, int], run, end) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    end.send(run(point))


def in_a_process(point: dict[str, int], run) -> tuple[float, float]:
    here, there = multiprocessing.Pipe()
    process = multiprocessing.get_context("fork").Process(target=child, args=(point, run, there))
    process.start()
    there.close()
    found = here.recv()
    process.join()
    return found


def said(point: dict[str, int]) -> tuple[float, ...]:
    """The formulas' FLOP and MiB, in the order of MEASURES."""
    found: Estimate = estimate(config_of(point), model_of(point), point["prompt"], point["completion"])
    memory = (found.scoring.total / 2**20, found.sampling.total / 2**20)
    return found.flop.training, memory[0], found.flop.prefill + found.flop.decode, memory[1]


def slope(axis: tuple[int, ...], values: list[float]) -> float:
    return statistics.linear_regression([math.log(x) for x in axis], [math.log(y) for y in values]).slope


def main() -> None:
    start, known = time.perf_counter(), {}
    print("base:", BASE)
    for name, axis in AXES.items():
        points = [BASE | {name: size} for size in axis]
        for point in points:
            key = tuple(point.values())
            known[key] = known.get(key) or (*in_a_process(point, scoring), *in_a_process(point, sampling))
        real, formula = ([table(point) for point in points] for table in (lambda p: known[tuple(p.values())], said))
        for place, measure in enumerate(MEASURES):
            values = [row[place] for row in real]
            slopes = slope(axis, values), slope(axis, [row[place] for row in formula])
            shown = " ".join(f"{value:8.2f}" for value in values)
            ratio = [a[place] / b[place] for a, b in zip(real, formula, strict=True)]
            beside = f"  {min(ratio):.2f}-{max(ratio):.2f} x the formula" if measure.endswith("MiB") else ""
            print(f"{name:10} {axis!s:30} {measure:12} {shown:45}  slope {slopes[0]:5.2f}, formula {slopes[1]:5.2f}{beside}")
    print(f"{time.perf_counter() - start:.0f} s in all")


if __name__ == "__main__":
    main()
