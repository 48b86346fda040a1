"""Rewards to advantages, with answers worked out by hand."""

import math

import pytest
import torch
from builders import BASE_ADVANTAGES, BASE_REWARDS

from grpo_core import Recipe
from grpo_core.advantages import ADVANTAGE_MEAN, ADVANTAGE_STD
from grpo_core.advantages import group_advantages as in_convention
from grpo_core.convention import AdvantageConfig
from grpo_core.explain import winner_advantages

ONE_OF_FOUR = ((1.0,), (0.0,), (0.0,), (0.0,))
ONE_GROUP = torch.zeros(4, dtype=torch.long)


def group_advantages(rewards, weights, groups, **settings):
    """The core's, with the settings by their short names: mean, std, eps, …"""
    return in_convention(rewards, weights, groups, AdvantageConfig(**{f"advantage_{n}": v for n, v in settings.items()}))


def advantages(rewards, groups=ONE_GROUP, weights=(1.0,), **settings):
    return group_advantages(rewards, weights, groups, **settings).advantages


def rounded(values, digits=4):
    return [round(v, digits) for v in values.tolist()]


def test_two_winners_of_four_get_plus_and_minus_0_8659():
    # mean 0.5, unbiased std sqrt(4 · 0.25 / 3) = 0.577350: ±0.5 / (0.577350 + 0.0001) = ±0.865875
    torch.testing.assert_close(advantages(BASE_REWARDS), BASE_ADVANTAGES, atol=1e-6, rtol=0)


def test_one_winner_of_four_in_three_conventions():
    # mean 0.25; unbiased std 0.5: 0.75 / 0.5 = 1.5; biased std sqrt(0.1875) = 0.433013: 1.732051; no std: 0.75
    winner = {std: float(advantages(ONE_OF_FOUR, std=std, eps=0.0)[0]) for std in ("unbiased", "biased", "none")}
    assert winner == pytest.approx({"unbiased": 1.5, "biased": 1.732051, "none": 0.75}, abs=1e-6)


@pytest.mark.parametrize(("size", "factor"), [(2, 1.414), (4, 1.155), (8, 1.069)])
def test_biased_and_unbiased_differ_by_the_root_of_g_over_g_minus_1(size, factor):
    rewards = tuple((float(row == 0),) for row in range(size))
    groups = torch.zeros(size, dtype=torch.long)
    biased, unbiased = (advantages(rewards, groups, std=std, eps=0.0) for std in ("biased", "unbiased"))
    assert float(biased[0] / unbiased[0]) == pytest.approx(math.sqrt(size / (size - 1)), abs=1e-6)
    assert float(biased[0] / unbiased[0]) == pytest.approx(factor, abs=5e-4)


def test_dividing_by_the_spread_favours_groups_with_one_winner_of_eight():
    # one of eight: (1 - 1/8) / sqrt(7/64 · 8/7) = 0.875 / 0.353553 = 2.474 (0.875 without); four of eight: .5 / .534522 = .935
    with_std = winner_advantages(Recipe(advantage_eps=0.0), 8)
    without = winner_advantages(Recipe(advantage_std="none"), 8)
    assert with_std[1][0] == pytest.approx(2.474874, abs=1e-5) and without[1][0] == pytest.approx(0.875)
    assert with_std[4] == pytest.approx((0.935414, -0.935414), abs=1e-5) and without[4] == pytest.approx((0.5, -0.5))


def test_groups_of_three_as_trl_verl_and_nemo_have_them():
    # 1, 0, .5 | 1, 0, 0; stds .5 and .577350. TRL adds 1e-4 to them, verl and ROLL 1e-6.
    rewards, groups = ((1.0,), (0.0,), (0.5,), (1.0,), (0.0,), (0.0,)), torch.tensor([0, 0, 0, 1, 1, 1])
    trl = [0.9998, -0.9998, 0.0, 1.1545, -0.57725, -0.57725]
    assert advantages(rewards, groups).tolist() == pytest.approx(trl, abs=1e-5)
    verl = [0.999998, -0.999998, 0.0, 1.154698, -0.577349, -0.577349]
    assert rounded(advantages(rewards, groups, eps=1e-6), 6) == pytest.approx(verl, abs=1e-6)
    # Leave-one-out: the baseline is the mean of the two others, .25, .75, .5 | 0, .5, .5
    loo = advantages(rewards, groups, mean="leave-one-out", std="none")
    assert rounded(loo) == [0.75, -0.75, 0.0, 1.0, -0.5, -0.5]
    # ... over the std of the two others: .353553, .353553, .707107 | 0 (left undivided), .707107, .707107
    nemo = advantages(rewards, groups, mean="leave-one-out", std="leave-one-out", eps=1e-6)
    expected = [2.121314, -2.121314, 0.0, 1.0, -0.707106, -0.707106]
    torch.testing.assert_close(nemo, torch.tensor(expected), atol=2e-6, rtol=0)
    # One std over all six, mean 5/12: sqrt((2 · (7/12)² + 3 · (5/12)² + (1/12)²) / 5) = .491596; .5 / .491696 = 1.016888
    batch = advantages(rewards, groups, std="batch")
    assert float(batch[0]) == pytest.approx(1.016888, abs=1e-6)


