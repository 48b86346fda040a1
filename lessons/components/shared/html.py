"""The gr.HTML component that hands its value to our own drawing code and its events to Python."""

import json
from typing import Any

import gradio as gr

START = """
const start = () => window.Lessons
  ? window.Lessons.mount(%r, element, props, watch, trigger)
  : setTimeout(start, 10);
start();
// the events this component sends: %s
"""


class Drawn(gr.HTML):
    """A component whose value is a dict that script.js draws into an empty element: values travel, not markup."""

    VIEW = ""  # the name under which script.js registers its drawing function
    SENDS: tuple[str, ...] = ()  # the events it triggers
    LABELS: tuple[str, ...] = ()  # the texts it shows, by their keys in text/<lang>/ui.md

    def __init__(self, value: dict[str, Any] | None = None, **settings: Any):
        quoted = " ".join(repr(event) for event in self.SENDS)  # gr.HTML finds the names of custom events in this text
        settings.setdefault("elem_id", f"lessons-{self.VIEW}")
        super().__init__(
            value,
            html_template=f'<div class="lv lv-{self.VIEW}"></div>',
            js_on_load=START % (self.VIEW, quoted),
            apply_default_css=False,
            **settings,
        )

    def postprocess(self, value: Any) -> str | None:
        """The value as JSON text: the browser compares a text at once, a nested object only by walking it."""
        return None if value is None else json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))

    def api_info(self) -> dict[str, Any]:
        return {"type": "string"}
