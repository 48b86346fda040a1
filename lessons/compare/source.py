"""The batch that is compared: a traced step's update, or a batch file. And what is computed from it, once for all visitors.

Files live in this server's memory only, the least recently used go first. A link names one by the hash of its name and bytes:
only who has the file, or a link from somebody who has, can ask for it.
"""

import hashlib
import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from torch import Tensor

from grpo_core import Recipe
from grpo_core.batch_file import load_batch, remarks
from grpo_core.compare import NUMBERS, compare, cosines
from grpo_core.fingerprint import Candidate, candidates
from grpo_core.inputs import LossInputs
from grpo_core.presets import PRESETS
from grpo_core.types import Batch

from .. import view
from ..cache import ByteCache
from .link import STEP, Wanted

MAX_FILE_BYTES = 32 * 2**20
MAX_CELLS = 2**17  # rows x scored columns; every preset on a batch of this size takes this kind of machine half a minute
_files = ByteCache(128 * 2**20)
_made = ByteCache(64 * 2**20)
_first: list["Source"] = []  # the file that the server was started with; never forgotten


@dataclass(frozen=True, kw_only=True)
class Source:
    """One batch, and what its tokens are."""

    key: Hashable
    name: str  # of the file; empty for a step
    inputs: LossInputs
    ids: Tensor  # [B S]
    positions: tuple[int, ...]  # the place in the row of each scored column
    texts: Mapping[str, str]  # id -> text, where a file says it
    recipe: Recipe | None = None  # the step that it comes from
    updates: int = 1
    update: int = 0
    remarks: tuple[str, ...] = ()  # what a reader should know of the file
    printed: str = ""  # the loss that the file says its trainer printed

    def text(self, row: int, column: int) -> str:
        """A scored token as text, else its id."""
        token = int(self.ids[row, self.positions[column]])
        if self.recipe:
            return view.bench().tokens(self.recipe).piece(token)
        return str(self.texts.get(str(token), token))

    @cached_property
    def lines(self) -> tuple[tuple[int, str], ...]:
        """(row, group and answer as `1·2`, or the row's number)."""
        groups = self.inputs.group_ids
        if groups is None:
            return tuple((row, str(row + 1)) for row in range(len(self.ids)))
        seen, numbers, lines = dict[int, int](), dict[int, int](), []
        for row, group in enumerate(groups.tolist()):
            seen[group] = seen.get(group, 0) + 1
            lines.append((row, f"{numbers.setdefault(group, len(numbers) + 1)}·{seen[group]}"))
        return tuple(lines)


