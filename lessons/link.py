"""The whole state as an address, and back: lesson, token, language, hidden parts and every setting off its default.

An address is untrusted: what is unknown or absurd falls back to the default of that field, and is said.
"""

from dataclasses import fields
from urllib.parse import parse_qsl, urlencode

from grpo_core import Recipe

from .lesson import Selection
from .prose import LANGUAGES

REPEATED = {"prompts": "prompt", "edited_rewards": "reward"}  # one parameter per entry
LISTS = ("reward_functions", "reward_weights")
DEFAULT_RECIPE, DEFAULT_SELECTION = Recipe(), Selection()
MAX_QUERY = 40_000  # characters; a prompt may be long, a link need not be longer


def query(recipe: Recipe, selection: Selection, defaults: Recipe = DEFAULT_RECIPE) -> str:
    """`?lesson=…` with all that differs from `defaults`."""
    pairs = [("lesson", selection.lesson), ("row", selection.row), ("pos", selection.pos)]
    pairs += [("update", selection.update)] if selection.update else []
    pairs += [("lang", selection.lang)]  # always: a link looks the same on a server with another default
    pairs += [("hide", ",".join(selection.hide))] if selection.hide else []
    for field in fields(Recipe):
        value = getattr(recipe, field.name)
        if value == getattr(defaults, field.name):
            continue
        if field.name == "edited_rewards":
            pairs += [("reward", f"{r},{f},{'none' if v is None else v}") for r, f, v in value]
        elif field.name in REPEATED:
            pairs += [(REPEATED[field.name], text) for text in value]
        else:
            pairs.append((field.name, ",".join(map(str, value)) if field.name in LISTS else value))
    return "?" + urlencode(pairs)


def parse(text: str, defaults: Recipe = DEFAULT_RECIPE) -> tuple[Recipe, Selection, list[str]]:
    """Recipe, selection, and one message for each part that could not be used."""
    if len(text) > MAX_QUERY:
        return defaults, DEFAULT_SELECTION, [f"link: found {len(text)} characters, allowed: {MAX_QUERY}; left out"]
    given: dict[str, list[str]] = {}
    for key, value in parse_qsl(text.removeprefix("?"), keep_blank_values=True):
        given.setdefault(key, []).append(value)
    messages: list[str] = []
    selection = _selection(given, messages)
    values = {}
    for field in fields(Recipe):
        key = REPEATED.get(field.name, field.name)
        if key in given:
            try:
                values[field.name] = _read(field.name, given.pop(key))
            except ValueError:
                messages.append(f"{key}: could not be read; the default is used")
    messages += [f"{key[:40]}: unknown part of the link, left out" for key in given if not key.startswith("__")]
    base = {f.name: getattr(defaults, f.name) for f in fields(Recipe)}
    recipe, refused = Recipe.repaired(base | values)
    return recipe, selection, messages + refused


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
    if name == "reward_functions":
        return tuple(texts[-1].split(","))
    if name == "reward_weights":
        return tuple(float(part) for part in texts[-1].split(","))
    return type(getattr(DEFAULT_RECIPE, name))(texts[-1])


def _edit(text: str) -> tuple[int, int, float | None]:
    row, function, value = text.split(",")
    return int(row), int(function), None if value == "none" else float(value)
