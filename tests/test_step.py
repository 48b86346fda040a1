"""The one step: reproducible, equal to a plain training loop, and exact about what it leaves alone."""

from dataclasses import replace

import pytest
import torch
from builders import same_weights, weights_of
from peers import require

from grpo_core import AdaptersOff, Policy, Totals, grpo_step, policy_loss, replay, reweigh, sample, score_tokens, to_batch
from grpo_core.closed_forms import closed_form_logprob_grad
from grpo_core.step import advantages_of, make_optimizer

TENSORS_OF_AN_UPDATE = ("ratio", "token_loss", "token_weight", "kl", "entropy", "loss")


def run(policy, rollout, recipe, reference=None):
    """The step on a copy: (the copy afterwards, the trace)."""
    copy = policy.clone()
    return copy, grpo_step(copy, reference or policy, rollout, recipe)


def row_advantages(rollout, recipe):
    """The step's advantages; without a KL in the reward they need no log-probs."""
    batch = to_batch(rollout, recipe.layout)
    nothing = torch.zeros_like(batch.sampler_logprobs)
    return advantages_of(rollout, batch, nothing, nothing, recipe)[0]


def test_the_same_recipe_makes_the_same_step_bit_for_bit(policy, recipe, trace, trained):
    again = sample(policy, recipe.prompts, recipe)
    copy, second = run(policy, again, recipe)
    assert same_weights(weights_of(copy), weights_of(trained))
    for left, right in zip(trace.updates, second.updates, strict=True):
        assert all(torch.equal(getattr(left.terms, n), getattr(right.terms, n)) for n in TENSORS_OF_AN_UPDATE)
        assert torch.equal(left.logprob_grad, right.logprob_grad) and left.grad_norms == right.grad_norms


def test_a_step_on_a_copy_leaves_the_loaded_weights_alone(policy, rollout, recipe):
    before = weights_of(policy)
    copy, _ = run(policy, rollout, recipe)
    assert same_weights(before, weights_of(policy)) and not same_weights(before, weights_of(copy))
    assert all(p.grad is None for p in policy.model.parameters())


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
@pytest.mark.parametrize("layout", ["prompt_completion", "sequence"])
def test_the_traced_step_is_a_plain_training_loop(policy, rollout, recipe, optimizer, layout):
    recipe = replace(recipe, optimizer=optimizer, layout=layout, updates=3, entropy_coef=0.01)
    traced, trace = run(policy, rollout, recipe)

    copy, batch = policy.clone(), to_batch(rollout, layout)
    parameters = list(copy.model.parameters())
    if optimizer == "sgd":
        stepper = torch.optim.SGD(parameters, lr=recipe.learning_rate)
    else:
        stepper = torch.optim.AdamW(parameters, lr=recipe.learning_rate, weight_decay=0.0, fused=True)
    with torch.no_grad():
        ref = score_tokens(policy, batch, recipe.temperature).logprobs
        old = score_tokens(copy, batch, recipe.temperature).logprobs
    advantages = advantages_of(rollout, batch, old, ref, recipe)[0].advantages
    for update in trace.updates:
        scored = score_tokens(copy, batch, recipe.temperature, entropy_grad=True)
        loss = policy_loss(
            scored.logprobs, old, ref, advantages, batch.trained_mask(), scored.entropy, recipe.loss_config()
        ).loss
        stepper.zero_grad()
        loss.backward()
        total = torch.nn.utils.clip_grad_norm_(parameters, recipe.max_grad_norm)
        stepper.step()
        assert torch.equal(loss.detach(), update.terms.loss)
        assert float(total) == pytest.approx(update.grad_norm, rel=1e-5)
    assert same_weights(weights_of(copy), weights_of(traced))


def test_the_trace_holds_no_graph_and_no_weights(trace, policy):
    tensors = [v for update in trace.updates for v in (*vars(update.terms).values(), update.logprob_grad, update.hidden)]
    assert not any(t.requires_grad for t in [*tensors, trace.old_logprobs, trace.ref_logprobs, trace.ref_hidden])
    addresses = {p.data_ptr() for p in policy.model.parameters()}
    assert not any(t.data_ptr() in addresses for t in tensors)


def test_the_first_ratio_is_exactly_1_and_later_ones_are_not(trace):
    mask = trace.batch.trained_mask()
    first, second = (update.terms for update in trace.updates)
    assert (first.ratio[mask] == 1).all() and (first.kl == 0).all()
    assert (second.ratio[mask] != 1).any() and (second.kl[mask] > 0).any()
    assert torch.equal(first.policy_logprobs, trace.old_logprobs)
    assert torch.equal(second.policy_logprobs - trace.old_logprobs, second.log_ratio)


