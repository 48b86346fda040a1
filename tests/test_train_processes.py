"""A run shared by two real processes is the run of one: replicated or sharded, by torch or DeepSpeed, whatever looks across
rows."""

import json
import sys
from pathlib import Path

import pytest
import torch
from many_processes import CASES, STAGES
from peers import require
from processes import started, torchrun
from safetensors.torch import load_file

from grpo_core.__main__ import main
from grpo_core.engine import Engine
from grpo_core.train_config import TrainConfig
from grpo_core.trainer import Trainer

SETTINGS = {
    "steps": 3, "prompts_per_step": 4, "group_size": 4, "optimizer": "sgd", "learning_rate": 0.05, "scoring": "padded",
    "dtype": "float64", "beta": 0.05, "threads": 1, "minibatches": 2, "micro_batch_rows": 3, "eval_every": 3, "eval_prompts": 6,
}  # fmt: skip
ARGUMENTS = [f"--set={name}={value}" for name, value in SETTINGS.items()]


@pytest.fixture(scope="module", autouse=True)
def accelerate():
    require("accelerate")


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """All cases in one launch: case -> what one process and what two came to."""
    out = tmp_path_factory.mktemp("cases") / "found"
    done = torchrun(2, "tests/many_processes.py", str(out), limit=300)
    assert done.returncode == 0, done.stderr[-3000:]
    first, second = (torch.load(f"{out}.{process}") for process in (0, 1))
    return {name: second[name] | first[name] for name in first}


def case_of(found: dict, name: str) -> dict:
    if name.startswith("zero"):
        require("deepspeed")
    assert "error" not in found[name], found[name]["error"]
    return found[name]


def gap(one: dict, two: dict) -> float:
    """Largest difference of tensors by name; tied weights are there once."""
    assert one.keys() - two.keys() <= {"lm_head.weight"}
    return max(float((one[key] - two[key]).abs().max()) for key in two)


@pytest.mark.parametrize("name", [name for name in CASES if not name.startswith("zero")])
def test_two_processes_do_what_one_does_in_fp64(found, name):
    case = case_of(found, name)
    one, two = case["one"], case["two"]
    assert one["texts"] == two["texts"] and one["packed"] == two["packed"] == (CASES[name].get("scoring") == "packed")
    if name != "dropped groups and minibatches":  # which of the kept rows share a minibatch depends on the processes
        # packed rows go through RMSNorms in fp32, in packs that differ
        limit = 1e-8 if name == "packed" else 1e-10
        assert gap(one["weights"], two["weights"]) <= limit
        for left, right in zip(one["metrics"], two["metrics"], strict=True):
            assert left == pytest.approx(right, abs=1e-6)  # rewards are fp32


@pytest.mark.parametrize("name", [name for name in CASES if name.startswith("zero")])
def test_deepspeed_in_two_processes_does_what_torch_does_in_one(found, name):
    case = case_of(found, name)
    one, two = case["one"], case["two"]
    assert one["texts"] == two["texts"] and one["packed"] == two["packed"] == (CASES[name].get("scoring") == "packed")
    assert gap(one["weights"], two["weights"]) <= 1e-5
    moments, others = one["optimizer"]["state"], two["optimizer"]["state"]
    assert moments.keys() == others.keys() and all(gap(moments[number], others[number]) <= 1e-6 for number in moments)
    for left, right in zip(one["metrics"], two["metrics"], strict=True):
        assert left == pytest.approx(right, rel=1e-4, abs=1e-5)


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if name.startswith("zero") and "steps" in case])
def test_a_run_with_deepspeed_goes_on_bit_for_bit(found, name):
    case = case_of(found, name)
    whole, again = case["two"], case["resumed"]
    assert again["metrics"] == whole["metrics"][1:] and again["texts"] == whole["texts"][1:]
    assert gap(whole["weights"], again["weights"]) == 0.0
    states, others = (run["optimizer"]["state"] for run in (whole, again))
    assert len(states) == len(whole["optimizer"]["param_groups"][0]["params"]) and states.keys() == others.keys()
    for number, state in states.items():
        assert set(state) == {"step", "exp_avg", "exp_avg_sq"} and float(state["step"]) == 4.0  # 2 steps, 2 minibatches
        assert all(torch.equal(value, others[number][key]) for key, value in state.items())


def test_the_weights_have_moved_and_processes_dropped_different_numbers_of_groups(found):
    weights = [case["two"]["weights"] for name, case in found.items() if "adapters" not in name]
    assert len({float(w["model.layers.0.self_attn.q_proj.weight"].sum()) for w in weights}) > len(weights) // 2
    dropped = found["dropped groups"]["two"]["dropped"]
    assert dropped[0] != dropped[1] and sum(dropped) == found["dropped groups"]["one"]["dropped"][0]
    assert found["dropped groups and minibatches"]["two"]["metrics"][0]["applied"] == 1.0


# ---- the command -----------------------------------------------------------------------------------------------------------
def lines(path: Path) -> list[dict]:
    """A file's lines without the times."""
    read = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return [{name: value for name, value in line.items() if not name.startswith("seconds/")} for line in read]


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    out = tmp_path_factory.mktemp("alone")
    assert main(["train", *ARGUMENTS, f"--set=out={out}"]) == 0
    return out


