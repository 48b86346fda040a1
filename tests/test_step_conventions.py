"""The step in conventions that read more than rewards and old log-probs: KL in the reward, the sampler, cut rows."""

from dataclasses import replace

import pytest
import torch

from grpo_core import grpo_step

PLAIN = {"advantage_mean": "none", "advantage_std": "none", "beta": 0.0}


@pytest.fixture(scope="module")
def elsewhere(policy):
    """A reference that is not the policy."""
    other = policy.clone()
    with torch.no_grad():
        other.model.lm_head.weight.mul_(0.8)
    return other


def step(policy, reference, rollout, recipe, **changes):
    return grpo_step(policy.clone(), reference, rollout, replace(recipe, **changes))


def test_kl_in_the_reward_is_of_old_against_the_reference(policy, elsewhere, rollout, recipe):
    kl = {"reward_kl_coef": 0.5, "reward_kl_estimator": "k1", **PLAIN}
    before, after = (step(policy, elsewhere, rollout, recipe, reward_kl=when, **kl) for when in ("before", "after"))
    mask = before.batch.trained_mask()
    taken = torch.where(mask, 0.5 * (before.old_logprobs - before.ref_logprobs), 0.0)
    reward = step(policy, elsewhere, rollout, recipe, **PLAIN).advantages.advantages
    assert taken.abs().max() > 0.05
    torch.testing.assert_close(before.advantages.advantages, reward - taken.sum(1))
    assert torch.equal(after.advantages.advantages, reward)
    for row in range(len(mask)):
        for column in range(int(mask[row].sum())):  # the KL of this token and of all behind it
            expected = float(reward[row] - taken[row, column:].sum())
            assert float(after.token_advantages[row, column]) == pytest.approx(expected, abs=1e-5)


def test_whitened_advantages_have_mean_0_and_spread_1_over_the_trained_tokens(policy, rollout, recipe):
    trace = step(policy, policy, rollout, recipe, advantage_whiten="biased", **PLAIN)
    values = trace.token_advantages[trace.batch.trained_mask()]
    assert float(values.mean()) == pytest.approx(0.0, abs=1e-6)
    assert float(values.std(correction=0)) == pytest.approx(1.0, abs=1e-5)


def test_a_ratio_against_the_sampler_divides_by_what_the_sampler_recorded(policy, rollout, recipe):
    shifted = replace(rollout, sampler_logprobs=rollout.sampler_logprobs - 0.3 * rollout.completion_mask)
    trace = step(policy, policy, shifted, recipe, ratio_against="sampler", kl_against="sampler", kl_estimator="k1")
    mask, terms = trace.batch.trained_mask(), trace.updates[0].terms
    assert terms.log_ratio[mask].tolist() == pytest.approx([0.3] * int(mask.sum()), abs=1e-3)
    assert torch.equal(terms.kl, terms.log_ratio)


def test_a_correction_weighs_old_against_the_sampler(policy, rollout, recipe):
    shifted = replace(rollout, sampler_logprobs=rollout.sampler_logprobs - 0.3 * rollout.completion_mask)
    for bound, expected in (("truncate", 1.2), ("drop", 0.0)):
        trace = step(policy, policy, shifted, recipe, correction="token", correction_bound=bound, correction_high=1.2)
        weights = trace.updates[0].terms.correction[trace.batch.trained_mask()]
        assert weights.tolist() == pytest.approx([expected] * len(weights), abs=1e-3)


def test_rows_that_were_cut_off_are_not_trained_and_still_count_in_their_group(policy, rollout, recipe):
    whole, masked = (step(policy, policy, rollout, recipe, mask_truncated=cut) for cut in (False, True))
    cut = torch.tensor([reason == "length" for reason in rollout.finish_reasons])
    assert cut.any() and not masked.batch.trained_mask()[cut].any()
    assert torch.equal(masked.batch.trained_mask()[~cut], whole.batch.trained_mask()[~cut])
    assert torch.equal(masked.advantages.advantages, whole.advantages.advantages)
    assert (masked.updates[0].logprob_grad[cut] == 0).all()


@pytest.mark.parametrize(("counted", "rows"), [(True, 8), (False, None)])
def test_empty_rows_count_in_the_denominator_or_do_not(policy, rollout, recipe, counted, rows):
    trace = step(policy, policy, rollout, recipe, mask_truncated=True, count_empty_rows=counted)
    mask = trace.batch.trained_mask()
    rows = rows or int(mask.any(1).sum())
    lengths, weights = mask.sum(1, keepdim=True), trace.updates[0].terms.token_weight
    torch.testing.assert_close(weights[mask], (1 / (rows * lengths)).expand_as(mask)[mask])


def test_topr_reads_the_rows_reward_and_not_its_advantage(policy, rollout, recipe):
    # a reward above 0 has full weight, even where its advantage is below 0 and the ratio is not 1
    edits = tuple((row, 0, 1.0 + row) for row in range(8))
    shifted = replace(rollout, sampler_logprobs=rollout.sampler_logprobs + 0.5 * rollout.completion_mask)
    changes = {"surrogate": "topr", "ratio_against": "sampler", "beta": 0.0}
    rewarded = step(policy, policy, shifted, recipe, edited_rewards=edits, **changes).updates[0].terms
    lost = (
        step(policy, policy, shifted, recipe, edited_rewards=tuple((row, 0, -value) for row, _, value in edits), **changes)
        .updates[0]
        .terms
    )
    mask = rewarded.ratio > 0
    assert float(rewarded.ratio[mask].max()) < 0.7
    torch.testing.assert_close(lost.token_loss[mask].abs() / rewarded.token_loss[mask].abs(), lost.ratio[mask])
