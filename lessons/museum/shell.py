"""The museum's Gradio wiring: a page of the app, at /museum."""

import gradio as gr

from .. import prose
from ..components import Museum
from ..one_page import OnePage
from . import handlers
from .link import Wanted


def add(blocks: gr.Blocks, lang: str) -> None:
    """The page, beside the lessons."""
    with blocks.route(prose.label(lang, "page_museum"), "/museum"):
        events = {"choose": handlers.choose, "guess": handlers.guess, "tell": handlers.tell, "carry": handlers.carry}
        OnePage("museum", lang, Museum, Wanted, handlers).wire(blocks, events)
