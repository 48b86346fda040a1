"""The Train page's Gradio wiring: a third page of the app, at /train.

While a run works the browser asks for what is new, each time after it has the last answer: whoever is gone asks no more,
and the run pauses. Nothing is streamed, so nothing has to be cancelled.
"""

from collections.abc import Callable
from typing import Any

import gradio as gr

from .. import pages, prose
from ..components import Nav, Side, Train
from ..handlers import first_recipe
from . import handlers
from .link import Wanted

# The address, and the visitor's secret: of this tab, not in any link, so that nobody drives another's run.
OPENED = """() => {
  const name = 'lessons-visitor';
  let key = '';
  try {
    const made = () => Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, '0'));
    key = sessionStorage.getItem(name) || made().join('');
    sessionStorage.setItem(name, key);
  } catch (error) {}
  return [location.search, key];
}"""
QUICK = {"queue": False, "show_progress": "hidden", "api_visibility": "private"}


def add(blocks: gr.Blocks, lang: str) -> None:
    """The page, beside the lessons."""
    with blocks.route(prose.label(lang, "page_train"), f"/{pages.TRAIN}"):
        TrainPage(lang).wire(blocks)


class TrainPage:
    """The components of the page, and its state: what is wanted, who it is, what was answered."""

    def __init__(self, lang: str):
        self.lang = lang
        self.wanted, self.answers = gr.State(Wanted(recipe=first_recipe())), gr.State({})
        self.address = gr.Textbox(visible="hidden", elem_id="lessons-address")
        self.visitor = gr.Textbox(visible="hidden", elem_id="lessons-visitor")
        self.back = gr.Button("back", visible="hidden", elem_id="lessons-back")
        with gr.Row(elem_id="lessons-page"):
            with gr.Column(elem_id="lessons-left"):
                self.nav = Nav()
            with gr.Column(elem_id="lessons-middle"):
                self.train = Train()
            with gr.Column(elem_id="lessons-right"):
                self.side = Side()

    def wire(self, page: gr.Blocks) -> None:
        everything = [self.wanted, self.visitor, self.nav, self.train, self.side]
        opened = {"js": OPENED, "trigger_mode": "always_last", **QUICK}  # a "forward" while "back" is answered counts
        for listen in (page.load, self.back.click):
            listen(opening(self.lang), [self.address, self.visitor], everything, **opened)
        acts = {"inputs": [self.visitor, self.wanted], "trigger_mode": "multiple", **QUICK}
        self.train.set(event(handlers.change), outputs=[self.wanted, self.nav, self.train], **acts)
        for listen, handler in (
            (self.train.pause, handlers.pause), (self.train.resume, handlers.resume), (self.train.stop, handlers.stop),
            (self.train.poll, handlers.poll), (self.train.start, starting),
        ):  # fmt: skip
            listen(event(handler), outputs=self.train, **acts)
        self.side.answer(
            answered, [self.answers, self.visitor, self.wanted], [self.answers, self.side, self.train],
            trigger_mode="multiple", **QUICK,
        )  # fmt: skip
        page.unload(leaving)


# ---- from Gradio's calling convention to the handlers' -------------------------------------------------------------------
def data_of(sent: gr.EventData) -> dict[str, Any]:
    return sent._data if isinstance(sent._data, dict) else {}


def opening(lang: str) -> Callable:
    """Opening an address; Gradio hands the request in where a function, not a partial, asks for it by its annotation."""

    def opened(query: str, visitor: str, request: gr.Request) -> list[Any]:
        wanted, nav, train, side = handlers.load(query, visitor, request.session_hash or "", lang)
        return [wanted, visitor, nav, train, side]

    return opened


def event(handler: Callable) -> Callable:
    def run(visitor: str, wanted: Wanted, sent: gr.EventData, request: gr.Request) -> Any:
        made = handler(data_of(sent), visitor, request.session_hash or "", wanted)
        return list(made) if isinstance(made, tuple) else made

    run.__name__ = handler.__name__
    return run


def starting(_: dict[str, Any], visitor: str, session: str, wanted: Wanted) -> dict:
    return handlers.start(visitor, session, wanted)


def answered(answers: dict, visitor: str, wanted: Wanted, sent: gr.EventData, request: gr.Request) -> list[Any]:
    """The side, and the page as it is: the browser waits for the page before it sends the next event."""
    made = handlers.answer(data_of(sent), answers, wanted)
    if made is None:
        return [gr.skip()] * 3
    return [*made, handlers.poll({}, visitor, request.session_hash or "", wanted)]


def leaving(request: gr.Request) -> None:
    handlers.left(request.session_hash or "")
