"""A policy's weights as a folder that another engine loads: adapters added to the weights that they stand beside."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from transformers.utils import logging

from ..policy import Policy

BEFORE = "base_model.model."  # PEFT's names of what it wraps
PREFIX = "weights-"


def save_weights(policy: Policy, weights: dict[str, Any], folder: Path, version: int) -> Path:
    """Writes `folder`/weights-VERSION, complete when it is there, and deletes those of before. `weights` are the engine's.

    Raises one of `checkpoint.WRITE_ERRORS`.
    """
    model = policy.model
    if hasattr(model, "get_base_model"):
        weights, model = merged(policy, weights), model.get_base_model()
    whole = folder / f"{PREFIX}{version:08d}"
    part = folder / f"{PREFIX}part"
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    with _without_bars():
        model.save_pretrained(part, state_dict=weights)
    shutil.rmtree(whole, ignore_errors=True)
    part.rename(whole)
    for other in folder.glob(f"{PREFIX}*"):
        if other != whole:
            shutil.rmtree(other, ignore_errors=True)
    return whole


@contextmanager
def _without_bars() -> Iterator[None]:
    """This is written at every step: transformers' own bar would run between the lines of the run's."""
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


@torch.no_grad()
def merged(policy: Policy, weights: dict[str, Any]) -> dict[str, Any]:
    """The weights of a model with LoRA adapters as those of the model without: each adapted one plus its adapter's product,
    added in fp32. The policy's own stay as they are."""
    deltas = {
        f"{name}.base_layer.weight": torch.stack([layer.get_delta_weight(one).float() for one in layer.active_adapters]).sum(0)
        for name, layer in policy.model.named_modules()
        if hasattr(layer, "get_delta_weight") and hasattr(layer, "base_layer")
    }
    assert deltas.keys() <= weights.keys()
    found = {}
    for name, values in weights.items():
        if ".lora_" not in name:
            added = (values.float() + deltas[name].to(values.device)).to(values.dtype) if name in deltas else values
            found[name.removeprefix(BEFORE).replace(".base_layer.", ".")] = added
    return found
