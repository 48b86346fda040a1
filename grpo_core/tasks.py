"""Prompts with checkable answers, and the reward functions that check them.

A reward function takes the prompt, the completion's text and why it ended, and returns a number, or None where it has
nothing to say (a prompt that asks for no sum): missing is not the same as 0.
"""

import re
from collections.abc import Callable

SUM = re.compile(r"(?<![\w.])(-?\d+)\s*([+\-−])\s*(\d+)(?![\w.]*\d)")
INTEGER = re.compile(r"[-−]?\d+")
ENDS_IN_INTEGER = re.compile(r"\d\s*\.?\s*$")


def right_answer(prompt: str) -> int | None:
    """The value of the first sum or difference that the prompt asks for; None where it asks for none."""
    found = SUM.search(prompt)
    if not found:
        return None
    left, sign, right = found.groups()
    return int(left) + int(right) if sign == "+" else int(left) - int(right)


def correct(prompt: str, completion: str, finish_reason: str) -> float | None:
    """1 if the last whole number of the completion is the right answer, else 0."""
    answer = right_answer(prompt)
    if answer is None:
        return None
    numbers = INTEGER.findall(completion)
    return float(bool(numbers) and _minus_sign(numbers[-1]) == answer)


def _minus_sign(number: str) -> int:
    return int(number.replace("−", "-"))


def format_ok(prompt: str, completion: str, finish_reason: str) -> float | None:
    """1 if the completion stopped by itself and ends in a whole number (and a full stop, perhaps), else 0."""
    if right_answer(prompt) is None:
        return None
    return float(finish_reason == "stop" and bool(ENDS_IN_INTEGER.search(completion)))


# names, prompts, completions, finish reasons, the last three with one entry per row -> rewards [B][R]
RewardFunction = Callable[[tuple[str, ...], list[str], tuple[str, ...], tuple[str, ...]], tuple[tuple[float | None, ...], ...]]
REWARDS = {"correct": correct, "format": format_ok}


def score(
    names: tuple[str, ...], prompts: list[str], completions: tuple[str, ...], finish_reasons: tuple[str, ...]
) -> tuple[tuple[float | None, ...], ...]:
    """Rewards [B][R] of completions; `prompts` has one text per row."""
    rows = zip(prompts, completions, finish_reasons, strict=True)
    return tuple(tuple(REWARDS[name](*row) for name in names) for row in rows)
