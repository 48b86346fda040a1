"""Gradients written out against autograd, to 1e-12 in fp64: every surrogate that has one, every ratio and KL gradient."""

import dataclasses

import pytest
import torch
from builders import bare_trace
from test_reference import TENSORS, TOLERANCE, draw_batch, draw_config, over_seeds

from grpo_core import policy_loss
from grpo_core.closed_forms import KL_GRADIENT_SLOPE, KL_SLOPE, SURROGATE_SLOPE, closed_form_logprob_grad, policy_logprob_grad
from grpo_core.kl import KL, KL_GRADIENT
from grpo_core.surrogate import SURROGATE

pytestmark = pytest.mark.usefixtures("fp64")


def test_every_kl_has_a_slope_and_most_surrogates_have():
    assert set(KL_SLOPE) == set(KL) and set(KL_GRADIENT_SLOPE) == set(KL_GRADIENT)
    assert set(SURROGATE) - set(SURROGATE_SLOPE) == {"geometric-mean", "kl-cov", "topr", "vespo", "dppo-tv", "dppo-kl"}


def compare(batch, config):
    given = {name: torch.tensor(getattr(batch, name)) for name in TENSORS}
    mask, leaf = torch.tensor(batch.mask), given["policy"].requires_grad_()
    terms = policy_loss(
        leaf, given["old"], given["ref"], given["advantages"], mask, given["entropy"], config, None, given["sampler"],
        given["rewards"],
    )  # fmt: skip
    (grad,) = torch.autograd.grad(terms.loss, terms.policy_logprobs)
    trace = bare_trace(terms, grad, given["advantages"], mask, given["ref"], given["sampler"], config)
    closed = closed_form_logprob_grad(trace, 0).detach()
    pull = terms.token_weight * terms.correction * (1 + terms.ratio) * (1 + given["advantages"].abs())
    slope = terms.kl_weight * (50 + terms.kl.abs()) * (1 + terms.ratio)
    scale = float((pull.sum() + slope.sum()).detach() + grad.abs().max())
    assert float((grad - closed).abs().max()) <= TOLERANCE * max(1.0, scale)


@pytest.mark.parametrize("surrogate", SURROGATE_SLOPE)
def test_the_closed_form_gradient_is_autograds(surrogate):
    over_seeds(lambda rng: compare(draw_batch(rng), draw_config(rng, surrogate=surrogate)), 50)


@pytest.mark.parametrize("surrogate", SURROGATE_SLOPE)
def test_counted_padding_has_no_gradient_in_either(surrogate):
    fixed = {"surrogate": surrogate, "aggregation": "length-over-cells", "count_padding": True}
    over_seeds(lambda rng: compare(draw_batch(rng), draw_config(rng, **fixed)), 10)


@pytest.mark.parametrize("gradient", KL_GRADIENT)
@pytest.mark.parametrize("estimator", KL)
def test_the_kls_closed_form_is_autograds(estimator, gradient):
    fixed = {"kl_estimator": estimator, "kl_gradient": gradient, "beta": 0.7, "surrogate": "min-clip"}
    over_seeds(lambda rng: compare(draw_batch(rng), draw_config(rng, **fixed)), 10)


def test_where_none_is_written_there_is_none(trace):
    other = dataclasses.replace(trace, recipe=dataclasses.replace(trace.recipe, surrogate="vespo"))
    assert policy_logprob_grad(other, 0) is None and closed_form_logprob_grad(other, 0) is None
