"""What a lesson is, and what it may look at: `Context`, one finished step seen at one token."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import ModuleType
from typing import Any

from grpo_core import Recipe, StepTrace
from grpo_core.doctor import Outcome

from . import absent, badges, prose
from .asked import Asked
from .batches import BatchSource, Tokens
from .components import number
from .formula import number_html
from .numbers import shown, sign
from .quantities import QUANTITIES, element
from .rows import Rows, selected
from .trace import Step, Workbench


@dataclass(frozen=True, kw_only=True)
class Selection:
    """Where a person looks: lesson, token, update, language, and what their teacher has hidden."""

    lesson: str = "prompt"
    row: int = 0
    pos: int = -1  # place in the row prompt + completion; -1: the default token
    update: int = 0
    lang: str = prose.DEFAULT
    hide: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Lesson:
    """One lesson: the order of its parts on the page is the shell's business."""

    slug: str
    build: Callable[["Context"], list[dict[str, Any]]]  # the picture's panels
    check: Callable[["Context", str], bool]  # is this the right answer to the question, on this very step?
    formula: Callable[["Context"], str] | None  # LaTeX with <<slots>>
    source: Callable[["Context"], list[dict]]
    tensors: tuple[str, ...]
    checks: tuple[str, ...]
    needs: tuple[str, ...] = ()  # quantities without which nothing of it can be drawn: a batch file may lack them
    asks: tuple[str, ...] = ()  # and without which its question has no answer
    journey: tuple[str, ...] = ()  # the quantities that this lesson adds to the token's journey
    figure: Callable[["Context"], dict[str, Any]] | None = None


def lesson_from(module: ModuleType) -> Lesson:
    """A lesson file's names as one record."""
    optional = {name: getattr(module, name) for name in ("journey", "figure", "needs", "asks") if hasattr(module, name)}
    return Lesson(
        slug=module.slug, build=module.build, check=module.check, formula=module.formula, source=module.source,
        tensors=module.tensors, checks=module.checks, **optional,
    )  # fmt: skip


@dataclass(frozen=True)
class Context(Asked):
    """One step, one update, one token, one language. Everything is computed by `grpo_core` when it is first asked for."""

    bench: Workbench
    step: Step
    selection: Selection
    previous: Step | None = field(default=None)  # what was on screen before the last change

    @property
    def trace(self) -> StepTrace:
        return self.step.trace

    @property
    def recipe(self) -> Recipe:
        return self.trace.recipe

    @property
    def policy(self):
        """The model that the step was run with; of a batch file the one that it was given with, if any."""
        return self.source.policy if self.source else self.bench.policy(self.recipe)

    @property
    def of_file(self) -> bool:
        """Whether this was read from a batch file, and is none of our own steps."""
        return self.trace.rollout is None

    @cached_property
    def source(self) -> BatchSource | None:
        """That batch file."""
        return self.bench.sources.batch(self.recipe.model)

    @cached_property
    def tokens(self) -> Tokens:
        """What the ids stand for."""
        return self.bench.tokens(self.recipe)

    @cached_property
    def rows(self) -> Rows:
        return Rows(self)

    @property
    def update_index(self) -> int:
        return max(0, min(self.selection.update, len(self.trace.updates) - 1))

    @property
    def update(self):
        return self.trace.updates[self.update_index]

    @property
    def terms(self):
        return self.update.terms

    # ---- the selected token -----------------------------------------------------------------------------------------
    @cached_property
    def positions(self) -> list[int]:
        return self.trace.batch.token_positions().tolist()

    def column_of(self, pos: int) -> int:
        return pos - self.positions[0]

    def trained_positions(self, row: int) -> list[int]:
        mask = self.rows.trained[row].tolist()
        return [pos for pos, trained in zip(self.positions, mask, strict=True) if trained]

    @cached_property
    def place(self) -> tuple[int, int]:
        """The selected row and position, or the nearest that can be shown."""
        return selected(self)

    @property
    def row(self) -> int:
        return self.place[0]

    @property
    def pos(self) -> int:
        return self.place[1]

    @property
    def column(self) -> int:
        return self.column_of(self.pos)

    @cached_property
    def made(self) -> dict[str, Any]:
        """Tensors by displayed name, as far as they have been asked for."""
        return {}

    @property
    def is_trained(self) -> bool:
        """Whether the loss reads the selected token; always in a step that was run here."""
        return self.rows.is_trained(self.row, self.pos)

    @property
    def token_id(self) -> int:
        return int(self.rows.ids[self.row, self.pos])

    @cached_property
    def before(self) -> "Context":
        assert self.previous is not None
        return replace(self, step=self.previous, previous=None)

    def outcomes(self, names: tuple[str, ...]) -> list[Outcome]:
        return badges.outcomes(self, names)

    # ---- words and numbers ------------------------------------------------------------------------------------------
    def label(self, key: str, **values: object) -> str:
        return prose.label(self.selection.lang, key, **values)

    def value(self, name: str, row: int | None = None, pos: int | None = None, place: Any = None) -> Any:
        return element(self, name, row, pos, place)

    def number(self, name: str, row: int | None = None, pos: int | None = None, place: Any = None, **extra: Any) -> dict:
        """A displayed number that knows which element it is; a dash where a batch file does not have it."""
        if not absent.is_there(self, name, row, pos):
            return {"v": "–"}
        value = element(self, name, row, pos, place)
        return number(name, row, pos, shown(value), s=sign(value), **self._place(name, pos, place), **extra)

    def _place(self, name: str, pos: int | None, place: Any) -> dict[str, Any]:
        key = {"V": "token", "BR": "function", "R": "function", "layer": "layer"}.get(QUANTITIES[name.split("@")[0]].axes)
        extra = {key: place} if key else {}
        return extra | ({"from_": pos - 1} if key == "token" and pos is not None else {})

    def here(self, name: str) -> tuple[str, dict[str, Any]]:
        """The selected token's number of a quantity (`name.2`: its element 2), as text and attributes."""
        name, _, index = name.partition(".")
        axes = QUANTITIES[name.split("@")[0]].axes
        row = self.row if axes.startswith("B") or axes == "V" else None
        pos = self.pos if axes in ("BT", "BS", "BC", "V") else None
        place = int(index or 0) if axes in ("BR", "R") else self.token_id if axes == "V" else None
        if not absent.is_there(self, name, row, pos):
            return "–", {}
        attributes = {"quantity": name, "row": row, "pos": pos}
        attributes |= {key.rstrip("_"): value for key, value in self._place(name, pos, place).items()}
        return shown(element(self, name, row, pos, place)), attributes

    def symbol(self, name: str) -> str:
        """The LaTeX of a quantity (of its element 2, for `name.2`)."""
        plain, _, index = name.partition("@")[0].partition(".")
        symbol = QUANTITIES[plain].symbol
        return rf"{symbol}^{{({int(index) + 1})}}" if index else symbol

    def html(self, text: str) -> str:
        """Our own Markdown with `[[quantity]]` as the selected token's numbers."""
        return prose.render(text, lambda name: number_html(*self.here(name)))
