"""`CoreGRPOTrainer` in real TRL runs: two steps of two micro-batches on a tiny random model, in one process and in two. Equal
to fp32's digits: TRL takes log-probs in fp32, whatever the model's type."""

import os
import subprocess
import sys
import warnings
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from peers import require

from grpo_core import summarize
from grpo_core.compare import evaluate
from grpo_core.inputs import LossInputs
from grpo_core.presets import preset

PROMPTS = ["What is 4 + 5?", "2 - 1?", "Name a colour.", "1, 2, 3"]
ALLOWED = 12  # max_completion_length: some rows are cut off, some stop by themselves
GSPO = {"importance_sampling_level": "sequence", "epsilon": 3e-4, "epsilon_high": 4e-4}
AS_IN_TRL = {  # preset -> the GRPOConfig that means the same
    "trl": {}, "trl/grpo": {"loss_type": "grpo"}, "trl/bnpo": {"loss_type": "bnpo"}, "trl/kl": {"beta": 0.04},
    "trl/dr_grpo": {"loss_type": "dr_grpo", "scale_rewards": "none"}, "trl/gspo": {"loss_type": "grpo"} | GSPO,
    "trl/cispo": {"loss_type": "cispo", "epsilon_high": 5.0}, "trl/mask-truncated": {"mask_truncated_completions": True},
    "trl/top-entropy": {"top_entropy_quantile": 0.2},
}  # fmt: skip
OTHERS = {  # preset -> beta of GRPOConfig, which makes TRL load the reference; the convention's own counts
    "verl": 0, "verl/gspo": 0, "verl/reinforce++": 0, "paper/dr_grpo": 0, "roll/seq-mean-token-sum-norm": 0, "roll/topr": 0,
    "paper/grpo": 0.1, "paper/rloo": 0.1, "paper/reinforce++": 0.1,
}  # fmt: skip
NAMELESS = replace(preset("verl").convention(), beta=0.02, entropy_coef=0.01, kl_estimator="k2")
TOGETHER = {"trl": 0, "verl/reinforce++": 0, "roll": 0, "trl/bnpo": 0, "paper/reinforce++": 0.1}  # the same, in two processes


def reward(completion_ids, **_):
    """Different for most completions; none for those of two tokens."""
    return [None if len(ids) == 2 else float(len(set(ids))) for ids in completion_ids]


def built(folder, convention=None, rollout_func=None, **settings):
    """TRL's own trainer, or ours where a convention is given, which then keeps what each micro-batch was and gave."""
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    from grpo_core.plugins.trl import CoreGRPOTrainer

    class Recorder(CoreGRPOTrainer):
        def _compute_loss(self, model, inputs):
            loss = super()._compute_loss(model, inputs)
            self.seen.append(SimpleNamespace(inputs=inputs, terms=self.last_terms, mask=self.last_mask))
            return loss

    chosen = {
        "per_device_train_batch_size": 4, "num_generations": 4, "gradient_accumulation_steps": 2, "num_iterations": 2,
        "max_steps": 2, "learning_rate": 0.5, "optim": "sgd", "lr_scheduler_type": "constant", "seed": 3,
        "output_dir": str(folder.parent / "plug-in"), "use_cpu": True, "bf16": False, "report_to": [], "logging_steps": 1,
        "max_completion_length": ALLOWED, "save_strategy": "no", "disable_tqdm": True, "gradient_checkpointing": False,
    } | settings  # fmt: skip
    data = Dataset.from_dict({"prompt": PROMPTS})
    given = {"model": str(folder), "reward_funcs": reward, "args": GRPOConfig(**chosen), "rollout_func": rollout_func}
    given |= {"train_dataset": data, "eval_dataset": data}
    trainer = GRPOTrainer(**given) if convention is None else Recorder(convention=convention, **given)
    trainer.seen = []
    trainer.model.double()
    return trainer


def run(folder, *convention, **settings):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what ours says of GRPOConfig has a test of its own
        trainer = built(folder, *convention, **settings)
        trainer.train()
    return trainer


@pytest.fixture(scope="module")
def folder(model_folder):
    require("trl")
    return model_folder


def losses(trainer):
    return [line["loss"] for line in trainer.state.log_history if "loss" in line]


def joined(values):
    """[B T] of each micro-batch as one, as wide as the widest; None where the first has none."""
    width = 0 if values[0] is None else max(value.shape[1] for value in values)
    return torch.cat([torch.nn.functional.pad(value, (0, width - value.shape[1])) for value in values]) if width else None


