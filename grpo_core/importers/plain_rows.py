"""Rows of {prompt, completion, reward}, as JSON or a line each: what any loop can print.

`completion` may be called `response`; `reward` may be `rewards`, an object of name: number or a list; `advantage`, `step`,
`group` and `finish_reason` are read where they are given.
"""

from typing import Any

from ..batch_file.fields import BadField, short
from .draft import Draft, column, groups, is_number, one_step, texts
from .source import Source


def holds(source: Source) -> bool:
    return "prompt" in source.names and bool({"completion", "response"} & source.names)


def read(source: Source, step: int | None) -> Draft:
    draft = Draft()
    rows = one_step(source.rows, step, draft)
    draft.prompts = texts(rows, "prompt")
    draft.completions = texts(rows, "completion" if "completion" in source.names else "response")
    named = column(rows, "group")
    draft.put("group_ids", groups(named or draft.prompts), "" if named else "rows with the same prompt")
    rewards = [row.get("reward", row.get("rewards")) for row in rows]
    if any(reward is not None for reward in rewards):
        names, values = _rewards(rewards)
        draft.put("rewards", values)
        draft.put("reward_names", names)
    draft.put("advantages", column(rows, "advantage"))
    draft.put("finish_reasons", column(rows, "finish_reason"))
    return draft


def _rewards(rewards: list[Any]) -> tuple[list[str] | None, list[Any]]:
    """Names where the rows give them, and [B] or [B][R]."""
    first = next(reward for reward in rewards if reward is not None)
    if not isinstance(first, dict):
        return None, rewards
    names = list(first)
    for row, reward in enumerate(rewards):
        if not isinstance(reward, dict) or set(reward) != set(names):
            raise BadField("reward", short(reward), f"an object of {', '.join(names)[:80]}", row)
    if not names or not all(is_number(value) or value is None for reward in rewards for value in reward.values()):
        raise BadField("reward", "no numbers", "an object of name: number")
    return names, [[reward[name] for name in names] for reward in rewards]
