"""Every lesson, without a browser: what it shows is the trace, its question has a right and a wrong answer."""

import inspect
import json
import re
from dataclasses import replace
from pathlib import Path

import plotly.graph_objects as go
import pytest
from displayed import expected, numbers_in, settings_for

import lessons
from grpo_core import CHECKS, Recipe, rollout
from grpo_core.presets import PRESETS
from lessons import BY_SLUG, LESSONS, badges, choice, prose, source, view
from lessons.lesson import Selection
from lessons.quantities import QUANTITIES

CONVENTIONAL = ("rewards", "advantages", "masks", "ratio", "kl", "clip", "aggregation", "backward")  # what a preset changes
HOSTILE = "<img src=x onerror=alert(1)> 3 + 4 = ? ${alert(2)} {{7*7}}"


@pytest.fixture(scope="module", autouse=True)
def bench(model_folder):
    return view.start(str(model_folder))


@pytest.fixture(scope="module")
def base(recipe):
    return replace(recipe, reward_functions=("correct", "format"), reward_weights=(1.0, 0.2))


def contexts(base):
    """Ordinary and awkward steps: (recipe, update, recipe before)."""
    edited = replace(base, edited_rewards=((0, 0, 0.5), (1, 1, None)))
    return [
        (base, 0, None),
        (base, 1, None),
        (edited, 1, base),
        (replace(base, layout="sequence"), 0, None),
        (replace(base, ratio="sequence", kl_estimator="k1", surrogate="dual-clip"), 1, None),
        (replace(base, surrogate="none", kl_estimator="abs", aggregation="token-sum", entropy_coef=0.01), 1, None),
        (replace(base, advantage_mean="leave-one-out", advantage_std="none", aggregation="dr_grpo"), 0, None),
        (replace(base, group_size=1, edited_rewards=()), 0, None),
        (replace(base, prompts=("hello there",), edited_rewards=()), 0, None),  # no reward at all
        (replace(base, edited_rewards=(), kl_estimator="k2", aggregation="seq-mean-token-sum"), 0, None),  # all equal
        (replace(base, max_completion_length=1, edited_rewards=()), 0, None),
        (replace(base, clip_low=0.0, clip_high=0.0, advantage_eps=0.0), 1, None),
    ]


def drawn(recipe, update, before, slug, mode="full"):
    selection = Selection(lesson=slug, update=update)
    if before:
        view.bench().step(before)
    return view.context_of(recipe, selection, before, mode), view.view(recipe, selection, {slug: ""}, (), mode, before)


@pytest.mark.parametrize("slug", list(BY_SLUG))
def test_every_number_that_a_lesson_shows_is_the_traces(slug, base):
    for recipe, update, before in contexts(base):
        context, values = drawn(recipe, update, before, slug)
        found = list(numbers_in(values))
        assert len(found) >= 10
        for name, row, pos, place, text in found:
            right = expected(settings_for(context, name), name.removesuffix("@before"), row, pos, place)
            assert text == right, (slug, recipe, update, name, row, pos)


@pytest.mark.parametrize("name", PRESETS)
def test_every_lesson_shows_every_presets_trace_formula_and_source(name, base):
    recipe = choice.under(base, name)
    for slug in CONVENTIONAL:
        lesson = BY_SLUG[slug]
        context, values = drawn(recipe, 1, None, slug)
        shown_numbers = list(numbers_in(values))
        for quantity, row, pos, place, text in shown_numbers:
            assert text == expected(context, quantity, row, pos, place), (name, slug, quantity, row, pos)
        side = values["side"]
        if lesson.formula:
            named = {quantity for quantity, *_ in numbers_in(side["formula"]["numbers_mathml"])}
            assert named and "NaN" not in side["formula"]["numbers_mathml"], (name, slug)
            assert side["formula"]["mathml"].count("<math") == side["formula"]["numbers_mathml"].count("<math")
        for excerpt in side["source"]:
            first = excerpt["code"].splitlines()[0].strip()
            assert first in Path(excerpt["file"]).read_text("utf-8").splitlines()[excerpt["line"] - 1], (name, slug)
        for panel in values["picture"]["panels"]:
            assert panel["kind"] != "chart" or json.dumps(panel["figure"], allow_nan=False)


