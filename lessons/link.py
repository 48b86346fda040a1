"""The whole state as an address, and back: lesson, token, language, hidden parts, preset and every setting off its own.

An address is untrusted: what is unknown or absurd falls back to the default of that field, and is said.
"""

from dataclasses import fields, replace
from functools import lru_cache
from typing import Any
from urllib.parse import parse_qsl, urlencode

from grpo_core import Recipe
from grpo_core.batch_step import FIXED
from grpo_core.presets import PRESETS, preset

from .batches import is_batch
from .lesson import Selection
from .prose import LANGUAGES

REPEATED = {"prompts": "prompt", "edited_rewards": "reward"}  # one parameter per entry
DEFAULT_RECIPE, DEFAULT_SELECTION = Recipe(), Selection()
SWITCH = {"true": True, "1": True, "false": False, "0": False}
MAX_QUERY = 40_000  # characters; a prompt may be long, a link need not be longer


def query(recipe: Recipe, selection: Selection, defaults: Recipe = DEFAULT_RECIPE) -> str:
    """`?lesson=…` with all that differs from `defaults`, the preset's own settings being the recipe's defaults."""
    pairs = [("lesson", selection.lesson), ("row", selection.row), ("pos", selection.pos)]
    pairs += [("update", selection.update)] if selection.update else []
    pairs += [("lang", selection.lang)]  # always: a link looks the same on a server with another default
    pairs += [("hide", ",".join(selection.hide))] if selection.hide else []
    of_file = is_batch(recipe.model)  # whose preset is always said: without any setting its own are meant
    pairs += [("preset", recipe.preset)] if of_file or recipe.preset != defaults.preset else []
    start = started(defaults, recipe.preset)
    for field in fields(Recipe):
        value = getattr(recipe, field.name)
        if value == getattr(start, field.name) or (of_file and field.name in FIXED):
            continue
        if field.name == "edited_rewards":
            pairs += [("reward", f"{r},{f},{'none' if v is None else v}") for r, f, v in value]
        elif field.name in REPEATED:
            pairs += [(REPEATED[field.name], text) for text in value]
        else:
            pairs.append((field.name, _written(value)))
    return "?" + urlencode(pairs)


def bare(text: str) -> bool:
    """Whether an address names no setting of a recipe but the model."""
    named = {key for key, _ in parse_qsl(text.removeprefix("?")[:MAX_QUERY], keep_blank_values=True)}
    return not named & {REPEATED.get(f.name, f.name) for f in fields(Recipe) if f.name != "model"}


@lru_cache(512)
def started(defaults: Recipe, name: str) -> Recipe:
    """The defaults under a preset; with a name that is no preset's, the defaults."""
    return replace(defaults, preset=name, **PRESETS[name].values()) if name in PRESETS else replace(defaults, preset=name)


def _written(value: Any) -> Any:
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return str(value).lower() if isinstance(value, bool) else value


def parse(text: str, defaults: Recipe = DEFAULT_RECIPE) -> tuple[Recipe, Selection, list[str]]:
    """Recipe, selection, and one message for each part that could not be used."""
    if len(text) > MAX_QUERY:
        return defaults, DEFAULT_SELECTION, [f"link: found {len(text)} characters, allowed: {MAX_QUERY}; left out"]
    given: dict[str, list[str]] = {}
    for key, value in parse_qsl(text.removeprefix("?"), keep_blank_values=True):
        given.setdefault(key, []).append(value)
    messages: list[str] = []
    selection = _selection(given, messages)
    start = started(defaults, _preset(given, defaults.preset, messages))
    values = {}
    for field in fields(Recipe):
        key = REPEATED.get(field.name, field.name)
        if key in given:
            try:
                values[field.name] = _read(field.name, given.pop(key))
            except ValueError:
                messages.append(f"{key}: could not be read; the default is used")
    messages += [f"{key[:40]}: unknown part of the link, left out" for key in given if not key.startswith("__")]
    recipe, refused = _repaired(start, values)
    return recipe, selection, messages + refused


def _preset(given: dict[str, list[str]], default: str, messages: list[str]) -> str:
    """The preset that the link names."""
    name = given.pop("preset", [default])[-1]
    try:
        return preset(name[:80]).name if name != default else default
    except ValueError as error:
        messages.append(f"{error}; {default!r} is used")
        return default


def _repaired(start: Recipe, values: dict[str, Any]) -> tuple[Recipe, list[str]]:
    """`start` with the values that it can take; one message for each that it cannot."""
    base = {f.name: getattr(start, f.name) for f in fields(Recipe) if getattr(start, f.name) != getattr(DEFAULT_RECIPE, f.name)}
    recipe, messages = Recipe.repaired(base | values)
    refused = [name for name in values if getattr(recipe, name) != values[name]]
    if refused:  # what fell back fell back to the class's default, not to the start's
        recipe, more = Recipe.repaired(base | {name: value for name, value in values.items() if name not in refused})
        for name in refused:
            was, now = (f"the default {value!r} is used" for value in (getattr(DEFAULT_RECIPE, name), getattr(recipe, name)))
            messages = [message.replace(was, now) if message.startswith(f"{name}: ") else message for message in messages]
        messages += [message for message in more if message not in messages]
    return recipe, messages


def _selection(given: dict[str, list[str]], messages: list[str]) -> Selection:
    from . import BY_SLUG

    allowed = {"lesson": tuple(BY_SLUG), "lang": LANGUAGES}
    chosen = {}
    for name in ("lesson", "lang", "row", "pos", "update"):
        text = given.pop(name, [None])[-1]
        if text is None:
            continue
        if name in allowed and text in allowed[name]:
            chosen[name] = text
        elif name not in allowed and (text.isdecimal() and len(text) < 8 or (name, text) == ("pos", "-1")):
            chosen[name] = int(text)
        else:
            messages.append(f"{name}: found {text[:40]!r}, allowed: {', '.join(allowed.get(name, ('a whole number',)))}")
    hide = tuple(part for text in given.pop("hide", []) for part in text.split(",") if part)
    return Selection(**chosen, hide=tuple(part for part in hide if part.replace("-", "").replace("_", "").isalnum()))


def _read(name: str, texts: list[str]):
    """A field's value from its parameters, by the type of its default. Raises ValueError."""
    if name == "prompts":
        return tuple(texts)
    if name == "edited_rewards":
        return tuple(_edit(text) for text in texts)
    default, text = getattr(DEFAULT_RECIPE, name), texts[-1]
    if isinstance(default, bool):
        if text not in SWITCH:
            raise ValueError(text)
        return SWITCH[text]
    if isinstance(default, tuple):
        kind = float if default and isinstance(default[0], float) else str
        return tuple(kind(part) for part in text.split(",")) if text else ()
    return type(default)(text)


def _edit(text: str) -> tuple[int, int, float | None]:
    row, function, value = text.split(",")
    return int(row), int(function), None if value == "none" else float(value)
