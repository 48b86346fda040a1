"""The batch that is looked at: a file, a traced step's update, or that step with a fault planted.

Files live in this server's memory only, the least recently used go first; nothing of them is written to disk. A link names one
by the hash of its name and bytes: only who has the file, or a link from somebody who has, can ask for it.
"""

import hashlib
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from torch import Tensor

from grpo_core import Batch, Policy, Recipe, batch_of_trace
from grpo_core.importers import open_any
from grpo_core.planted import PLANTED

from .. import view
from ..batches import is_batch
from ..cache import ByteCache
from ..compare import source as compare_source
from ..lesson import Selection
from .link import EXAMPLE, EXAMPLES, NONE, STEP, Wanted
from .made import kept

MAX_FILE_BYTES = 512 * 2**20
CHUNK = 2**22
_files = ByteCache(2**30)
_first: list["Source"] = []  # the file that the server was started with; never forgotten


@dataclass(frozen=True, kw_only=True)
class Source:
    """One batch, and where it comes from."""

    key: Hashable
    name: str  # of the file, or of what it is
    batch: Batch
    recipe: Recipe | None = None  # the step that it comes from
    planted: str = ""  # the fault that was put in, by its name in PLANTED
    updates: int = 1
    update: int = 0
    title: str = ""  # what the file was recognised as
    remarks: tuple[str, ...] = ()  # what was filled in
    compare: str = ""  # the key under which the page Compare knows the file
    trusted: bool = False  # the policy's weights are known to be those of this batch

    @cached_property
    def positions(self) -> tuple[int, ...]:
        """The place in the row of each scored column."""
        return tuple(self.batch.token_positions().tolist())

    @cached_property
    def columns(self) -> range:
        """Scored columns from the first completion token of any row to the last; what is drawn."""
        used = (self.batch.completion_columns() | self.batch.trained_mask()).any(0).nonzero().flatten().tolist()
        return range(used[0], used[-1] + 1) if used else range(len(self.positions))

    @cached_property
    def labels(self) -> tuple[str, ...]:
        """Each row as group and answer, `1·2`, or its number."""
        groups = self.batch.group_ids
        if groups is None:
            return tuple(str(row + 1) for row in range(len(self.batch.row_ids())))
        seen, numbers, labels = dict[int, int](), dict[int, int](), []
        for group in groups.tolist():
            seen[group] = seen.get(group, 0) + 1
            labels.append(f"{numbers.setdefault(group, len(numbers) + 1)}·{seen[group]}")
        return tuple(labels)

    @cached_property
    def ids(self) -> Tensor:
        """[B S], prompt + completion."""
        return self.batch.row_ids()

    @cached_property
    def completion(self) -> Tensor:
        """[B S] True on completion tokens."""
        return self.batch.row_completion_mask()

    @cached_property
    def reader(self) -> Policy | None:
        """The model whose tokenizer reads the ids."""
        return policy_of(self)

    @cached_property
    def texts(self) -> Mapping[str, Any]:
        said = self.batch.meta.get("tokens")
        return said if isinstance(said, Mapping) else {}

    def text(self, row: int, pos: int) -> str:
        """A token as text: as the file says, as the step's model says, else its id."""
        token = int(self.ids[row, pos])
        if str(token) in self.texts:
            return str(self.texts[str(token)])
        reader = self.reader
        return reader.piece(token) if reader is not None and 0 <= token < reader.vocab_size else str(token)


# ---- batches -----------------------------------------------------------------------------------------------------------
def open_file(path: str | Path, name: str = "", limit: int = MAX_FILE_BYTES) -> Source:
    """A batch file, or a dump that the importers know, into memory. Raises ValueError with one line."""
    path, name = Path(path), name or Path(path).name
    size = path.stat().st_size if path.is_file() else 0
    if size > limit:
        raise ValueError(f"{name}: found {size} bytes, allowed here: {limit}; `python -m grpo_core doctor FILE` takes any size")
    digest = _digest(path, name) if size else ""
    try:
        return _files.get(digest, lambda: _read(path, digest, name))
    except ValueError as error:
        raise ValueError(str(error).replace(str(path), name)) from error


def _digest(path: Path, name: str) -> str:
    made = hashlib.sha256(name.encode("utf-8", "backslashreplace") + b"\0")
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            made.update(chunk)
    return made.hexdigest()[:32]


