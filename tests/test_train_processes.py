"""A run shared by two real processes is the run of one: replicated or sharded, whatever looks across rows."""

import json
from pathlib import Path

import pytest
import torch
from many_processes import CASES
from peers import require
from processes import torchrun
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


@pytest.mark.parametrize("name", CASES)
def test_two_processes_do_what_one_does_in_fp64(found, name):
    case = found[name]
    assert "error" not in case, case["error"]
    one, two = case["one"], case["two"]
    assert one["texts"] == two["texts"] and one["packed"] == two["packed"] == (CASES[name].get("scoring") == "packed")
    if name != "dropped groups and minibatches":  # which of the kept rows share a minibatch depends on the processes
        # packed rows go through RMSNorms in fp32, in packs that differ
        limit = 1e-8 if name == "packed" else 1e-10
        assert one["weights"].keys() - two["weights"].keys() <= {"lm_head.weight"}  # tied: once is enough
        assert max(float((one["weights"][key] - two["weights"][key]).abs().max()) for key in two["weights"]) <= limit
        for left, right in zip(one["metrics"], two["metrics"], strict=True):
            assert left == pytest.approx(right, abs=1e-6)  # rewards are fp32


def test_the_weights_have_moved_and_processes_dropped_different_numbers_of_groups(found):
    weights = [case["two"]["weights"] for case in found.values()]
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
