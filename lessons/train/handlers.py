"""What happens on the page Train when somebody does something: plain values in, plain values out, no Gradio.

The visitor's run is found by their key. Each handler answers at once; a pause or a stop waits for the step in hand, shortly.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any
from urllib.parse import parse_qs

from .. import link as lessons_link
from .. import prose, view
from ..handlers import plain_recipe
from ..sources import is_kept
from . import link, plan
from . import view as pages
from .link import OWN, PREFIX, Wanted
from .run import Run
from .runs import runs

SHORTLY = 1.0  # seconds
LONGEST_KEY = 64


def load(query: str, visitor: str, session: str, lang: str = prose.DEFAULT) -> tuple[Wanted, dict, dict, dict]:
    """The state of an address: wanted, and the values of navigation, page and side. The visitor's run is still theirs."""
    wanted, messages = link.parse(query, plain_recipe())
    recipe, refused = view.bench().allowed(wanted.recipe, lessons_link.bare(query))
    wanted = replace(wanted, recipe=recipe)
    given = parse_qs(query.removeprefix("?"), keep_blank_values=True)
    if "lang" not in given:
        wanted = replace(wanted, selection=replace(wanted.selection, lang=lang))
    run = here(visitor, session)
    if run and not any(key.startswith(PREFIX) for key in given):
        own = {name: getattr(run.wanted, name) for name in OWN}
        own |= {"seed": run.config.seed} if is_kept(recipe.model) else {}  # whose recipe has the seed of its one step
        wanted = replace(wanted, **own)
    wanted = plan.accepted(wanted, plan.fallback(wanted), messages)
    return wanted, pages.nav(wanted), pages.page(wanted, run, messages + refused), pages.side(wanted, None)


def here(visitor: str, session: str) -> Run | None:
    """The visitor's run, told that somebody is there."""
    run = runs.of(visitor) if visitor and len(visitor) <= LONGEST_KEY else None
    if run:
        run.look(session)
    return run


def change(sent: Mapping, visitor: str, session: str, wanted: Wanted) -> tuple[Wanted, dict, dict]:
    """A setting of the next run: wanted, navigation, page."""
    messages: list[str] = []
    given = {name: str(sent[name]) for name in OWN if isinstance(sent.get(name), (str, int, float))}
    wanted = plan.accepted(link.changed(wanted, given, messages), wanted, messages)
    return wanted, pages.nav(wanted), pages.page(wanted, here(visitor, session), messages)


def start(visitor: str, session: str, wanted: Wanted) -> dict:
    """A new run with these settings; an old one of the same visitor goes."""
    if not visitor or len(visitor) > LONGEST_KEY:
        return pages.page(wanted, None, [prose.label(wanted.selection.lang, "train_no_key")])
    try:
        run = runs.start(visitor, wanted, view.bench())
    except (ValueError, OSError) as error:
        return pages.page(wanted, runs.of(visitor), [" ".join(str(error).split())])
    run.look(session)
    return pages.page(wanted, run, [])


def pause(sent: Mapping, visitor: str, session: str, wanted: Wanted) -> dict:
    if run := here(visitor, session):
        run.pause()
        run.settle(SHORTLY)
    return poll(sent, visitor, session, wanted)


def resume(sent: Mapping, visitor: str, session: str, wanted: Wanted) -> dict:
    if run := here(visitor, session):
        run.go()
    return poll(sent, visitor, session, wanted)


def stop(sent: Mapping, visitor: str, session: str, wanted: Wanted) -> dict:
    if run := here(visitor, session):
        run.stop()
        run.settle(SHORTLY)
        return pages.page(wanted, run, [])  # settings can be changed again
    return poll(sent, visitor, session, wanted)


def poll(sent: Mapping, visitor: str, session: str, wanted: Wanted) -> dict:
    """What is new since the step that the page has; all of it where the page is of another run, or the run has just ended."""
    run, since = here(visitor, session), sent.get("since")
    if run and not run.ended and sent.get("run") == run.id and isinstance(since, int) and 0 <= since <= len(run.history):
        return pages.part(wanted, run, [], since)
    return pages.page(wanted, run, [])


def answer(sent: Mapping, answers: dict[str, str], wanted: Wanted) -> tuple[dict[str, str], dict] | None:
    """A prediction; the empty one asks to be told."""
    option: Any = sent.get("option")
    if not isinstance(option, str) or len(option) > 100:
        return None
    return answers | {"train": option}, pages.side(wanted, option)


def left(session: str) -> None:
    """The page was closed."""
    runs.left(session)
