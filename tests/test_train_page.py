"""The page Train without a browser: a run starts, pauses, goes on and ends as it would alone; its address is its state."""

import json
import threading
import time
from dataclasses import replace

import pytest
import torch
from pytest import approx
from training_runs import SMALL, begun, curves, finished, opened, until

from grpo_core import load_policy
from grpo_core.data import Sums
from grpo_core.trainer import Trainer
from lessons import prose, view
from lessons.train import handlers, link, plan
from lessons.train import run as run_module
from lessons.train import runs as runs_module
from lessons.train import view as pages
from lessons.train.run import PAUSED, RUNNING, STOPPED, WAITING
from lessons.train.runs import runs

HOSTILE = "<img src=x onerror=alert(1)>"


@pytest.fixture(autouse=True)
def bench(monkeypatch):
    monkeypatch.setattr(Sums, "__len__", lambda self: 2**10)  # shuffling a million takes a second
    monkeypatch.setattr(plan, "KEPT_BYTES", 12_000_000)  # two or three steps of a run: the disk may be slow
    yield view.start("tiny")
    runs.close()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("train-")]


# ---- a run ---------------------------------------------------------------------------------------------------------------
def test_a_run_is_the_trainers_own(bench):
    run = finished("&train_steps=6")
    config = plan.config_of(run.wanted)
    alone = [record.metrics for record in Trainer(config, policy=load_policy("tiny")).run()]
    assert [{k: v for k, v in m.items() if not k.startswith("seconds/")} for m in alone] == curves(run)
    before = load_policy("tiny").model.state_dict()
    assert all(torch.equal(tensor, before[name]) for name, tensor in bench.policy(run.wanted.recipe).model.state_dict().items())


def test_paused_resumed_and_left_it_ends_as_without():
    whole = curves(finished("&train_steps=12"))
    wanted, run = begun("&train_steps=12")
    until(lambda: len(run.history) >= 2)
    value = handlers.pause({"run": run.id, "since": 0}, "a", "tab", wanted)
    assert (run.state, run.working, value["run"]["acts"]) == (PAUSED, False, ["resume", "stop"])
    count = len(run.history)
    time.sleep(0.3)
    assert len(run.history) == count and value["run"]["step"]["v"] == str(count)
    handlers.resume({}, "a", "tab", wanted)
    until(lambda: len(run.history) > count)
    handlers.left("another tab")
    assert run.working
    handlers.left("tab")
    until(lambda: not run.working)
    assert run.state == PAUSED and run.left
    assert "away" in handlers.load(SMALL, "a", "new tab")[2]["run"]["said"]
    handlers.resume({}, "a", "new tab", wanted)
    until(lambda: run.ended)
    assert curves(run) == whole


def test_a_run_that_nobody_asks_after_pauses(monkeypatch):
    monkeypatch.setattr(run_module, "PATIENCE", 0.3)
    _, run = begun()
    until(lambda: not run.working)
    assert run.state == PAUSED and run.left and 0 < len(run.history) < 400


def test_stopped_it_keeps_curves_and_steps_and_lets_the_weights_go():
    wanted, run = begun()
    until(lambda: len(run.history) > 3)
    value = handlers.stop({}, "a", "tab", wanted)
    assert run.state == STOPPED and run._trainer is None and value["run"]["acts"] == ["again"]
    assert value["kept"]["steps"] and value["points"]["x"] == list(range(1, 1 + len(run.history)))
    handlers.resume({}, "a", "tab", wanted)
    assert not run.working
    handlers.start("a", "tab", wanted)
    assert runs.of("a") is not run


