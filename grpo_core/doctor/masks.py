"""Checks on shapes and masks: one length per row, exactly the completion trained, nothing of a tool, no hole."""

import torch
from jaxtyping import Bool
from torch import Tensor

from .finding import Evidence, Finding
from .reading import (
    as_mask_field,
    column_attention,
    first_true,
    last_true,
    mask_name,
    places,
    prompt_ends,
    quoted,
    rows_at,
    tokens_at,
)  # fmt: skip
from .whatif import number, right_loss

Columns = Bool[Tensor, "B T"]
LATER = (
    "ids_in_vocab", "eos_in_mask", "mask_after_eos", "first_token_scored", "mask_shift", "denominator_matches_mask",
    "ratio_first_step", "sampler_logprobs_match", "nonfinite_under_mask0", "aggregation_fingerprint", "tool_tokens_in_loss",
    "finished_without_eos", "mask_nonempty", "logprob_positive", "retokenisation_drift", "attention_mask_holes",
)  # fmt: skip


def row_lengths_agree(evidence: Evidence) -> list[Finding]:
    """Ids, masks and log-probs of a row have one length."""
    lengths = {name: of for name, of in evidence.batch.row_lengths.items()}
    scored = {name: of for name, of in lengths.items() if name not in ("prompt_ids", "prompt_mask")}
    asked = {name: of for name, of in lengths.items() if name in ("prompt_ids", "prompt_mask")}
    wrong: dict[int, dict[str, int]] = {}
    for part in (scored, asked):
        for row in range(len(next(iter(part.values()), ()))):
            of_row = {name: of[row] for name, of in part.items()}
            wrong |= {row: of_row} if len({n + _lag(name, evidence) for name, n in of_row.items()}) > 1 else {}
    findings = []
    for row, found in wrong.items():
        ids = next(
            (found[name] for name in ("completion_ids", "input_ids", "prompt_ids") if name in found), min(found.values())
        )
        said = ", ".join(f"{name} {length}" for name, length in found.items())
        findings.append(
            Finding(
                check="row_lengths_agree", severity="error", quantity=next(iter(found)), rows=(row,),
                message=f"Row {row} has rows of different lengths: {said}.",
                fix="Cut ids, masks and log-probs of a row in one place, from the ids that were sampled.",
                expected={f"lengths[{row}]": {name: ids - _lag(name, evidence) for name in found}},
                found={f"lengths[{row}]": found},
            )
        )  # fmt: skip
    return findings


def _lag(name: str, evidence: Evidence) -> int:
    """How many columns a field has fewer than the ids: the first token of a whole row has no log-prob."""
    whole = ("input_ids", "attention_mask", "response_mask", "position_ids", "logits")
    return int(evidence.batch.layout == "sequence" and name not in whole)


def attention_mask_holes(evidence: Evidence) -> list[Finding]:
    """Attention runs from the first token to the last without a hole."""
    batch = evidence.batch
    given = batch.attention_mask if batch.attention_mask is not None else batch.prompt_mask
    assert given is not None
    inside = torch.arange(given.shape[1]).unsqueeze(0)
    hole = ~given & (inside > first_true(given).unsqueeze(1)) & (inside < last_true(given).unsqueeze(1))
    if not hole.any():
        return []
    tokens, rows = places(hole, torch.arange(given.shape[1])), rows_at(hole)
    name = "attention_mask" if batch.attention_mask is not None else "prompt_mask"
    return [
        Finding(
            check="attention_mask_holes", severity="error", quantity=name, tokens=tokens, rows=rows,
            message=f"{name} is 0 between two 1s at {len(tokens)} places, the first in row {tokens[0][0]}, column "
            f"{tokens[0][1]}: the model reads the row without these tokens.",
            fix="Keep the loss mask apart from the attention mask: what is not trained is still read.",
            expected=quoted(name, (given | hole).int(), rows), found=quoted(name, given.int(), rows),
        )
    ]  # fmt: skip


def tool_tokens_in_loss(evidence: Evidence) -> list[Finding]:
    """What a tool or an environment wrote is not trained."""
    batch, trained = evidence.batch, evidence.batch.trained_mask()
    assert batch.tool_mask is not None
    wrong = trained & ~batch.tool_mask
    if not wrong.any():
        return []
    rows, right = rows_at(wrong), trained & batch.tool_mask
    return [
        Finding(
            check="tool_tokens_in_loss", severity="error", quantity=mask_name(batch), rows=rows, tokens=tokens_at(batch, wrong),
            message=f"{int(wrong.sum())} tokens that a tool wrote are trained.",
            fix="Multiply the loss mask by the tool mask, in every loss path.",
            expected=mask_numbers(evidence, right, rows), found=mask_numbers(evidence, trained, rows),
        )
    ]  # fmt: skip


def prompt_tokens_in_loss(evidence: Evidence) -> list[Finding]:
    """Only the completion is trained: the loss mask marks neither a prompt's token nor padding."""
    batch = evidence.batch
    assert batch.loss_mask is not None
    wrong = batch.loss_mask & ~batch.completion_columns()
    if not wrong.any():
        return []
    rows, right = rows_at(wrong), batch.loss_mask & ~wrong
    padding = int((wrong & ~column_attention(batch)).sum())
    return [
        Finding(
            check="prompt_tokens_in_loss", severity="error", quantity=mask_name(batch), rows=rows,
            tokens=tokens_at(batch, wrong),
            message=f"{int(wrong.sum())} tokens outside the completions are trained: {int(wrong.sum()) - padding} of prompts, "
            f"{padding} of padding.",
            fix="Build the loss mask from the completion's mask: the policy sampled nothing else.",
            expected=mask_numbers(evidence, right, rows), found=mask_numbers(evidence, batch.loss_mask, rows),
        )
    ]  # fmt: skip


