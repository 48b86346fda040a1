"""A stranger's file, within bounds: nothing is executed, no pipe or device is waited for, and what would not fit into memory
is refused before it is read.

Text is JSON: at most so many bytes, lists and numbers, so that what it unfolds to is bounded as well. Tensors are safetensors:
large ones stay on the disk and are read where they are touched (`MAPPED_BYTES`).
"""

import json
import math
import os
import stat
from pathlib import Path
from typing import Any, BinaryIO

import psutil
from safetensors import SafetensorError, safe_open
from torch import Tensor

from .fields import FIELDS, BadField

MAX_JSON_BYTES = 2**28
MAX_LISTS = 2**21  # lists and objects of a JSON text; each takes 60 bytes and more in memory
MAX_NUMBERS = 2**25  # commas of a JSON text: numbers and texts; a decimal takes 32 bytes
MAPPED_BYTES = 2**26  # a tensor from this size on stays tied to its file, which must not be cut off while it is in use
Document = dict[str, Any]


def opened(path: Path) -> BinaryIO:
    """A regular file, or what a link to one leads to. Raises BadField for everything else, without waiting for it."""
    try:
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))  # a pipe without a writer would block
    except FileNotFoundError:
        raise BadField("content", "no such file", "a readable file") from None
    except (OSError, ValueError) as error:
        found = f"a file that cannot be opened ({reason(error)})"
        raise BadField("content", found, "a readable file") from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise BadField("content", "something that is not a file", "a readable file")
    return os.fdopen(descriptor, "rb")


def read_bytes(file: BinaryIO, most: int) -> bytes:
    """What a file gives at once; a file of /proc may have nothing to give yet, or refuse. Raises BadField."""
    try:
        return file.read(most) or b""
    except OSError as error:
        raise BadField("content", f"a file that cannot be read ({reason(error)})", "a readable file") from error


def reason(error: BaseException) -> str:
    """What a library says of a failure, in one line."""
    text = " ".join((getattr(error, "strerror", None) or str(error) or type(error).__name__).split())
    return text if text.isprintable() else ascii(text)[1:-1]


# ---- JSON ------------------------------------------------------------------------------------------------------------------
def read_text(path: Path) -> str:
    """The text of a JSON file. Raises BadField where it is no text, or too much of it."""
    with opened(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > MAX_JSON_BYTES:
            raise BadField("content", f"{size} bytes", f"at most {MAX_JSON_BYTES} in .json; .safetensors holds any size")
        data = read_bytes(file, MAX_JSON_BYTES + 1)  # a file may grow, and those of /proc have no size
    counts = {"lists and objects": (data.count(b"[") + data.count(b"{"), MAX_LISTS), "commas": (data.count(b","), MAX_NUMBERS)}
    for what, (count, most) in counts.items():
        if count > most or len(data) > MAX_JSON_BYTES:
            raise BadField("content", f"{count} {what} in one text", f"at most {most}; .safetensors holds any size")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise BadField("content", f"a byte that is not UTF-8 at {error.start}", "JSON") from error


def parsed(text: str, allowed: str = "one JSON object") -> Any:
    """A JSON text. Raises BadField where it is none, is nested too deeply, or says a name twice."""
    try:
        return json.loads(text, object_pairs_hook=_each_once)
    except BadField:
        raise
    except (ValueError, RecursionError) as error:
        why = "nested too deeply" if isinstance(error, RecursionError) else reason(error)
        raise BadField("content", f"text that is not JSON ({why})", allowed) from error


def read_json(path: Path) -> tuple[Document, dict[str, Tensor]]:
    """A JSON batch file. Raises BadField."""
    document = parsed(read_text(path))
    if not isinstance(document, dict):
        raise BadField("content", f"a JSON {type(document).__name__}", "one JSON object")
    return document, {}


def _each_once(pairs: list[tuple[str, Any]]) -> Document:
    document = dict(pairs)
    if len(document) < len(pairs):
        seen: set[str] = set()
        twice = next(name for name, _ in pairs if name in seen or seen.add(name))
        raise BadField(ascii(twice[:60]), "the name twice", "once")
    return document


# ---- safetensors -----------------------------------------------------------------------------------------------------------
def read_safetensors(path: Path) -> tuple[Document, dict[str, Tensor]]:
    """A safetensors batch file: its metadata's `grpo`, and its tensors. Raises BadField."""
    opened(path).close()
    try:
        with safe_open(path, framework="pt") as file:
            text = (file.metadata() or {}).get("grpo", "{}")
            names = file.keys()
            _refuse_too_large({name: file.get_slice(name).get_shape() for name in names})
            tensors = {name: _loaded(file.get_tensor(name)) for name in names}
    except BadField:
        raise
    except (SafetensorError, OSError, RuntimeError, ValueError, KeyError, OverflowError, MemoryError) as error:
        raise BadField("content", f"no safetensors file ({reason(error)[:200]})", "a whole safetensors file") from error
    document = parsed(text)
    if not isinstance(document, dict):
        raise BadField("metadata", f"a JSON {type(document).__name__}", "one JSON object")
    return document, tensors


def _loaded(tensor: Tensor) -> Tensor:
    """Small tensors in memory; large ones stay on the disk, where a window of their rows costs that window."""
    return tensor if tensor.numel() * tensor.element_size() >= MAPPED_BYTES else tensor.clone()


def _refuse_too_large(shapes: dict[str, list[int]]) -> None:
    """Everything but the logits is worked on as a whole: ids as 64-bit numbers, a copy now and then."""
    cells = {name: math.prod(shape) for name, shape in shapes.items() if "V" not in "".join(_axes(name))}
    room = psutil.virtual_memory().available // 2
    if 8 * sum(cells.values()) > room:
        largest = max(cells, key=lambda name: cells[name])
        found = f"{sum(cells.values())} numbers beside the logits, {ascii(largest[:60])} {shapes[largest]} the most"
        raise BadField("content", found, f"{room // 8}, half of this machine's free memory")


def _axes(name: str) -> tuple[str, ...]:
    return FIELDS[name].axes if name in FIELDS else ()
