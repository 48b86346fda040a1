"""A step that a run has kept, in the lessons: it is the run's own, bit for bit, and when it has gone that is said."""

from dataclasses import fields, replace

import pytest
import torch
from displayed import expected, numbers_in, settings_for
from training_runs import SMALL, begun, finished, until
from visitor import Visitor

from grpo_core import Recipe, sample
from grpo_core.data import Sums
from grpo_core.engine import LOCAL
from grpo_core.run_metrics import update_metrics
from grpo_core.snapshot import is_snapshot, load_snapshot
from lessons import BY_SLUG, handlers, link, view
from lessons.compare import handlers as compare
from lessons.sources import kept_name
from lessons.train import handlers as train
from lessons.train import plan
from lessons.train import runs as runs_module
from lessons.train.runs import folder_of, runs


@pytest.fixture(autouse=True)
def bench(monkeypatch):
    monkeypatch.setattr(Sums, "__len__", lambda self: 2**10)  # shuffling a million takes a second
    yield view.start("tiny")
    runs.close()


def in_lessons(run, step, more=""):
    return Visitor().open(f"?lesson=prompt&model={kept_name(run.id, step)}{more}").run()


@pytest.mark.parametrize("more", ["", "&updates=2&beta=0.04", "&preset=verl&optimizer=sgd", "&beta=0&updates=2"])
def test_the_step_in_the_lessons_is_the_runs_own_bit_for_bit(bench, more):
    run = finished(f"&train_steps=5{more}")
    assert run.steps_kept == [0, 1, 2, 3, 4]
    visitor = in_lessons(run, 3)
    step = bench.step(visitor.recipe)
    metrics = update_metrics(step.trace, LOCAL)
    assert metrics == {name: run.history[3][name] for name in metrics}
    trained, _ = bench._train(visitor.recipe, step.trace.rollout)
    after = load_snapshot(folder_of(run, 4)).policy.model.state_dict()
    assert all(torch.equal(tensor, after[name]) for name, tensor in trained.model.state_dict().items())
    assert not visitor.picture["notice"] and "step 4 of a training run" in visitor.picture["origin_html"]
    assert link.parse(visitor.picture["query"])[0] == visitor.recipe


def test_its_rollout_is_shown_as_it_was_and_changed_sampling_draws_from_its_weights(bench):
    run = finished("&train_steps=4")
    visitor = in_lessons(run, 3)
    kept = load_snapshot(folder_of(run, 3))
    assert bench.step(visitor.recipe).trace.rollout.completions == kept.rollout.completions
    drawn = sample(kept.policy, visitor.recipe.prompts, visitor.recipe)
    assert torch.equal(drawn.completion_ids, kept.rollout.completion_ids)
    visitor.keep(visitor.turn(temperature=0.5)).run()
    anew = sample(kept.policy, visitor.recipe.prompts, visitor.recipe)
    shown = bench.step(visitor.recipe).trace.rollout
    assert shown.completions == anew.completions != kept.rollout.completions
    assert (
        torch.equal(shown.sampler_logprobs, anew.sampler_logprobs) and "these answers are new" in visitor.picture["origin_html"]
    )
    visitor.keep(visitor.turn(temperature=1.0, beta=0.3)).run()
    assert bench.step(visitor.recipe).trace.rollout.completions == kept.rollout.completions


def test_every_lesson_shows_it_and_no_check_takes_a_later_step_for_a_first_one():
    run = finished("&train_steps=3&updates=2")
    visitor = in_lessons(run, 2)
    for slug in BY_SLUG:
        visitor.look(handlers.go, {"lesson": slug, "update": 1})
        context = view.context_of(visitor.recipe, visitor.selection)
        for name, row, pos, place, text in (n for part in visitor.views for n in numbers_in(part)):
            assert text == expected(settings_for(context, name), name, row, pos, place)
        visitor.look(handlers.go, {"lesson": slug, "update": 0})
        bad = {c["name"]: c["message"] for c in visitor.views[2]["checks"] if c["status"] in ("warning", "error")}
        assert "kl_step0_zero" not in {c["name"] for c in visitor.views[2]["checks"]} and not bad, bad
    visitor.look(handlers.go, {"lesson": "kl"})
    visitor.answers, *views = handlers.answer({"option": "positive"}, *visitor.state)
    assert views[2]["question"]["right"] and "not a first step" in views[2]["question"]["reveal_html"]


