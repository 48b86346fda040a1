"""What must not matter: masked slots, padding, a second pass. Each fault is planted; its near miss passes."""

from dataclasses import replace

import pytest
import torch
from builders import PAD

from grpo_core import Batch
from grpo_core.doctor.finding import Evidence
from grpo_core.doctor.invariance import (
    FILLED,
    FILLS,
    contexts,
    core_loss,
    filled,
    padding_invariance,
    padding_invariance_model,
    repeated_pass,
    repeats,
)  # fmt: skip
from grpo_core.doctor.rescored import padding_invariance as slots_check
from grpo_core.doctor.rescored import padding_invariance_model as padding_check
from grpo_core.presets import PRESETS, preset

MASK = torch.tensor([[1, 1, 0, 0], [1, 1, 1, 0], [1, 0, 1, 1], [1, 1, 1, 1]], dtype=torch.bool)
META = {"beta": 0.05, "kl_estimator": "k3", "aggregation": "token-mean", "iteration": 0, "updates_since_sampling": 0,
        "clip_low": 0.2, "clip_high": 0.2, "pad_token_id": PAD, "num_generations": 4}  # fmt: skip


def small(**fields) -> Batch:
    """Four rows of up to four tokens; the third has a token in the middle that is not trained."""
    made = torch.Generator().manual_seed(1)
    policy, old, ref = (-3 * torch.rand(MASK.shape, generator=made) for _ in range(3))
    ids = torch.randint(5, 50, MASK.shape, generator=made)
    given = {
        "prompt_ids": torch.full((4, 2), 3), "prompt_mask": torch.ones(4, 2, dtype=torch.bool), "completion_ids": ids,
        "completion_mask": MASK, "policy_logprobs": policy, "old_logprobs": old, "ref_logprobs": ref,
        "sampler_logprobs": old, "entropy": torch.rand(MASK.shape, generator=made) + 2.0 * ~MASK,
        "rewards": torch.tensor([[1.0], [0], [0], [1]]),
        "advantages": torch.tensor([0.87, -0.87, -0.87, 0.87]), "meta": META,
    }  # fmt: skip
    return Batch(**given | fields)


# ---- masked slots -----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", PRESETS)
def test_our_own_loss_does_not_read_masked_slots(name):
    batch = small(advantages=small().advantages.unsqueeze(1).expand_as(MASK).clone(), finish_reasons=("stop",) * 4)
    assert padding_invariance(batch, core_loss(preset(name).convention())) == ()


def careless(batch):
    """A trainer's loss that multiplies by the mask, and a KL over everything."""
    mask = batch.trained_mask().float()
    ratio = (batch.policy_logprobs - batch.old_logprobs).exp() * mask
    return {"loss": -(ratio * batch.advantages.unsqueeze(1)).sum(), "kl": (batch.policy_logprobs - batch.ref_logprobs).mean()}


def test_a_careless_loss_is_told_with_the_tensor():
    moved = padding_invariance(small(), careless)
    assert {one.fill for one in moved} == set(FILLS)
    loss = next(one for one in moved if one.quantity == "loss")
    assert loss.fill == "NaN" and loss.after != loss.after  # NaN · 0 is NaN; ±100 · 0 is not seen, unless exp overflows
    assert next(one for one in moved if one.quantity == "kl").tensors == ("policy_logprobs", "ref_logprobs")


def test_filling_touches_masked_slots_only():
    batch = small()
    for fill in FILLS:
        changed = filled(batch, fill, FILLED)
        assert torch.equal(changed.policy_logprobs[MASK], batch.policy_logprobs[MASK])
        assert not torch.equal(changed.policy_logprobs[~MASK], batch.policy_logprobs[~MASK])


# ---- what was printed -------------------------------------------------------------------------------------------------------
def numbers(batch):
    x = batch.policy_logprobs - batch.ref_logprobs
    kl = (-x).exp() + x - 1
    both = {"kl": kl, "entropy": batch.entropy}
    return {name: (float(values[MASK].mean()), float(values.mean())) for name, values in both.items()}


