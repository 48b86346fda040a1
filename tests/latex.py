"""The lessons' formulas as arithmetic: LaTeX templates of `lessons/formulas.py`, evaluated with the numbers in their slots."""

import math
import re
from collections.abc import Callable
from functools import cache
from typing import Any

PIECE = re.compile(r"<<[^>]+?(?:\|.+?)?>>|\\[a-zA-Z]+|\\[,;]|[a-zA-Z](?:_(?:\w|\{[^}]*\}))?|[\d.]+|\S")
WORDS = {
    r"\cdot": "*", r"\le": "<=", r"\ge": ">=", r"\lor": " or ", r"\land": " and ", r"\,": "", r"\;": "", "[": "(", "]": ")",
    r"\min": "min", r"\max": "max", r"\exp": "exp", r"\log": "log", r"\sigma": "sigmoid", r"\sqrt": "sqrt", "e": "E",
    r"\varphi": "phi", r"\Delta": "Delta", "{": "(", "}": ")",
}  # fmt: skip
FUNCTIONS = {
    "min": min, "max": max, "exp": math.exp, "log": math.log, "sqrt": math.sqrt, "abs": abs, "E": math.e,
    "sigmoid": lambda x: 1 / (1 + math.exp(-x)), "sg": lambda x: x, "sign": lambda x: (x > 0) - (x < 0),
    "clip": lambda x, low, high: min(max(x, low), high),
}  # fmt: skip


@cache
def python_of(latex: str) -> str:
    """An expression of the few commands that the formulas use, as Python."""
    pieces, made, bars = PIECE.findall(latex), [], 0
    at = 0

    def group() -> list[str]:
        """The pieces between the braces that begin here."""
        nonlocal at
        depth, start = 0, at
        while True:
            depth += {"{": 1, "}": -1}.get(pieces[at], 0)
            at += 1
            if not depth:
                return pieces[start + 1 : at - 1]

    while at < len(pieces):
        piece = pieces[at]
        at += 1
        if piece.startswith("<<"):
            made.append(f"number({piece[2:-2].split('|')[0]!r})")
        elif piece == r"\frac":
            over, under = (python_of(" ".join(group())) for _ in range(2))
            made.append(f"(({over})/({under}))")
        elif piece == r"\operatorname":
            made.append("".join(group()))
        elif piece == "^":
            made.append("**" + (f"({python_of(' '.join(group()))})" if pieces[at] == "{" else ""))
        elif piece == "|":
            bars += 1
            made.append("abs(" if bars % 2 else ")")
        else:
            made.append(WORDS.get(piece, piece))
    return "".join(made)


@cache
def lines_of(template: str) -> list[tuple[str, str, str]]:
    """(condition, left side, right side) of every line that can be evaluated: sums over tokens and sets of tokens cannot."""
    lines = []
    for line in template.splitlines():
        plain = re.sub(r"<<([^>|]+)\|.+?>>", r"<<\1>>", line)
        condition, _, formula = plain.rpartition(r":\quad ")
        left, right = formula.split(" = ", 1)
        if r"\sum" not in right:
            lines.append(("" if r"\mathcal" in condition else condition, left, right))
    return lines


def evaluate(template: str, number: Callable[[str], float]) -> dict[str, tuple[float, float]]:
    """Left and right side of every equation with a quantity at its left. Raises AssertionError where a condition is false."""
    names: dict[str, Any] = FUNCTIONS | {"number": number}
    lines = lines_of(template)
    values = {}
    for _, left, right in reversed(lines):  # what a line refers to stands below it
        value = eval(python_of(right), {"__builtins__": {}}, names)
        if left.startswith("<<"):
            values[left] = (float(eval(python_of(left), {"__builtins__": {}}, names)), float(value))
        else:
            names[python_of(left)] = value
    for condition, _, _ in lines:
        if condition and "=" not in re.sub(r"\\[a-z]+", "", condition):
            assert eval(python_of(condition), {"__builtins__": {}}, names), condition
    return values
