"""The built-in model in the default step: where it matters that answers are sometimes right."""

from dataclasses import replace

import pytest

from grpo_core import CHECKS, Evidence, Recipe, grpo_step, load_policy, run_checks, sample
from grpo_core.explain import logprobs_after, update_effect, vocabulary_row
from grpo_core.step import make_optimizer


@pytest.fixture(scope="module")
def tiny():
    return load_policy("tiny")


@pytest.fixture(scope="module")
def default(tiny):
    """(recipe, weights after, trace) of the step that a visitor sees first."""
    recipe, trained = Recipe(), tiny.clone()
    return recipe, trained, grpo_step(trained, tiny, sample(tiny, recipe.prompts, recipe), recipe)


def test_the_first_step_has_right_and_wrong_answers_to_compare(default):
    _, _, trace = default
    correct = [row[0] for row in trace.rollout.rewards]
    assert {0.0, 1.0} <= set(correct) and (trace.advantages.advantages != 0).any()
    assert "stop" in trace.rollout.finish_reasons and not trace.rollout.prompt_mask.all()


def test_no_check_calls_the_first_step_wrong(tiny, default):
    _, trained, trace = default
    row = int(trace.advantages.advantages.argmax())
    token, effect = (row, 0), update_effect(trace, 0, logprobs_after(trained, trace))
    vocabulary = vocabulary_row(tiny, trace, 0, *token)
    evidence = Evidence.of_trace(trace, policy=tiny, token=token, row=vocabulary, effect=effect)
    outcomes = {outcome.check: outcome.status for outcome in run_checks(evidence, CHECKS.values())}
    assert not [check for check, status in outcomes.items() if status in ("warning", "error")]
    about_a_step = {name for name, check in CHECKS.items() if {"trace", "row", "token", "effect"} & set(check.needs)}
    assert about_a_step and all(outcomes[name] in ("pass", "info") for name in about_a_step)


def test_the_step_makes_good_answers_likelier(default):
    _, trained, trace = default
    change = update_effect(trace, 1, logprobs_after(trained, trace)).after - trace.old_logprobs
    gain = (trace.updates[0].terms.token_weight * trace.advantages.advantages.unsqueeze(1) * change).sum()
    assert float(gain) > 0


def test_sampling_again_and_again_and_stepping_raises_the_reward(tiny):
    recipe = Recipe(group_size=16, updates=1, learning_rate=5e-4, beta=0.0)
    policy = tiny.clone()
    optimizer, means = make_optimizer(policy, recipe), []
    for seed in range(12):
        recipe = replace(recipe, seed=seed)
        trace = grpo_step(policy, tiny, sample(policy, recipe.prompts, recipe), recipe, optimizer)
        means.append(float(trace.advantages.reward.mean()))
    assert sum(means[-4:]) / 4 > sum(means[:4]) / 4 + 0.1
