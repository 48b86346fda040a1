"""Every handler of the app as a plain function: what it answers, what it refuses, and whom it leaves alone."""

import json
from dataclasses import fields, replace

import pytest
from visitor import SHORT, Visitor

from grpo_core import Recipe
from grpo_core.presets import PRESETS
from lessons import BY_SLUG, choice, handlers, view
from lessons.form import from_knob, knob_values
from lessons.handlers import Shown
from lessons.knobs import KNOBS, unread
from lessons.lesson import Selection

# For every control: another value that is allowed, and one that is not.
OTHER = {
    "prompts": ("What is 1 + 1?\n\n2 + 2 = ?", ""), "group_size": (5.0, 0), "temperature": (0.5, 0), "top_p": (1, 1.5),
    "top_k": (7.0, -1), "max_completion_length": (9, 0), "seed": (3, -4), "advantage_mean": ("batch", "median"),
    "advantage_std": ("none", "mad"), "advantage_eps": (0, 2), "ratio": ("sequence", "word"), "surrogate": ("none", "max"),
    "clip_low": (0.3, -1), "clip_high": (0.28, 101), "beta": (1, float("nan")), "kl_estimator": ("k1", "k4"),
    "aggregation": ("token-mean", "mode"), "entropy_coef": (0.01, 11), "updates": (3, 9), "learning_rate": (0, float("inf")),
    "advantage_whiten": ("unbiased", "twice"), "reward_kl": ("after", "never"), "reward_kl_coef": (1, -1),
    "reward_kl_estimator": ("k3", "k4"), "reward_shift": (-1, 1e7), "reward_scale": (10, float("nan")),
    "reward_clip": (20, -1), "advantage_clip": (2, -2), "advantage_alone": ("reward", "mean"), "dual_clip": (2, 1),
    "sapo_temperatures": ("2, 1.5", "2"), "vespo_shape": ("1, 2, 3, 4", "1, 2, 3, −4"), "quadratic_coef": (0.3, 101),
    "cov_fraction": (0.5, 0), "cov_bounds": ("−1, 7", "1; 5"), "cov_coef": (1, -1), "cov_seed": (4.0, -4),
    "kl_gradient": ("score", "best"), "ratio_against": ("sampler", "ref"), "log_ratio_bound": (20, 81),
    "correction": ("token", "row"), "correction_bound": ("drop", "keep"), "correction_low": (1, -1), "correction_high": (2, -1),
    "gates": (["top-entropy", "on-policy-rows"], ["no-gate"]), "off_policy_threshold": (1, -1), "entropy_quantile": (0.5, 0),
    "mask_truncated": (True, "yes"), "kl_against": ("sampler", "old"), "kl_input_bound": (20, 0), "kl_output_bound": (10, -1),
    "kl_aggregation": ("token-sum", "other"), "entropy_aggregation": ("token-mean", "other"), "count_empty_rows": (False, 0),
    "count_padding": (True, "yes"), "optimizer": ("sgd", "lion"), "max_grad_norm": (0, -1), "layout": ("sequence", "columns"),
}  # fmt: skip
BASE = Recipe(max_completion_length=6, group_size=3, updates=1, top_p=0.9)


@pytest.fixture(scope="module", autouse=True)
def bench():
    return view.start("tiny")


@pytest.fixture
def visitor():
    return Visitor().open().run()


def test_an_address_is_opened_at_once_and_finished_later():
    view.start("tiny")  # nothing is finished yet
    visitor = Visitor().open("?lesson=kl&beta=0.3&row=1&lang=en")
    assert visitor.recipe == Recipe(beta=0.3) and visitor.selection == Selection(lesson="kl", row=1)
    assert visitor.shown == Shown() and visitor.picture["running"] and visitor.picture["panels"] == []
    visitor.run()
    assert visitor.shown.recipe == visitor.recipe and visitor.picture["panels"] and not visitor.picture.get("running")
    assert "beta=0.3" in visitor.picture["query"]