def test_the_lines_shown_are_those_of_the_chosen_rows(base):
    def code(name, slug):
        _, values = drawn(choice.under(base, name), 1, None, slug)
        return "\n".join(excerpt["code"] for excerpt in values["side"]["source"])

    assert "def vespo(" in code("trl/vespo", "clip") and "def _weighted_logprob(" in code("trl/vespo", "clip")
    assert all(f"def {name}(" in code("verl/icepop", "clip") for name in ("dual_clip", "min_clip", "token_weight", "drop"))
    assert "def top_entropy(" in code("trl/top-entropy", "clip")
    assert all(f"def {name}(" in code("skyrl", "aggregation") for name in ("token_mean", "micro_seq_mean_token_mean"))
    assert "def score(" in code("nemo", "kl") and "def leave_one_out_std(" in code("nemo", "advantages")
    assert "def whiten_biased(" in code("openrlhf/reinforce-baseline", "advantages")
    assert "def reward_kl_of(" in code("verl/kl-in-reward", "rewards")
    assert "def sequence_token_log_ratio(" in code("verl/gspo", "ratio")


def test_a_tokens_own_advantage_is_shown_wherever_it_counts(base):
    recipe = choice.under(base, "roll/example-yaml")
    for slug in ("advantages", "clip"):
        context, values = drawn(recipe, 1, None, slug)
        named = {quantity for quantity, *_ in numbers_in(values["side"]["formula"]["numbers_mathml"])}
        assert "token_advantages" in named
        labels = [step["label"] for step in values["journey"]["steps"]]
        assert "token_advantages" in labels and "advantages" not in labels
    assert context.advantage == "token_advantages"
    assert "token_advantages" not in [step["label"] for step in drawn(base, 1, None, "clip")[1]["journey"]["steps"]]


@pytest.mark.parametrize("slug", list(BY_SLUG))
def test_a_quick_view_shows_the_new_loss_and_says_what_is_out_of_date(slug, base):
    changed = replace(base, beta=0.31, clip_high=0.17)
    view.bench().step(base)
    context, values = drawn(changed, 0, base, slug, "quick")
    assert context.step.is_quick and values["picture"]["stale"]
    for name, row, pos, place, text in numbers_in(values):
        right = expected(settings_for(context, name), name.removesuffix("@before"), row, pos, place)
        assert text == right, (slug, name)
    full = view.bench().step(changed).trace.updates[0]
    assert context.terms.loss == full.terms.loss  # the quick loss is the real one


@pytest.mark.parametrize("slug", list(BY_SLUG))
def test_the_question_has_a_right_answer_and_a_wrong_one_on_the_real_step(slug, base):
    context, _ = drawn(base, 0, None, slug)
    _, options = prose.options(prose.sections("en", slug)["question"])
    right = [option["id"] for option in options if BY_SLUG[slug].check(context, option["id"])]
    assert len(right) == 1 and len(options) >= 2


@pytest.mark.parametrize("slug", list(BY_SLUG))
def test_every_chart_is_a_figure_that_plotly_accepts(slug, base):
    for recipe, update, before in contexts(base)[:5]:
        _, values = drawn(recipe, update, before, slug)
        for panel in values["picture"]["panels"]:
            if panel["kind"] == "chart":
                themed = json.loads(re.sub(r"var\(--\w+\)", "#123456", json.dumps(panel["figure"])))
                assert go.Figure(themed).data and panel["alt"]


def test_every_lesson_has_its_parts_and_its_words():
    assert len(LESSONS) == 14
    for lesson in LESSONS:
        words = prose.sections("en", lesson.slug)
        assert {"title", "lead", "question", "reveal", "prose"} <= set(words)
        assert all(name in QUANTITIES for name in (*lesson.tensors, *lesson.journey))
        assert lesson.checks and all(name in CHECKS for name in lesson.checks)
        for text in words.values():
            assert all(name in QUANTITIES for name in re.findall(r"\[\[(\w+)\]\]", text))
    assert set(prose.lines("en", "checks")) == set(CHECKS)
    assert {name for lesson in LESSONS for name in badges.hanging(lesson.slug, lesson.checks)} == set(CHECKS)


