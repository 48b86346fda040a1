"""One visitor without a browser: the state that the page keeps for them, and the order in which it calls the handlers."""

from dataclasses import dataclass, field
from typing import Any

from grpo_core import Recipe
from lessons import form, handlers
from lessons.handlers import Shown
from lessons.knobs import KNOBS
from lessons.lesson import Selection

SHORT = "?lesson=rewards&max_completion_length=6&group_size=3&updates=1"


@dataclass
class Visitor:
    """Every method hands the handler what Gradio would, and keeps what Gradio would."""

    recipe: Recipe | None = None
    shown: Shown = Shown()
    selection: Selection = Selection()
    answers: dict[str, str] = field(default_factory=dict)
    notices: list[str] = field(default_factory=list)
    views: tuple[dict[str, Any], ...] = ()

    @property
    def state(self):
        return self.recipe, self.shown, self.selection, self.answers

    @property
    def picture(self) -> dict[str, Any]:
        return self.views[1]

    def open(self, query: str = SHORT, lang: str = "en") -> "Visitor":
        opened = handlers.load(query, self.shown, self.answers, lang)
        self.recipe, self.shown, self.notices, self.selection, *views = opened
        self.views = tuple(views)
        return self

    def run(self) -> "Visitor":
        """The slow part that follows every change."""
        trouble = handlers.finish(self.recipe, self.shown)
        drawn = handlers.show(trouble, self.notices, *self.state)
        return self.keep(drawn) if drawn else self

    def keep(self, changed) -> "Visitor":
        self.recipe, self.shown, self.notices, *views = changed
        self.views = tuple(views)
        return self

    def edit(self, row: int, value: str, function: int = 0, **more: Any) -> "Visitor":
        return self.keep(handlers.edit_reward({"row": row, "function": function, "value": value} | more, *self.state))

    def turn(self, **settings: Any):
        """What the handler makes of the form with some controls moved; None where nothing changed."""
        shown = {knob.field: value for knob, value in zip(KNOBS, form.knob_values(self.recipe), strict=True)}
        return handlers.change_knobs(shown | settings, *self.state)

    def preset(self, name: str | None = None):
        """What the handler makes of a choice in the list; without a name, of the way back."""
        return handlers.choose_preset({} if name is None else {"preset": name}, *self.state)

    def look(self, handler, target: dict[str, Any]) -> "Visitor":
        self.selection, *views = handler(target, *self.state)
        self.views = tuple(views)
        return self


def timeless(views: tuple[dict[str, Any], ...]) -> list[dict[str, Any]]:
    """The values of the page without the number that makes each picture a new one."""
    return [{key: value for key, value in part.items() if key != "turn"} for part in views]
