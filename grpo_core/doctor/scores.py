"""Checks on log-probs: shift, gather, the sampler against the trainer, ratio and KL."""

import torch
from torch import Tensor

from .finding import Evidence, Finding
from .tokens import places

SAMPLER_TOLERANCE = 1e-3  # nats, fp32; a cached and a full forward pass differ by rounding only
RATIO_TOLERANCE = 1e-5


def _sampler(evidence: Evidence) -> Tensor:
    sampler = evidence.trace.batch.sampler_logprobs
    assert sampler is not None  # a traced step's batch has them
    return sampler


def sampler_logprobs_match(evidence: Evidence) -> list[Finding]:
    """What the sampler recorded equals what the same weights give when they score the finished row."""
    batch, old = evidence.trace.batch, evidence.trace.old_logprobs
    mask = batch.trained_mask()
    gap = torch.where(mask, (old - _sampler(evidence)).abs(), 0.0)
    wrong = mask & ~(gap <= SAMPLER_TOLERANCE)
    if not wrong.any():
        return []
    tokens = places(wrong, batch.token_positions())
    return [
        Finding(
            check="sampler_logprobs_match", severity="error", quantity="sampler_logprobs", tokens=tokens,
            rows=tuple(sorted({row for row, _ in tokens})),
            message=f"{len(tokens)} of {int(mask.sum())} tokens: sampler and trainer differ, by up to {gap.max():.4g} nats.",
            fix="Compare temperature, shift, position ids and weights of the two.",
            expected={"gap": SAMPLER_TOLERANCE}, found={"gap": float(gap.max())},
        )
    ]  # fmt: skip


def _gap_at_offset(old: Tensor, sampler: Tensor, mask: Tensor, offset: int) -> float:
    """Mean |old[t + offset] - sampler[t]| over tokens that have both."""
    shifted, both = old.roll(-offset, 1), mask & mask.roll(-offset, 1)
    both[:, -1 if offset > 0 else 0] &= offset == 0
    return float((shifted - sampler).abs()[both].mean()) if both.any() else float("inf")


def shift_probe(evidence: Evidence) -> list[Finding]:
    """Of the alignments -1, 0, +1 between the trainer's log-probs and the sampler's, 0 fits best."""
    batch, old = evidence.trace.batch, evidence.trace.old_logprobs
    gaps = {o: _gap_at_offset(old, _sampler(evidence), batch.trained_mask(), o) for o in (-1, 0, 1)}
    best = min(gaps, key=lambda offset: (gaps[offset], abs(offset)))
    if best == 0:
        return []
    return [
        Finding(
            check="shift_probe", severity="error", quantity="policy_logprobs",
            message=f"Log-probs fit the sampler's best one token off ({best:+d}): {gaps[best]:.4g} against {gaps[0]:.4g} nats.",
            fix="The logits at position t predict token t+1: logits[:, :-1] goes with ids[:, 1:], and so does the mask.",
            expected={"offset": 0}, found={"offset": best},
        )
    ]  # fmt: skip


def probabilities_sum(evidence: Evidence) -> list[Finding]:
    """The selected row's probabilities sum to 1."""
    assert evidence.row is not None
    total = float(evidence.row.probs.double().sum())
    if abs(total - 1) <= 1e-4:
        return []
    return [
        Finding(
            check="probabilities_sum", severity="error", quantity="probs",
            message=f"The probabilities of this row sum to {total:.4f}: they are not a distribution.",
            fix="Take log_softmax over the vocabulary axis of the raw logits.",
            expected={"sum": 1.0}, found={"sum": total},
        )
    ]  # fmt: skip


