"""Checks on the shift: the mask follows the target token, from the completion's first to its last."""

import torch
from jaxtyping import Bool
from torch import Tensor

from ..batch import Batch
from .finding import Evidence, Finding
from .masks import mask_numbers
from .reading import (
    behind_prompt,
    column_attention,
    column_ids,
    first_true,
    groups_of,
    last_true,
    mask_name,
    rows_at,
    tokens_at,
)

Columns = Bool[Tensor, "B T"]


def moved(mask: Columns, by: int) -> Columns:
    """The mask moved to the right (by 1) or left (by -1), nothing coming in at the edge."""
    rolled = mask.roll(by, 1)
    rolled[:, 0 if by > 0 else -1] = False
    return rolled


def right_columns(evidence: Evidence) -> Columns | None:
    """The completion's columns, where something other than the mask in doubt says them; None where nothing does."""
    batch = evidence.batch
    if batch.loss_mask is not None:
        return batch.completion_columns() if batch.tool_mask is None else batch.completion_columns() & batch.tool_mask
    if batch.prompt_lengths is not None and batch.layout == "sequence":
        return behind_prompt(batch) & column_attention(batch)
    mask = batch.completion_columns()
    pads = mask & ~column_attention(batch) if batch.attention_mask is not None else torch.zeros_like(mask)
    if batch.layout == "prompt_completion" or batch.attention_mask is None:
        return None
    used, ends = mask.any(1), last_true(column_attention(batch))
    if pads.any():  # late
        back = moved(mask, -1)
        cut = ~pads.any(1) & (last_true(mask) == mask.shape[1] - 1)  # the row fills the width: its last token was pushed out
        back[cut, -1] |= mask[cut, -1]
        return back if bool(((last_true(back) == ends) | cut)[used].all()) else None
    cut_off = torch.tensor([reason == "length" for reason in batch.finish_reasons or [""] * len(mask)])
    early = bool((last_true(mask) + 1 == ends)[used].all()) and bool((used & cut_off).any())  # no EOS that was left out
    return moved(mask, 1) if early else None


def mask_shift(evidence: Evidence) -> list[Finding]:
    """The mask belongs to the token that is predicted, not to the position that predicts it: it is not one column off."""
    batch, mask, right = evidence.batch, evidence.batch.trained_mask(), right_columns(evidence)
    if right is None or bool((mask == right).all()):
        return []
    used = mask.any(1)
    for name, by in (("late", 1), ("early", -1)):
        if not used.any() or not bool((mask == moved(right, by))[used].all()):
            continue
        off, missing = mask & ~right, right & ~mask & used.unsqueeze(1)
        wrong, rows = missing | off, rows_at(missing | off)
        return [
            Finding(
                check="mask_shift", severity="error", quantity=mask_name(batch), rows=rows, tokens=tokens_at(batch, wrong),
                message=f"The mask sits one token too {name}: {int(missing.sum())} completion tokens are not trained, "
                f"{int(off.sum())} others are.",
                fix="Cut the mask as the targets are cut: logits[:, :-1], ids[:, 1:], mask[:, 1:].",
                expected=mask_numbers(evidence, right, rows), found=mask_numbers(evidence, mask, rows),
            )
        ]  # fmt: skip
    return []


def first_token_scored(evidence: Evidence) -> list[Finding]:
    """The first token of a completion is trained: the last prompt position predicts it."""
    batch, mask = evidence.batch, evidence.batch.trained_mask()
    missing = _first_missing(evidence)
    used = mask.any(1)
    if missing is None or not used.any() or not bool(missing.any(1)[used].all()):
        return []
    missing &= used.unsqueeze(1)
    rows = rows_at(missing)
    count, scored = int((mask | missing).sum()), int(mask.sum())
    return [
        Finding(
            check="first_token_scored", severity="error", quantity=mask_name(batch), rows=rows,
            tokens=tokens_at(batch, missing),
            message=f"The completions have {count} tokens, {scored} are trained: the first of each of {len(rows)} is missing.",
            fix="On the shifted axis the mask starts at prompt length - 1: the last prompt position predicts the first token.",
            expected=mask_numbers(evidence, mask | missing, rows) | _logprobs(batch, mask | missing),
            found=mask_numbers(evidence, mask, rows) | _logprobs(batch, mask),
        )
    ]  # fmt: skip


def _logprobs(batch: Batch, mask: Columns) -> dict[str, list[float]]:
    row = int(mask.any(1).int().argmax())
    return {} if batch.policy_logprobs is None else {f"scored_logprobs[{row}]": batch.policy_logprobs[row][mask[row]].tolist()}


def _first_missing(evidence: Evidence) -> Columns | None:
    """True on the tokens between the prompt and the first trained one, where it is exactly one in every trained row."""
    batch, mask = evidence.batch, evidence.batch.trained_mask()
    begins = first_true(behind_prompt(batch))
    if batch.layout == "sequence" and batch.prompt_lengths is None and batch.loss_mask is None:
        begins = _begins_by_group(evidence)
        if begins is None:
            return None
    elif batch.layout == "sequence" and batch.prompt_lengths is None:
        begins = first_true(batch.completion_columns())
    columns = torch.arange(mask.shape[1]).unsqueeze(0)
    gap = (columns >= begins.unsqueeze(1)) & (columns < first_true(mask).unsqueeze(1))
    if batch.tool_mask is not None:
        gap &= batch.tool_mask
    pad = batch.meta.get("pad_token_id")
    one = (gap.sum(1) == 1) & ((gap & (column_ids(batch) != pad)).sum(1) == 1)
    return gap & one.unsqueeze(1)


def _begins_by_group(evidence: Evidence) -> Tensor | None:
    """Where completions begin at the latest: where rows that answer one prompt part. None where no group says."""
    batch = evidence.batch
    ids, mask = column_ids(batch), batch.trained_mask()
    begins, known = first_true(mask), False
    for _, rows in groups_of(evidence):
        picked = ids[list(rows)]
        apart = (picked != picked[:1]).any(0)
        starts = {int(begins[row]) for row in rows}
        if len(rows) > 1 and apart.any() and len(starts) == 1:
            begins[list(rows)] = torch.minimum(begins[list(rows)], apart.int().argmax())
            known = True
    return begins if known else None
