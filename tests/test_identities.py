"""Different names, one loss: what trainers call differently and must be equal, on random batches, ours and theirs."""

from dataclasses import replace

import pytest
import torch
from batches import loss_batches
from hypothesis import given, settings
from hypothesis import strategies as st
from peers import PEERS, require
from trainers import trl_inputs, trl_loss, trl_trainer, verl_loss, with_grad

from grpo_core.compare import evaluate
from grpo_core.presets import preset

pytestmark = pytest.mark.usefixtures("fp64")

FIFTY = settings(max_examples=50, deadline=None, derandomize=True, database=None)
CEILINGS = [1.2, 1.4, 2.0, 3.0]  # the identity holds from 1 + clip_high on


@pytest.fixture(scope="module")
def trl(model_folder):
    """Loss and gradient by TRL, from its own advantages, which it hands on as well."""
    require("trl")

    def live(batch, **config):
        policy = batch.policy_logprobs.clone().requires_grad_()
        trainer = trl_trainer(model_folder, **config)
        inputs = trl_inputs(trainer, batch)
        return with_grad(trl_loss(trainer, inputs, policy, batch.entropy)[0], policy), inputs["advantages"]

    return live


def verl(batch, advantages, **config):
    """Loss and gradient by verl on these advantages."""
    policy = batch.policy_logprobs.clone().requires_grad_()
    return with_grad(verl_loss(batch, policy, advantages, **config)[0], policy)


def ours(batch, name, **changes):
    result = evaluate(batch.inputs(), replace(preset(name).convention(), **changes))
    return result.terms.loss, result.grad


def assert_equal(left, right, relative=1e-10):
    """Relative to the larger of the number and 2: advantages are within ±2, so a loss near 0 may be a sum of such terms."""
    for one, other in zip(left, right, strict=True):
        assert (one - other).abs().max() <= relative * (other.abs().max() + 2), (one, other)


@FIFTY
@given(loss_batches(), st.sampled_from(CEILINGS))
def test_trls_delta_is_verls_dual_clip(trl, batch, ceiling):
    require("verl", PEERS)
    theirs, advantages = trl(batch, delta=ceiling)
    assert_equal(theirs, verl(batch, advantages.unsqueeze(1).expand_as(batch.mask), clip_ratio_c=ceiling))


@FIFTY
@given(loss_batches(), st.sampled_from(CEILINGS))
def test_our_two_sided_clip_is_our_dual_clip(batch, ceiling):
    two_sided = ours(batch, "trl/delta", dual_clip=ceiling, advantage_eps=1e-6)
    assert_equal(two_sided, ours(batch, "verl", dual_clip=ceiling))


@FIFTY
@given(loss_batches())
def test_verl_without_dual_clip_is_rolls_token_mean_and_slimes_mean_per_token(batch):
    require("verl", PEERS)
    advantages = evaluate(batch.inputs(), preset("verl").convention()).advantages
    theirs = verl(batch, advantages, clip_ratio_c=1e9)
    for name in ("verl/no-dual-clip", "roll/token-mean", "slime/per-token"):
        assert_equal(ours(batch, name), theirs)


@FIFTY
@given(loss_batches(), st.sampled_from([3e-4, 0.2]))
def test_gspo_token_is_gspo_under_sequence_means(trl, batch, clip):
    """verl's ratio has each token's own gradient, TRL's the row's mean: the same sum over a row whose A is one number."""
    require("verl", PEERS)
    theirs, advantages = trl(batch, loss_type="grpo", importance_sampling_level="sequence", epsilon=clip)
    settings = {"loss_mode": "gspo", "loss_agg_mode": "seq-mean-token-mean", "clip_ratio_low": clip, "clip_ratio_high": clip}
    same = advantages.unsqueeze(1).expand_as(batch.mask)
    assert_equal(verl(batch, same, **settings), theirs, 1e-7)  # verl divides by tokens + 1e-8
    bounds = {"clip_low": clip, "clip_high": clip, "advantage_eps": 1e-4}
    for name in ("trl/gspo", "verl/gspo-seq-mean"):
        assert_equal(ours(batch, name, **bounds), theirs)


@FIFTY
@given(loss_batches())
def test_the_bias_corrected_k3_has_the_gradient_ratio_times_log_ratio_to_the_reference(trl, batch):
    batch = replace(batch, rewards=torch.zeros_like(batch.rewards))  # no advantage: the KL alone is left
    ratio = (batch.policy_logprobs - batch.old_logprobs).exp()
    expected = ratio * (batch.policy_logprobs - batch.ref_logprobs) / batch.mask.sum()  # 0 in the padding
    (_, theirs), _ = trl(batch, beta=1.0)
    _, grad = ours(batch, "trl/kl", beta=1.0)
    # k3 + k3' = (e^d - 1 - d) + (1 - e^d): what cancels is as large as ratio · e^d
    size = (ratio * (batch.ref_logprobs - batch.policy_logprobs).exp() * batch.mask).max()
    for found in (theirs, grad):
        assert (found - expected).abs().max() <= 1e-14 * (size + 1)