def test_a_step_that_has_gone_is_said_and_the_page_goes_on(bench):
    run = finished("&train_steps=2")
    visitor = in_lessons(run, 1)
    address = visitor.picture["query"]
    runs.close()
    bench.sources._open.clear()  # as after a few other steps were opened
    visitor.look(handlers.go, {"lesson": "kl"})
    assert visitor.picture["notice"][0].startswith("model: the kept step has gone") and visitor.picture["panels"]
    visitor.keep(visitor.turn(beta=0.2))
    assert visitor.recipe.model == "tiny" and "has gone" in visitor.picture["notice"][0]
    again = Visitor().open(address).run()
    assert again.recipe.model == "tiny" and "has gone" in again.picture["notice"][0] and again.picture["panels"]
    wanted, notices, *_ = compare.load(address)
    assert wanted.recipe.model == "tiny" and "has gone" in notices[0]
    assert train.load(address, "b", "tab")[0].recipe.model == "tiny"


def test_a_link_names_what_is_on_offer_and_nothing_else(bench):
    run = finished("&train_steps=2")
    folder = folder_of(run, 1)
    assert is_snapshot(str(folder))
    for model in (str(folder), f"{folder}/model", kept_name(run.id, 7), "run-0-step-0", f"../{kept_name(run.id, 1)}"):
        visitor = Visitor().open(f"?lesson=prompt&model={model}")
        assert visitor.recipe.model == "tiny" and visitor.picture["notice"][0].startswith("model: "), model
    assert bench.sources.models == ("tiny",)


def test_the_disk_is_bounded_and_the_oldest_run_goes_first(bench, monkeypatch):
    old = finished("&train_steps=3", "old")
    size = runs._sizes[old.id]
    monkeypatch.setattr(runs_module, "DISK", int(size * 1.5))
    new = finished("&train_steps=3", "new")
    assert len(new.steps_kept) == 3 and not old.steps_kept and not folder_of(old, 2).exists()
    assert kept_name(old.id, 1) not in bench.sources and kept_name(new.id, 1) in bench.sources
    assert "deleted to make room" in train.load(SMALL, "old", "tab")[2]["kept"]["said"]
    monkeypatch.setattr(plan, "KEPT_BYTES", 5 * size // 3)
    few = finished("&train_steps=12", "few")
    assert 2 <= len(few.steps_kept) <= 5 and len({b - a for a, b in zip(few.steps_kept, few.steps_kept[1:])}) == 1  # noqa: B905
    monkeypatch.setattr(plan, "KEPT_BYTES", 1000)
    none = finished("&train_steps=2", "none")
    assert not none.steps_kept and "too large" in train.load(SMALL, "none", "tab")[2]["kept"]["said"]


def test_a_run_from_a_kept_step_begins_with_the_model_that_its_run_began_with(bench):
    run = finished("&train_steps=2")
    model = kept_name(run.id, 1)
    assert train.load(f"?model={model}", "a", "tab")[0].seed == run.config.seed  # the run's, not the step's
    wanted = train.load(f"{SMALL}&model={model}&train_steps=2", "a", "tab")[0]
    train.start("a", "tab", wanted)
    again = runs.of("a")
    until(lambda: again.ended)
    assert again.wanted.recipe.model == "tiny" and again.config.model == "tiny" and model not in bench.sources._kept


def test_app_starts_with_a_kept_step_as_its_model(bench, tmp_path):
    run = finished("&train_steps=3&updates=2")
    folder = tmp_path / "step"
    folder_of(run, 2).rename(folder)
    metrics = {name: value for name, value in run.history[2].items()}
    runs.close()
    bench = view.start(str(folder))
    first = bench.first_recipe()
    assert first.model == str(folder) and {
        f.name for f in fields(Recipe) if getattr(first, f.name) != getattr(Recipe(), f.name)
    }
    bare = Visitor().open("?lesson=sample").run()
    assert bare.recipe == first and not bare.picture["notice"]
    assert "step 3 of a training run</strong>, number 2 in its files" in bare.picture["origin_html"]
    shown = update_metrics(bench.step(first).trace, LOCAL)
    assert shown == {name: metrics[name] for name in shown}
    for settings in ({}, {"group_size": 4}, {"temperature": 0.5}):  # what equals a default comes back from a link as well
        recipe = replace(first, **settings)
        assert Visitor().open(link.query(recipe, bare.selection)).recipe == recipe
    assert Visitor().open("?model=tiny").picture["notice"][0].startswith("model: found 'tiny', allowed here")
    until(lambda: begun("&train_steps=2")[1])
    again = runs.of("a")
    until(lambda: again.ended)
    assert again.state == "finished" and load_snapshot(folder_of(again, 1)).reference, again.trouble
