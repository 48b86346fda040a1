"""What happens on the Debug page when somebody does something: plain values in, plain values out, no Gradio.

As in the lessons, every handler answers at once with what can be drawn; `finish` does the slow part, once for everyone who
looks at the same batch, and `show` draws it from the state as it is by then.
"""

import json
import logging
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

from grpo_core.report import report_html

from .. import link as lessons_link
from .. import prose, view
from ..batches import is_batch
from ..components import Nav
from ..handlers import first_recipe, gone, plain_recipe, standing
from ..lesson import Selection
from . import grid, link, made, source
from . import view as pages
from .link import Wanted
from .source import Source

CHOICES = ("batch", "update", "show", "sort", "filter", "top", "left", "as")
UPLOADED = re.compile(r"[0-9a-f]{40,}")  # Gradio's folder for one upload
UNREADABLE = (ValueError, OSError, MemoryError, RuntimeError)
Drawn = tuple[Wanted, list[str], dict, dict]


def load(query: str, lang: str = prose.DEFAULT) -> Drawn:
    """The state of an address: wanted, notices, and the values of the navigation and the page."""
    wanted, messages = link.parse(query, plain_recipe())
    recipe, refused = view.bench().allowed(wanted.recipe, lessons_link.bare(query))
    wanted = replace(wanted, recipe=recipe)
    if "lang" not in parse_qs(query.removeprefix("?")):
        wanted = replace(wanted, selection=replace(wanted.selection, lang=lang))
    return drawn(_beside_lessons(wanted), messages + refused)


def choose(sent: Mapping, wanted: Wanted) -> Drawn:
    """Another batch, quantity, order, filter, window or preset: all of it read as the text that it is in the address."""
    messages: list[str] = []
    given = {name: str(sent[name]) for name in CHOICES if isinstance(sent.get(name), (str, int))}
    if "batch" in given or "update" in given:  # another batch is looked at from its beginning
        wanted = Wanted(
            recipe=wanted.recipe, selection=source.fresh(wanted.selection), batch=wanted.batch, update=wanted.update
        )
    if "batch" in given:
        wanted = replace(wanted, update=None)
    if given.keys() & {"sort", "filter"}:
        given.setdefault("top", "0")
    return drawn(_beside_lessons(link.changed(wanted, given, messages)), messages)


def select(place: Mapping, wanted: Wanted) -> Drawn | None:
    """The token whose numbers are shown, with the window where it is; without a place the first again."""
    row, pos = place.get("row", Selection.row), place.get("pos", Selection.pos)
    if not all(isinstance(n, int) and not isinstance(n, bool) and -1 <= n <= link.MOST for n in (row, pos)):
        return None
    wanted = replace(wanted, selection=replace(wanted.selection, row=max(0, row), pos=pos))
    batch = current(wanted)
    if batch is not None and made.is_ready(batch, wanted):
        wanted = grid.showing(wanted, batch, made.seen(batch, wanted), made.diagnosis(batch))
    return drawn(wanted, [])


def upload(path: str | None, wanted: Wanted) -> Drawn | None:
    """A file; the copy that was uploaded is deleted. A bad one leaves the batch from before, and is said in one line."""
    if not path:
        return None
    name = Path(path).name
    try:
        opened = source.open_file(path, name)
    except UNREADABLE as error:
        return drawn(wanted, [one_line(error) or f"{name}: cannot be read"])
    finally:
        Path(path).unlink(missing_ok=True)
        if UPLOADED.fullmatch(Path(path).parent.name):
            with suppress(OSError):  # kept where another upload of the same file is being read
                Path(path).parent.rmdir()
    start = Wanted(recipe=wanted.recipe, selection=source.fresh(wanted.selection), batch=str(opened.key))
    return drawn(_beside_lessons(start), [])


