"""Every TRL preset against TRL's own GRPOTrainer on random batches: advantages, loss and gradient, in fp64."""

from dataclasses import replace

import pytest
import torch
from batches import DrawnBatch, loss_batches
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from peers import require
from trainers import assert_same, trl_inputs, trl_loss, trl_trainer, with_grad

from grpo_core.compare import evaluate
from grpo_core.presets import PRESETS, preset

pytestmark = pytest.mark.usefixtures("fp64")

FIFTY = settings(max_examples=50, deadline=None, derandomize=True, database=None)
TWENTY_FIVE = settings(FIFTY, max_examples=25)
ALLOWED = 20  # max_completion_length, more than any row has
SEQUENCE = {"importance_sampling_level": "sequence"}
LIVE = {  # preset -> GRPOConfig
    "trl": {},
    "trl/grpo": {"loss_type": "grpo"},
    "trl/bnpo": {"loss_type": "bnpo"},
    "trl/dr_grpo": {"loss_type": "dr_grpo", "scale_rewards": "none"},
    "trl/kl": {"beta": 0.04},
    "trl/kl-plain": {"beta": 0.04, "use_bias_correction_kl": False},
    "trl/clip-higher": {"epsilon_high": 0.28},
    "trl/delta": {"delta": 2.0},
    "trl/cispo": {"loss_type": "cispo", "epsilon_high": 5.0},
    "trl/cispo-unset": {"loss_type": "cispo"},
    "trl/sapo": {"loss_type": "sapo"},
    "trl/vespo": {"loss_type": "vespo"},
    "trl/gspo": {"loss_type": "grpo", "epsilon": 3e-4, "epsilon_high": 4e-4} | SEQUENCE,
    "trl/luspo": {"loss_type": "luspo", "epsilon": 2e-3, "epsilon_high": 2.5e-3} | SEQUENCE,
    "trl/mask-truncated": {"mask_truncated_completions": True},
    "trl/scale-batch": {"scale_rewards": "batch"},
    "trl/top-entropy": {"top_entropy_quantile": 0.2},
    "trl/off-policy-mask": {"off_policy_mask_threshold": 0.3},
    "trl/vllm": {"use_vllm": True},
}
MIXED = {  # combinations that are no preset: GRPOConfig, preset, changes
    "gspo with KL": (LIVE["trl/gspo"] | {"beta": 0.04}, "trl/gspo", {"beta": 0.04}),
    "luspo with KL": (LIVE["trl/luspo"] | {"beta": 0.04}, "trl/luspo", {"beta": 0.04}),
    "entropy bonus": ({"entropy_coef": 0.01, "loss_type": "grpo"}, "trl/grpo", {"entropy_coef": 0.01}),
    "delta below the clip": ({"delta": 1.1}, "trl/delta", {"dual_clip": 1.1}),
    "cispo with KL": (LIVE["trl/cispo"] | {"beta": 0.04}, "trl/cispo", {"beta": 0.04}),
}


@pytest.fixture(scope="module")
def trainer_of(model_folder):
    require("trl")
    return lambda config: trl_trainer(model_folder, max_completion_length=ALLOWED, **config)


def live(trainer, batch):
    """TRL's loss and gradient of a batch as one optimizer step."""
    policy = batch.policy_logprobs.clone().requires_grad_()
    inputs = trl_inputs(trainer, batch)
    loss, _ = trl_loss(trainer, inputs, policy, batch.entropy)
    return with_grad(loss, policy), inputs["advantages"]


def test_every_preset_of_this_version_is_compared():
    assert set(LIVE) == {name for name, row in PRESETS.items() if row.trainer == "TRL" and row.version == "1.16.0"}


@pytest.mark.parametrize("name", LIVE)
def test_trl_has_the_same_advantages_loss_and_gradient(trainer_of, name):
    trainer = trainer_of(LIVE[name])

    @FIFTY
    @given(loss_batches())
    def compare(batch):
        theirs, advantages = live(trainer, batch)
        ours = evaluate(batch.inputs(ALLOWED), preset(name).convention())
        torch.testing.assert_close(ours.advantages[:, 0], advantages, rtol=1e-12, atol=1e-9)
        assert_same(theirs, ours, 1e-10)

    compare()


@pytest.mark.parametrize("name", MIXED)
def test_trl_has_the_same_loss_and_gradient_where_settings_are_combined(trainer_of, name):
    config, row, changes = MIXED[name]
    trainer = trainer_of(config)

    @TWENTY_FIVE
    @given(loss_batches())
    def compare(batch):
        theirs, _ = live(trainer, batch)
        assert_same(theirs, evaluate(batch.inputs(ALLOWED), replace(preset(row).convention(), **changes)), 1e-10)

    compare()


