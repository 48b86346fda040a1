"""`python -m grpo_core train`, end to end: what it writes and says, and that a model gets better by it."""

import json
from pathlib import Path

import pytest
import torch
from peers import require
from safetensors.torch import load_file

from grpo_core import load_batch
from grpo_core.__main__ import main
from grpo_core.compare import evaluate
from grpo_core.inputs import LossInputs
from grpo_core.train_config import from_values
from grpo_core.trainer import Trainer

SMALL = {
    "steps": 2, "prompts_per_step": 2, "group_size": 4, "max_completion_length": 10, "learning_rate": 1e-3, "scoring": "padded",
    "threads": 1, "seed": 4,
}  # fmt: skip


def train(out: Path, **changes) -> int:
    """The command's exit status."""
    settings = SMALL | changes | {"out": out}
    return main(["train", *(f"--set={name}={json.dumps(value, default=str)}" for name, value in settings.items())])


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def weights(out: Path, step: int = 2) -> dict[str, torch.Tensor]:
    return load_file(out / f"checkpoint-{step:08d}" / "model" / "model.safetensors")


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """A run with everything that it may leave."""
    out = tmp_path_factory.mktemp("plain") / "run"
    keep = {
        "capture_every": 1,
        "eval_every": 1,
        "eval_prompts": 2,
        "sample_every": 1,
        "checkpoint_every": 1,
        "trace_steps": [1],
    }
    assert train(out, beta=0.1, updates=2, **keep) == 0
    return out


def test_a_run_leaves_its_files(plain):
    names = {"metrics.jsonl", "samples.jsonl", "evaluations.jsonl", "batches", "best", "step-00000001"}
    assert {path.name for path in plain.iterdir()} == names | {"checkpoint-00000001", "checkpoint-00000002"}
    for folder in ("best", "step-00000001", "checkpoint-00000002"):
        assert {path.name for path in (plain / folder).iterdir()} == {"model", "optimizer.pt", "state.json"}
    assert [path.name for path in sorted((plain / "batches").iterdir())] == [f"step-0000000{n}.safetensors" for n in (0, 1)]


def test_metrics_samples_and_evaluations_agree_with_each_other(plain):
    metrics, samples, evaluations = (lines(plain / f"{name}.jsonl") for name in ("metrics", "samples", "evaluations"))
    assert [line["step"] for line in metrics] == [0, 1] and [line["step"] for line in evaluations] == [0, 1, 2]
    assert [line["step"] for line in samples] == [0] * 4 + [1] * 4 and len({line["prompt"] for line in samples}) == 2
    for line in metrics:
        assert line["reward"] == pytest.approx(line["reward/correct"] + 0.2 * line["reward/format"])
        assert line["loss"] == pytest.approx(line["policy_loss"] + 0.1 * line["kl_loss"], abs=1e-5)
        assert line["applied"] == 1.0 and line["num_tokens"] == pytest.approx(8 * line["completion_length"])
    for row in samples:
        assert set(row["rewards"]) == {"correct", "format"} and row["finish_reason"] in ("stop", "length")
    best = json.loads((plain / "best" / "state.json").read_text(encoding="utf-8"))
    scores = [line["eval/reward"] for line in evaluations]
    assert best["best"] == max(scores) and best["step"] == scores.index(max(scores))


def test_a_captured_step_evaluates_to_the_loss_that_was_reported(plain):
    for step in (0, 1):
        batch = load_batch(plain / "batches" / f"step-{step:08d}.safetensors")
        convention = from_values({"beta": 0.1}).convention()
        found = evaluate(LossInputs.of_batch(batch), convention)
        assert found.loss == pytest.approx(batch.reported["loss"], abs=1e-7)
        assert batch.reported["num_items"] == int(lines(plain / "metrics.jsonl")[step]["num_tokens"])