def save(sent: Mapping, wanted: Wanted) -> dict[str, Any] | None:
    """The report as a file: one HTML page, or JSON as the command line prints it."""
    batch, kind = current(wanted), sent.get("kind")
    if batch is None or not made.is_ready(batch, wanted) or kind not in ("html", "json"):
        return None
    found, name = made.diagnosis(batch), file_name(batch)
    if kind == "json":
        text = json.dumps(found.as_json(batch.batch), ensure_ascii=False, allow_nan=False, indent=1)
        return pages.saved(wanted, text, f"{name}.json", "application/json")
    return pages.saved(wanted, report_html(batch.batch, found, pages.about.title(wanted, batch)), f"{name}.html", "text/html")


def file_name(batch: Source) -> str:
    """What a report of this batch is called: letters that any disk takes."""
    stem = re.sub(r"[^\w.-]+", "-", Path(batch.name).stem)[:60].strip("-.") or "batch"
    return f"{stem}-report"


def finish(wanted: Wanted) -> str:
    """The slow part: the model's step, every check, every quantity. Returns what went wrong."""
    try:
        if source.needs_step(wanted):
            view.bench().step(wanted.recipe)
        batch = current(wanted)
        if batch is not None:
            made.prepare(batch, wanted)
            made.lesson_model(batch)
    except Exception as error:  # a file may hold what no check was written for: that is said, and the page stays usable
        if not isinstance(error, ValueError):
            logging.getLogger(__name__).exception("the diagnosis failed")
        text = one_line(error)
        return text if ":" in text else f"batch: {text or type(error).__name__}"
    return ""


def show(trouble: str, notices: Sequence[str], wanted: Wanted) -> Drawn:
    """What `finish` made; where it failed, the page without that batch, and why."""
    if trouble:
        empty = Wanted(recipe=first_recipe(), selection=source.fresh(wanted.selection), batch=link.NONE)
        return drawn(empty, [*notices, trouble])
    return drawn(wanted, notices)


# ---- what can be drawn now -----------------------------------------------------------------------------------------------
def current(wanted: Wanted) -> Source | None:
    """The batch, as far as it is there; None where none was chosen."""
    wanted = _here(wanted)
    if wanted.batch == link.STEP or wanted.batch in link.EXAMPLES:
        return source.step_source(wanted)
    return source.file_of(wanted)


def _beside_lessons(wanted: Wanted) -> Wanted:
    """A batch was chosen here: where the lessons walk through a batch file, that one is left."""
    batch_there = bool(wanted.batch) and is_batch(wanted.recipe.model)
    return replace(wanted, recipe=first_recipe()) if batch_there else wanted


def _here(wanted: Wanted) -> Wanted:
    """A file that has left the memory: none; a kept step that has gone: the first recipe."""
    wanted = replace(wanted, recipe=standing(wanted.recipe, wanted.selection.lang)[0])
    try:
        source.file_of(wanted)
    except LookupError:
        return replace(wanted, batch=link.NONE)
    return wanted


def drawn(wanted: Wanted, notices: Sequence[str]) -> Drawn:
    notices, here = list(notices), _here(wanted)
    if here.recipe != wanted.recipe:
        notices.append(prose.label(wanted.selection.lang, gone(wanted.recipe)))
    if here.batch != wanted.batch:
        notices.append(prose.label(wanted.selection.lang, "debug_gone"))
    batch = current(here)
    pending = batch is None and source.needs_step(here)
    try:
        values = pages.page(here, batch, notices, pending)
    except Exception as error:  # a file may hold what nobody thought of: the page says so, and stays usable
        logging.getLogger(__name__).exception("the batch could not be drawn")
        here, batch = replace(here, batch=link.NONE), None
        notices.append(prose.label(here.selection.lang, "debug_not_drawn", error=one_line(error)[:200]))
        values = pages.page(here, None, notices)
    texts = prose.labels(here.selection.lang)
    return here, notices, pages.nav(here, batch) | {"labels": {key: texts[key] for key in Nav.LABELS}}, values


def one_line(error: BaseException) -> str:
    return " ".join(str(error).split())