def test_visitors_do_not_touch_each_other_and_who_waits_is_told():
    alone = {seed: curves(finished(f"&train_steps=8&train_seed={seed}")) for seed in (1, 2, 3)}
    for seed in alone:
        begun(f"&train_steps=8&train_seed={seed}", f"visitor {seed}")
    everyone = [runs.of(f"visitor {seed}") for seed in alone]
    until(lambda: everyone[2].state in (WAITING, RUNNING))
    if everyone[2].state == WAITING:
        assert runs.ahead(everyone[2]) == 1 and "1 must leave" in pages.status(everyone[2], "en")["said"]
    until(lambda: all(run.ended for run in everyone))
    assert [curves(run) for run in everyone] == list(alone.values())
    assert handlers.load(SMALL, "a stranger", "tab")[2]["run"]["acts"] == ["start"]


def test_a_run_that_waits_leaves_the_line_when_it_is_stopped(monkeypatch):
    monkeypatch.setattr(runs_module, "AT_WORK", 1)
    begun(visitor="first")
    wanted, run = begun(visitor="second")
    until(lambda: runs.ahead(run) == 1)
    handlers.stop({}, "second", "tab", wanted)
    until(lambda: not run.working)
    assert run.state == STOPPED and not run.history and runs.ahead(run) == 0 and runs.of("first").working


def test_there_are_not_more_runs_than_allowed(monkeypatch):
    monkeypatch.setattr(runs_module, "MOST_RUNS", 2)
    for visitor in ("one", "two"):
        begun(visitor=visitor)
    value = handlers.start("three", "tab", opened(visitor="three"))
    assert value["notice"] == ["run: found 2 runs at work or waiting here, allowed: 2; try again later"] and not runs.of(
        "three"
    )
    handlers.stop({}, "one", "tab", opened())
    handlers.start("three", "tab", opened(visitor="three"))
    assert runs.of("three") and not runs.of("one")


def test_what_goes_wrong_in_the_thread_is_said(monkeypatch):
    def broken(self):
        raise ValueError(f"model: {HOSTILE}")

    monkeypatch.setattr(Trainer, "one_step", broken)
    wanted, run = begun()
    until(lambda: run.ended)
    value = handlers.poll({}, "a", "tab", wanted)
    assert value["notice"] == [f"model: {HOSTILE}"] and value["run"]["state"] == "failed"


def test_somebody_who_waits_for_a_page_comes_before_the_next_step(bench):
    order = []

    def training(name):
        for _ in range(3):
            with bench.turns.patiently():
                order.append(name)
                time.sleep(0.05)

    threads = [threading.Thread(target=training, args=(name,)) for name in "xy"]
    for thread in threads:
        thread.start()
    until(lambda: order)
    with bench.turns:
        order.append("page")
    for thread in threads:
        thread.join()
    assert order.index("page") <= 2
    mine = "".join(name for name in order if name != "page")
    assert "xyxy" in mine or "yxyx" in mine


# ---- the page ------------------------------------------------------------------------------------------------------------
def test_the_page_shows_the_trainers_numbers_and_its_points_come_piece_by_piece():
    run = finished("&train_steps=12")
    wanted, nav, page, side = handlers.load(SMALL, "a", "tab")
    assert json.loads(json.dumps([nav, page, side], allow_nan=False))
    newest = {item["n"]["q"]: float(item["n"]["v"].replace("−", "-")) for item in page["numbers"]}
    assert newest == {name: approx(run.history[-1][name], rel=1e-3, abs=1e-9) for name in newest} and len(newest) == 8
    for panel in page["charts"]:
        for line in panel["figure"]["data"]:
            assert page["points"]["y"][line["series"]] == [approx(step[line["series"]], rel=1e-5) for step in run.history]
    part = pages.part(wanted, run, [], 9)["points"]
    assert part["x"] == [10, 11, 12] and part["y"]["kl"] == page["points"]["y"]["kl"][9:]
    before, now = run.first, run.now
    assert (before.step, now.step, before.prompts) == (0, 12, now.prompts) and before.texts != now.texts
    assert [row[0] for row in page["answers"]["rows"]] == list(before.prompts)
    for row, right in zip(page["answers"]["rows"], now.right, strict=True):
        assert row[2][0] == {1.0: "✓", 0.0: "✗"}[right]