def whole_step(seen, convention):
    """The micro-batches of one optimizer step, of all processes, as one batch: what our own functions make of it."""
    prompts = [tuple(row[row > 2].tolist()) for part in seen for row in part.inputs["prompt_ids"]]  # without padding
    ids, real = (joined([part.inputs[f"completion_{name}"] for part in seen]) for name in ("ids", "mask"))
    answers = [row[there.bool()].tolist() for row, there in zip(ids, real, strict=True)]
    names = {"old_logprobs": "old_per_token_logps", "ref_logprobs": "ref_per_token_logps"}
    batch = LossInputs(
        mask=joined([part.mask for part in seen]), entropy=joined([part.terms.entropy for part in seen]),
        policy_logprobs=joined([part.terms.policy_logprobs for part in seen]),
        **{field: joined([part.inputs.get(name) for part in seen]) for field, name in names.items()},
        rewards=tuple((value,) for value in reward(answers)), group_ids=torch.tensor([prompts.index(p) for p in prompts]),
        width=seen[0].inputs["prompt_ids"].shape[1] + ids.shape[1] - 1, max_completion_length=ALLOWED,
    )  # fmt: skip
    return evaluate(batch, convention, torch.arange(len(prompts)).view(len(seen), -1).tolist())


def assert_step(loss, seen, convention):
    """The logged loss, the weights and the advantages of one optimizer step are those of our own functions."""
    ours = whole_step(seen, convention)
    size = float((ours.terms.token_weight * ours.terms.token_loss).abs().sum())
    assert loss == pytest.approx(ours.loss, rel=1e-5, abs=1e-5 * size)
    for name in ("token_weight", "token_loss", "is_clipped", "kl")[: 4 if convention.beta else 3]:
        theirs = joined([getattr(part.terms, name) for part in seen])
        torch.testing.assert_close(theirs, getattr(ours.terms, name), rtol=1e-4, atol=1e-6, msg=name)
    given = joined([torch.broadcast_to(p.inputs["advantages"].view(len(p.mask), -1), p.mask.shape) for p in seen])
    mask = joined([part.mask for part in seen])
    torch.testing.assert_close(given[mask], ours.advantages[mask], rtol=1e-5, atol=1e-5)


def assert_steps(logged, seen, convention, *others):
    """Of a run of two micro-batches a step; `others`: those of other processes."""
    assert len(logged) == 4 and len(seen) == 8
    for step, loss in enumerate(logged):
        assert_step(loss, [part for parts in (seen, *others) for part in parts[2 * step : 2 * step + 2]], convention)


