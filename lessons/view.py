"""One finished step, one lesson, one token -> the values of the page's four components. No Gradio in here."""

import re
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from torch import Tensor

from grpo_core import Recipe

from . import BY_SLUG, LESSONS, absent, badges, choice, link, pages, prose
from .change import change
from .figures import VISIBLE, row_label
from .file_view import batch_line, drawable, panels
from .formula import symbols, with_numbers
from .lesson import Context, Lesson, Selection
from .quantities import QUANTITIES, tensor_of
from .sources import is_kept
from .trace import Workbench

PAUSE = 0.1  # seconds
# What a formula's signs mean, where it has them: key in ui.md -> how they look in LaTeX.
SIGNS = {"constant": r"operatorname\{sg\}", "condition": r"\\cdot \[|= \[", "drawn": r"mathcal\{D\}", "held": r"mathcal\{H\}"}
_bench: list[Workbench] = []  # one per process, made by `start`
_ahead = ThreadPoolExecutor(1, "lessons-ahead")


def start(*models: str) -> Workbench:
    """Load the models on offer; the first is the default. Raises ValueError with one line where one cannot be loaded."""
    made = Workbench(tuple(dict.fromkeys(models or ("tiny",))))
    _ahead.submit(_bench.__setitem__, slice(None), [made]).result()  # behind what is being prepared with the old models
    return _bench[0]


def bench() -> Workbench:
    return _bench[0] if _bench else start()


def can_be_quick(recipe: Recipe) -> bool:
    """Whether the loss can be shown at once, while the rest of the step has yet to run."""
    return not bench().has_step(recipe) and bench().related_step(recipe) is not None


def context_of(recipe: Recipe, selection: Selection, previous: Recipe | None = None, mode: str = "full") -> Context:
    """The step to show. Mode "quick" computes the loss only, from a finished step on the same rollout."""
    step = bench().quick_step(recipe) if mode == "quick" else None
    before = bench().step(previous) if previous and previous != recipe and bench().has_step(previous) else None
    return Context(bench(), step or bench().step(recipe), selection, before)


def view(
    recipe: Recipe,
    selection: Selection,
    answers: dict[str, str] | None = None,
    notices: Sequence[str] = (),
    mode: str = "full",
    previous: Recipe | None = None,
) -> dict[str, dict[str, Any]]:
    """Values of `nav`, `picture`, `side` and `journey`. `previous`: the recipe to set beside this one.

    A class of a hundred opens the same link: the values are made once. The outer dicts are the caller's own.
    """
    context = context_of(recipe, selection, previous, mode)
    answer = (answers or {}).get(selection.lesson)
    made = bench().values.get(key_of(context, answer), lambda: parts(context, answer))
    values = {name: dict(value) for name, value in made.items()}
    values["picture"]["notice"] = list(notices)
    return values


def prepare_neighbours(recipe: Recipe, selection: Selection, answers: dict[str, str], previous: Recipe | None) -> None:
    """Make the next lesson and the one before while somebody reads this one; nobody waits for it."""
    place = list(BY_SLUG).index(selection.lesson)
    for lesson in (*LESSONS[place + 1 : place + 2], *LESSONS[max(0, place - 1) : place]):
        _ahead.submit(_prepare, recipe, replace(selection, lesson=lesson.slug), answers, previous)


def _prepare(recipe: Recipe, selection: Selection, answers: dict[str, str], previous: Recipe | None) -> None:
    if not bench().has_step(recipe):
        return
    context = context_of(recipe, selection, previous)
    if bench().values.ready(key_of(context, answers.get(selection.lesson))) is None:
        time.sleep(PAUSE)  # whoever is being answered right now comes first
        view(recipe, selection, answers, (), "full", previous)


def key_of(context: Context, answer: str | None) -> tuple:
    """All that the values of a lesson depend on."""
    before = context.previous.trace.recipe if context.previous else None
    return context.recipe, context.selection, answer, context.step.is_quick, before


def parts(context: Context, answer: str | None) -> dict[str, dict[str, Any]]:
    """The values of the four components, computed."""
    lesson = BY_SLUG[context.selection.lesson]
    made = {
        "nav": nav(context), "picture": picture(context, lesson), "side": side(context, lesson, answer),
        "journey": journey(context),
    }  # fmt: skip
    return drawable(made) if context.of_file else made


def settled(context: Context) -> Selection:
    """The selection with the token that is really shown."""
    return replace(context.selection, row=context.row, pos=context.pos, update=context.update_index)


def title(context: Context, lesson: Lesson) -> str:
    return prose.sections(context.selection.lang, lesson.slug)["title"]


def nav(context: Context) -> dict[str, Any]:
    return {"lessons": pages.lessons(context.recipe, settled(context), "learn"), "current": context.selection.lesson}


def picture(context: Context, lesson: Lesson) -> dict[str, Any]:
    text = prose.sections(context.selection.lang, lesson.slug)
    updates = [
        {"index": index, "label": context.label("update_number", number=index + 1)}
        for index in range(len(context.trace.updates))
    ]
    return {
        "slug": lesson.slug, "title": text["title"], "number": LESSONS.index(lesson) + 1,
        "lead_html": context.html(text["lead"]), "stale": context.step.is_quick, "notice": [],
        "panels": [*panels(context, lesson), *change(context)], "selected": {"row": context.row, "pos": context.pos},
        "updates": updates, "update": context.update_index, "query": link.query(context.recipe, settled(context)),
        "preset": preset_line(context.recipe), "origin_html": origin(context), "batch": batch_line(context),
    }  # fmt: skip


