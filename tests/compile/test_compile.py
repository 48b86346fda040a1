"""`policy_loss` is one graph: compiled with fullgraph=True it gives eager's numbers, for every row of every table.

Runs in a process of its own, without the shape checks (test_compile_process.py starts it): they are Python that dynamo
would trace.
"""

import dataclasses

import pytest
import torch
from variants import VARIANTS, label

from grpo_core.convention import LossConfig
from grpo_core.loss import policy_loss

ROWS, WIDTH = 4, 5
MASK = torch.arange(WIDTH) < torch.tensor([[3], [2], [5], [0]])
NOT_ONE_GRAPH = {"clip-cov": "it draws at random, among a number of tokens that depends on the data"}  # surrogate -> reason
SPARED = {"ratio": ("token", "segment"), "kl_estimator": ("k3", "k1")}  # half of each pair is compiled: it takes 0.4 s each
ONE_GRAPH = [
    settings
    for settings in VARIANTS
    if settings.get("surrogate") not in NOT_ONE_GRAPH
    and all(settings.get(name, kept[0]) in kept or settings.get("surrogate") == "min-clip" for name, kept in SPARED.items())
]
WITH_PADDING = {"count_padding": True, "aggregation": "length-over-cells"}


@pytest.fixture(autouse=True)
def fresh_dynamo():
    torch.set_num_threads(1)
    torch._dynamo.reset()


def tensors():
    rng = torch.Generator().manual_seed(0)
    policy, old, ref, sampler, entropy = (torch.randn(ROWS, WIDTH, generator=rng) - 2 for _ in range(5))
    advantages, rewards = torch.tensor([1.0, -1.0, 0.5, -0.5]), torch.tensor([1.0, 0.0, 1.0, 0.0])
    return policy.requires_grad_(), old, ref, advantages, MASK, entropy.abs(), sampler, rewards


def results(loss, config):
    *inputs, sampler, rewards = tensors()
    terms = loss(*inputs, config, None, sampler, rewards)
    (grad,) = torch.autograd.grad(terms.loss, inputs[0])
    return terms, grad


def assert_same(config, fullgraph=True, backend="eager"):
    eager_terms, eager_grad = results(policy_loss, config)
    terms, grad = results(torch.compile(policy_loss, fullgraph=fullgraph, backend=backend), config)
    for field in dataclasses.fields(eager_terms):
        ours, theirs = getattr(terms, field.name), getattr(eager_terms, field.name)
        torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-7, msg=field.name)
    torch.testing.assert_close(grad, eager_grad, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("settings", [*ONE_GRAPH, WITH_PADDING], ids=label)
def test_every_row_is_one_graph_with_eagers_numbers(settings):
    assert_same(LossConfig(**{"entropy_coef": 0.01, "beta": 0.1} | settings))


@pytest.mark.parametrize("surrogate", NOT_ONE_GRAPH)
def test_what_cannot_be_one_graph_falls_back_to_several(surrogate):
    config = LossConfig(surrogate=surrogate, cov_bounds=(0.0, 5.0))
    with pytest.raises(torch._dynamo.exc.Unsupported):
        assert_same(config)
    torch._dynamo.reset()
    assert_same(config, fullgraph=False)


@pytest.mark.parametrize(
    "settings", [{"ratio": "sequence", "surrogate": "dual-clip"}, {"ratio": "segment", "surrogate": "kl-cov"}]
)
def test_the_backward_pass_is_traced_too(settings):
    assert_same(LossConfig(**settings), backend="aot_eager")


def test_the_shape_checks_are_off_here():
    assert not hasattr(policy_loss, "__wrapped__")
