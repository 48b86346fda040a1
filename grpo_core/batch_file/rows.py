"""Rows of different lengths: every field at the width of its axis, and the masks that a batch file left out.

Fields that run along the same tokens lie on one *line*; on a line all lengths of a row must agree. In layout `sequence` a
[B T] field is one shorter than the ids (column t belongs to token t+1).
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from .cells import Cells
from .fields import FIELDS, IDS, BadField

Lengths = tuple[int, ...]  # of each row
LINES = {  # layout -> second axis -> (line, what a field is shorter by)
    "sequence": {"S": ("row", 0), "T": ("row", 1)},
    "prompt_completion": {"P": ("prompt", 0), "C": ("completion", 0), "T": ("completion", 0), "S": ("row", 0)},
}


def fit(cells: Mapping[str, Cells], layout: str, fill: int) -> tuple[dict[str, Tensor], dict[str, Lengths]]:
    """Every field padded to its axis, and the lengths as read: of all fields along the tokens if any two disagree, and of
    ragged fields with a width of their own."""
    along = {name: cell.lengths for name, cell in cells.items() if cell.lengths and FIELDS[name].columns in LINES[layout]}
    own = {name: cell.lengths for name, cell in cells.items() if cell.lengths and FIELDS[name].columns == "*"}
    _refuse_other_columns(along, layout)
    widths, agree = _widths(along, layout)
    tensors = {name: cell.values for name, cell in cells.items()}
    for name, lengths in along.items():
        line, less = LINES[layout][FIELDS[name].columns]
        width = widths[line] - less
        if set(lengths) != {width}:
            tensors[name] = _placed(name, cells[name].values, lengths, starts(name, lengths, width, along), width, fill)
    kept = {name: lengths for name, lengths in own.items() if len(set(lengths)) > 1}
    return tensors, kept if agree else kept | along


def _widths(along: Mapping[str, Lengths], layout: str) -> tuple[dict[str, int], bool]:
    """Width of each line, in tokens, and whether every row's lengths agree."""
    lines: dict[str, list[Lengths]] = {}
    for name, lengths in along.items():
        line, less = LINES[layout][FIELDS[name].columns]
        lines.setdefault(line, []).append(tuple(length + less for length in lengths))
    widths = {line: max(map(max, of_line)) for line, of_line in lines.items()}
    if layout == "sequence":
        return widths, len(set(lines["row"])) == 1
    whole = widths["prompt"] + widths["completion"]  # a whole row may come with its padding or without
    pairs = list(zip(along["prompt_ids"], along["completion_ids"], strict=True))
    rows = lines.pop("row", [])
    agree = all(len(set(of_line)) == 1 for of_line in lines.values()) and all(
        length in (whole, prompt + completion)
        for lengths in rows
        for length, (prompt, completion) in zip(lengths, pairs, strict=True)
    )
    widths["completion"] = max(widths["completion"], widths.get("row", 0) - widths["prompt"])
    widths["row"] = widths["prompt"] + widths["completion"]
    return widths, agree


def _refuse_other_columns(along: Mapping[str, Lengths], layout: str) -> None:
    """A [B T] field with the columns of another convention: a shape mistaken, not a row that lost a token."""
    ids = [along[name] for name in IDS[layout]]
    whole = tuple(map(sum, zip(*ids, strict=True)))
    mask = "response_mask" if layout == "sequence" else "completion_mask"
    if along.get(mask, ids[-1]) != ids[-1]:
        return  # the ids themselves are in doubt
    right, why = ids[-1], "column t belongs to completion_ids[:, t]"
    if layout == "sequence":
        right, why = tuple(n - 1 for n in whole), "column t belongs to token t + 1"
    for name, lengths in along.items():
        if FIELDS[name].columns == "T" and lengths != right and lengths in (whole, tuple(n - 1 for n in whole)):
            raise BadField(name, f"{lengths[0]} columns", f"{right[0]} in layout {layout} ({why})", 0)


def starts(name: str, lengths: Sequence[int], width: int, along: Mapping[str, Lengths]) -> list[int]:
    """The column at which each row of a field begins in its rectangle. A whole row without its padding (layout
    prompt_completion) begins where its prompt does."""
    if FIELDS[name].left:
        return [width - length for length in lengths]
    if FIELDS[name].columns == "S" and {"prompt_ids", "completion_ids"} <= along.keys():
        prompts, completions = along["prompt_ids"], along["completion_ids"]
        left = max(map(max, (along[other] for other in along if FIELDS[other].columns == "P")))
        rows = zip(lengths, prompts, completions, strict=True)
        return [left - prompt if length == prompt + completion else 0 for length, prompt, completion in rows]
    return [0] * len(lengths)