def test_an_address_without_a_language_takes_the_servers():
    assert Visitor().open("?lesson=kl", lang="en").selection.lang == "en"
    assert handlers.load("?lesson=kl", Shown(), {}, "other")[3].lang == "other"
    assert handlers.load("?lesson=kl&lang=en", Shown(), {}, "other")[3].lang == "en"


def test_what_a_link_gets_wrong_is_said_before_and_after_the_model_ran():
    visitor = Visitor().open(SHORT + "&seed=77&temperature=0&flavour=9&model=/etc")
    for _ in range(2):
        said = " ".join(visitor.picture["notice"])
        assert all(name in said for name in ("temperature: ", "flavour: ", "model: found '/etc', allowed here: tiny"))
        visitor.run()
    assert visitor.recipe == replace(BASE, seed=77, top_p=1.0)


def test_going_changes_the_lesson_and_the_update_and_nothing_else(visitor):
    for slug in BY_SLUG:
        visitor.look(handlers.go, {"lesson": slug})
        assert visitor.picture["slug"] == visitor.views[0]["current"] == visitor.selection.lesson == slug
    visitor.look(handlers.go, {"update": 5})
    assert visitor.selection == Selection(lesson="update", update=5) and visitor.picture["update"] == 0  # it has one


@pytest.mark.parametrize("target", [{"lesson": "nowhere"}, {"lesson": None}, {"update": "2"}, {"update": 1.5}])
def test_going_nowhere_changes_nothing(visitor, target):
    assert handlers.go(target, *visitor.state) is None


def test_a_selected_token_stays_and_escape_lets_go_of_it(visitor):
    start = visitor.picture["selected"]
    pos = view.context_of(visitor.recipe, visitor.selection).trained_positions(2)[0]
    visitor.look(handlers.select, {"row": 2, "pos": pos})
    assert visitor.picture["selected"] == {"row": 2, "pos": pos} != start
    visitor.look(handlers.go, {"lesson": "clip"})
    assert visitor.views[3]["token"]["row"] == 2 and visitor.views[3]["token"]["pos"] == pos
    assert visitor.look(handlers.select, {}).picture["selected"] == start
    for place in ({"row": 10**6, "pos": 10**6}, {"row": -5, "pos": -5}):  # a token that there is not: the nearest
        assert visitor.look(handlers.select, place).picture["panels"]
    assert handlers.select({"row": "2", "pos": 0}, *visitor.state) is None


def test_an_answer_is_judged_and_belongs_to_its_lesson(visitor):
    answers, _, _, side, *_ = handlers.answer({"option": ""}, *visitor.state)
    assert answers == {"rewards": ""} and side["question"]["reveal_html"] and side["question"]["right"] is None
    verdicts = []
    for option in side["question"]["options"]:
        answers, _, _, side, *_ = handlers.answer({"option": option["id"]}, *visitor.state)
        verdicts.append(side["question"]["right"])
    assert sorted(verdicts) == [False] * (len(verdicts) - 1) + [True] and visitor.answers == {}
    assert handlers.answer({"option": 3}, *visitor.state) is handlers.answer({"option": "x" * 101}, *visitor.state) is None


def test_a_typed_reward_shows_the_loss_at_once_and_the_rest_later(visitor):
    before = visitor.recipe
    visitor.edit(1, " \u22120,25 ")
    assert visitor.recipe == replace(before, edited_rewards=((1, 0, -0.25),)) and visitor.picture["stale"]
    assert "reward=1%2C0%2C-0.25" in visitor.picture["query"] and not visitor.notices
    visitor.run()
    assert visitor.shown == Shown(visitor.recipe, before) and not visitor.picture["stale"]


def test_the_last_of_two_rewards_in_a_cell_counts_and_reset_asks_the_function_again(visitor):
    visitor.edit(1, "0.5").edit(1, "2", function=1).edit(0, "").edit(1, "0.75")
    assert visitor.recipe.edited_rewards == ((0, 0, None), (1, 0, 0.75), (1, 1, 2.0))
    assert visitor.edit(1, "", reset=True).recipe.edited_rewards == ((0, 0, None), (1, 1, 2.0))


