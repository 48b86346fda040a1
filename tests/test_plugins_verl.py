"""Conventions in verl's own registries, in fp64: against verl's functions, against ours, and through verl's actor loss."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from batches import loss_batches
from hypothesis import assume, given, settings
from peers import PEERS, require
from test_verl import ESTIMATORS, LIVE, has_a_number, rounding
from trainers import assert_same, verl_advantages, verl_config, verl_loss, verl_policy_loss, verl_weights, with_grad

from grpo_core import policy_loss
from grpo_core.compare import evaluate
from grpo_core.convention import LossConfig, part
from grpo_core.presets import PRESETS, preset

pytestmark = pytest.mark.usefixtures("fp64")

TWENTY = settings(max_examples=20, deadline=None, derandomize=True, database=None)
TINY = 1e-7  # verl's means divide by the count + 1e-8
NEEDS = {  # preset of verl -> what of it is verl's own job
    "verl/kl-example": "ref_logprobs", "verl/kl": "ref_logprobs", "verl/kl-straight-through": "ref_logprobs",
    "verl/kl-in-reward": "reward_kl", "verl/tis": "sampler_logprobs", "verl/icepop": "sampler_logprobs",
    "verl/sequence-is": "sampler_logprobs",
}  # fmt: skip
OWN = [name for name in LIVE if name not in NEEDS]
OTHERS = ["paper/dr_grpo", "paper/dapo", "paper/gspo", "paper/cispo", "trl", "trl/sapo", "trl/luspo", "trl/off-policy-mask"]
REFUSED = {  # preset -> the message
    "paper/grpo": "ref_logprobs: found none at its policy loss; set beta 0 and turn on verl's use_kl_loss",
    "trl/vllm": "sampler_logprobs: found none at its policy loss; set correction 'none'",
    "trl/top-entropy": "entropy: found none at its policy loss; set entropy_coef 0",
    "trl/mask-truncated": "truncated: found none at its policy loss; set mask_truncated False",
    "roll/topr": "rewards: found none at its policy loss; choose a surrogate",
    "paper/rloo": "reward_kl: found 'before', allowed: 'none'",
    "trl/bnpo": "aggregation: found 'micro-token-mean', which needs the number of micro-batches",
    "roll/seq-mean-token-sum-norm": "aggregation: found 'sum-over-width', which needs the width of the prompts",
    "roll": "count_empty_rows: found False, allowed: True",
    "liger/luspo-token": "count_padding: found True, allowed: False",
    "verl/gsop": "preset: found 'verl/gsop'",
} | {name: f"{field}: found" for name, field in NEEDS.items()}  # fmt: skip


@pytest.fixture(scope="module")
def register():
    require("verl", PEERS)
    import ray
    from verl.trainer.ppo import core_algos

    from grpo_core.plugins.verl import register

    registries = core_algos.POLICY_LOSS_REGISTRY, core_algos.ADV_ESTIMATOR_REGISTRY
    before = [dict(registry) for registry in registries]
    yield register
    for registry, entries in zip(registries, before, strict=True):
        registry.clear()
        registry.update(entries)
    assert not ray.is_initialized()


def looked_up(mode, batch, advantages, **kwargs):
    """Loss and gradient by verl's registry."""
    policy = batch.policy_logprobs.clone().requires_grad_()
    torch.manual_seed(0)  # clip_cov draws
    return with_grad(verl_policy_loss(mode, policy, batch.old_logprobs, advantages, batch.mask, **kwargs)[0], policy)


# ---- the loss ---------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", OWN)
def test_a_preset_of_verl_is_verls_own_function(register, name):
    registered, chosen = register(name), dict(LIVE[name])
    mode, agg_mode = chosen.pop("loss_mode", "vanilla"), chosen.pop("loss_agg_mode", "token-mean")

    @TWENTY
    @given(loss_batches(empty=False))
    def compare(batch):
        ours = evaluate(batch.inputs(), preset(name).convention())
        assume(has_a_number(name, batch, ours.advantages))
        theirs = looked_up(mode, batch, ours.advantages, agg_mode=agg_mode, **chosen)
        got = looked_up(registered, batch, ours.advantages, agg_mode=agg_mode)
        assert_same(theirs, ours, TINY)
        assert_same(got, ours, 1e-12)

    compare()


