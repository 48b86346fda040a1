"""Formulas as MathML, twice from one template: with symbols, and with the selected token's numbers in their place.

A template is LaTeX, one formula per line, in which `<<name>>` is a slot: a quantity of `quantities.QUANTITIES`
(`<<name.2>>`: its element 2; `<<name|symbol>>`: with another symbol than the quantity's own).
latex2mathml makes the MathML; numbers go in behind it, escaped, with the attributes that say which element they are.
"""

import re
from collections.abc import Callable
from html import escape

from latex2mathml.converter import convert

SLOT = re.compile(r"<<([\w.@/-]+)(?:\|(.+?))?>>")
LEADS = ("", "(", "{", "[", "=", ",", "|")  # what a negative number may follow without brackets
SPACE = re.compile(r"\\[,;]\s*$")
FIRST = 7_000_001  # slots are converted as these numerals, which no template contains
Attributes = dict[str, object]


def symbols(template: str, symbol: Callable[[str], str]) -> str:
    """The formula with each slot's symbol."""
    return "".join(
        convert(SLOT.sub(lambda match: "{" + (match[2] or symbol(match[1])) + "}", line), display="block")
        for line in template.splitlines()
    )


def with_numbers(template: str, number: Callable[[str], tuple[str, Attributes]]) -> str:
    """The formula with each slot's number; a negative one stands in brackets unless it leads its part."""
    return "".join(_line_with_numbers(line, number) for line in template.splitlines())


def _line_with_numbers(template: str, number: Callable[[str], tuple[str, Attributes]]) -> str:
    slots = list(SLOT.finditer(template))
    numerals = iter(range(FIRST, FIRST + len(slots)))
    mathml = convert(SLOT.sub(lambda _: "{" + str(next(numerals)) + "}", template), display="block")
    for offset, slot in enumerate(slots):
        text, attributes = number(slot[1])
        marked = " ".join(f'data-{key}="{escape(str(value))}"' for key, value in attributes.items() if value is not None)
        leaf = f"<mn {marked}>{escape(text)}</mn>"
        leads = SPACE.sub("", template[: slot.start()]).rstrip()[-1:] in LEADS
        if text.startswith("\u2212") and not leads:
            leaf = f"<mrow><mo>(</mo>{leaf}<mo>)</mo></mrow>"
        mathml = mathml.replace(f"<mn>{FIRST + offset}</mn>", leaf)
    return mathml


def number_html(text: str, attributes: Attributes) -> str:
    """A number in running text."""
    marked = " ".join(f'data-{key}="{escape(str(value))}"' for key, value in attributes.items() if value is not None)
    return f'<span class="number" {marked}>{escape(text)}</span>'
