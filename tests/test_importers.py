"""Other tools' dumps: each sample of data/imports (made by import_samples.py) gives back the step that it was written from."""

import ast
import json
import os
from pathlib import Path

import pytest
import torch
from import_samples import HERE, PROMPTS, step_batch
from peers import require

from grpo_core import load_policy
from grpo_core.compare import evaluate
from grpo_core.importers import lacking, open_any
from grpo_core.inputs import LossInputs
from grpo_core.presets import preset

WITH_IDS = ("nemo-rl.jsonl", "slime.pt", "slime-early.pt", "openrlhf.pt")
TEXTS = ("trl-completions.parquet", "verl-rollout.jsonl", "rows.json", "rows.jsonl")


@pytest.fixture(scope="module")
def tiny():
    return load_policy("tiny")


@pytest.fixture(scope="module")
def step():
    return step_batch()


def per_row(batch, name: str) -> list[list[float]]:
    """A [B T] field at each row's completion tokens."""
    values, mask = getattr(batch, name), batch.completion_columns()
    return [row[there].tolist() for row, there in zip(values, mask, strict=True)]


def tokens(batch) -> list[list[int]]:
    ids, real = batch.row_ids(), batch.row_mask()
    return [row[there].tolist() for row, there in zip(ids, real, strict=True)]


def completions(batch) -> list[list[int]]:
    ids, there = batch.row_ids(), batch.row_completion_mask()
    return [row[mask].tolist() for row, mask in zip(ids, there, strict=True)]


def close(left, right) -> bool:
    return all(a == pytest.approx(b, abs=1e-4) for a, b in zip(left, right, strict=True))


# ---- what comes out of each -------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", WITH_IDS)
def test_a_dump_with_ids_gives_back_the_step(step, name):
    batch, found = open_any(HERE / name)
    assert found.format == name.split(".")[0].removesuffix("-early") and found.rows == 6
    assert tokens(batch) == tokens(step) and completions(batch) == completions(step)
    assert torch.equal(batch.trained_mask().sum(1), step.trained_mask().sum(1))
    held = {"old_logprobs", "policy_logprobs", "ref_logprobs", "sampler_logprobs"}
    held -= {"ref_logprobs"} if name == "nemo-rl.jsonl" else {"sampler_logprobs"} if "early" in name else set()
    for field in held:
        assert close(per_row(batch, field), per_row(step, field)), field
    assert batch.rewards.tolist() == step.rewards.tolist() and batch.group_ids.tolist() == step.group_ids.tolist()
    advantages = (
        batch.advantages if batch.advantages.dim() == 1 else torch.tensor([row[0] for row in per_row(batch, "advantages")])
    )
    torch.testing.assert_close(advantages, step.advantages)
    assert batch.meta["iteration"] == 0 and any(line.startswith("policy_logprobs: old_logprobs") for line in found.filled)
    theirs = evaluate(LossInputs.of_batch(step), preset("trl/grpo").convention())
    assert evaluate(LossInputs.of_batch(batch), preset("trl/grpo").convention()).loss == pytest.approx(
        theirs.loss, rel=1e-3, abs=1e-5
    )


@pytest.mark.parametrize("name", WITH_IDS)
def test_a_model_scores_what_a_dump_has_no_policy_for(step, tiny, name):
    batch, found = open_any(HERE / name, tiny)
    assert "policy_logprobs: scored now by tiny at temperature 1, as if it were the policy" in found.filled
    for row, expected in zip(per_row(batch, "policy_logprobs"), per_row(step, "policy_logprobs"), strict=True):
        assert row == pytest.approx(expected, abs=1e-4)
    assert batch.meta["eos_token_ids"] and batch.meta["vocab_size"] == tiny.vocab_size and batch.entropy is not None
    hot, _ = open_any(HERE / name, tiny, temperature=2.0)
    assert hot.meta["temperature"] == 2.0 and (hot.policy_logprobs - batch.policy_logprobs).abs().max() > 0.1
    assert not any(line.startswith("policy_logprobs: old") for line in found.filled)


