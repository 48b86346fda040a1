"""A link holds the whole state, and a broken one is repaired field by field."""

from dataclasses import fields, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_core import Recipe
from lessons import BY_SLUG, link
from lessons.lesson import Selection

CHANGED = {
    "prompts": ("1 + 2?", "a&b=c #?", "中文 ➕"), "group_size": 3, "max_completion_length": 9, "temperature": 0.7,
    "top_p": 0.9, "top_k": 5, "seed": 11, "reward_functions": ("format",), "reward_weights": (0.5,),
    "edited_rewards": ((0, 0, 0.25), (1, 0, None)), "advantage_mean": "leave-one-out", "advantage_std": "none",
    "advantage_eps": 1e-6, "ratio": "sequence", "surrogate": "dual-clip", "clip_low": 0.1, "clip_high": 0.28,
    "dual_clip": 2.5, "kl_estimator": "k1", "beta": 0.0, "aggregation": "dr_grpo", "entropy_coef": 0.01, "updates": 4,
    "learning_rate": 0.002, "optimizer": "sgd", "max_grad_norm": 0.0, "layout": "sequence", "model": "somewhere",
}  # fmt: skip


def test_every_field_of_the_recipe_survives_the_address_bar():
    assert set(CHANGED) == {field.name for field in fields(Recipe)}
    recipe = Recipe(**CHANGED)
    selection = Selection(lesson="clip", row=2, pos=17, update=1, lang="en", hide=("recipe", "source"))
    assert link.parse(link.query(recipe, selection)) == (recipe, selection, [])


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
