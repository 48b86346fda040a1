"""vLLM as the sampler: what it answers is read right, what cannot be used is refused in one line, and, against a real server,
that each step is sampled from the weights of that step. A stand-in only repeats what a real server was recorded to say."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from vllm_server import RECORDED, RealServer, Replay, free_port, needs_vllm, recorded, save_untied

from grpo_core.__main__ import main
from grpo_core.engine import LOCAL
from grpo_core.logprobs import score_tokens
from grpo_core.rollout import to_batch
from grpo_core.samplers.vllm import Vllm, rows_of_answer
from grpo_core.samplers.vllm_server import VllmServer
from grpo_core.train_config import TrainConfig
from grpo_core.trainer import Trainer

SMALL = {
    "sampler": "vllm", "steps": 3, "prompts_per_step": 2, "group_size": 4, "max_completion_length": 16, "learning_rate": 1e-2,
    "threads": 1, "scoring": "padded",
}  # fmt: skip
START = "start it with VLLM_SERVER_DEV_MODE=1 vllm serve MODEL --logprobs-mode processed_logprobs"


# ---- what a real server was recorded to say --------------------------------------------------------------------------------
def test_rows_are_read_from_a_real_answer():
    asked, answer = RECORDED["completions"]["body"], RECORDED["completions"]["answer"]
    rows = rows_of_answer(answer)
    assert len(rows) == asked["n"] == 3
    for (ids, logprobs), choice in zip(rows, answer["choices"], strict=True):
        assert len(ids) == len(logprobs) <= asked["max_tokens"] and all(value <= 0 for value in logprobs)
        assert (ids[-1] in asked["stop_token_ids"]) == (choice["finish_reason"] == "stop")
    mixed = answer | {"choices": answer["choices"][::-1]}
    assert rows_of_answer(mixed) == rows


def test_recorded_logprobs_are_the_models_at_the_sampling_temperature(tmp_path):
    from grpo_core import load_policy
    from grpo_core.samplers.sampler import _tensors_of
    from grpo_core.types import Batch

    asked, policy = RECORDED["completions"]["body"], load_policy(save_untied(tmp_path / "model"))
    assert asked["temperature"] == 0.7 and asked["prompt"] == policy.encode("What is 12 + 7?")
    ids, mask, logprobs, kept = _tensors_of(policy, rows_of_answer(RECORDED["completions"]["answer"]))
    prompt = torch.tensor([asked["prompt"]] * len(ids))
    batch = Batch(prompt_ids=prompt, prompt_mask=prompt >= 0, completion_ids=ids, completion_mask=mask)
    with torch.no_grad():
        scored = {t: score_tokens(policy, batch, t).logprobs for t in (0.7, 1.0)}
    assert torch.allclose(scored[0.7], logprobs, atol=1e-4) and not torch.allclose(scored[1.0], logprobs, atol=0.1)
    assert torch.equal(kept, mask.float())


USABLE = {"v1/models": recorded("models"), "server_info": recorded("server_info")}
RAW = json.loads(USABLE["server_info"][1])
RAW["vllm_config"]["model_config"]["logprobs_mode"] = "raw_logprobs"  # the default of `vllm serve`


@pytest.mark.parametrize(
    ("answers", "settings", "said"),
    [
        ({"server_info": (404, b"{}")}, {}, f"vllm_url: the server at URL has no /server_info; {START}"),
        ({"server_info": (200, json.dumps(RAW).encode())}, {"temperature": 0.7},
         "vllm_url: found a server with --logprobs-mode raw_logprobs, allowed at temperature 0.7: processed_logprobs; start"),
        ({}, {"max_completion_length": 256},
         "max_completion_length: found 256, allowed: below the 256 tokens that the server at URL reads (--max-model-len)"),
        ({"v1/models": (200, b"<html>")}, {}, "vllm_url: URL answers /v1/models with something else than JSON; is it vLLM?"),
        ({"v1/models": (200, b"{}")}, {}, "vllm_url: URL answers in another way than vLLM 0.32 (KeyError: 'data')"),
        ({"v1/models": recorded("reload_nowhere")}, {},
         "vllm_url: the server at URL refuses /v1/models (Call to collective_rpc method failed: Worker failed with "),
    ],
)  # fmt: skip
def test_a_server_that_cannot_be_used_is_refused_before_anything_is_loaded(answers, settings, said):
    server = Replay(**(USABLE | answers))
    try:
        with pytest.raises(ValueError) as refused:
            Trainer(TrainConfig(**(SMALL | settings | {"vllm_url": server.url, "model": "/no/such/folder"})))
    finally:
        server.stop()
    assert str(refused.value).startswith(said.replace("URL", server.url)) and "\n" not in str(refused.value)


def test_raw_logprobs_will_do_at_temperature_1():
    server = Replay(**(USABLE | {"server_info": (200, json.dumps(RAW).encode())}))
    try:
        assert Vllm(TrainConfig(**SMALL, vllm_url=f"{server.url}/"), LOCAL).model == "MODEL"
    finally:
        server.stop()


def test_no_server_is_one_line(capsys, tmp_path):
    url, out = f"http://127.0.0.1:{free_port()}", tmp_path / "out"
    assert main(["train", "--set=sampler=vllm", f"--set=vllm_url={url}", f"--set=out={out}"]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"vllm_url: no answer from {url} to /v1/models (") and said.count("\n") == 1 and not out.exists()


def test_what_vllm_refuses_is_said_in_its_words():
    server = Replay(**{"v1/completions": recorded("too_long")})
    try:
        with pytest.raises(ValueError, match="max_tokens=600 cannot be greater than max_model_len=256"):
            VllmServer(server.url, 5.0).post("v1/completions", RECORDED["too_long"]["body"])
    finally:
        server.stop()


# ---- a real server ---------------------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return save_untied(tmp_path_factory.mktemp("untied") / "model")


@pytest.fixture(scope="module")
def server(model, tmp_path_factory):
    found = RealServer(model, tmp_path_factory.mktemp("vllm") / "log", "--logprobs-mode", "processed_logprobs")
    yield found
    found.stop()


def records_of(server: RealServer, model: str, out: Path, **settings):
    trainer = Trainer(TrainConfig(**(SMALL | {"model": model, "vllm_url": server.url, "out": str(out)} | settings)))
    return trainer, list(trainer.run())


@needs_vllm
@pytest.mark.parametrize("settings", [{}, {"temperature": 0.7}, {"lora_rank": 4}], ids=["plain", "T 0.7", "adapters"])
def test_each_step_is_sampled_from_the_weights_of_that_step(server, model, tmp_path, settings):
    """At this learning rate the weights of the step before are far away: 0.1 nats and more."""
    first, records = records_of(server, model, tmp_path, **settings)
    assert all(record.metrics["sampler_gap"] < 1e-4 for record in records), [r.metrics["sampler_gap"] for r in records]
    moved = to_batch(records[-1].rollout, "prompt_completion")
    with torch.no_grad():
        start = score_tokens(Trainer(replace(first.config, sampler="own", vllm_url="")).policy, moved, first.config.temperature)
    mask = moved.trained_mask()
    assert moved.sampler_logprobs is not None
    assert float((start.logprobs - moved.sampler_logprobs).abs()[mask].mean()) > 0.1
    for record in records:
        rollout = record.rollout
        assert torch.equal(rollout.kept_mass, rollout.completion_mask.float())
        ends = [reason == "stop" for reason in rollout.finish_reasons]
        last = [int(ids[mask][-1]) for ids, mask in zip(rollout.completion_ids, rollout.completion_mask, strict=True)]
        assert [token in first.policy.eos_ids for token in last] == ends
    assert [path.name for path in (tmp_path / "vllm").iterdir()] == ["weights-00000002"]


@needs_vllm
def test_the_same_seed_gives_the_same_rows(server, model, tmp_path):
    texts = [[r.rollout.completions for r in records_of(server, model, tmp_path, seed=s, steps=1)[1]] for s in (3, 3, 4)]
    assert texts[0] == texts[1] != texts[2]


@needs_vllm
def test_a_model_that_the_server_does_not_serve_is_refused(server, tmp_path):
    with pytest.raises(ValueError, match="sampler: found 'vllm' on a CPU with 'tiny', whose output head is its embeddings"):
        records_of(server, "tiny", tmp_path)


@needs_vllm
def test_a_server_that_ends_in_the_middle_is_one_line_and_the_run_goes_on_with_another(model, tmp_path, capsys):
    arguments = ["train", "--set=checkpoint_every=1", f"--set=out={tmp_path / 'run'}", f"--set=model={model}"]
    arguments += [f"--set={name}={value}" for name, value in SMALL.items() if name != "steps"]
    first = RealServer(model, tmp_path / "log", "--logprobs-mode", "processed_logprobs")
    trainer = Trainer(TrainConfig(**(SMALL | {"model": model, "vllm_url": first.url, "out": str(tmp_path / "other")})))
    assert main([*arguments, "--set=steps=1", f"--set=vllm_url={first.url}"]) == 0
    next(run := trainer.run())
    first.stop()
    with pytest.raises(ValueError, match=f"vllm_url: no answer from {first.url} to /weight_info .*; is the server running"):
        next(run)
    second = RealServer(model, tmp_path / "log", "--logprobs-mode", "processed_logprobs")
    try:
        assert main([*arguments, "--set=steps=3", "--resume", f"--set=vllm_url={second.url}"]) == 0
    finally:
        second.stop()
    lines = (tmp_path / "run" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["step"] for line in lines] == [0, 1, 2]
    assert max(json.loads(line)["sampler_gap"] for line in lines) < 1e-4
