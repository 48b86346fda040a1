"""Checks that ask whether the stored log-probs are what their weights give, and name what they are instead.

All read `explain_logprobs`: `logprob_hypotheses` says every cause with its residuals, the others are the causes that have a
name of their own. Log-probs and residuals in nats.
"""

from dataclasses import replace

import torch
from torch import Tensor

from ..types import Batch
from .causes import CAUSES, SLOTS, TEMPERATURES, UNITS, cause_of
from .finding import Evidence, Finding
from .hypotheses import Explained, explain_logprobs
from .invariance_checks import padding_invariance, padding_invariance_model
from .lineage import EXACT
from .repeated import dropout_active
from .stored import logprob_dtype_mix, truncated_support_bias

__all__ = [
    "dropout_active", "logprob_dtype_mix", "logprob_hypotheses", "logprob_units", "padding_invariance",
    "padding_invariance_model", "rollout_logprob_mode", "shift_probe", "temperature_consistency", "truncated_support_bias",
]  # fmt: skip

SAID = 1e-3  # nats, a mean: precision noise below is not worth a word
SHOWN_ROWS, SHOWN_TOKENS, SHOWN_RESIDUALS = 3, 8, 8


def logprob_hypotheses(evidence: Evidence) -> list[Finding]:
    """Every stored log-prob field equals what its weights give for its tokens, up to the noise of the precision."""
    findings = [
        _finding("logprob_hypotheses", group, evidence.batch, "warning" if group[0].cause == "kept tokens only" else "error")
        for group in _groups(evidence)
    ]
    for answer in explain_logprobs(evidence.batch, evidence.policy):
        if answer.cause == "precision noise" and answer.residual("right") > SAID:
            findings.append(_noise(answer, evidence.batch))
        if answer.cause is None and answer.same_weights:
            findings.append(_unexplained(answer, evidence.batch))
    return findings


def temperature_consistency(evidence: Evidence) -> list[Finding]:
    """The log-probs are those at the temperature in use: the logits were divided by it once."""
    found = [group for group in _groups(evidence) if group[0].cause in TEMPERATURES and not _raw_sampler(group[0])]
    return [_finding("temperature_consistency", group, evidence.batch, said=_temperatures(group)) for group in found]


def _temperatures(group: list[Explained]) -> str:
    answer, names = group[0], _names(group)
    if answer.value is None:
        return f"{names} are log-probs at temperature 1, divided by {answer.temperature:g} only after the softmax."
    return (
        f"{names} fit temperature {answer.value:.4g}, {answer.temperature:g} is in use: that alone moves each log-ratio by "
        f"{answer.residual('right'):.4g} on average."
    )


def rollout_logprob_mode(evidence: Evidence) -> list[Finding]:
    """The engine's log-probs were taken behind the temperature, as the trainer's are."""
    findings = []
    for group in _groups(evidence):
        if _raw_sampler(group[0]):
            said = (
                f"The engine hands back raw log-probs, of logits before the temperature {group[0].temperature:g}; the "
                f"trainer's are taken behind it: each log-ratio is off by {group[0].residual('right'):.4g} on average."
            )
            findings.append(_finding("rollout_logprob_mode", group, evidence.batch, said=said))
    return findings


def shift_probe(evidence: Evidence) -> list[Finding]:
    """Slot t of every field holds the log-prob of the token that column t belongs to."""
    findings = []
    for group in _groups(evidence):
        answer = group[0]
        if answer.cause in SLOTS:
            offset = SLOTS[answer.cause]
            said = (
                f"{_names(group)} fit best at offset {offset:+d} ({CAUSES[answer.cause].says}): residual "
                f"{answer.best.mean_abs:.2g} nats there, {answer.residual('right'):.3g} at offset 0."
            )
            found = _finding("shift_probe", group, evidence.batch, said=said)
            more = {"expected": {"best_offset": 0} | found.expected, "found": {"best_offset": offset} | found.found}
            findings.append(replace(found, **more))
    return findings


def logprob_units(evidence: Evidence) -> list[Finding]:
    """Without logits or model: no field is another one of the same weights in other units, or divided after the softmax."""
    if evidence.batch.logits is not None or evidence.policy is not None:
        return []  # `logprob_hypotheses` tells these and more
    named = [group for group in _groups(evidence) if group[0].cause in UNITS]
    return [_finding("logprob_units", group, evidence.batch) for group in named]


def _raw_sampler(answer: Explained) -> bool:
    return answer.cause == "temperature missing" and answer.field == "sampler_logprobs"


def _groups(evidence: Evidence) -> list[list[Explained]]:
    """Answers that name a mistake; the trainer's fields with one and the same are one finding."""
    groups: dict[tuple[str, bool], list[Explained]] = {}
    for answer in explain_logprobs(evidence.batch, evidence.policy):
        if answer.is_wrong and answer.cause and answer.cause != "dropout":  # `dropout_active` says that one
            groups.setdefault((answer.cause, answer.field == "sampler_logprobs"), []).append(answer)
    return list(groups.values())


