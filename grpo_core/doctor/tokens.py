"""Checks on ids and on the end of a completion: is every token one that the model knows, and is its end trained?"""

import torch
from jaxtyping import Bool
from torch import Tensor

from .finding import Evidence, Finding
from .reading import (
    as_mask_field,
    behind_prompt,
    column_attention,
    column_ids,
    first_true,
    has_turns,
    last_true,
    mask_name,
    places,
    quoted,
    rows_at,
    tokens_at,
)  # fmt: skip
from .whatif import right_loss

Columns = Bool[Tensor, "B T"]


def ids_in_vocab(evidence: Evidence) -> list[Finding]:
    """Every id is one of the model's: a row of the logits, or at least of the tokenizer."""
    batch = evidence.batch
    ids, sizes = batch.row_ids(), _sizes(evidence)
    severity, size = max(sizes, key=lambda pair: pair[1])  # a model may have more rows than its tokenizer has ids
    outside = ((ids < 0) | (ids >= size)) & (batch.row_mask() | (ids >= size) | (ids < 0))
    if not outside.any():
        return []
    tokens = places(outside, torch.arange(ids.shape[1]))
    row, position = tokens[0]
    return [
        Finding(
            check="ids_in_vocab", severity=severity, quantity="input_ids" if batch.prompt_ids is None else "completion_ids",
            tokens=tokens, rows=rows_at(outside),
            message=f"{len(tokens)} ids are not in the vocabulary of {size}: row {row} has {int(ids[row, position])}.",
            fix="Use the tokenizer that belongs to the model; keep -100 out of ids (it is for labels).",
            expected={"vocab_size": size}, found={"id": int(ids[row, position])},
        )
    ]  # fmt: skip


def _sizes(evidence: Evidence) -> list[tuple[str, int]]:
    """How many ids there are, and how bad one beyond it is."""
    batch, sizes = evidence.batch, []
    if batch.logits is not None:
        sizes.append(("error", batch.logits.shape[2]))
    if batch.meta.get("vocab_size"):
        sizes.append(("error", int(batch.meta["vocab_size"])))
    if evidence.policy is not None:
        sizes.append(("error", evidence.policy.vocab_size))
    return sizes


def _stops(evidence: Evidence) -> Columns:
    """True on every stop id behind the prompt."""
    return torch.isin(column_ids(evidence.batch), torch.tensor(evidence.eos_ids)) & behind_prompt(evidence.batch)


def _fill(evidence: Evidence) -> Columns:
    """True on what fills a row up behind its end: stop ids, padding ids, places without attention."""
    batch = evidence.batch
    filled = _stops(evidence) | ~column_attention(batch)
    pad = batch.meta.get("pad_token_id")
    return filled if pad is None else filled | (column_ids(batch) == pad)


def end_of(evidence: Evidence) -> tuple[Columns, Columns]:
    """True at the stop id that ends each completion, and True behind it.

    That is the first one; in a row of several turns, whose turns end in stop ids of their own, the first behind the last token
    that somebody wrote.
    """
    batch, stops = evidence.batch, _stops(evidence)
    columns = torch.arange(stops.shape[1])
    written = last_true(behind_prompt(batch) & ~_fill(evidence))
    late = columns.unsqueeze(0) > torch.where(has_turns(batch), written, -1).unsqueeze(1)
    seen = (stops & late).int().cumsum(1)
    first = stops & late & (seen == 1)
    return first, (seen >= 1) & ~first


def _stopped(evidence: Evidence) -> Bool[Tensor, " B"]:
    """Rows that ended by themselves; where nobody says how they ended, those with a stop id."""
    reasons = evidence.batch.finish_reasons
    if reasons is None:
        return end_of(evidence)[0].any(1)
    return torch.tensor([reason == "stop" for reason in reasons])


def eos_in_mask(evidence: Evidence) -> list[Finding]:
    """A completion that finished by itself trains its EOS: it is how the model learns to stop."""
    batch, trained = evidence.batch, evidence.batch.trained_mask()
    first, _ = end_of(evidence)
    missed = first & ~trained & _stopped(evidence).unsqueeze(1) & ~_excused(evidence, first)
    if not missed.any():
        return []
    tokens, rows, right = tokens_at(batch, missed), rows_at(missed), trained | missed
    finished = int((first & _stopped(evidence).unsqueeze(1)).sum())
    pad = batch.meta.get("pad_token_id")
    same = f" (pad id == eos id == {pad})" if pad in evidence.eos_ids else ""
    return [
        Finding(
            check="eos_in_mask", severity="error", quantity=mask_name(batch), tokens=tokens, rows=rows,
            message=f"{finished - len(tokens)} of {finished} finished rows train their EOS token{same}.",
            fix="Build the mask from the first EOS position, not from ids != pad_id.",
            expected=_mask_numbers(evidence, right, rows), found=_mask_numbers(evidence, trained, rows),
        )
    ]  # fmt: skip


