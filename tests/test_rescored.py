"""The checks over stored log-probs: each fires on its fault with the right numbers, and lets a near miss pass."""

import pytest
import torch

from grpo_core import Batch
from grpo_core.doctor import rescored
from grpo_core.doctor.candidates import Sampling, kept_only
from grpo_core.doctor.finding import Evidence

ROWS, PROMPT, WIDTH, VOCAB, TEMPERATURE = 4, 3, 6, 16, 0.6
META = {"temperature": TEMPERATURE, "pad_token_id": 0, "iteration": 0, "updates_since_sampling": 0, "dtype": "float32"}


def seeded(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(7))


def small(temperature=TEMPERATURE, **fields) -> Batch:
    """Four rows with logits; policy, old and sampler as they should be, unless given."""
    ids = torch.randint(1, VOCAB, (ROWS, PROMPT + WIDTH), generator=torch.Generator().manual_seed(2))
    logits = 2 * seeded(ROWS, PROMPT + WIDTH, VOCAB)
    meta = META | fields.pop("meta", {})
    right = scored(logits, ids, temperature)
    stored = {"policy_logprobs": right, "old_logprobs": right, "sampler_logprobs": right, "logits": logits} | fields
    mask = torch.ones(ROWS, WIDTH, dtype=torch.bool)
    return Batch(
        prompt_ids=ids[:, :PROMPT], prompt_mask=torch.ones(ROWS, PROMPT, dtype=torch.bool), completion_ids=ids[:, PROMPT:],
        completion_mask=mask, meta=meta, **stored,
    )  # fmt: skip


def scored(logits, ids, temperature):
    rows = torch.log_softmax(logits[:, PROMPT - 1 : -1] / temperature, -1)
    return rows.gather(-1, ids[:, PROMPT:].unsqueeze(-1)).squeeze(-1)


RAW = scored(small().logits, small().row_ids(), 1.0)
RIGHT = small().policy_logprobs


def run(name, batch, policy=None):
    return getattr(rescored, name)(Evidence(batch=batch, policy=policy))


def only(name, batch):
    (finding,) = run(name, batch)
    assert finding.check == name and finding.fix and finding.quantity
    return finding


@pytest.mark.parametrize("name", rescored.__all__)
def test_a_sound_batch_passes(name):
    assert run(name, small()) == []


# ---- temperature, mode, shift ---------------------------------------------------------------------------------------------
def test_the_trainer_forgot_the_temperature():
    batch = small(policy_logprobs=RAW, old_logprobs=RAW)
    for name in ("logprob_hypotheses", "temperature_consistency"):
        finding = only(name, batch)
        assert finding.severity == "error" and finding.quantity == "policy_logprobs" and "old_logprobs" in finding.message
        assert finding.expected["scoring_temperature"] == TEMPERATURE and finding.found["scoring_temperature"] == 1.0
        assert finding.expected["policy_logprobs[0]"] == pytest.approx(RIGHT[0].tolist(), abs=1e-5)
        assert finding.found["mean_abs_log_ratio"] == pytest.approx(float((RAW - RIGHT).abs().mean()), rel=1e-4)
    assert run("rollout_logprob_mode", batch) == [] and run("shift_probe", batch) == []


def test_the_engine_gave_raw_logprobs():
    batch = small(sampler_logprobs=RAW)
    finding = only("rollout_logprob_mode", batch)
    assert finding.severity == "error" and finding.quantity == "sampler_logprobs" and "raw" in finding.message
    assert finding.expected["sampler_temperature"] == TEMPERATURE
    assert run("temperature_consistency", batch) == []
    at_one = small(temperature=1.0, meta={"temperature": 1.0})  # raw and processed are one
    assert run("rollout_logprob_mode", at_one) == []


def test_a_temperature_that_nobody_set_is_found():
    other = scored(small().logits, small().row_ids(), 0.9)
    finding = only("temperature_consistency", small(sampler_logprobs=other))
    assert finding.found["sampler_temperature"] == pytest.approx(0.9, abs=1e-3)


