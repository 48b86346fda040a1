"""TRL's completions log (`log_completions=True`), a parquet file per logged step.

Read from GRPOTrainer.log in trl/trainer/grpo_trainer.py of 1.16.0: columns step, prompt, completion, one per reward function,
one per `log_extra` of the reward functions, advantage. Texts are decoded without special tokens; nothing is said per token.
"""

import math

from ..batch_file.fields import BadField
from .draft import Draft, groups, is_number, one_step, texts
from .source import Source

OWN = ("step", "prompt", "completion", "advantage")


def holds(source: Source) -> bool:
    return {"prompt", "completion", "advantage"} <= source.names


def read(source: Source, step: int | None) -> Draft:
    draft = Draft(meta={"framework": "trl"}, plain_prompts=True)
    rows = one_step(source.rows, step, draft)
    draft.prompts, draft.completions = texts(rows, "prompt"), texts(rows, "completion")
    draft.put("group_ids", groups(draft.prompts), "rows with the same prompt")
    draft.put("advantages", [row["advantage"] for row in rows])
    names = [name for name in rows[0] if name not in OWN and all(_is_reward(row.get(name)) for row in rows)]
    if names:
        values = [[_or_null(row.get(name)) for name in names] for row in rows]
        draft.put("rewards", values, f"the columns of numbers: {', '.join(names)}")
        draft.put("reward_names", names)
    for row, value in enumerate(draft.fields["advantages"]):
        if not is_number(value):
            raise BadField("advantage", "no number", "a number", row)
    return draft


def _or_null(value: float | None) -> float | None:
    """A function that returned nothing stands as NaN in the table, since TRL keeps rewards in a tensor."""
    return None if value is None or math.isnan(value) else value


def _is_reward(value: object) -> bool:
    return value is None or is_number(value)