@pytest.mark.parametrize("typed", ["nan", "inf", "-1e999", "lots", "1 2", "1e7", "0x10", "<b>"])
def test_a_reward_that_is_no_number_is_refused_and_named(visitor, typed):
    before = visitor.recipe
    visitor.edit(1, typed)
    (notice,) = visitor.picture["notice"]
    assert visitor.recipe == before and "reward" in notice.split(":")[0] and "allowed: " in notice


@pytest.mark.parametrize("row", [None, "1", -1, 1.0, True, 64, [0]])
def test_a_reward_for_a_row_that_cannot_be_is_refused(visitor, row):
    assert visitor.edit(row, "1").recipe.edited_rewards == () and len(visitor.notices) == 1


def test_a_reward_for_a_row_that_this_step_does_not_have_brings_the_step_from_before_back(visitor):
    before, picture = visitor.recipe, visitor.picture["panels"]
    visitor.edit(60, "1").run()
    assert visitor.recipe == before and visitor.picture["panels"] == picture
    assert "found row 60" in visitor.picture["notice"][0]
    linked = Visitor(shown=visitor.shown).open(SHORT + "&reward=60,0,1").run()
    assert linked.recipe == before and "found row 60" in linked.picture["notice"][0]


@pytest.mark.parametrize("knob", KNOBS, ids=lambda knob: knob.field)
def test_every_control_changes_its_setting_alone_and_refuses_what_is_not_allowed(knob):
    visitor = Visitor(recipe=BASE).run()
    good, bad = OTHER[knob.field]
    recipe, _, notices, *_ = visitor.turn(**{knob.field: good})
    changed = {f.name for f in fields(Recipe) if getattr(recipe, f.name) != getattr(BASE, f.name)}
    assert changed == {knob.field} and not notices
    assert type(getattr(recipe, knob.field)) is type(getattr(BASE, knob.field))
    for refused in (bad, None):
        recipe, shown, notices, *_ = visitor.turn(**{knob.field: refused})
        assert recipe == BASE and shown == visitor.shown
        assert len(notices) == 1 and notices[0].startswith(f"{knob.field}: found ") and "allowed: " in notices[0]


@pytest.mark.parametrize("odd", ["abc", [1], {}, 10**400], ids=lambda v: str(v)[:5])
def test_what_no_control_sends_is_refused_in_one_line(odd):
    visitor = Visitor(recipe=BASE).run()
    for knob in (k for k in KNOBS if k.kind != "lines"):
        recipe, _, (notice,), *_ = visitor.turn(**{knob.field: odd})
        assert recipe == BASE and "\n" not in notice
        if isinstance(getattr(BASE, knob.field), float):  # the others are stopped by the tests' type checks already
            assert notice.startswith(f"{knob.field}: found ") and notice.endswith("allowed: a number")


def test_a_preset_sets_all_that_it_fixes_at_once_and_says_what_was_changed_since(visitor):
    before = visitor.recipe
    assert visitor.views[4]["name"] == "paper/grpo" and visitor.views[4]["changed"] == []
    visitor.keep(visitor.preset("verl/kl"))
    assert visitor.recipe == choice.under(before, "verl/kl") and visitor.picture["stale"]  # the loss alone, at once
    assert "preset=verl%2Fkl" in visitor.picture["query"] and visitor.picture["preset"] == {"name": "verl/kl", "changed": []}
    visitor.run().keep(visitor.turn(beta=0.1, clip_high=0.3))
    note = visitor.views[4]
    assert note["changed"] == ["clip_high", "beta"] == visitor.picture["preset"]["changed"] and "verl/kl" in note["back"]
    assert PRESETS["verl/kl"].quirk == note["quirk"] and note["summary"] and note["source"]
    visitor.keep(visitor.preset())
    assert visitor.recipe == choice.under(before, "verl/kl") and visitor.views[4]["changed"] == []
    assert visitor.preset() is visitor.preset("verl/kl") is None  # nothing changes


