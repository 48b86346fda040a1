"""What goes wrong in a run is said, and nothing that can be used is lost."""

import json
import shutil
from dataclasses import replace

import pytest
import torch

from grpo_core.__main__ import main
from grpo_core.checkpoint import prune
from grpo_core.engine import Engine
from grpo_core.train_config import from_values
from grpo_core.trainer import Trainer

SMALL = {
    "steps": 2, "prompts_per_step": 2, "group_size": 2, "max_completion_length": 6, "scoring": "padded", "threads": 1,
    "checkpoint_every": 1, "seed": 4,
}  # fmt: skip


def arguments(out, *more, **changes):
    return [
        "train",
        *(f"--set={name}={json.dumps(value, default=str)}" for name, value in (SMALL | {"out": out} | changes).items()),
        *more,
    ]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    out = tmp_path_factory.mktemp("whole") / "run"
    assert main(arguments(out)) == 0
    return out


@pytest.mark.parametrize("more", [(), ("--resume",)])
def test_a_run_none_of_whose_checkpoints_can_be_used_is_not_begun_anew(whole, tmp_path, capsys, more):
    out = tmp_path / "run"
    shutil.copytree(whole, out)
    for folder in out.glob("checkpoint-*"):
        (folder / "state.json").write_text("{", encoding="utf-8")
    before = (out / "metrics.jsonl").read_text(encoding="utf-8")
    assert main(arguments(out, *more, steps=3)) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"out: found no usable checkpoint in {out} (checkpoint: ") and said.count("\n") == 1
    assert said.endswith("allowed: another folder\n") and (out / "metrics.jsonl").read_text(encoding="utf-8") == before


def test_checkpoints_that_a_resumed_run_could_not_use_do_not_push_out_its_own(tmp_path):
    for step in (1, 2, 3, 206, 207):
        (tmp_path / f"checkpoint-{step:08d}").mkdir()
    prune(tmp_path, 2, "checkpoint-00000003")
    assert sorted(int(path.name[-8:]) for path in tmp_path.iterdir()) == [2, 3, 206, 207]


def test_what_moves_only_the_last_digits_may_change_when_a_run_goes_on(whole, tmp_path, capsys):
    out = tmp_path / "run"
    shutil.copytree(whole, out)
    assert main(arguments(out, "--resume", steps=3, micro_batch_rows=2, gradient_checkpointing=True, threads=2)) == 0
    assert main(arguments(out, "--resume", steps=4, learning_rate=0.1)) == 2
    assert "learning_rate: found 0.1, and the run in " in capsys.readouterr().err


@pytest.mark.parametrize("inside", ["", "deeper/still"])
def test_a_place_where_no_folder_can_be_is_refused(tmp_path, capsys, inside):
    (tmp_path / "file").write_text("text")
    out = tmp_path / "file" / inside
    assert main(arguments(out, model="/no/such/folder")) == 2
    assert capsys.readouterr().err == f"out: found '{out}', but '{tmp_path / 'file'}' is no folder that can be written to\n"


def test_a_step_without_rewards_has_no_reward_rather_than_0(tmp_path):
    (tmp_path / "mine.py").write_text("def silent(completions, **all):\n    return [None] * len(completions)\n")
    assert main(arguments(tmp_path / "run", steps=1, reward_functions=[f"{tmp_path / 'mine.py'}:silent"])) == 0
    (line,) = map(json.loads, (tmp_path / "run" / "metrics.jsonl").read_text(encoding="utf-8").splitlines())
    assert line["reward"] is None and line["reward/silent"] is None and line["completion_length"] > 0


def test_an_optimizer_step_that_is_left_out_is_said():
    class Broken(Engine):
        def norms(self, gradients):
            return torch.full((len(gradients),), torch.inf)

    trainer = Trainer(from_values(SMALL), Broken())
    record = trainer.one_step()
    assert record.metrics["applied"] == 0.0
    assert trainer.notes == ["an optimizer step was left out: its gradient is not finite"]


def test_failures_of_every_process_are_said_once(tmp_path, capsys, monkeypatch):
    """As where two processes hold the same and one line more."""
    monkeypatch.setattr(Engine, "everyones", lambda engine, value: [*value, *value, "another's"] if value else value)
    (tmp_path / "mine.py").write_text(
        "def odd(completions, **all):\n    if completions != ['0']:\n        raise KeyError(1)\n    return [1.0]\n"
    )
    assert main(arguments(tmp_path / "run", steps=1, reward_functions=[f"{tmp_path / 'mine.py'}:odd"])) == 0
    said = capsys.readouterr().err
    assert said.count("step 0: another's") == 1 and said.count("raised KeyError: 1 on") == len(
        {*said.split("raised KeyError: 1 on")[1:]}
    )


def test_a_checkpoint_of_a_run_is_named_where_its_model_is_meant(whole, tmp_path):
    with pytest.raises(ValueError, match="without config.json; did you mean '.*checkpoint-00000002/model'"):
        Trainer(replace(from_values(SMALL), model=str(whole / "checkpoint-00000002")))
