"""Advantages per row and per token against slow_advantages.py, to 1e-12 in fp64, in every convention."""

import random
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from slow_advantages import CHOICES, slow_advantages

from grpo_core.advantages import ADVANTAGE_MEAN, ADVANTAGE_STD, WHITEN, batch_advantages
from grpo_core.convention import AdvantageConfig
from grpo_core.kl import KL
from grpo_core.rules import ALONE, REWARD_KL

pytestmark = pytest.mark.usefixtures("fp64")

TOLERANCE = 1e-12
TABLES = {
    "advantage_mean": ADVANTAGE_MEAN, "advantage_std": ADVANTAGE_STD, "advantage_whiten": WHITEN, "advantage_alone": ALONE,
    "reward_kl": REWARD_KL, "reward_kl_estimator": KL,
}  # fmt: skip
REWARD = st.one_of(st.sampled_from([0.0, 1.0, 0.5]), st.floats(-100, 100).map(lambda x: round(x, 3)), st.none())


def test_the_reference_knows_every_row_of_every_table():
    assert {name: set(rows) for name, rows in CHOICES.items()} == {name: set(rows) for name, rows in TABLES.items()}


def lists(data, values, count):
    return data.draw(st.lists(values, min_size=count, max_size=count))


def draw_config(data, **fixed) -> AdvantageConfig:
    chosen = {name: data.draw(st.sampled_from(rows), label=name) for name, rows in CHOICES.items()}
    numbers = {
        "reward_shift": (0.0, -0.5), "reward_scale": (1.0, 10.0, -2.0), "reward_clip": (0.0, 0.75, 20.0),
        "reward_kl_coef": (0.0, 0.05, 2.0), "advantage_eps": (1e-4, 1e-6, 1e-2), "advantage_clip": (0.0, 0.6, 2.0),
    }  # fmt: skip
    chosen |= {name: data.draw(st.sampled_from(values), label=name) for name, values in numbers.items()}
    return AdvantageConfig(**chosen | fixed)


def draw_batch(data):
    """Rewards with holes, groups of any size in any order, old and reference log-probs, a mask."""
    rows, functions, width = data.draw(st.integers(1, 8)), data.draw(st.integers(1, 3)), data.draw(st.integers(1, 5))
    rewards = [tuple(lists(data, REWARD, functions)) for _ in range(rows)]
    weights = lists(data, st.sampled_from([1.0, 0.5, -1.0, 0.0]), functions)
    groups = lists(data, st.integers(0, 2), rows)
    rng = random.Random(data.draw(st.integers(0, 2**32 - 1)))
    old, ref = ([[-4 * rng.random() for _ in range(width)] for _ in range(rows)] for _ in range(2))
    mask = [[rng.random() < 0.7 for _ in range(width)] for _ in range(rows)]
    return rewards, weights, groups, old, ref, mask


def compare(data, **fixed):
    config, (rewards, weights, groups, old, ref, mask) = draw_config(data, **fixed), draw_batch(data)
    trained = torch.tensor(mask)
    ours, per_token = batch_advantages(
        tuple(rewards), weights, torch.tensor(groups), torch.tensor(old), torch.tensor(ref), trained, config
    )
    per_row, expected = slow_advantages(rewards, weights, groups, old, ref, mask, config)
    largest = max((abs(r) for row in rewards for r in row if r is not None), default=0.0) * len(weights)
    largest = largest * abs(config.reward_scale) + 100 * config.reward_kl_coef
    limit = TOLERANCE * (1 + largest / ours.scale)  # a small spread magnifies the rounding of reward - baseline
    assert bool(((ours.advantages - torch.tensor(per_row)).abs() <= limit).all())
    # whitening divides by the spread over all tokens; where that is 0 up to rounding, by sqrt(1e-8) or so
    plain = replace(config, advantage_whiten="none", advantage_clip=0.0)
    values = torch.tensor(slow_advantages(rewards, weights, groups, old, ref, mask, plain)[1])[trained]
    whitened = config.advantage_whiten != "none" and len(values) > 1
    divisor = float(values.std().clamp(min=1e-5)) if whitened else 1.0
    size = 1 + float(values.abs().max()) if whitened else 1.0
    limit = size * (float(limit.max()) + TOLERANCE * 100 * config.reward_kl_coef) / divisor
    assert float((torch.where(trained, per_token, 0.0) - torch.tensor(expected)).abs().max()) <= limit


@pytest.mark.parametrize("std", ADVANTAGE_STD)
@pytest.mark.parametrize("mean", ADVANTAGE_MEAN)
def test_advantages_equal_the_slow_ones(mean, std):
    @settings(max_examples=40, deadline=None, derandomize=True, database=None)
    @given(st.data())
    def check(data):
        compare(data, advantage_mean=mean, advantage_std=std)

    check()


@pytest.mark.parametrize("reward_kl", REWARD_KL)
@pytest.mark.parametrize("whiten", WHITEN)
def test_token_advantages_equal_the_slow_ones(whiten, reward_kl):
    @settings(max_examples=40, deadline=None, derandomize=True, database=None)
    @given(st.data())
    def check(data):
        compare(data, advantage_whiten=whiten, reward_kl=reward_kl)

    check()
