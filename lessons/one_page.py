"""The Gradio wiring of a page that is one component beside the navigation: an address comes in, events come in, and each is
answered at once; what takes longer is computed after the answer and drawn when it is there.

A page brings `handlers`: `load(query, lang)`, `finish(wanted)`, `show(trouble, notices, wanted)`, and one for each event.
"""

from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

import gradio as gr

from .components import Nav
from .handlers import first_recipe

ADDRESS = "() => [location.search]"
QUICK = {"queue": False, "show_progress": "hidden", "api_visibility": "private"}
MANY = {"trigger_mode": "multiple", **QUICK}


class OnePage:
    """The components of the page, and its state: what is looked at, and whether all of it is drawn."""

    def __init__(self, name: str, lang: str, component: type, wanted: type, handlers: ModuleType, at_once: int = 1):
        self.name, self.lang, self.handlers, self.at_once = name, lang, handlers, at_once
        self.wanted = gr.State(wanted(recipe=first_recipe()))
        self.notices, self.done, self.trouble = gr.State([]), gr.State(False), gr.State("")
        self.address = gr.Textbox(visible="hidden", elem_id="lessons-address")
        self.back = gr.Button("back", visible="hidden", elem_id="lessons-back")
        with gr.Row(elem_id="compare-page"):
            with gr.Column(elem_id="compare-left"):
                self.nav = Nav()
            with gr.Column(elem_id="compare-main"):
                self.drawing = component()
        self.all = [self.wanted, self.notices, self.done, self.nav, self.drawing]

    def wire(self, page: gr.Blocks, events: Mapping[str, Callable]) -> None:
        """`events`: of the component -> a function of (what was sent, wanted)."""
        for listen in (page.load, self.back.click):  # a "forward" that comes while "back" is answered counts
            self.then_run(listen(self._opening, self.address, self.all, js=ADDRESS, trigger_mode="always_last", **QUICK))
        for name, handler in events.items():
            self.then_run(getattr(self.drawing, name)(event(handler), self.wanted, self.all, **MANY))

    def takes_files(self, button: gr.UploadButton) -> None:
        """`handlers.upload(path, wanted)` answers."""
        self.then_run(button.upload(self._uploaded, [button, self.wanted], self.all, **QUICK))

    def then_run(self, first: Any) -> None:
        """The slow part after an answer that may have said that it is under way."""
        ran = first.then(
            self._finished, [self.wanted, self.done], [self.trouble], show_progress="hidden", api_visibility="private",
            concurrency_limit=self.at_once, concurrency_id=self.name, trigger_mode="multiple",
        )  # fmt: skip
        ran.then(self._shown, [self.trouble, self.notices, self.wanted, self.done], self.all, **MANY)

    def _opening(self, query: str) -> list[Any]:
        return answered(self.handlers.load(query, self.lang))

    def _uploaded(self, path: str | None, wanted: Any) -> list[Any]:
        return answered(self.handlers.upload(path, wanted))

    def _finished(self, wanted: Any, done: bool) -> str:
        return "" if done else self.handlers.finish(wanted)

    def _shown(self, trouble: str, notices: list[str], wanted: Any, done: bool) -> list[Any]:
        return answered(None if done and not trouble else self.handlers.show(trouble, notices, wanted))


# ---- from Gradio's calling convention to the handlers' -------------------------------------------------------------------
def answered(result: Any) -> list[Any]:
    """A handler's answer, and whether the page in it is complete; None where nothing changed."""
    if result is None:
        return [gr.skip()] * 5
    wanted, notices, nav, page = result
    return [wanted, notices, not page["running"], nav, page]


def event(handler: Callable) -> Callable:
    def run(wanted: Any, sent: gr.EventData) -> list[Any]:
        return answered(handler(data_of(sent), wanted))

    run.__name__ = handler.__name__
    return run


def data_of(sent: gr.EventData) -> dict[str, Any]:
    return sent._data if isinstance(sent._data, dict) else {}