@pytest.mark.parametrize("name", OTHERS)
def test_any_other_preset_is_policy_loss(register, name):
    registered, config = register(name), part(LossConfig, preset(name).convention())

    @TWENTY
    @given(loss_batches())
    def compare(batch):
        advantages = evaluate(batch.inputs(), preset(name).convention()).advantages
        policy, nothing = batch.policy_logprobs.clone().requires_grad_(), torch.zeros_like(batch.policy_logprobs)
        length = replace(config, max_completion_length=batch.mask.shape[1])
        terms = policy_loss(policy, batch.old_logprobs, nothing, advantages, batch.mask, nothing, length)
        loss, grad = looked_up(registered, batch, advantages)
        assert float(loss) == pytest.approx(float(terms.loss.detach()), rel=1e-12, abs=1e-12)
        torch.testing.assert_close(grad, torch.autograd.grad(terms.loss, policy)[0])

    compare()


@pytest.mark.parametrize("name", ["verl", "verl/gspo", "paper/dr_grpo", "paper/gspo"])
def test_verls_whole_actor_loss_takes_it_with_its_own_kl_and_entropy(register, name):
    registered = register(name)
    convention = replace(preset(name).convention(), beta=0.04, kl_output_bound=10.0, entropy_coef=0.01)
    convention = replace(convention, kl_aggregation="token-mean", entropy_aggregation="token-mean")
    actor = {"use_kl_loss": True, "kl_loss_coef": 0.04, "kl_loss_type": "low_var_kl", "entropy_coeff": 0.01}

    @TWENTY
    @given(loss_batches())
    def compare(batch):
        ours = evaluate(batch.inputs(), convention)
        policy = batch.policy_logprobs.clone().requires_grad_()
        loss, metrics = verl_loss(batch, policy, ours.advantages, loss_mode=registered, **actor)
        assert_same(with_grad(loss, policy), ours, TINY)
        clipped = (ours.terms.is_clipped & batch.mask).sum() / batch.mask.sum()
        assert metrics["actor/grpo_core/clip_fraction"].values == [pytest.approx(float(clipped))]

    compare()


@pytest.mark.parametrize("name", ["verl", "paper/dr_grpo", "paper/gspo", "trl/luspo"])
def test_micro_batches_and_workers_add_up_to_the_mini_batch(register, name):
    """Two workers of one micro-batch each: their gradients are averaged, so each gives twice its share."""
    from verl.trainer.ppo.core_algos import get_policy_loss_fn

    loss_of, convention = get_policy_loss_fn(register(name)), preset(name).convention()

    @TWENTY
    @given(loss_batches())
    def compare(batch):
        assume(len(batch.mask) > 1)
        ours = evaluate(batch.inputs(max_completion_length=20), convention)
        config = verl_config()
        config.global_batch_info.update(
            dp_size=2, batch_num_tokens=int(batch.mask.sum()), global_batch_size=len(batch.mask), loss_scale_factor=20
        )
        policy = batch.policy_logprobs.clone().requires_grad_()
        shares = [
            loss_of(
                old_log_prob=batch.old_logprobs[rows], log_prob=policy[rows], advantages=ours.advantages[rows],
                response_mask=batch.mask[rows], loss_agg_mode="token-mean", config=config, rollout_is_weights=None,
            )[0]
            for rows in (slice(0, 1), slice(1, None))
        ]  # fmt: skip
        assert_same(with_grad(torch.stack(shares).mean(), policy), ours, 1e-12)

    compare()


def test_workers_without_totals_are_refused_as_verl_does(register):
    from verl.trainer.ppo.core_algos import get_policy_loss_fn

    config, one = verl_config(), torch.zeros(1, 1)
    config.global_batch_info.update(dp_size=2, batch_num_tokens=None, global_batch_size=4)
    with pytest.raises(ValueError, match="needed with dp_size above 1"):
        get_policy_loss_fn(register("verl"))(one, one, one, one.bool(), config=config)


