"""verl's rollout dump (`trainer.rollout_data_dir`), a JSONL file per step.

Read from `_write_generations` in verl/trainer/ppo/ray_trainer.py of 0.9.1: input, output, gts, score, step, and a key per extra
number of the reward function. Both texts are decoded without special tokens and the score is summed over the row, so that
neither the ids nor a loss can be had from the file alone.
"""

from .draft import Draft, column, groups, one_step, texts
from .source import Source


def holds(source: Source) -> bool:
    return {"input", "output", "score"} <= source.names


def read(source: Source, step: int | None) -> Draft:
    draft = Draft(meta={"framework": "verl"}, plain_prompts=True)
    rows = one_step(source.rows, step, draft)
    draft.prompts, draft.completions = texts(rows, "input"), texts(rows, "output")
    draft.put("group_ids", groups(draft.prompts), "rows with the same input")
    draft.put("rewards", column(rows, "score"), "score, verl's token_level_scores summed over the row")
    draft.put("reward_names", ["score"])
    draft.filled.append("prompts: verl's texts have no chat markers any more, so these ids are not quite those it read")
    return draft
