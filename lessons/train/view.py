"""The page's values. `page` is all of it; `part` is what a run changes from moment to moment. No Gradio in here."""

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from grpo_core.presets import PRESETS
from grpo_core.trainer import Trainer

from .. import pages, prose
from ..components import Nav, Side, Train, number, table, text
from ..formula import symbols
from ..numbers import shown
from ..source import whole
from ..sources import kept_name
from . import charts, link, plan
from .link import Wanted
from .run import PAUSED, Answers, Run
from .runs import AT_WORK, runs

RIGHT = "near-zero"  # the question's answer
FORM = ("group_size", "prompts_per_step", "learning_rate", "beta", "clip_low", "clip_high", "steps", "seed")
STEP = r"\theta_{k+1} = \mathrm{%s}\left(\theta_k,\; \nabla_{\theta} \mathcal{L}(\theta_k)\right)"
MARKS = {1.0: "✓ ", 0.0: "✗ ", None: ""}


def labels(lang: str, part: Any) -> dict[str, str]:
    texts = prose.labels(lang)
    return {key: texts[key] for key in part.LABELS}


def nav(wanted: Wanted) -> dict[str, Any]:
    lang, here, lesson = wanted.selection.lang, link.query(wanted), link.lesson_query(wanted)
    return {
        "lessons": pages.lessons(wanted.recipe, wanted.selection, pages.TRAIN), "current": pages.TRAIN,
        "pages": pages.links(lang, pages.TRAIN, lesson, train=here),
        "languages": pages.languages(wanted.selection, lambda there: link.query(replace(wanted, selection=there))),
        "labels": labels(lang, Nav),
    }  # fmt: skip


def side(wanted: Wanted, answer: str | None) -> dict[str, Any]:
    """Question, formula, words, the lines that train; in the places where every lesson has them."""
    lang, words = wanted.selection.lang, prose.sections(wanted.selection.lang, pages.TRAIN)
    asked, options = prose.options(words["question"])
    known = answer is not None
    right = answer == RIGHT if answer in {option["id"] for option in options} else None
    return {
        "question": {
            "text_html": prose.render(asked), "options": options, "answer": answer, "right": right,
            "reveal_html": prose.render(words["reveal"]) if known else None,
        },
        "formula": {
            "mathml": symbols(STEP % {"adamw": "AdamW", "sgd": "SGD"}[wanted.recipe.optimizer], str),
            "caption_html": prose.render(words["formula"]),
        },
        "prose_html": prose.render(words["prose"]),
        "source": [whole(Trainer.run), whole(Trainer.one_step)],
        "labels": labels(lang, Side),
    }  # fmt: skip


# ---- the page ------------------------------------------------------------------------------------------------------------
def page(wanted: Wanted, run: Run | None, notices: Sequence[str]) -> dict[str, Any]:
    """All of it: an address was opened, a setting changed, a run began."""
    lang, words = wanted.selection.lang, prose.sections(wanted.selection.lang, pages.TRAIN)
    of = run.wanted if run and not run.ended else wanted
    config = run.config if run else plan.config_of(wanted)
    return part(wanted, run, notices, 0) | {
        "part": False, "title": words["title"], "number": len(pages.lessons(wanted.recipe, wanted.selection, "")),
        "lead_html": prose.render(words["lead"]), "charts": charts.panels(config, lang), "form": form(of, lang),
        "query": link.query(wanted), "hide": list(wanted.selection.hide), "lang": lang, "labels": labels(lang, Train),
    }  # fmt: skip


def part(wanted: Wanted, run: Run | None, notices: Sequence[str], since: int) -> dict[str, Any]:
    """The run as it is: what a poll asks for."""
    lang = wanted.selection.lang
    return {
        "part": True, "slug": pages.TRAIN, "turn": time.monotonic_ns(), "notice": [*notices, *trouble(run)],
        "run": status(run, lang), "numbers": numbers(run, lang), "kept": kept(run, lang),
        "points": charts.points(run.history, run.config, since) if run else None, "answers": answers(run, lang),
    }  # fmt: skip


def trouble(run: Run | None) -> list[str]:
    return [run.trouble] if run and run.trouble else []