def test_every_language_has_the_same_headings():
    english = {path.stem for path in (prose.TEXT / "en").glob("*.md")}
    for lang in prose.LANGUAGES:
        for path in (prose.TEXT / lang).glob("*.md"):
            assert path.stem in english
            headings = re.findall(r"^## +(.+)$", path.read_text("utf-8"), flags=re.M)
            assert set(headings) <= set(prose.sections("en", path.stem))


def test_every_label_that_the_code_asks_for_exists():
    known = prose.labels("en")
    for path in Path(lessons.__file__).parent.glob("*.py"):
        for key in re.findall(r'label\((?:lang, )?"([a-z_]+)"', path.read_text("utf-8")):
            assert key in known, (path.name, key)


def test_a_missing_section_falls_back_to_english(tmp_path, monkeypatch):
    (tmp_path / "en").mkdir()
    (tmp_path / "xx").mkdir()
    (tmp_path / "en" / "a.md").write_text("## title\nOne\n\n## lead\nTwo\n")
    (tmp_path / "xx" / "a.md").write_text("## title\nUn\n")
    monkeypatch.setattr(prose, "TEXT", tmp_path)
    assert prose.sections.__wrapped__("xx", "a") == {"title": "Un", "lead": "Two"}


def test_source_lines_are_the_ones_that_run(base):
    for lesson in LESSONS:
        context, _ = drawn(base, 0, None, lesson.slug)
        for excerpt in lesson.source(context):
            text = Path(excerpt["file"]).read_text("utf-8").splitlines()
            first = excerpt["code"].splitlines()[0].strip()
            assert first in text[excerpt["line"] - 1], (lesson.slug, excerpt["file"], excerpt["line"])


def test_a_token_is_picked_where_the_lesson_says_so_and_not_where_finished_rows_are_dropped():
    shown = [source.assignment(rollout.generate_tokens, name)["code"] for name in ("chosen", "alive")]
    assert shown == ["chosen = pick(filtered.softmax(-1), draws[rows, column])", "alive = alive & ~torch.isin(chosen, eos)"]


def test_an_assignment_that_does_not_exist_is_an_error():
    with pytest.raises(LookupError, match="nothing_like_it"):
        source.assignment(inspect.getsource, "nothing_like_it")


def test_what_people_type_never_becomes_markup(base):
    hostile = replace(base, prompts=(HOSTILE, "x"), edited_rewards=())

    def markup(value, key=""):
        if isinstance(value, dict):
            for inner_key, inner in value.items():
                yield from markup(inner, inner_key)
        elif isinstance(value, list):
            for inner in value:
                yield from markup(inner, key)
        elif isinstance(value, str) and (key.endswith("_html") or key == "html" or "mathml" in key):
            yield value

    for lesson in LESSONS:
        _, values = drawn(hostile, 0, None, lesson.slug)
        assert not any("<img" in text or "onerror" in text for text in markup(values))


def test_the_default_recipe_has_something_to_show_in_every_lesson():
    """Mixed rewards in each group, one answer that is cut or malformed, lengths that differ, padding at the left."""
    view.start("tiny")
    step = view.bench().step(Recipe())
    rollout, advantages = step.trace.rollout, step.trace.advantages
    assert not advantages.zero_std.any()
    correct = [row[0] for row in rollout.rewards]
    assert 0.0 in correct[:4] and 1.0 in correct[:4] and 0.0 in correct[4:] and 1.0 in correct[4:]
    assert any(row[1] == 0.0 for row in rollout.rewards) and not rollout.prompt_mask.all()
    assert len(set(step.trace.batch.trained_mask().sum(1).tolist())) >= 3
    assert step.trace.updates[1].terms.is_clipped.any()
