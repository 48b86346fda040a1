"""`policy_loss` is one graph: compiled with fullgraph=True it gives eager's numbers, for every row of every table.

Runs in a process of its own, without the shape checks (test_compile_process.py starts it): they are Python that dynamo
would trace.
"""

import dataclasses
import itertools

import pytest
import torch

from grpo_core.kl import KL
from grpo_core.loss import AGGREGATION, RATIO, SURROGATE, LossConfig, policy_loss

ROWS, WIDTH = 4, 5
MASK = torch.arange(WIDTH) < torch.tensor([[3], [2], [5], [0]])
EVERY_LOSS = list(itertools.product(RATIO, SURROGATE, AGGREGATION))


@pytest.fixture(autouse=True)
def fresh_dynamo():
    torch.set_num_threads(1)
    torch._dynamo.reset()


def tensors():
    rng = torch.Generator().manual_seed(0)
    policy, old, ref, entropy = (torch.randn(ROWS, WIDTH, generator=rng) for _ in range(4))
    advantages = torch.tensor([1.0, -1.0, 0.5, -0.5])
    return policy.requires_grad_(), old, ref, advantages, MASK, entropy.abs()


def results(loss, config):
    inputs = tensors()
    terms = loss(*inputs, config)
    (grad,) = torch.autograd.grad(terms.loss, inputs[0])
    return terms, grad


def assert_same(config, backend="eager"):
    eager_terms, eager_grad = results(policy_loss, config)
    terms, grad = results(torch.compile(policy_loss, fullgraph=True, backend=backend), config)
    for field in dataclasses.fields(eager_terms):
        ours, theirs = getattr(terms, field.name), getattr(eager_terms, field.name)
        torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-7, msg=field.name)
    torch.testing.assert_close(grad, eager_grad, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(("ratio", "surrogate", "aggregation"), EVERY_LOSS)
def test_every_loss_is_one_graph_with_eagers_numbers(ratio, surrogate, aggregation):
    assert_same(LossConfig(ratio=ratio, surrogate=surrogate, aggregation=aggregation, entropy_coef=0.01))


@pytest.mark.parametrize("estimator", KL)
def test_every_kl_estimator_is_one_graph_with_eagers_numbers(estimator):
    assert_same(LossConfig(kl_estimator=estimator, beta=0.1))


def test_the_backward_pass_is_traced_too():
    assert_same(LossConfig(ratio="sequence", surrogate="dual-clip"), backend="aot_eager")


def test_the_shape_checks_are_off_here():
    assert not hasattr(policy_loss, "__wrapped__")
