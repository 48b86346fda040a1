"""A link holds the whole state, and a broken one is repaired field by field."""

from dataclasses import fields, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_core import Recipe
from grpo_core.convention import Convention
from grpo_core.presets import PRESETS
from lessons import BY_SLUG, choice, link
from lessons.lesson import Selection

CHANGED = {
    "prompts": ("1 + 2?", "a&b=c #?", "中文 ➕"), "group_size": 3, "max_completion_length": 9, "temperature": 0.7,
    "top_p": 0.9, "top_k": 5, "seed": 11, "reward_functions": ("format",), "reward_weights": (0.5,),
    "edited_rewards": ((0, 0, 0.25), (1, 0, None)), "advantage_mean": "leave-one-out", "advantage_std": "none",
    "advantage_eps": 1e-6, "ratio": "sequence", "surrogate": "dual-clip", "clip_low": 0.1, "clip_high": 0.28,
    "dual_clip": 2.5, "kl_estimator": "k1", "beta": 0.0, "aggregation": "dr_grpo", "entropy_coef": 0.01, "updates": 4,
    "learning_rate": 0.002, "optimizer": "sgd", "max_grad_norm": 0.0, "layout": "sequence", "model": "somewhere",
    "preset": "verl/kl", "reward_shift": -0.5, "reward_scale": 10.0, "reward_clip": 20.0, "reward_kl": "before",
    "reward_kl_coef": 0.2, "reward_kl_estimator": "k3", "advantage_alone": "zero", "advantage_whiten": "std",
    "advantage_clip": 2.0, "ratio_against": "sampler", "log_ratio_bound": 10.0, "sapo_temperatures": (2.0, 1e-3),
    "vespo_shape": (1.0, 2.5, 3.0, 4.0), "quadratic_coef": 0.3, "cov_fraction": 0.5, "cov_bounds": (-1.0, 7.0),
    "cov_coef": 1.0, "cov_seed": 3, "correction": "sequence", "correction_bound": "drop", "correction_low": 0.5,
    "correction_high": 5.0, "gates": ("top-entropy", "sampler-rows"), "off_policy_threshold": 0.3, "entropy_quantile": 0.5,
    "mask_truncated": True, "kl_against": "sampler", "kl_gradient": "score", "kl_input_bound": 20.0, "kl_output_bound": 5.0,
    "kl_aggregation": "token-sum", "entropy_aggregation": "token-mean", "count_empty_rows": False, "count_padding": True,
}  # fmt: skip


def test_every_field_of_the_recipe_survives_the_address_bar():
    assert set(CHANGED) == {field.name for field in fields(Recipe)}
    recipe = Recipe(**CHANGED)
    selection = Selection(lesson="clip", row=2, pos=17, update=1, lang="en", hide=("recipe", "source"))
    assert link.parse(link.query(recipe, selection)) == (recipe, selection, [])


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_comes_back_from_a_link_that_names_nothing_but_it(name):
    recipe = choice.under(Recipe(), name)
    query = link.query(recipe, Selection())
    assert query.count("=") == 4 + (name != Recipe().preset)
    assert link.parse(query) == (recipe, Selection(), [])


@pytest.mark.parametrize("field", [f.name for f in fields(Convention)])
@pytest.mark.parametrize("name", ["paper/grpo", "verl/kl", "roll/example-yaml"])
def test_every_setting_of_a_convention_survives_beside_a_preset(name, field):
    start = choice.under(Recipe(), name)
    for value in (CHANGED[field], getattr(Recipe(), field)):  # the class's own default is a change of a preset that differs
        recipe = replace(start, **{field: value})
        assert link.parse(link.query(recipe, Selection())) == (recipe, Selection(), [])
        assert choice.changed(recipe) in ([], [field])


def test_an_empty_list_of_gates_is_told_from_no_word_about_them():
    assert link.parse("?preset=trl/top-entropy")[0].gates == ("top-entropy",)
    assert link.parse("?preset=trl/top-entropy&gates=")[0].gates == ()


@pytest.mark.parametrize("name", ["trl/gsop", "GSPO", "<script>", "", "x" * 300])
def test_an_unknown_preset_is_said_with_the_nearest_names(name):
    recipe, _, messages = link.parse(f"?preset={name}&beta=0.1")
    assert recipe == Recipe(beta=0.1) and len(messages) == 1
    assert messages[0].startswith("preset: found ") and "nearest: " in messages[0] and "'paper/grpo' is used" in messages[0]
    assert len(messages[0]) < 400


def test_what_a_link_gets_wrong_falls_back_to_the_preset_that_it_names():
    recipe, _, messages = link.parse("?preset=trl/gspo&clip_low=-3&clip_high=0.1&kl_gradient=best")
    assert recipe == replace(choice.under(Recipe(), "trl/gspo"), clip_high=0.1)
    assert sorted(message.split(":")[0] for message in messages) == ["clip_low", "kl_gradient"]
    assert "the default 0.0003 is used" in " ".join(messages) and "the default 'times-ratio' is used" in " ".join(messages)


def test_a_default_state_makes_a_short_link():
    assert link.query(Recipe(), Selection()) == "?lesson=prompt&row=0&pos=-1&lang=en"


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("?temperature=0", "temperature"), ("?temperature=-1", "temperature"), ("?temperature=nan", "temperature"),
        ("?group_size=99", "group_size"), ("?group_size=two", "group_size"), ("?beta=1e999", "beta"),
        ("?aggregation=mean", "aggregation"), ("?prompt=", "prompts"), ("?reward=0,0,nan", "edited_rewards"),
        ("?reward=0,0", "reward"), ("?lesson=nowhere", "lesson"), ("?row=-3", "row"), ("?flavour=1", "flavour"),
        ("?lang=<script>", "lang"), ("?reward_weights=1,2,3", "reward_weights"), ("?seed=99999999999", "seed"),
        ("?gates=nothing", "gates"), ("?count_padding=maybe", "count_padding"), ("?vespo_shape=1,2", "vespo_shape"),
        ("?sapo_temperatures=1,x", "sapo_temperatures"), ("?mask_truncated=2", "mask_truncated"),
        ("?cov_bounds=", "cov_bounds"),
    ],
)  # fmt: skip
def test_an_absurd_part_falls_back_to_its_default_and_is_said(text, field):
    recipe, selection, messages = link.parse(text)
    assert (recipe, selection) == (Recipe(), Selection())
    assert len(messages) >= 1 and field in messages[0]


def test_one_absurd_part_leaves_the_others_alone():
    recipe, selection, messages = link.parse("?lesson=kl&beta=0.1&temperature=0&seed=5")
    assert recipe == Recipe(beta=0.1, seed=5) and selection.lesson == "kl" and len(messages) == 1


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=300))
def test_no_address_can_break_the_app(text):
    recipe, selection, messages = link.parse("?" + text)
    assert isinstance(recipe, Recipe) and selection.lesson in BY_SLUG
    assert all(isinstance(message, str) for message in messages)


TEXTS = st.text(st.characters(exclude_categories=("Cs",)), min_size=1, max_size=40).filter(str.strip)


@settings(max_examples=100, deadline=None)
@given(st.lists(TEXTS, min_size=1, max_size=4), st.floats(0.1, 5), st.floats(0, 1), st.integers(0, 2**31 - 1))
def test_any_recipe_comes_back_from_its_link(prompts, temperature, beta, seed):
    recipe = replace(Recipe(), prompts=tuple(prompts), temperature=temperature, beta=beta, seed=seed)
    assert link.parse(link.query(recipe, Selection()))[0] == recipe