@TWENTY
@given(loss_batches())
def test_verls_weights_against_the_sampler_multiply_each_token(register, batch):
    ours = evaluate(batch.inputs(), preset("verl/tis").convention())
    weights = torch.where(batch.mask, verl_weights(batch, "token", 2.0), torch.nan)
    policy = batch.policy_logprobs.clone().requires_grad_()
    loss, _ = verl_loss(batch, policy, ours.advantages, weights, loss_mode=register("verl"))
    assert_same(with_grad(loss, policy), ours, TINY)


# ---- the advantages ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", ["verl", "verl/rloo", "verl/reinforce++", "verl/reinforce++-baseline", "paper/dr_grpo"])
def test_the_estimator_gives_the_conventions_advantages(register, name):
    registered, convention = register(name), preset(name).convention()
    estimator, config = ESTIMATORS.get(name, ("grpo", {}))

    @TWENTY
    @given(loss_batches(uneven=True))
    def compare(batch):
        whitened = convention.advantage_whiten != "none"
        assume(not whitened or int(batch.mask.sum()) > 1)
        got = verl_advantages(registered, batch)
        expected = torch.where(batch.mask, evaluate(batch.inputs(), convention).advantages, 0.0)
        has_reward = batch.mask  # a row without a token has none in verl
        torch.testing.assert_close(got[has_reward], expected[has_reward], rtol=1e-9, atol=1e-9)
        if name.startswith("verl"):
            theirs = verl_advantages(estimator, batch, **config)
            torch.testing.assert_close(got, theirs, rtol=1e-9, atol=rounding(batch, whitened))

    compare()


def test_groups_are_verls_uids(register):
    from verl.trainer.ppo.core_algos import get_adv_estimator_fn

    of = get_adv_estimator_fn(register("verl/dr_grpo"))
    rewards, mask = torch.tensor([[0.0, 1.0], [3.0, 0.0], [5.0, 0.0]]), torch.tensor([[1, 1], [1, 0], [1, 0]])
    advantages, returns = of(token_level_rewards=rewards, response_mask=mask, index=["b", "a", "b"], config=None)
    assert torch.equal(advantages, torch.tensor([[-2.0, -2.0], [3.0, 0.0], [2.0, 0.0]])) and advantages is returns


# ---- the registries ---------------------------------------------------------------------------------------------------------
def test_a_name_stands_for_one_convention(register):
    from verl.trainer.ppo.core_algos import get_adv_estimator_fn, get_policy_loss_fn

    convention = replace(preset("paper/grpo").convention(), beta=0.0)
    assert register("mine", convention) == register("mine", convention) == "grpo_core:mine"
    assert get_policy_loss_fn("grpo_core:mine").config == part(LossConfig, convention)
    with pytest.raises(ValueError, match="grpo_core:mine has already been registered"):
        register("mine", replace(convention, advantage_std="none"))
    with pytest.raises(ValueError, match="grpo_core:mine: found another policy loss of that name"):
        register("mine", replace(convention, clip_high=0.3))
    assert get_policy_loss_fn("grpo_core:mine").config == part(LossConfig, convention)
    assert get_adv_estimator_fn("grpo_core:mine").config.advantage_std == "unbiased"


@pytest.mark.parametrize("name", REFUSED)
def test_what_verls_hook_is_not_given_is_refused(register, name):
    from verl.trainer.ppo.core_algos import ADV_ESTIMATOR_REGISTRY, POLICY_LOSS_REGISTRY

    with pytest.raises(ValueError, match=REFUSED[name]) as refused:
        register(name)
    assert "\n" not in str(refused.value)
    assert f"grpo_core:{name}" not in POLICY_LOSS_REGISTRY | ADV_ESTIMATOR_REGISTRY


def test_every_preset_is_registered_or_refused_in_one_line(register):
    registered = []
    for name in PRESETS:
        try:
            registered.append(register(name))
        except ValueError as refused:
            assert "\n" not in str(refused)
    assert len(registered) > 50


def test_the_core_imports_no_trainer():
    code = "import sys, grpo_core, grpo_core.plugins, grpo_core.presets; print({'trl', 'verl', 'ray'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parent.parent, capture_output=True, text=True)
    assert done.stdout.strip() == "set()", done.stderr
