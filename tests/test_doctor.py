"""Every check: silent on a sound step, marks a broken one, lets a near miss pass."""

from dataclasses import replace

import pytest
import torch
from broken import NEAR, RED, on_advantages, on_recipe, on_trace, pad_is_eos, put, sampler, stopped_row, with_rewards
from broken_batches import BATCH_RED
from builders import EOS

from grpo_core import CHECKS, Evidence, grpo_step, replay, run_checks
from grpo_core.doctor.finding import SEVERITIES
from grpo_core.doctor.scores import _gap_at_offset
from grpo_core.explain import logprobs_after, update_effect, vocabulary_row


def status(evidence, name):
    (outcome,) = run_checks(evidence, [CHECKS[name]])
    return outcome.status


def findings(evidence, name):
    (outcome,) = run_checks(evidence, [CHECKS[name]])
    return outcome.findings


def full_evidence(policy, trained, trace, token, update):
    before = replay(policy, trace.rollout, trace.recipe, update)
    effect = update_effect(trace, update, logprobs_after(trained, trace))
    row = vocabulary_row(before, trace, update, *token)
    return Evidence.of_trace(trace, update=update, policy=policy, token=token, row=row, effect=effect)


@pytest.fixture(scope="module")
def second(policy, trained, trace, token):
    """Evidence about the second update: the ratios have moved, some are clipped."""
    evidence = full_evidence(policy, trained, trace, token, 1)
    assert evidence.step.terms.is_clipped.any()
    return evidence


def test_every_check_has_a_red_and_a_near_case():
    assert set(RED) == set(NEAR) and set(RED) | set(BATCH_RED) == set(CHECKS)


def alarms(outcomes):
    """What is neither sound nor a question that only a batch file can answer."""
    return [o for o in outcomes if o.status not in ("pass", "info") and not (o.status == "skipped" and o.check not in RED)]


@pytest.mark.parametrize("name", RED)
def test_a_sound_first_update_passes(evidence, name):
    expected = "info" if name == "loss_zero_explain" else "pass"
    assert status(evidence, name) == expected


@pytest.mark.parametrize("name", RED)
def test_a_sound_second_update_passes(second, name):
    assert status(second, name) in ("pass", "info"), findings(second, name)


RED_CASES = [(name, number) for name, cases in RED.items() for number in range(len(cases))]


@pytest.mark.parametrize(("name", "number"), RED_CASES)
def test_a_broken_step_is_marked(evidence, second, name, number):
    break_it, expected = RED[name][number]
    marked = findings(break_it(evidence, second), name)
    assert max((f.severity for f in marked), key=SEVERITIES.index, default="pass") == expected
    for finding in marked:
        assert finding.check == name and finding.message and finding.quantity
        assert finding.fix or finding.severity == "info"


@pytest.mark.parametrize(("name", "number"), [(name, n) for name, cases in NEAR.items() for n in range(len(cases))])
def test_a_near_miss_is_not(evidence, second, name, number):
    changed = NEAR[name][number](evidence, second)
    assert status(changed, name) == "pass", findings(changed, name)


SOUND = [
    {"layout": "sequence"},
    {"layout": "sequence", "ratio": "sequence", "aggregation": "token-mean"},
    {"surrogate": "dual-clip", "dual_clip": 1.4, "clip_low": 0.01, "clip_high": 0.01},
    {"surrogate": "none", "kl_estimator": "k2", "aggregation": "token-sum"},
    {"kl_estimator": "k1", "aggregation": "dr_grpo", "advantage_std": "none"},
    {"kl_estimator": "abs", "entropy_coef": 0.01, "aggregation": "seq-mean-token-sum"},
    {"advantage_mean": "leave-one-out", "advantage_std": "leave-one-out"},
    {"advantage_mean": "batch", "advantage_std": "batch"},
    {"advantage_std": "biased", "beta": 0.0},
    {"edited_rewards": tuple((row, 0, 1.0) for row in range(8))},
]


@pytest.mark.parametrize("change", SOUND)
@pytest.mark.parametrize("update", [0, 1])
def test_no_variant_of_a_sound_step_is_called_wrong(policy, rollout, recipe, token, change, update):
    trained = policy.clone()
    trace = grpo_step(trained, policy, rollout, replace(recipe, **change))
    row, column = token
    column += trace.batch.trained_mask().shape[1] - rollout.completion_ids.shape[1]
    outcomes = run_checks(full_evidence(policy, trained, trace, (row, column), update), CHECKS.values())
    assert not alarms(outcomes)


@pytest.mark.parametrize("layout", ["prompt_completion", "sequence"])
def test_a_finding_names_the_tokens_place_in_the_row(evidence, recipe, token, layout):
    changed = on_recipe(evidence, layout=layout)
    row, column = token
    shift = evidence.trace.rollout.prompt_ids.shape[1]
    place = (row, column + (shift - 1 if layout == "sequence" else 0))
    (finding,) = findings(sampler(changed, 0.5, place), "sampler_logprobs_match")
    assert finding.tokens == ((row, shift + column),) and finding.rows == (row,)
    assert finding.found["max_abs_log_ratio"] == pytest.approx(0.5, abs=1e-3)