# ---- an answer as a finding ----------------------------------------------------------------------------------------------
def _finding(check: str, group: list[Explained], batch: Batch, severity: str = "error", said: str = "") -> Finding:
    """One cause in the fields of a group; `said` replaces the sentence with the residuals."""
    answer = group[0]
    assert answer.cause is not None
    expected, found = _numbers(answer, batch)
    if answer.cause in TEMPERATURES and answer.value is not None:
        key = "sampler_temperature" if answer.field == "sampler_logprobs" else "scoring_temperature"
        expected[key], found[key] = answer.temperature, answer.value
    return Finding(
        check=check, severity=severity, quantity=answer.field, rows=_rows(answer, batch), tokens=_worst(answer, batch),
        message=said or _with_residuals(group), fix=cause_of(answer.cause, answer.field).fix, expected=expected, found=found,
    )  # fmt: skip


def _with_residuals(group: list[Explained]) -> str:
    answer, other = group[0], group[0].runner_up
    cause = cause_of(answer.cause or "", answer.field)
    said = cause.says.format(T=answer.temperature, value=answer.value or 0.0)
    instead = f"; next best is {other.name!r} with {other.mean_abs:.3g}" if other and other.name != "right" else ""
    return (
        f"{_names(group)} are {said}: residual {answer.best.mean_abs:.2g} nats, against {answer.residual('right'):.3g} for "
        f"what {_source(answer)}{instead}."
    )


def _names(group: list[Explained]) -> str:
    return ", ".join(part.field for part in group)


def _source(answer: Explained) -> str:
    return {"logits": "the batch's logits give", "model": "the model gives"}.get(answer.source, f"{answer.source} hold")


def _noise(answer: Explained, batch: Batch) -> Finding:
    expected, found = _numbers(answer, batch)
    right = next(row for row in answer.table if row.name == "right")
    return Finding(
        check="logprob_hypotheses", severity="info", quantity=answer.field,
        message=f"{answer.field} differ from what {_source(answer)} by {right.mean_abs:.2g} nats on average, at most "
        f"{right.max_abs:.2g}, without a pattern: precision noise (bf16, another batch shape or kernel).",
        fix="Where it matters, score both sides with one dtype and one batch shape.",
        expected=expected, found=found,
    )  # fmt: skip


def _unexplained(answer: Explained, batch: Batch) -> Finding:
    expected, found = _numbers(answer, batch)
    best = answer.best
    more = "" if answer.source == "model" else " With --model more of them can be tried."
    return Finding(
        check="logprob_hypotheses", severity="info", quantity=answer.field, rows=_rows(answer, batch),
        tokens=_worst(answer, batch),
        message=f"{answer.field} lie {answer.residual('right'):.3g} nats from what {_source(answer)}, and none of "
        f"{len(answer.table)} hypotheses explains it; {best.name!r} comes closest with {best.mean_abs:.3g}.{more}",
        expected=expected, found=found,
    )  # fmt: skip


def _numbers(answer: Explained, batch: Batch) -> tuple[dict, dict]:
    """Right and stored values of some rows over their trained tokens, the mean |log-ratio|, and the smallest residuals."""
    stored, mask, right = getattr(batch, answer.field), batch.trained_mask(), answer.right
    known = mask & right.isfinite()
    expected: dict = {}
    found: dict = {}
    rows = [row for row in _rows(answer, batch) or range(len(mask)) if known[row].any()]
    for row in rows[:SHOWN_ROWS]:
        expected[f"{answer.field}[{row}]"] = right[row][known[row]].tolist()
        found[f"{answer.field}[{row}]"] = stored[row][known[row]].tolist()
    expected["mean_abs_log_ratio"] = 0.0
    found["mean_abs_log_ratio"] = answer.residual("right")
    found["mean_ratio"] = float((right - stored)[known].exp().nanmean())
    found["cause"] = answer.cause or "none"
    found["residuals"] = {row.name: row.mean_abs for row in answer.table[:SHOWN_RESIDUALS]}
    return expected, found


def _gaps(answer: Explained, batch: Batch) -> Tensor:
    """[B T] |stored - right| over trained tokens, 0 elsewhere."""
    gap = (getattr(batch, answer.field) - answer.right).abs()
    return torch.where(batch.trained_mask() & gap.isfinite(), gap, 0.0)


def _rows(answer: Explained, batch: Batch) -> tuple[int, ...]:
    """The rows that the mistake touches; () where it is all of them."""
    touched = _gaps(answer, batch).amax(1) > 5 * EXACT
    whole = not (batch.trained_mask().any(1) & ~touched).any()
    return () if whole else tuple(touched.nonzero().flatten().tolist())


def _worst(answer: Explained, batch: Batch) -> tuple[tuple[int, int], ...]:
    gaps, positions = _gaps(answer, batch), batch.token_positions()
    values, places = gaps.flatten().topk(min(SHOWN_TOKENS, gaps.numel()))
    width = gaps.shape[1]
    return tuple(
        (place // width, int(positions[place % width])) for value, place in zip(values.tolist(), places.tolist(), strict=True)
        if value > 5 * EXACT
    )  # fmt: skip
