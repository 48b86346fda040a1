"""What somebody wants to see compared, as an address and back. What is unknown in an address falls back and is said."""

from dataclasses import dataclass, replace
from difflib import get_close_matches

from grpo_core import Recipe
from grpo_core.bridge import KNOBS
from grpo_core.compare import NUMBERS
from grpo_core.fingerprint import decimals_of
from grpo_core.presets import PRESETS

from .. import link
from ..lesson import Selection
from ..page_link import LONGEST, joined, one_of, preset_name, preset_or_none, read, split

STEP = "step"
COLUMNS = ("preset", "version", *NUMBERS)
TRAINERS = tuple(dict.fromkeys(row.trainer for row in PRESETS.values()))
OWN = ("update", "batch", "a", "b", "order", "printed", "sort", "filter", "trainer", "all", "open")


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """The state of the page, all of it in the address: the lessons' own recipe and selection, and what is compared."""

    recipe: Recipe
    selection: Selection = Selection()
    update: int | None = None  # None: the last one, where the policies have parted
    batch: str = ""  # STEP, a batch file's key, or "": the file that the server was started with, else the step
    a: str = "trl"
    b: str = "verl"
    order: tuple[str, ...] = ()  # knobs that the bridge turns first
    printed: str | None = None  # the loss that a trainer printed; None: what the batch file reports
    sort: str = "-loss"  # a column, falling with a minus before it
    filter: str = ""
    trainer: str = ""
    all: bool = False  # every variant, not only each trainer's defaults
    open: str = ""  # the preset whose row is unfolded


def query(wanted: Wanted) -> str:
    """`?lesson=…&a=…`: the recipe as the lessons write it, and what differs from this page's defaults."""
    start = Wanted(recipe=wanted.recipe)
    pairs = [("update", wanted.update)] if wanted.update is not None else []
    pairs += [("batch", wanted.batch)] if wanted.batch else []
    pairs += [("a", wanted.a), ("b", wanted.b)]
    pairs += [("order", ",".join(wanted.order))] if wanted.order else []
    pairs += [("printed", wanted.printed)] if wanted.printed is not None else []
    for name in ("sort", "filter", "trainer", "open"):
        value = getattr(wanted, name)
        pairs += [(name, value)] if value != getattr(start, name) else []
    pairs += [("all", "1")] if wanted.all else []
    return joined(link.query(wanted.recipe, replace(wanted.selection, update=0)), pairs)


def lesson_query(wanted: Wanted) -> str:
    """The same step in the lessons."""
    return link.query(wanted.recipe, replace(wanted.selection, update=wanted.update or 0))


def parse(text: str, defaults: Recipe) -> tuple[Wanted, list[str]]:
    """What an address asks for, and one message for each part that could not be used."""
    own, rest = split(text, OWN)
    recipe, selection, messages = link.parse(rest, defaults)
    return changed(Wanted(recipe=recipe, selection=selection), own, messages), messages


def changed(wanted: Wanted, given: dict[str, str], messages: list[str]) -> Wanted:
    """`wanted` with what is given as text. What cannot be used stays as it was, and is said in `messages`."""
    return replace(wanted, **read(given, READ, messages))


def _update(name: str, text: str) -> int:
    if not (text.isdecimal() and text.isascii() and len(text) < 4):
        raise ValueError(f"{name}: found {text[:40]!r}, allowed: a whole number")
    return int(text)


def _batch(name: str, text: str) -> str:
    if text and not (len(text) <= 32 and text.isascii() and text.isalnum()):
        raise ValueError(f"{name}: found {text[:40]!r}, allowed: {STEP}, or the key of a batch file")
    return text


def _order(name: str, text: str) -> tuple[str, ...]:
    knobs = [knob for knob in text[:1000].split(",") if knob]
    for knob in knobs:
        if knob not in KNOBS:
            nearest = get_close_matches(knob, KNOBS, n=3, cutoff=0.4) or list(KNOBS)
            raise ValueError(f"{name}: found {knob[:40]!r}, allowed: knobs; nearest: {', '.join(nearest)}")
    return tuple(dict.fromkeys(knobs))


def _printed(name: str, text: str) -> str:
    text = text.strip().replace("\N{MINUS SIGN}", "-")
    if text:
        printed_number(text, name)
    return text


def printed_number(text: str, name: str = "printed") -> tuple[float, int]:
    """A number as somebody printed it, and how many decimals it has."""
    try:
        value, decimals = float(text), decimals_of(text)
        if len(text) <= 40 and abs(value) < float("inf"):
            return value, decimals
    except (ValueError, OverflowError):
        pass
    raise ValueError(f"{name}: found {text[:40]!r}, allowed: a number as your trainer printed it, such as 0.447")


def _sort(name: str, text: str) -> str:
    return text if not text else one_of(name, text, [sign + column for column in COLUMNS for sign in ("", "-")])


def _trainer(name: str, text: str) -> str:
    return one_of(name, text, ["", *TRAINERS])


READ = {
    "update": _update, "batch": _batch, "a": preset_name, "b": preset_name, "order": _order, "printed": _printed, "sort": _sort,
    "filter": lambda name, text: text[:LONGEST], "trainer": _trainer, "all": lambda name, text: text in ("1", "true"),
    "open": preset_or_none,
}  # fmt: skip
assert set(READ) == set(OWN)
