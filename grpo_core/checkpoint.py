"""Checkpoints of a run: written beside the old ones and renamed when complete, so that a kill at any moment leaves the older.

    OUT/checkpoint-00000040/  model/ (a folder that transformers loads), optimizer.pt, state.json
    OUT/step-00000012/        the same, plus what the step was given: `app.py --model` opens it in the lessons

`state.json` holds the SHA-256 of every other file; what does not match is not a checkpoint.
"""

import hashlib
import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError

from .policy import Policy

STATE, MODEL, OPTIMIZER = "state.json", "model", "optimizer.pt"
WRITE_ERRORS = (OSError, RuntimeError, SafetensorError)  # a full disk reaches us as any of them


@dataclass(frozen=True)
class Checkpoint:
    """A complete one on disk."""

    folder: Path
    state: dict[str, Any]

    @property
    def model(self) -> Path:
        return self.folder / MODEL

    def optimizer(self) -> dict[str, Any]:
        return torch.load(self.folder / OPTIMIZER, weights_only=True, map_location="cpu")


def save(folder: Path, policy: Policy, weights: dict[str, Any], optimizer: dict[str, Any], state: dict[str, Any]) -> None:
    """Writes a checkpoint; it is at `folder` when it is complete, and not before. Raises one of WRITE_ERRORS."""
    part = folder.with_name(f".{folder.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    try:
        policy.model.save_pretrained(part / MODEL, state_dict=weights)
        policy.tokenizer.save_pretrained(part / MODEL)
        torch.save(optimizer, part / OPTIMIZER)
        files = {str(path.relative_to(part)): digest(path) for path in sorted(part.rglob("*")) if path.is_file()}
        (part / STATE).write_text(json.dumps(state | {"files": files}, indent=1), encoding="utf-8")
        for path in part.rglob("*"):
            _to_disk(path)
        shutil.rmtree(folder, ignore_errors=True)
        part.rename(folder)
        _to_disk(folder.parent)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise


def _to_disk(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read(folder: Path) -> Checkpoint:
    """The checkpoint at a folder. Raises ValueError where it is not complete and whole."""
    try:
        state = json.loads((folder / STATE).read_text(encoding="utf-8"))
        files = state["files"]
        for name, expected in files.items():
            if digest(folder / name) != expected:
                raise ValueError(f"{name} is not what was written")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"checkpoint: {folder} cannot be used ({str(error)[:200]})") from error
    return Checkpoint(folder, state)


def newest(out: Path) -> tuple[Checkpoint | None, list[str]]:
    """The newest whole checkpoint of a run, and a line for each newer one that had to be passed over."""
    passed = []
    for folder in sorted(out.glob("checkpoint-*"), reverse=True):
        try:
            return read(folder), passed
        except ValueError as error:
            passed.append(str(error))
    return None, passed


def prune(out: Path, keep: int, last: str) -> None:
    """Deletes all but the newest `keep` checkpoints up to the one that was just written. Later ones are those that a resumed
    run could not use: they do not count, and the run will write over them."""
    for folder in [one for one in sorted(out.glob("checkpoint-*")) if one.name <= last][:-keep]:
        shutil.rmtree(folder, ignore_errors=True)
