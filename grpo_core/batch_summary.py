"""A batch in a few lines: how large it is, what the file holds, what it lacks, what was derived."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from .batch import Batch
from .batch_file import remarks
from .batch_view import preset_of

# What a file may hold, in the order in which a person looks for it. Ids and masks are always there.
OPTIONAL = (
    "policy_logprobs", "old_logprobs", "ref_logprobs", "sampler_logprobs", "rewards", "advantages", "group_ids", "logits",
    "entropy", "finish_reasons", "loss_mask", "tool_mask", "position_ids", "prompt_lengths", "sequence_weights", "sampled_ids",
    "sampler_prompt_ids", "reported",
)  # fmt: skip
EXPECTED = OPTIONAL[:10]  # those whose absence is worth a word; the others are there only where they mean something
SETTINGS_LEFT_OUT = ("tokens",)


@dataclass(frozen=True, kw_only=True)
class Spread:
    """Of one number per row, in tokens."""

    least: int
    median: int
    most: int


@dataclass(frozen=True, kw_only=True)
class Summary:
    """Lengths are in tokens; a group is the rows that answer one prompt."""

    rows: int
    groups: int | None  # None: the file does not say
    group_sizes: tuple[int, int] | None  # smallest, largest
    trained: int  # tokens
    trained_per_row: Spread
    completion: Spread
    prompt: Spread
    layout: str
    framework: str
    preset: str  # the one that is assumed, where the file names none
    present: Mapping[str, str]  # field -> its shape and dtype
    absent: tuple[str, ...]  # of EXPECTED
    settings: Mapping[str, Any]  # what the file's meta says
    reported: Mapping[str, Any]
    remarks: tuple[str, ...]  # masks that were derived, names that the format does not know


def summary(batch: Batch) -> Summary:
    """Everything that is said about a batch before it is checked."""
    completion, real = batch.row_completion_mask(), batch.row_mask()
    trained, sizes = batch.trained_mask(), _group_sizes(batch)
    held = {name: getattr(batch, name) for name in OPTIONAL}
    ids = ("input_ids", "attention_mask", "response_mask", "prompt_ids", "prompt_mask", "completion_ids", "completion_mask")
    held = {name: getattr(batch, name) for name in ids} | held
    return Summary(
        rows=len(trained), groups=len(sizes) or None, group_sizes=(min(sizes), max(sizes)) if sizes else None,
        trained=int(trained.sum()), trained_per_row=_spread(trained.sum(1)), completion=_spread(completion.sum(1)),
        prompt=_spread((real & ~completion).sum(1)), layout=batch.layout,
        framework=str(batch.meta.get("framework") or ""), preset=preset_of(batch).name,
        present={name: _shape(value) for name, value in held.items() if _is_there(value)},
        absent=tuple(name for name in EXPECTED if not _is_there(held[name])),
        settings={name: value for name, value in batch.meta.items() if name not in SETTINGS_LEFT_OUT},
        reported=dict(batch.reported), remarks=tuple(dict.fromkeys((*batch.derived, *remarks(batch)))),
    )  # fmt: skip


def _is_there(value: Any) -> bool:
    return value is not None and (isinstance(value, Tensor) or bool(value))


def _shape(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"{' × '.join(map(str, value.shape))} {str(value.dtype).removeprefix('torch.')}"
    return f"{len(value)}"


def _spread(numbers: Tensor) -> Spread:
    if not numbers.numel():
        return Spread(least=0, median=0, most=0)
    return Spread(least=int(numbers.min()), median=int(numbers.median()), most=int(numbers.max()))


def _group_sizes(batch: Batch) -> list[int]:
    return [] if batch.group_ids is None else batch.group_ids.unique(return_counts=True)[1].tolist()