def _excused(evidence: Evidence, first: Columns) -> Columns:
    """Ends that are not trained for another reason: a tool wrote them, the engine did not, the row is left out."""
    batch, trained = evidence.batch, evidence.batch.trained_mask()
    out = ~trained.any(1) & (first_true(first) > first_true(behind_prompt(batch)))  # behind tokens that are not trained either
    out |= ~trained.any(1) if batch.loss_mask is not None else torch.zeros_like(out)
    if batch.sampled_ids is not None:
        out |= ~torch.isin(batch.sampled_ids, torch.tensor(evidence.eos_ids)).any(1)
    if batch.finish_reasons is None and (first & trained).any():
        out |= torch.ones_like(out)  # some rows do train theirs: the others may have been cut off
    excused = out.unsqueeze(1).expand_as(trained)
    return excused if batch.tool_mask is None else excused | ~batch.tool_mask


def _mask_numbers(evidence: Evidence, mask: Columns, rows: tuple[int, ...]) -> dict:
    field = as_mask_field(evidence.batch, mask).int()
    return quoted(mask_name(evidence.batch), field, rows) | {"num_items": int(mask.sum())} | right_loss(evidence, mask)


def _behind_main_end(evidence: Evidence) -> tuple[Columns, Columns]:
    """Trained places behind an end that must not be: all of them, and those whose row ended in another stop id than the
    tokenizer's own. What a model wrote on behind such an id, it sampled: that is left to `secondary_eos`."""
    batch, (first, behind) = evidence.batch, end_of(evidence)
    wrong = behind & batch.trained_mask()
    other = (first & (column_ids(batch) != evidence.eos_ids[0])).any(1)
    went_on = other & (behind & ~_fill(evidence)).any(1)
    wrong &= ~went_on.unsqueeze(1)
    return wrong, wrong & other.unsqueeze(1)


def mask_after_eos(evidence: Evidence) -> list[Finding]:
    """Nothing behind the first EOS is trained."""
    batch, trained = evidence.batch, evidence.batch.trained_mask()
    wrong, _ = _behind_main_end(evidence)
    if not wrong.any():
        return []
    rows = rows_at(wrong)
    return [
        Finding(
            check="mask_after_eos", severity="error", quantity=mask_name(batch), tokens=tokens_at(batch, wrong), rows=rows,
            message=f"{int(wrong.sum())} tokens behind an EOS are trained.",
            fix="Set the mask to 0 from the token after the first EOS on.",
            expected=_mask_numbers(evidence, trained & ~wrong, rows), found=_mask_numbers(evidence, trained, rows),
        )
    ]  # fmt: skip


def secondary_eos(evidence: Evidence) -> list[Finding]:
    """A row that ends in another stop id than the tokenizer's own is finished all the same."""
    batch, (first, behind) = evidence.batch, end_of(evidence)
    other = first & (column_ids(batch) != evidence.eos_ids[0])
    _, wrong = _behind_main_end(evidence)
    ends = other & wrong.any(1, keepdim=True)
    went_on = other & (behind & ~_fill(evidence) & batch.trained_mask()).any(1, keepdim=True)
    findings = []
    for severity, at, said in (("error", ends, "and what fills the row up behind it is trained"),
                               ("warning", went_on, "and the text goes on behind it")):  # fmt: skip
        if not at.any():
            continue
        rows, ids = rows_at(at), sorted(set(column_ids(batch)[at].tolist()))
        right = batch.trained_mask() & ~(wrong if severity == "error" else behind & at.any(1, keepdim=True))
        findings.append(
            Finding(
                check="secondary_eos", severity=severity, quantity=mask_name(batch), rows=rows,
                tokens=tokens_at(batch, wrong if severity == "error" else at),
                message=f"{len(rows)} rows hold the stop id {ids}, not the tokenizer's own {evidence.eos_ids[0]}, {said}.",
                fix="Give engine and mask the same list of stop ids, all of generation_config.eos_token_id.",
                expected=_mask_numbers(evidence, right, rows), found=_mask_numbers(evidence, batch.trained_mask(), rows),
            )
        )  # fmt: skip
    return findings


def finished_without_eos(evidence: Evidence) -> list[Finding]:
    """A row that is said to have finished, and is short, ends in a stop id."""
    batch = evidence.batch
    lengths, limit = batch.completion_columns().sum(1), batch.meta.get("max_completion_length")
    limit = int(limit) if limit else int(lengths.max())
    short = (lengths > 0) & (lengths < limit) & ~_stops(evidence).any(1)
    if batch.finish_reasons is not None:
        short &= torch.tensor([reason == "stop" for reason in batch.finish_reasons])
    if not short.any():
        return []
    rows = rows_at(short)
    return [
        Finding(
            check="finished_without_eos", severity="warning", quantity="completion_ids", rows=rows,
            message=f"{len(rows)} rows end below {limit} tokens without any of the stop ids {list(evidence.eos_ids)}.",
            fix="Keep the stop token that the engine sampled, or name the stop ids; else the model never learns to stop.",
            expected={"eos_token_ids": list(evidence.eos_ids)}, found={"lengths": [int(lengths[row]) for row in rows]},
        )
    ]  # fmt: skip
