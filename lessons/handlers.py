"""What happens when somebody does something: plain values in, plain values out, no Gradio.

Every handler answers at once. What can be drawn now is drawn: the finished step, or its loss alone where the update
has yet to run, or the last finished step with a note that the model is running. `finish` then does the slow part and
`show` draws it, from the state as it is by then: whoever moved on meanwhile is not pulled back, and of several changes
the last one wins. A handler returns None where nothing changed. Each hands back only the part of the state that it
owns, so that two at the same time lose nothing.
"""

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import parse_qs

from grpo_core import Recipe
from grpo_core.batch_step import FIXED

from . import BY_SLUG, choice, link, pages, prose, view
from .batches import is_batch
from .components import Journey, Nav, Picture, PresetNote, Side
from .form import from_knob
from .knobs import KNOBS
from .lesson import Selection

VIEWS = (Nav, Picture, Side, Journey, PresetNote)
Views = tuple[dict[str, Any], ...]  # the values of VIEWS, in this order
Answers = dict[str, str]  # lesson -> option; "" asks to be told


@dataclass(frozen=True)
class Shown:
    """The newest recipe whose step is finished, and the one before it: the two that are compared side by side."""

    recipe: Recipe | None = None
    before: Recipe | None = None


def load(query: str, shown: Shown, answers: Answers, lang: str = prose.DEFAULT):
    """The state of an address, as somebody opens it or comes back to it; `lang` where it names no language."""
    recipe, selection, messages = link.parse(query, plain_recipe())
    recipe, refused = view.bench().allowed(recipe, link.bare(query))
    if "lang" not in parse_qs(query.removeprefix("?")):
        selection = replace(selection, lang=lang)
    notices = messages + refused
    shown, views = draw(recipe, shown, selection, answers, notices)
    return recipe, shown, notices, selection, *views


def go(target: Mapping, recipe: Recipe, shown: Shown, selection: Selection, answers: Answers):
    """To another lesson, or to another update of this step."""
    slug, update = target.get("lesson", selection.lesson), target.get("update", selection.update)
    if slug not in BY_SLUG or not isinstance(update, int):
        return None
    selection = replace(selection, lesson=slug, update=max(0, update))
    return selection, *draw(recipe, shown, selection, answers)[1]


def select(place: Mapping, recipe: Recipe, shown: Shown, selection: Selection, answers: Answers):
    """The token that every lesson shows from now on; without a place, the default one."""
    row, pos = place.get("row", Selection.row), place.get("pos", Selection.pos)
    if not (isinstance(row, int) and isinstance(pos, int)):
        return None
    selection = replace(selection, row=row, pos=pos)
    return selection, *draw(recipe, shown, selection, answers)[1]


def answer(choice: Mapping, recipe: Recipe, shown: Shown, selection: Selection, answers: Answers):
    """A prediction; the empty one asks to be told."""
    option = choice.get("option")
    if not isinstance(option, str) or len(option) > 100:
        return None
    answers = answers | {selection.lesson: option}
    return answers, *draw(recipe, shown, selection, answers)[1]


def edit_reward(edit: Mapping, recipe: Recipe, shown: Shown, selection: Selection, answers: Answers):
    """A reward typed over the function's: a number, or nothing for "no reward"; `reset` asks the function again."""
    if is_batch(recipe.model):
        return _drawn(recipe, shown, selection, answers, [prose.label(selection.lang, "batch_fixed")])
    row, function, text = edit.get("row"), edit.get("function"), str(edit.get("value", "")).strip()
    kept = tuple(e for e in recipe.edited_rewards if e[:2] != (row, function))
    try:
        edits = kept if edit.get("reset") else (*kept, (row, function, _number(text) if text else None))
        changed = replace(recipe, edited_rewards=tuple(sorted(edits, key=lambda e: e[:2])))
    except (ValueError, TypeError) as error:
        return _drawn(recipe, shown, selection, answers, [_plain(error, "reward")])
    return _drawn(changed, shown, selection, answers, [])


def change_knobs(form: Mapping, recipe: Recipe, shown: Shown, selection: Selection, answers: Answers):
    """The whole form at once, so that a change is never lost to another one made at the same time.

    Edited rewards belong to the completions that they were typed beside: where others are sampled, they go.
    """
    edits, unedited = recipe.edited_rewards, replace(recipe, edited_rewards=())
    try:
        turned = [knob for knob in KNOBS if not (is_batch(recipe.model) and knob.field in FIXED)]
        changed = replace(unedited, **{k.field: from_knob(k, form[k.field], getattr(recipe, k.field)) for k in turned})
    except (ValueError, TypeError) as error:
        return _drawn(recipe, shown, selection, answers, [_plain(error, "recipe")])
    if changed.rollout_key() == recipe.rollout_key():
        changed, edits = replace(changed, edited_rewards=edits), ()
    notices = [prose.label(selection.lang, "edits_gone")] if edits else []
    return None if changed == recipe else _drawn(changed, shown, selection, answers, notices)


def choose_preset(target: Mapping, recipe: Recipe, shown: Shown, selection: Selection, answers: Answers):
    """Everything that a preset fixes, at once; without a name the recipe's own again, as it was before it was changed."""
    try:
        changed = choice.under(recipe, str(target.get("preset", recipe.preset)))
    except ValueError as error:
        return _drawn(recipe, shown, selection, answers, [_plain(error, "preset")])
    return None if changed == recipe else _drawn(changed, shown, selection, answers, [])