@pytest.mark.parametrize("sharding", ["replicate", "shard"])
def test_the_command_in_two_processes_leaves_what_one_leaves(alone, tmp_path, sharding):
    done = torchrun(2, "-m", "grpo_core", "train", *ARGUMENTS, f"--set=out={tmp_path}", f"--set=sharding={sharding}")
    assert done.returncode == 0 and "Traceback" not in done.stderr, done.stderr[-3000:]
    files = {path.relative_to(alone) for path in alone.rglob("*")}
    assert {path.relative_to(tmp_path) for path in tmp_path.rglob("*")} == files
    checkpoint = Path("checkpoint-00000003", "model", "model.safetensors")
    one, two = (load_file(folder / checkpoint) for folder in (alone, tmp_path))
    assert one.keys() == two.keys() and max(float((one[name] - two[name]).abs().max()) for name in one) <= 1e-12
    for name in ("metrics.jsonl", "evaluations.jsonl"):
        pairs = list(zip(lines(alone / name), lines(tmp_path / name), strict=True))
        assert pairs and all(left == pytest.approx(right, abs=1e-6) for left, right in pairs)
    assert lines(alone / "samples.jsonl") == lines(tmp_path / "samples.jsonl")


def test_four_processes_of_one_group_each_do_what_one_does(tmp_path):
    given = [argument for argument in ARGUMENTS if not argument.startswith(("--set=minibatches", "--set=eval_every"))]
    assert main(["train", *given, f"--set=out={tmp_path}/one"]) == 0
    done = torchrun(4, "-m", "grpo_core", "train", *given, f"--set=out={tmp_path}/four")
    assert done.returncode == 0 and "Traceback" not in done.stderr, done.stderr[-3000:]
    weights = Path("checkpoint-00000003", "model", "model.safetensors")
    one, four = (load_file(tmp_path / run / weights) for run in ("one", "four"))
    assert one.keys() == four.keys() and max(float((one[name] - four[name]).abs().max()) for name in one) <= 1e-12


def test_one_process_is_enough_for_deepspeed(tmp_path):
    """Under autocast: the products are the same ones, in bfloat16, so the weights are too."""
    require("deepspeed")
    settings = SETTINGS | {"dtype": "float32", "autocast": "true", "steps": 2, "eval_every": 0}

    def run(out: str, *more: str, **changes):
        given = [f"--set={name}={value}" for name, value in (settings | {"out": tmp_path / out} | changes).items()]
        return started(["train", *more, *given], tmp_path / f"{out}.log")

    def ended(out: str, process) -> Path:
        process.join(60)
        assert process.exitcode == 0, (tmp_path / f"{out}.log").read_text(encoding="utf-8")
        return tmp_path / out / "checkpoint-00000002" / "model" / "model.safetensors"

    plain, first = run("plain"), run("zero", sharding="zero3", steps=1)
    ended("zero", first)
    last = ended("zero", run("zero", "--resume", sharding="zero3"))
    assert gap(load_file(ended("plain", plain)), load_file(last)) <= 1e-5


# ---- refused ---------------------------------------------------------------------------------------------------------------
class Two(Engine):
    """What a trainer is told where two processes share a run."""

    processes = 2


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"prompts_per_step": 3}, "prompts_per_step: found 3 for 2 processes, allowed: a multiple"),
        ({"prompts_per_step": 2, "group_size": 2, "minibatches": 3}, "minibatches: found 3, allowed: at most the 2 rows"),
    ],
)
def test_what_two_processes_cannot_share_is_refused_before_anything_is_loaded(settings, said):
    with pytest.raises(ValueError, match=said):
        Trainer(TrainConfig(model="/no/such/folder", **settings), Two())


def test_one_process_has_nothing_to_share(capsys, tmp_path):
    assert main(["train", "--set=sharding=shard", f"--set=out={tmp_path / 'out'}"]) == 2
    said = "sharding: found 'shard' with one process, allowed: replicate, or start with torchrun"
    assert capsys.readouterr().err.strip() == said and not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"sharding": "zero1", "dtype": "float64"}, "sharding: found 'zero1' with dtype float64, allowed: float32"),
        ({"sharding": "zero2", "dtype": "bfloat16"}, "sharding: found 'zero2' with dtype bfloat16, allowed: float32"),
        ({"sharding": "zero3", "lora_rank": 2}, "sharding: found 'zero3' with lora_rank, allowed with adapters: replicate,"),
    ],
)
def test_what_deepspeed_cannot_share_out_is_refused_in_one_line(settings, said, capsys, tmp_path):
    require("deepspeed")
    assert main(["train", *(f"--set={name}={value}" for name, value in settings.items()), f"--set=out={tmp_path / 'out'}"]) == 2
    error = capsys.readouterr().err
    assert error.startswith(said) and error.count("\n") == 1 and not (tmp_path / "out").exists()


@pytest.mark.parametrize("sharding", STAGES)
def test_without_deepspeed_the_package_is_named(sharding, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "deepspeed", None)
    monkeypatch.delitem(sys.modules, "grpo_core.zero", raising=False)
    assert main(["train", f"--set=sharding={sharding}"]) == 2
    said = f"sharding: found '{sharding}', which needs the package deepspeed (pip install deepspeed)"
    assert capsys.readouterr().err.strip() == said
