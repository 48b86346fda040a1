"""One optimizer step in parts: however a batch is cut, the loss, its gradient and the weights stay; minibatches are steps."""

from dataclasses import fields, replace

import pytest
import torch
from builders import same_weights, weights_of

from grpo_core import Totals, grpo_step, policy_loss, score_tokens, to_batch
from grpo_core.aggregation import AGGREGATION
from grpo_core.engine import LOCAL
from grpo_core.splitting import part_of, pick_rows, split_rows, step_totals
from grpo_core.step import advantages_of, make_optimizer
from grpo_core.types import LossTerms

SPLIT_FREE = [name for name in AGGREGATION if not name.startswith("micro-")]
ROWS = (4, 2, 1)
SETTINGS = {"beta": 0.3, "entropy_coef": 0.02, "mask_truncated": True, "updates": 2}


@pytest.fixture(scope="module")
def double(policy):
    """The same weights in fp64."""
    copy = policy.clone()
    copy.model.double()
    return copy


def step_of(policy, rollout, recipe, **parts):
    """(the trace of a step on a copy, its weights afterwards); the reference is the policy as it is handed in."""
    copy = policy.clone()
    trace = grpo_step(copy, policy, rollout, recipe, **parts)
    return trace, weights_of(copy)


def gap(left: torch.Tensor, right: torch.Tensor) -> float:
    return float((left - right).abs().max())


def gaps(one, other):
    """Largest differences of two steps: (loss and gradient by log-prob over all updates, weights)."""
    pairs = list(zip(one[0].updates, other[0].updates, strict=True))
    numbers = [gap(a.terms.loss, b.terms.loss) for a, b in pairs] + [gap(a.logprob_grad, b.logprob_grad) for a, b in pairs]
    return max(numbers), max(gap(one[1][name], other[1][name]) for name in one[1])


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
@pytest.mark.parametrize("aggregation", SPLIT_FREE)
def test_the_split_into_micro_batches_changes_nothing_in_fp64(double, rollout, recipe, aggregation, optimizer):
    recipe = replace(recipe, aggregation=aggregation, optimizer=optimizer, count_empty_rows=optimizer == "sgd", **SETTINGS)
    whole = step_of(double, rollout, recipe)
    assert len(whole[0].updates) == 2 and whole[0].updates[1].terms.kl.max() > 0
    for rows in ROWS:
        split = step_of(double, rollout, recipe, micro_batch_rows=rows)
        assert max(gaps(whole, split)) <= 1e-10, rows


@pytest.mark.parametrize("layout", ["prompt_completion", "sequence"])
@pytest.mark.parametrize("aggregation", ["token-mean", "seq-mean-token-mean", "sum-over-width"])
def test_the_split_moves_only_the_last_digits_in_fp32(policy, rollout, recipe, aggregation, layout):
    recipe = replace(recipe, aggregation=aggregation, optimizer="sgd", layout=layout, **SETTINGS)
    whole = step_of(policy, rollout, recipe)
    for rows in (4, 3, 1):  # 3 leaves a rest of 2
        assert max(gaps(whole, step_of(policy, rollout, recipe, micro_batch_rows=rows))) <= 1e-5, rows


def test_adamw_in_fp32_follows_the_split_within_a_hundredth_of_its_step(policy, rollout, recipe):
    # its first step is lr · g / (|g| + 1e-8): where g itself is rounding (some 1e-9), so is the step
    whole, split = (step_of(policy, rollout, replace(recipe, updates=1), micro_batch_rows=rows) for rows in (0, 2))
    differences = torch.cat([(whole[1][name] - split[1][name]).flatten().abs() for name in whole[1]])
    assert float((differences <= 1e-2 * recipe.learning_rate).double().mean()) > 0.999
    assert gaps(whole, split)[0] <= 1e-5


@pytest.mark.parametrize("ratio", ["sequence", "segment"])
def test_a_ratio_over_a_row_stays_with_its_row(double, rollout, recipe, ratio):
    recipe = replace(recipe, ratio=ratio, optimizer="sgd", updates=2)
    assert max(gaps(step_of(double, rollout, recipe), step_of(double, rollout, recipe, micro_batch_rows=3))) <= 1e-10


