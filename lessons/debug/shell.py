"""The Debug page's Gradio wiring: a page of the app, at /debug."""

from typing import Any

import gradio as gr

from .. import prose
from ..components import Debug
from ..one_page import MANY, OnePage, data_of
from . import handlers
from .link import Wanted


class Drop(gr.UploadButton):
    """Hands on where the file lies, and makes no second one beside it, as Gradio's own does for its name."""

    def preprocess(self, payload: Any) -> str | None:
        return payload.path if payload else None

    def get_block_name(self) -> str:
        return "uploadbutton"


def add(blocks: gr.Blocks, lang: str) -> None:
    """The page, beside the lessons."""
    with blocks.route(prose.label(lang, "page_debug"), "/debug"):
        file = Drop(visible="hidden", elem_id="debug-file")
        page = OnePage("debug", lang, Debug, Wanted, handlers)
        page.wire(blocks, {"choose": handlers.choose, "select": handlers.select, "clear": handlers.select})
        page.takes_files(file)
        page.drawing.save(saved, page.wanted, page.drawing, **MANY)


def saved(wanted: Wanted, sent: gr.EventData) -> Any:
    value = handlers.save(data_of(sent), wanted)
    return gr.skip() if value is None else value
