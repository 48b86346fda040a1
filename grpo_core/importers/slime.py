"""slime's `--save-debug-train-data`, a `.pt` file per rollout; also its `--save-debug-rollout-data`.

Read from slime/observability/train_data_utils.py and rollout_data_utils.py (624b824). Format 2 holds `samples`, a dict per
sample; before, `rollout_data` held a list per name. tokens are prompt and response; loss_masks, log_probs (of the policy before
the update), ref_log_probs, rollout_log_probs, advantages and entropy are as long as the response. `rewards` have been
normalised by group already, raw_reward is what the reward functions said.
"""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from ..batch_file.fields import BadField, short
from .draft import Draft, Row, column, groups, is_number
from .source import Source

PER_TOKEN = {
    "log_probs": "old_logprobs", "ref_log_probs": "ref_logprobs", "rollout_log_probs": "sampler_logprobs", "entropy": "entropy",
    "advantages": "advantages",
}  # fmt: skip
SINGULAR = {"response_lengths": "response_length", "loss_masks": "loss_mask", "rewards": "reward"}  # of the rollout dump


def holds(source: Source) -> bool:
    content = source.document
    if source.kind != "pt" or not isinstance(content, dict):
        return False
    samples = content.get("samples")
    if isinstance(samples, list) and samples and all(isinstance(sample, dict) for sample in samples):
        return "tokens" in samples[0]
    return isinstance(content.get("rollout_data"), dict)


def read(source: Source, step: int | None) -> Draft:
    content = source.document
    draft = Draft(meta={"framework": "slime"})
    if isinstance(content.get("rollout_id"), int):
        draft.meta["logged_step"] = content["rollout_id"]
    rows = _rows(content)
    tokens = [_one_axis(row.get("tokens"), "tokens", at) for at, row in enumerate(rows)]
    lengths = [_length(row, len(ids), at) for at, (row, ids) in enumerate(zip(rows, tokens, strict=True))]
    prompts = [ids[: len(ids) - length] for ids, length in zip(tokens, lengths, strict=True)]
    draft.put("prompt_ids", prompts)
    draft.put("prompt_mask", [[1] * len(row) for row in prompts])
    draft.put("completion_ids", [ids[len(ids) - length :] for ids, length in zip(tokens, lengths, strict=True)])
    draft.put("completion_mask", [[1] * length for length in lengths])
    for theirs, ours in {"loss_masks": "loss_mask", **PER_TOKEN}.items():
        if any(row.get(theirs) is not None for row in rows):
            draft.put(ours, [_one_axis(row.get(theirs), theirs, at) for at, row in enumerate(rows)])
    keys = [prompt.tolist() if isinstance(prompt, Tensor) else prompt for prompt in prompts]
    draft.put("group_ids", groups(keys), "rows with the same prompt")
    _put_rewards(draft, content, rows)
    cut = column(rows, "truncated")
    if cut is not None:
        draft.put("finish_reasons", ["length" if flag else "stop" for flag in cut], "from truncated")
    draft.first_update()
    return draft


def _rows(content: Mapping[str, Any]) -> list[Row]:
    """A dict per sample, by the names of the train dump, whichever of the three layouts it is."""
    if isinstance(content.get("samples"), list):
        rows: list[Row] = []
        for row, sample in enumerate(content["samples"]):
            if not isinstance(sample, dict):
                raise BadField("samples", short(sample), "a dict per sample", row)
            rows.append(sample | {plural: sample[one] for plural, one in SINGULAR.items() if one in sample})
        return rows
    columns = {name: values for name, values in content["rollout_data"].items() if isinstance(values, (list, tuple))}
    count = len(columns.get("tokens", ()))
    if not count:
        raise BadField("tokens", "none", "a list per sample")
    whole = {name: values for name, values in columns.items() if len(values) == count}
    return [{name: values[row] for name, values in whole.items()} for row in range(count)]


def _one_axis(value: Any, name: str, row: int) -> Any:
    """A sample's numbers: a tensor or a list."""
    if isinstance(value, Tensor) and value.dim() == 1 or isinstance(value, list):
        return value
    found = f"a tensor of shape {list(value.shape)}" if isinstance(value, Tensor) else short(value)
    raise BadField(name, found, "numbers in one dimension", row)


def _length(row: Row, width: int, at: int) -> int:
    value = row.get("response_lengths")
    if isinstance(value, Tensor) and value.numel() == 1:
        value = value.item()
    if type(value) is not int or not 0 <= value <= width:
        raise BadField("response_lengths", short(value), f"0 to {width}, the number of tokens", at)
    return value


def _put_rewards(draft: Draft, content: Mapping[str, Any], rows: list[Row]) -> None:
    """raw_reward of the whole rollout, by each sample's place in it; else `rewards`, which may be normalised."""
    inside = content.get("rollout_data")
    raw = content.get("raw_reward", inside.get("raw_reward") if isinstance(inside, dict) else None)
    places = [row.get("rollout_position", at) for at, row in enumerate(rows)]
    if isinstance(raw, (list, tuple)) and all(type(place) is int and 0 <= place < len(raw) for place in places):
        values = [raw[place] for place in places]
        if all(map(is_number, values)):
            return draft.put("rewards", values, "raw_reward")
    rewards = [row.get("rewards") for row in rows]
    if all(map(is_number, rewards)):
        said = "slime's `rewards`, which may have been normalised by group already"
        draft.put("rewards", rewards, "" if "loss_mask" in rows[0] else said)
