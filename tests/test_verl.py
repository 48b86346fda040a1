"""Every verl preset against verl's own functions on random batches: advantages, loss and gradient, in fp64."""

from dataclasses import replace

import pytest
import torch
from batches import DrawnBatch, loss_batches
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from peers import PEERS, require
from trainers import assert_same, verl_advantages, verl_kl, verl_loss, verl_policy_loss, verl_weights, with_grad

from grpo_core.compare import evaluate
from grpo_core.kl import KL
from grpo_core.presets import PRESETS, preset

pytestmark = pytest.mark.usefixtures("fp64")

FIFTY = settings(max_examples=50, deadline=None, derandomize=True, database=None)
TINY = 1e-7  # verl's means divide by the count + 1e-8, and geo_mean raises e to one
KL_LOSS = {"use_kl_loss": True, "kl_loss_coef": 0.04, "kl_loss_type": "low_var_kl"}
GSPO = {"loss_mode": "gspo", "clip_ratio_low": 3e-4, "clip_ratio_high": 4e-4}
SEQUENCE_MEAN, SUM_NORM = {"loss_agg_mode": "seq-mean-token-mean"}, {"loss_agg_mode": "seq-mean-token-sum-norm"}
LIVE = {  # preset -> verl's actor settings
    "verl": {},
    "verl/kl-example": KL_LOSS | {"kl_loss_coef": 0.001},
    "verl/kl": KL_LOSS,
    "verl/kl-straight-through": KL_LOSS | {"kl_loss_type": "k3+"},
    "verl/kl-in-reward": {},
    "verl/seq-mean-token-mean": SEQUENCE_MEAN,
    "verl/seq-mean-token-sum-norm": SUM_NORM,
    "verl/no-dual-clip": {"clip_ratio_c": 1e9},
    "verl/gspo": GSPO,
    "verl/gspo-seq-mean": GSPO | SEQUENCE_MEAN,
    "verl/cispo": {"loss_mode": "cispo"},
    "verl/sapo": {"loss_mode": "sapo"},
    "verl/dppo_tv": {"loss_mode": "dppo_tv"},
    "verl/dppo_kl": {"loss_mode": "dppo_kl"},
    "verl/geo_mean": {"loss_mode": "geo_mean", "clip_ratio_low": 0.4, "clip_ratio_high": 0.4},
    "verl/clip_cov": {"loss_mode": "clip_cov"},
    "verl/kl_cov": {"loss_mode": "kl_cov"},
    "verl/gpg": {"loss_mode": "gpg"},
    "verl/dr_grpo": SUM_NORM,
    "verl/rloo": {},
    "verl/reinforce++": {},
    "verl/reinforce++-baseline": {},
    "verl/tis": {},
    "verl/icepop": {},
    "verl/sequence-is": {},
}
ESTIMATORS = {  # preset -> adv_estimator and its settings, where it is not grpo
    "verl/kl-in-reward": ("grpo", {"reward_kl": 0.001}),
    "verl/dr_grpo": ("grpo", {"norm_adv_by_std_in_grpo": False}),
    "verl/rloo": ("rloo", {}),
    "verl/reinforce++": ("reinforce_plus_plus", {}),
    "verl/reinforce++-baseline": ("reinforce_plus_plus_baseline", {}),
}
ROLLOUT_IS = {"verl/tis": ("token", 2.0), "verl/icepop": ("token", "0.5_2.0"), "verl/sequence-is": ("sequence", 2.0)}


@pytest.fixture(scope="module")
def verl():
    require("verl", PEERS)
    import ray
    import verl.trainer.ppo.core_algos

    yield verl
    assert not ray.is_initialized()


def live(name, batch, advantages):
    """verl's loss and gradient of a preset, on these advantages."""
    policy = batch.policy_logprobs.clone().requires_grad_()
    weights = verl_weights(batch, *ROLLOUT_IS[name]) if name in ROLLOUT_IS else None
    torch.manual_seed(0)  # clip_cov draws
    return with_grad(verl_loss(batch, policy, advantages, weights, **LIVE[name])[0], policy)


def has_a_number(name, batch, advantages):
    """Whether verl computes one at all, and the same one each time: the exceptions have tests below."""
    if name == "verl/icepop":
        return bool(((batch.old_logprobs - batch.sampler_logprobs).abs() < 0.69)[batch.mask].any())
    return name != "verl/kl_cov" or covariances_differ(batch, advantages)


def covariances_differ(batch, advantages):
    """Among equal covariances kl_cov takes any."""
    values, logprobs = advantages[batch.mask], batch.policy_logprobs[batch.mask]
    top = ((values - values.mean()) * (logprobs - logprobs.mean())).sort(descending=True).values[:2]
    return len(top) < 2 or bool(top[0] - top[1] > 1e-9)


def test_every_preset_of_verl_is_compared():
    assert set(LIVE) == {name for name, row in PRESETS.items() if row.trainer == "verl"}


def rounding(batch, whitened):
    """What advantages may differ by: rounded rewards are divided by a spread that is small next to them."""
    largest = float(batch.rewards.abs().max())
    if not whitened:
        return 1e-9 + 2e-15 * largest / 1e-6
    spread = float(batch.rewards.unsqueeze(1).expand_as(batch.mask)[batch.mask].std())
    return 1e-9 + 2e-8 * largest / (spread + 1e-4)  # verl's mean is off by 1e-8 / tokens