@pytest.mark.parametrize(("by", "offset"), [(1, -1), (-1, 1)])
def test_one_slot_off(by, offset):
    moved = RIGHT.roll(by, 1)
    for given in ({}, {"logits": None}):
        finding = only("shift_probe", small(sampler_logprobs=moved, **given))
        assert finding.expected["best_offset"] == 0 and finding.found["best_offset"] == offset
        assert finding.expected["sampler_logprobs[1]"] == pytest.approx(RIGHT[1].tolist(), abs=1e-5)
    half = torch.where(torch.arange(ROWS).unsqueeze(1) < 2, moved, RIGHT)  # some rows only: no alignment fits
    assert run("shift_probe", small(sampler_logprobs=half)) == []


def test_other_units_are_told_without_logits():
    for given, cause in ((-RIGHT, "sign flipped"), (RIGHT / TEMPERATURE, "divided after softmax")):
        finding = only("logprob_units", small(sampler_logprobs=given, logits=None))
        assert finding.found["cause"] == cause and finding.severity == "error"
        assert run("logprob_units", small(sampler_logprobs=given)) == []  # with logits `logprob_hypotheses` says it
    assert run("logprob_units", small(sampler_logprobs=RIGHT * 1.2, logits=None)) == []


def test_what_no_hypothesis_explains_is_said_as_such():
    strange = RIGHT + seeded(ROWS, WIDTH)
    (finding,) = run("logprob_hypotheses", small(sampler_logprobs=strange))
    assert finding.severity == "info" and "none of" in finding.message and len(finding.tokens) > 0
    later = {"iteration": 1, "updates_since_sampling": 1}
    assert run("logprob_hypotheses", small(old_logprobs=strange, sampler_logprobs=strange, meta=later)) == []


def test_noise_is_an_info_and_only_where_it_can_be_seen():
    noise = seeded(ROWS, WIDTH)
    (finding,) = run("logprob_hypotheses", small(sampler_logprobs=RIGHT + 0.03 * noise))
    assert finding.severity == "info" and "precision noise" in finding.message
    assert run("logprob_hypotheses", small(sampler_logprobs=RIGHT + 1e-4 * noise)) == []


# ---- the kept tokens ------------------------------------------------------------------------------------------------------
def kept_batch(**fields):
    base = small()
    rows, ids = base.logits[:, PROMPT - 1 : -1].flatten(0, 1), base.completion_ids.flatten()
    values = kept_only(rows, ids, Sampling(temperature=TEMPERATURE, top_p=0.9)).view(ROWS, WIDTH)
    inside = (values > RIGHT + 1e-6).float().mean()
    assert inside > 0  # some drawn tokens lie outside the nucleus: ids are random here
    mask = values > RIGHT + 1e-6
    return small(sampler_logprobs=values, loss_mask=mask, meta={"top_p": 0.9}, **fields)


@pytest.mark.parametrize("given", [{}, {"logits": None}], ids=["logits", "stored"])
def test_the_engine_renormalised_over_the_tokens_it_kept(given):
    batch = kept_batch(**given)
    finding = only("truncated_support_bias", batch)
    assert finding.severity == "warning" and finding.found["share_negative"] == 1.0
    assert finding.expected["mean_log_ratio"] == 0.0
    trained = batch.trained_mask()[0]
    assert finding.expected["policy_logprobs[0]"] == pytest.approx(batch.sampler_logprobs[0][trained].tolist())
    assert not [f for f in run("logprob_hypotheses", batch) if f.severity == "error"]


def test_ratios_of_both_signs_or_beyond_the_kept_mass_are_something_else():
    both = small(sampler_logprobs=RIGHT + 0.05 * seeded(ROWS, WIDTH), meta={"top_p": 0.9})
    beyond = small(sampler_logprobs=RIGHT + 0.5, meta={"top_p": 0.9})  # top-p leaves at least 0.9: log .9 = -.105
    untruncated = small(sampler_logprobs=RIGHT + 0.05)
    assert all(run("truncated_support_bias", batch) == [] for batch in (both, beyond, untruncated))