def _read(path: Path, key: str, name: str) -> Source:
    batch, recognised = open_any(path, policy_for_files())
    return Source(
        key=key, name=name, batch=batch, title=recognised.title, remarks=recognised.filled, compare=_compare_key(path, name)
    )


def _compare_key(path: Path, name: str) -> str:
    """The same file on the page Compare, where it can be compared."""
    try:
        return str(compare_source.open_file(path, name).key)
    except (ValueError, OSError):
        return ""


def preload(path: str) -> Source:
    """The batch that everybody gets who asks for none. Raises ValueError with one line."""
    _first[:] = [open_file(path, limit=2**40)]
    if _first[0].compare:
        compare_source.preload(path)
    return _first[0]


def first_file() -> Source | None:
    return _first[0] if _first else None


def file_of(wanted: Wanted) -> Source | None:
    """The file that is asked for; None where it is no file. Raises LookupError where it is no longer here."""
    if wanted.batch in (STEP, NONE, *EXAMPLES):
        return None
    if not wanted.batch and is_batch(wanted.recipe.model):
        return _of_lessons(wanted.recipe.model)
    if not wanted.batch or (_first and wanted.batch == _first[0].key):
        return first_file()
    found = _files.ready(wanted.batch)
    if found is None:
        raise LookupError(wanted.batch)
    return found


def _of_lessons(model: str) -> Source | None:
    """The batch file that the lessons walk through."""
    held = view.bench().sources.batch(model)
    if held is None:
        return None
    return kept(("held", model), lambda: Source(key=model, name=held.file, batch=held.batch))


def needs_step(wanted: Wanted) -> bool:
    """Whether the model has to run first."""
    return (wanted.batch == STEP or wanted.batch in EXAMPLES) and not view.bench().has_step(wanted.recipe)


def step_source(wanted: Wanted) -> Source | None:
    """One update of the step, or its first with a fault planted; None where the model has yet to run."""
    if not view.bench().has_step(wanted.recipe):
        return None
    planted = wanted.batch.removeprefix(EXAMPLE) if wanted.batch in EXAMPLES else ""
    last = len(view.bench().step(wanted.recipe).trace.updates) - 1
    update = 0 if planted else last if wanted.update is None else min(wanted.update, last)
    key = (wanted.recipe, update, planted)
    return kept(("step", key), lambda: _of_step(key, last + 1))


def _of_step(key: tuple[Recipe, int, str], updates: int) -> Source:
    recipe, update, planted = key
    policy = view.bench().policy(recipe)
    batch = batch_of_trace(view.bench().step(recipe).trace, update, policy)
    if planted:
        batch = PLANTED[planted](batch)
    # The weights at hand are those of before the first update: they are this batch's policy there and only there.
    return Source(
        key=key, name=planted or STEP, batch=batch, recipe=recipe, planted=planted, updates=updates, update=update,
        trusted=update == 0,
    )  # fmt: skip


def policy_of(source: Source) -> Policy | None:
    """The model whose tokenizer reads this batch: the step's, or the one that the server was asked to start with."""
    if source.recipe:
        return view.bench().policy(source.recipe)
    policy = policy_for_files()
    fits = policy is not None and source.batch.meta.get("vocab_size") in (None, policy.vocab_size)
    return policy if fits and policy is not None and int(source.ids.max()) < policy.vocab_size else None


def policy_for_files() -> Policy | None:
    """A model that somebody named on the command line; the built-in one is nobody's trainer's."""
    name = view.bench().sources.models[0]
    return None if name == "tiny" else view.bench().sources[name].policy


# ---- the selected token -------------------------------------------------------------------------------------------
def selected(source: Source, wanted: Wanted) -> tuple[int, int]:
    """(row, column) of the selected token: the nearest scored one; without a selection the first trained."""
    rows, first = len(source.labels), source.positions[0]
    row = min(wanted.selection.row, rows - 1)
    if wanted.selection.pos >= 0:
        return row, min(max(0, wanted.selection.pos - first), len(source.positions) - 1)
    trained = source.batch.trained_mask()[row].nonzero().flatten().tolist()
    return row, trained[0] if trained else source.columns.start


def settled(source: Source, wanted: Wanted) -> Wanted:
    """With the token that is really selected."""
    row, column = selected(source, wanted)
    return replace(wanted, selection=replace(wanted.selection, row=row, pos=source.positions[column]))


def fresh(selection: Selection) -> Selection:
    """For another batch: no token, the same language."""
    return Selection(lesson=selection.lesson, lang=selection.lang, hide=selection.hide)
