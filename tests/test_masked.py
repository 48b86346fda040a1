"""What stands in a masked slot moves nothing, and policies that are far apart break nothing: under every row of every table."""

import itertools

import pytest
import torch
from builders import BASE_ADVANTAGES, BASE_MASK, loss_of
from variants import VARIANTS, label

from grpo_core import Totals, summarize
from grpo_core.aggregation import AGGREGATION
from grpo_core.kl import KL, KL_GRADIENT
from grpo_core.loss import RATIO
from grpo_core.splitting import detached
from grpo_core.surrogate import SURROGATE

GARBAGE = (float("nan"), float("inf"), 1e6, -1e6)
REWARDS = torch.tensor([1.0, 0.0, 0.0, 1.0])
HOLES = BASE_MASK & torch.tensor([True, False, True, True])  # a tool's turn in the middle of three of the rows


def run(mask, fill, settings, per_token=True):
    """Terms, gradient and metrics of one batch with `fill` in every masked slot of every tensor."""
    rng = torch.Generator().manual_seed(3)
    tensors = [torch.randn(4, 4, generator=rng) - 2 for _ in range(5)]
    logprobs, old, ref, entropy, sampler = (torch.where(mask, t, fill) for t in tensors)
    leaf = logprobs.requires_grad_()
    advantages = torch.where(mask, BASE_ADVANTAGES.unsqueeze(1), fill) if per_token else BASE_ADVANTAGES
    terms = loss_of(
        leaf, advantages, mask, old=old, ref=ref, entropy=entropy, sampler=sampler, rewards=REWARDS,
        **{"beta": 0.1, "entropy_coef": 0.01} | settings,
    )  # fmt: skip
    return terms, torch.autograd.grad(terms.loss, leaf)[0], summarize(detached(terms), mask)


@pytest.mark.parametrize("settings", VARIANTS, ids=label)
def test_what_stands_in_a_masked_slot_moves_nothing(settings):
    for mask in (BASE_MASK, HOLES):
        clean, clean_grad, clean_metrics = run(mask, 0.0, settings)
        assert clean.loss.isfinite() and clean_grad.isfinite().all() and (clean_grad[~mask] == 0).all()
        for garbage in GARBAGE:
            dirty, dirty_grad, dirty_metrics = run(mask, garbage, settings)
            assert torch.equal(clean.loss, dirty.loss) and torch.equal(clean_grad, dirty_grad)
            assert clean_metrics == dirty_metrics
            for name, values in vars(dirty).items():
                assert torch.equal(values, getattr(clean, name)), name


@pytest.mark.parametrize("settings", VARIANTS, ids=label)
def test_every_field_is_0_where_masked_and_the_correction_1(settings):
    terms, _, _ = run(BASE_MASK, float("nan"), settings)
    for name, values in vars(terms).items():
        spread_out = name.endswith("weight") and "length-over-cells" in settings.values()
        if values.dim() == 2 and not spread_out:
            assert (values[~BASE_MASK] == (1 if name == "correction" else 0)).all(), name


@pytest.mark.parametrize("surrogate", SURROGATE)
def test_counted_padding_has_ratio_1_and_its_rows_advantage_whatever_stands_there(surrogate):
    settings = {"surrogate": surrogate, "aggregation": "length-over-cells", "count_padding": True}
    clean, clean_grad, clean_metrics = run(BASE_MASK, 0.0, settings, per_token=False)
    assert (clean.ratio[~BASE_MASK] == 1).all() and not clean.is_clipped[~BASE_MASK].any()
    for garbage in GARBAGE:
        dirty, dirty_grad, dirty_metrics = run(BASE_MASK, garbage, settings, per_token=False)
        assert torch.equal(clean.loss, dirty.loss) and torch.equal(clean_grad, dirty_grad)
        assert clean_metrics == dirty_metrics and (dirty_grad[~BASE_MASK] == 0).all()


