"""Texts to ids, and ids to log-probs, by a model that was given: what a dump of texts needs before it is a batch."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from jinja2.exceptions import TemplateError

from ..batch import Batch
from ..batch_file.fields import BadField
from ..logprobs import score_tokens
from ..policy import Policy, first_line
from .draft import Draft, ones

TOKENS_AT_ONCE = 2**14  # padding included; of one forward pass
MODEL = "--model NAME (tiny, a folder, a hub id) tokenises and scores it"


def tokenised(draft: Draft, policy: Policy | None) -> None:
    """Fills in the ids that the dump has no numbers for. Raises BadField where that takes a model and there is none."""
    if draft.completions is not None:
        if policy is None:
            raise BadField("completion_ids", f"texts only, {len(draft.completions)} rows", MODEL)
        ids = [_completion(text, policy, row) for row, text in enumerate(draft.completions)]
        draft.put("completion_ids", ids, f"tokenised by {policy.name}; texts end without EOS, and so do these")
        draft.put("completion_mask", ones(ids))
    elif draft.pieces is not None and policy is not None:
        _real_ids(draft, policy)
    if draft.prompts is None:
        return
    rows = len(draft.prompts)
    if policy is None:  # the loss needs no prompt: a masked slot stands for it
        draft.put("prompt_ids", [[0]] * rows, "unknown without a tokenizer; one slot of padding stands for each prompt")
        draft.put("prompt_mask", [[0]] * rows)
        return
    prompts = [_prompt(prompt, policy, draft.plain_prompts, row) for row, prompt in enumerate(draft.prompts)]
    draft.put("prompt_ids", prompts, f"tokenised by {policy.name}")
    draft.put("prompt_mask", ones(prompts))


def _prompt(prompt: Any, policy: Policy, plain: bool, row: int) -> list[int]:
    if isinstance(prompt, str):
        return policy.tokenizer(prompt, verbose=False).input_ids if plain else policy.encode(prompt)
    if not policy.has_chat_template or not isinstance(prompt, list):
        raise BadField("prompt", "a chat", f"a text, since {policy.name} has no chat template", row)
    try:
        text = policy.tokenizer.apply_chat_template(prompt, tokenize=False, add_generation_prompt=True)
    except (TemplateError, KeyError, TypeError) as error:
        raise BadField("prompt", f"a chat that the template refuses ({first_line(error)})", "role and content", row) from error
    return policy.tokenizer(text, add_special_tokens=False, verbose=False).input_ids


def _completion(text: Any, policy: Policy, row: int) -> list[int]:
    if isinstance(text, list):
        if len(text) != 1:
            raise BadField("completion", f"a chat of {len(text)} messages", "a text, or one message", row)
        text = text[0]["content"]
    return policy.tokenizer(text, add_special_tokens=False, verbose=False).input_ids


def _real_ids(draft: Draft, policy: Policy) -> None:
    """The tokenizer's ids of the texts, where it knows them all; else they stay numbers of this file."""
    known = policy.tokenizer.get_vocab()
    ids = [[known.get(piece) for piece in row] for row in draft.pieces or ()]
    strangers = {piece for row in draft.pieces or () for piece in row if piece not in known}
    if strangers:
        draft.filled.append(f"{policy.name} does not know {len(strangers)} of the token texts: its ids were not used")
        return
    draft.meta.pop("tokens", None)
    draft.filled = [line for line in draft.filled if not line.startswith("completion_ids:")]
    draft.put("completion_ids", ids, f"by the vocabulary of {policy.name}")


def described(batch: Batch, policy: Policy, ends: bool) -> Batch:
    """With what the tokenizer knows: special ids and the texts of the ids. `ends`: completions have their EOS."""
    meta: dict[str, Any] = {"pad_token_id": policy.pad_id, "vocab_size": policy.vocab_size}
    meta |= {} if policy.bos_id is None else {"bos_token_id": policy.bos_id}
    meta |= {"eos_token_ids": sorted(policy.eos_ids)} if ends else {}
    ids = batch.row_ids().unique().tolist()
    tokens = {str(token): policy.piece(token) for token in ids if token >= 0}
    return replace(batch, meta={"tokens": tokens} | meta | dict(batch.meta))


def scored(batch: Batch, policy: Policy, temperature: float) -> Batch:
    """With log-probs and entropy of this model as the policy's, and as the policy's at the start where none are known."""
    _refuse_other_model(batch, policy)
    index = torch.arange(len(batch.row_ids()))
    parts = [_score(policy, batch.rows(rows), temperature) for rows in index.split(_rows_at_once(batch))]
    logprobs, entropy = (torch.cat(part) for part in zip(*parts, strict=True))
    said = [f"policy_logprobs: scored now by {policy.name} at temperature {temperature:g}, as if it were the policy"]
    made: dict[str, Any] = {"policy_logprobs": logprobs, "entropy": entropy if batch.entropy is None else batch.entropy}
    meta = {"temperature": temperature} | dict(batch.meta)
    if batch.old_logprobs is None:
        made["old_logprobs"] = logprobs
        meta = {"iteration": 0} | meta
        said.append("old_logprobs: policy_logprobs, as at the first update: the ratio is 1")
    return replace(batch, **made, meta=meta, derived=(*batch.derived, *said))


def _rows_at_once(batch: Batch) -> int:
    return max(1, TOKENS_AT_ONCE // batch.row_ids().shape[1])


def _score(policy: Policy, part: Batch, temperature: float) -> Sequence[torch.Tensor]:
    mask = part.trained_mask()
    if not mask.any():
        return torch.zeros(mask.shape), torch.zeros(mask.shape)
    with torch.no_grad():
        found = score_tokens(policy, part, temperature)
    return found.logprobs.cpu(), found.entropy.cpu()


def _refuse_other_model(batch: Batch, policy: Policy) -> None:
    ids, longest = batch.row_ids(), int(batch.row_mask().sum(1).max())
    if bool(((ids < 0) | (ids >= policy.vocab_size)).any()):
        raise BadField("model", f"a vocabulary of {policy.vocab_size}", f"one that holds ids from {ids.min()} to {ids.max()}")
    if policy.max_length is not None and longest > policy.max_length:
        raise BadField("model", f"room for {policy.max_length} tokens", f"{longest}, the longest row")
