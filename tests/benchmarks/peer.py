"""What the benchmarks share: SmolLM2-135M, one ragged group, TRL's trainer on the very same tensors, and how to measure."""

import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("CI", "1")
sys.path[:0] = [str(Path(__file__).parents[2]), str(Path(__file__).parents[1])]

import torch  # noqa: E402

from grpo_core import Batch  # noqa: E402

LENGTHS = (64, 20, 33, 47, 12, 58, 28, 40)  # of the group's completions: ragged, at most 64
PROMPT = 128
THREADS = len(os.sched_getaffinity(0))


def smollm2() -> str:
    """A folder with SmolLM2-135M-Instruct, written once per machine."""
    folder = Path(tempfile.gettempdir()) / "grpo_core_smollm2"
    if not (folder / "config.json").exists():
        from smollm2 import save_smollm2

        save_smollm2(folder)
    return str(folder)


def group(vocabulary: int, prompt: int = PROMPT, lengths: tuple[int, ...] = LENGTHS, seed: int = 0) -> Batch:
    """Random tokens behind one random prompt: what they say does not matter for the time they take."""
    random = torch.Generator().manual_seed(seed)
    ids = torch.randint(3, vocabulary, (1, prompt), generator=random).repeat(len(lengths), 1)
    mask = torch.arange(max(lengths)) < torch.tensor(lengths).unsqueeze(1)
    return Batch(
        prompt_ids=ids, prompt_mask=torch.ones_like(ids, dtype=torch.bool),
        completion_ids=torch.where(mask, torch.randint(3, vocabulary, mask.shape, generator=random), 0), completion_mask=mask,
        group_ids=torch.zeros(len(lengths), dtype=torch.long),
    )  # fmt: skip


def trl_trainer(model: str, rows: int, width: int, **settings):
    """TRL's trainer with its own defaults, but fp32 on the CPU and nothing reported."""
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(), use_cpu=True, bf16=False, report_to=[], per_device_train_batch_size=rows,
        num_generations=rows, max_completion_length=width, temperature=1.0, beta=0.0, **settings,
    )  # fmt: skip
    data = Dataset.from_dict({"prompt": ["a"] * rows})
    trainer = GRPOTrainer(
        model=model, reward_funcs=lambda completions, **_: [0.0] * len(completions), args=args, train_dataset=data
    )
    trainer.current_gradient_accumulation_steps = 1
    trainer.model.train()
    torch.set_num_threads(THREADS)  # accelerate has set the number of physical cores, and counts one of two here
    return trainer


def trl_inputs(batch: Batch) -> dict[str, torch.Tensor]:
    rows = batch.completion_mask.shape[0]
    return {
        "prompt_ids": batch.prompt_ids, "prompt_mask": batch.prompt_mask.long(), "completion_ids": batch.completion_ids,
        "completion_mask": batch.completion_mask.long(), "advantages": torch.linspace(-1, 1, rows),
        "num_items_in_batch": batch.completion_mask.sum(),
    }  # fmt: skip


def seconds_of(run) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


@dataclass(frozen=True)
class Measured:
    """One call of a run, in its own process."""

    seconds: float
    peak_mib: float  # the most memory that the process held meanwhile
    result: Any


def _serve(build: Callable[[], Callable[[], Any]], pipe: Connection) -> None:
    torch.set_num_threads(THREADS)
    run = build()
    pipe.send("ready")
    while pipe.recv():
        run()  # some systems page a waiting process out: only the second of two calls counts
        forget_peak()
        start = time.perf_counter()
        result = run()
        pipe.send(Measured(time.perf_counter() - start, peak_mib(), result))


class Worker:
    """A run in a process of its own, which waits between two calls: no other run's memory, threads or caches in the way.
    `build`, a function that a new process can import, makes it."""

    def __init__(self, build: Callable[[], Callable[[], Any]]):
        context = multiprocessing.get_context("spawn")
        self._pipe, other = context.Pipe()
        self._process = context.Process(target=_serve, args=(build, other), daemon=True)
        self._process.start()
        self._pipe.recv()

    def __call__(self) -> Measured:
        self._pipe.send(True)
        return self._pipe.recv()

    def stop(self) -> None:
        self._pipe.send(False)
        self._process.join()


def interleaved(builds: dict[str, Callable[[], Callable[[], Any]]], rounds: int) -> dict[str, list[Measured]]:
    """Each run's calls, in turns, so that whatever else the machine does falls on all alike."""
    workers = {name: Worker(build) for name, build in builds.items()}
    calls: dict[str, list[Measured]] = {name: [] for name in workers}
    for _ in range(rounds):
        for name, worker in workers.items():
            calls[name].append(worker())
    for worker in workers.values():
        worker.stop()
    return calls


def seconds_in(calls: Sequence[Measured]) -> list[float]:
    return [call.seconds for call in calls]


def median_ratio(slow: list[float], fast: list[float]) -> float:
    return statistics.median(a / b for a, b in zip(slow, fast, strict=True))


def peak_mib() -> float:
    """The most memory that this process has held since `forget_peak`, MiB. (`ru_maxrss` would begin with the parent's.)"""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) / 1024


def forget_peak() -> None:
    """From here on the peak counts from what the process holds now."""
    Path("/proc/self/clear_refs").write_text("5")


def machine_gflops(rows: int = 512, inner: int = 576, outer: int = 1536) -> float:
    """Matrix products of this machine, in the size of a layer of SmolLM2."""
    a, w = torch.randn(rows, inner), torch.randn(outer, inner)
    seconds = statistics.median(seconds_of(lambda: torch.nn.functional.linear(a, w)) for _ in range(30))
    return 2 * rows * inner * outer / seconds / 1e9
