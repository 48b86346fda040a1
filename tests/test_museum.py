"""The museum without a browser: each fault is planted in the real step, found by a badge that was green before, and named."""

import math
from dataclasses import replace

import pytest
import torch

from grpo_core import CHECKS, batch_of_trace, diagnose
from grpo_core.faults import groups, masks, scores
from grpo_core.planted import BY_SLUG, EXHIBITS, PLANTED
from lessons import LESSONS, badges, view
from lessons import handlers as lesson_handlers
from lessons import link as lesson_link
from lessons.lesson import Selection
from lessons.museum import handlers, source
from lessons.museum.link import NONE, Wanted

FIRST = {  # the badge that turns first, by hand: the page takes it from the checks
    "endless": "eos_in_mask", "loss-zero": NONE, "flat-reward": "advantage_group_sum", "half-clipped": "sampler_logprobs_match",
    "sanity-passed": "sampler_logprobs_match", "cooler": "temperature_consistency", "one-fewer": "first_token_scored",
    "loss-nan": "nonfinite_under_mask0", "winners-lose": "advantage_group_sum", "bits": "ratio_first_step",
    "one-for-nothing": "group_size_min", "negative": NONE, "all-full": "mask_after_eos", "no-pull": "kl_estimator_in_loss",
    "split": "split_invariance", "time-out": "reward_finite", "noise": "gather_matches_sampler",
    "second-half": "mask_after_eos", "one-sided": "truncated_support_bias", "never-clips": NONE,
    "weights-of-ten": "seq_weight_definition", "spikes": "kl_metric", "long-rows": "aggregation_fingerprint",
    "long-prompts": "prompt_truncated", "entropy": "logprob_positive",
}  # fmt: skip
NAMED = {  # what the doctor must name as well, further on
    "bits": "logprob_dtype_mix", "noise": "dropout_active", "second-half": "mask_shift", "half-clipped": "shift_probe",
    "sanity-passed": "shift_probe", "cooler": "logprob_hypotheses",
}  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def bench():
    return view.start("tiny")


def wanted_of(bench, slug, layout="prompt_completion"):
    recipe = BY_SLUG[slug].recipe(bench.first_recipe())
    return Wanted(recipe=replace(recipe, layout=layout), exhibit=slug)


def finished(wanted):
    assert handlers.finish(wanted) == ""
    return handlers.show("", [], wanted)


def sound_of(bench, wanted):
    update = BY_SLUG[wanted.exhibit].update
    return batch_of_trace(bench.step(wanted.recipe).trace, update, bench.policy(wanted.recipe))


@pytest.mark.parametrize("slug", [slug for slug, check in FIRST.items() if check != NONE])
def test_the_other_layout_is_found_out_too(bench, slug):
    """The same fault in ROLL's and verl's layout, by the doctor alone."""
    wanted, exhibit = wanted_of(bench, slug, "sequence"), BY_SLUG[slug]
    sound, policy = sound_of(bench, wanted), bench.policy(wanted.recipe)
    assert not exhibit.lacks(sound) and sound.layout == "sequence"
    own = policy if exhibit.update == 0 else None
    before, after = (
        {f.check for f in diagnose(batch, own).findings if f.severity in source.ALARMS}
        for batch in (sound, exhibit.planted(sound, policy, bench.reference(wanted.recipe)))
    )
    named = {NAMED.get(slug, FIRST[slug]), FIRST[slug]} - {"gather_matches_sampler"}
    assert not before and named <= after


@pytest.mark.parametrize("slug", list(BY_SLUG))
def test_the_fault_turns_a_badge_that_was_none_and_the_doctor_names_it(bench, slug):
    wanted = wanted_of(bench, slug)
    made = source.shown(wanted)
    assert not made.lacks and made.batch is not None
    answer = made.answer.faulty.check if made.answer else NONE
    assert answer == FIRST[slug], [badge.faulty.check for badge in made.turned]
    assert not [badge for badge in made.badges if badge.sound.status in source.ALARMS]
    policy = bench.policy(wanted.recipe) if BY_SLUG[slug].update == 0 else None
    found = diagnose(made.batch, policy).findings
    alarms = {finding.check for finding in found if finding.severity in source.ALARMS}
    if answer == NONE:
        assert not alarms and made.explaining.faulty.status == "info" and BY_SLUG[slug].explained_by in {f.check for f in found}
        return
    of_step = {"gather_matches_sampler"}  # a lesson's own, of its selected token: not the doctor's
    assert {answer, NAMED.get(slug, answer)} - of_step <= alarms


