"""Batch files at the source: a verl DataProto, and a loop of one's own. TRL's runs are in test_capture_trl.py."""

import math
import subprocess
import sys

import numpy as np
import pytest
import torch
from peers import require

from grpo_core import capture, load_batch
from grpo_core.compare import evaluate
from grpo_core.inputs import LossInputs
from grpo_core.presets import preset


def test_capture_imports_no_trainer():
    code = "import sys, grpo_core; grpo_core.capture; sys.exit(bool({'trl', 'verl', 'pyarrow'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], timeout=300).returncode == 0


# ---- verl -----------------------------------------------------------------------------------------------------------------
def verl_tensors() -> dict:
    prompt, answer = torch.tensor([[0, 5, 6], [4, 5, 6]]), torch.tensor([[7, 8, 2, 0], [9, 3, 7, 2]])
    attention = torch.tensor([[0, 1, 1, 1, 1, 1, 0], [1] * 7])
    mask, scores = torch.tensor([[1, 1, 1, 0], [1, 0, 1, 1]]), torch.zeros(2, 4)
    scores[0, 2], scores[1, 3] = 1.0, 0.25
    return {
        "prompts": prompt, "responses": answer, "input_ids": torch.cat([prompt, answer], 1), "attention_mask": attention,
        "position_ids": (attention.cumsum(1) - 1).clamp(min=0), "response_mask": mask, "token_level_scores": scores,
        "old_log_probs": -torch.rand(2, 4), "ref_log_prob": -torch.rand(2, 4), "rollout_log_probs": -torch.rand(2, 4),
        "advantages": torch.tensor([[0.7] * 4, [-0.7] * 4]) * mask,
    }  # fmt: skip


def test_a_verl_data_proto(tmp_path):
    require("verl", "tests/peers.txt")
    from verl.protocol import DataProto

    tensors = verl_tensors()
    data = DataProto.from_dict(tensors, non_tensors={"uid": np.array(["a", "a"], dtype=object)}, meta_info={"temperature": 0.6})
    capture.verl(data, tmp_path / "verl.safetensors", preset="verl", loss=0.25, pad_token_id=0, eos_token_ids=[2])
    batch = load_batch(tmp_path / "verl.safetensors")
    assert batch.layout == "prompt_completion" and batch.completion_mask.int().tolist() == [[1, 1, 1, 0], [1] * 4]
    assert batch.trained_mask().int().tolist() == tensors["response_mask"].tolist() and batch.group_ids.tolist() == [0, 0]
    assert batch.tool_mask.int().tolist() == [[1, 1, 1, 1], [1, 0, 1, 1]] and batch.rewards.tolist() == [[1.0], [0.25]]
    assert torch.equal(batch.policy_logprobs, batch.old_logprobs) and batch.meta["iteration"] == 0 and batch.derived
    assert batch.meta["temperature"] == 0.6 and batch.reported == {"loss": 0.25} and batch.meta["framework"] == "verl"
    assert math.isfinite(evaluate(LossInputs.of_batch(batch), preset("verl").convention()).loss)


def test_plain_tensors_with_verls_names_and_the_actors_own_log_probs(tmp_path):
    own = -torch.rand(2, 4, requires_grad=True)
    batch = capture.verl(verl_tensors() | {"response_mask": torch.tensor([[1, 1, 1, 0], [1] * 4])}, tmp_path / "a.json", own)
    assert batch.loss_mask is None and not batch.derived and "iteration" not in batch.meta
    assert torch.equal(batch.policy_logprobs, own.detach()) and load_batch(tmp_path / "a.json").position_ids is not None
    with pytest.raises(ValueError, match="b.json: prompts: found none, allowed: prompts, responses and attention_mask"):
        capture.verl({"responses": own}, tmp_path / "b.json")


# ---- a loop of one's own ---------------------------------------------------------------------------------------------------
def test_a_home_made_loop(tmp_path):
    logprobs = torch.randn(2, 3, requires_grad=True, dtype=torch.bfloat16)
    batch = capture.save(
        tmp_path / "mine.safetensors", prompt_ids=[[1, 2], [2]], completion_ids=[[5, 6, 2], np.array([7, 2])],
        prompt_mask=[[1, 1], [1]], completion_mask=[[1, 1, 1], [1, 1]], policy_logprobs=logprobs, old_logprobs=None,
        rewards=np.array([1.0, 0.0]), temperature=0.7, loss=torch.tensor(0.5), my_number=3, meta={"beta": 0.1},
    )  # fmt: skip
    read = load_batch(tmp_path / "mine.safetensors")
    assert read.meta == {"temperature": 0.7, "beta": 0.1} and read.reported == {"loss": 0.5} and read.extra == {"my_number": 3}
    assert read.completion_mask.int().tolist() == [[1, 1, 1], [1, 1, 0]] and read.rewards.tolist() == [[1.0], [0.0]]
    assert torch.equal(batch.policy_logprobs, logprobs.detach().float()) and not read.policy_logprobs.requires_grad


def test_what_a_loop_gets_wrong_is_said_and_nothing_is_written(tmp_path):
    for fields, message in (
        ({"completion_ids": [[1]]}, "m.json: prompt_ids: found none beside completion_ids"),
        (
            {"input_ids": torch.ones(2, 3).long(), "response_mask": torch.ones(2, 3), "old_logprobs": torch.ones(2, 3)},
            "m.json: ",
        ),
        ({"input_ids": [[1, "x"]]}, "m.json: input_ids, row 0: found 'x'"),
    ):
        with pytest.raises(ValueError, match=message) as refused:
            capture.save(tmp_path / "m.json", **fields)
        assert "\n" not in str(refused.value)
    assert not list(tmp_path.iterdir())