@pytest.mark.parametrize("aggregation", AGGREGATION)
@pytest.mark.parametrize("surrogate", SURROGATE)
def test_a_batch_without_a_trained_token_has_loss_and_gradient_0(surrogate, aggregation):
    nothing = torch.zeros(4, 4, dtype=torch.bool)
    gates = {"gates": ("top-entropy", "on-policy-rows"), "correction": "geometric"}
    terms, grad, metrics = run(nothing, float("nan"), {"surrogate": surrogate, "aggregation": aggregation} | gates)
    assert float(terms.loss.detach()) == 0.0 and (grad == 0).all() and metrics["num_tokens"] == 0


# ---- policies far apart ----------------------------------------------------------------------------------------------------
BOUNDED_ABOVE = ({}, {"correction": "token", "correction_high": 2.0}, {"gates": ("on-policy-rows", "sampler-rows")})


@pytest.mark.parametrize("ratio", RATIO)
@pytest.mark.parametrize("surrogate", SURROGATE)
def test_a_log_ratio_of_200_leaves_loss_and_gradient_finite(surrogate, ratio):
    for direction in (200.0, -200.0):
        near = torch.full((4, 4), -3.0)
        policy, other = (near, near - direction) if direction > 0 else (near + direction, near)
        for settings in BOUNDED_ABOVE:
            leaf = policy.clone().requires_grad_()
            terms = loss_of(
                leaf, BASE_ADVANTAGES, BASE_MASK, old=other, ref=other, sampler=other, rewards=REWARDS,
                surrogate=surrogate, ratio=ratio, beta=0.1, **settings,
            )  # fmt: skip
            (grad,) = torch.autograd.grad(terms.loss, leaf)
            assert terms.loss.isfinite() and grad.isfinite().all(), (direction, settings)
            assert all(values.isfinite().all() for values in vars(terms).values())


@pytest.mark.parametrize("gradient", KL_GRADIENT)
@pytest.mark.parametrize("estimator", KL)
def test_a_kl_to_a_policy_200_nats_away_is_finite(estimator, gradient):
    for policy, old, ref, sampler in itertools.product((-3.0, -203.0), repeat=4):
        leaf = torch.full((4, 4), policy, requires_grad=True)
        others = {"old": old, "ref": ref, "sampler": sampler}
        terms = loss_of(
            leaf, BASE_ADVANTAGES, BASE_MASK, kl_estimator=estimator, kl_gradient=gradient, beta=0.1,
            **{name: torch.full((4, 4), value) for name, value in others.items()},
        )  # fmt: skip
        (grad,) = torch.autograd.grad(terms.loss, leaf)
        assert terms.loss.isfinite() and grad.isfinite().all(), (policy, others)


@pytest.mark.parametrize("surrogate", SURROGATE)
@pytest.mark.parametrize("mixed", [(200.0, -200.0, 0.0, 0.0), (0.3, 200.0, -0.3, 0.1)])
def test_one_far_token_does_not_spoil_its_neighbours_gradient(surrogate, mixed):
    leaf = torch.full((4, 4), -201.0, requires_grad=True)
    old = leaf.detach() - torch.tensor(mixed)
    terms = loss_of(leaf, BASE_ADVANTAGES, BASE_MASK, old=old, rewards=REWARDS, surrogate=surrogate, beta=0.0)
    (grad,) = torch.autograd.grad(terms.loss, leaf)
    assert terms.loss.isfinite() and grad.isfinite().all()


@pytest.mark.parametrize("aggregation", AGGREGATION)
def test_totals_may_be_numbers_or_tensors(aggregation):
    leaf = torch.full((4, 4), -1.0, requires_grad=True)
    numbers, tensors = (Totals(rows=make(4), tokens=make(10), width=4) for make in (int, torch.tensor))
    left, right = (loss_of(leaf, BASE_ADVANTAGES, BASE_MASK, totals=t, aggregation=aggregation) for t in (numbers, tensors))
    assert torch.equal(left.loss, right.loss)
