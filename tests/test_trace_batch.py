"""A traced step as a batch, in memory and on disk."""

from dataclasses import replace

import pytest
from test_batch_io import ENCODINGS, differences, same

from grpo_core import batch_of_trace, load_batch, reweigh, save_batch
from grpo_core.batch_file import remarks


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("update", [0, -1])
def test_a_traced_step_is_a_batch_file(trace, policy, tmp_path, encoding, update):
    edited = replace(trace.recipe, edited_rewards=((1, 0, None), *trace.recipe.edited_rewards[2:]))
    batch = batch_of_trace(replace(trace, recipe=edited), update, policy)
    save_batch(batch, tmp_path / f"step.{encoding}")
    again = load_batch(tmp_path / f"step.{encoding}")
    assert differences(batch, again) == [] and remarks(again) == ()
    assert again.rewards_missing is not None and again.rewards_missing.nonzero().tolist() == [[1, 0]]
    assert same(again.advantages, trace.advantages.advantages)
    assert same(again.policy_logprobs, trace.updates[update].terms.policy_logprobs)
    assert again.meta["iteration"] == again.meta["updates_since_sampling"] == (0 if update == 0 else 1)
    assert again.reported["loss"] == float(trace.updates[update].terms.loss)
    assert again.reported["num_items"] == int(trace.batch.trained_mask().sum())
    assert again.meta["eos_token_ids"] == [2] and again.meta["tokens"]["2"] == "<eos>"


def test_what_a_reweighed_step_and_other_conventions_say(trace):
    whitened = replace(trace.recipe, advantage_whiten="unbiased", surrogate="dual-clip", layout="sequence", mask_truncated=True)
    step = reweigh(trace, whitened)
    batch = batch_of_trace(step)
    assert batch.layout == "sequence" and same(batch.loss_mask, step.batch.trained_mask())
    assert same(batch.advantages, step.token_advantages) and batch.meta["dual_clip"] == 3.0
    assert "grad_norm" not in batch.reported and "dual_clip" not in batch_of_trace(trace).meta
    assert batch_of_trace(trace).reported["grad_norm"] == trace.updates[-1].grad_norm
