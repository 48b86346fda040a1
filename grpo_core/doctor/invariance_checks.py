"""Checks on what must not matter: what stands in masked slots, and the padding beside a row."""

from dataclasses import replace

import torch
from torch import Tensor

from ..types import Batch
from .candidates import Sampling
from .finding import Evidence, Finding
from .invariance import computable, core_loss, left_pads
from .invariance import padding_invariance as moved_by_padding
from .invariance import padding_invariance_model as rows_alone
from .lineage import EXACT, same_weights
from .model_candidates import real_mask
from .printed import Misread, misread
from .tokens import places

APART = 0.05  # nats, a mean: no rounding
NOISY = 0.15  # the same where the pass ran in bf16 or nobody says in what
SHOWN_ROWS, SHOWN_TOKENS = 3, 8


# ---- masked slots --------------------------------------------------------------------------------------------------------
def padding_invariance(evidence: Evidence) -> list[Finding]:
    """No number depends on masked slots: not our loss when they are filled with something else, not what was printed."""
    batch, settings = _readable(evidence.batch), evidence.settings
    findings = _printed(batch, list(misread(batch, settings)))
    if computable(batch, settings.convention):
        moved = moved_by_padding(batch, core_loss(settings.convention))
        findings += [
            Finding(
                check="padding_invariance", severity="error", quantity=one.quantity,
                message=f"{one.quantity} moves from {one.before:.4g} to {one.after:.4g} when masked slots of "
                f"{', '.join(one.tensors)} hold {one.fill}.",
                fix="Take masked slots out with where() before the first operation; do not multiply by the mask.",
                expected={one.quantity: one.before}, found={one.quantity: one.after},
            ) for one in moved[:1]
        ]  # fmt: skip
    return findings


def _readable(batch: Batch) -> Batch:
    """Without logits that do not know all ids: `ids_in_vocab` says so, and nothing can be scored from them."""
    ids = batch.row_ids()
    known = batch.logits is None or bool((ids >= 0).all()) and int(ids.max()) < batch.logits.shape[-1]
    return batch if known else replace(batch, logits=None)


def _printed(batch: Batch, all_of_them: list[Misread]) -> list[Finding]:
    """One finding per set of slots that printed numbers were taken over."""
    findings = []
    for slots in dict.fromkeys(one.slots for one in all_of_them):
        same = [one for one in all_of_them if one.slots == slots]
        extra = same[0].mask & ~batch.trained_mask()
        tokens = places(extra, batch.token_positions())
        said = "; ".join(f"{one.quantity} {one.printed:.6g} (over the trained tokens {one.right:.6g})" for one in same)
        findings.append(
            Finding(
                check="padding_invariance", severity="error", quantity=f"reported.{same[0].quantity}",
                rows=tuple(sorted({row for row, _ in tokens})), tokens=tokens,
                message=f"Printed numbers are means over {slots}, {len(tokens)} of them not trained: {said}.",
                fix="Take every mean over the mask of the loss: where(mask, x, 0).sum() / mask.sum().",
                expected=_of(same, 0), found=_of(same, 1),
            )
        )  # fmt: skip
    return findings


def _of(same: list[Misread], which: int) -> dict:
    numbers: dict = {}
    for one in same:
        numbers[one.name] = (one.right, one.printed)[which]
        if one.by_row is not None:
            rows = one.mask.any(1).nonzero().flatten().tolist()[:SHOWN_ROWS]
            numbers |= {f"{one.name}_row_{row}": float(one.by_row[which][row]) for row in rows}
    return numbers


# ---- the padding beside a row --------------------------------------------------------------------------------------------
def padding_invariance_model(evidence: Evidence) -> list[Finding]:
    """A row's log-probs are the same alone and beside padding: in the stored fields, and in the model."""
    batch = evidence.batch
    findings = _padded_rows(batch)
    if evidence.policy is None:
        return findings
    half = evidence.policy.dtype.itemsize < 4
    gaps = rows_alone(batch, evidence.policy, Sampling.of(batch).temperature)
    wrong = [one for one in gaps if not one.gap <= (NOISY if half else 5 * EXACT)]
    if wrong:
        worst, shown = max(wrong, key=lambda one: one.gap), wrong[:SHOWN_ROWS]
        findings.append(
            Finding(
                check="padding_invariance_model", severity="error", quantity="attention_mask",
                rows=tuple(one.row for one in wrong),
                message=f"{len(wrong)} of {len(gaps)} rows score differently alone and as the file describes the pass, by up "
                f"to {worst.gap:.4g} nats (row {worst.row}, {worst.pads} pads at its left).",
                fix="The attention mask is 1 on every real token and 0 on padding; position_ids = cumulative mask - 1.",
                expected={f"logprobs[{one.row}]": _finite(one.alone) for one in shown} | {"max_gap": 0.0},
                found={f"logprobs[{one.row}]": _finite(one.batched) for one in shown} | {"max_gap": worst.gap},
            )
        )  # fmt: skip
    return findings


