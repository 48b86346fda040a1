"""What a run needs before it is started: memory and FLOP of one step, from its config and the model's, without any weights.

    python -m grpo_core.scale CONFIG.toml --prompt 256 --processes 8 --device cuda --tflops 300 --gbs 2500

Every row is taken as long as prompt and completion say. What one operation allocates in passing, and what an allocator
wastes, is not counted: leave a tenth free. SCALE.md beside this folder says what comes out.
"""

from dataclasses import dataclass
from typing import Any

from ..loading import COPIES
from ..train_config import TrainConfig
from .flop import Flop, flop_of, seen_by
from .memory import Held, Sampling, Scoring, cache_of_token, held_by, proof_of, sampling_of, scoring_of, sizes
from .shape import Reading, Shape, readings_of, shape_of


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """One process in one step. Bytes, FLOP, tokens."""

    shape: Shape
    readings: tuple[Reading, ...]  # the micro-batches of one pass over the rollout
    held: Held
    sampling: Sampling
    proof: int  # bytes on top in the first step: all rows padded, for `choose_scoring`
    scoring: Scoring  # of the largest micro-batch
    flop: Flop
    moved: int  # bytes that decoding reads and writes: the weights for each column, the cache three times
    host: int  # bytes of RAM that must be free when a process loads its weights

    @property
    def peak(self) -> int:
        """Bytes at the worst moment."""
        return self.held.total + max(self.sampling.total, self.proof, self.scoring.total)


def estimate(
    config: TrainConfig, model_config: Any, prompt: int, completion: int, processes: int = 1, device: str = "cpu"
) -> Estimate:
    """One process's part of a step whose prompts and completions all have these lengths. `device` is cpu or cuda."""
    if config.prompts_per_step % processes:
        raise ValueError(f"prompts_per_step: found {config.prompts_per_step} for {processes} processes, allowed: a multiple")
    shape, (weight, number) = shape_of(model_config, config), sizes(config)
    readings = readings_of(shape, config, prompt, completion, processes, device)
    rows, row = sum(reading.rows for reading in readings), prompt + completion
    padded = Reading(rows, rows * row, rows * row**2, rows * completion, rows * row**2, rows * row)
    held, sampling = held_by(shape, config, processes), sampling_of(shape, config, prompt, completion, rows, processes, device)
    scoring = [scoring_of(shape, config, reading, processes) for reading in readings]
    read = number * (shape.linear + shape.head) + 4 * shape.adapters
    return Estimate(
        shape=shape, readings=readings, held=held, sampling=sampling,
        proof=proof_of(shape, config, padded) and sampling.whole + proof_of(shape, config, padded),
        scoring=max(scoring, key=lambda parts: parts.total),
        flop=flop_of(shape, config, readings, prompt, completion),
        moved=completion * read + 3 * cache_of_token(shape, config) * rows * seen_by(prompt, completion),
        host=COPIES * weight * shape.parameters,
    )  # fmt: skip
