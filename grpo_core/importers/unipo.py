"""UNIPO's run logs (poloclub/unipo), one JSON object with a header and an entry per update.

Read from its docs/canonical_schema.json (a9c9acf): entries hold three representative prompts each with their responses; a
response has reward, advantage and tokens: ids, strings and whatever the algorithm used of log_probs (the policy),
old_log_probs, ref_log_probs and advantages. Prompts are texts; a loss of the entry's metrics is over rows that are not here.
"""

from typing import Any

from ..batch_file.fields import BadField, short
from .draft import Draft, Row, is_number, lists, ones
from .source import Source

PER_TOKEN = {"log_probs": "policy_logprobs", "old_log_probs": "old_logprobs", "ref_log_probs": "ref_logprobs"}
HPARAMS = {"kl_coef": ("beta",), "beta": ("beta",), "clip_eps": ("clip_low", "clip_high"), "temperature": ("temperature",)}


def holds(source: Source) -> bool:
    entries = source.document.get("entries") if isinstance(source.document, dict) else None
    return isinstance(entries, list) and bool(entries) and all(isinstance(e, dict) and "prompts" in e for e in entries)


def read(source: Source, step: int | None) -> Draft:
    draft = Draft(meta={"framework": "unipo"})
    entry = _entry(source.document["entries"], step, draft)
    prompts = [prompt for prompt in _dicts(entry, "prompts")]
    rows = [(group, prompt, response) for group, prompt in enumerate(prompts) for response in _dicts(prompt, "responses")]
    tokens = [_tokens(response, row) for row, (_, _, response) in enumerate(rows)]
    if not rows:
        raise BadField("prompts", "no response", "a group of responses per prompt")
    ids = lists(tokens, "ids")
    draft.prompts = [prompt.get("prompt") for _, prompt, _ in rows]
    draft.put("completion_ids", ids)
    draft.put("completion_mask", ones(ids or ()))
    draft.put("group_ids", [group for group, _, _ in rows], "the responses to one prompt")
    for theirs, ours in PER_TOKEN.items():
        draft.put(ours, lists(tokens, theirs))
    draft.put("advantages", lists(tokens, "advantages") or _numbers(rows, "advantage"))
    draft.put("rewards", _numbers(rows, "reward"))
    draft.meta |= {"tokens": _texts(tokens)} | _settings(source.document.get("header"))
    if entry.get("is_first_step_after_rollout_phase") is True:
        draft.meta["iteration"] = 0
    return draft


def _entry(entries: list[Row], step: int | None, draft: Draft) -> Row:
    """The update that was asked for; else the last that holds responses: logs may keep them of some updates only."""
    full = [entry for entry in entries if any(prompt.get("responses") for prompt in _dicts(entry, "prompts"))]
    steps = [entry.get("step") for entry in full]
    chosen = [entry for entry in full if step is None or entry.get("step") == step]
    if not chosen:
        raise BadField("step", "none" if step is None else str(step), f"a step with responses: {str(steps)[1:60]}")
    if isinstance(chosen[-1].get("step"), int):
        draft.meta["logged_step"] = chosen[-1]["step"]
    if len(entries) > 1:
        draft.filled.append(f"rows: those of step {short(chosen[-1].get('step'))}; the file holds {len(entries)} updates")
    return chosen[-1]


def _dicts(parent: Row, name: str) -> list[Row]:
    values = parent.get(name)
    if not isinstance(values, list) or not all(isinstance(value, dict) for value in values):
        raise BadField(name, short(values), "a list of objects")
    return values


def _tokens(response: Row, row: int) -> Row:
    tokens = response.get("tokens")
    if not isinstance(tokens, dict) or not isinstance(tokens.get("ids"), list):
        raise BadField("tokens", "none with ids", "an object of ids, strings, log_probs, …", row)
    return tokens


def _numbers(rows: list[tuple[int, Row, Row]], name: str) -> list[Any] | None:
    values = [response.get(name) for _, _, response in rows]
    return values if all(map(is_number, values)) else None


def _texts(tokens: list[Row]) -> dict[str, str]:
    """id -> text, as far as the dump says."""
    known: dict[str, str] = {}
    for row in tokens:
        for number, text in zip(row["ids"], row.get("strings") or (), strict=False):
            if type(number) is int and number >= 0 and isinstance(text, str):
                known.setdefault(str(number), text)
    return known


def _settings(header: Any) -> dict[str, Any]:
    """What the header's hyperparameters, whose names are free, are known to mean."""
    hparams = header.get("hparams") if isinstance(header, dict) else None
    given = hparams if isinstance(hparams, dict) else {}
    return {ours: given[theirs] for theirs, names in HPARAMS.items() if is_number(given.get(theirs)) for ours in names}
