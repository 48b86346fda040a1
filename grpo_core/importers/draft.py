"""What a format's reader makes of a dump: the batch file's fields as ragged rows, and a sentence for each guess."""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..batch_file.fields import BadField, short

Row = Mapping[str, Any]


@dataclass(kw_only=True)
class Draft:
    """`fields` by the batch file's names. `prompts` and `completions` are texts (or chats) of what the dump has no ids of."""

    fields: dict[str, Any] = field(default_factory=dict)
    meta: dict[str, Any] = field(default_factory=dict)
    prompts: Sequence[Any] | None = None
    completions: Sequence[Any] | None = None
    filled: list[str] = field(default_factory=list)  # a sentence per thing that the dump does not say as such
    pieces: Sequence[Sequence[str]] | None = None  # a completion's tokens as texts, where the dump knows no ids
    plain_prompts: bool = False  # prompts are what the model read, chat markers and all: no template on top

    def put(self, name: str, values: Any, source: str = "") -> None:
        """One field, where there is anything; `source` says where it comes from if not from a field of that meaning."""
        if values is not None:
            self.fields[name] = values
            if source:
                self.filled.append(f"{name}: {source}")

    def first_update(self) -> None:
        """A dump of what was there before the update: the policy is what it was at the start, as on the first update."""
        if "policy_logprobs" not in self.fields and "old_logprobs" in self.fields:
            self.put("policy_logprobs", self.fields["old_logprobs"], "old_logprobs, as at the first update: the ratio is 1")
            self.meta["iteration"] = 0


def column(rows: Sequence[Row], name: str) -> list[Any] | None:
    """A name's value in every row; None where no row has it. Raises BadField where only some have."""
    values = [row.get(name) for row in rows]
    if all(value is None for value in values):
        return None
    if None in [value if value is None else 0 for value in values]:
        raise BadField(name, "nothing", "a value, as in other rows", next(i for i, v in enumerate(values) if v is None))
    return values


def texts(rows: Sequence[Row], name: str) -> list[Any]:
    """A column of texts, or of chats."""
    values = [row.get(name) for row in rows]
    for row, value in enumerate(values):
        if not (isinstance(value, str) or isinstance(value, list) and all(_is_message(item) for item in value)):
            raise BadField(name, short(value), "a text, or a chat's messages with role and content", row)
    return values


def _is_message(value: Any) -> bool:
    return isinstance(value, dict) and isinstance(value.get("role"), str) and isinstance(value.get("content"), str)


def is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def lists(rows: Sequence[Row], name: str) -> list[list[Any]] | None:
    """A column of lists."""
    values = column(rows, name)
    for row, value in enumerate(values or ()):
        if not isinstance(value, list):
            raise BadField(name, short(value), "a list", row)
    return values


def groups(keys: Sequence[Any]) -> list[int]:
    """Rows with equal keys are one group, numbered as they come."""
    numbered: dict[Hashable, int] = {}
    return [numbered.setdefault(repr(key), len(numbered)) for key in keys]


def ones(rows: Sequence[Any]) -> list[list[int]]:
    """A mask of 1 as long as each row."""
    return [[1] * len(row) for row in rows]


def one_step(rows: Sequence[Row], step: int | None, draft: Draft, name: str = "step") -> list[Row]:
    """The rows of one step of a log that holds several: of the last where nobody asks for another."""
    steps = sorted({row[name] for row in rows if isinstance(row.get(name), int)})
    if not steps:
        return list(rows)
    if step is not None and step not in steps:
        raise BadField("step", str(step), f"one of {', '.join(map(str, steps[:8]))}{' …' if len(steps) > 8 else ''}")
    chosen = steps[-1] if step is None else step
    draft.meta["logged_step"] = chosen
    if len(steps) > 1:
        draft.filled.append(f"rows: those of step {chosen}; the file holds {len(steps)} steps, {steps[0]} to {steps[-1]}")
    return [row for row in rows if row.get(name) == chosen]
