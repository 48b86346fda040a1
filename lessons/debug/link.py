"""What somebody looks at on the Debug page, as an address and back. What is unknown in an address falls back and is said."""

from dataclasses import dataclass, replace

from grpo_core import Recipe
from grpo_core.batch_view import QUANTITIES, SORTS
from grpo_core.planted import PLANTED

from .. import link
from ..lesson import Selection
from ..page_link import LONGEST, joined, one_of, preset_or_none, read, split

STEP, EXAMPLE, NONE = "step", "example-", "none"
EXAMPLES = tuple(EXAMPLE + name for name in PLANTED)
FOUND = "found"  # the filter: rows that a finding names; `check:NAME` only those of one check; `group:N` one group
MOST = 10**7  # rows and columns
OWN = ("batch", "update", "show", "sort", "filter", "top", "left", "as")


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """The state of the page, all of it in the address: the lessons' own recipe and selection, and what is looked at."""

    recipe: Recipe
    selection: Selection = Selection()
    batch: str = ""  # STEP, one of EXAMPLES, a file's key, or "": the file that the server was started with; NONE: no batch
    update: int | None = None  # of the step; None: the last one
    show: str = ""  # the quantity in the grid; "": the first that the batch has
    sort: str = "row"  # one of SORTS, falling with a minus before it
    filter: str = ""
    top: int = 0  # the first row drawn, counted in the order of the sorting
    left: int = 0  # the first scored column drawn, counted from the first completion token
    as_preset: str = ""  # whose settings; "": the file's own


DEFAULT = Wanted(recipe=Recipe())


def query(wanted: Wanted) -> str:
    """`?lesson=…&batch=…`: the recipe as the lessons write it, and what differs from this page's defaults."""
    pairs = [("batch", wanted.batch)] if wanted.batch else []
    pairs += [("update", wanted.update)] if wanted.update is not None else []
    for name in ("show", "sort", "filter", "top", "left"):
        value = getattr(wanted, name)
        pairs += [(name, value)] if value != getattr(DEFAULT, name) else []
    pairs += [("as", wanted.as_preset)] if wanted.as_preset else []
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
    values = read(given, READ, messages)
    return replace(wanted, **{"as_preset" if name == "as" else name: value for name, value in values.items()})


def _whole(name: str, text: str) -> int:
    if not (text.isdecimal() and text.isascii() and int(text[:9]) <= MOST and len(text) < 9):
        raise ValueError(f"{name}: found {text[:40]!r}, allowed: a whole number up to {MOST}")
    return int(text)


def _batch(name: str, text: str) -> str:
    if text in EXAMPLES or not text or (len(text) <= 32 and text.isascii() and text.isalnum()):
        return text
    raise ValueError(f"{name}: found {text[:40]!r}, allowed: {STEP}, {', '.join(EXAMPLES)}, or the key of a batch file")


def _filter(name: str, text: str) -> str:
    kind, _, value = text.partition(":")
    plain = len(text) <= LONGEST and value.replace("_", "").isalnum() and value.isascii()
    if text in ("", FOUND) or (kind == "check" and plain) or (kind == "group" and plain and value.isdecimal()):
        return text
    raise ValueError(f"{name}: found {text[:40]!r}, allowed: {FOUND}, check:NAME, group:NUMBER")


READ = {
    "batch": _batch, "update": _whole, "show": lambda name, text: one_of(name, text, ("", *QUANTITIES)),
    "sort": lambda name, text: one_of(name, text, tuple(sign + key for key in SORTS for sign in ("", "-"))),
    "filter": _filter, "top": _whole, "left": _whole, "as": preset_or_none,
}  # fmt: skip
assert set(READ) == set(OWN)
