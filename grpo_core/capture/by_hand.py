"""A batch file from a loop of one's own: tensors, arrays or lists by the batch file's names."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..batch import Batch
from ..batch_file import save_batch
from ..batch_file.fields import FIELDS, META, REPORTED, BadField
from ..batch_file.files import batch_of_content, shown


def save(path: str | Path, **fields: Any) -> Batch:
    """Writes a batch file, whole or not at all, and returns what is in it.

    `fields` are the names of `grpo_core.batch.Batch`: tensors [B …] on any device, arrays, or lists of rows, ragged ones too.
    Names of `meta` (temperature, beta, pad_token_id, …) may stand beside them, so may `loss` and `grad_norm`, which go into
    `reported`. Raises ValueError with one line that names the field.
    """
    path = Path(path)
    try:
        batch = batch_of(fields)
    except BadField as error:
        raise ValueError(f"{shown(path)}: {error}") from error
    save_batch(batch, path)
    return batch


def batch_of(fields: Mapping[str, Any]) -> Batch:
    """Raises BadField."""
    settings = {name for name in META if name not in FIELDS}
    numbers = {name for name in REPORTED if name not in FIELDS}
    document: dict[str, Any] = {"meta": dict(fields.get("meta") or {}), "reported": dict(fields.get("reported") or {})}
    tensors: dict[str, Tensor] = {}
    for name, value in fields.items():
        if name in ("meta", "reported") or value is None:
            continue
        value = _plain(value)
        if name in settings:
            document["meta"][name] = value
        elif name in numbers:
            document["reported"][name] = value.item() if isinstance(value, Tensor) and value.numel() == 1 else value
        elif isinstance(value, Tensor):
            tensors[name] = value
        else:
            document[name] = value
    return batch_of_content(document, tensors)


def _plain(value: Any) -> Any:
    """A tensor without its graph, on the CPU; an array as a tensor; rows that are such things one by one."""
    if isinstance(value, Tensor):
        return value.detach().cpu()
    if hasattr(value, "__array__") and getattr(value, "dtype", None) is not None and value.dtype.kind in "biuf":
        return torch.as_tensor(value)
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value