def test_batch_mean_and_no_mean():
    rewards, groups = ((1.0,), (0.0,), (1.0,), (1.0,)), torch.tensor([0, 0, 1, 1])
    # batch mean 3/4
    assert rounded(advantages(rewards, groups, mean="batch", std="none")) == [0.25, -0.75, 0.25, 0.25]
    assert rounded(advantages(rewards, groups, mean="none", std="none")) == [1.0, 0.0, 1.0, 1.0]


@pytest.mark.parametrize("std", ADVANTAGE_STD)
@pytest.mark.parametrize("mean", ["group", "leave-one-out"])
def test_equal_rewards_have_advantage_exactly_0(mean, std):
    # 0.1 is not a binary fraction: the mean of three of them is not 0.1 to the last bit
    result = group_advantages(((0.1,),) * 3, (1.0,), torch.zeros(3, dtype=torch.long), mean=mean, std=std, eps=0.0)
    assert result.advantages.tolist() == [0.0] * 3 and result.zero_std.all()


@pytest.mark.parametrize("std", ADVANTAGE_STD)
@pytest.mark.parametrize("mean", ["group", "leave-one-out"])
def test_a_group_of_one_has_advantage_0_and_no_nan(mean, std):
    result = group_advantages(((1.0,),), (1.0,), torch.zeros(1, dtype=torch.long), mean=mean, std=std)
    assert result.advantages.tolist() == [0.0]


def test_a_missing_reward_is_not_a_reward_of_0():
    # rows 0 to 2 have 1, 0, 0: mean 1/3. Row 3 answered nothing and takes no part.
    result = group_advantages(((1.0,), (0.0,), (0.0,), (None,)), (1.0,), ONE_GROUP, std="none")
    assert rounded(result.advantages) == [0.6667, -0.3333, -0.3333, 0.0]
    assert result.valid.tolist() == [True, True, True, False] and result.reward[3].isnan()


def test_a_row_counts_if_one_of_its_functions_answered():
    # 1 · 1 + 0.5 · 1 = 1.5 and 0.5 · 1 (the first is missing) = 0.5: mean 1
    result = group_advantages(((1.0, 1.0), (None, 1.0)), (1.0, 0.5), torch.zeros(2, dtype=torch.long), std="none")
    assert result.reward.tolist() == [1.5, 0.5] and result.advantages.tolist() == [0.5, -0.5]
    assert result.missing.tolist() == [[False, False], [True, False]]


def test_all_rewards_missing_give_advantages_of_0():
    result = group_advantages(((None,),) * 4, (1.0,), ONE_GROUP)
    assert result.advantages.tolist() == [0.0] * 4 and not result.valid.any()


def test_a_nan_reward_is_not_hidden():
    result = group_advantages(((float("nan"),), (0.0,), (1.0,), (1.0,)), (1.0,), ONE_GROUP)
    assert result.advantages.isnan().all() and not result.missing.any()


def test_groups_are_told_by_id_and_not_by_place():
    rewards, groups = ((1.0,), (5.0,), (0.0,), (7.0,)), torch.tensor([9, 3, 9, 3])
    assert rounded(advantages(rewards, groups, std="none")) == [0.5, -1.0, -0.5, 1.0]


@pytest.mark.parametrize("eps", [1e-2, 1.0])
def test_eps_is_added_to_the_spread(eps):
    assert float(advantages(ONE_OF_FOUR, eps=eps)[0]) == pytest.approx(0.75 / (0.5 + eps), rel=1e-6)


@pytest.mark.parametrize("std", ADVANTAGE_STD)
@pytest.mark.parametrize("mean", ADVANTAGE_MEAN)
def test_advantage_is_reward_minus_baseline_over_scale(mean, std):
    rewards = ((1.0,), (0.0,), (0.25,), (4.0,), (2.0,), (3.5,))
    result = group_advantages(rewards, (1.0,), torch.tensor([0, 0, 0, 1, 1, 1]), mean=mean, std=std)
    torch.testing.assert_close(result.advantages, (result.reward - result.baseline) / result.scale)
