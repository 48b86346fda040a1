"""What happens in the museum when somebody does something: plain values in, plain values out, no Gradio.

As in the lessons, every handler answers at once with what can be drawn; `finish` puts the bug into the step and asks every
badge, and `show` draws it from the state as it is by then.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any
from urllib.parse import parse_qs

from .. import prose, view
from ..batches import is_batch
from ..components import Nav
from ..handlers import first_recipe, plain_recipe, standing
from . import link, source
from . import view as pages
from .link import Wanted

Drawn = tuple[Wanted, list[str], dict, dict]


def load(query: str, lang: str = prose.DEFAULT) -> Drawn:
    """The state of an address: wanted, notices, and the values of the navigation and the page."""
    wanted, messages = link.parse(query, plain_recipe())
    if "lang" not in parse_qs(query.removeprefix("?")):
        wanted = replace(wanted, selection=replace(wanted.selection, lang=lang))
    if is_batch(wanted.recipe.model):  # from the lessons, back to what they walk through
        recipe, slug = source.exhibited(wanted.recipe.model) or (first_recipe(), "")
        wanted = replace(wanted, recipe=recipe, exhibit=wanted.exhibit or slug)
    recipe, refused = view.bench().allowed(wanted.recipe)
    return drawn(replace(wanted, recipe=recipe), messages + refused)


def choose(sent: Mapping, wanted: Wanted) -> Drawn:
    """An exhibit, or none: back to the shelf."""
    messages: list[str] = []
    slug = sent.get("exhibit", "")
    start = Wanted(recipe=wanted.recipe, selection=wanted.selection)
    return drawn(link.changed(start, {"exhibit": slug if isinstance(slug, str) else ""}, messages), messages)


def guess(sent: Mapping, wanted: Wanted) -> Drawn:
    """The badge that somebody says is the first to turn red."""
    messages: list[str] = []
    return drawn(link.changed(wanted, {"guess": str(sent.get("guess", ""))}, messages), messages)


def tell(sent: Mapping, wanted: Wanted) -> Drawn:
    """The answer, guessed or not."""
    return drawn(replace(wanted, told=True), [])


def carry(sent: Mapping, wanted: Wanted) -> Drawn:
    """The recipe that can carry the exhibit, in the place of the current one."""
    if not wanted.exhibit:
        return drawn(wanted, [])
    return drawn(Wanted(recipe=source.offered(wanted), selection=wanted.selection, exhibit=wanted.exhibit), [])


def finish(wanted: Wanted) -> str:
    """The slow part: the model's step, the fault, every badge. Returns what went wrong."""
    if not wanted.exhibit:
        return ""
    try:
        source.shown(wanted)
    except Exception as error:  # a step may be one that nobody thought of: that is said, and the page stays usable
        if not isinstance(error, ValueError):
            logging.getLogger(__name__).exception("the exhibit could not be made")
        text = " ".join(str(error).split())
        return text if ":" in text else f"exhibit: {text or type(error).__name__}"
    return ""


def show(trouble: str, notices: Sequence[str], wanted: Wanted) -> Drawn:
    """What `finish` made; where it failed, the shelf, and why."""
    if trouble:
        return drawn(Wanted(recipe=wanted.recipe, selection=wanted.selection), [*notices, trouble])
    return drawn(wanted, notices)


def drawn(wanted: Wanted, notices: Sequence[str]) -> Drawn:
    recipe, told = standing(wanted.recipe, wanted.selection.lang, notices)
    wanted = replace(wanted, recipe=recipe)
    made = source.shown(wanted) if wanted.exhibit and source.is_ready(wanted) else None
    texts = prose.labels(wanted.selection.lang)
    nav: dict[str, Any] = pages.nav(wanted) | {"labels": {key: texts[key] for key in Nav.LABELS}}
    return wanted, told, nav, pages.page(wanted, made, told)
