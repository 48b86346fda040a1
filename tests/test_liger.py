"""Every Liger-Kernel preset against Liger's own loss on random batches, and its chunked path from hidden states."""

import inspect
from dataclasses import replace

import pytest
import torch
from batches import loss_batches
from hypothesis import given, settings
from hypothesis import strategies as st
from peers import PEERS, require
from trainers import assert_same, liger_fused_loss, liger_loss, with_grad

from grpo_core.compare import evaluate
from grpo_core.presets import PRESETS, preset

pytestmark = pytest.mark.usefixtures("fp64")

FIFTY = settings(max_examples=50, deadline=None, derandomize=True, database=None)
ALLOWED = 20
LIVE = {  # preset -> Liger's settings
    "liger": {"beta": 0.04},
    "liger/no-kl": {"beta": 0.0},
    "liger/kl-corrected": {"beta": 0.04, "use_bias_correction_kl": True},
    "liger/grpo": {"beta": 0.0, "loss_type": "grpo"},
    "liger/bnpo": {"beta": 0.0, "loss_type": "bnpo"},
    "liger/dr_grpo": {"beta": 0.0, "loss_type": "dr_grpo", "max_completion_length": ALLOWED},
    "liger/cispo": {"beta": 0.0, "loss_type": "cispo", "epsilon_high": 5.0},
    "liger/sapo": {"beta": 0.0, "loss_type": "sapo"},
    "liger/luspo-token": {"beta": 0.0, "loss_type": "luspo"},
    "liger/vespo": {"beta": 0.0, "loss_type": "vespo"},
}
# no presets, but rows of TRL's: preset -> Liger's settings
AS_IN_TRL = {
    "trl/delta": {"beta": 0.0, "delta": 2.0},
    "trl/gspo": {"beta": 0.0, "loss_type": "grpo", "epsilon_low": 3e-4, "epsilon_high": 4e-4,
                 "importance_sampling_level": "sequence"},
}  # fmt: skip


@pytest.fixture(scope="module")
def liger():
    require("liger_kernel", PEERS)


def live(batch, advantages, config):
    policy = batch.policy_logprobs.clone().requires_grad_()
    return with_grad(liger_loss(policy, batch.old_logprobs, batch.ref_logprobs, advantages, batch.mask, **config)[0], policy)


def test_every_preset_of_liger_is_compared():
    assert set(LIVE) == {name for name, row in PRESETS.items() if row.trainer == "Liger-Kernel"}


def test_ligers_defaults_are_the_presets(liger):
    from liger_kernel.chunked_loss import LigerFusedLinearGRPOLoss

    defaults = inspect.signature(LigerFusedLinearGRPOLoss).parameters
    assert (defaults["beta"].default, defaults["loss_type"].default) == (preset("liger").convention().beta, "dapo")


@pytest.mark.parametrize("name", [*LIVE, *AS_IN_TRL])
def test_liger_has_the_same_loss_and_gradient(liger, name):
    config = (LIVE | AS_IN_TRL)[name]

    @FIFTY
    @given(loss_batches())
    def compare(batch):
        ours = evaluate(batch.inputs(ALLOWED), preset(name).convention())
        loss, grad = live(batch, ours.advantages[:, 0], config)
        assert_same((loss, torch.where(batch.mask, grad, 0.0)), ours, 1e-10)  # luspo has one in the padding, too: see below

    compare()


@pytest.mark.parametrize("name", ["liger", "liger/dr_grpo", "liger/cispo", "liger/sapo"])
def test_liger_from_hidden_states_has_the_same_loss_and_gradients(liger, name):
    @settings(FIFTY, max_examples=25)
    @given(loss_batches(), st.sampled_from([0.7, 1.0]))
    def compare(batch, temperature):
        batch = batch.fp32()  # the chunks are accumulated in fp32
        generator = torch.Generator().manual_seed(0)
        hidden = torch.randn(*batch.mask.shape, 5, generator=generator, dtype=torch.float32).requires_grad_()
        head = torch.randn(11, 5, generator=generator, dtype=torch.float32).requires_grad_()
        ids = torch.randint(11, batch.mask.shape, generator=generator)
        logprobs = torch.log_softmax(hidden @ head.T / temperature, -1).gather(2, ids.unsqueeze(2)).squeeze(2)
        moved = [logprobs.detach() + values - batch.policy_logprobs for values in (batch.old_logprobs, batch.ref_logprobs)]
        batch = replace(batch, policy_logprobs=logprobs.detach(), old_logprobs=moved[0], ref_logprobs=moved[1])
        ours = evaluate(batch.inputs(ALLOWED), preset(name).convention())
        ref = batch.ref_logprobs if LIVE[name]["beta"] else None
        theirs, _ = liger_fused_loss(hidden, head, ids, batch.old_logprobs, ref, ours.advantages[:, 0], batch.mask,
                                     temperature=temperature, **LIVE[name])  # fmt: skip
        terms = ours.terms
        size = float((terms.token_weight * terms.token_loss).abs().sum() + 0.04 * (terms.kl_weight * terms.kl).abs().sum())
        assert abs(float(theirs.detach() - terms.loss)) <= 2e-6 * size + 1e-9
        leaves = (hidden, head)
        expected = torch.autograd.grad(logprobs, leaves, ours.grad)
        for grad, mine in zip(torch.autograd.grad(theirs, leaves), expected, strict=True):
            allowed = 2e-5 * ours.grad.abs().max() + 2e-6 * terms.token_weight.max()  # 1 - e^d has no digits for d near 0
            assert (grad - mine).abs().max() <= allowed

    compare()


# ---- where Liger has no number, or another one ------------------------------------------------------------------------------
@FIFTY
@given(st.sampled_from(list(LIVE)), loss_batches(alone=True, uneven=True, far=True, garbage=True))
def test_a_preset_stays_finite_in_fp32_with_far_ratios_and_garbage_in_the_padding(name, batch):
    ours = evaluate(batch.fp32().inputs(ALLOWED), preset(name).convention())
    assert ours.terms.loss.isfinite() and ours.grad.isfinite().all()


@FIFTY
@given(loss_batches())
def test_ligers_luspo_reads_the_log_probs_of_the_padding_and_ours_does_not(liger, batch):
    ours = evaluate(batch.inputs(), preset("liger/luspo-token").convention())
    padded = ~batch.mask & (ours.advantages != 0) & batch.mask.any(1, keepdim=True)
    dirty = replace(batch, policy_logprobs=torch.where(batch.mask, batch.policy_logprobs, -0.1))
    _, grad = live(dirty, ours.advantages[:, 0], LIVE["liger/luspo-token"])
    assert (grad[padded] != 0).all()  # a gradient where there is no token
    again = evaluate(dirty.inputs(), preset("liger/luspo-token").convention())
    assert torch.equal(again.grad, ours.grad) and not again.grad[~batch.mask].any()


def test_liger_gives_nan_where_an_infinite_ratio_meets_equal_rewards(liger):
    ratio = torch.full((1, 2), 90.0, dtype=torch.float32)
    loss, _ = liger_loss(-1 - 0 * ratio, -1 - ratio, None, torch.zeros(1), torch.ones(1, 2).bool(), beta=0.0)
    assert loss.isnan()  # ours is finite: see above
