"""The numbers that trainers log, against what their own code returned for one batch, and by hand.

data/golden.json holds what they logged beside the loss; data/trainer_metrics.json more of them, for the trainers that are not
installed here. The installed ones are asked themselves: see test_trainer_metrics_live.py.
"""

import json
from dataclasses import replace

import pytest
import torch
from batches import loss_batches
from hypothesis import given, settings
from hypothesis import strategies as st
from test_golden import DEFAULT, NAMES, golden, inputs_of

from grpo_core.compare import evaluate
from grpo_core.inputs import LossInputs, missing
from grpo_core.presets import PRESETS, preset
from grpo_core.trainer_metrics import HONEST, METRICS, metrics_of, trainer_metrics

MORE = json.loads(DEFAULT.with_name("trainer_metrics.json").read_text("utf-8"))
LOGGED = {  # the golden file's key -> the name as logged
    "clip_ratio/region_mean": "clip_ratio/region_mean", "kl": "kl", "pg_clipfrac": "actor/pg_clipfrac",
    "pg_clipfrac_lower": "actor/pg_clipfrac_lower", "kl_loss": "actor/kl_loss@sum",
    "ppo_ratio_clipfrac": "actor/ppo_ratio_clipfrac@sum", "clip": "ppo_clip_ratio", "kl_penalty": "train/kl_penalty",
}  # fmt: skip
GOLDEN = [(name, key) for name, row in golden(DEFAULT)["presets"].items() for key in row if key not in ("loss", "grad", "adv")]
OPTIONAL = ("old_logprobs", "ref_logprobs", "sampler_logprobs", "entropy", "rewards", "group_ids", "truncated")


def logged(inputs, name, **changes):
    """Name -> Logged of one preset, its convention changed where asked for."""
    convention = replace(preset(name).convention(), **changes)
    row = replace(preset(name), settings=vars(convention))
    found = trainer_metrics(evaluate(inputs, convention), inputs, row)
    assert len({one.name for one in found}) == len(found), "a name is logged twice"
    return {one.name: one for one in found}


@pytest.fixture(scope="module")
def batch():
    return inputs_of(golden(DEFAULT)["inputs"])


# ---- what the trainers logged --------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("name", "key"), GOLDEN)
def test_a_logged_number_of_the_golden_file_is_ours(batch, name, key):
    theirs = golden(DEFAULT)["presets"][name][key]
    assert logged(batch, NAMES[name])[LOGGED[key]].value == pytest.approx(theirs, abs=1e-6)


@pytest.mark.parametrize("name", MORE["metrics"])
def test_every_number_is_that_of_the_trainers_own_function(batch, name):
    exchanged = replace(
        batch, policy_logprobs=batch.old_logprobs, old_logprobs=batch.policy_logprobs,
        sampler_logprobs=torch.tensor(MORE["sampler"]),
    )  # fmt: skip
    ours, theirs = logged(exchanged, name), MORE["metrics"][name]
    assert set(ours) == set(theirs)
    apart = {key for key, value in theirs.items() if ours[key].value != pytest.approx(value, rel=2e-6, abs=2e-6)}
    assert not apart


def test_rolls_clip_metric_exceeds_one_and_the_seeds_sinks_with_the_padding(batch):
    ratio = (batch.policy_logprobs - batch.old_logprobs).exp()
    assert int(((ratio < 0.8) | (ratio > 1.2))[batch.mask].sum()) == 41 and int(batch.mask.sum()) == 49
    assert logged(batch, "roll")["actor/ppo_ratio_clipfrac@sum"].value == pytest.approx(41 / 49)
    assert logged(batch, "roll-seed")["actor/ppo_ratio_clipfrac"].value == pytest.approx(41 / 96)  # 12 rows of 3 + 6 - 1
    sequence = logged(batch, "roll/gspo")["actor/ppo_ratio_clipfrac@sum"]
    assert sequence.value == pytest.approx(96 / 49)  # every row is outside, and each has 8 positions
    assert sequence.honest_value == pytest.approx(12 / 49)  # tokens of the three rows that the clip leaves without a gradient
    assert "above 1" in sequence.note