def test_a_captured_minibatch_holds_its_own_rows(tmp_path):
    # the last of 4 minibatches: rows 6 and 7
    assert train(tmp_path, minibatches=4, capture_every=1, steps=1, aggregation="token-mean") == 0
    batch = load_batch(tmp_path / "batches" / "step-00000000.safetensors")
    assert batch.row_ids().shape[0] == 2 and batch.group_ids.tolist() == [1, 1] and batch.rewards is None
    assert batch.reported["num_items"] == int(batch.trained_mask().sum()) and (batch.entropy[batch.trained_mask()] > 0).all()
    inputs = LossInputs.of_batch(batch)
    found = evaluate(inputs, from_values({"aggregation": "token-mean"}).convention())
    assert found.loss == pytest.approx(batch.reported["loss"], abs=1e-7)


def test_the_command_says_how_it_scores_what_it_sampled_and_how_far_it_is(tmp_path, capsys):
    assert train(tmp_path, sample_every=1, eval_every=2, eval_prompts=2) == 0
    said = capsys.readouterr()
    assert said.out == "" and "scoring padded, as asked for" in said.err and "2/2" in said.err
    assert "step 0: eval/reward" in said.err and "step 2: eval/reward" in said.err
    (first, *_) = lines(tmp_path / "samples.jsonl")
    assert (
        f"step 0  {first['prompt'][:40]!r} -> {first['completion'][:60]!r}  correct {first['rewards']['correct']:g}" in said.err
    )


def test_flags_capture_batches_and_keep_steps_as_the_settings_do(tmp_path):
    command = ["train", *(f"--set={name}={value}" for name, value in (SMALL | {"steps": 3, "out": tmp_path}).items())]
    assert main([*command, "--capture-every", "2", "--trace-step", "0", "--trace-step", "2"]) == 0
    assert {path.name for path in tmp_path.glob("step-*")} == {"step-00000000", "step-00000002"}
    assert {path.stem for path in (tmp_path / "batches").iterdir()} == {"step-00000000", "step-00000002"}


@pytest.mark.parametrize(
    ("flag", "value", "said"),
    [
        ("--capture-every", "-1", "capture_every: found -1, allowed: a whole number from 0 (never)"),
        ("--trace-step", "3", "trace_steps: found 3, allowed: 0 to 1"),
        ("--trace-step", "-1", "trace_steps: found (-1,), allowed: whole numbers from 0"),
    ],
)
def test_a_wrong_flag_is_refused_as_the_setting_it_stands_for(tmp_path, capsys, flag, value, said):
    assert main(["train", "--set=steps=2", f"--set=out={tmp_path / 'out'}", f"{flag}={value}"]) == 2
    assert capsys.readouterr().err == said + "\n" and not (tmp_path / "out").exists()


def test_interrupting_is_status_130_and_says_how_to_go_on(tmp_path, capsys, monkeypatch):
    def interrupt(trainer):
        raise KeyboardInterrupt

    monkeypatch.setattr(Trainer, "one_step", interrupt)
    assert train(tmp_path) == 130
    assert f"stopped; no checkpoint in {tmp_path}" in capsys.readouterr().err
    monkeypatch.undo()
    assert train(tmp_path) == 0
    assert f"done; the model is in {tmp_path / 'checkpoint-00000002' / 'model'}" in capsys.readouterr().err
    monkeypatch.setattr(Trainer, "one_step", interrupt)
    settings = [f"--set={name}={value}" for name, value in (SMALL | {"steps": 3, "out": tmp_path}).items()]
    assert main(["train", "--resume", *settings]) == 130
    assert f"stopped; --resume goes on from step 2 in {tmp_path}" in capsys.readouterr().err


# ---- variants ----------------------------------------------------------------------------------------------------------------
def test_activations_that_are_made_again_change_nothing(tmp_path):
    for name, again in (("kept", False), ("again", True)):
        assert train(tmp_path / name, gradient_checkpointing=again, scoring="packed", beta=0.1) == 0
    left, right = weights(tmp_path / "kept"), weights(tmp_path / "again")
    assert all(torch.equal(left[name], right[name]) for name in left)


