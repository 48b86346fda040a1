"""What a run leaves in its folder beside checkpoints: metrics.jsonl, evaluations.jsonl, samples.jsonl and captured batches.

One line per step; a resumed run drops the lines from its step on, so that the files are those of an uninterrupted one.
"""

import json
import math
from pathlib import Path
from typing import Any

from .batch_file import save_batch
from .rewards import short_names
from .trace_batch import batch_of_trace
from .trainer import StepRecord, Trainer

METRICS, SAMPLES, EVALUATIONS = "metrics.jsonl", "samples.jsonl", "evaluations.jsonl"
SHOWN = 4  # samples of a step that are kept


class Recorder:
    """The files of one run, on the process that writes them."""

    def __init__(self, out: Path, first_step: int):
        self.out = out
        try:
            out.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ValueError(f"out: found {str(out)!r}, which cannot be made ({error.strerror})") from error
        for name in (METRICS, SAMPLES):
            self._cut(out / name, first_step)
        # The weights of before that step have been evaluated; those of before the first are evaluated again.
        self._cut(out / EVALUATIONS, first_step + 1 if first_step else 0)

    @staticmethod
    def _cut(path: Path, first_step: int) -> None:
        if path.exists():
            lines = [line for line in path.read_text(encoding="utf-8").splitlines() if _step(line) < first_step]
            path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")

    def _append(self, name: str, value: dict[str, Any]) -> None:
        with (self.out / name).open("a", encoding="utf-8") as file:
            file.write(json.dumps(value, ensure_ascii=False) + "\n")

    def metrics(self, step: int, numbers: dict[str, float]) -> None:
        self._append(METRICS, {"step": step} | _finite(numbers))

    def evaluation(self, step: int, numbers: dict[str, float]) -> None:
        """Numbers of the weights after so many steps."""
        self._append(EVALUATIONS, {"step": step} | _finite(numbers))

    def samples(self, record: StepRecord) -> list[dict[str, Any]]:
        """The first completions of the step, with their rewards, as they are kept."""
        rollout = record.rollout
        rows = [
            {
                "step": record.step, "prompt": rollout.prompts[int(rollout.group_ids[row])],
                "completion": rollout.completions[row],
                "rewards": dict(zip(short_names(rollout.reward_names), rollout.rewards[row], strict=True)),
                "finish_reason": rollout.finish_reasons[row],
            }
            for row in range(min(SHOWN, len(rollout.completions)))
        ]  # fmt: skip
        for row in rows:
            self._append(SAMPLES, row)
        return rows

    def capture(self, record: StepRecord, trainer: Trainer) -> Path | None:
        """The step's last update as a batch file. None where nothing was trained."""
        if record.trace is None:
            return None
        folder = self.out / "batches"
        folder.mkdir(exist_ok=True)
        path = folder / f"step-{record.step:08d}.safetensors"
        save_batch(batch_of_trace(record.trace, policy=trainer.policy), path)
        return path


def _finite(numbers: dict[str, float]) -> dict[str, float | None]:
    """JSON knows no NaN."""
    return {name: value if math.isfinite(value) else None for name, value in numbers.items()}


def _step(line: str) -> float:
    """The step of a line; one that was cut off by a kill goes."""
    try:
        return float(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError):
        return math.inf