def gather_matches_sampler(evidence: Evidence) -> list[Finding]:
    """The cell that gather picked in the selected row is the number that the step used (and, at first, the sampler's)."""
    assert evidence.token is not None and evidence.row is not None
    row, column = evidence.token
    gathered, used = float(evidence.row.logprob), float(evidence.step.terms.policy_logprobs[row, column])
    others = {"policy_logprobs": used}
    if evidence.update == 0:
        others["sampler_logprobs"] = float(_sampler(evidence)[row, column])
    tolerance = max(SAMPLER_TOLERANCE, 1e-5 * abs(gathered))  # where weights have run away, log-probs are in the thousands
    wrong = {name: value for name, value in others.items() if not abs(value - gathered) <= tolerance}
    if not wrong:
        return []
    name, value = next(iter(wrong.items()))
    return [
        Finding(
            check="gather_matches_sampler", severity="error", quantity=name, rows=(row,),
            tokens=((row, int(evidence.trace.batch.token_positions()[column])),),
            message=f"Gather picks {gathered:.4f} from this row, {name} has {value:.4f}.",
            fix="Index with the id of the token that the row predicts, not the one that stands at the row.",
            expected={name: gathered}, found={name: value},
        )
    ]  # fmt: skip


def ratio_first_step(evidence: Evidence) -> list[Finding]:
    """On the first update policy and old are the same weights: every ratio is 1."""
    mask, batch = evidence.trace.batch.trained_mask(), evidence.trace.batch
    ratio = evidence.step.terms.ratio
    gap = torch.where(mask, (ratio - 1).abs(), 0.0)
    if evidence.update > 0:
        return []
    # A cached and a full forward pass differ by rounding: a ratio against the sampler is not exactly 1.
    tolerance = RATIO_TOLERANCE if evidence.trace.recipe.ratio_against == "old" else SAMPLER_TOLERANCE
    wrong = mask & ~(gap <= tolerance)
    if not wrong.any():
        return []
    tokens = places(wrong, batch.token_positions())
    return [
        Finding(
            check="ratio_first_step", severity="error", quantity="ratio", tokens=tokens,
            rows=tuple(sorted({row for row, _ in tokens})),
            message=f"No weight has moved yet, but {len(tokens)} ratios are not 1 (by up to {gap.max():.4g}).",
            fix="Score old and policy in one way: temperature, dtype, masks, and no dropout.",
            expected={"max_gap": 0.0}, found={"max_gap": float(gap.max())},
        )
    ]  # fmt: skip


def kl_nonnegative(evidence: Evidence) -> list[Finding]:
    """k2, k3 and abs are never negative. k1 may be, token by token: that is right, and said."""
    name, batch = evidence.trace.recipe.kl_estimator, evidence.trace.batch
    negative = batch.trained_mask() & ~(evidence.step.terms.kl >= -1e-6)
    if not negative.any():
        return []
    tokens = places(negative, batch.token_positions())
    right = name == "k1"
    said = "right for k1: single samples may be, only their mean estimates the KL" if right else f"{name} cannot be"
    return [
        Finding(
            check="kl_nonnegative", severity="info" if right else "error", quantity="kl", tokens=tokens,
            message=f"The KL of {len(tokens)} tokens is negative; {said}.",
            fix="" if right else "k3 is exp(ref - policy) - (ref - policy) - 1; look at the order of the two.",
            expected={"min": 0.0}, found={"min": float(evidence.step.terms.kl[batch.trained_mask()].min())},
        )
    ]  # fmt: skip


def kl_step0_zero(evidence: Evidence) -> list[Finding]:
    """On the first update of a fresh run the policy is the reference: the KL is 0."""
    if evidence.update > 0:
        return []
    mask = evidence.trace.batch.trained_mask()
    largest = float(evidence.step.terms.kl[mask].abs().max()) if mask.any() else 0.0
    if largest <= 1e-4:
        return []
    return [
        Finding(
            check="kl_step0_zero", severity="warning", quantity="kl",
            message=f"Before the first update the KL to the reference reaches {largest:.4g}.",
            fix="If the run is fresh, reference and policy are not scored alike (temperature, dtype, other weights).",
            expected={"max": 0.0}, found={"max": largest},
        )
    ]  # fmt: skip
