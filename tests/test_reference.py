"""The core against slow.py, to 1e-12 in fp64, over every row of every table, random masks and far-off ratios."""

import pytest
import slow
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_core import Batch, LossConfig, Recipe, group_advantages, policy_loss
from grpo_core.advantages import ADVANTAGE_MEAN, ADVANTAGE_STD
from grpo_core.explain import closed_form_logprob_grad
from grpo_core.kl import KL
from grpo_core.loss import AGGREGATION, RATIO, SURROGATE
from grpo_core.types import Advantages, Rollout, StepTrace, Update

TOLERANCE = 1e-12
TABLES = {
    "ratio": RATIO, "surrogate": SURROGATE, "aggregation": AGGREGATION, "kl_estimator": KL,
    "advantage_mean": ADVANTAGE_MEAN, "advantage_std": ADVANTAGE_STD,
}  # fmt: skip
QUICK = settings(max_examples=200, deadline=None, derandomize=True, database=None)


@pytest.fixture(autouse=True, scope="module")
def fp64():
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


def test_the_reference_knows_every_row_of_every_table():
    assert {name: set(rows) for name, rows in slow.CHOICES.items()} == {name: set(rows) for name, rows in TABLES.items()}


def rows_of(data, values, height, width):
    return data.draw(st.lists(st.lists(values, min_size=width, max_size=width), min_size=height, max_size=height))


def draw_loss(data):
    """Log-probs, advantages, mask and settings. Log-ratios reach from e^-30 to e^30."""
    height, width = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 5))
    mask = rows_of(data, st.booleans(), height, width)
    policy = rows_of(data, st.floats(-40, 0), height, width)
    near, far = st.floats(-0.6, 0.6), st.floats(-30, 30)
    gap, ref_gap = (rows_of(data, st.one_of(near, far), height, width) for _ in range(2))
    entropy = rows_of(data, st.floats(0, 10), height, width)
    advantages = data.draw(st.lists(st.one_of(st.just(0.0), st.floats(-5, 5)), min_size=height, max_size=height))
    chosen = {name: data.draw(st.sampled_from(rows)) for name, rows in slow.CHOICES.items() if "advantage" not in name}
    config = LossConfig(
        **chosen, clip_low=data.draw(st.floats(0, 1)), clip_high=data.draw(st.floats(0, 3)),
        dual_clip=data.draw(st.floats(1.01, 10)), beta=data.draw(st.floats(0, 1)),
        entropy_coef=data.draw(st.floats(-1, 1)), max_completion_length=data.draw(st.integers(1, 9)),
    )  # fmt: skip
    old = [[p - g for p, g in zip(*pair, strict=True)] for pair in zip(policy, gap, strict=True)]
    ref = [[p - g for p, g in zip(*pair, strict=True)] for pair in zip(policy, ref_gap, strict=True)]
    return policy, old, ref, entropy, advantages, mask, config


def size_of(terms):
    """What the sums are made of: rounding is relative to it, not to what is left after cancellation."""
    parts = [(terms.token_weight * terms.token_loss).abs().sum(), (terms.kl_weight * terms.kl).abs().sum()]
    return float((sum(parts) + (terms.entropy_weight * terms.entropy).abs().sum()).detach())


@QUICK
@given(st.data())
def test_loss_parts_and_gradient_equal_the_slow_ones(data):
    policy, old, ref, entropy, advantages, mask, config = draw_loss(data)
    expected = slow.slow_loss(policy, old, ref, entropy, advantages, mask, config)
    leaf, trained = torch.tensor(policy, requires_grad=True), torch.tensor(mask)
    terms = policy_loss(
        leaf, torch.tensor(old), torch.tensor(ref), torch.tensor(advantages), trained, torch.tensor(entropy), config
    )
    (grad,) = torch.autograd.grad(terms.loss, leaf)
    limit = TOLERANCE * size_of(terms) + 1e-300
    assert abs(float(terms.loss.detach()) - expected["loss"]) <= limit
    for ours, name in ((terms.policy_loss, "policy"), (terms.kl_loss, "kl"), (terms.entropy_loss, "entropy")):
        assert abs(float(ours.detach()) - expected[name]) <= limit, name
    assert int(terms.is_clipped.sum()) == expected["clipped"]
    slow_grad = torch.tensor(expected["gradient"])
    scale = (terms.token_weight * terms.ratio * torch.tensor(advantages).unsqueeze(1)).abs().detach()
    scale = scale.sum() + (config.beta * terms.kl_weight * (1 + terms.kl.abs() + 40)).sum().detach()
    assert float((grad - slow_grad).abs().max()) <= TOLERANCE * float(scale) + 1e-300


