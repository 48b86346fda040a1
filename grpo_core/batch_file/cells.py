"""One field of a batch file: from nested lists or from a tensor to a checked rectangle, and back to nested lists."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .fields import FIELDS, REWARD, TEXTS, BadField, short
from .reading import MAPPED_BYTES

MAX_CELLS = 2**26  # of one field of a JSON file, padding included


@dataclass(frozen=True)
class Cells:
    """One field as it was read."""

    values: Tensor  # padded to a rectangle
    lengths: tuple[int, ...] | None  # of the rows as read; None where the field has one number per row
    missing: Tensor | None = None  # True where a reward is null


def cells_of_json(name: str, value: Any, fill: int) -> Cells:
    """One field of a JSON file, or of a program's own rows (lists or tensors [width]). Ragged rows are padded: token ids with
    `fill`, the rest with 0."""
    field, rows = FIELDS[name], a_list(name, value, FIELDS[name].allowed)
    if not rows:
        raise BadField(name, "an empty list", field.allowed)
    nested = isinstance(rows[0], (list, Tensor)) or len(field.axes[0]) > 1
    if not nested:
        values = _row(name, None, rows)
        return Cells(values, None, _nulls(name, rows, values))
    parts = [_part(name, row, value) for row, value in enumerate(rows)]
    if not field.columns:
        _same_width(name, parts)
    values = _rectangle(name, parts, fill)
    return Cells(values, tuple(map(len, parts)), _nulls(name, [v for row in rows for v in row], values))


def a_list(name: str, value: Any, allowed: str, row: int | None = None) -> list:
    if not isinstance(value, list):
        raise BadField(name, short(value), allowed, row)
    return value


def _part(name: str, row: int, value: Any) -> Tensor:
    """One row: [width], or [width V] for logits."""
    if isinstance(value, Tensor):
        return _tensor_row(name, row, value)
    values = a_list(name, value, FIELDS[name].allowed, row)
    if max(map(len, FIELDS[name].axes)) < 3:
        return _row(name, row, values)
    inner = [_row(name, row, a_list(name, item, FIELDS[name].allowed, row)) for item in values]
    _same_width(name, inner, row)
    return torch.stack(inner) if inner else torch.zeros(0, 0)


def _row(name: str, row: int | None, values: list) -> Tensor:
    """The numbers of one row, or (`row` None) one number per row."""
    kind = FIELDS[name].kind
    cells = [kind.of_value(value) for value in values]
    if None in cells:
        place = cells.index(None)
        raise BadField(name, short(values[place]), FIELDS[name].allowed, place if row is None else row)
    return torch.tensor(cells, dtype=kind.dtype)


def _tensor_row(name: str, row: int, tensor: Tensor) -> Tensor:
    kind, shape = FIELDS[name].kind, f"a tensor of shape {list(tensor.shape)}, {tensor.dtype}"
    if tensor.dim() != 1 or tensor.is_complex() or not FIELDS[name].columns:
        raise BadField(name, shape, FIELDS[name].allowed, row)
    values, right = kind.of_tensor(tensor.detach().cpu())
    if not right.all():
        raise BadField(name, short(tensor[~right][0].item()), FIELDS[name].allowed, row)
    return values.to(kind.dtype)


def _same_width(name: str, parts: Sequence[Tensor], row: int | None = None) -> None:
    """All rows, or (where `row` is given) all positions of that row, hold equally many numbers."""
    for place, part in enumerate(parts):
        if len(part) != len(parts[0]):
            at, where, first = ("", place, "row 0") if row is None else (f" at position {place}", row, "position 0")
            raise BadField(name, f"{len(part)} numbers{at}", f"{len(parts[0])}, as in {first}", where)


def _rectangle(name: str, parts: Sequence[Tensor], fill: int) -> Tensor:
    field, width = FIELDS[name], max(map(len, parts))
    deep = next((part.shape[1:] for part in parts if len(part)), parts[0].shape[1:])  # (V,) of logits
    for row, part in enumerate(parts):
        if len(part) and part.shape[1:] != deep:
            raise BadField(name, f"{part.shape[1]} numbers per position", f"{deep[0]}, as in the rows before", row)
    shape = (len(parts), width, *deep)
    if 0 in shape:
        raise BadField(name, "rows without a number", field.allowed, 0)
    if math.prod(shape) > MAX_CELLS:
        raise BadField(name, f"{len(parts)} rows padded to {width}", f"{MAX_CELLS} numbers; .safetensors holds any size")
    values = torch.full(shape, fill if field.kind.token else 0, dtype=field.kind.dtype)
    for row, part in enumerate(parts):
        if len(part):
            values[row, width - len(part) if field.left else 0 :][: len(part)] = part
    return values


def _nulls(name: str, flat: list, values: Tensor) -> Tensor | None:
    if FIELDS[name].kind is not REWARD or None not in flat:
        return None
    return torch.tensor([value is None for value in flat]).view(values.shape)


def cells_of_tensor(name: str, tensor: Tensor) -> Cells:
    """One field of a safetensors file: rectangular, rows all of one length."""
    field, shape = FIELDS[name], f"a tensor of shape {list(tensor.shape)}"
    if tensor.dim() not in map(len, field.axes) or tensor.is_complex():
        raise BadField(name, f"{shape}, {tensor.dtype}", field.allowed)
    if 0 in tensor.shape:
        raise BadField(name, shape, "at least one row and one column")
    if len(tensor.shape) == 3 and tensor.is_floating_point() and tensor.numel() * tensor.element_size() >= MAPPED_BYTES:
        return Cells(tensor, (tensor.shape[1],) * len(tensor))  # as they lie on the disk, half precision too
    values, right = field.kind.of_tensor(tensor)
    if not right.all():
        place = tuple((~right).nonzero()[0].tolist())
        raise BadField(name, short(tensor[place].item()), field.allowed, place[0])
    return Cells(values, (tensor.shape[1],) * len(tensor) if tensor.dim() > 1 else None)


def texts_of_json(name: str, value: Any) -> tuple[str, ...]:
    allowed = f"[{TEXTS[name]}] of texts" if name in TEXTS else "a list of texts"
    for row, text in enumerate(a_list(name, value, allowed)):
        if not isinstance(text, str):
            raise BadField(name, short(text), allowed, row)
    return tuple(value)


def numbers_of(tensor: Tensor) -> list:
    """Nested lists whose decimals are the shortest that read back as the same number; masks as 0 and 1."""
    tensor = tensor.detach().cpu()
    if tensor.dtype == torch.bool:
        return tensor.long().tolist()
    if not tensor.is_floating_point() or tensor.dtype == torch.float64:
        return tensor.tolist()
    return tensor.float().numpy().astype(str).astype(float).tolist()
