"""What somebody wants to train, as an address and back. What is unknown or absurd in an address falls back and is said."""

from dataclasses import dataclass, fields, replace
from typing import Any

from grpo_core import Recipe
from grpo_core.presets import preset

from .. import link
from ..lesson import Selection
from ..page_link import joined, split

PREFIX = "train_"


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """The state of the page, all of it in the address: the lessons' own recipe and selection, and what a run adds.

    None: as in the recipe. A preset chosen here is this page's own; the lessons keep theirs.
    """

    recipe: Recipe
    selection: Selection = Selection()
    preset: str | None = None
    group_size: int = 8
    prompts_per_step: int = 8
    learning_rate: float | None = None
    beta: float | None = None
    clip_low: float | None = None
    clip_high: float | None = None
    steps: int = 100
    seed: int | None = None


OWN = tuple(f.name for f in fields(Wanted) if f.name not in ("recipe", "selection"))
OF_PRESET = ("beta", "clip_low", "clip_high")  # what another preset sets anew
START = Wanted(recipe=Recipe())


def query(wanted: Wanted) -> str:
    """`?lesson=…&train_steps=…`: the recipe as the lessons write it, and what differs from this page's defaults."""
    own = [(PREFIX + name, getattr(wanted, name)) for name in OWN if getattr(wanted, name) != getattr(START, name)]
    return joined(link.query(wanted.recipe, wanted.selection), own)


def lesson_query(wanted: Wanted, **where: Any) -> str:
    """The same recipe in the lessons."""
    return link.query(wanted.recipe, replace(wanted.selection, **where))


def parse(text: str, defaults: Recipe) -> tuple[Wanted, list[str]]:
    """What an address asks for, and one message for each part that could not be used."""
    own, rest = split(text, [PREFIX + name for name in OWN])
    recipe, selection, messages = link.parse(rest, defaults)
    wanted = Wanted(recipe=recipe, selection=selection)
    return changed(wanted, {key.removeprefix(PREFIX): value for key, value in own.items()}, messages), messages


def changed(wanted: Wanted, given: dict[str, str], messages: list[str]) -> Wanted:
    """`wanted` with what is given as text. What cannot be read stays as it was, and is said in `messages`."""
    for name, text in given.items():
        try:
            value = _preset(text) if name == "preset" else _number(name, text)
        except ValueError as error:
            messages.append(" ".join(str(error).split()))
            continue
        anew = {key: None for key in OF_PRESET if name == "preset" and key not in given}
        wanted = replace(wanted, **{name: value}, **anew)
    return wanted


def _preset(text: str) -> str:
    return preset(text[:100]).name


def _number(name: str, text: str) -> int | float:
    whole = name in ("group_size", "prompts_per_step", "steps", "seed")
    text = text.strip().replace("\N{MINUS SIGN}", "-").replace(",", ".")
    try:
        if len(text) > 40:
            raise ValueError(name)
        return int(text) if whole else float(text)
    except ValueError:
        raise ValueError(f"{name}: found {text[:40]!r}, allowed: a {'whole ' if whole else ''}number") from None
