"""A batch file's contents as what a loss needs: taken as stored, derived only where that is certain, never made up."""

from dataclasses import replace

import pytest
import torch

from grpo_core import Batch
from grpo_core.compare import evaluate
from grpo_core.convention import Convention
from grpo_core.inputs import LossInputs

IDS = torch.tensor([[3, 4, 5, 2], [3, 6, 7, 8], [4, 5, 2, 0], [4, 6, 6, 2]])
MASK = torch.tensor([[0, 0, 1, 1], [0, 0, 1, 1], [0, 1, 1, 0], [0, 1, 1, 1]]).bool()
LOGPROBS = -torch.arange(1.0, 13.0).view(4, 3) / 4


def batch(**fields):
    given = {"input_ids": IDS, "attention_mask": IDS != 0, "response_mask": MASK, "policy_logprobs": LOGPROBS}
    return Batch(**given | fields)


def test_what_is_stored_is_taken_as_it_is():
    given = batch(
        old_logprobs=LOGPROBS - 0.1, ref_logprobs=LOGPROBS - 0.2, sampler_logprobs=LOGPROBS - 0.3, entropy=-LOGPROBS,
        rewards=torch.tensor([[1.0, 0.0], [0.0, float("nan")], [1.0, 1.0], [0.0, 0.0]]),
        rewards_missing=torch.tensor([[False, False], [False, True], [False, False], [False, False]]),
        reward_weights=torch.tensor([1.0, 0.5]), group_ids=torch.tensor([0, 0, 1, 1]),
        finish_reasons=("stop", "length", "stop", "stop"), meta={"max_completion_length": 5},
    )  # fmt: skip
    got = LossInputs.of_batch(given)
    assert torch.equal(got.mask, MASK[:, 1:]) and got.width == 3 and got.max_completion_length == 5
    assert got.rewards == ((1.0, 0.0), (0.0, None), (1.0, 1.0), (0.0, 0.0)) and got.reward_weights == (1.0, 0.5)
    assert got.truncated.tolist() == [False, True, False, False] and got.derived == ()
    for name, gap in (("old", 0.1), ("ref", 0.2), ("sampler", 0.3)):
        assert torch.equal(getattr(got, f"{name}_logprobs"), LOGPROBS - gap)


def test_nothing_is_made_up():
    got = LossInputs.of_batch(batch())
    for name in (
        "old_logprobs",
        "ref_logprobs",
        "sampler_logprobs",
        "entropy",
        "rewards",
        "group_ids",
        "truncated",
        "advantages",
    ):
        assert getattr(got, name) is None, name


@pytest.mark.parametrize(
    ("meta", "field"), [({"iteration": 0}, "old_logprobs"), ({"step": 0}, "ref_logprobs")], ids=["old", "ref"]
)
def test_before_any_step_the_policy_stands_for_the_other_and_it_is_said(meta, field):
    got = LossInputs.of_batch(batch(meta=meta))
    assert torch.equal(getattr(got, field), LOGPROBS)
    assert got.derived == (f"{field}: the policy's, since meta.{next(iter(meta))} is 0",)
    (other,) = {"old_logprobs", "ref_logprobs"} - {field}
    assert getattr(got, other) is None
    assert getattr(LossInputs.of_batch(batch(meta={next(iter(meta)): 1})), field) is None


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_logprobs_and_entropy_come_from_the_logits_at_the_sampling_temperature(temperature):
    logits = torch.randn(4, 4, 9, generator=torch.Generator().manual_seed(0))
    got = LossInputs.of_batch(batch(policy_logprobs=None, logits=logits, meta={"temperature": temperature}))
    rows = (logits[:, :-1] / temperature).log_softmax(-1)
    expected = rows.gather(2, IDS[:, 1:].unsqueeze(2)).squeeze(2)
    torch.testing.assert_close(got.policy_logprobs[got.mask], expected[got.mask])
    torch.testing.assert_close(got.entropy[got.mask], -(rows.exp() * rows).sum(-1)[got.mask])
    assert [sentence.split(":")[0] for sentence in got.derived] == ["policy_logprobs", "entropy"]


def test_without_log_probs_and_logits_there_is_no_loss():
    with pytest.raises(ValueError, match="policy_logprobs: found neither policy_logprobs nor logits"):
        LossInputs.of_batch(batch(policy_logprobs=None))


def test_groups_of_consecutive_rows_and_cut_rows_are_derived_from_the_settings():
    got = LossInputs.of_batch(batch(meta={"num_generations": 2, "eos_token_ids": [2]}))
    assert got.group_ids.tolist() == [0, 0, 1, 1] and got.truncated.tolist() == [False, True, False, False]
    assert len(got.derived) == 2
    assert LossInputs.of_batch(batch(meta={"num_generations": 3})).group_ids is None  # 4 rows are no groups of 3


def test_micro_batches_hold_every_row_once():
    assert LossInputs.of_batch(batch(meta={"micro_batches": [[0, 2], [1, 3]]})).micro_batches == ((0, 2), (1, 3))
    for wrong in ([[0, 1]], [[0, 1], [1, 2, 3]], [0, 1, 2, 3], "all", [[0, 1, 2, 9]]):
        with pytest.raises(ValueError, match="meta.micro_batches: found .*, allowed: lists that hold each row 0 to 3 once"):
            LossInputs.of_batch(batch(meta={"micro_batches": wrong}))


def test_stored_advantages_stand_in_where_there_are_no_rewards():
    convention = Convention(beta=0.0, aggregation="token-mean")
    given = LossInputs.of_batch(batch(advantages=torch.tensor([1.0, -1.0, 2.0, -2.0]), meta={"iteration": 0}))
    # ratio 1 everywhere: minus the mean of A over 9 tokens, (2·1 - 2·1 + 2·2 - 3·2) / 9
    assert evaluate(given, convention).loss == pytest.approx(2 / 9)
    per_token = LossInputs.of_batch(batch(advantages=torch.full((4, 3), 0.5), meta={"iteration": 0}))
    assert evaluate(per_token, convention).loss == pytest.approx(-0.5)
    with pytest.raises(ValueError, match="needs rewards"):  # the sign of the reward decides there
        evaluate(given, replace(convention, surrogate="topr"))
