"""The questions the built-in model understands: sums and differences of two numbers from 0 to 20.

Covers the phrasings, the right result, and drawing questions with a seed.
Does not cover answers (``answers.py``) or marking them (``measure.py``).
Differences are asked with the larger number first, so no result is negative.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

LARGEST = 20

# The sum itself is always written out, so that a reward function can find it in any of the phrasings.
PHRASINGS = (
    "What is {a} {sign} {b}?",
    "{a} {sign} {b} = ?",
    "Compute {a} {sign} {b}.",
    "Compute {a} {sign} {b} for me.",
    "How much is {a} {sign} {b}?",
    "Please tell me {a} {sign} {b}.",
    "{a} {sign} {b}",
)


@dataclass(frozen=True)
class Question:
    """One question: its two numbers, its sign and the words it is asked in."""

    a: int
    sign: str
    b: int
    phrasing: int = 0

    @property
    def text(self) -> str:
        return PHRASINGS[self.phrasing].format(a=self.a, sign=self.sign, b=self.b)

    @property
    def result(self) -> int:
        return self.a + self.b if self.sign == "+" else self.a - self.b


def draw_question(rng: random.Random) -> Question:
    """One question; sums and differences are equally likely."""
    a, b = rng.randint(0, LARGEST), rng.randint(0, LARGEST)
    sign = rng.choice("+-")
    if sign == "-" and b > a:
        a, b = b, a
    return Question(a, sign, b, rng.randrange(len(PHRASINGS)))


def draw_questions(count: int, seed: int) -> list[Question]:
    """``count`` questions; the same seed always draws the same ones."""
    rng = random.Random(seed)
    return [draw_question(rng) for _ in range(count)]