def test_the_honest_clip_fraction_is_where_the_gradient_is_zero(batch):
    for name in ("trl", "trl/delta", "verl", "roll/dual-clip", "trl/gspo"):
        evaluation = evaluate(batch, preset(name).convention())
        at_rest = (evaluation.grad == 0) & (evaluation.advantages != 0) & batch.mask
        found = {one.honest_name: one.honest_value for one in trainer_metrics(evaluation, batch, preset(name))}
        assert found["clip_fraction"] == pytest.approx(int(at_rest.sum()) / 49), name
    by_sign = logged(batch, "verl")
    clipped, ceiling = by_sign["actor/pg_clipfrac"], by_sign["actor/pg_clipfrac_lower"]
    assert clipped.value + ceiling.value == pytest.approx(clipped.honest_value)  # 10/49 + 6/49: verl's two parts


# ---- by hand -------------------------------------------------------------------------------------------------------------
def four_rows(**changes):
    """Two groups of two. Rows of 4, 1, 2 and 0 tokens; the ratios against old are 1, 2, .5, 4 | 2 | .5, 1 | none."""
    mask = torch.tensor([[1, 1, 1, 1], [1, 0, 0, 0], [1, 1, 0, 0], [0, 0, 0, 0]]).bool()
    ratio = torch.tensor([[1, 2, 0.5, 4], [2, 1, 1, 1], [0.5, 1, 1, 1], [1, 1, 1, 1]])
    old = torch.where(mask, -2.0, 0.0)
    given = {
        "mask": mask, "old_logprobs": old, "policy_logprobs": torch.where(mask, old + ratio.log(), 0.0),
        "ref_logprobs": old, "sampler_logprobs": torch.where(mask, old - torch.tensor(2.0).log(), 0.0),
        "entropy": mask.float(), "rewards": ((1.0,), (0.0,), (0.5,), (0.5,)), "group_ids": torch.tensor([0, 0, 1, 1]),
        "truncated": torch.tensor([True, False, False, False]), "width": 9,
    }  # fmt: skip
    return LossInputs(**(given | changes))


def values(inputs, name, **changes):
    return {key: one.value for key, one in logged(inputs, name, **changes).items()}


def test_trl_by_hand():
    # A > 0 in row 0, < 0 in row 1, 0 in row 2. High: the 2 and the 4 of row 0. Low: the ratio 2 of row 1 is not. 7 tokens.
    got = values(four_rows(), "trl")
    assert got["clip_ratio/high_mean"] == pytest.approx(2 / 7) and got["clip_ratio/low_mean"] == 0
    assert got["clip_ratio/high_max"] == pytest.approx(2 / 4) and got["clip_ratio/low_min"] == 0
    assert got["entropy"] == 1 and got["reward"] == pytest.approx(0.5)
    assert got["frac_reward_zero_std"] == pytest.approx(2 / 4) and got["completions/clipped_ratio"] == pytest.approx(1 / 4)
    assert got["reward_std"] == pytest.approx((0.5 / 3) ** 0.5)  # (.25 + .25 + 0 + 0) / 3, over the whole batch
    assert [got[f"completions/{key}_length"] for key in ("mean", "min", "max")] == [7 / 4, 0, 4]
    # Against the sampler every token's ratio is 2: 16, 2, 4 and 1 for the rows. Above 3 a row is dropped and counts as 0.
    vllm = values(four_rows(), "trl/vllm")
    assert vllm["sampling/importance_sampling_ratio/mean"] == pytest.approx((0 + 2 + 0 + 1) / 4)
    assert vllm["sampling/importance_sampling_ratio/max"] == pytest.approx(2)
    assert vllm["sampling/sampling_logp_difference/mean"] == pytest.approx(0.693147, abs=1e-6)
    # Row 0's mean log-ratio is log(4) / 4: a ratio of 1.41 with A > 0 is one clipped row of four, and four of seven tokens.
    sequence = logged(four_rows(), "trl/gspo")["clip_ratio/region_mean"]
    assert sequence.value == pytest.approx(1 / 4) and sequence.honest_value == pytest.approx(4 / 7)
    # With delta 1.1 nothing is above 1.2 any more, and nothing of it has a gradient.
    delta = logged(four_rows(), "trl/delta", dual_clip=1.1)["clip_ratio/high_mean"]
    assert delta.value == 0 and delta.honest_value == pytest.approx(2 / 7)


