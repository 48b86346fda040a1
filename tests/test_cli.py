"""`python -m grpo_core step`: text, strict JSON that agrees with the trace, and one line where it cannot be done."""

import json
import os
import re
import subprocess
import sys
from dataclasses import fields, is_dataclass
from pathlib import Path

import pytest
import torch

from grpo_core import CHECKS, Recipe, grpo_step, load_policy, sample
from grpo_core.__main__ import main
from grpo_core.commands.output import plain

ROOT = Path(__file__).parent.parent
KEYS = {"loss", "quantities", "checks", "rewards", "advantages", "completions", "seconds"}
SETTINGS = ["--prompt", "What is 4 + 5?", "--prompt", "9 - 2", "--group-size=3", "--max-completion-length=7", "--seed=3"]
RECIPE = Recipe(prompts=("What is 4 + 5?", "9 - 2"), group_size=3, max_completion_length=7, seed=3)


def started(*arguments: str) -> subprocess.CompletedProcess:
    """The command as its own process."""
    command = [sys.executable, "-m", "grpo_core", *arguments]
    alike = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, env=alike)


def strict(text: str):
    """JSON as the standard has it: a bare NaN or Infinity is an error."""
    return json.loads(text, parse_constant=lambda name: pytest.fail(f"bare {name} in JSON"))


@pytest.fixture(scope="module")
def trace():
    reference = load_policy("tiny")
    return grpo_step(reference.clone(), reference, sample(reference, RECIPE.prompts, RECIPE), RECIPE)


@pytest.fixture(scope="module")
def reported():
    done = started("step", "--json", *SETTINGS)
    assert done.returncode == 0 and "Traceback" not in done.stderr
    return strict(done.stdout)


def tensors(value, name: str = "") -> dict[str, torch.Tensor]:
    """Every tensor below a record, by its path."""
    if isinstance(value, torch.Tensor):
        return {name: value}
    if is_dataclass(value):
        parts = [(f.name, getattr(value, f.name)) for f in fields(value)]
    elif isinstance(value, tuple):
        parts = [(str(place), part) for place, part in enumerate(value)]
    else:
        return {}
    return {key: t for part, inner in parts for key, t in tensors(inner, f"{name}.{part}".removeprefix(".")).items()}


def test_the_json_has_every_part(reported, trace):
    assert set(reported) == KEYS
    assert set(reported["checks"]) == set(CHECKS)
    assert set(reported["checks"].values()) <= {"pass", "info", "warning", "error", "skipped"}
    assert reported["completions"] == list(trace.rollout.completions) and reported["seconds"] > 0
    assert reported["rewards"] == [list(row) for row in trace.rollout.rewards]


def test_the_json_is_the_trace_of_the_same_recipe(reported, trace):
    assert reported["loss"] == trace.updates[0].terms.loss.item()
    assert reported["advantages"] == trace.advantages.advantages.tolist()
    expected = tensors(trace)
    assert set(reported["quantities"]) == set(expected) and "updates.1.terms.ratio" in expected
    for name, tensor in expected.items():
        said, values = reported["quantities"][name], tensor.double()
        assert (said["shape"], f"torch.{said['dtype']}") == (list(tensor.shape), str(tensor.dtype)), name
        for statistic in ("min", "mean", "max"):
            assert said[statistic] == plain(getattr(values, statistic)().item()), (name, statistic)


def test_missing_rewards_are_no_bare_nan(capsys):
    assert main(["step", "--json", "--prompt", "Tell me a story.", "--updates", "1", "--max-completion-length", "4"]) == 0
    text = capsys.readouterr().out
    reported = strict(text)
    assert reported["rewards"] == [[None, None]] * 4 and reported["advantages"] == [0.0] * 4
    assert reported["quantities"]["advantages.rewards"]["mean"] == "NaN" and '"NaN"' in text
    assert [plain(float(x)) for x in ("nan", "inf", "-inf", "2")] == ["NaN", "Infinity", "-Infinity", 2.0]


def test_the_text_names_completions_losses_and_checks(capsys, trace):
    assert main(["step", *SETTINGS]) == 0
    lines = capsys.readouterr().out.splitlines()
    for row, line in enumerate(lines[:6]):
        assert repr(trace.rollout.completions[row]) in line
        assert line.endswith(f"{trace.advantages.advantages[row]:+.4f}")
    for number, update in enumerate(trace.updates, start=1):
        assert lines[5 + number].startswith(f"update {number}: loss {update.terms.loss:.6g} ")
        assert lines[5 + number].endswith(f"grad_norm {update.grad_norm:.6g}")
    assert {line.split()[1] for line in lines[8:-1]} == set(CHECKS) and re.fullmatch(r"\d+\.\d\d s", lines[-1])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "required: command"),
        (["walk"], "'walk'"),
        (["step", "--flavour", "sweet"], "--flavour"),
        (["step", "--group-size", "many"], "'many'"),
        (["step", "--group-size", "0"], "group_size: found 0, allowed: a whole number from 1 to 64"),
        (["step", "--temperature", "0"], "temperature: found 0.0, allowed: above 0"),
        (["step", "--temperature", "nan"], "temperature: found nan, allowed: "),
        (["step", "--aggregation", "mode"], "aggregation: found 'mode', allowed: "),
        (["step", "--layout", "columns"], "layout: found 'columns', allowed: prompt_completion, sequence"),
        (["step", "--prompt", " "], "prompts: found (' ',), allowed: "),
        (["step", "--prompt", "1 + 1 " * 99], "prompts: prompt 1 has "),
        (["step", "--model", "/no/such/folder"], "model: found no '/no/such/folder'; allowed: "),
    ],
)
def test_what_cannot_be_done_is_one_line_and_status_2(arguments, said, capfd):
    try:
        status = main(arguments)
    except SystemExit as left:
        status = left.code
    out, err = capfd.readouterr()
    (line,) = [line for line in err.splitlines() if line and "Loading weights" not in line]  # and its progress bar
    assert status == 2 and not out and said in line


def test_the_process_ends_with_the_status():
    done = started("step", "--beta", "-1")
    assert (done.returncode, done.stdout) == (2, "") and done.stderr == "beta: found -1.0, allowed: 0 to 100\n"