@pytest.mark.parametrize("name", ["kl", "entropy"])
def test_a_printed_mean_over_all_slots(name):
    batch = small()
    right, everywhere = numbers(batch)[name]
    (finding,) = slots_check(Evidence(batch=replace(batch, reported={name: everywhere})))
    assert finding.severity == "error" and finding.expected[name] == pytest.approx(right) and finding.found[name] == everywhere
    assert set(finding.tokens) == {(0, 4), (0, 5), (1, 5), (2, 3)} and finding.rows == (0, 1, 2)
    assert slots_check(Evidence(batch=replace(batch, reported={name: right}))) == []
    assert slots_check(Evidence(batch=replace(batch, reported={name: 0.7 * right}))) == []  # neither: not this check's affair
    assert slots_check(Evidence(batch=replace(batch, reported={name: float("nan")}))) == []


def test_a_mean_that_is_the_same_over_all_slots_is_right():
    batch = small(entropy=torch.ones_like(MASK).float(), reported={"entropy": 1.0})
    assert slots_check(Evidence(batch=batch)) == []


def test_a_gap_inside_the_completion_counted_without_the_padding():
    batch = small()
    span = MASK.clone()
    span[2, 1] = True
    printed = float(batch.entropy[span].mean())
    (finding,) = slots_check(Evidence(batch=replace(batch, reported={"entropy": printed})))
    assert finding.tokens == ((2, 3),) and finding.rows == (2,)


def test_the_entropy_estimated_from_the_logprobs():
    batch = small(entropy=None)
    printed = float(-batch.policy_logprobs.mean())
    (finding,) = slots_check(Evidence(batch=replace(batch, reported={"entropy": printed})))
    assert finding.expected["entropy_estimate"] == pytest.approx(float(-batch.policy_logprobs[MASK].mean()))


def test_a_loss_whose_kl_part_is_a_mean_over_all_slots():
    batch = small()
    right = core_loss(Evidence(batch=batch).settings.convention)(batch)["loss"]
    kl, everywhere = numbers(batch)["kl"]
    printed = float(right) + META["beta"] * (everywhere - kl)
    (finding,) = slots_check(Evidence(batch=replace(batch, reported={"loss": printed})))
    assert finding.expected["loss"] == pytest.approx(float(right)) and finding.found["loss"] == pytest.approx(printed)
    assert slots_check(Evidence(batch=replace(batch, reported={"loss": float(right)}))) == []
    unsaid = {name: value for name, value in META.items() if name != "aggregation"}  # then it may be another reduction
    assert slots_check(Evidence(batch=replace(batch, reported={"loss": printed}, meta=unsaid))) == []


# ---- the padding beside a row -----------------------------------------------------------------------------------------------
def padded(policy_change=0.0, **fields):
    """Rows 2 and 3 have two pads at the left; the policy differs there by `policy_change`."""
    mask = torch.ones(4, 4, dtype=torch.bool)
    mask[2:, :2] = False
    old = small().old_logprobs
    change = torch.zeros(4, 4)
    change[2:] = policy_change * torch.tensor([1.0, -1.0, 1.0, 1.0])
    prompt = torch.where(mask, torch.full((4, 4), 3), PAD)
    return small(prompt_ids=prompt, prompt_mask=mask, completion_mask=torch.ones_like(MASK), old_logprobs=old,
                 policy_logprobs=old + change, sampler_logprobs=old, entropy=None, ref_logprobs=None, **fields)  # fmt: skip


def test_only_rows_with_padding_are_off():
    (finding,) = padding_check(Evidence(batch=padded(0.5)))
    assert finding.rows == (2, 3) and finding.severity == "error" and finding.quantity == "policy_logprobs"
    assert finding.expected["policy_logprobs[2]"] == pytest.approx(padded().old_logprobs[2].tolist())
    name = "max_abs_log_ratio_rows_2_3"
    assert finding.expected[name] == 0.0 and finding.found[name] == pytest.approx(0.5)


