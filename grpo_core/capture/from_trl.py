"""Batch files out of a running TRL GRPOTrainer (read from TRL 1.16.0, trl/trainer/grpo_trainer.py).

    capture = grpo_core.capture.trl(trainer, "batches/", every=10)
    trainer.train()

Four methods of this one trainer are listened to; what they compute is not changed. Each file is one optimizer step: all its
micro-batches as one batch, with the loss that TRL returned for them.
"""

import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..batch_file import save_batch
from .trl_batch import MicroBatch, batch_of_step
from .trl_settings import settings_of, tokens_of

LISTENED = (
    "_calculate_rewards", "_generate_and_score_completions", "_get_per_token_logps_and_entropies", "_compute_loss",
)  # fmt: skip
MARK = "grpo_core_"  # before the names of what rides along in TRL's generation batch, which shuffles and splits it by row


def trl(trainer: Any, path: str | Path, every: int = 1) -> "TRLCapture":
    """Writes a batch file of every `every`-th optimizer step from now on.

    `path`: a folder, or a file name, in which `{step}` stands for the step; a name without it is the newest step's. With
    several processes each writes its own rows, `-rank1` and so on in the name. A file that cannot be written is warned of, and
    training goes on. Raises ValueError with one line where the trainer is no GRPOTrainer as in TRL 1.16.
    """
    return TRLCapture(trainer, Path(path), every)


class TRLCapture:
    """Listens until `remove()`. `paths`: the files so far."""

    def __init__(self, trainer: Any, path: Path, every: int):
        absent = [name for name in LISTENED if not callable(getattr(trainer, name, None))]
        if absent:
            raise ValueError(f"trainer: found {type(trainer).__name__} without {absent[0]}, allowed: a GRPOTrainer of TRL 1.16")
        if every < 1:
            raise ValueError(f"every: found {every}, allowed: 1 or more optimizer steps")
        self.trainer, self.path, self.every, self.paths = trainer, path, every, list[Path]()
        self._original: dict[str, Callable] = {}
        self._rewards: Tensor | None = None  # [rows of all processes, R]
        self._lengths: list[int] = []  # tokens of each completion
        self._scored: tuple[Tensor, Tensor | None, Any] | None = None
        self._parts: list[MicroBatch] = []
        self._generations = 0
        self._steps_since = 0  # optimizer steps since the newest generation
        for name in LISTENED:
            self._original[name] = getattr(trainer, name)
            setattr(trainer, name, getattr(self, name))

    def remove(self) -> None:
        """The trainer is as it was."""
        for name, original in self._original.items():
            if getattr(original, "__func__", None) is getattr(type(self.trainer), name, None):
                delattr(self.trainer, name)
            else:
                setattr(self.trainer, name, original)  # somebody listened before us
        self._original.clear()

    # ---- what TRL computes on its way ---------------------------------------------------------------------------------------
    def _calculate_rewards(self, inputs: Any, prompts: Any, completions: Any, completion_ids: Any) -> Tensor:
        rewards = self._original["_calculate_rewards"](inputs, prompts, completions, completion_ids)
        self._rewards, self._lengths = rewards.detach(), [len(ids) for ids in completion_ids]
        return rewards

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        output = self._original["_generate_and_score_completions"](inputs)
        if not self.trainer.model.training or self._rewards is None:
            return output
        rows, device = len(inputs), output["completion_ids"].device
        first = self.trainer.accelerator.process_index * rows
        groups = torch.arange(first, first + rows, device=device) // self.trainer.num_generations
        riders = {"rewards": self._rewards[first : first + rows], "lengths": torch.tensor(self._lengths, device=device)}
        self._generations += 1
        self._steps_since = 0
        number = torch.full((rows,), self._generations, device=device)
        riders |= {"groups": groups, "generation": number}
        return output | {MARK + name: values for name, values in riders.items()}

    def _get_per_token_logps_and_entropies(self, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor | None, Any]:
        scored = self._original["_get_per_token_logps_and_entropies"](*args, **kwargs)
        self._scored = scored
        return scored

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> Tensor:
        loss = self._original["_compute_loss"](model, inputs)
        scored, self._scored = self._scored, None
        trainer = self.trainer
        if not trainer.model.training or scored is None:
            return loss
        riders = {name: inputs.get(MARK + name) for name in ("rewards", "lengths", "groups", "generation")}
        if trainer.state.global_step % self.every == 0:
            metrics = {name: values[-1] for name, values in trainer._metrics["train"].items() if values}
            part = MicroBatch.of(inputs, scored[0], scored[1], loss, riders, metrics, self._iteration(riders))
            self._parts.append(part)
        if trainer.accelerator.sync_gradients:
            parts, self._parts = self._parts, []
            self._steps_since += 1
            if parts:
                self._write(parts)
        return loss

    def _iteration(self, riders: Mapping[str, Tensor | None]) -> int | None:
        """Optimizer steps between this row's sampling and now; None where it was sampled before we listened."""
        return None if riders["generation"] is None else self._steps_since

    # ---- the file -----------------------------------------------------------------------------------------------------------
    def _write(self, parts: list[MicroBatch]) -> None:
        trainer = self.trainer
        step, path = trainer.state.global_step, self._file(trainer.state.global_step)
        try:
            batch = batch_of_step(parts, settings_of(trainer), trainer.reward_func_names, trainer.reward_weights)
            known = {"step": step, "tokens": tokens_of(trainer, batch.row_ids().unique().tolist())}
            batch = replace(batch, meta={**batch.meta, **known})
            path.parent.mkdir(parents=True, exist_ok=True)
            save_batch(batch, path)
        except (ValueError, OSError) as error:
            warnings.warn(f"grpo_core.capture: step {step} was not kept: {error}", stacklevel=2)
            return
        self.paths.append(path)

    def _file(self, step: int) -> Path:
        named = self.path.suffix.lower() in (".json", ".safetensors")
        path = self.path if named else self.path / "step-{step}.safetensors"
        path = path.with_name(path.name.replace("{step}", f"{step:08d}"))
        rank = self.trainer.accelerator.process_index
        return path.with_name(f"{path.stem}-rank{rank}{path.suffix}") if rank else path
