"""What a lesson is, and what it may look at: `Context`, one finished step seen at one token."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import ModuleType
from typing import Any

from grpo_core import CHECKS, Evidence, Recipe, StepTrace, run_checks
from grpo_core.doctor import Outcome
from grpo_core.explain import kl_estimates, least_likely_column, other_advantages, other_aggregations, update_effect
from grpo_core.metrics import layer_norms
from grpo_core.workings import Branch, advantage_workings, branch_of, logprob_weights, loss_workings

from . import prose
from .components import number
from .formula import number_html
from .formulas import advantage_of
from .numbers import shown, sign
from .quantities import QUANTITIES, element
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
    journey: tuple[str, ...] = ()  # the quantities that this lesson adds to the token's journey
    figure: Callable[["Context"], dict[str, Any]] | None = None


def lesson_from(module: ModuleType) -> Lesson:
    """A lesson file's names as one record."""
    optional = {name: getattr(module, name) for name in ("journey", "figure") if hasattr(module, name)}
    return Lesson(
        slug=module.slug, build=module.build, check=module.check, formula=module.formula, source=module.source,
        tensors=module.tensors, checks=module.checks, **optional,
    )  # fmt: skip


@dataclass(frozen=True)
class Context:
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
        return self.bench.policy(self.recipe)

    @property
    def update_index(self) -> int:
        return min(self.selection.update, len(self.trace.updates) - 1)

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
        mask = self.trace.batch.trained_mask()[row].tolist()
        return [pos for pos, trained in zip(self.positions, mask, strict=True) if trained]

    @cached_property
    def row(self) -> int:
        """The selected row, or the nearest one that is trained."""
        trained = self.trace.batch.trained_mask().any(1).nonzero().flatten().tolist()
        return min(trained, key=lambda row: abs(row - self.selection.row))

    @cached_property
    def pos(self) -> int:
        """The selected token or the first trained one behind it; where none is selected, the row's least likely one."""
        trained = self.trained_positions(self.row)
        behind = [pos for pos in trained if pos >= self.selection.pos]
        if behind and self.selection.pos >= 0:
            return behind[0]
        return self.positions[least_likely_column(self.trace, self.row)]

    @property
    def column(self) -> int:
        return self.column_of(self.pos)

    @cached_property
    def made(self) -> dict[str, Any]:
        """Tensors by displayed name, as far as they have been asked for."""
        return {}

    # ---- what grpo_core says about this step ----------------------------------------------------------------------
    @cached_property
    def vocabulary(self):
        return self.bench.vocabulary_row(self.step, self.update_index, self.row, self.column)

    def vocabulary_at(self, row: int, pos: int):
        return self.bench.vocabulary_row(self.step, self.update_index, row, self.column_of(pos))

    @cached_property
    def exact_kl(self):
        return self.bench.exact_kl(self.step, self.update_index)

    @cached_property
    def kl_estimates(self):
        return kl_estimates(self.trace, self.update_index)

    @cached_property
    def aggregations(self):
        return other_aggregations(self.trace, self.update_index)

    @cached_property
    def conventions(self):
        return other_advantages(self.trace)

    @cached_property
    def advantage_workings(self):
        return advantage_workings(self.trace)

    @cached_property
    def loss_workings(self):
        return loss_workings(self.trace, self.update_index)

    @cached_property
    def logprob_weights(self):
        return logprob_weights(self.trace, self.update_index)

    @cached_property
    def branch(self) -> Branch:
        """Which case of every rule the selected token went through."""
        return branch_of(self.trace, self.update_index, self.row, self.column)

    @property
    def advantage(self) -> str:
        """The quantity that a token's loss multiplies with: its row's advantage, or its own."""
        return advantage_of(self.recipe)

    @cached_property
    def layer_norms(self):
        return layer_norms(self.update.grad_norms)

    @cached_property
    def effect(self):
        """None while the update has not been run with this recipe."""
        return None if self.step.is_quick else update_effect(self.trace, self.update_index, self.step.after)

    @cached_property
    def before(self) -> "Context":
        assert self.previous is not None
        return replace(self, step=self.previous, previous=None)

    def outcomes(self, names: tuple[str, ...]) -> list[Outcome]:
        checks = [CHECKS[name] for name in names]
        needs = {need for check in checks for need in check.needs}
        return run_checks(
            Evidence(
                trace=self.trace, update=self.update_index, policy=self.policy, token=(self.row, self.column),
                row=self.vocabulary if "row" in needs else None, effect=self.effect,
            ),
            checks,
        )  # fmt: skip

    # ---- words and numbers ------------------------------------------------------------------------------------------
    def label(self, key: str, **values: object) -> str:
        return prose.label(self.selection.lang, key, **values)

    def value(self, name: str, row: int | None = None, pos: int | None = None, place: Any = None) -> Any:
        return element(self, name, row, pos, place)

    def number(self, name: str, row: int | None = None, pos: int | None = None, place: Any = None, **extra: Any) -> dict:
        """A displayed number that knows which element it is."""
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
        place = int(index or 0) if axes in ("BR", "R") else self.vocabulary.sampled_id if axes == "V" else None
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
