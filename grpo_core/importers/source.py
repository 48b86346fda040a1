"""A file that somebody brings, read by its first bytes: JSON, JSON lines, parquet, safetensors, or a `.pt` archive."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from ..batch_file.fields import BadField, short
from ..batch_file.reading import opened, parsed, read_bytes, read_safetensors, read_text
from .archive import read_archive
from .table import read_table

MAX_ROWS = 2**18
MAX_TEXT_LINES = 2**22  # of JSON over several lines
PICKLE = b"\x80"  # the first byte of every pickle since protocol 2


@dataclass(frozen=True, kw_only=True)
class Source:
    """What a file holds, before anybody knows what it means. One of the two is empty, but a JSON object is its own only row."""

    kind: str  # "json", "json lines", "parquet", "pt", "safetensors"
    rows: Sequence[Mapping[str, Any]] = ()
    document: Any = None  # a JSON object, a safetensors file's metadata, or what torch.load returned
    tensors: Mapping[str, Tensor] = field(default_factory=dict)

    @property
    def names(self) -> frozenset[str]:
        """The names of the first row."""
        return frozenset(self.rows[0]) if self.rows else frozenset()


def read_source(path: Path) -> Source:
    """Raises BadField."""
    with opened(path) as file:
        start = read_bytes(file, 16)
    if not start:
        raise BadField("content", "an empty file", "a batch file or another tool's dump")
    if start.startswith(b"PAR1"):
        return Source(kind="parquet", rows=_checked(read_table(path)))
    if start.startswith(b"PK"):
        return Source(kind="pt", document=read_archive(path))
    if start.startswith(PICKLE):
        raise BadField("content", "a pickle, which may hold code", "nothing is unpickled: save tensors with torch.save(dict)")
    if len(start) > 8 and start[8:9] == b"{" and start[7] == 0:  # safetensors: the header's length in 8 bytes, then JSON
        document, tensors = read_safetensors(path)
        return Source(kind="safetensors", document=document, tensors=tensors)
    return _of_text(read_text(path))


def _of_text(text: str) -> Source:
    """One JSON object, a list of objects, or an object per line."""
    if text.count("\n") > MAX_TEXT_LINES:
        raise BadField("content", f"{text.count(chr(10))} lines", f"at most {MAX_TEXT_LINES}")
    lines = [(number, line) for number, line in enumerate(text.split("\n"), start=1) if line.strip()]
    if len(lines) > 1 and _is_object(lines[0][1]):
        if len(lines) > MAX_ROWS:
            raise BadField("content", f"{len(lines)} rows", f"at most {MAX_ROWS}")
        return Source(kind="json lines", rows=_checked([_line(number, line) for number, line in lines]))
    whole = parsed(text, "a JSON object, a list of objects, or an object per line")
    if isinstance(whole, dict):
        return Source(kind="json", rows=[whole], document=whole)
    if isinstance(whole, list) and whole:
        return Source(kind="json", rows=_checked(whole))
    raise BadField("content", f"a JSON {type(whole).__name__} without rows", "a JSON object, or objects")


def _is_object(line: str) -> bool:
    """Whether a line is a JSON object by itself; of an object over several lines the first is less than that."""
    try:
        return isinstance(parsed(line), dict)
    except BadField:
        return False


def _line(number: int, line: str) -> Any:
    try:
        return parsed(line)
    except BadField as error:
        raise BadField(f"line {number}", *_found(error)) from error


def _found(error: BadField) -> tuple[str, str]:
    found, _, allowed = str(error).partition(": found ")[2].partition(", allowed: ")
    return found, allowed


def _checked(rows: list[Any]) -> list[Mapping[str, Any]]:
    if len(rows) > MAX_ROWS:
        raise BadField("content", f"more than {MAX_ROWS} rows", f"at most {MAX_ROWS}")
    for row, value in enumerate(rows):
        if not isinstance(value, dict):
            raise BadField("content", short(value), "objects only", row)
    return rows
