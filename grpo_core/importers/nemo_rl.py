"""NeMo-RL's `train_data_step*.jsonl`, a line per sample.

Read from nemo_rl/algorithms/grpo.py and utils/logger.py (7ea279a): every value is a slice of one row, so a list of length 1
around what is meant. Per token, over the whole row with its padding: token_ids, token_loss_mask, advantages,
generation_logprobs and prev_logprobs, where column t is of token t itself and the first is 0; per row: rewards, input_lengths,
sample_loss_mask (0 leaves a row out). prev_logprobs are the policy's before the update.
"""

from collections.abc import Mapping
from typing import Any

from ..batch_file.fields import BadField, short
from .draft import Draft, Row, groups, is_number, ones
from .source import Source

PER_TOKEN = {"prev_logprobs": "old_logprobs", "generation_logprobs": "sampler_logprobs"}


def holds(source: Source) -> bool:
    return {"token_ids", "token_loss_mask"} <= source.names or {"generation_logprobs", "prev_logprobs"} <= source.names


def read(source: Source, step: int | None) -> Draft:
    if "token_ids" not in source.names:
        raise BadField("token_ids", "none: an older NeMo-RL wrote texts and log-probs only", "a dump with token_ids", 0)
    rows = [{name: _one(value) for name, value in row.items()} for row in source.rows]
    lengths = [_length(row, at) for at, row in enumerate(rows)]

    def per_token(name: str, first: int = 0) -> list[list[Any]]:
        """A column without its padding, from token `first` on."""
        return [_list(row, name, at)[first : lengths[at]] for at, row in enumerate(rows)]

    draft, ids, masks = Draft(meta={"framework": "nemo-rl"}), per_token("token_ids"), per_token("token_loss_mask")
    starts = [next((place for place, value in enumerate(mask) if value), len(mask)) for mask in masks]
    draft.put("input_ids", ids)
    draft.put("attention_mask", ones(ids))
    answers = [[int(place >= start) for place in range(len(row))] for row, start in zip(ids, starts, strict=True)]
    draft.put("response_mask", answers, "from the first token of token_loss_mask to input_lengths")
    kept = [row.get("sample_loss_mask", 1) for row in rows]
    draft.put("loss_mask", [mask[1:] if keep else [0] * len(mask[1:]) for mask, keep in zip(masks, kept, strict=True)])
    if any(0 in mask[start:] for mask, start in zip(masks, starts, strict=True)):  # turns that the policy did not write
        ours = [[1] * start + mask[start:] for mask, start in zip(masks, starts, strict=True)]
        draft.put("tool_mask", [row[1:] for row in ours], "0 where token_loss_mask is 0 behind the prompt")
    for theirs, name in PER_TOKEN.items():
        if theirs in rows[0]:
            draft.put(name, per_token(theirs, 1))
    draft.put("group_ids", groups([row[:start] for row, start in zip(ids, starts, strict=True)]), "rows with the same prompt")
    if all(is_number(row.get("rewards")) for row in rows):
        draft.put("rewards", [row["rewards"] for row in rows])
    draft.put("advantages", _advantages(rows, lengths))
    draft.first_update()
    return draft


def _one(value: Any) -> Any:
    """What is meant, out of the list of length 1 around it."""
    return value[0] if isinstance(value, list) and len(value) == 1 else value


def _list(row: Row, name: str, at: int) -> list[Any]:
    if not isinstance(row.get(name), list):
        raise BadField(name, short(row.get(name)), "a list", at)
    return row[name]


def _length(row: Mapping[str, Any], at: int) -> int:
    width, length = len(_list(row, "token_ids", at)), row.get("input_lengths")
    if length is None:
        return width
    if type(length) is not int or not 2 <= length <= width:
        raise BadField("input_lengths", short(length), f"2 to {width}, the number of token_ids", at)
    return length


def _advantages(rows: list[dict[str, Any]], lengths: list[int]) -> list[Any] | None:
    """[B], or [B][T] where they differ along the row."""
    if all(is_number(row.get("advantages")) for row in rows):
        return [row["advantages"] for row in rows]
    if not all(isinstance(row.get("advantages"), list) for row in rows):
        return None
    return [row["advantages"][1:length] for row, length in zip(rows, lengths, strict=True)]
