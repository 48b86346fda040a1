"""Where a training run's prompts come from: a table of sources, each a sequence of rows {prompt, other columns}.

Which rows a step trains on follows from the seed and the step's number alone, so a resumed run needs no position, and the
number of processes changes nothing.
"""

import json
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .policy import Policy, first_line
from .rollout import encode_prompt
from .tiny.questions import draw_question
from .train_config import TrainConfig

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Prompts:
    """The rows of a run and the order in which they come: each epoch shuffled anew."""

    rows: Sequence[Row] | Any  # len() and [place]; of a dataset they are read when they are asked for
    column: str
    seed: int
    columns: tuple[str, ...] = ()  # all that a row may have, where they are known
    score: Any = None  # how the source itself scores an answer: (answer, row) -> number; reasoning-gym's

    def of_step(self, step: int, count: int) -> list[Row]:
        """The rows of one step."""
        return self.between(step * count, (step + 1) * count)

    def between(self, first: int, last: int) -> list[Row]:
        """The rows from one place of the run's order up to another."""
        return [self._at(place) for place in range(first, last)]

    def _at(self, place: int) -> Row:
        epoch, within = divmod(place, len(self.rows))
        return self.rows[_order(self.seed, epoch, len(self.rows))[within]]

    def text(self, row: Row) -> str:
        return prompt_text(row[self.column])

    def first(self, count: int) -> list[Row]:
        """The first rows in the source's own order: the questions of an evaluation."""
        return [self.rows[place] for place in range(min(count, len(self.rows)))]


KEPT_ORDERS = 4
_ORDERS: dict[tuple[int, int, int], Sequence[int]] = {}


def _order(seed: int, epoch: int, count: int) -> Sequence[int]:
    """The shuffle of an epoch; the newest few are kept, for runs that take turns in one process."""
    key = (seed, epoch, count)
    if key not in _ORDERS:
        order = list(range(count))
        random.Random(f"{seed} {epoch}").shuffle(order)
        while len(_ORDERS) >= KEPT_ORDERS:
            _ORDERS.pop(next(iter(_ORDERS)))
        _ORDERS[key] = order
    return _ORDERS[key]


def prompt_text(value: Any) -> str:
    """A prompt as text: itself, or a conversation's only message (the template is the policy's)."""
    if isinstance(value, str):
        if not value.strip():
            raise ValueError("data: found an empty prompt, allowed: text")
        return value
    if isinstance(value, Sequence) and value and all(isinstance(message, Mapping) for message in value):
        roles = [message.get("role") for message in value]
        if roles != ["user"]:
            raise ValueError(
                f"data: found a conversation of {', '.join(map(str, roles))[:80]}, allowed: one message of the user"
            )
        return prompt_text(value[0].get("content"))
    raise ValueError(f"data: found a prompt of type {type(value).__name__}, allowed: text or a list of one message")


# ---- sources: config, name -> rows ---------------------------------------------------------------------------------------
class Sums(Sequence):
    """The built-in model's questions without end, each drawn from its own place."""

    def __init__(self, seed: int):
        self.seed = seed

    def __len__(self) -> int:
        return 2**16

    def __getitem__(self, place: int) -> Row:  # pyright: ignore[reportIncompatibleMethodOverride]  # no slices
        return {"prompt": draw_question(random.Random(f"{self.seed} {place}")).text}


def sums(config: TrainConfig, name: str) -> Prompts:
    return Prompts(Sums(config.seed), "prompt", config.seed)


def typed_in(config: TrainConfig, name: str) -> Prompts:
    return Prompts([{"prompt": text} for text in config.prompts], "prompt", config.seed)


def reasoning_gym(config: TrainConfig, name: str) -> Prompts:
    """`reasoning-gym:TASK`: the task's own generator and its own scoring."""
    try:
        import reasoning_gym as gym
    except ImportError as error:
        raise ValueError(f"data: {name!r} needs the package reasoning-gym (pip install reasoning-gym)") from error
    task = name.partition(":")[2]
    try:
        rows = gym.create_dataset(task, size=100_000, seed=config.seed)
    except ValueError as error:
        raise ValueError(f"data: reasoning-gym knows no task {task!r} ({error})") from error
    score = lambda answer, row: rows.score_answer(answer=answer, entry=dict(row))  # noqa: E731
    return Prompts(rows, "question", config.seed, score=score)


def from_file(config: TrainConfig, name: str) -> Prompts:
    """JSON lines, each an object that has the prompt's column."""
    rows = []
    for number, line in enumerate(_lines(Path(name)), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise ValueError(f"data: {name}, line {number} is not JSON ({error.msg})") from error
        if not isinstance(row, dict) or config.prompt_column not in row:
            raise ValueError(f"data: {name}, line {number} has no {config.prompt_column!r}, allowed: an object that has it")
        try:
            prompt_text(row[config.prompt_column])
        except ValueError as error:
            raise ValueError(f"{error} (in {name}, line {number})") from error
        rows.append(row)
    columns = tuple(dict.fromkeys(key for row in rows for key in row))
    return _not_empty(Prompts(rows, config.prompt_column, config.seed, columns), name)


def _lines(path: Path) -> Iterator[str]:
    try:
        with path.open(encoding="utf-8") as file:
            yield from file
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"data: {str(path)!r} cannot be read ({error})") from error


def from_datasets(config: TrainConfig, name: str) -> Prompts:
    """A folder or hub id that `datasets` can load; `NAME:SPLIT` names a split, by default train."""
    try:
        import datasets
    except ImportError as error:
        raise ValueError(f"data: {name!r} needs the package datasets (pip install datasets)") from error
    source, _, split = name.partition(":")
    try:
        if (Path(source) / "dataset_info.json").exists():
            rows = datasets.load_from_disk(source)
        else:
            rows = datasets.load_dataset(source, split=split or "train")
    except Exception as error:  # noqa: BLE001 - datasets raises whatever its readers raise
        raise ValueError(f"data: {name!r} cannot be loaded ({first_line(error)})") from error
    if config.prompt_column not in rows.column_names:
        raise ValueError(f"data: {name!r} has no column {config.prompt_column!r}, allowed: {', '.join(rows.column_names)}")
    return _not_empty(Prompts(rows, config.prompt_column, config.seed, tuple(rows.column_names)), name)


def _not_empty(prompts: Prompts, name: str) -> Prompts:
    if not len(prompts.rows):
        raise ValueError(f"data: found no rows in {name!r}, allowed: at least one")
    return prompts


SOURCES = {"sums": sums, "prompts": typed_in, "reasoning-gym": reasoning_gym}


def load_prompts(config: TrainConfig, name: str | None = None) -> Prompts:
    """The rows behind `config.data` or another name. Raises ValueError where there are none."""
    name = name or config.data
    source = SOURCES.get(name.partition(":")[0])
    if source is None:
        source = from_file if Path(name).is_file() or name.endswith((".jsonl", ".json")) else from_datasets
    return source(config, name)


READ_AHEAD = 2048  # prompts; seconds of work


def refuse_long_prompts(policy: Policy, prompts: Prompts, rows: list[Row], who: str, config: TrainConfig) -> None:
    """A prompt without room for an answer should not end a run hours later. Raises ValueError that names the first."""
    for number, row in enumerate(rows[:READ_AHEAD], start=1):
        encode_prompt(policy, prompts.text(row), config, f"{who}: prompt {number}")
