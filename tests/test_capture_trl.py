"""Batch files out of real TRL runs: their loss is TRL's own, and they hold what it used."""

import warnings
from dataclasses import replace

import pytest
import torch
from peers import require

import grpo_core
from grpo_core import capture, load_batch
from grpo_core.compare import evaluate
from grpo_core.convention import Convention, tuples
from grpo_core.inputs import LossInputs
from grpo_core.presets import preset

PROMPTS = ["What is 4 + 5?", "2 - 1?", "Name a colour.", "1, 2, 3"]
TINY = grpo_core.loading.BUILT_IN["tiny"]
TWO_SHARES = {"gradient_accumulation_steps": 2, "per_device_train_batch_size": 4}
RUNS = {  # settings of GRPOConfig beside those of `trainer_of`
    "defaults": {}, "grpo": {"loss_type": "grpo"}, "bnpo": {"loss_type": "bnpo"} | TWO_SHARES,
    "dr_grpo": {"loss_type": "dr_grpo", "scale_rewards": "none"}, "cispo": {"loss_type": "cispo", "epsilon_high": 5.0},
    "sapo": {"loss_type": "sapo"}, "vespo": {"loss_type": "vespo", "num_iterations": 2},
    "luspo": {"loss_type": "luspo", "importance_sampling_level": "sequence"},
    "accumulated": TWO_SHARES, "twice": {"num_iterations": 2, "loss_type": "grpo"} | TWO_SHARES,
    "kl": {"beta": 0.1, "num_iterations": 2}, "plain kl": {"beta": 0.1, "use_bias_correction_kl": False, "num_iterations": 2},
    "gspo": {"importance_sampling_level": "sequence", "loss_type": "grpo", "epsilon": 3e-4, "epsilon_high": 4e-4,
             "num_iterations": 2},
    "truncated": {"mask_truncated_completions": True, "loss_type": "grpo"},
    "truncated, by tokens": {"mask_truncated_completions": True},
    "delta": {"delta": 1.3, "num_iterations": 2}, "entropy": {"entropy_coef": 0.01} | TWO_SHARES,
    "top entropy": {"top_entropy_quantile": 0.3}, "hot": {"temperature": 1.7, "beta": 0.02, "num_iterations": 2},
    "batch": {"scale_rewards": "batch"}, "no correction": {"vllm_importance_sampling_correction": False},
    "groups in parts": {"steps_per_generation": 2, "loss_type": "grpo", "per_device_train_batch_size": 4, "seed": 5},
}  # fmt: skip


def distinct(completion_ids, **_):
    """Different for most completions, nothing for the shortest."""
    return [None if len(ids) == 2 else float(len(set(ids))) for ids in completion_ids]


def even(completion_ids, **_):
    return [float(sum(ids) % 2) for ids in completion_ids]


def trainer_of(folder, **settings):
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    chosen = {
        "per_device_train_batch_size": 8, "num_generations": 4, "max_steps": 2, "learning_rate": 0.05, "optim": "sgd",
        "lr_scheduler_type": "constant", "seed": 3, "output_dir": str(folder / "trl"), "use_cpu": True, "bf16": False,
        "report_to": [], "logging_steps": 1, "max_completion_length": 10, "save_strategy": "no", "disable_tqdm": True,
        "gradient_checkpointing": False, "reward_weights": [1.0, 0.5],
    } | settings  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return GRPOTrainer(
            model=str(TINY), reward_funcs=[distinct, even], args=GRPOConfig(**chosen),
            train_dataset=Dataset.from_dict({"prompt": PROMPTS}),
        )  # fmt: skip


def run(folder, path="batches", every=1, **settings):
    require("trl")
    trainer = trainer_of(folder, **settings)
    captured = capture.trl(trainer, folder / path, every)
    trainer.train()
    return trainer, captured


def convention_in(batch) -> Convention:
    """The file's preset with what the file says of single settings on top."""
    values = preset(batch.meta["preset"]).values()
    known = {name: tuples(value) for name, value in batch.meta.items() if name in values or name == "max_completion_length"}
    return Convention(**values | known)


def again(batch, stored: bool):
    """The loss as our own functions make it, from the stored advantages or from the rewards."""
    left_out = {"rewards": None, "rewards_missing": None, "reward_names": None, "reward_weights": None}
    inputs = LossInputs.of_batch(replace(batch, **left_out) if stored else batch)
    return evaluate(inputs, convention_in(batch))


def size_of(done) -> float:
    terms = done.terms
    return float(
        (terms.token_weight * terms.token_loss).abs().sum() + (done.convention.beta * terms.kl_weight * terms.kl).abs().sum()
    )


@pytest.mark.parametrize("name", RUNS)
def test_a_captured_step_gives_trls_own_loss(tmp_path, name):
    trainer, captured = run(tmp_path, **RUNS[name])
    logged = [line["loss"] for line in trainer.state.log_history if "loss" in line]
    assert len(captured.paths) == 2 and captured.paths[0].name == "step-00000000.safetensors"
    for step, path in enumerate(captured.paths):
        batch = load_batch(path)
        assert batch.meta["step"] == step and batch.reported["loss"] == pytest.approx(
            logged[step], abs=1.01e-4 * max(1, abs(logged[step]))
        )
        for stored in (True, False) if batch.rewards is not None else (True,):
            done = again(batch, stored)
            assert abs(done.loss - batch.reported["loss"]) <= 1e-6 * size_of(done), (name, step, stored)
        assert (batch.rewards is None) == (name == "groups in parts")
        prompts = [row[there].tolist() for row, there in zip(batch.prompt_ids, batch.prompt_mask, strict=True)]
        assert len({(group, str(prompt)) for group, prompt in zip(batch.group_ids.tolist(), prompts, strict=True)}) == 2