def truncated_rows_in_loss(evidence: Evidence) -> list[Finding]:
    """Where rows that were cut off are to be left out, the loss mask leaves them out."""
    batch = evidence.batch
    assert batch.loss_mask is not None and batch.finish_reasons is not None
    cut = torch.tensor([reason == "length" for reason in batch.finish_reasons]).unsqueeze(1)
    wrong = batch.loss_mask & cut
    if not batch.meta.get("mask_truncated") or not wrong.any():
        return []
    rows, right = rows_at(wrong), batch.loss_mask & ~cut
    return [
        Finding(
            check="truncated_rows_in_loss", severity="error", quantity=mask_name(batch), rows=rows,
            message=f"mask_truncated is on, yet {len(rows)} rows that were cut off train {int(wrong.sum())} tokens.",
            fix="Set the loss mask of rows with finish reason 'length' to 0 in every loss path.",
            expected=mask_numbers(evidence, right, rows), found=mask_numbers(evidence, batch.loss_mask, rows),
        )
    ]  # fmt: skip


def mask_numbers(evidence: Evidence, mask: Columns, rows: tuple[int, ...]) -> dict:
    """A mask as its field, its sum, and the loss that it gives: for `expected` and `found`."""
    field = as_mask_field(evidence.batch, mask).int()
    return quoted(mask_name(evidence.batch), field, rows) | {"num_items": int(mask.sum())} | right_loss(evidence, mask)


def mask_nonempty(evidence: Evidence) -> list[Finding]:
    """Something is trained: in the batch, in each of its micro-batches, and in a row that finished by itself."""
    batch, filled = evidence.batch, evidence.batch.trained_mask().any(1)
    if filled.all():
        return []
    loss = number(batch.reported.get("loss"))
    broken = loss is None or loss != loss or abs(loss) == float("inf")
    empty = rows_at(~filled)
    if not filled.any():
        severity, said = "error" if broken else "warning", "No token of the batch is trained"
    elif parts := [part for part in _micro_batches(evidence) if not filled[part].any()]:
        severity, said = "error" if broken and loss is not None else "warning", f"{len(parts)} micro-batches train no token"
        empty = tuple(row for part in parts for row in part)
    elif rows := _unexplained(evidence, empty):
        severity, said, empty = "warning", f"{len(rows)} finished rows train no token", rows
    else:
        return []
    norm = {} if filled.any() else {"loss": 0.0, "grad_policy_logprobs_norm": 0.0, "num_items": 0}
    return [
        Finding(
            check="mask_nonempty", severity=severity, quantity=mask_name(batch), rows=empty,
            message=f"{said}: a masked mean divides 0 by 0.",
            fix="Divide by max(1, tokens), and give such rows weight 0.",
            expected=norm, found={"num_items": int(batch.trained_mask().sum())} | ({} if loss is None else {"loss": loss}),
        )
    ]  # fmt: skip


def _micro_batches(evidence: Evidence) -> list[list[int]]:
    split = evidence.batch.meta.get("micro_batches") or []
    return [list(part) for part in split if part]


def _unexplained(evidence: Evidence, empty: tuple[int, ...]) -> tuple[int, ...]:
    """Rows that finished, hold tokens and are left out all the same, by no loss mask."""
    batch = evidence.batch
    if batch.loss_mask is not None or batch.finish_reasons is None:
        return ()
    attended = column_attention(batch) & (batch.token_positions().unsqueeze(0) >= prompt_ends(batch).unsqueeze(1))
    return tuple(row for row in empty if batch.finish_reasons[row] == "stop" and bool(attended[row].any()))


def packed_boundary_labels(evidence: Evidence) -> list[Finding]:
    """In a packed row no sequence is scored on the first token of the next."""
    batch, starts = evidence.batch, evidence.batch.meta["packed_boundaries"]
    wrong = torch.zeros_like(batch.trained_mask())
    first = int(batch.token_positions()[0])
    for row, of_row in enumerate(starts if isinstance(starts, (list, tuple)) else ()):
        for start in of_row if isinstance(of_row, (list, tuple)) and row < len(wrong) else ():
            if isinstance(start, int) and 0 < start and 0 <= start - first < wrong.shape[1]:
                wrong[row, start - first] = batch.trained_mask()[row, start - first]
    if not wrong.any():
        return []
    rows, right = rows_at(wrong), batch.trained_mask() & ~wrong
    return [
        Finding(
            check="packed_boundary_labels", severity="error", quantity=mask_name(batch), rows=rows,
            tokens=tokens_at(batch, wrong),
            message=f"{int(wrong.sum())} trained labels are the first token of the next packed sequence.",
            fix="Mask the label at the last position of every packed sequence.",
            expected=mask_numbers(evidence, right, rows), found=mask_numbers(evidence, batch.trained_mask(), rows),
        )
    ]  # fmt: skip