def preset_line(recipe: Recipe) -> dict[str, Any] | None:
    """Whose convention this is, and what was changed in it; nothing to say about the one that everybody starts with."""
    changed = choice.changed(recipe)
    return {"name": recipe.preset, "changed": changed} if changed or recipe.preset != Recipe().preset else None


def origin(context: Context) -> str | None:
    """Which step of a training run this is, where it is one."""
    step = context.bench.sources.step_of(context.recipe.model)
    if step is None:
        return None
    sampled = "run_rollout" if context.bench.sources[context.recipe.model].rollout(context.recipe) else "run_sampled"
    which = "run_step" if is_kept(context.recipe.model) else "run_step_file"
    return context.html(context.label(which, step=step + 1, number=step) + " " + context.label(sampled))


def side(context: Context, lesson: Lesson, answer: str | None) -> dict[str, Any]:
    text = prose.sections(context.selection.lang, lesson.slug)
    return {
        "question": question(context, lesson, text, answer), "formula": formula(context, lesson, text),
        "source": lesson.source(context),
        "tensors": [tensor(context, name) for name in lesson.tensors if not absent.lacking(context, (name,))],
        "checks": checks(context, lesson), "prose_html": context.html(text["prose"]),
    }  # fmt: skip


def question(context: Context, lesson: Lesson, text: dict[str, str], answer: str | None) -> dict[str, Any] | None:
    if absent.lacking(context, (*lesson.needs, *lesson.asks)):
        return None
    asked, options = prose.options(text["question"])
    known = answer is not None
    right = lesson.check(context, answer) if answer in {option["id"] for option in options} else None
    truth = next((option["id"] for option in options if lesson.check(context, option["id"])), "") if known else ""
    reveal = text.get(f"reveal {truth}", text["reveal"])  # for an answer that is right under some conventions only
    return {
        "text_html": context.html(asked), "options": options, "answer": answer, "right": right,
        "reveal_html": context.html(reveal) if known else None,
    }  # fmt: skip


def formula(context: Context, lesson: Lesson, text: dict[str, str]) -> dict[str, Any] | None:
    template = lesson.formula(context) if lesson.formula else ""
    if not template:
        return None
    if context.own_advantages:
        template = template.replace("<<advantages>>", "<<token_advantages>>")
    signs = [key for key, sign in SIGNS.items() if re.search(sign, template)]
    words = [text.get("formula", ""), *(context.label(f"formula_{key}") for key in signs)]
    return {
        "mathml": symbols(template, context.symbol), "numbers_mathml": with_numbers(template, context.here),
        "caption_html": context.html(" ".join(filter(None, words))) or None,
    }  # fmt: skip


def tensor(context: Context, name: str) -> dict[str, Any]:
    """A tensor's card: name, axes, shape and dtype, read off the tensor itself."""
    quantity = QUANTITIES[name]
    try:
        value = getattr(context.vocabulary, name) if quantity.axes == "V" else tensor_of(context, name)
    except AttributeError:  # what follows the update is absent until it has been run
        value = None
    shape = list(value.shape) if isinstance(value, Tensor) else []
    dtype = str(value.dtype).removeprefix("torch.") if isinstance(value, Tensor) else type(value).__name__
    axes = quantity.axes if quantity.axes not in ("recipe", "layer") else ""
    symbol = symbols(quantity.symbol, str)
    return {"name": name, "symbol_mathml": symbol, "axes": " ".join(axes), "shape": shape, "dtype": dtype}


def checks(context: Context, lesson: Lesson) -> list[dict[str, Any]]:
    words = prose.lines(context.selection.lang, "checks")
    shown = []
    moved = (context.bench.sources.step_of(context.recipe.model) or 0) > 0  # a run's later step: the reference is behind
    names = tuple(name for name in lesson.checks if not (moved and name == "kl_step0_zero"))
    for outcome in [*context.outcomes(names), *badges.found_beside(context)]:
        needs = context.label("needs", needs=", ".join(outcome.needs)) if outcome.needs else ""
        shown.append({
            "name": outcome.check, "status": outcome.status, "label": words.get(outcome.check, outcome.check),
            "message": " ".join(f.message for f in outcome.findings) or needs,
            "fix": " ".join(f.fix for f in outcome.findings),
        })  # fmt: skip
    return shown


def journey(context: Context) -> dict[str, Any]:
    """The selected token's number in every lesson that gives it one."""
    token_id = context.token_id
    steps = []
    for lesson in LESSONS:
        for name in lesson.journey:
            name = context.advantage if name == "advantages" else name
            pending = context.effect is None and name.startswith("logprob_change")
            unjudged = name == "reward" and not context.trace.advantages.valid[context.row]
            there = absent.is_there(context, name, context.row, context.pos)
            value = None if pending or unjudged or not there else _journey_number(context, name, token_id)
            steps.append({"lesson": lesson.slug, "label": name, "value": value})
    text = context.tokens.piece(token_id)
    return {
        "token": {
            "text": text.translate(VISIBLE), "id": token_id, "row": context.row, "pos": context.pos,
            "label": row_label(context, context.row),
        },
        "steps": steps,
        "current": context.selection.lesson, "loss": context.number("loss"),
    }  # fmt: skip


def _journey_number(context: Context, name: str, token_id: int) -> dict[str, Any]:
    axes = QUANTITIES[name].axes
    if axes == "B":
        return context.number(name, context.row)
    return context.number(name, context.row, context.pos, place=token_id if axes == "V" else None)