@pytest.mark.parametrize("name", ["trl", "trl/bnpo", "trl/dr_grpo", "trl/gspo"])
def test_trl_sums_two_micro_batches_to_the_same_loss_and_gradient(trainer_of, name):
    trainer = trainer_of(LIVE[name] | {"gradient_accumulation_steps": 2})

    @TWENTY_FIVE
    @given(loss_batches())
    def compare(batch):
        half = len(batch.mask) // 2
        assume(2 * half == len(batch.mask))  # TRL's micro-batches are of one size
        splits = [list(range(half)), list(range(half, 2 * half))]
        policy = batch.policy_logprobs.clone().requires_grad_()
        inputs = trl_inputs(trainer, batch)
        parts = [{key: v if v.dim() == 0 else v[rows] for key, v in inputs.items()} for rows in splits]
        losses = [
            trl_loss(trainer, part, policy[rows], batch.entropy[rows])[0] for part, rows in zip(parts, splits, strict=True)
        ]
        ours = evaluate(batch.inputs(ALLOWED), preset(name).convention(), splits)
        assert_same(with_grad(torch.stack(losses).sum(), policy), ours, 1e-10)

    compare()


# ---- where TRL has no number ----------------------------------------------------------------------------------------------
@settings(FIFTY, max_examples=150)
@given(st.sampled_from(list(LIVE)), loss_batches(alone=True, uneven=True, far=True, garbage=True))
def test_a_preset_stays_finite_in_fp32_with_far_ratios_and_garbage_in_the_padding(name, batch):
    ours = evaluate(batch.fp32().inputs(ALLOWED), preset(name).convention())
    assert ours.terms.loss.isfinite() and ours.grad.isfinite().all()


def one_group(rewards, gap=0.0, padding=0.0):
    """Two rows of two tokens; the second ends in padding. Every token is `gap` nats more likely than before."""
    mask = torch.tensor([[True, True], [True, False]])
    policy = torch.where(mask, -1.0, padding)
    old, zeros = torch.where(mask, policy - gap, padding), torch.zeros_like(policy)
    rewards, rows = torch.tensor(rewards), torch.zeros(2).long()
    return DrawnBatch(policy, old, policy, old, zeros, mask, rewards, rows, rows.bool()).fp32()


def test_trl_gives_nan_where_an_infinite_ratio_meets_equal_rewards_and_ours_stays_finite(trainer_of):
    batch = one_group([1.0, 1.0], gap=90.0)
    (loss, grad), advantages = live(trainer_of({}), batch)
    assert not advantages.any() and loss.isnan() and grad.isnan().any()
    ours = evaluate(batch.inputs(ALLOWED), preset("trl").convention())
    assert ours.terms.loss == 0 and not ours.grad.any()


def test_trl_gives_nan_where_padding_holds_a_nan_and_ours_does_not_read_it(trainer_of):
    clean, dirty = one_group([1.0, 0.0], gap=0.1), one_group([1.0, 0.0], gap=0.1, padding=float("nan"))
    (loss, grad), _ = live(trainer_of({}), dirty)
    assert loss.isnan() and grad.isnan().any()
    ours, expected = (evaluate(batch.inputs(ALLOWED), preset("trl").convention()) for batch in (dirty, clean))
    assert torch.equal(ours.terms.loss, expected.terms.loss) and torch.equal(ours.grad, expected.grad)


def test_trl_refuses_groups_of_one_and_ours_have_no_advantage(trainer_of):
    from accelerate import Accelerator
    from trl import GRPOConfig

    with pytest.raises(ValueError, match="at least 2 generations"):
        GRPOConfig(num_generations=1, use_cpu=True, bf16=False)
    Accelerator(cpu=True)  # the refused config has reset the state that all trainers of the process share
    batch = replace(one_group([1.0, 0.0], gap=0.1), group_ids=torch.arange(2))
    assert not evaluate(batch.inputs(ALLOWED), preset("trl").convention()).advantages.any()


def test_trl_rounds_equal_rewards_to_an_advantage_in_fp32_and_ours_is_zero(trainer_of):
    torch.set_default_dtype(torch.float32)  # as in training
    try:
        batch = one_group([0.9, 0.9])
        batch = replace(batch, **{name: v[[0, 0, 0]] for name, v in vars(batch).items()})
        _, advantages = live(trainer_of({}), batch)
        ours = evaluate(batch.inputs(ALLOWED), preset("trl").convention()).advantages
    finally:
        torch.set_default_dtype(torch.float64)
    assert 0 < float(advantages.abs().max()) < 1e-3 and not ours.any()
