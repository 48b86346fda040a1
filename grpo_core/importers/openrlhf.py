"""OpenRLHF's experiences: `vars(experience)` saved with torch.save or as JSON, one or a list of them.

Read from openrlhf/trainer/ppo_utils/experience.py and samples_generator.py (3c3be62, 0.11.2); it writes no such file itself,
people save its Experience. sequences and attention_mask are [B S]; action_mask, action_log_probs (of the policy before the
update), base_action_log_probs (the reference), rollout_log_probs and advantages are [B S-1], column t of token t + 1; up to
0.7 they were as wide as the completions only. rewards and truncated are [B].
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ..batch_file.fields import BadField, short
from .draft import Draft, groups
from .source import Source

PER_TOKEN = {
    "action_log_probs": "old_logprobs", "base_action_log_probs": "ref_logprobs", "rollout_log_probs": "sampler_logprobs",
    "advantages": "advantages",
}  # fmt: skip
MAX_CELLS = 2**26


def holds(source: Source) -> bool:
    return any("sequences" in part and {"action_mask", "action_log_probs"} & set(part) for part in _parts(source)[:1])


def _parts(source: Source) -> list[Mapping[str, Any]]:
    """The experiences: one of them, a list, or a row each."""
    content = source.document if source.kind == "pt" else list(source.rows)
    parts = content if isinstance(content, (list, tuple)) else [content]
    return [part for part in parts if isinstance(part, dict)]


def read(source: Source, step: int | None) -> Draft:
    draft = Draft(meta={"framework": "openrlhf"})
    fields: dict[str, list[Any]] = {}
    parts = [_rows(part) for part in _parts(source)]
    for part in parts:
        for name, rows in part.items():
            fields.setdefault(name, []).extend(rows)
    count = len(fields["input_ids"])
    for name, rows in fields.items():
        if len(rows) != count:
            raise BadField(name, f"{len(rows)} rows in all experiences", f"{count}, as in sequences")
        draft.put(name, rows)
    draft.put("loss_mask", fields["loss_mask"])
    if "attention_mask" not in fields:
        draft.put("attention_mask", [[1] * len(row) for row in fields["input_ids"]], "every token: the dump has none")
    actions = [torch.cat([mask.new_zeros(1), mask]) for mask in fields["loss_mask"]]
    draft.put("response_mask", [_from_first(mask) & _flags(real) for mask, real in
                                zip(actions, draft.fields["attention_mask"], strict=True)],
              "from the first action to the last real token")  # fmt: skip
    starts = [int(mask.long().argmax()) for mask in actions]
    prompts = [
        [token for token, there in zip(ids[:start].tolist(), _flags(real)[:start].tolist(), strict=True) if there]
        for ids, real, start in zip(fields["input_ids"], draft.fields["attention_mask"], starts, strict=True)
    ]
    draft.put("group_ids", groups(prompts), "rows with the same prompt")
    if "finish_reasons" in fields:
        draft.put("finish_reasons", fields["finish_reasons"], "from truncated")
    draft.first_update()
    return draft


def _rows(part: Mapping[str, Any]) -> dict[str, list[Any]]:
    """One experience, by the batch file's names."""
    ids = _matrix(part, "sequences")
    width = ids.shape[1] - 1
    rows: dict[str, list[Any]] = {"input_ids": list(ids)}
    if part.get("attention_mask") is not None:
        real = _matrix(part, "attention_mask", ids.shape[1])
        if real.shape != ids.shape:
            raise BadField("attention_mask", f"a tensor of shape {list(real.shape)}", f"{list(ids.shape)}, as sequences")
        rows["attention_mask"] = list(real)
    named = {"action_mask": "loss_mask", **PER_TOKEN}
    for theirs, ours in named.items():
        if part.get(theirs) is not None:
            values = _matrix(part, theirs, width)
            rows[ours] = list(torch.nn.functional.pad(values, (width - values.shape[1], 0)))  # those of completions only
    if "loss_mask" not in rows:
        raise BadField("action_mask", "none", "[B S-1] of 0 or 1", 0)
    for theirs, ours in (("rewards", "rewards"), ("truncated", "finish_reasons")):
        if part.get(theirs) is not None:
            values = _vector(part[theirs], theirs)
            rows[ours] = values if ours == "rewards" else ["length" if cut else "stop" for cut in values]
    return rows


def _matrix(part: Mapping[str, Any], name: str, width: int | None = None) -> Tensor:
    """[B, at most `width`] of an experience; one row may have lost its first axis."""
    value = part.get(name)
    if isinstance(value, list):
        try:
            value = torch.tensor(value)
        except (ValueError, TypeError, RuntimeError, OverflowError) as error:
            raise BadField(name, "rows of unequal length, or no numbers", "a rectangle of numbers") from error
    if not isinstance(value, Tensor):
        raise BadField(name, short(value), "a tensor [B S]")
    value = value.unsqueeze(0) if value.dim() == 1 else value
    if value.dim() != 2 or value.numel() > MAX_CELLS or value.is_complex() or 0 in value.shape:
        raise BadField(name, f"a tensor of shape {list(value.shape)}", "[B S]")
    if width is not None and value.shape[1] > width:
        raise BadField(name, f"{value.shape[1]} columns", f"at most {width} beside these sequences")
    return value


def _vector(value: Any, name: str) -> list[Any]:
    """[B] as numbers."""
    values = value.flatten().tolist() if isinstance(value, Tensor) and value.numel() <= MAX_CELLS else value
    if not isinstance(values, list) or not all(isinstance(item, (int, float)) for item in values):
        raise BadField(name, short(value), "[B] numbers")
    return values


def _from_first(mask: Tensor) -> Tensor:
    return mask.bool().long().cumsum(0) > 0


def _flags(row: Any) -> Tensor:
    return torch.as_tensor(row).bool()
