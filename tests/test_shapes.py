"""The checks that every test of grpo_core runs under refuse what they should, wherever a function or a record is defined."""

from dataclasses import dataclass, replace

import pytest
import shapes
import torch
from jaxtyping import Float, TypeCheckError
from torch import Tensor

from grpo_core import Recipe

VECTOR, MATRIX = torch.zeros(3), torch.zeros(2, 3)


@shapes.checked
def times(matrix: Float[Tensor, "a b"], vector: Float[Tensor, " b"] | None = None, wrong: bool = False) -> Float[Tensor, " a"]:
    return torch.zeros(9) if wrong else matrix.sum(1)


@shapes.checked
@dataclass(frozen=True)
class Record:
    matrix: Float[Tensor, "a b"]
    vector: Float[Tensor, " b"]
    name: str = ""

    @classmethod
    @shapes.checked
    def of(cls, name: str) -> "Record":
        return cls(MATRIX, VECTOR, name)

    @property
    @shapes.checked
    def wide(self) -> bool:
        return self.name if self.name else True


def inner(limit: int):
    def above(value: int) -> bool:
        return value > limit

    def row(vector: Float[Tensor, " a"], other: Float[Tensor, " a"]) -> int:
        return len(vector) + limit

    return shapes.checked(above), shapes.checked(row)


def test_a_name_is_one_size_within_a_call_and_free_in_the_next():
    for size in (3, 4):
        assert len(times(torch.zeros(2, size), torch.zeros(size))) == 2
    for wrong in ((MATRIX, torch.zeros(2)), (VECTOR,), (MATRIX.long(),), (MATRIX, None, True), (MATRIX, None, 1), ([[1.0]],)):
        with pytest.raises(TypeCheckError):
            times(*wrong)
    assert len(times(MATRIX, VECTOR)) == 2  # what failed left nothing behind


def test_a_record_is_checked_where_it_is_made():
    assert Record.of("").wide and Record(MATRIX, VECTOR, name="x").name == "x"
    for wrong in (lambda: Record(MATRIX, torch.zeros(2)), lambda: Record(MATRIX, VECTOR, 3), lambda: Record.of(3)):
        with pytest.raises(TypeCheckError):
            wrong()
    with pytest.raises(TypeCheckError):
        Record.of("a text is no bool").wide  # noqa: B018


@pytest.mark.parametrize("limit", [1, 5, 7])
def test_an_inner_function_is_checked_each_time_and_keeps_what_it_closes_over(limit):
    above, row = inner(limit)
    assert above(3) == (limit < 3) and above.__name__ == "above" and row(VECTOR, VECTOR) == 3 + limit
    for wrong in (lambda: above("3"), lambda: row(VECTOR, torch.zeros(2))):
        with pytest.raises(TypeCheckError):
            wrong()


def test_the_package_is_under_these_checks(trace):
    for wrong in (lambda: Recipe(group_size="4"), lambda: replace(trace.advantages, baseline=torch.zeros(3))):
        with pytest.raises(TypeCheckError):
            wrong()
    assert replace(trace.advantages) is not trace.advantages and hasattr(Recipe.repaired, "__wrapped__")