def test_a_run_with_adapters_trains_only_them_and_its_reference_is_without(tmp_path, capsys):
    require("peft")
    config = from_values(SMALL | {"lora_rank": 2, "beta": 0.1, "gradient_checkpointing": True, "out": str(tmp_path)})
    trainer = Trainer(config)
    before = {name: p.detach().clone() for name, p in trainer.policy.model.named_parameters()}
    assert {name for name, p in trainer.policy.model.named_parameters() if p.requires_grad} == {
        n for n in before if "lora_" in n
    }
    records = list(trainer.run())
    moved = {name for name, p in trainer.policy.model.named_parameters() if not torch.equal(p, before[name])}
    assert moved and all("lora_" in name for name in moved)
    mask, terms = records[0].trace.batch.trained_mask(), records[0].trace.updates[0].terms
    assert (terms.kl[mask] == 0).all() and records[1].metrics["kl"] > 0  # fresh adapters add nothing, trained ones do


def test_a_run_with_adapters_goes_on_bit_for_bit(tmp_path):
    require("peft")
    adapters = {"lora_rank": 2, "beta": 0.1, "checkpoint_every": 1}
    assert train(tmp_path / "whole", **adapters) == 0 and train(tmp_path / "part", **adapters | {"steps": 1}) == 0
    settings = SMALL | adapters | {"out": str(tmp_path / "part")}
    assert main(["train", "--resume", *(f"--set={name}={value}" for name, value in settings.items())]) == 0
    file = Path("checkpoint-00000002", "model", "adapter_model.safetensors")
    assert (tmp_path / "whole" / file).read_bytes() == (tmp_path / "part" / file).read_bytes()


def test_trackers_get_the_numbers(tmp_path):
    require("accelerate")
    require("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    assert train(tmp_path, trackers=["tensorboard"], eval_every=2, eval_prompts=2) == 0
    (file,) = {path.parent for path in tmp_path.rglob("events.out.tfevents.*") if path.parent.name == "grpo"}
    events = EventAccumulator(str(file)).Reload()
    metrics = lines(tmp_path / "metrics.jsonl")
    assert [(e.step, e.value) for e in events.Scalars("reward")] == [
        (line["step"], pytest.approx(line["reward"])) for line in metrics
    ]
    assert [event.step for event in events.Scalars("eval/reward")] == [0, 2]


def test_groups_without_a_spread_leave_the_step(tmp_path):
    # one group: where all its rewards are equal the step is skipped
    trainer = Trainer(
        from_values(SMALL | {"prompts_per_step": 1, "group_size": 2, "drop_zero_std": True, "steps": 6, "scoring": "packed"})
    )
    records = list(trainer.run())
    flat = [len(set(record.rollout.rewards)) == 1 for record in records]
    assert [record.trace is None for record in records] == ["skipped" in record.metrics for record in records] == flat
    assert set(flat) == {True, False} and [record.metrics["zero_std"] for record in records] == [float(one) for one in flat]


def test_a_model_that_packs_wrongly_is_refused_even_where_every_group_was_dropped(monkeypatch):
    config = from_values(SMALL | {"drop_zero_std": True, "scoring": "packed", "reward_functions": ("correct",),
                                  "reward_weights": (0.0,)})  # fmt: skip
    trainer = Trainer(config)
    right = trainer.policy.hidden_packed
    monkeypatch.setattr(trainer.policy, "hidden_packed", lambda ids, places, mask: right(ids, places * 0, mask))
    with pytest.raises(ValueError, match="scoring: found 'packed', but the log-probs of a packed group differ"):
        trainer.one_step()


def test_fewer_rows_than_minibatches_are_as_many_minibatches(tmp_path):
    # groups of 2 rows: where one of the two is dropped, 2 rows are left for 4 minibatches
    settings = {"group_size": 2, "minibatches": 4, "drop_zero_std": True, "steps": 6}
    trainer = Trainer(from_values(SMALL | settings))
    updates = {len(record.trace.updates) for record in trainer.run() if record.trace}
    assert updates == {2, 4}


# ---- it learns -------------------------------------------------------------------------------------------------------------
def test_the_built_in_model_learns_to_add(tmp_path):
    settings = {"steps": 15, "prompts_per_step": 16, "group_size": 8, "learning_rate": 3e-4, "max_completion_length": 16}
    assert train(tmp_path, **settings) == 0
    right = [line["reward/correct"] for line in lines(tmp_path / "metrics.jsonl")]
    assert sum(right[-5:]) / 5 > sum(right[:5]) / 5 + 0.1