def test_a_preset_keeps_the_answers_the_edits_and_the_run_s_own_settings(visitor):
    visitor.edit(1, "0.5").keep(visitor.turn(updates=2, learning_rate=0.01)).run()
    rollout = visitor.recipe.rollout_key()
    visitor.keep(visitor.preset("nemo")).run()
    recipe = visitor.shown.recipe
    assert recipe == visitor.recipe and recipe.rollout_key() == rollout and recipe.advantage_std == "leave-one-out"
    assert (recipe.edited_rewards, recipe.updates, recipe.learning_rate) == (((1, 0, 0.5),), 2, 0.01)
    assert recipe.max_completion_length == 6


@pytest.mark.parametrize("name", ["trl/gsop", "", "<b>", 3, None])
def test_a_preset_that_there_is_not_is_refused_with_the_nearest_names(visitor, name):
    before = visitor.recipe
    visitor.keep(handlers.choose_preset({"preset": name}, *visitor.state))
    assert visitor.recipe == before and "preset: found" in visitor.picture["notice"][0]
    assert "nearest: " in visitor.picture["notice"][0]


def test_controls_that_nothing_reads_are_named(visitor):
    assert {"dual_clip", "sapo_temperatures", "correction_low", "reward_kl_coef"} <= set(visitor.views[4]["unread"])
    visitor.keep(visitor.preset("openrlhf/is-mask"))
    assert {"clip_low", "correction_low"}.isdisjoint(visitor.views[4]["unread"]) and "kl_gradient" in visitor.views[4]["unread"]
    for name, row in PRESETS.items():  # a preset sets nothing that its own rows do not read, defaults apart
        recipe = choice.under(visitor.recipe, name)
        idle = {field for field in unread(recipe) if getattr(recipe, field) != getattr(Recipe(), field)}
        assert idle <= {"kl_gradient", "kl_aggregation", "entropy_aggregation", "advantage_eps", "dual_clip"}, (
            name,
            row.settings,
        )


def test_answers_that_were_all_cut_leave_nothing_to_train_and_that_is_said():
    visitor = Visitor().open("?lesson=clip&max_completion_length=1&mask_truncated=true").run()
    assert visitor.recipe == Recipe() and visitor.picture["notice"][0].startswith("mask_truncated: found only answers")


def test_the_form_is_the_recipe_and_back():
    awkward = replace(BASE, prompts=("one\ntwo + 3", " 4 - 1 "), seed=2**31 - 1, learning_rate=1e-9, clip_high=50.0)
    presets = [choice.under(BASE, name) for name in PRESETS]
    for recipe in (Recipe(), BASE, awkward, replace(BASE, vespo_shape=(0.123456789, 1.0, 2.0, 3.0)), *presets):
        values = knob_values(recipe)
        read = {k.field: from_knob(k, v, getattr(recipe, k.field)) for k, v in zip(KNOBS, values, strict=True)}
        assert replace(recipe, **read) == recipe and Visitor(recipe=recipe).run().turn() is None
        json.dumps(values, allow_nan=False)


def test_a_recipe_that_the_model_cannot_run_leaves_the_step_from_before(visitor):
    before, panels = visitor.recipe, visitor.picture["panels"]
    visitor.keep(visitor.turn(max_completion_length=1024))
    assert visitor.recipe.max_completion_length == 1024 and visitor.picture["running"]
    visitor.run()
    assert visitor.recipe == before == visitor.shown.recipe and visitor.picture["panels"] == panels
    assert visitor.picture["notice"][0].startswith("prompts: prompt 1 has ")


def test_a_link_that_the_model_cannot_run_opens_with_the_default_step():
    visitor = Visitor().open("?lesson=loss&max_completion_length=1024").run()
    assert visitor.recipe == Recipe() and visitor.picture["panels"]
    assert [notice.split(":")[0] for notice in visitor.picture["notice"]] == ["lesson", "prompts"]