def test_one_update_after_another_optimizer_step_is_still_ratio_1(policy, rollout, recipe):
    copy, _ = run(policy, rollout, replace(recipe, updates=1))
    second = grpo_step(copy, policy, rollout, replace(recipe, updates=1))
    assert (second.updates[0].terms.ratio[second.batch.trained_mask()] == 1).all()
    assert second.updates[0].terms.kl.max() > 0  # old is the start of this step, the reference the start of all


def test_an_optimizer_that_is_handed_in_keeps_its_state(policy, rollout, recipe):
    copy = policy.clone()
    optimizer = make_optimizer(copy, recipe)
    for _ in range(2):
        grpo_step(copy, policy, rollout, replace(recipe, updates=1), optimizer)
    assert {float(state["step"]) for state in optimizer.state.values()} == {2.0}


def test_without_a_reference_the_kl_is_taken_to_the_start(policy, rollout, recipe):
    trace = grpo_step(policy.clone(), None, rollout, recipe)
    assert trace.ref_hidden is None and torch.equal(trace.ref_logprobs, trace.old_logprobs)


CHANGES = [
    {"aggregation": "token-mean"},
    {"surrogate": "dual-clip", "clip_low": 0.0, "clip_high": 0.0},
    {"advantage_std": "none", "beta": 0.5, "kl_estimator": "k2"},
    {"layout": "sequence", "ratio": "sequence"},
    {"edited_rewards": ((0, 0, 5.0), (4, 0, None))},
]


@pytest.mark.parametrize("change", CHANGES)
def test_reweighing_equals_the_first_update_of_the_full_step(policy, rollout, trace, recipe, change):
    changed = replace(recipe, **change)
    full, quick = run(policy, rollout, changed)[1], reweigh(trace, changed)
    (update,) = quick.updates
    for name in (*TENSORS_OF_AN_UPDATE, "is_clipped", "policy_logprobs"):
        assert torch.equal(getattr(update.terms, name), getattr(full.updates[0].terms, name)), name
    assert torch.equal(update.logprob_grad, full.updates[0].logprob_grad)
    assert torch.equal(quick.advantages.advantages, full.advantages.advantages)
    assert quick.batch.layout == changed.layout and torch.equal(quick.ref_logprobs, full.ref_logprobs)
    assert not update.applied and update.grad_norms == {}


def test_reweighing_to_the_other_layout_and_back_changes_nothing(trace, recipe):
    there = reweigh(trace, replace(recipe, layout="sequence"))
    back = reweigh(there, recipe)
    assert torch.equal(back.old_logprobs, trace.old_logprobs)
    assert torch.equal(back.updates[0].logprob_grad, trace.updates[0].logprob_grad)


@pytest.mark.parametrize("change", [{"seed": 2}, {"temperature": 0.5}, {"group_size": 2, "edited_rewards": ()}])
def test_reweighing_refuses_a_recipe_that_samples_otherwise(trace, recipe, change):
    with pytest.raises(ValueError, match="sampling settings"):
        reweigh(trace, replace(recipe, **change))


def test_replay_gives_the_weights_between_the_updates(policy, rollout, recipe, trace, trained):
    assert same_weights(weights_of(replay(policy, rollout, recipe, 0)), weights_of(policy))
    assert same_weights(weights_of(replay(policy, rollout, recipe, 2)), weights_of(trained))
    between = score_tokens(replay(policy, rollout, recipe, 1), trace.batch, recipe.temperature).logprobs
    assert torch.equal(between.detach(), trace.updates[1].terms.policy_logprobs)