@dataclass(frozen=True, kw_only=True)
class Line:
    """A preset on this batch: its numbers without the cosine, or what it needs."""

    preset: str
    needs: tuple[str, ...]
    numbers: dict[str, float | None]


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Every preset on one batch."""

    lines: tuple[Line, ...]
    cosines: Mapping[str, Mapping[str, float | None]]  # of the computable ones

    def numbers(self, line: Line, against: str) -> dict[str, float | None]:
        """By the names of `grpo_core.compare.NUMBERS`, as `compare(inputs, against=…)` gives them."""
        return line.numbers | {"cosine": self.cosines.get(against, {}).get(line.preset)} if line.numbers else {}


# ---- batches -----------------------------------------------------------------------------------------------------------
def open_file(path: str | Path, name: str = "") -> Source:
    """A batch file into memory. Raises ValueError with one line."""
    path, name = Path(path), name or Path(path).name
    size = path.stat().st_size if path.is_file() else 0
    if size > MAX_FILE_BYTES:
        raise ValueError(
            f"{name}: found {size} bytes, allowed here: {MAX_FILE_BYTES}; `python -m grpo_core compare FILE` takes any size"
        )
    content = name.encode("utf-8", "backslashreplace") + b"\0" + path.read_bytes() if size else b""
    digest = hashlib.sha256(content).hexdigest()[:32] if size else ""
    try:
        return _files.get(digest, lambda: _read(path, digest, name))
    except ValueError as error:
        raise ValueError(str(error).replace(str(path), name)) from error


def _read(path: Path, key: str, name: str) -> Source:
    return of_batch(load_batch(path), key, name, str(path))


def of_batch(batch: Batch, key: str, name: str, place: str) -> Source:
    """A batch in memory. Raises ValueError with one line that begins with `place`."""
    rows, columns = batch.trained_mask().shape
    if rows * columns > MAX_CELLS:
        raise ValueError(
            f"{place}: found {rows} rows x {columns} scored columns, allowed here: {MAX_CELLS} in all; "
            "`python -m grpo_core compare FILE` takes any size"
        )
    try:
        inputs = LossInputs.of_batch(batch)
    except ValueError as error:
        raise ValueError(f"{place}: {error}") from error
    ids, reported = batch.row_ids(), batch.reported.get("loss")
    reported = float(reported) if isinstance(reported, int) and not isinstance(reported, bool) else reported
    texts = batch.meta.get("tokens")
    return Source(
        key=key, name=name, inputs=inputs, ids=ids, positions=tuple(batch.token_positions().tolist()),
        texts=dict(texts) if isinstance(texts, Mapping) else {},
        remarks=tuple(dict.fromkeys((*inputs.derived, *remarks(batch)))),
        printed=str(reported) if isinstance(reported, float) and math.isfinite(reported) else "",
    )  # fmt: skip


def preload(path: str) -> Source:
    """The batch that everybody gets who asks for none. Raises ValueError with one line."""
    _first[:] = [open_file(path)]
    return _first[0]


def first_file() -> Source | None:
    return _first[0] if _first else None


def file_of(wanted: Wanted) -> Source | None:
    """The file that is asked for; None where it is the step's batch. Raises LookupError where it is no longer here."""
    if wanted.batch == STEP or (not wanted.batch and not _first):
        return None
    if not wanted.batch or (_first and wanted.batch == _first[0].key):
        return _first[0]
    found = _files.ready(wanted.batch)
    if found is None:
        raise LookupError(wanted.batch)
    return found


def step_source(wanted: Wanted) -> Source | None:
    """One update of the step; None where the model has yet to run."""
    batch = view.bench().sources.batch(wanted.recipe.model)
    if batch:
        return _files.get(wanted.recipe.model, lambda: of_batch(batch.batch, wanted.recipe.model, batch.file, batch.file))
    if not view.bench().has_step(wanted.recipe):
        return None
    trace = view.bench().step(wanted.recipe).trace
    last = len(trace.updates) - 1
    update = last if wanted.update is None else min(wanted.update, last)
    return Source(
        key=(wanted.recipe, update), name="", inputs=LossInputs.of_trace(trace, update), ids=trace.batch.row_ids(),
        positions=tuple(trace.batch.token_positions().tolist()), texts={}, recipe=wanted.recipe,
        updates=last + 1, update=update,
    )  # fmt: skip


# ---- what is computed from one -----------------------------------------------------------------------------------------
def compared(source: Source) -> Comparison:
    return _made.get(("comparison", source.key), lambda: _compared(source.inputs))


def _compared(inputs: LossInputs) -> Comparison:
    lines, grads = [], {}
    for name in PRESETS:  # one at a time: only numbers and gradients stay
        (row,) = compare(inputs, [name])
        lines.append(Line(preset=name, needs=row.needs, numbers=row.numbers()))
        if row.evaluation is not None:
            grads[name] = row.evaluation.grad
    pairs = dict(zip(grads, (dict(zip(grads, line, strict=True)) for line in cosines(list(grads.values()))), strict=True))
    assert all(not line.numbers or tuple(line.numbers) == NUMBERS for line in lines)
    return Comparison(lines=tuple(lines), cosines=pairs)


def candidates_of(source: Source) -> Sequence[Candidate]:
    return _made.get(("candidates", source.key), lambda: candidates(source.inputs))


def is_ready(source: Source, with_candidates: bool) -> bool:
    """Whether the table, and what a printed number is looked up in, have been made."""
    kinds = ("comparison", "candidates") if with_candidates else ("comparison",)
    return all(_made.ready((kind, source.key)) is not None for kind in kinds)