def test_a_missing_end_token_is_found_in_either_layout(evidence, recipe):
    row, end = stopped_row(evidence)
    width = evidence.trace.rollout.prompt_ids.shape[1]
    changed = on_recipe(evidence, layout="sequence")
    batch = changed.trace.batch
    cut = replace(batch, response_mask=put(batch.response_mask, (row, width + end), False))
    (finding,) = findings(on_trace(changed, batch=cut), "eos_in_mask")
    assert finding.tokens == ((row, width + end),)
    assert finding.expected["num_items"] == finding.found["num_items"] + 1


def test_a_row_that_ends_in_its_pad_token_is_not_taken_for_its_end(evidence):
    changed = pad_is_eos(evidence)
    assert status(changed, "eos_in_mask") == status(changed, "mask_after_eos") == "pass"


def test_an_end_token_that_comes_first_is_the_end_and_one_in_the_prompt_is_not(evidence):
    row, _ = stopped_row(evidence)
    batch = evidence.trace.batch
    ids, mask = put(batch.completion_ids, (row, 0), EOS), batch.completion_mask.clone()
    mask[row] = False
    at_once = replace(batch, completion_ids=ids, completion_mask=mask)
    (finding,) = findings(on_trace(evidence, batch=at_once), "eos_in_mask")
    assert finding.tokens == ((row, batch.prompt_ids.shape[1]),)
    asked = replace(batch, prompt_ids=put(batch.prompt_ids, (row, -1), EOS))
    assert status(on_trace(evidence, batch=asked), "mask_after_eos") == "pass"


def test_the_shift_probe_does_not_compare_across_the_edge():
    # one token off: old[1] = sampler[0] fits, and sampler[1] has no partner
    old, sampled, mask = torch.tensor([[-1.0, -2.0]]), torch.tensor([[-2.0, -9.0]]), torch.ones(1, 2, dtype=torch.bool)
    assert _gap_at_offset(old, sampled, mask, 1) == 0.0
    assert _gap_at_offset(sampled, old, mask, -1) == 0.0


def test_a_loss_of_0_says_whether_the_gradient_is_0_too(evidence):
    (alive,) = findings(evidence, "loss_zero_explain")
    assert alive.found["logprob_grad_norm"] > 0.01 and "advantages cancel" in alive.message
    flat = tuple((row, 0, 1.0) for row in range(8))
    (dead,) = findings(on_recipe(evidence, edited_rewards=flat), "loss_zero_explain")
    assert dead.found["logprob_grad_norm"] == 0.0 and "teaches nothing" in dead.message


def test_a_step_that_teaches_nothing_says_why(evidence):
    dropped = {"correction": "token", "correction_bound": "drop", "correction_low": 1e5, "beta": 0.0}
    (finding,) = findings(on_recipe(evidence, **dropped), "loss_zero_explain")
    assert "every token with an advantage is clipped or dropped" in finding.message
    cut = replace(evidence.trace.rollout, finish_reasons=("length",) * 8)
    untrained = on_recipe(on_trace(evidence, rollout=cut), mask_truncated=True)
    (finding,) = findings(untrained, "loss_zero_explain")
    assert "no token is trained" in finding.message


def test_a_loss_that_depends_on_the_split_says_through_what(evidence):
    (finding,) = findings(on_recipe(evidence, aggregation="micro-token-mean"), "split_invariance")
    assert "micro-token-mean divides each by its own tokens" in finding.message


def test_zero_spread_counts_groups_and_gives_the_reward(evidence):
    (finding,) = findings(with_rewards(evidence, [1, 1, 1, 1, 0, 0, 0, 0.5]), "zero_std_groups")
    assert finding.rows == (0, 1, 2, 3) and "1 of 2 groups" in finding.message


def test_the_magnitude_limit_is_the_largest_that_one_winner_can_reach(evidence):
    # (G - 1) / sqrt(G) = 3 / 2 for the unbiased spread of four, sqrt(G - 1) = 1.732 for the biased one
    (finding, _) = findings(on_advantages(evidence, lambda a: 2 * a), "advantage_magnitude")
    assert finding.expected["max"] == 1.5
    wide = on_advantages(on_recipe(evidence, advantage_std="biased"), lambda a: 2 * a)
    assert findings(wide, "advantage_magnitude")[0].expected["max"] == pytest.approx(1.7320508)


def test_a_check_without_its_evidence_is_skipped_and_says_what_it_needs(trace):
    evidence = Evidence.of_trace(trace)
    outcomes = {o.check: o for o in run_checks(evidence, CHECKS.values())}
    for name, check in CHECKS.items():
        missing = tuple(need for need in check.needs if not evidence.has(need))
        assert (outcomes[name].status == "skipped") == bool(missing) and outcomes[name].needs == missing
    assert outcomes["ids_in_vocab"].needs == ("meta.vocab_size or logits or --model",)


def test_checks_leave_the_evidence_as_it_was(evidence):
    before = [t.clone() for t in vars(evidence.step.terms).values()]
    run_checks(evidence, CHECKS.values())
    assert all(torch.equal(a, b) for a, b in zip(before, vars(evidence.step.terms).values(), strict=True))