def test_micro_token_mean_is_the_mean_over_micro_batches_of_their_own_token_means(double, rollout, recipe):
    # rows 0-1 | 2-3 | 4-5 | 6-7: a token weighs 1 / (tokens of its two rows · 4)
    recipe = replace(recipe, aggregation="micro-token-mean", updates=1)
    trace = step_of(double, rollout, recipe, micro_batch_rows=2)[0]
    mask, terms = trace.batch.trained_mask(), trace.updates[0].terms
    for start in range(0, 8, 2):
        tokens = int(mask[start : start + 2].sum())
        weights = terms.token_weight[start : start + 2][mask[start : start + 2]]
        torch.testing.assert_close(weights, torch.full_like(weights, 1 / (tokens * 4)))
    whole = step_of(double, rollout, recipe)[0]
    assert gap(whole.updates[0].terms.token_weight, terms.token_weight) > 1e-3
    assert gap(whole.updates[0].logprob_grad, trace.updates[0].logprob_grad) > 1e-3


def test_one_micro_batch_of_all_rows_is_the_whole_batch_bit_for_bit(policy, trained, rollout, recipe, trace):
    for rows in (8, 100):
        again, weights = step_of(policy, rollout, recipe, micro_batch_rows=rows, minibatches=1)
        assert same_weights(weights, weights_of(trained))
        for a, b in zip(trace.updates, again.updates, strict=True):
            assert all(torch.equal(getattr(a.terms, f.name), getattr(b.terms, f.name)) for f in fields(LossTerms))
            assert torch.equal(a.hidden, b.hidden) and a.grad_norms == b.grad_norms


# ---- minibatches -----------------------------------------------------------------------------------------------------------
def by_hand(policy, rollout, recipe, parts):
    """A plain loop: old log-probs of all rows first, then an optimizer step per part with that part's own denominators."""
    copy, batch = policy.clone(), to_batch(rollout, recipe.layout)
    optimizer = make_optimizer(copy, recipe)
    with torch.no_grad():
        old = score_tokens(copy, batch, recipe.temperature).logprobs
        ref = score_tokens(policy, batch, recipe.temperature).logprobs
    advantages = advantages_of(rollout, batch, old, ref, recipe)[1]
    losses = []
    for rows in parts * recipe.updates:
        part = batch.rows(torch.tensor(rows))
        mask = part.trained_mask()
        scored = score_tokens(copy, part, recipe.temperature)
        totals = Totals(rows=len(rows), tokens=mask.sum(), width=batch.row_ids().shape[1] - 1)
        config, weights = recipe.loss_config(), advantages[rows]
        loss = policy_loss(scored.logprobs, old[rows], ref[rows], weights, mask, scored.entropy, config, totals).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(copy.model.parameters(), recipe.max_grad_norm)
        optimizer.step()
        losses.append(loss.detach())
    return torch.stack(losses), weights_of(copy)


@pytest.mark.parametrize("aggregation", ["token-mean", "seq-mean-token-mean", "sum-over-width"])
@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_three_minibatches_are_three_optimizer_steps_with_their_own_denominators(
    double, rollout, recipe, aggregation, optimizer
):
    recipe = replace(recipe, aggregation=aggregation, optimizer=optimizer, updates=2)
    losses, weights = by_hand(double, rollout, recipe, [[0, 1, 2], [3, 4, 5], [6, 7]])
    for rows in (0, 2):
        trace, ours = step_of(double, rollout, recipe, minibatches=3, micro_batch_rows=rows)
        assert len(trace.updates) == 6
        assert gap(torch.stack([update.terms.loss for update in trace.updates]), losses) <= 1e-10
        assert max(gap(ours[name], weights[name]) for name in weights) <= 1e-10