@pytest.mark.parametrize("name", LIVE)
def test_verl_has_the_same_advantages_loss_and_gradient(verl, name):
    estimator, config = ESTIMATORS.get(name, ("grpo", {}))
    whitened = "reinforce" in estimator

    @FIFTY
    @given(loss_batches(uneven=True))
    def compare(batch):
        assume(not whitened or int(batch.mask.sum()) > 1)
        ours = evaluate(batch.inputs(), preset(name).convention())
        theirs = verl_advantages(estimator, batch, **config)
        torch.testing.assert_close(
            torch.where(batch.mask, ours.advantages, 0.0), theirs, rtol=1e-9, atol=rounding(batch, whitened)
        )
        assume(has_a_number(name, batch, ours.advantages))
        assert_same(live(name, batch, ours.advantages), ours, TINY)

    compare()


@pytest.mark.parametrize(("theirs", "ours"), {"k1": "k1", "abs": "abs", "k2": "k2", "low_var_kl": "k3"}.items())
def test_verl_estimates_the_same_kl(verl, theirs, ours):
    x = torch.linspace(-2, 2, 41, dtype=torch.float64)
    torch.testing.assert_close(KL[ours](x), verl_kl(x, torch.zeros_like(x), theirs), rtol=1e-12, atol=1e-12)


# ---- where verl has no number, or another one -----------------------------------------------------------------------------
@settings(FIFTY, max_examples=150)
@given(st.sampled_from(list(LIVE)), loss_batches(alone=True, uneven=True, far=True, garbage=True))
def test_a_preset_stays_finite_in_fp32_with_far_ratios_and_garbage_in_the_padding(name, batch):
    ours = evaluate(batch.fp32().inputs(), preset(name).convention())
    assert ours.terms.loss.isfinite() and ours.grad.isfinite().all()


def two_rows(gap=0.0, padding=0.0, rewards=(1.0, 0.0), tokens=(2, 1)):
    """One group of two rows. Every token is `gap` nats more likely than before."""
    mask = torch.arange(2) < torch.tensor(tokens).unsqueeze(1)
    policy, old = torch.where(mask, -1.0, padding), torch.where(mask, -1.0 - gap, padding)
    zeros, rows = torch.zeros_like(policy), torch.zeros(2).long()
    return DrawnBatch(policy, old, policy, old, zeros, mask, torch.tensor(rewards), rows, rows.bool())


def test_verl_gives_nan_without_a_token_and_ours_is_zero(verl):
    batch = two_rows(tokens=(0, 0))
    ours = evaluate(batch.inputs(), preset("verl").convention())
    assert live("verl", batch, ours.advantages)[0].isnan()
    assert ours.terms.loss == 0 and not ours.grad.any()


def test_verl_refuses_to_whiten_one_token_and_ours_stays_as_it_is(verl):
    batch = two_rows(tokens=(1, 0))
    with pytest.raises(ValueError, match="sum of the mask is one"):
        verl_advantages("reinforce_plus_plus", batch)
    assert evaluate(batch.inputs(), preset("verl/reinforce++").convention()).advantages[0, 0] == 1


def test_verl_fails_where_icepop_drops_every_token_and_ours_is_zero(verl):
    batch = replace(two_rows(), sampler_logprobs=torch.full((2, 2), -9.0))
    with pytest.raises(ZeroDivisionError):
        verl_weights(batch, "token", "0.5_2.0")
    assert evaluate(batch.inputs(), preset("verl/icepop").convention()).terms.loss == 0


@pytest.mark.parametrize("mode", ["gspo", "geo_mean"])
def test_verl_gives_nan_where_padding_holds_a_nan_and_ours_does_not_read_it(verl, mode):
    clean, dirty = two_rows(gap=1e-4), two_rows(gap=1e-4, padding=float("nan"))
    ours, expected = (evaluate(batch.inputs(), preset(f"verl/{mode}").convention()) for batch in (dirty, clean))
    theirs = verl_policy_loss(mode, dirty.policy_logprobs, dirty.old_logprobs, ours.advantages, dirty.mask)[0]
    assert theirs.isnan()
    assert torch.equal(ours.terms.loss, expected.terms.loss) and torch.equal(ours.grad, expected.grad)


@pytest.mark.parametrize(("gap", "allowed"), [(12.0, 1e-9), (-12.0, 1e-4)])
def test_verl_bounds_gspos_ratio_at_e_to_the_10_from_above_and_ours_from_both_sides(verl, gap, allowed):
    batch = two_rows(gap=gap)
    ours = evaluate(batch.inputs(), preset("verl/gspo").convention())
    loss, grad = live("verl/gspo", batch, ours.advantages)
    assert abs(float(loss - ours.terms.loss)) <= allowed and float((grad - ours.grad).abs().max()) <= allowed


@pytest.mark.parametrize("mode", ["clip_cov", "kl_cov"])
def test_verl_gives_nan_where_an_infinite_ratio_meets_equal_rewards_and_ours_stays_finite(verl, mode):
    batch = two_rows(gap=90.0, rewards=(1.0, 1.0)).fp32()
    ours = evaluate(batch.inputs(), preset(f"verl/{mode}").convention())
    loss, grad = live(f"verl/{mode}", batch, ours.advantages)
    assert not ours.advantages.any() and not (loss.isfinite() and grad.isfinite().all())
    assert ours.terms.loss.isfinite() and ours.grad.isfinite().all()


def test_verl_rounds_equal_rewards_to_an_advantage_in_fp32_and_ours_is_zero(verl):
    batch = replace(two_rows(), **{name: v[[0, 0, 0]] for name, v in vars(two_rows(rewards=(0.9, 0.9))).items()}).fp32()
    assert 0.05 < float(verl_advantages("grpo", batch).abs().max()) < 0.06
    assert not evaluate(batch.inputs(), preset("verl").convention()).advantages.any()