def test_the_question_has_its_answer_and_lesson_15_is_in_the_list():
    wanted, nav, page, side = handlers.load("?lesson=update", "a", "tab")
    assert [lesson["number"] for lesson in nav["lessons"]] == list(range(1, 16)) and nav["current"] == "train"
    assert [lesson["away"] for lesson in nav["lessons"]] == [True] * 14 + [False]
    assert {option["id"] for option in side["question"]["options"]} == {"falls", "near-zero", "rises"}
    for option, right in (("near-zero", True), ("falls", False), ("", None)):
        _, told = handlers.answer({"option": option}, {}, wanted)
        assert told["question"]["right"] is right and "<strong>0</strong>" in told["question"]["reveal_html"]
    assert handlers.answer({"option": 3}, {}, wanted) is None
    assert "class Trainer" not in side["source"][0]["code"] and "one_step" in side["source"][1]["code"]
    assert page["number"] == 15 and prose.sections("en", "train")["title"] == page["title"]


# ---- settings and address ------------------------------------------------------------------------------------------------
def test_settings_make_the_config_and_the_address_holds_them():
    wanted = opened("&preset=verl&beta=0.5")
    given = {"group_size": "6", "learning_rate": "3e-4", "clip_high": "0,28", "steps": "7", "beta": "0.01", "seed": "4"}
    for name, text in given.items():
        wanted, _, page = handlers.change({name: text}, "a", "tab", wanted)
        assert not page["notice"]
    config = plan.config_of(wanted)
    assert (config.group_size, config.learning_rate, config.clip_high, config.steps, config.beta, config.seed) == (
        6, 3e-4, 0.28, 7, 0.01, 4,
    )  # fmt: skip
    assert config.preset == "verl" and config.aggregation == "token-mean" and config.max_completion_length == 6
    assert link.parse(link.query(wanted), wanted.recipe)[0] == wanted
    assert wanted.recipe.beta == 0.5 and "train_" not in link.lesson_query(wanted)  # the lessons keep their own
    wanted, _, page = handlers.change({"preset": "trl"}, "a", "tab", wanted)
    assert plan.config_of(wanted).beta == plan.choice.under(wanted.recipe, "trl").beta and wanted.learning_rate == 3e-4


@pytest.mark.parametrize(
    ("sent", "said"),
    [
        ({"prompts_per_step": "16"}, "prompts_per_step: found 16 prompts x 4 answers, allowed here: 8 prompts and 64 rows"),
        ({"group_size": "0"}, "group_size: found 0, allowed"),
        ({"steps": "100000"}, "steps: found 100000, allowed here: 1 to 500"),
        ({"learning_rate": HOSTILE}, f"learning_rate: found {HOSTILE[:40]!r}, allowed: a number"),
        ({"seed": "1.5"}, "seed: found '1.5', allowed: a whole number"),
        ({"beta": "nan"}, "beta: found nan, allowed"),
        ({"preset": "verll"}, "preset: found 'verll'"),
    ],
)
def test_what_cannot_be_run_is_refused_in_one_line_and_changes_nothing(sent, said):
    wanted = opened()
    kept, _, page = handlers.change(sent, "a", "tab", wanted)
    (notice,) = page["notice"]
    assert kept == wanted and notice.startswith(said) and "\n" not in notice
    key, value = next(iter(sent.items()))
    loaded, _, page, _ = handlers.load(f"?train_{key}={value}", "b", "tab")
    assert page["notice"] and plan.config_of(loaded)


def test_a_page_without_a_key_trains_nothing():
    for key in ("", "k" * 65):
        assert "session storage" in handlers.start(key, "tab", opened())["notice"][0] and not runs.of(key)


def test_a_recipe_that_fits_no_run_is_replaced_and_said():
    wanted, _, page, _ = handlers.load("?train_group_size=9", "a", "tab")
    assert wanted == replace(wanted, group_size=8) and page["notice"][0].startswith("prompts_per_step: found 8 prompts x 9")
