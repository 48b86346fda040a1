"""A healthy step is called healthy under every preset's convention: no check warns, on neither of its two updates."""

from dataclasses import replace

import pytest
from broken import grad, on_terms
from test_doctor import alarms, findings, full_evidence
from variants import VARIANTS, label

from grpo_core import CHECKS, Evidence, grpo_step, reweigh, run_checks
from grpo_core.closed_forms import SURROGATE_SLOPE
from grpo_core.presets import PRESETS


@pytest.mark.parametrize("name", PRESETS)
def test_a_healthy_step_raises_no_alarm(policy, rollout, recipe, token, name):
    changed = replace(recipe, **PRESETS[name].values())
    trained = policy.clone()
    trace = grpo_step(trained, policy, rollout, changed)
    column = token if trace.batch.trained_mask()[token] else tuple(map(int, trace.batch.trained_mask().nonzero()[0]))
    for update in (0, 1):
        outcomes = run_checks(full_evidence(policy, trained, trace, column, update), CHECKS.values())
        assert not [(o.check, [f.message for f in o.findings]) for o in alarms(outcomes)]


@pytest.mark.parametrize("name", PRESETS)
def test_a_broken_step_is_marked_under_every_preset(trace, recipe, token, name):
    changed = reweigh(trace, replace(recipe, **PRESETS[name].values()))
    evidence = Evidence.of_trace(changed, token=token)
    doubled = on_terms(evidence, token_weight=2 * evidence.step.terms.token_weight)
    assert [f.severity for f in findings(doubled, "denominator_matches_mask")] == ["error"]
    marked = [f.severity for f in findings(grad(evidence, 0.01), "logprob_gradient_closed_form")]
    assert marked == ["error"] * (changed.recipe.surrogate in SURROGATE_SLOPE)
    drifted = on_terms(evidence, ratio=evidence.step.terms.ratio + 0.01)
    assert [f.severity for f in findings(drifted, "ratio_first_step")] == ["error"]


@pytest.mark.parametrize("mask_truncated", [False, True])
@pytest.mark.parametrize("settings", VARIANTS, ids=label)
def test_no_row_of_any_table_is_called_wrong_nor_are_rows_without_a_token(trace, recipe, settings, mask_truncated):
    changed = reweigh(trace, replace(recipe, **settings, mask_truncated=mask_truncated))
    outcomes = run_checks(Evidence.of_trace(changed), CHECKS.values())
    assert not [(o.check, [f.message for f in o.findings]) for o in outcomes if o.status in ("warning", "error")]
    doubled = on_terms(Evidence.of_trace(changed), token_weight=2 * changed.updates[0].terms.token_weight)
    assert [f.severity for f in findings(doubled, "denominator_matches_mask")] == ["error"]
