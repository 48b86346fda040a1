"""What keeps the code readable: lengths, who may import what, and a README whose tree is the disk."""

import ast
from pathlib import Path

import pytest
from repo_tree import differences, listed, on_disk, tree_block

ROOT = Path(__file__).parent.parent
CORE = sorted((ROOT / "grpo_core").rglob("*.py"))
LESSONS = sorted((ROOT / "lessons").rglob("*.py"))
TESTS = sorted((ROOT / "tests").rglob("*.py"))
APP = [ROOT / "app.py"]
ONLY_HERE = {
    "torch.distributed": "grpo_core/distributed.py", "accelerate": "grpo_core/distributed.py", "deepspeed": "grpo_core/zero.py",
}  # fmt: skip
FUNCTION, CORE_FILE, LESSON_FILE, APP_FILE = 40, 250, 150, 150


def name_of(path):
    return path.relative_to(ROOT).as_posix()


def lines_of(path):
    return len(path.read_text(encoding="utf-8").splitlines())


def is_lesson(path):
    """s01_prompt.py and its like: one lesson each."""
    return path.parent.name == "lessons" and path.name[0] == "s" and path.name[1:3].isdigit()


def function_lengths(source: str):
    """(name, lines from `def` to the end) of every function. The docstring does not count: it is to be encouraged."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            docs = node.body[0] if ast.get_docstring(node, clean=False) is not None else None
            spared = docs.end_lineno - docs.lineno + 1 if docs else 0
            yield node.name, node.end_lineno - node.lineno + 1 - spared


def imported(source: str, package: str = ""):
    """Dotted names of everything a file imports, anywhere in it, and of `torch.x` that it reaches for."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            yield f"{node.value.id}.{node.attr}"


def imports_of(source: str, *packages: str):
    names = set(imported(source))
    return {p for p in packages if any(name == p or name.startswith(p + ".") for name in names)}


@pytest.mark.parametrize("path", CORE + LESSONS + TESTS + APP, ids=name_of)
def test_functions_have_at_most_40_lines(path):
    lengths = function_lengths(path.read_text(encoding="utf-8"))
    assert not [f"{name}: {lines} lines" for name, lines in lengths if lines > FUNCTION]


@pytest.mark.parametrize("path", CORE + LESSONS + TESTS + APP, ids=name_of)
def test_files_keep_to_their_length(path):
    allowed = APP_FILE if path in APP else LESSON_FILE if is_lesson(path) else CORE_FILE
    assert lines_of(path) <= allowed


@pytest.mark.parametrize("path", CORE, ids=name_of)
def test_the_core_knows_nothing_of_the_app(path):
    assert not imports_of(path.read_text(encoding="utf-8"), "gradio", "plotly", "lessons", "app")


@pytest.mark.parametrize("path", CORE + LESSONS + APP, ids=name_of)
def test_only_one_file_knows_of_other_processes(path):
    found = imports_of(path.read_text(encoding="utf-8"), *ONLY_HERE)
    assert not {package for package in found if ONLY_HERE[package] != name_of(path)}


def test_the_app_holds_no_mathematics():
    assert not imports_of(APP[0].read_text(encoding="utf-8"), "torch", "numpy", "transformers")


def test_the_readmes_tree_is_the_disk():
    block = tree_block((ROOT / "README.md").read_text(encoding="utf-8"))
    assert block, "README.md has no fenced block with a line `grpo_core/`"
    wrong = differences(listed(block), on_disk(ROOT))
    assert not wrong, "\n".join(wrong)


def test_the_rules_above_can_be_broken():
    long = "def f():\n    '''a\n    b'''\n" + "    x = 1\n" * 40
    assert list(function_lengths(long)) == [("f", 41)]
    assert imports_of("def f():\n    import torch.distributed as d", *ONLY_HERE) == {"torch.distributed"}
    assert imports_of("from torch import distributed", *ONLY_HERE) == {"torch.distributed"}
    assert imports_of("import torch\ntorch.distributed.init()", *ONLY_HERE) == {"torch.distributed"}
    assert imports_of("from accelerate.utils import x", *ONLY_HERE) == {"accelerate"}
    assert imports_of("import plotly.express", "gradio", "plotly") == {"plotly"}
    assert not imports_of("import gradio_client\nfrom .lessons import x", "gradio", "lessons")


def test_a_tree_that_is_not_the_disk_is_noticed():
    readme = "```\ngit clone\n```\n\n```\napp.py      the shell\ngrpo_core/  maths\n  types.py  records\n  s*.py\ntests/\n```\n"
    said = listed(tree_block(readme))
    assert said == {"": {"app.py", "grpo_core/", "tests/"}, "grpo_core/": {"types.py", "s*.py"}}
    disk = {"": {"app.py", "grpo_core/", "tests/", ".ci/"}, "grpo_core/": {"types.py", "s1.py"}, "tests/": {"x.py"}}
    assert differences(said, disk) == []
    disk["grpo_core/"] = {"s1.py", "kl.py"}
    assert differences(said, disk) == ["listed, not there: grpo_core/types.py", "there, not listed: grpo_core/kl.py"]
