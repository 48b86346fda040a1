"""What several checks read out of a batch: which column stands where, where prompts end, which rows belong together.

Axes as in `types`. A column is a `[B T]` place, a position one in the whole row prompt + completion.
"""

from collections.abc import Iterable, Iterator

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ..batch import Batch
from .finding import Evidence

LOGPROBS = ("policy_logprobs", "old_logprobs", "ref_logprobs", "sampler_logprobs")
WHOLE_UP_TO = 4096  # places of a tensor that a finding quotes whole; of larger ones the first rows that it names
ROWS_QUOTED = 8


def places(found: Bool[Tensor, "B _"], positions: Int[Tensor, " _"]) -> tuple[tuple[int, int], ...]:
    """Where a [B n] boolean is True, as (row, position) with the position of each column given."""
    return tuple((row, int(positions[column])) for row, column in found.nonzero().tolist())


def tokens_at(batch: Batch, found: Bool[Tensor, "B T"]) -> tuple[tuple[int, int], ...]:
    """The same for the columns of a `[B T]` tensor."""
    return places(found, batch.token_positions())


def rows_at(found: Tensor) -> tuple[int, ...]:
    """The rows in which a [B] or [B n] boolean is True."""
    return tuple((found.any(1) if found.dim() > 1 else found).nonzero().flatten().tolist())


def quoted(name: str, values: Tensor, rows: Iterable[int]) -> dict[str, Tensor]:
    """A tensor for a finding's `expected` or `found`: whole where it is small, else the first rows that the finding names."""
    if values.numel() <= WHOLE_UP_TO:
        return {name: values}
    return {f"{name}[{row}]": values[row][:WHOLE_UP_TO] for row in list(rows)[:ROWS_QUOTED]}


def column_ids(batch: Batch) -> Int[Tensor, "B T"]:
    """The id of the token that each column scores."""
    return batch.row_ids()[:, batch.token_positions()]


def column_attention(batch: Batch) -> Bool[Tensor, "B T"]:
    return batch.row_mask()[:, batch.token_positions()]


def first_true(mask: Bool[Tensor, "B n"]) -> Int[Tensor, " B"]:
    """The first True of each row; the width where there is none."""
    return torch.where(mask.any(1), mask.int().argmax(1), mask.shape[1])


def last_true(mask: Bool[Tensor, "B n"]) -> Int[Tensor, " B"]:
    """The last True of each row; -1 where there is none."""
    return torch.where(mask.any(1), mask.shape[1] - 1 - mask.flip(1).int().argmax(1), -1)


def prompt_ends(batch: Batch) -> Int[Tensor, " B"]:
    """The position behind each row's prompt: where the file says so, else where its completion mask begins."""
    if batch.prompt_ids is not None:
        return torch.full((len(batch.prompt_ids),), batch.prompt_ids.shape[1])
    if batch.prompt_lengths is not None:
        return first_true(batch.row_mask()) + batch.prompt_lengths
    return first_true(batch.row_completion_mask())


def behind_prompt(batch: Batch) -> Bool[Tensor, "B T"]:
    """True on every column behind the prompt, padding included."""
    return batch.token_positions().unsqueeze(0) >= prompt_ends(batch).unsqueeze(1)


def knows_prompts(batch: Batch) -> bool:
    """Whether it can be told where every row's prompt ends."""
    return batch.prompt_ids is not None or batch.prompt_lengths is not None or bool(batch.row_completion_mask().any(1).all())


def prompts_of(batch: Batch) -> list[tuple[int, ...]]:
    """The prompt's ids of each row, without padding; the whole row where nothing says where it ends."""
    if batch.prompt_ids is not None and batch.prompt_mask is not None:
        ids, mask = batch.prompt_ids, batch.prompt_mask
    else:
        ids = batch.row_ids()
        mask = batch.row_mask() & (torch.arange(ids.shape[1]) < prompt_ends(batch).unsqueeze(1))
    return [tuple(row[real].tolist()) for row, real in zip(ids, mask, strict=True)]


def has_turns(batch: Batch) -> Bool[Tensor, " B"]:
    """Rows in which somebody else wrote in between: a hole in the completion mask, or tool tokens."""
    columns = batch.completion_columns()
    between = (columns.int().cumsum(1) > 0) & (columns.flip(1).int().cumsum(1).flip(1) > 0)
    holes = (between & ~columns).any(1)
    return holes if batch.tool_mask is None else holes | (between & ~batch.tool_mask).any(1)


def mask_name(batch: Batch) -> str:
    """The field that decides which tokens are trained."""
    if batch.loss_mask is not None:
        return "loss_mask"
    return "response_mask" if batch.prompt_ids is None else "completion_mask"


def as_mask_field(batch: Batch, mask: Bool[Tensor, "B T"]) -> Bool[Tensor, "B _"]:
    """A mask over columns in the shape of that field."""
    return torch.nn.functional.pad(mask, (1, 0)) if mask_name(batch) == "response_mask" else mask


def groups_of(evidence: Evidence) -> Iterator[tuple[int, tuple[int, ...]]]:
    """(group id, its rows) where the file says which rows answer the same prompt, or its `num_generations` does."""
    ids = evidence.group_ids
    if ids is not None:
        for group in ids.unique().tolist():
            yield group, tuple((ids == group).nonzero().flatten().tolist())


def off_by(one: Float[Tensor, "B T"], other: Float[Tensor, "B T"], mask: Bool[Tensor, "B T"]) -> Float[Tensor, "B T"]:
    """one - other on the mask, 0 elsewhere and where one of them is not finite."""
    both = mask & one.isfinite() & other.isfinite()
    return torch.where(both, torch.where(both, one, 0.0) - torch.where(both, other, 0.0), 0.0)
