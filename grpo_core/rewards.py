"""Reward functions of a training run: by name, from Python, from a reward model, or the data's own score.

A function from Python is called as TRL calls it, `f(prompts=…, completions=…, **columns)`, and returns one number or None per
row. It is tried once before any time is spent; where it fails later, the prompt it failed on is named, its rows have no
reward, and the run goes on.
"""

import importlib
import importlib.util
import inspect
import math
import re
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from .data import Prompts, Row
from .policy import first_line
from .tasks import REWARDS, RewardFunction

Function = Callable[[list[str], list[str], list[str], list[Row]], Sequence[float | None]]  # prompts, completions, ends, rows


# ---- kinds of functions: name, prompts -> Function -----------------------------------------------------------------------
def built_in(name: str, prompts: Prompts) -> Function:
    return lambda texts, answers, ends, rows: [REWARDS[name](*row) for row in zip(texts, answers, ends, strict=True)]


def by_the_data(name: str, prompts: Prompts) -> Function:
    """The score of the data's own source."""
    if prompts.score is None:
        raise ValueError(f"reward_functions: found {name!r}, which needs data = 'reasoning-gym:TASK'")
    return lambda texts, answers, ends, rows: [prompts.score(a, row) for a, row in zip(answers, rows, strict=True)]


def from_python(name: str, prompts: Prompts) -> Function:
    """`module:function` or `FILE.py:function`."""
    where, _, called = name.rpartition(":")
    try:
        module = _from_file(Path(where)) if where.endswith(".py") else importlib.import_module(where)
        function = getattr(module, called)
        takes = inspect.signature(function).parameters
    except Exception as error:  # noqa: BLE001 - importing somebody's file may raise anything
        raise ValueError(f"reward_functions: {name!r} cannot be imported ({type(error).__name__}: {error})") from error
    takes_all = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in takes.values())

    def call(texts: list[str], answers: list[str], ends: list[str], rows: list[Row]) -> Any:  # `Rewards` looks at it
        names = dict.fromkeys([*prompts.columns, *(key for row in rows for key in row)])  # also those that no row here has
        columns = {key: [row.get(key) for row in rows] for key in names if key not in ("prompt", "prompts", "completions")}
        named = columns | {"prompts": texts, "completions": answers, "finish_reasons": ends}
        return function(**{key: value for key, value in named.items() if takes_all or key in takes})

    return call


