"""The page: four drawn components, the recipe's form, and which event calls which handler."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import gradio as gr

from . import choice, handlers, prose
from .compare import shell as compare_page
from .components import Journey, Nav, Picture, PresetNote, Side
from .debug import shell as debug_page
from .form import knob_values, to_knob
from .knobs import KNOBS, Knob
from .lesson import Selection
from .museum import shell as museum_page
from .train import shell as train_page

ADDRESS = "() => [location.search]"
SECTIONS = ("sample", "reward", "loss", "update")
QUICK = {"queue": False, "show_progress": "hidden", "api_visibility": "private"}


class Page:
    """The components of one page, and its state: recipe, what is shown of it, selection, answers."""

    def __init__(self, lang: str):
        self.lang = lang
        first = handlers.first_recipe()
        self.recipe, self.shown = gr.State(first), gr.State(handlers.Shown())
        self.selection, self.answers = gr.State(Selection(lang=lang)), gr.State({})
        self.trouble, self.notices = gr.State(""), gr.State([])
        self.address = gr.Textbox(visible="hidden", elem_id="lessons-address")
        self.back = gr.Button("back", visible="hidden", elem_id="lessons-back")
        with gr.Row(elem_id="lessons-page"):
            with gr.Column(elem_id="lessons-left"):
                self.nav = Nav()
                self.preset, self.note, self.knobs = recipe_form(first, lang)
            with gr.Column(elem_id="lessons-middle"):
                self.picture = Picture()
            with gr.Column(elem_id="lessons-right"):
                self.side = Side()
        self.journey = Journey()
        self.views = [self.nav, self.picture, self.side, self.journey, self.note]
        self.form = [self.preset, *self.knobs]
        self.state = [self.recipe, self.shown, self.selection, self.answers]

    def wire(self, page: gr.Blocks) -> None:
        """Events that only look are answered directly; those that change the recipe go on to run the model."""
        looks = {"inputs": self.state, "outputs": [self.selection, *self.views], "trigger_mode": "multiple", **QUICK}
        for part in (self.nav, self.journey, self.picture):
            part.go(event(handlers.go), **looks)
        for listen in (self.picture.select, self.picture.clear):
            listen(event(handlers.select), **looks)
        self.side.answer(event(handlers.answer), **looks | {"outputs": [self.answers, *self.views]})
        self.wire_changes(page)

    def wire_changes(self, page: gr.Blocks) -> None:
        """Opening a link, editing a reward and turning a knob."""
        everything = [self.recipe, self.shown, self.notices, self.selection, *self.views, *self.form]
        opened = {"inputs": [self.address, self.shown, self.answers], "outputs": everything, "js": ADDRESS, **QUICK}
        opened["trigger_mode"] = (
            "always_last"  # a "forward" that comes while "back" is answered counts: the address is read then
        )
        for listen, fresh in ((page.load, True), (self.back.click, False)):
            self.then_run(listen(partial(opening, self.lang, fresh), **opened))
        changed = {"outputs": [self.recipe, self.shown, self.notices, *self.views], **QUICK}
        edit = event(handlers.edit_reward, outputs=8)
        self.then_run(self.picture.edit(edit, self.state, trigger_mode="multiple", **changed))
        self.then_run(
            gr.on(
                knob_triggers(self.knobs),
                form_changed,
                [*self.state, *self.knobs],
                trigger_mode="always_last",
                **changed,
            )
        )

        refilled = {"outputs": [self.recipe, self.shown, self.notices, *self.views, *self.form], **QUICK}
        self.then_run(self.preset.input(preset_chosen, [*self.state, self.preset], trigger_mode="always_last", **refilled))
        self.then_run(self.note.back(preset_back, self.state, trigger_mode="multiple", **refilled))

    def then_run(self, first: Any) -> None:
        """The slow part after an answer that may have said "the model is running".

        One at a time: the next in line reads the recipe when its turn comes, so what was changed since is not computed.
        """
        ran = first.then(
            handlers.finish, [self.recipe, self.shown], [self.trouble],
            show_progress="hidden", api_visibility="private", concurrency_limit=1, concurrency_id="model",
            trigger_mode="multiple",  # by default one that comes while another runs is dropped: the last change
        )  # fmt: skip
        ran.then(
            showing, [self.trouble, self.notices, *self.state],
            [self.recipe, self.shown, self.notices, *self.views, *self.form], trigger_mode="multiple", **QUICK,
        )  # fmt: skip


class FreeSlider(gr.Slider):
    """A slider into whose box anything may be typed: the recipe says what is allowed, and why, naming the field."""

    def preprocess(self, payload: float) -> float:
        return payload

    def get_block_name(self) -> str:
        return "slider"


def recipe_form(recipe: Any, lang: str) -> tuple[Any, Any, list[Any]]:
    """The list of presets, its note, and one control per knob, grouped by the stage that it belongs to."""
    made = {}
    with gr.Accordion(prose.label(lang, "recipe"), open=False, elem_id="lessons-recipe"):
        preset = gr.Dropdown(
            choice.titles(), value=recipe.preset, label=prose.label(lang, "preset"), info=prose.label(lang, "preset_info"),
            elem_id="lessons-presets", interactive=True, num_choices_shown=len(choice.titles()),
        )  # fmt: skip
        note = PresetNote()
        for section in SECTIONS:
            gr.HTML(
                prose.label(lang, f"section_{section}"), html_template="<h4>{{value}}</h4>", js_on_load=None,
                elem_id=f"section-{section}",
            )  # fmt: skip
            of_section = [knob for knob in KNOBS if knob.section == section]
            made |= controls([knob for knob in of_section if not knob.fold], recipe, lang)
            folded = [knob for knob in of_section if knob.fold]
            if folded:
                with gr.Accordion(prose.label(lang, f"section_{section}_more"), open=False, elem_classes="more"):
                    made |= controls(folded, recipe, lang)
    return preset, note, [made[knob.field] for knob in KNOBS]


def controls(knobs: Sequence[Knob], recipe: Any, lang: str) -> dict[str, Any]:
    return {knob.field: control(knob, to_knob(knob, getattr(recipe, knob.field)), lang) for knob in knobs}


def control(knob: Knob, value: Any, lang: str) -> Any:
    """The Gradio control for a kind of knob."""
    common = {"value": value, "interactive": True, "elem_id": f"knob-{knob.field}", **knob_texts(knob, lang)}
    if knob.kind == "slider":
        return FreeSlider(knob.low, knob.high, step=knob.step, buttons=[], **common)
    if knob.kind == "number":
        return gr.Number(step=knob.step or 1e-4, **common)
    if knob.kind in ("choice", "names"):
        return gr.Dropdown(list(knob.choices), multiselect=knob.kind == "names", **common)
    if knob.kind == "switch":
        return gr.Checkbox(**common)
    return gr.Textbox(lines=2, max_lines=6, **common) if knob.kind == "lines" else gr.Textbox(**common)


def knob_texts(knob: Knob, lang: str) -> dict[str, str]:
    return {"label": prose.label(lang, knob.label), "info": prose.labels(lang).get(f"{knob.label}_info")}


def knob_triggers(controls: Sequence[Any]) -> list[Any]:
    """Sliders and lists act as they move; what is typed acts when it is finished."""
    triggers = []
    for made in controls:
        if isinstance(made, gr.Slider):
            triggers += [made.input, made.release]  # release: also when a typed value is moved into the slider's range
        else:
            triggers += [made.submit, made.blur] if isinstance(made, (gr.Number, gr.Textbox)) else [made.input]
    return triggers


# ---- from Gradio's calling convention to the handlers' ---------------------------------------------------------------
def unchanged(result: Any, outputs: int) -> list[Any]:
    """A handler's None: nothing on the page changes."""
    return [gr.skip()] * outputs if result is None else list(result)