def finish(recipe: Recipe, shown: Shown) -> str:
    """The slow part: the model runs, once for everyone who asks for this recipe. Returns what went wrong."""
    if recipe == shown.recipe:
        return ""
    try:
        view.bench().step(recipe)
    except (ValueError, RuntimeError, MemoryError) as error:  # torch says "out of memory" with a RuntimeError
        if not isinstance(error, ValueError):
            logging.getLogger(__name__).exception("the step failed")  # for whoever runs the server
        view.bench().step(_still(shown).recipe or first_recipe())  # what is shown instead
        return _plain(error, "recipe")
    return ""


def show(trouble: str, notices: Sequence[str], recipe: Recipe, shown: Shown, selection: Selection, answers: Answers):
    """What `finish` made, under the notices that wait to be read; where it failed, the step from before and why."""
    if trouble:
        return _drawn(shown.recipe or first_recipe(), shown, selection, answers, [*notices, trouble])
    return None if recipe == shown.recipe else _drawn(recipe, shown, selection, answers, notices)


# ---- what can be drawn now ------------------------------------------------------------------------------------------
def draw(
    recipe: Recipe, shown: Shown, selection: Selection, answers: Answers, notices: Sequence[str] = ()
) -> tuple[Shown, Views]:
    """The best picture that needs no model run, and what is finished by now."""
    shown, (recipe, notices) = _still(shown), standing(recipe, selection.lang, notices)
    view.bench().hurry(recipe)
    if view.bench().has_step(recipe):
        shown = shown if recipe == shown.recipe else Shown(recipe, shown.recipe)
        values = view.view(recipe, selection, answers, notices, "full", shown.before)
        view.prepare_neighbours(recipe, selection, answers, shown.before)
        return shown, dressed(values, recipe, selection)
    if quick := _quick(recipe, shown, selection, answers, notices):
        values = quick
    elif shown.recipe is None or not view.bench().has_step(shown.recipe):
        values = {"nav": {}, "side": {}, "journey": {}, "picture": {"slug": selection.lesson, "panels": []}}
    else:
        values = view.view(shown.recipe, selection, answers, notices, "full", shown.before)
    if not values["picture"].get("stale"):  # the picture is another recipe's; the address is already this one's
        values["picture"] |= {"notice": list(notices), "query": link.query(recipe, selection)}
    values["picture"]["running"] = True
    return shown, dressed(values, recipe, selection)


def _quick(recipe: Recipe, shown: Shown, selection: Selection, answers: Answers, notices: Sequence[str]):
    """The loss alone; None where there is no rollout for it yet, or where the step refuses: `finish` then says why."""
    if not view.can_be_quick(recipe):
        return None
    try:
        return view.view(recipe, selection, answers, notices, "quick", shown.recipe)
    except ValueError:
        return None


def dressed(values: dict[str, dict[str, Any]], recipe: Recipe, selection: Selection) -> Views:
    """The values with the texts that their components show, the other languages, and what a teacher has hidden.

    `turn` makes every picture a new one: the browser waits for it before it sends the next event.
    """
    texts = prose.labels(selection.lang)
    short = {key: text for key, text in texts.items() if key.startswith("short_")}
    values["picture"] |= {"hide": list(selection.hide), "lang": selection.lang, "turn": time.monotonic_ns()}
    values["nav"]["languages"] = pages.languages(selection, lambda there: link.query(recipe, there))
    here = link.query(recipe, selection)
    values["nav"]["pages"] = pages.links(selection.lang, "learn", here)
    values["preset"] = choice.note(recipe, selection.lang)
    for part in VIEWS:
        kept = {key: texts[key] for key in part.LABELS} | (short if part is Journey else {})
        values[part.VIEW] = values[part.VIEW] | {"labels": kept}
    return tuple(values[part.VIEW] for part in VIEWS)


def first_recipe() -> Recipe:
    """What a bare address means here: every default with the server's model, or the kept step that it was started with."""
    return view.bench().first_recipe()


def plain_recipe() -> Recipe:
    """What an address leaves out: a recipe's own defaults, with the server's model."""
    return Recipe(model=view.bench().models[0])


def standing(recipe: Recipe, lang: str, notices: Sequence[str] = ()) -> tuple[Recipe, list[str]]:
    """The recipe; where it is of a kept step that has gone, the first one, and why."""
    if recipe.model in view.bench().sources:
        return recipe, list(notices)
    view.bench().step(first_recipe())
    return first_recipe(), [*notices, prose.label(lang, gone(recipe))]


def gone(recipe: Recipe) -> str:
    """The label that says so of a kept step or a batch file that is no longer here."""
    return "batch_left" if is_batch(recipe.model) else "step_gone"


def _still(shown: Shown) -> Shown:
    """Without what was of a kept step that has gone."""
    here = [recipe if recipe and recipe.model in view.bench().sources else None for recipe in (shown.recipe, shown.before)]
    return Shown(*here) if here[0] else Shown()


def _drawn(recipe: Recipe, shown: Shown, selection: Selection, answers: Answers, notices: Sequence[str]):
    """What a handler that changes the recipe hands back."""
    recipe, notices = standing(recipe, selection.lang, notices)
    shown, views = draw(recipe, shown, selection, answers, notices)
    return recipe, shown, list(notices), *views


def _number(text: str) -> float:
    try:
        return float(text.replace("\u2212", "-").replace(",", "."))
    except ValueError:
        raise ValueError(f"reward: found {text[:40]!r}, allowed: a finite number, or nothing") from None


def _plain(error: Exception, field: str) -> str:
    """One line that names the field."""
    text = " ".join(str(error).split())
    return text if ":" in text else f"{field}: {text}"