# ---- the same as TRL ------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", AS_IN_TRL)
def test_a_preset_of_trl_trains_as_trl_does(folder, name):
    settings = AS_IN_TRL[name]
    theirs, ours = run(folder, **settings), run(folder, name, **settings)
    assert losses(ours) == pytest.approx(losses(theirs), rel=1e-6, abs=1e-6)
    start, after, expected = (trainer.model.state_dict() for trainer in (built(folder), ours, theirs))
    assert max(float((expected[key] - start[key]).abs().max()) for key in start) > 1e-2
    torch.testing.assert_close(after, expected, rtol=0, atol=1e-6)
    for got, expected in zip(ours.state.log_history, theirs.state.log_history, strict=True):
        assert set(expected) <= set(got)
        logged = [key for key in expected if key in ("entropy", "kl", "reward") or key.startswith("clip_ratio")]
        assert [got[key] for key in logged] == pytest.approx([expected[key] for key in logged], rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("settings", [{"steps_per_generation": 4}, {"steps_per_generation": 1}], ids=str)
def test_a_generation_that_is_no_step_counts_as_in_trl(folder, settings):
    theirs, ours = run(folder, **settings), run(folder, "trl", **settings)
    assert losses(ours) == pytest.approx(losses(theirs), rel=1e-6, abs=1e-6) and any(losses(ours))


# ---- any other convention -------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("convention", [*OTHERS, NAMELESS], ids=lambda convention: str(convention)[:40])
def test_any_other_convention_gives_our_own_number(folder, convention):
    trainer = run(folder, convention, beta=OTHERS.get(convention, 0.02), max_steps=4)  # from step 3 on off the reference
    assert_steps(losses(trainer), trainer.seen, trainer.convention)
    assert (trainer.seen[2].terms.ratio[trainer.seen[2].mask] - 1).abs().max() > 0.01  # the second step has moved


def test_the_samplers_log_probs_are_used_where_trl_has_them(folder):
    def rollout(prompts, trainer):
        prompt_ids = trainer.processing_class(prompts)["input_ids"]
        answers = [[9 + row, 40, 41, 42, 2][: 5 - row % 3] for row in range(len(prompts))]
        logprobs = [[-3.0, None, -3.5, -4.0, -9.0][: len(answer)] for answer in answers]  # None: vLLM has no number
        return {"prompt_ids": prompt_ids, "completion_ids": answers, "logprobs": logprobs}

    trainer = run(folder, "verl/tis", rollout_func=rollout)
    corrections = torch.cat([part.terms.correction[part.mask] for part in trainer.seen])
    assert corrections.isfinite().all() and len(corrections.unique()) > 2
    for part in trainer.seen:
        old, sampler = part.inputs["old_per_token_logps"], part.inputs["sampling_per_token_logps"]
        expected = (old - sampler).nan_to_num(0.0).exp().clamp(max=2.0)
        torch.testing.assert_close(part.terms.correction[part.mask], expected[part.mask], check_dtype=False)


# ---- what can be looked at -------------------------------------------------------------------------------------------------
def test_terms_and_numbers_can_be_read(folder):
    trainer = run(folder, "verl/gspo")
    assert trainer.last_terms.ratio.shape == trainer.last_mask.shape and not trainer.last_terms.loss.requires_grad
    line = next(line for line in reversed(trainer.state.log_history) if "loss" in line)
    assert line["grpo_core/loss"] == pytest.approx(line["loss"], rel=1e-5) and "entropy" in line
    each = [summarize(part.terms, part.mask) for part in trainer.seen[2:]]
    for name in ("clip_fraction", "ratio_max", "num_tokens"):
        assert line[f"grpo_core/{name}"] == pytest.approx(sum(numbers[name] for numbers in each) / 2, rel=1e-5)
    assert "grpo_core/kl" not in line  # there is nothing that it would be taken to
    assert "grpo_core/kl" in run(folder, "trl/kl", beta=0.04).state.log_history[0]


def test_evaluation_and_the_table_of_completions_follow_the_convention(folder):
    trainer = run(folder, "verl/rloo", per_device_eval_batch_size=16)
    generated = torch.cat([part.inputs["advantages"] for part in trainer.seen[:2]])
    assert sorted(trainer._logs["advantages"]) == pytest.approx(sorted(generated.tolist()), rel=1e-5)
    trainer.seen.clear()
    metrics = trainer.evaluate()
    assert_step(metrics["eval_loss"], trainer.seen, trainer.convention)
    assert metrics["eval_loss"] == pytest.approx(trainer.state.log_history[-1]["eval_grpo_core/loss"], abs=1e-6)


# ---- what is refused ---------------------------------------------------------------------------------------------------
REFUSED = {  # the message -> convention, GRPOConfig
    "beta: found 0 in GRPOConfig": ("paper/grpo", {}), "use_vllm: found False": ("verl/tis", {}),
    "num_iterations: found 1, allowed: more": ("paper/rloo", {"beta": 0.1, "num_iterations": 1}),
    "mask_truncated_completions: found False, allowed: True": ("trl/mask-truncated", {}),
    "mask_truncated_completions: found True, allowed: False": ("trl", {"mask_truncated_completions": True}),
    "multi_objective_aggregation: found 'norm": ("trl", {"multi_objective_aggregation": "normalize_then_sum"}),
    "use_adaptive_entropy: found True": ("trl", {"use_adaptive_entropy": True}), "preset: found 'no'": ("no", {}),
}  # fmt: skip


@pytest.mark.parametrize("message", REFUSED)
def test_what_trl_lacks_is_refused_when_the_trainer_is_built(folder, message):
    name, settings = REFUSED[message]
    with pytest.raises(ValueError, match=message) as refused:
        built(folder, name, **settings)
    assert "\n" not in str(refused.value)


def test_settings_that_the_convention_decides_are_named(folder):
    with pytest.warns(UserWarning, match="the convention decides, not loss_type, epsilon, beta"):
        built(folder, "verl", loss_type="grpo", epsilon=0.3, beta=0.5)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="GRPOConfig")
        built(folder, "trl/kl", beta=0.04)


def test_another_version_of_trl_is_refused(folder, monkeypatch):
    monkeypatch.setattr("grpo_core.plugins.trl.OVERRIDDEN", ("_no_such_part",))
    with pytest.raises(ValueError, match="has no _no_such_part, allowed: 1.16"):
        built(folder, "trl")


# ---- two processes -----------------------------------------------------------------------------------------------------
def test_two_processes_divide_by_what_both_have(folder, tmp_path):
    paths = f"{Path(__file__).parent}{os.pathsep}{Path(__file__).parent.parent}"
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command, env = [*torchrun, __file__, str(folder), str(tmp_path)], {"OMP_NUM_THREADS": "1", "PYTHONPATH": paths}
    done = subprocess.run(command, env=os.environ | env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    first, second = (torch.load(tmp_path / f"{rank}.pt", weights_only=False) for rank in (0, 1))
    for name in TOGETHER:
        (seen, logged, weights), (others, _, their_weights) = first[name], second[name]
        assert all(torch.equal(weights[key], their_weights[key]) for key in weights)
        assert not torch.equal(seen[0].inputs["prompt_ids"], others[0].inputs["prompt_ids"])
        assert_steps(logged, seen, replace(preset(name).convention(), max_completion_length=ALLOWED), others)


if __name__ == "__main__":  # one of the two
    runs = {name: run(Path(sys.argv[1]), name, beta=beta, max_steps=4) for name, beta in TOGETHER.items()}
    kept = {name: (trainer.seen, losses(trainer), trainer.model.state_dict()) for name, trainer in runs.items()}
    torch.save(kept, Path(sys.argv[2]) / f"{os.environ['RANK']}.pt")
