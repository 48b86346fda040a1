"""From what a batch file holds (a JSON object, and tensors beside it) to a checked `Batch`."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ..batch import Batch
from .cells import Cells, a_list, cells_of_json, cells_of_tensor, texts_of_json
from .fields import FIELDS, IDS, META, NON_FINITE, REAL, REPORTED, TEXTS, BadField, Setting, short
from .rows import Lengths, derive_masks, fit

OBJECTS = ("reported", "meta")
RECORDS = ("derived", "row_lengths", "rewards_missing")  # what only we write
KNOWN = (*FIELDS, *TEXTS, *OBJECTS, *RECORDS)
ONLY_IN = {
    "sequence": ("input_ids", "response_mask"),
    "prompt_completion": ("prompt_ids", "prompt_mask", "completion_ids", "completion_mask"),
}


def batch_of_document(document: Mapping[str, Any], stored: Mapping[str, Tensor]) -> Batch:
    """Check and assemble. A known name that is null counts as absent. Raises BadField."""
    extra = {name: _restored(value) for name, value in document.items() if name not in KNOWN}
    extra |= {name: tensor for name, tensor in stored.items() if name not in KNOWN}
    given = {name: value for name, value in document.items() if name in KNOWN and value is not None}
    layout = _layout([*given, *stored])
    meta, reported = _settings("meta", given, META), _settings("reported", given, REPORTED)
    fill = meta.get("pad_token_id") or 0
    cells = {name: cells_of_json(name, given[name], fill) for name in FIELDS if name in given}
    cells |= {name: cells_of_tensor(name, stored[name]) for name in FIELDS if name in stored}
    texts: dict[str, Any] = {name: texts_of_json(name, given[name]) for name in TEXTS if name in given}
    rows = len(cells[IDS[layout][0]].values)
    _same_rows(layout, rows, cells, texts)
    _rows_of_meta(meta, rows)
    tensors, row_lengths = fit(cells, layout, fill)
    _something_to_score(layout, tensors)
    derived = texts_of_json("derived", given.get("derived", []))
    ids = {name: cells[name].lengths or () for name in IDS[layout]}
    for mask, (tensor, source) in derive_masks(tensors, ids, layout, meta).items():
        tensors[mask], derived = tensor, (*derived, f"{mask} derived from {source}")
        if IDS[layout][0] in row_lengths:
            row_lengths[mask] = ids["prompt_ids" if mask == "prompt_mask" else IDS[layout][-1]]
    row_lengths |= _stored_lengths(given, tensors)
    missing = _rewards(cells, tensors, given, texts)
    return Batch(
        **tensors, **texts, rewards_missing=missing, meta=meta, reported=reported, derived=derived, extra=extra,
        row_lengths={name: row_lengths[name] for name in FIELDS if name in row_lengths},
    )  # fmt: skip


def _layout(names: list[str]) -> str:
    present = {layout: [name for name in only if name in names] for layout, only in ONLY_IN.items()}
    found = [layout for layout, held in present.items() if held]
    if len(found) == 1:
        lacking = [name for name in IDS[found[0]] if name not in names]
        if not lacking:
            return found[0]
        raise BadField(lacking[0], f"none beside {present[found[0]][0]}", f"both in layout {found[0]}")
    held = " and ".join(present[layout][0] for layout in found) or "neither input_ids nor prompt_ids"
    raise BadField("layout", held, "one of input_ids [B S] and prompt_ids [B P] with completion_ids [B C]")


def _same_rows(layout: str, rows: int, cells: Mapping[str, Cells], texts: Mapping[str, tuple[str, ...]]) -> None:
    counts = {name: len(cell.values) for name, cell in cells.items() if FIELDS[name].axes != ("R",)}
    counts |= {name: len(value) for name, value in texts.items() if TEXTS[name] == "B"}
    for name, count in counts.items():
        if count != rows:
            raise BadField(name, f"{count} rows", f"{rows}, as in {IDS[layout][0]}")


def _something_to_score(layout: str, tensors: Mapping[str, Tensor]) -> None:
    if layout == "sequence" and tensors["input_ids"].shape[1] < 2:
        raise BadField("input_ids", "rows of one token", "at least 2 in the longest row: the first is never scored")


# ---- objects ---------------------------------------------------------------------------------------------------------------
def _settings(name: str, given: Mapping[str, Any], table: Mapping[str, Setting]) -> dict[str, Any]:
    """`meta` or `reported`: known keys checked, null allowed, unknown keys kept."""
    value = given.get(name, {})
    if not isinstance(value, dict):
        raise BadField(name, short(value), "an object")
    settings = {key: _restored(item) if table.get(key, REAL) is REAL else item for key, item in value.items()}
    for key, setting in table.items():
        if settings.get(key) is not None and not setting.test(settings[key]):
            raise BadField(f"{name}.{key}", short(settings[key]), setting.allowed)
    return settings


def _restored(value: Any) -> Any:
    """Non-finite numbers that stand as words, as numbers again."""
    if isinstance(value, dict):
        return {key: _restored(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_restored(item) for item in value]
    return NON_FINITE.get(value, value) if isinstance(value, str) else value


def _rows_of_meta(meta: Mapping[str, Any], rows: int) -> None:
    for batch in meta.get("micro_batches") or ():
        for row in batch:
            if not 0 <= row < rows:
                raise BadField("meta.micro_batches", f"row {short(row)}", f"0 to {rows - 1}")
    packed = meta.get("packed_boundaries")
    if packed is not None and len(packed) != rows:
        raise BadField("meta.packed_boundaries", f"{len(packed)} lists", f"{rows}, one per row")


# ---- rewards and the records of the encoding -------------------------------------------------------------------------------
def _rewards(
    cells: Mapping[str, Cells], tensors: dict[str, Tensor], given: Mapping[str, Any], texts: Mapping[str, tuple[str, ...]]
) -> Tensor | None:
    """Rewards as [B R] in `tensors`, and where they are null. Names and weights are one per function."""
    if "rewards" in tensors:
        values = tensors["rewards"]
        tensors["rewards"] = values.unsqueeze(1) if values.dim() == 1 else values
    counts = {
        "rewards": tensors["rewards"].shape[1] if "rewards" in tensors else None,
        "reward_names": len(texts["reward_names"]) if "reward_names" in texts else None,
        "reward_weights": len(tensors["reward_weights"]) if "reward_weights" in tensors else None,
    }
    held = {name: count for name, count in counts.items() if count is not None}
    for name, count in held.items():
        first = next(iter(held))
        if count != held[first]:
            raise BadField(name, f"{count} reward functions", f"{held[first]}, as in {first}")
    return _missing(cells, tensors, given)


def _missing(cells: Mapping[str, Cells], tensors: dict[str, Tensor], given: Mapping[str, Any]) -> Tensor | None:
    if "rewards" not in tensors:
        return None
    values, read = tensors["rewards"], cells["rewards"].missing
    missing = torch.zeros(values.shape, dtype=torch.bool) if read is None else read.view(values.shape)
    allowed = f"[row, function] below {list(values.shape)}"
    for place in a_list("rewards_missing", given.get("rewards_missing", []), "a list of [row, function]"):
        numbers = isinstance(place, list) and len(place) == 2 and all(type(n) is int for n in place)
        if not numbers or not all(0 <= n < size for n, size in zip(place, values.shape, strict=True)):
            raise BadField("rewards_missing", ascii(place)[:40], allowed)
        missing[place[0], place[1]] = True
    tensors["rewards"] = values.masked_fill(missing, float("nan"))
    return missing if missing.any() else None


def _stored_lengths(given: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> dict[str, Lengths]:
    """Row lengths that the file itself records, because its fields are padded."""
    lengths, allowed = given.get("row_lengths", {}), "an object of field: lengths of its rows"
    if not isinstance(lengths, dict):
        raise BadField("row_lengths", short(lengths), allowed)
    for name, value in lengths.items():
        if name not in tensors or name not in FIELDS or not FIELDS[name].columns or tensors[name].dim() < 2:
            raise BadField("row_lengths", ascii(name)[:40], "fields of this file that have columns")
        rows, width = tensors[name].shape[:2]
        if not isinstance(value, list) or len(value) != rows:
            raise BadField(f"row_lengths.{name}", short(value), f"{rows} lengths")
        for row, length in enumerate(value):
            if type(length) is not int or not 0 <= length <= width:
                raise BadField(f"row_lengths.{name}", short(length), f"0 to {width}", row)
    return {name: tuple(value) for name, value in lengths.items()}
