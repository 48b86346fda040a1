"""The museum's Gradio wiring: a page of the app, at /museum."""

from collections.abc import Callable
from functools import partial
from typing import Any

import gradio as gr

from .. import prose
from ..components import Museum, Nav
from ..handlers import first_recipe
from . import handlers
from .link import Wanted

ADDRESS = "() => [location.search]"
QUICK = {"queue": False, "show_progress": "hidden", "api_visibility": "private"}


def add(blocks: gr.Blocks, lang: str) -> None:
    """The page, beside the lessons."""
    with blocks.route(prose.label(lang, "page_museum"), "/museum"):
        MuseumPage(lang).wire(blocks)


class MuseumPage:
    """The components of the page, and its state: what is looked at, and whether all of it is drawn."""

    def __init__(self, lang: str):
        self.lang = lang
        self.wanted = gr.State(Wanted(recipe=first_recipe()))
        self.notices, self.done, self.trouble = gr.State([]), gr.State(False), gr.State("")
        self.address = gr.Textbox(visible="hidden", elem_id="lessons-address")
        self.back = gr.Button("back", visible="hidden", elem_id="lessons-back")
        with gr.Row(elem_id="compare-page"):
            with gr.Column(elem_id="compare-left"):
                self.nav = Nav()
            with gr.Column(elem_id="compare-main"):
                self.museum = Museum()
        self.all = [self.wanted, self.notices, self.done, self.nav, self.museum]

    def wire(self, page: gr.Blocks) -> None:
        for listen in (page.load, self.back.click):
            self.then_run(listen(partial(opening, self.lang), self.address, self.all, js=ADDRESS, **QUICK))
        sends = (
            (self.museum.choose, handlers.choose), (self.museum.guess, handlers.guess),
            (self.museum.tell, handlers.tell), (self.museum.carry, handlers.carry),
        )  # fmt: skip
        for listen, handler in sends:
            self.then_run(listen(event(handler), self.wanted, self.all, trigger_mode="multiple", **QUICK))

    def then_run(self, first: Any) -> None:
        """The slow part after an answer that may have said "being put in"."""
        ran = first.then(
            finished, [self.wanted, self.done], [self.trouble], show_progress="hidden", api_visibility="private",
            concurrency_limit=1, concurrency_id="museum", trigger_mode="multiple",
        )  # fmt: skip
        ran.then(shown, [self.trouble, self.notices, self.wanted, self.done], self.all, trigger_mode="multiple", **QUICK)


# ---- from Gradio's calling convention to the handlers' -------------------------------------------------------------------
def answered(result: Any) -> list[Any]:
    """A handler's answer, and whether the page in it is complete; None where nothing changed."""
    if result is None:
        return [gr.skip()] * 5
    wanted, notices, nav, page = result
    return [wanted, notices, not page["running"], nav, page]


def opening(lang: str, query: str) -> list[Any]:
    return answered(handlers.load(query, lang))


def event(handler: Callable) -> Callable:
    def run(wanted: Wanted, sent: gr.EventData) -> list[Any]:
        return answered(handler(sent._data if isinstance(sent._data, dict) else {}, wanted))

    run.__name__ = handler.__name__
    return run


def finished(wanted: Wanted, done: bool) -> str:
    return "" if done else handlers.finish(wanted)


def shown(trouble: str, notices: list[str], wanted: Wanted, done: bool) -> list[Any]:
    return answered(None if done and not trouble else handlers.show(trouble, notices, wanted))
