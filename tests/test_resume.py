"""A killed run goes on as if nothing had happened: bit for bit, from the newest whole checkpoint, with its own settings."""

import json
import os
import shutil
import signal
from pathlib import Path

import pytest
import torch
from processes import started, wait_for

from grpo_core import grpo_step
from grpo_core.__main__ import main
from grpo_core.checkpoint import MODEL, OPTIMIZER
from grpo_core.snapshot import is_snapshot, load_snapshot

SETTINGS = {
    "steps": 5, "prompts_per_step": 2, "group_size": 4, "max_completion_length": 8, "learning_rate": 1e-3, "beta": 0.1,
    "scoring": "padded", "threads": 1, "checkpoint_every": 2, "eval_every": 2, "eval_prompts": 2, "sample_every": 2,
    "seed": 4,
}  # fmt: skip
LAST = "checkpoint-00000005"

# A reward that is called once when it is tried, and once for each rollout. Where `plan.json` beside it says so, it stops its
# own process at a known place: touches `here` and sleeps, until the test kills it.
REWARD = """
import json, resource, signal, time
from pathlib import Path

import torch

HERE = Path(__file__).parent
calls = 0

def hold(*anything):
    (HERE / "here").touch()
    time.sleep(300)

def length(completions, **columns):
    global calls
    calls += 1
    plan = HERE / "plan.json"
    what = json.loads(plan.read_text()).get(str(calls)) if plan.exists() else None
    if what == "sampling":
        hold()
    elif what == "backward":
        torch.nn.modules.module.register_module_full_backward_hook(hold)
    elif what == "saving":
        torch.save = hold
    elif what is not None:  # so many bytes fit into a file from now on
        resource.setrlimit(resource.RLIMIT_FSIZE, (what, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
    return [len(text) / 10 for text in completions]
"""


def arguments(folder: Path, out: str, *more: str, **changes) -> list[str]:
    reward = {"reward_functions": json.dumps([f"{folder / 'reward.py'}:length", "correct"])}
    settings = SETTINGS | reward | changes | {"out": folder / out}
    return ["train", *more, *(f"--set={name}={value}" for name, value in settings.items())]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Holds the reward and `whole`, an uninterrupted run."""
    folder = tmp_path_factory.mktemp("runs")
    (folder / "reward.py").write_text(REWARD, encoding="utf-8")
    assert main(arguments(folder, "whole")) == 0
    return folder


@pytest.fixture
def plan(folder):
    """Says at which call of the reward what happens; nothing any more behind the test."""
    yield lambda **calls: (folder / "plan.json").write_text(json.dumps({k.strip("_"): v for k, v in calls.items()}))
    for name in ("plan.json", "here"):
        (folder / name).unlink(missing_ok=True)


def lines(path: Path) -> list[dict]:
    """A file's lines without the times."""
    read = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return [{name: value for name, value in line.items() if not name.startswith("seconds/")} for line in read]


def same(left, right) -> bool:
    """Nested values, tensors bit for bit."""
    if isinstance(left, torch.Tensor):
        return torch.equal(left, right)
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    if isinstance(left, list):
        return len(left) == len(right) and all(map(same, left, right))
    return left == right


def is_the_whole_run(folder: Path, out: str) -> bool:
    """Whether a run's last checkpoint and its files are those of the uninterrupted one; says where they are not."""
    one, other = folder / "whole", folder / out
    weights = [(run / LAST / MODEL / "model.safetensors").read_bytes() for run in (one, other)]
    moments = [torch.load(run / LAST / OPTIMIZER) for run in (one, other)]
    assert weights[0] == weights[1] and moments[0]["state"] and same(*moments)
    for name in ("metrics.jsonl", "samples.jsonl", "evaluations.jsonl"):
        assert lines(one / name) == lines(other / name), name
    assert [line["step"] for line in lines(other / "metrics.jsonl")] == list(range(5))
    return not list(other.glob(".*"))  # nothing half-written is left


# ---- killed ----------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("where", "call", "step"),
    # calls: 1 the trial, 2 the evaluation of step 0, 3 and 4 steps 0 and 1, 5 an evaluation, 6 and 7 steps 2 and 3
    [("sampling", "_7", 2), ("backward", "_7", 2), ("saving", "_7", 2), ("sampling", "_3", 0)],
)
def test_a_killed_run_goes_on_bit_for_bit(folder, plan, where, call, step, capfd):
    out = f"killed-{where}-{step}"
    plan(**{call: where})
    process = started(arguments(folder, out), folder / f"{out}.log")
    wait_for(folder / "here", process)
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert bool(list((folder / out).glob(".*.part"))) == (where == "saving")
    assert sorted(path.name for path in (folder / out).glob("checkpoint-*")) == ["checkpoint-00000002"] * (step > 0)
    with (folder / out / "metrics.jsonl").open("a", encoding="utf-8") as file:
        file.write('{"step": 3, "rew')  # as a kill in the middle of a line leaves it
    (folder / "plan.json").unlink()
    capfd.readouterr()
    assert main(arguments(folder, out, "--resume")) == 0
    assert ("no checkpoint in" in capfd.readouterr().err) == (step == 0)
    assert is_the_whole_run(folder, out)


