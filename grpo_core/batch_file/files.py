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
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from ..batch import Batch
from .cells import numbers_of
from .document import KNOWN, batch_of_document
from .fields import FIELDS, META, TEXTS, BadField
from .rows import starts

MAX_JSON_BYTES = 2**28
MAX_HEADER_BYTES = 99_000_000  # the safetensors library refuses headers above 100 MB
Document = dict[str, Any]


def load_batch(path: str | Path) -> Batch:
    """Read a batch file. Raises ValueError with one line: file, field, row, what was found, what is allowed."""
    path = Path(path)
    try:
        return batch_of_document(*_encoding(path, READERS)(path))
    except BadField as error:
        raise ValueError(f"{_name(path)}: {error}") from error


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
        raise ValueError(f"{_name(path)}: {error}") from error
    except (OSError, ValueError, SafetensorError) as error:
        raise ValueError(f"{_name(path)}: cannot be written ({_reason(error)})") from error


def remarks(batch: Batch) -> tuple[str, ...]:
    """What a reader should know of the file: masks that were derived, names that the format does not have."""
    unknown = [*batch.extra, *(f"meta.{key}" for key in batch.meta if key not in META)]
    return (*batch.derived, *(f"{ascii(name[:60])[1:-1]}: not a name of the batch format, kept as it is" for name in unknown))


def _encoding(path: Path, table: Mapping[str, Callable]) -> Callable:
    if path.suffix.lower() not in table:
        raise BadField("file name", ascii(path.suffix), " or ".join(table))
    return table[path.suffix.lower()]


def _name(path: Path) -> str:
    return str(path) if str(path).isprintable() else ascii(str(path))


def _reason(error: Exception) -> str:
    return " ".join((getattr(error, "strerror", None) or str(error)).split())


# ---- reading ---------------------------------------------------------------------------------------------------------------
def _read_json(path: Path) -> tuple[Document, dict[str, Tensor]]:
    _refuse_unreadable(path)
    size = path.stat().st_size
    if size > MAX_JSON_BYTES:
        raise BadField("content", f"{size} bytes", f"at most {MAX_JSON_BYTES} in .json; .safetensors holds any size")
    try:
        return _parsed(path.read_bytes().decode("utf-8-sig")), {}
    except UnicodeDecodeError as error:
        raise BadField("content", f"a byte that is not UTF-8 at {error.start}", "JSON") from error


def _refuse_unreadable(path: Path) -> None:
    try:
        if path.is_file():  # not a folder, not a pipe
            path.open("rb").close()
            return
        found = "something that is not a file" if path.exists() else "no such file"
    except (OSError, ValueError) as error:
        found = f"a file that cannot be opened ({_reason(error)})"
    raise BadField("content", found, "a readable file")


def _parsed(text: str) -> Document:
    try:
        document = json.loads(text, object_pairs_hook=_each_once)
    except BadField:
        raise
    except (ValueError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else _reason(error)
        raise BadField("content", f"text that is not JSON ({reason})", "one JSON object") from error
    if not isinstance(document, dict):
        raise BadField("content", f"a JSON {type(document).__name__}", "one JSON object")
    return document


def _each_once(pairs: list[tuple[str, Any]]) -> Document:
    document = dict(pairs)
    if len(document) < len(pairs):
        names = [name for name, _ in pairs]
        raise BadField(ascii(next(name for name in names if names.count(name) > 1)), "the name twice", "once")
    return document


def _read_safetensors(path: Path) -> tuple[Document, dict[str, Tensor]]:
    _refuse_unreadable(path)
    try:
        with safe_open(path, framework="pt") as file:
            text = (file.metadata() or {}).get("grpo", "{}")
            tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # not tied to the file on disk
    except (SafetensorError, OSError, RuntimeError, ValueError, KeyError) as error:
        raise BadField("content", f"no safetensors file ({_reason(error)[:200]})", "a whole safetensors file") from error
    document = _parsed(text)
    for name in tensors:
        if name in document or (name in KNOWN and name not in FIELDS):
            raise BadField(ascii(name), "a tensor", "one of tensor and metadata, texts and objects in the metadata")
    return document, tensors


READERS = {".json": _read_json, ".safetensors": _read_safetensors}


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
        raise BadField(name, f"a value that JSON cannot hold ({_reason(error)})", "numbers, texts, lists, objects") from error


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