def status(run: Run | None, lang: str) -> dict[str, Any]:
    """Where the run is, in words, and what can be done with it."""
    if run is None:
        return {"id": "", "state": "ready", "said": prose.label(lang, "train_state_ready"), "active": False, "acts": ["start"]}
    state = "settling" if run.settling else "left" if run.state == PAUSED and run.left else run.state
    said = prose.label(lang, f"train_state_{state}", ahead=runs.ahead(run), most=AT_WORK)
    speed = run.speed
    acts = ["again"] if run.ended else ["stop"] if run.settling else ["pause", "stop"] if run.working else ["resume", "stop"]
    return {
        "id": run.id, "state": state, "said": said, "active": run.working, "acts": acts,
        "step": number("step", None, None, str(len(run.history))), "of": prose.label(lang, "train_of", steps=run.config.steps),
        "speed": number("steps_per_second", None, None, shown(speed)) if speed and run.working else None,
        "done": len(run.history), "steps": run.config.steps,
    }  # fmt: skip


def numbers(run: Run | None, lang: str) -> list[dict[str, Any]]:
    """The newest step's metrics, each by the trainer's name."""
    if run is None or not run.history:
        return []
    newest = run.history[-1]
    return [
        {"label": charts.title(name, lang), "n": number(name, None, None, shown(newest[name]))}
        for name in charts.series(run.config) if name in newest
    ]  # fmt: skip


def kept(run: Run | None, lang: str) -> dict[str, Any]:
    """The steps that can be opened in the lessons: {step, its name in a link}."""
    steps = sorted(run.steps_kept) if run else []
    every = run.config.trace_steps[1] if run and len(run.config.trace_steps) > 1 else 1
    if steps and run:
        said = prose.label(lang, "train_open_few", steps=run.config.steps, every=every) if every > 1 else ""
    elif run and not run.config.trace_steps:
        said = prose.label(lang, "train_open_none")
    else:
        said = prose.label(lang, "train_open_gone" if run and run.history else "train_open_wait")
    return {
        "title": prose.label(lang, "train_open_title"), "caption": prose.label(lang, "train_open_caption"), "said": said,
        "steps": steps, "name": kept_name(run.id, 0).removesuffix("0") if run else "",
    }  # fmt: skip


def answers(run: Run | None, lang: str) -> dict[str, Any]:
    """What the first weights say and what those of now say, side by side."""
    heading = prose.label(lang, "train_answers_title")
    if run is None or run.first is None or run.now is None:
        return text(html=prose.render(prose.label(lang, "train_answers_wait")), title=heading, wide=True)
    first, now = run.first, run.now
    columns = [prose.label(lang, "train_question"), counted("train_before", first, lang), counted("train_after", now, lang)]
    rows = [
        [prompt, MARKS[was_right] + was, MARKS[is_right] + said]
        for prompt, was, was_right, said, is_right in zip(
            first.prompts, first.texts, first.right, now.texts, now.right, strict=True
        )
    ]
    caption = prose.render(prose.label(lang, "train_answers_caption"))
    return table(columns=columns, rows=rows, title=heading, caption_html=caption, wide=True)


def counted(key: str, said: Answers, lang: str) -> str:
    right = sum(value == 1.0 for value in said.right)
    return prose.label(lang, key, step=said.step, right=right, all=len(said.prompts))


def form(wanted: Wanted, lang: str) -> dict[str, Any]:
    """Every setting with its value, and what the rest is."""
    values, recipe, texts = plan.shown(wanted), plan.recipe_of(wanted), prose.labels(lang)
    fields = [
        {
            "name": name, "label": texts[f"knob_{name}"], "info": texts.get(f"knob_{name}_info", ""),
            "value": f"{values[name]:.12g}",
        }
        for name in FORM
    ]  # fmt: skip
    presets = [{"name": row.name, "trainer": row.trainer, "version": row.version} for row in PRESETS.values()]
    rest = prose.label(
        lang, "train_rest", updates=recipe.updates, temperature=f"{recipe.temperature:g}", length=recipe.max_completion_length,
        aggregation=recipe.aggregation,
    )  # fmt: skip
    return {"fields": fields, "preset": values["preset"], "presets": presets, "rest": rest}