def test_trls_extreme_rows_pass_over_a_row_without_tokens():
    batch = four_rows()
    halved = torch.where(batch.mask, batch.old_logprobs + torch.tensor(0.5).log(), 0.0)
    batch = replace(batch, policy_logprobs=halved, rewards=None, group_ids=None, advantages=-torch.ones(4, 4))
    assert values(batch, "trl")["clip_ratio/low_min"] == 1  # every token of every row that has any


def test_vespos_mean_weight_by_hand():
    # Row ratios 4, 2, .5, 1 (the empty one); A > 0, < 0, 0, 0. phi = w^k e^(l (1 - w)) with k, l = 2, 3, and 3, 2 where A < 0.
    weights = [16 * 2.718281828**-9, 8 * 2.718281828**-2, 0.25 * 2.718281828**1.5, 1.0]
    got = logged(four_rows(), "trl/vespo")["vespo/phi_seq_mean"]
    assert got.value == pytest.approx(sum(weights) / 4, rel=1e-5)
    assert got.honest_value == pytest.approx((4 * weights[0] + weights[1] + 2 * weights[2]) / 7, rel=1e-5)


def test_the_early_trl_by_hand():
    # log-ratios to the reference 0, log 2, -log 2, log 4 | log 2 | -log 2, 0; k3(x) = e^-x - 1 + x: 0, .1931, .3069, .6363.
    got = logged(four_rows(), "trl-2025-02")["kl"]
    rows = (0.193147 + 0.306853 + 0.636294) / 4, 0.193147, 0.306853 / 2
    assert got.value == pytest.approx(sum(rows) / 4, abs=1e-5)
    assert got.honest_value == pytest.approx((rows[0] * 4 + rows[1] + rows[2] * 2) / 7, abs=1e-5)
    assert logged(four_rows(), "trl-2025-02")["reward_std"].value == pytest.approx(0.5**0.5 / 2)  # groups: .7071 and 0


def test_verls_ppo_kl_cancels_and_the_honest_one_does_not():
    got = logged(four_rows(), "verl")["actor/ppo_kl"]
    # -log: 0, -log 2, log 2, -log 4 | -log 2 | log 2, 0 = -2 log 2 over 7; ratio - 1 - log ratio: 0, .3069, .1931, 1.6137 …
    assert got.value == pytest.approx(-2 * 0.693147 / 7, abs=1e-5)
    assert got.honest_value == pytest.approx((0.306853 * 2 + 0.193147 * 2 + 1.613706) / 7, abs=1e-5)


def test_a_token_far_away_counts_up_to_the_trainers_own_bound():
    batch = four_rows()
    far = torch.where(batch.mask, -2.0, 0.0).index_put((torch.tensor(0), torch.tensor(0)), torch.tensor(-27.0))
    moved = replace(batch, policy_logprobs=far)  # 25 nats below old on one of 7 tokens
    assert values(moved, "verl")["actor/ppo_kl"] == pytest.approx(20 / 7)
    assert values(moved, "verl/gspo")["actor/ppo_kl"] == pytest.approx(25 / 7)
    assert values(moved, "openrlhf")["ppo_kl"] == pytest.approx(25 / 7)
    reference = replace(batch, ref_logprobs=far)  # k1 is 25 in row 0 of 4 tokens, bounded to 10; a mean of 4 rows
    assert values(reference, "openrlhf")["kl"] == pytest.approx(10 / 4 / 4)
    assert values(reference, "openrlhf")["logprobs_diff"] == pytest.approx(25 / 4 / 4)
    # k3 there: 24, bounded to 10, then .1931, .3069, .6363 | .1931 | .3069, 0; a mean of the three rows with tokens
    roll = logged(reference, "roll")["actor/kl_loss@sum"]
    assert roll.value == pytest.approx((11.136294 / 4 + 0.193147 + 0.306853 / 2) / 3, abs=1e-5)
    assert roll.honest_value == pytest.approx((24 + 1.136294 + 0.193147 + 0.306853) / 7, abs=1e-5)


