"""Checks on ids and masks: is every token one that the model knows, and is exactly the completion trained?"""

import torch
from torch import Tensor

from .finding import Evidence, Finding


def places(found: Tensor, positions: Tensor) -> tuple[tuple[int, int], ...]:
    """Where a [B n] boolean is True, as (row, position) with the position of each column given."""
    return tuple((row, int(positions[column])) for row, column in found.nonzero().tolist())


def _completion(evidence: Evidence) -> tuple[Tensor, Tensor, Tensor]:
    """ids and trained mask [B T] of the scored tokens, and each column's position."""
    batch = evidence.trace.batch
    positions = batch.token_positions()
    return batch.row_ids()[:, positions], batch.trained_mask(), positions


def ids_in_vocab(evidence: Evidence) -> list[Finding]:
    """Every id is one of the model's."""
    assert evidence.policy is not None
    ids, size = evidence.trace.batch.row_ids(), evidence.policy.vocab_size
    outside = (ids < 0) | (ids >= size)
    if not outside.any():
        return []
    tokens = places(outside, torch.arange(ids.shape[1]))
    row, position = tokens[0]
    return [
        Finding(
            check="ids_in_vocab", severity="error", quantity="input_ids", tokens=tokens,
            message=f"{len(tokens)} ids are not in the vocabulary of {size}: row {row} has {int(ids[row, position])}.",
            fix="Use the tokenizer that belongs to the model; keep -100 out of ids (it is for labels).",
            expected={"vocab_size": size}, found={"id": int(ids[row, position])},
        )
    ]  # fmt: skip


def double_bos(evidence: Evidence) -> list[Finding]:
    """No prompt starts with the start token twice (a chat template that writes it, and a tokenizer that adds it)."""
    assert evidence.policy is not None
    bos, batch = evidence.policy.bos_id, evidence.trace.batch
    if bos is None:
        return []
    ids, real = batch.row_ids(), batch.row_mask()
    first = real.long().argmax(1)
    rows = [r for r in range(len(ids)) if first[r] + 1 < ids.shape[1] and bool((ids[r, first[r] :][:2] == bos).all())]
    if not rows:
        return []
    return [
        Finding(
            check="double_bos", severity="warning", quantity="prompt_ids", rows=tuple(rows),
            tokens=tuple((row, int(first[row]) + 1) for row in rows),
            message=f"{len(rows)} of {len(ids)} prompts start with the start token (id {bos}) twice.",
            fix="Tokenise the chat template's text with add_special_tokens=False.",
        )
    ]  # fmt: skip


def _first_eos(evidence: Evidence) -> tuple[Tensor, Tensor]:
    """[B T] True at the first EOS of each completion, and True behind it."""
    assert evidence.policy is not None
    ids, _, positions = _completion(evidence)
    completion = evidence.trace.rollout.prompt_ids.shape[1] <= positions
    is_eos = torch.isin(ids, torch.tensor(sorted(evidence.policy.eos_ids))) & completion
    seen = is_eos.long().cumsum(1)
    first = is_eos & (seen == 1)
    return first, (seen >= 1) & ~first


def eos_in_mask(evidence: Evidence) -> list[Finding]:
    """A completion that finished by itself trains its EOS: it is how the model learns to stop."""
    _, trained, positions = _completion(evidence)
    first, _ = _first_eos(evidence)
    stopped = torch.tensor([reason == "stop" for reason in evidence.trace.rollout.finish_reasons])
    missed = first & ~trained & stopped.unsqueeze(1)
    if not missed.any():
        return []
    tokens = places(missed, positions)
    finished = int(stopped.sum())
    return [
        Finding(
            check="eos_in_mask", severity="error", quantity="completion_mask", tokens=tokens,
            rows=tuple(row for row, _ in tokens),
            message=f"{finished - len(tokens)} of {finished} finished rows train their EOS token.",
            fix="Build the mask from the first EOS position, not from ids != pad_id.",
            expected={"num_items": int((trained | missed).sum())}, found={"num_items": int(trained.sum())},
        )
    ]  # fmt: skip


def mask_after_eos(evidence: Evidence) -> list[Finding]:
    """Nothing behind the first EOS is trained."""
    _, trained, positions = _completion(evidence)
    _, behind = _first_eos(evidence)
    wrong = behind & trained
    if not wrong.any():
        return []
    tokens = places(wrong, positions)
    return [
        Finding(
            check="mask_after_eos", severity="error", quantity="completion_mask", tokens=tokens,
            rows=tuple(sorted({row for row, _ in tokens})),
            message=f"{len(tokens)} tokens behind an EOS are trained.",
            fix="Set the mask to 0 from the token after the first EOS on.",
            expected={"num_items": int((trained & ~wrong).sum())}, found={"num_items": int(trained.sum())},
        )
    ]  # fmt: skip