def test_kept_only_follows_top_k_and_min_p():
    rows, ids = torch.log(torch.tensor([[0.5, 0.3, 0.15, 0.05]])), torch.tensor([1])
    settings = (({"top_k": 2}, 0.8), ({"min_p": 0.25}, 0.95), ({"top_p": 0.7}, 0.8), ({"top_k": 3, "top_p": 0.6}, 0.8))
    for given, mass in settings:
        assert kept_only(rows, ids, Sampling(**given)).exp().item() == pytest.approx(0.3 / mass)


# ---- precision ------------------------------------------------------------------------------------------------------------
def test_old_logprobs_in_bf16():
    short = RIGHT.bfloat16().float()
    finding = only("logprob_dtype_mix", small(old_logprobs=short))
    assert finding.severity == "warning" and finding.quantity == "old_logprobs"
    assert finding.expected["old_logprobs[0]"] == pytest.approx(RIGHT[0].tolist(), abs=1e-5)
    assert finding.found["share_exact_in_bf16"] == 1.0
    assert only("logprob_dtype_mix", small(ref_logprobs=RIGHT.half().float())).found["share_exact_in_fp16"] == 1.0
    assert run("logprob_dtype_mix", small(old_logprobs=short, policy_logprobs=short)) == []  # one precision
    moved = (RIGHT - 0.5).bfloat16().float()  # other values, not the same ones rounded
    assert run("logprob_dtype_mix", small(old_logprobs=moved)) == []


# ---- dropout --------------------------------------------------------------------------------------------------------------
def with_equal_rows(**fields):
    base = small()
    twice = {name: getattr(base, name).clone() for name in ("prompt_ids", "completion_ids", "logits")}
    for values in twice.values():
        values[2] = values[1]
    right = scored(twice["logits"], torch.cat([twice["prompt_ids"], twice["completion_ids"]], 1), TEMPERATURE)
    stored = {"policy_logprobs": right, "old_logprobs": right, "sampler_logprobs": right} | {
        name: right + change for name, change in fields.items()
    }
    return Batch(prompt_mask=base.prompt_mask, completion_mask=base.completion_mask, meta=META, **twice, **stored)


def test_equal_rows_that_differ_show_dropout():
    noise = 0.5 * seeded(ROWS, WIDTH)
    (finding,) = run("dropout_active", with_equal_rows(policy_logprobs=noise))
    assert finding.severity == "error" and finding.rows == (1, 2) and finding.expected["max_abs_diff_rows_1_2"] == 0.0
    assert finding.found["max_abs_diff_rows_1_2"] == pytest.approx(float((noise[1] - noise[2]).abs().max()), rel=1e-4)
    assert finding.expected["ratio[1]"] == [1.0] * WIDTH
    assert run("dropout_active", with_equal_rows()) == []
    assert run("dropout_active", with_equal_rows(policy_logprobs=noise / 100)) == []  # rounding
    same = noise.clone()
    same[2] = same[1]  # another policy, but a deterministic one
    assert run("dropout_active", with_equal_rows(policy_logprobs=same)) == []
    every = dict.fromkeys(("policy_logprobs", "old_logprobs", "sampler_logprobs"), noise)  # the ids do not tell them apart
    assert run("dropout_active", with_equal_rows(**every)) == []


def test_train_mode_counts_where_the_ratio_shows_it():
    on = {"training_mode": True}
    (finding,) = run("dropout_active", small(policy_logprobs=RIGHT + seeded(ROWS, WIDTH), meta=on))
    assert finding.severity == "error" and finding.found["training_mode"] is True
    assert run("dropout_active", small(meta=on)) == []  # dropout at probability 0
    later = on | {"iteration": 1, "updates_since_sampling": 1}
    assert run("dropout_active", small(policy_logprobs=RIGHT + seeded(ROWS, WIDTH), meta=later)) == []
