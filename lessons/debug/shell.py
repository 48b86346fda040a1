"""The Debug page's Gradio wiring: a page of the app, at /debug."""

from collections.abc import Callable
from functools import partial
from typing import Any

import gradio as gr

from .. import prose
from ..components import Debug, Nav
from ..handlers import first_recipe
from . import handlers
from .link import Wanted

ADDRESS = "() => [location.search]"
QUICK = {"queue": False, "show_progress": "hidden", "api_visibility": "private"}


class Drop(gr.UploadButton):
    """Hands on where the file lies, and makes no second one beside it, as Gradio's own does for its name."""

    def preprocess(self, payload: Any) -> str | None:
        return payload.path if payload else None

    def get_block_name(self) -> str:
        return "uploadbutton"


def add(blocks: gr.Blocks, lang: str) -> None:
    """The page, beside the lessons."""
    with blocks.route(prose.label(lang, "page_debug"), "/debug"):
        DebugPage(lang).wire(blocks)


class DebugPage:
    """The components of the page, and its state: what is looked at, and whether all of it is drawn."""

    def __init__(self, lang: str):
        self.lang = lang
        self.wanted = gr.State(Wanted(recipe=first_recipe()))
        self.notices, self.done, self.trouble = gr.State([]), gr.State(False), gr.State("")
        self.address = gr.Textbox(visible="hidden", elem_id="lessons-address")
        self.back = gr.Button("back", visible="hidden", elem_id="lessons-back")
        self.file = Drop(visible="hidden", elem_id="debug-file")
        with gr.Row(elem_id="compare-page"):
            with gr.Column(elem_id="compare-left"):
                self.nav = Nav()
            with gr.Column(elem_id="compare-main"):
                self.debug = Debug()
        self.all = [self.wanted, self.notices, self.done, self.nav, self.debug]

    def wire(self, page: gr.Blocks) -> None:
        for listen in (page.load, self.back.click):
            self.then_run(listen(partial(opening, self.lang), self.address, self.all, js=ADDRESS, **QUICK))
        sends = (
            (self.debug.choose, handlers.choose),
            (self.debug.select, handlers.select),
            (self.debug.clear, handlers.select),
        )
        for listen, handler in sends:
            self.then_run(listen(event(handler), self.wanted, self.all, trigger_mode="multiple", **QUICK))
        self.then_run(self.file.upload(uploaded, [self.file, self.wanted], self.all, **QUICK))
        self.debug.save(saved, self.wanted, self.debug, trigger_mode="multiple", **QUICK)

    def then_run(self, first: Any) -> None:
        """The slow part after an answer that may have said "being looked at"."""
        ran = first.then(
            finished, [self.wanted, self.done], [self.trouble], show_progress="hidden", api_visibility="private",
            concurrency_limit=1, concurrency_id="debug", trigger_mode="multiple",
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
        return answered(handler(data_of(sent), wanted))

    run.__name__ = handler.__name__
    return run


def data_of(sent: gr.EventData) -> dict[str, Any]:
    return sent._data if isinstance(sent._data, dict) else {}


def saved(wanted: Wanted, sent: gr.EventData) -> Any:
    value = handlers.save(data_of(sent), wanted)
    return gr.skip() if value is None else value


def uploaded(path: str | None, wanted: Wanted) -> list[Any]:
    return answered(handlers.upload(path, wanted))


def finished(wanted: Wanted, done: bool) -> str:
    return "" if done else handlers.finish(wanted)


def shown(trouble: str, notices: list[str], wanted: Wanted, done: bool) -> list[Any]:
    return answered(None if done and not trouble else handlers.show(trouble, notices, wanted))