def test_a_damaged_checkpoint_is_passed_over_with_a_word(folder, capfd):
    out = folder / "damaged"
    shutil.copytree(folder / "whole", out)
    path = out / LAST / OPTIMIZER
    damaged = bytearray(path.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    path.write_bytes(damaged)
    assert main(arguments(folder, "damaged", "--resume")) == 0
    said = capfd.readouterr().err
    assert f"checkpoint: {out / LAST} cannot be used (optimizer.pt is not what was written); the one before it is used" in said
    assert is_the_whole_run(folder, "damaged")
    state = json.loads((out / LAST / "state.json").read_text(encoding="utf-8"))
    assert state["step"] == 5 and set(state["files"]) >= {"optimizer.pt", "model/model.safetensors", "model/config.json"}


@pytest.mark.parametrize("damage", ["state", "missing"])
def test_whatever_is_missing_makes_a_checkpoint_unusable(folder, damage, capfd):
    out = folder / f"damaged-{damage}"
    shutil.copytree(folder / "whole", out)
    if damage == "state":
        (out / LAST / "state.json").write_text("{", encoding="utf-8")
    else:
        (out / LAST / MODEL / "model.safetensors").unlink()
    assert main(arguments(folder, out.name, "--resume")) == 0
    assert "cannot be used" in capfd.readouterr().err and is_the_whole_run(folder, out.name)


# ---- settings --------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"learning_rate": 0.002},
            "learning_rate: found 0.002, and the run in {out} has 0.001; allowed: the same, or another out",
        ),
        ({"reward_functions": '["correct", "format"]'}, "reward_functions: found ('correct', 'format'), and the run"),
        ({"seed": 5}, "seed: found 5, and the run in {out} has 4; allowed: the same, or another out"),
        ({"steps": 4}, "steps: found 4, and the run in {out} has taken 5"),
        ({"schedule": "linear", "steps": 9}, "steps: found 9, and the run in {out} has 5; allowed"),
    ],
)
def test_a_changed_setting_is_refused_in_one_line(folder, changes, said, capfd):
    assert main(arguments(folder, "whole", "--resume", **changes)) == 2
    error = capfd.readouterr().err
    assert said.format(out=folder / "whole") in error and error.count("\n") == 1 and "Traceback" not in error


def test_a_run_is_not_written_over(folder, capfd):
    before = (folder / "whole" / "metrics.jsonl").read_bytes()
    assert main(arguments(folder, "whole")) == 2
    said = f"out: found a run in {folder / 'whole'}; add --resume to go on with it, or name another folder\n"
    assert capfd.readouterr().err == said and (folder / "whole" / "metrics.jsonl").read_bytes() == before


def test_more_steps_and_what_moves_no_weight_may_change(folder):
    shutil.copytree(folder / "whole", folder / "longer")
    free = {"steps": 6, "checkpoint_every": 1, "keep_checkpoints": 1, "sample_every": 0, "eval_every": 0, "reward_timeout": 9.5}
    assert main(arguments(folder, "longer", "--resume", **free)) == 0
    assert [path.name for path in (folder / "longer").glob("checkpoint-*")] == ["checkpoint-00000006"]
    assert lines(folder / "longer" / "metrics.jsonl")[:5] == lines(folder / "whole" / "metrics.jsonl")


# ---- a full disk -----------------------------------------------------------------------------------------------------------
def test_a_full_disk_costs_a_checkpoint_and_not_the_run(folder, plan):
    # nothing longer than 50 kB fits from the second evaluation to step 4: checkpoint 4 cannot be written, the last one can
    plan(_8=50_000, _9=2**40)
    process = started(arguments(folder, "full"), folder / "full.log")
    process.join(60)
    said = (folder / "full.log").read_text(encoding="utf-8")
    assert process.exitcode == 0 and "checkpoint: checkpoint-00000004 could not be written to" in said
    assert "older ones are kept" in said and "Traceback" not in said
    assert sorted(path.name for path in (folder / "full").glob("checkpoint-*")) == ["checkpoint-00000002", LAST]
    assert is_the_whole_run(folder, "full")


def test_a_last_checkpoint_that_cannot_be_written_is_an_error(folder, plan):
    plan(_9=50_000)
    process = started(arguments(folder, "no-last"), folder / "no-last.log")
    process.join(60)
    said = (folder / "no-last.log").read_text(encoding="utf-8")
    assert process.exitcode == 2 and f"checkpoint: {LAST} could not be written to" in said and "Traceback" not in said
    assert (folder / "no-last" / "checkpoint-00000004").is_dir() and not list((folder / "no-last").glob(".*"))


# ---- a step that is kept -----------------------------------------------------------------------------------------------------
def test_a_step_that_was_kept_is_the_runs_own_bit_for_bit(tmp_path):
    settings = SETTINGS | {"steps": 3, "updates": 2, "checkpoint_every": 1, "keep_checkpoints": 9, "weight_decay": 0.1}
    settings |= {"trace_steps": [1], "out": tmp_path, "eval_every": 0}
    assert main(["train", *(f"--set={name}={value}" for name, value in settings.items())]) == 0
    kept = tmp_path / "step-00000001"
    assert is_snapshot(str(kept)) and not is_snapshot(str(kept / MODEL))
    snapshot = load_snapshot(kept)
    assert snapshot.step == 1 and snapshot.reference is not None and snapshot.recipe.model == str(kept)
    policy = snapshot.policy.clone()
    optimizer = snapshot.optimizer_for(policy)
    trace = grpo_step(policy, snapshot.reference, snapshot.rollout, snapshot.recipe, optimizer)
    policy.model.save_pretrained(tmp_path / "after")
    after = tmp_path / "checkpoint-00000002"
    assert (tmp_path / "after" / "model.safetensors").read_bytes() == (after / MODEL / "model.safetensors").read_bytes()
    assert same(torch.load(after / OPTIMIZER), optimizer.state_dict())
    said = lines(tmp_path / "metrics.jsonl")[1]
    assert said["grad_norm"] == sum(update.grad_norm for update in trace.updates) / 2 and said["kl"] > 0
    with pytest.raises(ValueError, match="found the checkpoint .*, allowed: a step that trace_steps kept"):
        load_snapshot(after)