def test_roll_by_hand():
    # The rows' mean ratios are 7.5/4, 2 and 1.5/2; the empty row is not a row today, and was one before.
    assert values(four_rows(), "roll")["actor/ratio_mean@sum"] == pytest.approx((1.875 + 2 + 0.75) / 3)
    assert values(four_rows(), "roll-seed")["actor/ratio_mean"] == pytest.approx((1.875 + 2 + 0.75) / 4)
    # topr: of the ratios above 1 that of row 1 stands in a row without a reward. 4 rows of 9 positions.
    assert values(four_rows(), "roll/topr")["actor/topr_negative_total_clipfrac"] == pytest.approx(1 / 36)


def test_nemos_sampling_ratio_at_sequence_level_by_hand():
    # old/sampler is 2 for each token, so 2^4, 2, 2^2 and 1 for the rows; the sampler's padding is not read.
    batch = four_rows()
    batch = replace(batch, sampler_logprobs=torch.where(batch.mask, batch.sampler_logprobs, float("nan")))
    got = values(batch, "nemo", ratio="sequence")
    assert got["train/sampling_importance_ratio"] == pytest.approx((16 + 2 + 4 + 1) / 4)


# ---- what the batch lacks, padding, empty rows ---------------------------------------------------------------------------
@pytest.mark.parametrize("name", PRESETS)
def test_a_metric_never_reads_what_is_not_there(batch, name):
    whole = logged(batch, name)
    for field in OPTIONAL:
        less = replace(batch, **{field: None})
        if missing(less, preset(name).convention()):
            continue
        for key, one in logged(less, name).items():
            assert one.value == whole[key].value and one.honest_value in (None, whole[key].honest_value), (field, key)


@settings(max_examples=100, deadline=None, derandomize=True, database=None)
@given(st.sampled_from(list(PRESETS)), loss_batches(alone=True, uneven=True, far=True, garbage=True))
def test_padding_moves_no_metric_and_none_is_nan(name, drawn):
    dirty = drawn.fp32()
    clean = replace(dirty, **{
        key: torch.where(dirty.mask, value, 0.0) for key, value in vars(dirty).items() if key.endswith(("logprobs", "entropy"))
    })  # fmt: skip
    found, expected = logged(dirty.inputs(), name), logged(clean.inputs(), name)
    assert found == expected
    for one in found.values():
        assert torch.tensor([one.value, one.honest_value]).isfinite().all(), one


def test_nothing_is_nan_where_no_token_is_trained():
    empty = four_rows(mask=torch.zeros(4, 4).bool())
    for name in PRESETS:
        assert torch.tensor([one.value for one in logged(empty, name).values()]).isfinite().all(), name


# ---- the tables ------------------------------------------------------------------------------------------------------------
def test_every_trainer_has_metrics_and_every_metric_an_honest_number():
    trainers = {row.trainer for row in PRESETS.values()} - {"Papers"}
    assert {key.split(" 2025")[0] for key in METRICS} == trainers
    rows = [row for table in METRICS.values() for row in table]
    assert {row.honest for row in rows} == set(HONEST)
    assert all(row.note == "" or row.note.endswith(".") for row in rows)
    assert metrics_of(preset("paper/grpo")) == ()


def test_every_metric_is_logged_by_some_preset_or_with_an_entropy_bonus():
    seen = {(row.trainer, metric.name) for row in PRESETS.values() for metric in metrics_of(row)}
    everything = {(key.split(" 2025")[0], metric.name) for key, table in METRICS.items() for metric in table}
    assert everything - seen == {("TRL", "policy_loss"), ("OpenRLHF", "entropy_loss")}
    # by hand: policy_loss still holds the KL, and all entropies are 1
    bonus = values(four_rows(), "trl/kl", entropy_coef=0.01)
    assert bonus["policy_loss"] == pytest.approx(bonus["loss"] + 0.01)
    assert values(four_rows(), "openrlhf", entropy_coef=0.01)["entropy_loss"] == pytest.approx(1.0)
