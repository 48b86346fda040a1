"""Between the recipe and the controls of its form: what a control shows of a setting, and what the setting becomes."""

from collections.abc import Callable
from dataclasses import fields
from typing import Any

from grpo_core import Recipe

from .knobs import KNOBS, Knob

DEFAULTS = {field.name: field.default for field in fields(Recipe)}


def knob_values(recipe: Recipe) -> list[Any]:
    """The recipe as the form shows it."""
    return [to_knob(knob, getattr(recipe, knob.field)) for knob in KNOBS]


def to_knob(knob: Knob, value: Any) -> Any:
    if knob.kind == "lines":
        return "\n".join(map(str, value))
    if knob.kind == "numbers":
        return ", ".join(f"{number:.12g}" for number in value)
    return list(value) if knob.kind == "names" else value


def from_knob(knob: Knob, value: Any, current: Any) -> Any:
    """What the form holds, as the recipe wants it. What nobody touched stays: a prompt may hold line breaks itself."""
    if value == to_knob(knob, current) and isinstance(value, bool) == isinstance(current, bool):
        return current
    if knob.kind in READ:
        return READ[knob.kind](knob, value)
    if value is None:
        raise ValueError(f"{knob.field}: found nothing, allowed: a value")
    kind = type(DEFAULTS[knob.field])
    whole = isinstance(value, float) and value.is_integer()
    try:
        return kind(value) if kind is float or (kind is int and whole) else value
    except (ValueError, TypeError, OverflowError):
        raise _refused(knob, value, "a number") from None


def _lines(knob: Knob, value: Any) -> tuple[str, ...]:
    return tuple(line for line in str(value or "").split("\n") if line.strip())


def _numbers(knob: Knob, value: Any) -> tuple[float, ...]:
    try:
        return tuple(float(part.replace("\N{MINUS SIGN}", "-")) for part in str(value).split(","))
    except (ValueError, OverflowError):
        raise _refused(knob, value, "numbers with commas between") from None


def _names(knob: Knob, value: Any) -> tuple[str, ...]:
    """In the table's order, whatever the order of the clicks."""
    if not isinstance(value, (list, tuple)) or not all(isinstance(name, str) for name in value):
        raise _refused(knob, value, f"names out of {', '.join(knob.choices)}")
    return (*(name for name in knob.choices if name in value), *(name for name in value if name not in knob.choices))


def _switch(knob: Knob, value: Any) -> bool:
    if not isinstance(value, bool):
        raise _refused(knob, value, "true or false")
    return value


READ: dict[str, Callable[[Knob, Any], Any]] = {"lines": _lines, "numbers": _numbers, "names": _names, "switch": _switch}


def _refused(knob: Knob, value: Any, allowed: str) -> ValueError:
    return ValueError(f"{knob.field}: found {str(value)[:40]!r}, allowed: {allowed}")