def _from_file(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    folder = str(path.parent.resolve())
    if folder not in sys.path:
        sys.path.append(folder)  # so that it finds its neighbours
    spec.loader.exec_module(module)
    return module


def from_model(name: str, prompts: Prompts) -> Function:
    """`model:FOLDER`: a sequence classifier with one number, read on prompt + completion."""
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    where = name.partition(":")[2]
    try:
        model = AutoModelForSequenceClassification.from_pretrained(where, num_labels=1, trust_remote_code=False).eval()
        tokenizer = AutoTokenizer.from_pretrained(where, trust_remote_code=False)
    except (OSError, ValueError, KeyError) as error:
        raise ValueError(f"reward_functions: {name!r} is no reward model ({first_line(error)})") from error

    @torch.no_grad()
    def call(texts: list[str], answers: list[str], ends: list[str], rows: list[Row]) -> Sequence[float | None]:
        read = [tokenizer(text + answer, return_tensors="pt") for text, answer in zip(texts, answers, strict=True)]
        return [float(model(**one).logits[0, 0]) for one in read]

    return call


def resolve(name: str, prompts: Prompts) -> Function:
    """The function behind a name of `reward_functions`."""
    kinds = {**{known: built_in for known in REWARDS}, "reasoning-gym": by_the_data}
    if name in kinds:
        return kinds[name](name, prompts)
    if name.startswith("model:"):
        return from_model(name, prompts)
    if ":" in name:
        return from_python(name, prompts)
    raise ValueError(
        f"reward_functions: found {name!r}, allowed: {', '.join(kinds)}, module:function, FILE.py:function, model:FOLDER"
    )


# ---- calling them --------------------------------------------------------------------------------------------------------
class Rewards:
    """The reward functions of a run, tried on one row at once. `failures` are the lines about calls that went wrong."""

    def __init__(self, names: tuple[str, ...], prompts: Prompts, timeout: float):
        self.names, self.timeout, self.failures = names, timeout, list[str]()
        self.functions = [resolve(name, prompts) for name in names]
        row = prompts.first(1)[0]
        for name, function in zip(names, self.functions, strict=True):
            failure = self._call(function, [prompts.text(row)], ["0"], ["stop"], [row])[1]
            if failure:
                raise ValueError(
                    f"reward_functions: {name!r} {failure}, tried on {prompts.text(row)[:60]!r} with the answer '0'"
                )

    def of_rows(self, rows: list[Row]) -> RewardFunction:
        """What `rollout.sample` calls: `rows` are the data's, one per prompt."""

        def score(names, texts, answers, ends):
            per_row = [row for row in rows for _ in range(len(texts) // len(rows))]
            columns = [self._score(name, function, list(texts), list(answers), list(ends), per_row)
                       for name, function in zip(self.names, self.functions, strict=True)]  # fmt: skip
            return tuple(zip(*columns, strict=True))

        return score

    def _score(self, name: str, function: Function, texts: list, answers: list, ends: list, rows: list) -> list[float | None]:
        values, failure = self._call(function, texts, answers, ends, rows)
        if not failure:
            return values
        found: list[float | None] = []
        for start, end in _runs(texts):  # one prompt at a time, to find the one
            part = [column[start:end] for column in (texts, answers, ends, rows)]
            values, failure = self._call(function, *part)
            found += [None] * (end - start) if failure else values
            if failure:
                self.failures.append(f"{name} {failure} on {texts[start][:60]!r}; its rows have no reward")
            if failure == self._late and end < len(texts):  # the next may hang as well, each as long as this one
                self.failures.append(f"{name} was not asked about the {len(texts) - end} rows behind; they have no reward")
                return found + [None] * (len(texts) - end)
        return found

    @property
    def _late(self) -> str:
        return f"gave no answer within {self.timeout:g} s"

    def _call(self, function: Function, texts, answers, ends, rows) -> tuple[list[float | None], str]:
        """The values, or what went wrong: raised, hung, or returned something else than one number or None per row."""
        result: list[Any] = []

        def work() -> None:
            try:
                result.append(list(function(texts, answers, ends, rows)))
            except BaseException as error:  # noqa: BLE001 - it is somebody else's function, and it may call sys.exit
                result.append(f"raised {type(error).__name__}: {str(error)[:120]}")

        thread = threading.Thread(target=work, daemon=True)  # a call that hangs must not keep the process
        thread.start()
        thread.join(self.timeout)
        if not result:
            return [], self._late
        if isinstance(result[0], str):
            return [], result[0]
        if len(result[0]) != len(texts):
            return [], f"returned {len(result[0])} values for {len(texts)} rows"
        try:
            values = [None if value is None else float(value) for value in result[0]]
        except (TypeError, ValueError):
            return [], f"returned {result[0]!r:.80}, not numbers"
        odd = [value for value in values if value is not None and not math.isfinite(value)]
        return (values, "") if not odd else ([], f"returned {odd[0]}, allowed: finite numbers and None")


def short_names(names: Sequence[str]) -> list[str]:
    """Names for logs: `rewards.py:is_right` is `is_right` there, unless another is called so too."""
    short = [re.split("[:/\\\\]", name.rstrip("/"))[-1] for name in names]
    return [one if short.count(one) == 1 else name for one, name in zip(short, names, strict=True)]


def _runs(texts: list[str]) -> list[tuple[int, int]]:
    """Where equal neighbours begin and end."""
    starts = [place for place in range(len(texts)) if place == 0 or texts[place] != texts[place - 1]]
    return list(zip(starts, [*starts[1:], len(texts)], strict=True))