@pytest.mark.parametrize("slug", [slug for slug, check in FIRST.items() if check != NONE])
def test_the_answers_numbers_are_the_findings_and_the_lesson_shows_the_badge(bench, slug):
    wanted = wanted_of(bench, slug)
    page = handlers.tell({}, finished(wanted)[0])[3]
    said, made = page["open"]["answer"]["badge"], source.shown(wanted)
    finding = made.answer.faulty.findings[0]
    assert said["message"] == finding.message and said["fix"] == finding.fix and said["check"] == FIRST[slug]
    assert {n["name"] for n in said["numbers"]} == {str(name) for name in (*finding.found, *finding.expected)}
    assert [(t["row"], t["pos"]) for t in said["tokens"]] == list(finding.tokens[:6])
    recipe, selection, messages = lesson_link.parse(said["href"].removeprefix("./"))
    assert not messages and recipe.model == made.model and selection.lesson == made.answer.lesson
    side = lesson_handlers.load(said["href"].removeprefix("./"), lesson_handlers.Shown(), {})[6]
    shown = {check["name"]: (check["status"], check["message"]) for check in side["checks"]}
    assert shown[FIRST[slug]][0] == made.answer.faulty.status
    if finding.check != "gather_matches_sampler":  # of the token that is selected
        assert finding.message in shown[FIRST[slug]][1]


def test_walking_the_lessons_finds_the_first_badge_that_is_promised(bench):
    """Lesson after lesson, as a person goes: the first that shows an alarm is the answer's, with that very badge."""
    made = source.shown(wanted_of(bench, "one-fewer"))
    for lesson in LESSONS:
        values = view.view(bench.first_recipe(made.model), Selection(lesson=lesson.slug))
        alarms = [check["name"] for check in values["side"]["checks"] if check["status"] in source.ALARMS]
        if alarms:
            assert (lesson.slug, alarms[0]) == (made.answer.lesson, made.answer.faulty.check) == ("masks", "first_token_scored")
            return
    pytest.fail("no badge turned red")


def test_every_check_hangs_in_a_lesson_and_none_twice_in_one():
    hung = {lesson.slug: badges.hanging(lesson.slug, lesson.checks) for lesson in LESSONS}
    assert {name for names in hung.values() for name in names} == set(CHECKS)
    assert all(len(set(names)) == len(names) for names in hung.values())


# ---- the faults are what they say ----------------------------------------------------------------------------------------
def test_the_unshifted_score_is_the_probability_of_a_token_already_read(bench):
    wanted = wanted_of(bench, "sanity-passed")
    sound, policy = sound_of(bench, wanted), bench.policy(wanted.recipe)
    bad = scores.unshifted(sound, policy, bench.reference(wanted.recipe))
    with torch.no_grad():
        states = policy.hidden(sound.row_ids(), sound.row_mask())
        row, column = 0, 2
        pos = int(sound.token_positions()[column])
        right = torch.log_softmax(policy.project(states[row : row + 1, pos]).float(), -1)[0, sound.row_ids()[row, pos]]
    assert float(bad.policy_logprobs[row, column]) == pytest.approx(float(right), abs=1e-4)
    assert torch.equal(bad.policy_logprobs, bad.old_logprobs)


def test_the_renormalised_log_probs_differ_by_what_was_kept(bench):
    wanted = wanted_of(bench, "one-sided")
    made, rollout = source.shown(wanted), bench.step(wanted.recipe).trace.rollout
    mask = rollout.completion_mask
    apart = (made.batch.sampler_logprobs - rollout.sampler_logprobs)[mask]
    assert torch.allclose(apart, -rollout.kept_mass[mask].log(), atol=1e-3)


def test_reported_numbers_follow_from_the_fault(bench):
    nan = source.shown(wanted_of(bench, "loss-nan")).batch
    assert math.isnan(nan.reported["loss"]) and nan.old_logprobs[nan.trained_mask()].isfinite().all()
    full = source.shown(wanted_of(bench, "all-full")).batch
    assert full.reported["num_items"] == full.trained_mask().sum() == full.trained_mask().numel()
    split = source.shown(wanted_of(bench, "split")).batch
    assert sorted(sum(split.meta["micro_batches"], [])) == list(range(8))
    alone = source.shown(wanted_of(bench, "one-for-nothing")).batch
    assert int((alone.group_ids == alone.group_ids[-1]).sum()) == 1 and alone.advantages[-1].isnan()


def test_a_fault_leaves_the_sound_batch_alone(bench):
    wanted = wanted_of(bench, "endless")
    sound, again = sound_of(bench, wanted), sound_of(bench, wanted)
    for plant in (masks.eos_as_padding, masks.mask_late, groups.reward_missing, groups.row_alone, scores.nan_under_mask):
        plant(sound)
    assert torch.equal(sound.trained_mask(), again.trained_mask()) and torch.equal(sound.rewards, again.rewards)
    assert torch.equal(sound.old_logprobs, again.old_logprobs) and torch.equal(sound.advantages, again.advantages)


def test_the_debug_pages_examples_are_exhibits():
    assert set(PLANTED) == {"length", "reward", "ratio"}
    assert {exhibit.plant for exhibit in EXHIBITS if exhibit.example} == set(PLANTED.values())