def _placed(name: str, values: Tensor, lengths: Lengths, begin: Sequence[int], width: int, fill: int) -> Tensor:
    field = FIELDS[name]
    shape = (len(values), width, *values.shape[2:])
    placed = torch.full(shape, fill if field.kind.token else 0, dtype=values.dtype)
    for row, (length, first) in enumerate(zip(lengths, begin, strict=True)):
        read = values.shape[1] - length if field.left else 0
        placed[row, first : first + length] = values[row, read : read + length]
    return placed


# ---- masks that were left out ------------------------------------------------------------------------------------------------
EDGES = {  # mask -> ids, and whether padding may stand before and behind them
    "sequence": {"attention_mask": ("input_ids", True, True)},
    "prompt_completion": {"prompt_mask": ("prompt_ids", True, False), "completion_mask": ("completion_ids", False, True)},
}


def derive_masks(
    tensors: Mapping[str, Tensor], lengths: Mapping[str, Lengths], layout: str, meta: Mapping[str, Any]
) -> dict[str, tuple[Tensor, str]]:
    """The masks that `tensors` lacks, each with what it was derived from; `lengths` are those of the ids as read.

    Raises BadField where more than one mask would fit.
    """
    derived = {}
    for mask, (ids, before, behind) in EDGES[layout].items():
        if mask not in tensors:
            found = _by_lengths(tensors[ids], lengths[ids], before and not behind) or _by_other_fields(mask, tensors)
            derived[mask] = found or _by_padding(mask, tensors[ids], before, behind, meta)
    if layout == "sequence" and "response_mask" not in tensors:
        real = tensors["attention_mask"] if "attention_mask" in tensors else derived["attention_mask"][0]
        derived["response_mask"] = _behind_prompts(real, tensors)
    return derived


def _by_lengths(ids: Tensor, lengths: Lengths, left: bool) -> tuple[Tensor, str] | None:
    """Rows that came without padding say themselves how long they are."""
    width = ids.shape[1]
    if set(lengths) == {width}:
        return None
    columns, length = torch.arange(width), torch.tensor(lengths).unsqueeze(1)
    return (columns >= width - length if left else columns < length), "the rows' lengths"


def _by_other_fields(mask: str, tensors: Mapping[str, Tensor]) -> tuple[Tensor, str] | None:
    if mask == "attention_mask":
        return None
    width = tensors["prompt_ids"].shape[1]
    if "attention_mask" in tensors:
        real = tensors["attention_mask"]
        return (real[:, :width] if mask == "prompt_mask" else real[:, width:]), "attention_mask"
    if mask == "prompt_mask" and "prompt_lengths" in tensors:
        return torch.arange(width) >= width - tensors["prompt_lengths"].unsqueeze(1), "prompt_lengths"
    return None


def _by_padding(mask: str, ids: Tensor, before: bool, behind: bool, meta: Mapping[str, Any]) -> tuple[Tensor, str]:
    """Padding ids at the edges are padding, if no row can begin or end with that id by itself."""
    pad, eos = meta.get("pad_token_id"), meta.get("eos_token_ids")
    remedy = f"[B {FIELDS[mask].columns}] of 0 or 1, or ids without padding"
    if pad is None:
        raise BadField(mask, "none, and no meta.pad_token_id to derive it from", remedy)
    is_pad = (ids == pad).long()
    edge = torch.zeros_like(ids, dtype=torch.bool)
    edge |= is_pad.cumprod(1).bool() & before
    edge |= is_pad.flip(1).cumprod(1).flip(1).bool() & behind
    real = {"an EOS id": eos is None or pad in eos, "the BOS id": before and pad == meta.get("bos_token_id")}
    doubt = next((name for name, holds in real.items() if holds), "")
    if doubt and edge.any():
        may_be = "may be" if eos is None and doubt == "an EOS id" else "is"
        row = int(edge.any(1).nonzero()[0])
        raise BadField(mask, f"none, and pad_token_id {pad} at the row's edge {may_be} {doubt}", remedy, row)
    return ~edge, f"pad_token_id {pad}"


def _behind_prompts(real: Tensor, tensors: Mapping[str, Tensor]) -> tuple[Tensor, str]:
    if "prompt_lengths" not in tensors:
        raise BadField("response_mask", "none, and no prompt_lengths to derive it from", "[B S] of 0 or 1, or prompt_lengths")
    first = real.long().argmax(1) + tensors["prompt_lengths"]
    return real & (torch.arange(real.shape[1]) >= first.unsqueeze(1)), "attention_mask and prompt_lengths"