def event(handler: Callable, outputs: int = 6) -> Callable:
    """A handler that takes what the browser sent with its event."""

    def run(recipe: Any, shown: Any, selection: Any, answers: Any, sent: gr.EventData) -> list[Any]:
        data = sent._data if isinstance(sent._data, dict) else {}
        return unchanged(handler(data, recipe, shown, selection, answers), outputs)

    run.__name__ = handler.__name__
    return run


def form_changed(recipe: Any, shown: Any, selection: Any, answers: Any, *values: Any) -> list[Any]:
    form = {knob.field: value for knob, value in zip(KNOBS, values, strict=True)}
    return unchanged(handlers.change_knobs(form, recipe, shown, selection, answers), 8)


def preset_chosen(recipe: Any, shown: Any, selection: Any, answers: Any, name: str) -> list[Any]:
    return refilling(handlers.choose_preset({"preset": name}, recipe, shown, selection, answers), selection.lang)


def preset_back(recipe: Any, shown: Any, selection: Any, answers: Any) -> list[Any]:
    return refilling(handlers.choose_preset({}, recipe, shown, selection, answers), selection.lang)


def refilling(result: Any, lang: str) -> list[Any]:
    """What a handler answered, and the form as the recipe now is."""
    form = [gr.skip()] * (1 + len(KNOBS)) if result is None else form_updates(result[0], lang)
    return [*unchanged(result, 8), *form]