@QUICK
@given(st.data())
def test_the_closed_form_gradient_is_autograds(data):
    policy, old, ref, entropy, advantages, mask, config = draw_loss(data)
    leaf, trained, weight = torch.tensor(policy, requires_grad=True), torch.tensor(mask), torch.tensor(advantages)
    terms = policy_loss(leaf, torch.tensor(old), torch.tensor(ref), weight, trained, torch.tensor(entropy), config)
    (grad,) = torch.autograd.grad(terms.loss, terms.policy_logprobs)
    closed = closed_form_logprob_grad(bare_trace(terms, grad, weight, trained, torch.tensor(ref), config), 0).detach()
    scale = (terms.token_weight * terms.ratio * weight.unsqueeze(1)).abs().sum().detach()
    scale = scale + (config.beta * terms.kl_weight * (41 + terms.kl.abs())).sum().detach()
    assert float((grad - closed).abs().max()) <= TOLERANCE * float(scale) + 1e-300


def bare_trace(terms, grad, advantages, mask, ref, config) -> StepTrace:
    """A trace with what the closed form reads; the rest is empty."""
    rows, width = mask.shape
    nothing, none = torch.zeros(rows, width), torch.zeros(rows, dtype=torch.bool)
    prompt, start = torch.zeros(rows, 1, dtype=torch.long), torch.ones(rows, 1, dtype=torch.bool)
    ids, groups = torch.zeros(rows, width, dtype=torch.long), torch.zeros(rows, dtype=torch.long)
    shared = {"prompt_ids": prompt, "prompt_mask": start, "completion_ids": ids, "completion_mask": mask}
    rollout = Rollout(
        **shared, prompts=("",), group_ids=groups, sampler_logprobs=nothing, kept_mass=nothing,
        finish_reasons=("length",) * rows, completions=("",) * rows, rewards=((0.0,),) * rows, reward_names=("correct",),
    )  # fmt: skip
    given_advantages = Advantages(
        rewards=torch.zeros(rows, 1), missing=none.unsqueeze(1), weights=torch.ones(1), valid=~none, zero_std=none,
        advantages=advantages,
        **dict.fromkeys(("reward", "baseline", "scale", "group_mean", "group_std"), torch.zeros(rows)),
    )  # fmt: skip
    update = Update(terms=terms, logprob_grad=grad, hidden=torch.zeros(0, 1), grad_norms={}, grad_norm=0.0, applied=False)
    fields = ("ratio", "surrogate", "clip_low", "clip_high", "dual_clip", "kl_estimator", "beta", "aggregation",
              "entropy_coef", "max_completion_length")  # fmt: skip
    return StepTrace(
        recipe=Recipe(**{name: getattr(config, name) for name in fields}), rollout=rollout,
        batch=Batch(**shared, group_ids=groups, sampler_logprobs=nothing), advantages=given_advantages,
        old_logprobs=nothing, ref_logprobs=ref, ref_hidden=None, updates=(update,),
    )  # fmt: skip


REWARD = st.one_of(st.sampled_from([0.0, 1.0, 0.5]), st.floats(-100, 100).map(lambda x: round(x, 3)), st.none())


@QUICK
@given(st.data())
def test_advantages_equal_the_slow_ones(data):
    rows, functions = data.draw(st.integers(1, 9)), data.draw(st.integers(1, 3))
    rewards = tuple(map(tuple, rows_of(data, REWARD, rows, functions)))
    weights = data.draw(st.lists(st.sampled_from([1.0, 0.5, -1.0, 0.0]), min_size=functions, max_size=functions))
    groups = data.draw(st.lists(st.integers(0, 2), min_size=rows, max_size=rows))
    mean, std = (data.draw(st.sampled_from(slow.CHOICES[name])) for name in ("advantage_mean", "advantage_std"))
    eps = data.draw(st.sampled_from([1e-4, 1e-6, 1e-2]))
    ours = group_advantages(rewards, weights, torch.tensor(groups), mean, std, eps)
    expected = torch.tensor(slow.slow_advantages(rewards, weights, groups, mean, std, eps))
    largest = max((abs(r) for row in rewards for r in row if r is not None), default=0.0) * functions
    limit = TOLERANCE * (1 + largest / ours.scale)  # a small spread magnifies the rounding of reward - baseline
    assert bool(((ours.advantages - expected).abs() <= limit).all()) and ours.advantages.dtype == torch.float64