def _finite(values: Tensor) -> list[float]:
    return values[values.isfinite()].tolist()


def _padded_rows(batch: Batch) -> list[Finding]:
    """Two fields of the same weights agree on the rows without left padding and differ on those with: positions or mask."""
    for field, right in (("policy_logprobs", "sampler_logprobs"), ("policy_logprobs", "old_logprobs"),
                         ("old_logprobs", "sampler_logprobs"), ("policy_logprobs", "ref_logprobs")):  # fmt: skip
        stored, other = getattr(batch, field), getattr(batch, right)
        if stored is None or other is None or not same_weights(batch, field, right):
            continue
        rows = _rows_off_by_padding(batch, (stored - other).abs())
        if rows:
            return [_padding_finding(batch, rows, field, right)]
    return []


def _rows_off_by_padding(batch: Batch, gap: Tensor) -> tuple[int, ...]:
    """The padded rows, where all of them are off and no other row is; else none."""
    mask, pads = batch.trained_mask() & gap.isfinite(), left_pads(batch)
    counted = mask.any(1)
    mean = torch.where(mask, gap, 0.0).sum(1) / mask.sum(1).clamp(min=1)
    padded, plain = counted & (pads > 0), counted & (pads == 0)
    if not padded.any() or not plain.any() or _other_prompts(batch)[padded].any():
        return ()
    calm, off = float(mean[plain].max()), float(mean[padded].min())
    apart = off >= APART and off >= 10 * calm and calm <= APART / 5
    return tuple(padded.nonzero().flatten().tolist()) if apart else ()


def _other_prompts(batch: Batch) -> Tensor:
    """[B] rows whose prompt the engine saw in another length: that explains them already."""
    if batch.sampler_prompt_ids is None:
        return torch.zeros(len(batch.row_ids()), dtype=torch.bool)
    pad = batch.meta.get("pad_token_id", 0)
    seen = ((batch.sampler_prompt_ids != pad).cumsum(1) > 0).sum(1)
    prompt = real_mask(batch) & (batch.row_completion_mask().cumsum(1) == 0)
    if batch.prompt_ids is not None:
        prompt[:, batch.prompt_ids.shape[1] :] = False
    return seen != prompt.sum(1)


def _padding_finding(batch: Batch, rows: tuple[int, ...], field: str, right: str) -> Finding:
    mask, pads = batch.trained_mask(), left_pads(batch)
    stored, other = getattr(batch, field), getattr(batch, right)
    gap = torch.where(mask, (stored - other).abs(), 0.0)
    name = "_".join(map(str, rows[:SHOWN_TOKENS]))
    plain = torch.ones(len(mask), dtype=torch.bool)
    plain[list(rows)] = False
    calm, off = float(gap[plain].max()), float(gap[list(rows)].max())
    shown = rows[:SHOWN_ROWS]
    return Finding(
        check="padding_invariance_model", severity="error", quantity=field, rows=rows,
        tokens=_worst(gap, batch),
        message=f"{field} and {right} agree on the rows without padding at the left (to {calm:.2g} nats) and differ by up to "
        f"{off:.4g} on the {len(rows)} rows with {int(pads[list(rows)].min())} pads or more: the pass counted positions from "
        "the pads, or attended to them.",
        fix="Pass the attention mask and position_ids = (its cumulative sum) - 1.",
        expected={f"{field}[{row}]": other[row][mask[row]].tolist() for row in shown} | {f"max_abs_log_ratio_rows_{name}": 0.0},
        found={f"{field}[{row}]": stored[row][mask[row]].tolist() for row in shown}
        | {f"max_abs_log_ratio_rows_{name}": off, "max_abs_log_ratio_elsewhere": calm},
    )  # fmt: skip


def _worst(gap: Tensor, batch: Batch) -> tuple[tuple[int, int], ...]:
    width, positions = gap.shape[1], batch.token_positions()
    top = gap.nan_to_num(0.0).flatten().topk(min(SHOWN_TOKENS, gap.numel())).indices.tolist()
    return tuple((place // width, int(positions[place % width])) for place in top if gap[place // width, place % width] > 0)