def test_rows_off_for_another_reason_are_not_blamed_on_padding():
    every = padded(0.5)
    elsewhere = replace(every, policy_logprobs=every.old_logprobs + 0.5)
    later = replace(every, meta=META | {"iteration": 1, "updates_since_sampling": 1})
    other_prompt = replace(every, sampler_prompt_ids=torch.full((4, 5), 3))
    other_prompt = replace(other_prompt, old_logprobs=every.policy_logprobs)
    left = torch.zeros_like(every.prompt_mask)
    left[:, 2:] = True
    nobody_without = replace(every, prompt_mask=left)
    for batch in (padded(), padded(0.004), elsewhere, later, other_prompt, nobody_without):
        assert padding_check(Evidence(batch=batch)) == []


def test_a_model_scores_a_row_alone_as_in_the_batch(policy, trace):
    batch = trace.batch
    gaps = padding_invariance_model(batch, policy)
    assert len(gaps) == 8 and max(one.gap for one in gaps) < 1e-4 and any(one.pads for one in gaps)
    holes = batch.row_mask().clone()
    holes[3, -14:-12] = False  # two prompt tokens hidden
    broken = replace(batch, attention_mask=holes, meta={"pad_token_id": PAD})
    worst = max(padding_invariance_model(broken, policy), key=lambda one: one.gap)
    assert worst.row == 3 and worst.gap > 1e-2
    (finding,) = padding_check(Evidence(batch=broken, policy=policy))
    assert finding.rows == (3,) and finding.severity == "error"
    assert padding_check(Evidence(batch=batch, policy=policy)) == []


# ---- the same tokens twice --------------------------------------------------------------------------------------------------
def test_contexts_are_equal_exactly_where_two_rows_agree_so_far():
    ids = torch.tensor([[7, 8, 9, 9], [7, 8, 9, 5], [7, 9, 8, 9], [6, 8, 9, 9]])
    batch = padded(completion_ids=ids)
    batch = replace(batch, prompt_ids=torch.where(batch.prompt_mask, 3, PAD), prompt_mask=batch.prompt_mask[:1].expand(4, 4))
    found = contexts(replace(batch, prompt_ids=torch.full((4, 4), 3)))
    assert torch.equal(found[0, :3], found[1, :3]) and found[0, 3] != found[1, 3]
    assert found[0, 1] != found[2, 1] and found[0, 2] != found[2, 2]  # the same tokens in another order
    assert not (found[3] == found[0]).any()


def test_repeats_are_those_of_a_comparison_of_all_pairs():
    made = torch.Generator().manual_seed(4)
    ids, mask = torch.randint(5, 7, (12, 7), generator=made), torch.rand(12, 1, generator=made) * 8 >= torch.arange(7)
    one = torch.ones(12, 1, dtype=torch.long)
    batch = Batch(prompt_ids=one, prompt_mask=one.bool(), completion_ids=ids, completion_mask=mask)
    rows = [row[keep].tolist() for row, keep in zip(ids, mask, strict=True)]
    for row, tokens in enumerate(rows):
        for place in range(7):
            equal = [r for r in range(12) if place < len(tokens) and rows[r][: place + 1] == tokens[: place + 1]]
            found = repeats(batch)
            same = ((found == found[row, place]) & (found >= 0)).any(1).nonzero().flatten().tolist()
            assert same == (equal if len(equal) > 1 else [])


def test_a_model_that_answers_differently_the_second_time(policy, trace, monkeypatch):
    assert repeated_pass(trace.batch, policy) == 0.0
    plain = type(policy).project
    monkeypatch.setattr(type(policy), "project", lambda self, hidden: plain(self, hidden + 0.1 * torch.randn_like(hidden)))
    assert repeated_pass(trace.batch, policy) > 0.01
