"""Recipes: what is refused and in which words, and how a link's values are repaired."""

import re
from dataclasses import fields

import pytest

from grpo_core import LossConfig, Recipe, sample
from grpo_core.config import DEFAULT
from grpo_core.convention import AdvantageConfig, Convention
from grpo_core.rules import RULES

REFUSED = [
    ({"temperature": 0.0}, "temperature: found 0.0, allowed: above 0"),
    ({"temperature": -1.0}, "temperature: found -1.0, allowed: above 0"),
    ({"temperature": float("nan")}, "temperature: found nan"),
    ({"top_p": 0.0}, "top_p: found 0.0"),
    ({"group_size": 0}, "group_size: found 0, allowed: a whole number from 1"),
    ({"prompts": ()}, "prompts: found ()"),
    ({"prompts": ("  ",)}, "prompts: found ('  ',), allowed: 1 to 8 texts, none empty"),
    ({"prompts": ("a",) * 8, "group_size": 9}, "group_size: found 8 prompts x 9, allowed: at most 64 rows"),
    ({"advantage_eps": -1e-6}, "advantage_eps: found -1e-06, allowed: 0 to 1"),
    ({"clip_low": 1.5}, "clip_low: found 1.5, allowed: 0 to 1"),
    ({"dual_clip": 1.0}, "dual_clip: found 1.0, allowed: above 1"),
    ({"aggregation": "mean"}, "aggregation: found 'mean', allowed: seq-mean-token-mean, token-mean, dr_grpo"),
    ({"reward_weights": (1.0,)}, "reward_weights: found 1 weights for 2 reward_functions, allowed: one each"),
    ({"reward_functions": ("correct", "correct")}, "reward_functions: found ('correct', 'correct')"),
    ({"edited_rewards": ((0, 0, float("nan")),)}, "edited_rewards: found ((0, 0, nan),)"),
    ({"surrogate": "ppo"}, "surrogate: found 'ppo', allowed: min-clip, dual-clip, two-sided, none, sapo"),
    ({"gates": ("top-entropy", "top-entropy")}, "gates: found ('top-entropy', 'top-entropy'), allowed: none or different"),
    ({"kl_gradient": "k3"}, "kl_gradient: found 'k3', allowed: plain, times-ratio"),
    ({"kl_aggregation": "mean"}, "kl_aggregation: found 'mean', allowed: same, seq-mean-token-mean"),
    ({"vespo_shape": (2.0, 3.0)}, "vespo_shape: found (2.0, 3.0), allowed: four numbers"),
    ({"log_ratio_bound": 0.0}, "log_ratio_bound: found 0.0, allowed: above 0, at most 80"),
    ({"clip_high": -1.5}, "clip_high: found -1.5, allowed: -1 to 100"),
    ({"advantage_whiten": "yes"}, "advantage_whiten: found 'yes', allowed: none, unbiased, biased, std"),
    ({"updates": 0}, "updates: found 0, allowed: a whole number from 1 to 8"),
    ({"learning_rate": float("inf")}, "learning_rate: found inf"),
]


