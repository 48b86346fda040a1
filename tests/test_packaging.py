"""The wheel: the core and its built-in model, nothing of the app, and enough to load a policy away from the checkout."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from peers import require

ROOT = Path(__file__).parent.parent
LOADS = """
import sys, grpo_core
from grpo_core import Recipe, load_policy, sample
assert grpo_core.__file__.startswith(sys.argv[1]), grpo_core.__file__
policy = load_policy("tiny")
print(len(sample(policy, ("1 + 1",), Recipe(prompts=("1 + 1",), max_completion_length=2)).completions))
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Built from a copy: setuptools leaves its work beside the sources."""
    require("setuptools")
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    listing = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    files = subprocess.run(listing, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    for name in filter(lambda name: (ROOT / name).is_file(), files):
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, source / name)
    build = [sys.executable, "-m", "pip", "wheel", str(source), "--no-deps", "--no-build-isolation", "-w", str(out)]
    done = subprocess.run([*build, "--disable-pip-version-check"], capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    (built,) = out.glob("*.whl")
    return built


def test_the_wheel_holds_the_core_with_its_model_and_nothing_else(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    packages = {name.split("/")[0] for name in names}
    assert {name for name in packages if not name.endswith(".dist-info")} == {"grpo_core"}
    model = {path.relative_to(ROOT).as_posix() for path in (ROOT / "grpo_core" / "tiny" / "model").iterdir()}
    assert model <= names and "grpo_core/tiny/model/model.safetensors" in model
    sources = {path.relative_to(ROOT).as_posix() for path in (ROOT / "grpo_core").rglob("*.py")}
    assert sources == {name for name in names if name.endswith(".py")}
    assert any(name.endswith("/LICENSE") for name in names)


def test_the_built_in_model_loads_from_the_wheel(wheel, tmp_path):
    zipfile.ZipFile(wheel).extractall(tmp_path)
    alone = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [sys.executable, "-c", LOADS, str(tmp_path)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, env=alone)
    assert (done.returncode, done.stdout) == (0, "4\n"), done.stderr
