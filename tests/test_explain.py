"""What is asked of a finished trace: one vocabulary row, the exact KL, the effect of an update, other conventions."""

import math
from dataclasses import replace

import pytest
import torch
from builders import TablePolicy, full_logprobs

from grpo_core import grpo_step, policy_loss, replay, reweigh, score_tokens, summarize
from grpo_core.advantages import ADVANTAGE_MEAN, ADVANTAGE_STD
from grpo_core.aggregation import AGGREGATION
from grpo_core.closed_forms import closed_form_logit_grad
from grpo_core.explain import (
    exact_token_kl,
    logprobs_after,
    other_advantages,
    other_aggregations,
    split_loss,
    trained_index,
    update_effect,
    vocabulary_row,
)  # fmt: skip
from grpo_core.metrics import layer_norms


@pytest.mark.parametrize("update", [0, 1])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_the_row_is_the_one_that_scored_the_token(policy, trace, recipe, rollout, token, update, temperature):
    if temperature != 1.0:
        recipe = replace(recipe, temperature=temperature)
        trace = grpo_step(policy.clone(), policy, rollout, recipe)
    before = replay(policy, rollout, recipe, update)
    row = vocabulary_row(before, trace, update, *token)
    own = full_logprobs(before, trace.batch, temperature)[trained_index(trace, *token)].detach()
    torch.testing.assert_close(row.logprobs, own, rtol=1e-4, atol=1e-4)
    # one row times the head rounds otherwise than all rows at once: the last digit may differ
    assert float(row.logprob) == pytest.approx(float(trace.updates[update].terms.policy_logprobs[token]), abs=5e-6)
    assert row.sampled_id == int(rollout.completion_ids[token])
    assert float(row.probs.sum()) == pytest.approx(1.0, abs=1e-5)
    torch.testing.assert_close(row.scaled_logits, row.logits / temperature)
    assert int(row.order[row.rank - 1]) == row.sampled_id


def test_the_rows_gradient_is_that_of_the_whole_loss(policy, trace, recipe, token):
    # the model's logits as a leaf: everything behind them is the loss
    batch, mask = trace.batch, trace.batch.trained_mask()
    with torch.no_grad():
        logits = policy.model(input_ids=batch.row_ids(), attention_mask=batch.row_mask().long()).logits
    leaf = logits.requires_grad_()
    scored = score_tokens(TablePolicy(leaf), batch, recipe.temperature)
    old = scored.logprobs.detach()
    terms = policy_loss(scored.logprobs, old, old, trace.advantages.advantages, mask, scored.entropy, recipe.loss_config())
    (grad,) = torch.autograd.grad(terms.loss, leaf)
    row = vocabulary_row(policy, trace, 0, *token)
    position = int(batch.token_positions()[token[1]]) - 1
    torch.testing.assert_close(row.logit_grad, grad[token[0], position], rtol=1e-3, atol=1e-6)
    upstream = trace.updates[0].logprob_grad[token]
    torch.testing.assert_close(row.logit_grad, closed_form_logit_grad(row, upstream, 1.0), rtol=1e-5, atol=1e-8)
    assert float(row.logit_grad.sum()) == pytest.approx(0.0, abs=1e-6)  # what one token gains the others lose


def test_a_masked_token_has_no_row(trace):
    row, column = map(int, (~trace.batch.trained_mask()).nonzero()[0])
    for place in ((row, column), (-1, 0), (99, 0)):
        with pytest.raises(ValueError, match="allowed: a trained token"):
            trained_index(trace, *place)


def test_the_exact_kl_is_the_sum_over_the_vocabulary(policy, trace, rollout, recipe):
    at_start = exact_token_kl(policy, policy, trace, 0)
    assert float(at_start.abs().max()) == 0.0
    moved = replay(policy, rollout, recipe, 1)
    mine, theirs = (full_logprobs(p, trace.batch, 1.0).detach().double() for p in (moved, policy))
    expected = (mine.exp() * (mine - theirs)).sum(-1)
    exact = exact_token_kl(moved, policy, trace, 1)
    torch.testing.assert_close(exact[trace.batch.trained_mask()].double(), expected, rtol=1e-3, atol=1e-4)
    assert (expected > 0).all() and (exact[~trace.batch.trained_mask()] == 0).all()


def test_the_effect_of_an_update_is_after_minus_before(policy, trained, trace):
    after = logprobs_after(trained, trace)
    first, last = update_effect(trace, 0, after), update_effect(trace, 1, after)
    assert torch.equal(first.after, last.before) and torch.equal(last.after, after)
    torch.testing.assert_close(first.change + last.change, after - trace.old_logprobs)
    torch.testing.assert_close(first.row_change, first.change.sum(1))


def test_other_conventions_are_what_a_step_in_them_would_have(trace, recipe):
    advantages = other_advantages(trace)
    assert {std for mean, std in advantages if mean == "group"} == set(ADVANTAGE_STD)
    assert {mean for mean, _ in advantages} == set(ADVANTAGE_MEAN)
    for (mean, std), values in advantages.items():
        full = reweigh(trace, replace(recipe, advantage_mean=mean, advantage_std=std)).advantages
        assert torch.equal(values.advantages, full.advantages), (mean, std)
    weighed = other_aggregations(trace, 0)
    assert set(weighed) == set(AGGREGATION)
    for name, result in weighed.items():
        terms = reweigh(trace, replace(recipe, aggregation=name)).updates[0].terms
        assert torch.equal(result.policy_loss, terms.policy_loss) and torch.equal(result.token_weight, terms.token_weight)


@pytest.mark.parametrize("parts", [1, 2, 3, 8])
def test_the_loss_does_not_depend_on_the_split(trace, parts):
    whole = trace.updates[1].terms.policy_loss
    torch.testing.assert_close(split_loss(trace, 1, parts), whole, rtol=1e-5, atol=1e-6)


def test_layer_norms_add_up_to_the_whole_norm(trace):
    norms = layer_norms(trace.updates[0].grad_norms)
    assert list(norms) == ["embed_tokens", "layers.0", "layers.1", "norm", "lm_head"]
    assert math.hypot(*norms.values()) == pytest.approx(trace.updates[0].grad_norm, rel=1e-5)


def test_logged_means_are_over_trained_tokens(trace):
    mask, terms = trace.batch.trained_mask(), trace.updates[1].terms
    logged = summarize(terms, mask)
    assert logged["ratio_mean"] == pytest.approx(float(terms.ratio[mask].mean()), rel=1e-6)
    assert logged["kl"] == pytest.approx(float(terms.kl[mask].mean()), rel=1e-6)
    assert (logged["ratio_min"], logged["ratio_max"]) == (float(terms.ratio[mask].min()), float(terms.ratio[mask].max()))
    assert logged["num_tokens"] == int(mask.sum()) and 0 < logged["clip_fraction"] < 1