@pytest.mark.parametrize("name", TEXTS)
def test_texts_need_a_model_and_say_so(tiny, name):
    with pytest.raises(ValueError, match=r"completion_ids: found texts only, 6 rows, allowed: --model NAME") as refused:
        open_any(HERE / name)
    assert "\n" not in str(refused.value) and "read as " in str(refused.value)
    batch, found = open_any(HERE / name, tiny)
    assert "the loss" not in found.lacking and batch.group_ids.tolist() == [0, 0, 0, 1, 1, 1]
    assert "policy_logprobs: scored now by tiny at temperature 1, as if it were the policy" in found.filled
    assert torch.equal(batch.policy_logprobs, batch.old_logprobs) and batch.meta["iteration"] == 0
    loss = evaluate(LossInputs.of_batch(batch), preset("trl/grpo").convention()).loss
    assert torch.tensor(loss).isfinite() and "eos_token_ids" not in batch.meta


def test_trls_own_table(tiny):
    batch, found = open_any(HERE / "trl-completions.parquet", tiny)
    assert found.format == "trl-completions" and found.encoding == "parquet" and batch.reward_names == ("distinct", "long")
    assert batch.rewards_missing is not None and batch.rewards_missing.sum() == 1 and batch.meta["logged_step"] == 1
    done = evaluate(LossInputs.of_batch(batch), preset("trl").convention())
    torch.testing.assert_close(done.advantages[:, 0], batch.advantages, rtol=1e-4, atol=1e-4)  # the columns are the rewards
    prompts = [tiny.tokenizer.decode(row[there]) for row, there in zip(batch.prompt_ids, batch.prompt_mask, strict=True)]
    assert {prompt.replace(" ", "") for prompt in prompts} >= {prompt.replace(" ", "") for prompt in PROMPTS}


def test_verls_texts_say_what_they_lack(tiny):
    batch, found = open_any(HERE / "verl-rollout.jsonl", tiny)
    assert found.format == "verl-rollout" and any("chat markers" in line for line in found.filled)
    assert (
        batch.reward_names == ("score",)
        and batch.meta["logged_step"] == 4
        and found.lacking["groups and advantages"] == ("advantages",)
    )


def test_verls_own_function_writes_what_is_read(tmp_path, tiny):
    """Its trainer needs packages that are not here, so the function is taken out of the file."""
    require("verl", "tests/peers.txt")
    import verl

    source = (Path(verl.__file__).parent / "trainer" / "ppo" / "ray_trainer.py").read_text()
    writer = next(n for n in ast.walk(ast.parse(source)) if isinstance(n, ast.FunctionDef) and n.name == "_write_generations")
    writer.decorator_list = []
    space = {"os": os, "json": json}
    exec(compile(ast.Module([writer], []), "verl", "exec"), space)
    space["_write_generations"](["a", "a"], [" 4", " 5"], [None, "4"], [1.0, 0.5], {"acc": [1, 0]}, str(tmp_path), 12)
    batch, found = open_any(tmp_path / "12.jsonl", tiny)
    assert found.format == "verl-rollout" and batch.rewards.tolist() == [[1.0], [0.5]] and batch.meta["logged_step"] == 12


def test_a_unipo_log(step, tiny):
    batch, found = open_any(HERE / "unipo.json")
    assert (
        found.format == "unipo"
        and completions(batch) == completions(step)
        and close(per_row(batch, "old_logprobs"), per_row(step, "policy_logprobs"))
    )
    assert batch.meta["clip_high"] == 0.2 and batch.meta["beta"] == 0.04 and batch.meta["logged_step"] == 3
    assert not batch.prompt_mask.any() and any(line.startswith("prompt_ids: unknown") for line in found.filled)
    assert "the loss" not in found.lacking and batch.meta["tokens"] and batch.rewards.tolist() == step.rewards.tolist()
    assert open_any(HERE / "unipo.json", step=2)[0].meta["logged_step"] == 2
    with pytest.raises(ValueError, match=r"step: found 9, allowed: a step with responses"):
        open_any(HERE / "unipo.json", step=9)
    assert open_any(HERE / "unipo.json", tiny)[0].prompt_mask.any()


