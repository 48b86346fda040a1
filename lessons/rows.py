"""The rows of the step that is looked at, as people read them: whose group they are of, where their completion is, its text.

A step that was run here knows all of it; a batch file may not, and then its ids stand for the text.
"""

from functools import cached_property
from typing import TYPE_CHECKING

from torch import Tensor

from grpo_core.explain import least_likely_column
from grpo_core.workings import group_ids_of

if TYPE_CHECKING:
    from .lesson import Context

MOST = 64  # rows shown at a time; a step that is run here has no more
LONGEST = 240  # characters of a completion in a table


def selected(context: "Context") -> tuple[int, int]:
    """The selected row and position.

    In a step that was run here the nearest that is trained; in a batch file any place of any row can be looked at. Where
    no token is selected it is the row's least likely one.
    """
    trace, asked, width = context.trace, context.selection, context.rows.width
    some = context.rows.trained.any(1).nonzero().flatten().tolist()
    last = context.rows.count - 1
    if context.of_file and 0 <= asked.pos < width and asked.row <= last:
        return asked.row, asked.pos
    row = min(some, key=lambda row: abs(row - asked.row)) if some else min(asked.row, last)
    trained = context.trained_positions(row)
    behind = [pos for pos in trained if pos >= asked.pos]
    if behind and asked.pos >= 0:
        return row, behind[0]
    return row, context.positions[least_likely_column(trace, row)]


class Rows:
    """Made once per context."""

    def __init__(self, context: "Context"):
        self.context, self.batch, self.rollout = context, context.trace.batch, context.trace.rollout
        self.ids = self.batch.row_ids()
        self.count, self.width = self.ids.shape

    # of a large batch these are not made anew for every token
    @cached_property
    def mask(self) -> Tensor:
        return self.batch.row_mask()

    @cached_property
    def completions(self) -> Tensor:
        return self.batch.row_completion_mask()

    @cached_property
    def trained(self) -> Tensor:
        return self.batch.trained_mask()

    def is_trained(self, row: int, pos: int) -> bool:
        """Whether the loss reads the token."""
        column = self.context.column_of(pos)
        return column >= 0 and bool(self.trained[row, column])

    @cached_property
    def shown(self) -> list[int]:
        """The rows to show: all, or those round the selected one."""
        first = min(max(0, self.context.row - MOST // 2), max(0, self.count - MOST))
        return list(range(first, min(self.count, first + MOST)))

    @cached_property
    def groups(self) -> list[int]:
        """Each row's group, numbered in the order of the rows."""
        numbers: dict[int, int] = {}
        return [numbers.setdefault(group, len(numbers)) for group in group_ids_of(self.context.trace).tolist()]

    @cached_property
    def answers(self) -> list[int]:
        """The how manieth of its group each row is, from 1."""
        seen: dict[int, int] = {}
        counted = []
        for group in self.groups:
            seen[group] = seen.get(group, 0) + 1
            counted.append(seen[group])
        return counted

    @property
    def grouped(self) -> bool:
        """Whether anybody said which rows answer the same prompt."""
        return self.batch.group_ids is not None

    @cached_property
    def largest_group(self) -> int:
        return max(self.groups.count(group) for group in set(self.groups))

    # ---- where what is -------------------------------------------------------------------------------------------------
    @cached_property
    def prompt_width(self) -> int:
        """The first column in which a completion begins."""
        if self.batch.prompt_ids is not None:
            return self.batch.prompt_ids.shape[1]
        if self.rollout is not None:
            return self.rollout.prompt_ids.shape[1]
        held = self.completions.any(0).nonzero()
        return int(held[0]) if len(held) else self.width

    def prompt_end(self, row: int) -> int:
        """The column behind the row's prompt."""
        if self.batch.prompt_ids is not None or self.rollout is not None:
            return self.prompt_width
        held = self.completions[row].nonzero()
        return int(held[0]) if len(held) else self.width

    def completion(self, row: int) -> list[int]:
        """The columns of the row's completion, those that a tool wrote included."""
        if self.rollout is not None:
            mask = self.rollout.completion_mask[row]
            return [self.prompt_width + place for place in mask.nonzero().flatten().tolist()]
        mask = self.completions[row].clone()
        mask[self.batch.token_positions()] |= self.trained[row]  # what is trained is shown, whatever the completion's mask says
        return mask.nonzero().flatten().tolist()

    def real(self, row: int, pos: int) -> bool:
        """Whether the model is told that there is a token."""
        return bool(self.mask[row, pos])

    # ---- texts ---------------------------------------------------------------------------------------------------------
    def text(self, row: int) -> str:
        """The completion."""
        if self.rollout is not None:
            return self.rollout.completions[row]
        return self._joined(row, self.completion(row))

    def prompt(self, row: int) -> str:
        if self.rollout is not None:
            return self.rollout.prompts[int(self.rollout.group_ids[row])]
        return self._joined(row, [pos for pos in range(self.prompt_end(row)) if self.real(row, pos)])

    def _joined(self, row: int, places: list[int]) -> str:
        """The tokens' texts in a row; ids with spaces between where no text is known."""
        ids, tokens = self.ids[row].tolist(), self.context.tokens
        pieces, known = [], False
        for pos in places[:LONGEST]:
            pieces.append(tokens.piece(ids[pos]))
            known = known or pieces[-1] != str(ids[pos])
        joined = ("" if known else " ").join(pieces)
        return joined[:LONGEST] + ("…" if len(joined) > LONGEST or len(places) > LONGEST else "")

    # ---- what the engine and the rewards say ------------------------------------------------------------------------------
    @property
    def finish_reasons(self) -> tuple[str, ...] | None:
        return self.rollout.finish_reasons if self.rollout is not None else self.batch.finish_reasons

    @property
    def reward_names(self) -> tuple[str, ...]:
        """Of the reward functions, a number for one without a name."""
        if self.rollout is not None:
            return self.rollout.reward_names
        count = len(self.context.trace.advantages.weights)
        return self.batch.reward_names or tuple(f"r{number}" for number in range(1, count + 1))
