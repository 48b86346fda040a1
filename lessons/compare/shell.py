"""The Compare page's Gradio wiring: a page of the app, at /compare."""

from typing import Any

import gradio as gr

from .. import prose
from ..components import Compare
from ..one_page import MANY, OnePage, data_of
from . import handlers
from .link import Wanted


def add(blocks: gr.Blocks, lang: str) -> None:
    """The page, beside the lessons."""
    with blocks.route(prose.label(lang, "page_compare"), "/compare"):
        file = gr.UploadButton(file_types=[".json", ".safetensors"], visible="hidden", elem_id="compare-file")
        page = OnePage("compare", lang, Compare, Wanted, handlers, at_once=2)
        events = {"choose": handlers.choose, "order": handlers.reorder, "clear": handlers.select, "swap": swap}
        page.wire(blocks, events | {"select": handlers.select})
        page.takes_files(file)
        page.drawing.table(arranged, page.wanted, [page.wanted, page.drawing], **MANY)
        page.drawing.csv(handlers.export, page.wanted, page.drawing, **MANY)


def swap(_: dict[str, Any], wanted: Wanted) -> Any:
    return handlers.swap(wanted)


def arranged(wanted: Wanted, sent: gr.EventData) -> list[Any]:
    return list(handlers.arrange(data_of(sent), wanted))