def test_a_logging_board_file_with_and_without_its_tokenizer(step, tiny):
    batch, found = open_any(HERE / "rl-logging-board.jsonl")
    assert found.format == "rl-logging-board" and "rows: those of step 4; the file holds 2 steps, 3 to 4" in found.filled
    assert close(per_row(batch, "policy_logprobs"), per_row(step, "policy_logprobs")) and batch.ref_logprobs is not None
    texts = batch.meta["tokens"]
    pieces = [[texts[str(token)] for token in row] for row in completions(batch)]
    assert pieces == [tiny.tokenizer.convert_ids_to_tokens(row) for row in completions(step)]
    known, found = open_any(HERE / "rl-logging-board.jsonl", tiny, step=3)
    assert completions(known) == completions(step) and known.meta["logged_step"] == 3
    assert not any("no tokenizer's ids" in line for line in found.filled)


def test_plain_rows_and_their_names(tmp_path, tiny):
    rows = [{"prompt": [{"role": "user", "content": "1 + 1 ="}], "response": [{"role": "assistant", "content": " 2"}],
             "reward": {"right": 1, "short": None}, "group": "g", "advantage": 0.5, "finish_reason": "stop"}] * 2  # fmt: skip
    (tmp_path / "x").write_text(json.dumps(rows))
    batch, found = open_any(tmp_path / "x", tiny)
    assert (
        found.format == "rows"
        and batch.reward_names == ("right", "short")
        and batch.rewards_missing.tolist() == [[False, True]] * 2
    )
    assert (
        batch.finish_reasons == ("stop", "stop")
        and batch.advantages.tolist() == [0.5, 0.5]
        and batch.group_ids.tolist() == [0, 0]
    )
    assert tokens(batch)[0][: len(tiny.encode("1 + 1 ="))] == tiny.encode("1 + 1 =")


def test_multi_turn_rows_of_nemo_and_rows_left_out(tmp_path):
    row = {"token_ids": [[5, 6, 7, 8, 9, 0]], "token_loss_mask": [[0, 1, 0, 1, 1, 0]], "input_lengths": [5],
           "sample_loss_mask": [1.0], "prev_logprobs": [[0, -1, -2, -3, -4, 0]], "advantages": [0.5]}  # fmt: skip
    (tmp_path / "x").write_text(json.dumps(row) + "\n" + json.dumps(row | {"sample_loss_mask": [0.0]}) + "\n")
    batch, _ = open_any(tmp_path / "x")
    assert (
        batch.trained_mask().int().tolist() == [[1, 0, 1, 1], [0, 0, 0, 0]]
        and batch.tool_mask.int().tolist() == [[1, 0, 1, 1]] * 2
    )
    assert batch.response_mask.int().tolist() == [[0, 1, 1, 1, 1]] * 2 and batch.old_logprobs.tolist() == [[-1, -2, -3, -4]] * 2


def test_slimes_rollout_dump_and_raw_rewards_by_place(tmp_path):
    sample = {
        "tokens": [1, 2, 3, 4],
        "response_length": 2,
        "loss_mask": [1, 0],
        "reward": 0.5,
        "rollout_log_probs": [-1.0, -2.0],
    }
    torch.save({"rollout_id": 1, "samples": [sample, sample]}, tmp_path / "a")
    batch, _ = open_any(tmp_path / "a")
    assert batch.sampler_logprobs.tolist() == [[-1.0, -2.0]] * 2 and batch.loss_mask.int().tolist() == [[1, 0]] * 2
    assert batch.rewards.tolist() == [[0.5], [0.5]] and batch.policy_logprobs is None and lacking(batch)["the loss"]
    placed = [sample | {"rollout_position": 2}, sample | {"rollout_position": 0}]
    torch.save({"samples": placed, "raw_reward": [7.0, 8.0, 9.0]}, tmp_path / "b")
    assert open_any(tmp_path / "b")[0].rewards.tolist() == [[9.0], [7.0]]


def test_experiences_in_a_list_and_of_completions_only(tmp_path):
    one = {
        "sequences": torch.tensor([[0, 5, 6, 7]]), "attention_mask": torch.tensor([[0, 1, 1, 1]]),
        "action_mask": torch.tensor([[1, 1]]), "action_log_probs": torch.tensor([[-1.0, -2.0]]),
    }  # fmt: skip
    torch.save([one, one], tmp_path / "a")
    batch, found = open_any(tmp_path / "a")
    assert found.format == "openrlhf" and batch.old_logprobs.tolist() == [[0.0, -1.0, -2.0]] * 2
    assert batch.response_mask.int().tolist() == [[0, 0, 1, 1]] * 2 and batch.group_ids.tolist() == [0, 0]