@pytest.mark.parametrize(("values", "message"), REFUSED, ids=lambda v: next(iter(v)) if isinstance(v, dict) else "")
def test_what_cannot_be_run_is_refused_with_field_value_and_what_is_allowed(values, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        Recipe(**values)


@pytest.mark.parametrize("values", [{"advantage_eps": 0.0}, {"clip_low": 0.0, "clip_high": 0.0}, {"group_size": 1}])
def test_the_edge_that_can_be_run_is_allowed(values):
    assert Recipe(**values)


@pytest.mark.parametrize(("values", "message"), REFUSED, ids=lambda v: next(iter(v)) if isinstance(v, dict) else "")
def test_a_link_with_a_refused_value_falls_back_and_says_so(values, message):
    recipe, messages = Recipe.repaired(values)
    assert recipe == DEFAULT or len(values) == 2
    assert any(name in text for text in messages for name in values)


def test_a_good_link_is_taken_whole_and_in_silence():
    values = {"seed": 7, "beta": 0.5, "reward_functions": ("correct",), "reward_weights": (2.0,), "prompts": ("1 + 1?",)}
    recipe, messages = Recipe.repaired(values)
    assert messages == [] and recipe == Recipe(**values)


def test_one_bad_value_does_not_cost_the_good_ones():
    recipe, messages = Recipe.repaired({"seed": 7, "temperature": -3.0, "no_such_knob": 1, "beta": 0.5})
    assert (recipe.seed, recipe.temperature, recipe.beta) == (7, DEFAULT.temperature, 0.5)
    assert len(messages) == 2
    assert any("no_such_knob" in m for m in messages) and any(m.startswith("temperature: found -3.0") for m in messages)


@pytest.mark.parametrize("value", ["0.5", None, [1], {"a": 1}])
def test_a_value_of_the_wrong_kind_falls_back(value):
    recipe, messages = Recipe.repaired({"temperature": value})
    assert recipe == DEFAULT and len(messages) == 1


def test_a_recipe_is_a_key():
    assert hash(Recipe()) == hash(Recipe()) and len({Recipe(), Recipe(), Recipe(seed=1)}) == 2


def test_only_sampling_settings_ask_for_another_rollout():
    assert Recipe(beta=0.5, aggregation="token-mean", layout="sequence").rollout_key() == Recipe().rollout_key()
    assert Recipe(top_p=0.9).rollout_key() != Recipe().rollout_key()


def test_the_loss_reads_every_setting_from_the_recipe():
    recipe = Recipe(
        ratio="sequence", ratio_against="sampler", log_ratio_bound=20.0, surrogate="dual-clip", clip_low=0.1, clip_high=0.3,
        dual_clip=2.0, sapo_temperatures=(2.0, 3.0), vespo_shape=(1.0, 1.0, 1.0, 1.0), quadratic_coef=0.5, cov_fraction=0.5,
        cov_bounds=(0.0, 1.0), cov_coef=0.5, cov_seed=1, correction="token", correction_bound="drop", correction_low=0.5,
        correction_high=2.0, gates=("top-entropy",), off_policy_threshold=0.5, entropy_quantile=0.5, mask_truncated=True,
        beta=0.5, kl_estimator="k1", kl_against="sampler", kl_gradient="score", kl_input_bound=20.0, kl_output_bound=10.0,
        kl_aggregation="token-mean", entropy_coef=0.01, entropy_aggregation="token-mean", aggregation="dr_grpo",
        count_empty_rows=False, count_padding=True, max_completion_length=9,
    )  # fmt: skip
    config = recipe.loss_config()
    assert all(getattr(config, name) == getattr(recipe, name) for name in vars(config))
    default = LossConfig()
    assert not any(getattr(config, name) == getattr(default, name) for name in vars(config))


def test_the_advantages_read_every_setting_from_the_recipe():
    recipe = Recipe(
        reward_shift=-0.5, reward_scale=10.0, reward_clip=20.0, reward_kl="after", reward_kl_coef=0.1,
        reward_kl_estimator="k3", advantage_mean="batch", advantage_std="batch", advantage_eps=1e-6,
        advantage_alone="reward", advantage_whiten="std", advantage_clip=2.0,
    )  # fmt: skip
    config, default = recipe.advantage_config(), AdvantageConfig()
    assert all(getattr(config, name) == getattr(recipe, name) for name in vars(config))
    assert not any(getattr(config, name) == getattr(default, name) for name in vars(config))
    assert vars(recipe.convention()) == vars(config) | vars(recipe.loss_config())


def test_every_setting_of_a_convention_has_a_rule_and_says_what_it_allows():
    assert {f.name for f in fields(Convention)} < {name for name, _, _ in RULES}
    for name, allowed, ok in RULES:
        assert ok(getattr(DEFAULT, name)) and not ok(None) and not ok(float("nan")) and allowed, name


def test_a_prompt_that_is_too_long_is_named_with_its_length_and_the_room(policy):
    recipe = Recipe(prompts=("1 + 1?", "x" * 200), max_completion_length=16)
    # 200 bytes and the template's <bos> <user> <assistant>: 203; the model reads 128, of which 16 are for the answer
    with pytest.raises(ValueError, match=r"prompts: prompt 2 has 203 tokens, allowed: 112 .*128.*16"):
        sample(policy, recipe.prompts, recipe)


def test_a_prompt_of_no_tokens_is_refused(policy, monkeypatch):
    monkeypatch.setattr(policy, "encode", lambda prompt: [])
    with pytest.raises(ValueError, match=r"prompts: prompt 1 .* becomes 0 tokens, allowed: at least 1"):
        sample(policy, ("1 + 1?",), Recipe(prompts=("1 + 1?",)))
