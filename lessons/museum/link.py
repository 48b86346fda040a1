"""What somebody looks at in the museum, as an address and back. What is unknown in an address falls back and is said."""

from dataclasses import dataclass, replace

from grpo_core import CHECKS, Recipe
from grpo_core.planted import BY_SLUG

from .. import link
from ..lesson import Selection
from ..page_link import joined, split

NONE = "none"  # the guess that no badge turns red
OWN = ("exhibit", "guess", "told")


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """The state of the page, all of it in the address: the lessons' own recipe and language, the exhibit, and the guess."""

    recipe: Recipe
    selection: Selection = Selection()
    exhibit: str = ""  # a slug of `planted.EXHIBITS`; "": the shelf alone
    guess: str = ""  # a check, NONE, or ""
    told: bool = False  # the answer was asked for


def query(wanted: Wanted) -> str:
    """`?lesson=…&exhibit=…`: the recipe as the lessons write it, the exhibit and the guess."""
    pairs = [(name, getattr(wanted, name)) for name in ("exhibit", "guess") if getattr(wanted, name)]
    pairs += [("told", 1)] if wanted.told else []
    return joined(lesson_query(wanted), pairs)


def lesson_query(wanted: Wanted) -> str:
    """The recipe in the lessons."""
    return link.query(wanted.recipe, replace(wanted.selection, update=0))


def parse(text: str, defaults: Recipe) -> tuple[Wanted, list[str]]:
    """What an address asks for, and one message for each part that could not be used."""
    own, rest = split(text, OWN)
    recipe, selection, messages = link.parse(rest, defaults)
    return changed(Wanted(recipe=recipe, selection=selection), own, messages), messages


def changed(wanted: Wanted, given: dict[str, str], messages: list[str]) -> Wanted:
    """`wanted` with what is given as text. What cannot be used stays as it was, and is said in `messages`."""
    exhibit, guess = given.get("exhibit", wanted.exhibit), given.get("guess", wanted.guess)
    if exhibit and exhibit not in BY_SLUG:
        messages.append(f"exhibit: found {exhibit[:40]!r}, allowed: {', '.join(BY_SLUG)}")
        exhibit = wanted.exhibit
    if guess and guess != NONE and guess not in CHECKS:
        messages.append(f"guess: found {guess[:40]!r}, allowed: {NONE} or the name of a check")
        guess = wanted.guess
    return replace(wanted, exhibit=exhibit, guess=guess, told=given.get("told", str(int(wanted.told))) in ("1", "true"))