def test_the_file_holds_what_trl_used(tmp_path):
    trainer, captured = run(tmp_path, beta=0.1, num_iterations=2, **TWO_SHARES)
    first, second = map(load_batch, captured.paths)
    assert first.meta["iteration"] == 0 and second.meta["iteration"] == 1 and second.meta["updates_since_sampling"] == 1
    assert first.meta["micro_batches"] == [[0, 1, 2, 3], [4, 5, 6, 7]] and first.meta["gradient_accumulation_steps"] == 2
    mask = second.trained_mask()
    assert (
        torch.equal(first.policy_logprobs, first.old_logprobs)
        or (first.policy_logprobs - first.old_logprobs).abs().max() < 1e-5
    )
    assert (second.policy_logprobs - second.old_logprobs)[mask].abs().max() > 1e-3
    assert first.reward_names == ("distinct", "even") and first.reward_weights.tolist() == [1.0, 0.5]
    again_rewarded = [row[there].tolist() for row, there in zip(first.completion_ids, first.completion_mask, strict=True)]
    missing = first.rewards_missing if first.rewards_missing is not None else torch.zeros_like(first.rewards).bool()
    expected = distinct(again_rewarded)
    assert [
        None if gone else value for value, gone in zip(first.rewards[:, 0].tolist(), missing[:, 0], strict=True)
    ] == expected
    assert first.group_ids.unique(return_counts=True)[1].tolist() == [4, 4]
    assert first.meta["preset"] == "trl/kl" and first.meta["beta"] == 0.1 and first.meta["eos_token_ids"]
    assert (
        first.meta["temperature"] == 1.0
        and first.meta["num_generations"] == 4
        and first.reported["num_items"] == int(mask.sum())
    )
    logged = trainer.state.log_history[1]
    assert second.reported["kl"] == pytest.approx(logged["kl"], rel=0.2) and second.reported["entropy"] > 0
    assert set(second.meta["tokens"]) == set(map(str, second.row_ids().unique().tolist()))
    policy = grpo_core.load_policy("tiny")  # the weights of before the first step
    with torch.no_grad():
        ours = grpo_core.score_tokens(policy, first, 1.0)
    torch.testing.assert_close(first.policy_logprobs, ours.logprobs, rtol=0, atol=2e-5)
    torch.testing.assert_close(first.entropy, ours.entropy, rtol=0, atol=2e-5)


def test_rows_that_trl_masks_for_being_cut_off_keep_their_completion(tmp_path):
    _, captured = run(tmp_path, mask_truncated_completions=True)
    batch = load_batch(captured.paths[0])
    cut = torch.tensor([reason == "length" for reason in batch.finish_reasons])
    assert cut.any() and not cut.all() and batch.completion_mask[cut].all()
    assert not batch.loss_mask[cut].any() and not batch.attention_mask[cut, -10:].any()
    assert torch.equal(batch.loss_mask[~cut], batch.completion_mask[~cut])


def test_the_samplers_log_probs_and_its_weights_are_kept(tmp_path):
    def rollout(prompts, trainer):
        prompt_ids = trainer.processing_class(prompts)["input_ids"]
        answers = [[9 + row, 40, 41, 42, 4][: 5 - row % 3] for row in range(len(prompts))]
        return {"prompt_ids": prompt_ids, "completion_ids": answers, "logprobs": [[-3.0] * len(row) for row in answers]}

    require("trl")
    trainer = trainer_of(tmp_path)
    trainer.rollout_func = rollout
    trainer._generate = _generating(trainer, rollout)
    captured = capture.trl(trainer, tmp_path / "newest.json")
    trainer.train()
    batch = load_batch(tmp_path / "newest.json")
    assert captured.paths == [tmp_path / "newest.json"] * 2 and batch.meta["step"] == 1
    assert batch.sampler_logprobs is not None and bool((batch.sampler_logprobs[batch.completion_mask] == -3.0).all())


def _generating(trainer, rollout):
    """TRL's `_generate` with completions of ours: what a rollout_func hands back, without a server."""

    def generate(prompts):
        made = rollout(prompts, trainer)
        texts = trainer.processing_class.batch_decode(made["completion_ids"])
        return made["prompt_ids"], made["completion_ids"], None, texts, made["logprobs"], {}, None, None

    return generate


def test_every_and_remove_and_what_cannot_be_written(tmp_path):
    trainer, captured = run(tmp_path, "at-{step}.json", every=2, max_steps=4)
    assert [path.name for path in captured.paths] == ["at-00000000.json", "at-00000002.json"]
    captured.remove()
    assert not {"_compute_loss", "_calculate_rewards"} & set(vars(trainer))
    (tmp_path / "file").write_text("")
    with pytest.warns(UserWarning, match="grpo_core.capture: step 0 was not kept"):
        _, failed = run(tmp_path, "file/inside")
    assert failed.paths == [] and (tmp_path / "file").read_text() == ""


def test_no_other_trainer_is_taken():
    with pytest.raises(ValueError, match="trainer: found object without _calculate_rewards, allowed: a GRPOTrainer"):
        capture.trl(object(), "x")
