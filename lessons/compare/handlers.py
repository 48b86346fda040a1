"""What happens on the Compare page when somebody does something: plain values in, plain values out, no Gradio.

As in the lessons, every handler answers at once with what can be drawn; `finish` does the slow part, once for everyone who
asks for the same batch, and `show` draws it from the state as it is by then.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

from .. import link as lessons_link
from .. import prose, view
from ..batches import is_batch
from ..components import Nav
from ..handlers import first_recipe, gone, plain_recipe, standing
from ..lesson import Selection
from . import bridge, link, printed, source, table
from . import view as pages
from .link import STEP, Wanted
from .source import Source

CHOICES = ("a", "b", "printed", "update", "batch")
TABLE = ("sort", "filter", "trainer", "all", "open")


def load(query: str, lang: str = prose.DEFAULT) -> tuple[Wanted, list[str], dict, dict]:
    """The state of an address: wanted, notices, and the values of the navigation and the page."""
    wanted, messages = link.parse(query, plain_recipe())
    recipe, refused = view.bench().allowed(wanted.recipe, lessons_link.bare(query))
    wanted = replace(wanted, recipe=recipe)
    if "lang" not in parse_qs(query.removeprefix("?")):
        wanted = replace(wanted, selection=replace(wanted.selection, lang=lang))
    return drawn(wanted, messages + refused, fresh=True)


def choose(sent: Mapping, wanted: Wanted) -> tuple[Wanted, list[str], dict, dict]:
    """Another A or B, another batch or update, another printed loss; in other words all that is read as text."""
    messages: list[str] = []
    given = {name: str(sent[name]) for name in CHOICES if isinstance(sent.get(name), (str, int))}
    if given.keys() & {"a", "b"} and not given.keys() & {"batch"}:
        wanted = replace(wanted, order=())  # an order of other knobs says nothing here
    return drawn(link.changed(wanted, given, messages), messages)


def swap(wanted: Wanted) -> tuple[Wanted, list[str], dict, dict]:
    return drawn(replace(wanted, a=wanted.b, b=wanted.a, order=()), [])


def reorder(sent: Mapping, wanted: Wanted) -> tuple[Wanted, list[str], dict, dict] | None:
    """A knob turned one bar earlier or later; without a knob the usual order again."""
    knob, by, batch = sent.get("knob"), sent.get("by"), current(wanted)
    if not knob:
        return drawn(replace(wanted, order=()), [])
    bars = bridge.bars_of(batch, wanted) if batch else None
    if not bars or by not in (-1, 1):
        return None
    ends = bars[0].before.convention, bars[-1].after.convention
    return drawn(replace(wanted, order=bridge.moved(bars, str(knob), by, ends)), [])


def select(place: Mapping, wanted: Wanted) -> tuple[Wanted, list[str], dict, dict] | None:
    """The token whose numbers are shown; without a place the first again."""
    row, pos = place.get("row", Selection.row), place.get("pos", Selection.pos)
    if not (isinstance(row, int) and isinstance(pos, int)):
        return None
    return drawn(replace(wanted, selection=replace(wanted.selection, row=row, pos=pos)), [])


def arrange(sent: Mapping, wanted: Wanted) -> tuple[Wanted, dict]:
    """Sorting, filtering, unfolding: the browser has done it; it becomes part of the address."""
    given = {name: str(sent[name]) for name in TABLE if isinstance(sent.get(name), str)}
    given |= {"all": "1" if sent["all"] else "0"} if isinstance(sent.get("all"), bool) else {}
    wanted = link.changed(wanted, given, [])
    return wanted, pages.part(wanted, current(wanted))


def export(wanted: Wanted) -> dict[str, Any] | None:
    """The whole table as CSV."""
    batch = current(wanted)
    if batch is None or not pages.table_ready(batch):
        return None
    return pages.part(wanted, batch, csv=table.csv_text(source.compared(batch), wanted.a), file="compare.csv")


def upload(path: str | None, wanted: Wanted) -> tuple[Wanted, list[str], dict, dict] | None:
    """A batch file; the copy that was uploaded is deleted. A bad one leaves the batch from before, and is said in one line."""
    if not path:
        return None
    try:
        opened = source.open_file(path, Path(path).name)
    except (ValueError, OSError, MemoryError, RuntimeError) as error:
        return drawn(wanted, [" ".join(str(error).split()) or f"{Path(path).name}: cannot be read"])
    finally:
        Path(path).unlink(missing_ok=True)
    start = Selection(lesson=wanted.selection.lesson, lang=wanted.selection.lang, hide=wanted.selection.hide)
    return drawn(replace(wanted, batch=str(opened.key), printed=None, selection=start), [])


def finish(wanted: Wanted) -> str:
    """The slow part: the model's step, every preset on its batch. Returns what went wrong."""
    try:
        if source.file_of(_here(wanted)) is None and not is_batch(wanted.recipe.model):
            view.bench().step(wanted.recipe)
        batch = current(wanted)
        if batch is None:
            return ""
        source.compared(batch)
        if printed.printed_of(batch, wanted):
            source.candidates_of(batch)
    except (ValueError, RuntimeError, MemoryError) as error:
        if not isinstance(error, ValueError):
            logging.getLogger(__name__).exception("the comparison failed")
        if wanted.recipe != first_recipe():
            finish(replace(wanted, recipe=first_recipe()))  # what is shown instead
        text = " ".join(str(error).split())
        return text if ":" in text else f"recipe: {text}"
    return ""


def show(trouble: str, notices: Sequence[str], wanted: Wanted) -> tuple[Wanted, list[str], dict, dict]:
    """What `finish` made; where the step could not be run, the first recipe's and why."""
    if trouble:
        return drawn(replace(wanted, recipe=first_recipe()), [*notices, trouble])
    return drawn(wanted, notices)


# ---- what can be drawn now -----------------------------------------------------------------------------------------------
def current(wanted: Wanted) -> Source | None:
    """The batch, as far as it is there."""
    wanted = _here(wanted)
    return source.file_of(wanted) or source.step_source(wanted)


def _here(wanted: Wanted) -> Wanted:
    """A file that has left the memory, a kept step that has gone: the step instead, the first recipe."""
    wanted = replace(wanted, recipe=standing(wanted.recipe, wanted.selection.lang)[0])
    try:
        source.file_of(wanted)
    except LookupError:
        return replace(wanted, batch=STEP)
    return wanted


def drawn(wanted: Wanted, notices: Sequence[str], fresh: bool = False) -> tuple[Wanted, list[str], dict, dict]:
    notices, here = list(notices), _here(wanted)
    if here.recipe != wanted.recipe:
        notices.append(prose.label(wanted.selection.lang, gone(wanted.recipe)))
    if here.batch != wanted.batch:
        notices.append(prose.label(wanted.selection.lang, "batch_gone"))
    values = pages.page(here, current(here), notices, fresh)
    texts = prose.labels(here.selection.lang)
    return here, notices, pages.nav(here) | {"labels": {key: texts[key] for key in Nav.LABELS}}, values