def test_later_minibatches_have_ratios_against_the_start_of_the_step(policy, rollout, recipe):
    first, second = step_of(policy, rollout, replace(recipe, updates=1), minibatches=2)[0].updates
    mask = to_batch(rollout, recipe.layout).trained_mask()
    assert (first.terms.ratio[:4][mask[:4]] == 1).all() and (second.terms.ratio[4:][mask[4:]] != 1).any()


def test_the_terms_of_a_minibatch_stand_in_its_rows_and_the_others_are_masked(policy, rollout, recipe, trace):
    whole, mask = trace.updates[0], trace.batch.trained_mask()
    first, second = step_of(policy, rollout, replace(recipe, updates=1), minibatches=2, micro_batch_rows=3)[0].updates
    assert gap(first.terms.policy_logprobs[:4], whole.terms.policy_logprobs[:4]) < 1e-5
    assert gap(first.terms.surrogate[:4], whole.terms.surrogate[:4]) < 1e-5
    for name in ("policy_logprobs", "ratio", "surrogate", "token_loss", "token_weight", "kl", "entropy"):
        assert (getattr(first.terms, name)[4:] == 0).all() and (getattr(second.terms, name)[:4] == 0).all(), name
    assert (first.logprob_grad[4:] == 0).all() and (first.terms.correction[4:] == 1).all()
    assert not first.terms.is_clipped[4:].any() and first.terms.is_clipped.dtype == torch.bool
    own = torch.zeros_like(mask)
    own[:4] = mask[:4]
    assert gap(first.hidden[own[mask]], whole.hidden[own[mask]]) < 1e-4 and (first.hidden[~own[mask]] == 0).all()


def test_hidden_states_are_left_out_when_nobody_asks_for_them(policy, rollout, recipe, trace):
    for parts in ({}, {"micro_batch_rows": 2}, {"minibatches": 2}):
        lean, weights = step_of(policy, rollout, recipe, keep_hidden=False, **parts)
        assert {tuple(update.hidden.shape) for update in lean.updates} == {(0, 32)} and lean.ref_hidden.shape == (0, 32)
        assert same_weights(weights, step_of(policy, rollout, recipe, **parts)[1])


# ---- the parts themselves --------------------------------------------------------------------------------------------------
def test_rows_are_split_in_order_into_equal_minibatches():
    assert [[part.tolist() for part in parts] for parts in split_rows(8, 3, 2)] == [[[0, 1], [2]], [[3, 4], [5]], [[6, 7]]]
    assert [[part.tolist() for part in parts] for parts in split_rows(3, 1, 0)] == [[[0, 1, 2]]]
    with pytest.raises(ValueError, match="minibatches: found 4 for 3 rows, allowed: at most one per row"):
        split_rows(3, 4, 0)


def test_an_empty_micro_batch_has_one_row_in_which_nothing_is_trained(trace):
    empty = part_of(trace.batch, None)
    assert empty.row_ids().shape[0] == 1 and not empty.trained_mask().any()
    values = torch.arange(8.0)
    assert pick_rows(values, None).tolist() == [0.0] and pick_rows(values, torch.tensor([5, 2])).tolist() == [5.0, 2.0]
    assert pick_rows(values, torch.arange(8)) is values


def test_denominators_count_the_rows_and_tokens_of_all_micro_batches(trace, recipe):
    batch, config = trace.batch, recipe.loss_config()
    tokens, width = batch.trained_mask().sum(1), batch.row_ids().shape[1] - 1
    totals = step_totals(batch, [torch.tensor([4, 5]), torch.tensor([6])], config, LOCAL)
    assert (totals.rows, int(totals.tokens), totals.width, totals.micro_batches) == (3, int(tokens[4:7].sum()), width, 2)
    empty = replace(batch, loss_mask=batch.trained_mask() & (torch.arange(8) != 5).unsqueeze(1))
    filled = step_totals(empty, [torch.tensor([4, 5, 6])], replace(config, count_empty_rows=False), LOCAL)
    assert (int(filled.rows), int(filled.tokens)) == (2, int(tokens[4] + tokens[6]))
