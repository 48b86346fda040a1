"""The lines of `grpo_core` that computed a number, found in the running code: never pasted, never the whole file.

`assignment(function, name)` is the statement in `function` that gives `name` its value; `whole(function)` is a small
function as it stands, without its docstring.
"""

import ast
import inspect
import textwrap
from collections.abc import Callable
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parent.parent


def _place(function: Callable) -> tuple[str, list[str], int]:
    function = inspect.unwrap(function)
    lines, first = inspect.getsourcelines(function)
    path = Path(inspect.getsourcefile(function) or "")
    name = path.relative_to(ROOT) if path.is_relative_to(ROOT) else Path(*path.parts[-2:])
    return name.as_posix(), lines, first


@cache
def assignment(function: Callable, name: str) -> dict:
    """Where and how `function` assigns `name` (or passes it as that keyword). Raises LookupError where it never does."""
    file, lines, first = _place(function)
    tree = ast.parse(textwrap.dedent("".join(lines)))
    found = [node for node in ast.walk(tree) if _gives(node, name)]
    if found:  # of several, the last: the first ones only prepare; where all change at once, rows have only been dropped
        node = max(found, key=lambda node: (isinstance(node, ast.Assign), not _several(node), node.lineno))
        return _excerpt(file, lines, first, node.lineno, node.end_lineno or node.lineno)
    raise LookupError(f"{function.__name__} never assigns {name}")


def _several(node: ast.AST) -> bool:
    return isinstance(node, ast.Assign) and any(isinstance(target, ast.Tuple) for target in node.targets)


def _gives(node: ast.AST, name: str) -> bool:
    """Whether a node assigns `name` (a variable, or a target spelt like it), or passes it as that keyword."""
    if isinstance(node, ast.keyword):
        return node.arg == name
    targets = node.targets if isinstance(node, ast.Assign) else []
    variables = {leaf.id for target in targets for leaf in ast.walk(target) if isinstance(leaf, ast.Name)}
    return name in variables | {ast.unparse(target) for target in targets}


@cache
def whole(function: Callable) -> dict:
    """A small function without its docstring."""
    file, lines, first = _place(function)
    body = ast.parse(textwrap.dedent("".join(lines))).body[0]
    assert isinstance(body, (ast.FunctionDef, ast.ClassDef))
    doc = body.body[0]
    skip = set()
    if isinstance(doc, ast.Expr) and isinstance(doc.value, ast.Constant) and isinstance(doc.value.value, str):
        skip = set(range(doc.lineno, (doc.end_lineno or doc.lineno) + 1))
    kept = [line for number, line in enumerate(lines, start=1) if number not in skip]
    return {"file": file, "line": first, "code": textwrap.dedent("".join(kept)).rstrip()}


def _excerpt(file: str, lines: list[str], first: int, start: int, end: int) -> dict:
    code = textwrap.dedent("".join(lines[start - 1 : end])).rstrip().rstrip(",")
    return {"file": file, "line": first + start - 1, "code": code}
