"""The batch file: `load_batch` and `save_batch`, for `.json` and `.safetensors`; nothing is ever unpickled.

A file is a *document* (names -> JSON values) and, in safetensors, tensors beside it; the document then stands in the file's
metadata under `grpo`. In memory numbers are fp32, ids 64-bit, masks bool; a safetensors file keeps fp64 as it is.
"""

import json
import math
import os
import secrets
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from ..batch import Batch
from .cells import numbers_of
from .document import KNOWN, batch_of_document
from .fields import CONVENTION, FIELDS, META, TEXTS, BadField
from .reading import Document, read_json, read_safetensors, reason
from .rows import starts

MAX_HEADER_BYTES = 99_000_000  # the safetensors library refuses headers above 100 MB


def load_batch(path: str | Path) -> Batch:
    """Read a batch file. Tensors of 64 MiB and more, logits above all, stay on the disk: `batch.rows(index)` reads those rows.

    Raises ValueError with one line: file, field, row, what was found, what is allowed.
    """
    path = Path(path)
    try:
        return batch_of_content(*_encoding(path, READERS)(path))
    except BadField as error:
        raise ValueError(f"{shown(path)}: {error}") from error


def save_batch(batch: Batch, path: str | Path) -> None:
    """Write a batch file, whole or not at all. Raises ValueError with one line where that is impossible."""
    path = Path(path)
    try:
        write = _encoding(path, WRITERS)
        temporary = path.with_name(f".{secrets.token_hex(8)}.tmp")
        try:
            write(batch, temporary)
            os.replace(temporary, path)
        finally:
            with suppress(OSError, ValueError):  # moved away, or never made
                temporary.unlink()
    except BadField as error:
        raise ValueError(f"{shown(path)}: {error}") from error
    except (OSError, ValueError, SafetensorError) as error:
        raise ValueError(f"{shown(path)}: cannot be written ({reason(error)})") from error


def remarks(batch: Batch) -> tuple[str, ...]:
    """What a reader should know of the file: masks that were derived, names that the format does not have."""
    unknown = [*batch.extra, *(f"meta.{key}" for key in batch.meta if key not in META and key not in CONVENTION)]
    return (*batch.derived, *(f"{ascii(name[:60])[1:-1]}: not a name of the batch format, kept as it is" for name in unknown))


def _encoding(path: Path, table: Mapping[str, Callable]) -> Callable:
    if path.suffix.lower() not in table:
        raise BadField("file name", ascii(path.suffix), " or ".join(table))
    return table[path.suffix.lower()]


def shown(path: Path) -> str:
    """A file's name in a message of one line."""
    return str(path) if str(path).isprintable() else ascii(str(path))


# ---- reading ---------------------------------------------------------------------------------------------------------------
def batch_of_content(document: Document, tensors: Mapping[str, Tensor]) -> Batch:
    """What a file held as a checked batch. Raises BadField."""
    for name in tensors:
        if name in document or (name in KNOWN and name not in FIELDS):
            raise BadField(ascii(name), "a tensor", "one of tensor and metadata, texts and objects in the metadata")
    try:
        return batch_of_document(document, tensors)
    except RecursionError as error:
        raise BadField("content", "text that is not JSON (nested too deeply)", "one JSON object") from error
    except MemoryError as error:
        raise BadField("content", "more than there is memory for", "a batch that fits") from error


READERS = {".json": read_json, ".safetensors": read_safetensors}


# ---- writing ---------------------------------------------------------------------------------------------------------------
def _tensors(batch: Batch) -> dict[str, Tensor]:
    held = {name: getattr(batch, name) for name in FIELDS}
    return {name: tensor for name, tensor in held.items() if tensor is not None}


def _document(batch: Batch) -> Document:
    """What is no tensor, in both encodings; empty things are left out."""
    listed = {name: list(getattr(batch, name) or ()) for name in (*TEXTS, "derived")}
    objects = {name: dict(getattr(batch, name)) for name in ("reported", "meta")}
    return {name: value for name, value in (listed | objects).items() if value}


def _write_json(batch: Batch, path: Path) -> None:
    document = {name: _rows(batch, name, tensor) for name, tensor in _tensors(batch).items()}
    extra = {name: numbers_of(value) if isinstance(value, Tensor) else value for name, value in batch.extra.items()}
    lines = [f"{json.dumps(name)}: {_by_row(name, value)}" for name, value in (document | _document(batch) | extra).items()]
    path.write_text("{\n " + ",\n ".join(lines) + "\n}\n", encoding="utf-8")


def _rows(batch: Batch, name: str, tensor: Tensor) -> list:
    """A field as nested lists: rows as long as they were read, null where a reward is missing, [B] for one reward."""
    rows = numbers_of(tensor)
    if name in batch.row_lengths:
        lengths = batch.row_lengths[name]
        begin = starts(name, lengths, tensor.shape[1], batch.row_lengths)
        return [row[first : first + length] for row, first, length in zip(rows, begin, lengths, strict=True)]
    if name == "rewards":
        missing = torch.zeros(tensor.shape) if batch.rewards_missing is None else batch.rewards_missing
        pairs = zip(rows, missing.tolist(), strict=True)
        rows = [[None if gone else value for value, gone in zip(*pair, strict=True)] for pair in pairs]
        return [row[0] for row in rows] if tensor.shape[1] == 1 else rows
    return rows


def _by_row(name: str, value: Any) -> str:
    """JSON with one row to a line."""
    if isinstance(value, list) and value and isinstance(value[0], list):
        return "[\n  " + ",\n  ".join(_dumped(name, row) for row in value) + "]"
    return _dumped(name, value)


def _dumped(name: str, value: Any) -> str:
    try:
        return json.dumps(_quoted(value), allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise BadField(name, f"a value that JSON cannot hold ({reason(error)})", "numbers, texts, lists, objects") from error


def _quoted(value: Any) -> Any:
    """Non-finite numbers as words: JSON itself has none."""
    if isinstance(value, Mapping):
        return {key: _quoted(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_quoted(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value


def _write_safetensors(batch: Batch, path: Path) -> None:
    tensors = _tensors(batch) | {name: value for name, value in batch.extra.items() if isinstance(value, Tensor)}
    document = _document(batch) | {name: value for name, value in batch.extra.items() if name not in tensors}
    if batch.row_lengths:
        document["row_lengths"] = {name: list(lengths) for name, lengths in batch.row_lengths.items()}
    if batch.rewards_missing is not None:
        document["rewards_missing"] = batch.rewards_missing.nonzero().tolist()  # [row, function] of each null
    text = "{" + ", ".join(f"{json.dumps(name)}: {_dumped(name, value)}" for name, value in document.items()) + "}"
    if len(json.dumps(text)) > MAX_HEADER_BYTES:  # the metadata are escaped once more inside the header
        raise BadField("metadata", f"{len(text)} bytes", f"at most {MAX_HEADER_BYTES}, quotes escaped")
    save_file(_apart(tensors), path, metadata={"grpo": text})


def _apart(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """On the CPU, and no two in one memory: safetensors refuses those."""
    seen, apart = set(), {}
    for name, tensor in tensors.items():
        tensor = tensor.detach().cpu().contiguous()
        memory = tensor.untyped_storage().data_ptr()
        apart[name] = tensor.clone() if memory in seen else tensor
        seen.add(memory)
    return apart


WRITERS = {".json": _write_json, ".safetensors": _write_safetensors}
