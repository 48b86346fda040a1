"""RL Logging Board's rollout files, a line per sample and all steps in one file; OpenRLHF, verl and others write them.

Read from the README of HarderThenHarder/RLLoggingBoard: prompt and response as texts, response_tokens as texts, and per token
logprobs (the policy), ref_logprobs, values, token_rewards; reward and step per sample. Padding stays in response_tokens and is
left out of the numbers. It holds no ids: without a tokenizer the texts of the file are numbered instead.
"""

from typing import Any

from ..batch_file.fields import BadField
from .draft import Draft, Row, column, groups, lists, one_step, ones, texts
from .source import Source


def holds(source: Source) -> bool:
    return {"response_tokens", "logprobs"} <= source.names


def read(source: Source, step: int | None) -> Draft:
    draft = Draft(meta={"framework": "rl-logging-board"})
    rows = one_step(source.rows, step, draft)
    logprobs = lists(rows, "logprobs") or []
    draft.pieces = pieces = [_pieces(row, len(known), at) for at, (row, known) in enumerate(zip(rows, logprobs, strict=True))]
    numbers = {text: number for number, text in enumerate(sorted({text for row in pieces for text in row}))}
    draft.prompts = texts(rows, "prompt")
    ids = [[numbers[text] for text in row] for row in pieces]
    draft.put("completion_ids", ids, "numbers for the token texts of this file; they are no tokenizer's ids")
    draft.put("completion_mask", ones(ids))
    draft.put("policy_logprobs", logprobs)
    draft.put("ref_logprobs", lists(rows, "ref_logprobs"))
    draft.put("old_logprobs", logprobs, "logprobs, which were taken before the update")
    draft.put("rewards", column(rows, "reward"))
    draft.put("group_ids", groups(draft.prompts), "rows with the same prompt")
    draft.meta |= {"iteration": 0, "tokens": {str(number): text for text, number in numbers.items()}}
    return draft


def _pieces(row: Row, known: int, at: int) -> list[str]:
    """The tokens that have numbers: what is left over at the end, all of it the same text, is padding."""
    pieces: Any = row.get("response_tokens")
    if not isinstance(pieces, list) or not all(isinstance(piece, str) for piece in pieces):
        raise BadField("response_tokens", "no list of texts", "a text per token", at)
    return pieces[:known] if len(set(pieces[known:])) == 1 else pieces
