"""The answers the model is trained to imitate: a mix of careful and careless habits.

Covers the habits, how often each occurs, and how often each gets the number right.
Does not cover questions (``questions.py``) or turning text into tokens (``tokenizer.py``).

Why habits: GRPO makes an existing good behaviour frequent within minutes, but cannot teach arithmetic in that
time. So the right result is always within reach (writing the sum out makes it right), while several bad
habits, the same for every question, hide it from a sampled answer.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from grpo_core.tiny.questions import Question

ERROR_SIZES, ERROR_WEIGHTS = (1, 2, 3), (6, 3, 1)

MUSINGS = (
    "let me think about it",
    "let me look at {a} and {b} again",
    "I have to be sure",
    "it is a number",
    "it may be more",
    "it may be less",
    "I look at the numbers",
    "that is a good question",
    "so I start again",
)
LINKS = (", and then ", ", well, ", ", hmm, ", ", so ", ", but ")
RAMBLE_MUSINGS = 24


@dataclass(frozen=True)
class Habit:
    """One way of answering. ``{n}`` stands for the number given."""

    name: str
    share: float
    right: float
    templates: tuple[str, ...]


WORKED = Habit("worked", 0.44, 1.0, ("{a} {sign} {b} = {n}", "{a} {sign} {b} = {n}."))

HABITS = (
    WORKED,
    Habit("explained", 0.08, 1.0, ("Let me see: {a} {sign} {b} = {n}, so the answer is {n}.",)),
    Habit("stated", 0.18, 0.40, ("The answer is {n}.", "It is {n}.")),
    Habit("bare", 0.08, 0.40, ("{n}",)),
    Habit("guessed", 0.10, 0.25, ("I think it is {n}.", "I think the answer is {n}.", "Maybe {n}?")),
    Habit("malformed", 0.07, 0.25, ("The answer is", "I am not sure.", "It is {n} or so, I think.")),
    Habit("rambling", 0.05, 0.0, ()),
)


def wrong_number(result: int, rng: random.Random) -> int:
    """A number off by 1 to 3, never negative."""
    size = rng.choices(ERROR_SIZES, ERROR_WEIGHTS)[0]
    return rng.choice([n for n in (result - size, result + size) if n >= 0])


def ramble(question: Question, rng: random.Random) -> str:
    """A long text that never comes to a result; training cuts it off, so it has no end token."""
    pieces = ["Hmm"]
    for _ in range(RAMBLE_MUSINGS):
        pieces += [rng.choice(LINKS), rng.choice(MUSINGS)]
    return "".join(pieces).format(a=question.a, b=question.b)


def draw_answer(question: Question, habits: Sequence[Habit], rng: random.Random) -> tuple[str, bool]:
    """An answer text out of one of the habits, and whether it comes to an end."""
    habit = rng.choices(habits, [habit.share for habit in habits])[0]
    if not habit.templates:
        return ramble(question, rng), False
    right = rng.random() < habit.right
    number = question.result if right else wrong_number(question.result, rng)
    template = rng.choice(habit.templates)
    return template.format(a=question.a, b=question.b, sign=question.sign, n=number), True