@pytest.fixture(scope="module")
def adapted(policy):
    """The model with LoRA adapters that already say something."""
    require("peft")
    import peft

    settings = peft.LoraConfig(r=2, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM", lora_dropout=0.0)
    torch.manual_seed(1)
    model = peft.get_peft_model(policy.clone().model, settings)
    with torch.no_grad():
        for name, p in model.named_parameters():
            p.add_(0.3 * torch.randn(p.shape) if "lora_B" in name else 0.0)
    return Policy(model, policy.tokenizer, "adapted")


def test_the_reference_of_an_adapted_model_is_the_same_weights_without_adapters(policy, adapted, rollout, recipe):
    batch = to_batch(rollout, "prompt_completion")
    plain = score_tokens(policy, batch, 1.0).logprobs
    off, on = score_tokens(AdaptersOff(adapted), batch, 1.0).logprobs, score_tokens(adapted, batch, 1.0).logprobs
    assert torch.equal(off, plain) and (on - plain).abs().max() > 1e-2
    frozen = {name: p.detach().clone() for name, p in adapted.model.named_parameters() if not p.requires_grad}
    trace = grpo_step(adapted, AdaptersOff(adapted), rollout, recipe)
    assert torch.equal(trace.ref_logprobs, plain.detach()) and trace.updates[0].terms.kl.max() > 0
    assert all(torch.equal(p, frozen[name]) for name, p in adapted.model.named_parameters() if name in frozen)
    assert set(trace.updates[0].grad_norms) == {n for n, p in adapted.model.named_parameters() if p.requires_grad}


def test_a_model_without_adapters_has_none_to_switch_off(policy):
    with pytest.raises(ValueError, match="carries no PEFT adapters"):
        AdaptersOff(policy)


def test_a_nan_reward_moves_no_weight_and_is_not_hidden(policy, rollout, recipe):
    rewards = ((float("nan"),), *rollout.rewards[1:])
    recipe = replace(recipe, edited_rewards=recipe.edited_rewards[1:])
    copy, trace = run(policy, replace(rollout, rewards=rewards), recipe)
    assert [update.applied for update in trace.updates] == [False, False]
    assert same_weights(weights_of(copy), weights_of(policy))
    assert trace.updates[0].terms.loss.isnan() and trace.updates[0].grad_norm != trace.updates[0].grad_norm


def test_equal_rewards_move_nothing_but_the_kl(policy, rollout, recipe):
    flat = tuple((row, 0, 1.0) for row in range(8))
    copy, trace = run(policy, rollout, replace(recipe, edited_rewards=flat, beta=0.0))
    assert (trace.advantages.advantages == 0).all() and trace.updates[0].grad_norm == 0.0
    assert same_weights(weights_of(copy), weights_of(policy))


def test_a_group_of_one_runs_and_teaches_nothing(policy, recipe):
    recipe = replace(recipe, group_size=1, edited_rewards=((0, 0, 1.0),), beta=0.0)
    trace = run(policy, sample(policy, recipe.prompts, recipe), recipe)[1]
    assert trace.advantages.advantages.tolist() == [0.0, 0.0] and trace.updates[0].grad_norm == 0.0


def test_clip_0_and_eps_0_train_on_the_first_update_and_stop_on_the_second(policy, rollout, recipe):
    recipe = replace(recipe, clip_low=0.0, clip_high=0.0, advantage_eps=0.0, beta=0.0)
    first, second = run(policy, rollout, recipe)[1].updates
    assert not first.terms.is_clipped.any() and first.grad_norm > 0
    assert second.terms.is_clipped.any() and (second.logprob_grad[second.terms.is_clipped] == 0).all()


def test_edited_rewards_count_and_edits_off_the_table_are_refused(rollout, recipe):
    edited = row_advantages(rollout, replace(recipe, edited_rewards=((0, 0, 3.0), (1, 0, None))))
    assert edited.reward[0] == 3.0 and not edited.valid[1] and edited.rewards[2:].flatten().tolist() == [0.0] * 6
    with pytest.raises(ValueError, match=r"edited_rewards: found row 9, function 0, allowed: rows 0 to 7"):
        row_advantages(rollout, replace(recipe, edited_rewards=((9, 0, 1.0),)))


@pytest.mark.parametrize("aggregation", ["seq-mean-token-mean", "token-mean", "dr_grpo", "token-sum"])
def test_two_micro_batches_with_shared_totals_have_the_gradient_of_one_batch(policy, rollout, recipe, aggregation):
    config = replace(recipe, aggregation=aggregation).loss_config()
    batch, advantages = to_batch(rollout, "prompt_completion"), row_advantages(rollout, recipe).advantages
    totals = Totals(rows=8, tokens=batch.trained_mask().sum())

    def gradients(parts):
        copy = policy.clone()
        for rows in parts:
            cut = {n: v[rows] for n, v in vars(batch).items() if isinstance(v, torch.Tensor)}
            part = replace(batch, **cut)
            scored = score_tokens(copy, part, recipe.temperature)
            old = scored.logprobs.detach()
            policy_loss(
                scored.logprobs, old, old, advantages[rows], part.trained_mask(), scored.entropy, config, totals
            ).loss.backward()
        return [p.grad for p in copy.model.parameters()]

    whole, split = gradients([slice(0, 8)]), gradients([slice(0, 3), slice(3, 8)])
    largest = max(float(grad.abs().max()) for grad in whole)
    assert all(float((a - b).abs().max()) <= 2e-6 * largest for a, b in zip(whole, split, strict=True))


@pytest.mark.parametrize("change", CHANGES[:4])
def test_the_recorded_gradient_is_the_closed_form(policy, rollout, recipe, change):
    trace = run(policy, rollout, replace(recipe, **change))[1]
    for number, update in enumerate(trace.updates):
        closed = closed_form_logprob_grad(trace, number)
        torch.testing.assert_close(update.logprob_grad, closed, rtol=1e-5, atol=1e-7)