def showing(trouble: str, notices: Any, recipe: Any, shown: Any, selection: Any, answers: Any) -> list[Any]:
    """Where the model could not run the recipe, the form goes back to the one that is shown."""
    result = handlers.show(trouble, notices, recipe, shown, selection, answers)
    form = form_updates(result[0], selection.lang) if trouble else [gr.skip()] * (1 + len(KNOBS))
    return [*unchanged(result, 8), *form]


def opening(lang: str, fresh: bool, query: str, shown: Any, answers: dict[str, str]) -> list[Any]:
    """Opening a link also fills the form, in the link's language. `fresh`: the form is as it was built, in `lang`."""
    opened = handlers.load(query, shown, answers, lang)
    recipe, selection = opened[0], opened[3]
    preset, *updates = form_updates(recipe, selection.lang)
    if fresh and selection.lang == lang:  # an update makes Gradio build the control anew, which costs three times as much
        preset = preset["value"]
        updates = [u["value"] if fits(k, u["value"]) else u for k, u in zip(KNOBS, updates, strict=True)]
    return [*opened, preset, *updates]


def fits(knob: Knob, value: Any) -> bool:
    """Whether the control can show the value as it was built."""
    return knob.kind != "slider" or knob.low <= value <= knob.high


def form_updates(recipe: Any, lang: str) -> list[Any]:
    texts = {"label": prose.label(lang, "preset"), "info": prose.label(lang, "preset_info")}
    preset = gr.update(value=recipe.preset, **texts)
    return [preset, *(form_update(k, value, lang) for k, value in zip(KNOBS, knob_values(recipe), strict=True))]


def form_update(knob: Knob, value: Any, lang: str) -> Any:
    """A link may hold a value beyond the slider's end: the slider grows."""
    ends = {"minimum": min(knob.low, value), "maximum": max(knob.high, value)} if knob.kind == "slider" else {}
    return gr.update(value=value, **knob_texts(knob, lang), **ends)


def build(lang: str) -> gr.Blocks:
    """The whole app."""
    with gr.Blocks(title=prose.label(lang, "brand"), analytics_enabled=False, fill_width=True) as blocks:
        Page(lang).wire(blocks)
    debug_page.add(blocks, lang)
    museum_page.add(blocks, lang)
    compare_page.add(blocks, lang)
    train_page.add(blocks, lang)
    return blocks
