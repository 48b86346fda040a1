"""Checks on log-probs and their ratio: sampler against trainer, one update against the last."""

import torch
from torch import Tensor

from .finding import Evidence, Finding
from .reading import off_by, rows_at, tokens_at
from .whatif import is_on_policy, loss_inputs

SAMPLER_TOLERANCE = 1e-3  # nats, fp32, one program on both sides; a cached and a full forward pass differ by rounding only
ENGINE_MEAN = 0.1  # nats; another engine's bf16 kernels differ by some hundredths on average, other weights by more
OWN_RATIO = 1e-5  # of our own step, which scores both in one way
RATIO_TOLERANCE = {"float64": 1e-6, "float32": 1e-4}  # nats, by dtype; half precision and what nobody said:
HALF_MEAN, HALF_MAX, HALF_SAID = 0.02, 0.7, 0.02  # an error from this mean or this maximum on, a warning from this maximum


def _gap(evidence: Evidence) -> Tensor:
    """|trainer - sampler| on the trained tokens; infinite where one is no number."""
    batch, mask = evidence.batch, evidence.batch.trained_mask()
    old = batch.old_logprobs if batch.old_logprobs is not None else batch.policy_logprobs
    assert old is not None and batch.sampler_logprobs is not None
    gap = (old - batch.sampler_logprobs).abs()
    return torch.where(mask, torch.where(gap.isnan(), torch.inf, gap), 0.0)


def sampler_logprobs_match(evidence: Evidence) -> list[Finding]:
    """What the sampler recorded equals what the same weights give when they score the finished row.

    Our own step must reach that to rounding. Another engine computes in its own way: there only a mean that no rounding
    reaches is held against it, and only before the first update.
    """
    batch, mask, gap = evidence.batch, evidence.batch.trained_mask(), _gap(evidence)
    if not mask.any() or not (evidence.trace is not None or evidence.first_update):
        return []
    ours = evidence.trace is not None
    wrong = mask & (gap > (SAMPLER_TOLERANCE if ours else ENGINE_MEAN))
    mean = float(gap[mask].mean())
    if not wrong.any() or not (ours or (mean > ENGINE_MEAN and mean < torch.inf) or _rows_off(gap, mask)):
        return []
    if not ours and _kept_mass(evidence, mask):
        return []  # `truncated_support_bias`
    rows = rows_at(wrong)
    return [
        Finding(
            check="sampler_logprobs_match", severity="error", quantity="sampler_logprobs", rows=rows,
            tokens=tokens_at(batch, wrong),
            message=f"{int(wrong.sum())} of {int(mask.sum())} tokens: sampler and trainer differ, by {mean:.3g} nats on "
            f"average and up to {float(gap.max()):.4g}.",
            fix="Compare temperature, shift, position ids, prompts and weights of the two.",
            expected={"mean_abs_log_ratio": 0.0}, found={"mean_abs_log_ratio": mean, "max_abs_log_ratio": float(gap.max())},
        )
    ]  # fmt: skip


def _rows_off(gap: Tensor, mask: Tensor) -> bool:
    """Whether single rows are far off while others agree: other contexts, not other kernels."""
    means = gap.sum(1)[mask.any(1)] / mask.sum(1)[mask.any(1)]
    return bool((means > 3 * ENGINE_MEAN).any()) and bool((means < ENGINE_MEAN / 10).any()) and bool(gap.isfinite().all())


def _kept_mass(evidence: Evidence, mask: Tensor) -> bool:
    """Whether the sampler looks renormalised over the tokens that top-p or top-k kept: higher everywhere, as it may be."""
    batch, meta = evidence.batch, evidence.batch.meta
    old = batch.old_logprobs if batch.old_logprobs is not None else batch.policy_logprobs
    assert old is not None and batch.sampler_logprobs is not None
    cut = (meta.get("top_p") or 1.0) < 1.0 or (meta.get("top_k") or 0) > 0 or (meta.get("min_p") or 0.0) > 0
    return cut and bool((batch.sampler_logprobs[mask] >= old[mask] - 1e-3).all())


def _gap_at_offset(old: Tensor, sampler: Tensor, mask: Tensor, offset: int) -> float:
    """Mean |old[t + offset] - sampler[t]| over tokens that have both."""
    shifted, both = old.roll(-offset, 1), mask & mask.roll(-offset, 1)
    both[:, -1 if offset > 0 else 0] &= offset == 0
    return float((shifted - sampler).abs()[both].mean()) if both.any() else float("inf")


def sampler_offset(evidence: Evidence) -> list[Finding]:
    """Of the alignments -1, 0, +1 between the trainer's log-probs and the sampler's, 0 fits best."""
    batch = evidence.batch
    assert batch.old_logprobs is not None and batch.sampler_logprobs is not None
    gaps = {o: _gap_at_offset(batch.old_logprobs, batch.sampler_logprobs, batch.trained_mask(), o) for o in (-1, 0, 1)}
    best = min(gaps, key=lambda offset: (gaps[offset], abs(offset)))
    if best == 0 or (evidence.trace is None and not gaps[best] < 0.1 * gaps[0]):
        return []  # of two that fit badly one is nearer by chance
    return [
        Finding(
            check="shift_probe", severity="error", quantity="sampler_logprobs",
            message=f"Log-probs fit the sampler's best one token off ({best:+d}): {gaps[best]:.4g} against {gaps[0]:.4g} nats.",
            fix="The logits at position t predict token t+1: logits[:, :-1] goes with ids[:, 1:], and so does the mask.",
            expected={"best_offset": 0}, found={"best_offset": best},
        )
    ]  # fmt: skip


def ratio_first_step(evidence: Evidence) -> list[Finding]:
    """Before the first update policy and old are the same weights: every ratio is 1, up to what the precision loses."""
    if evidence.trace is not None:
        return _ratio_of_the_step(evidence)
    batch, mask = evidence.batch, evidence.batch.trained_mask()
    assert batch.policy_logprobs is not None and batch.old_logprobs is not None
    if not evidence.first_update or not mask.any():
        return []
    log_ratio = off_by(batch.policy_logprobs, batch.old_logprobs, mask)
    gap, mean = log_ratio.abs(), float(log_ratio.abs()[mask].mean())
    largest, limit = float(gap.max()), RATIO_TOLERANCE.get(str(batch.meta.get("dtype")))
    if limit is not None:
        severity = "error" if largest > limit else ""
    else:
        far = mean > HALF_MEAN or largest > HALF_MAX
        severity, limit = "error" if far else "warning" if largest > HALF_SAID else "", HALF_SAID
    if not severity:
        return []
    wrong = gap > limit
    row, column = divmod(int(gap.argmax()), gap.shape[1])
    numbers = {"mean_abs_log_ratio": mean, "max_abs_log_ratio": largest}
    return [
        Finding(
            check="ratio_first_step", severity=severity, quantity="old_logprobs", rows=rows_at(wrong),
            tokens=tokens_at(batch, wrong),
            message=f"No weight has moved yet, but {int(wrong.sum())} ratios are not 1: |log ratio| is {mean:.4g} on average, "
            f"{largest:.4g} at most (row {row}, column {column}){_signs(log_ratio[mask])}.",
            fix="Score old and policy in one way: temperature, dtype, batch shape, masks, and no dropout.",
            expected=dict.fromkeys(numbers, 0.0), found=numbers,
        )
    ]  # fmt: skip


def _ratio_of_the_step(evidence: Evidence) -> list[Finding]:
    assert evidence.trace is not None
    mask = evidence.batch.trained_mask()
    gap = torch.where(mask, (evidence.step.terms.ratio - 1).abs(), 0.0)
    # A cached and a full forward pass differ by rounding: a ratio against the sampler is not exactly 1.
    tolerance = OWN_RATIO if evidence.trace.recipe.ratio_against == "old" else SAMPLER_TOLERANCE
    wrong = mask & ~(gap <= tolerance)
    if evidence.update > 0 or not wrong.any():
        return []
    return [
        Finding(
            check="ratio_first_step", severity="error", quantity="ratio", tokens=tokens_at(evidence.batch, wrong),
            rows=rows_at(wrong),
            message=f"No weight has moved yet, but {int(wrong.sum())} ratios are not 1 (by up to {gap.max():.4g}).",
            fix="Score old and policy in one way: temperature, dtype, masks, and no dropout.",
            expected={"max_gap": 0.0}, found={"max_gap": float(gap.max())},
        )
    ]  # fmt: skip


def _signs(log_ratio: Tensor) -> str:
    up = float((log_ratio > 0).double().mean())
    return ", of either sign: precision or dropout" if 0.2 < up < 0.8 else f", {max(up, 1 - up):.0%} of them of one sign"


def old_equals_ref(evidence: Evidence) -> list[Finding]:
    """The ratio's denominator is the policy at the start of the update, not the reference."""
    batch, mask = evidence.batch, evidence.batch.trained_mask()
    assert batch.policy_logprobs is not None and batch.old_logprobs is not None and batch.ref_logprobs is not None
    same = bool((batch.old_logprobs == batch.ref_logprobs)[mask].all())
    gap = off_by(batch.policy_logprobs, batch.old_logprobs, mask).abs()
    if not evidence.first_update or not mask.any() or not same or float(gap.max()) <= HALF_SAID or batch.meta.get("step") == 0:
        return []  # at the start of a run old and reference are the same weights
    if (
        batch.sampler_logprobs is not None
        and float(off_by(batch.sampler_logprobs, batch.old_logprobs, mask).abs().max()) < HALF_SAID
    ):
        return []  # old is what sampled: the policy is what is off
    numbers = {"mean_abs_log_ratio": float(gap[mask].mean()), "max_abs_log_ratio": float(gap.max())}
    return [
        Finding(
            check="old_equals_ref", severity="error", quantity="old_logprobs",
            message="old_logprobs are the reference's to the last digit, while the policy, which has not moved since sampling, "
            f"is {numbers['mean_abs_log_ratio']:.4g} nats away.",
            fix="Score old with the policy at the start of the update; the reference only enters the KL.",
            expected=dict.fromkeys(numbers, 0.0), found=numbers,
        )
    ]  # fmt: skip


def ratio_identically_one(evidence: Evidence) -> list[Finding]:
    """Ratio exactly 1: right before the first update, suspicious when updates have been made since."""
    count, clip = evidence.batch.meta.get("iteration"), evidence.batch.reported.get("clip_fraction")
    inputs = loss_inputs(evidence)
    if inputs is None or inputs.old_logprobs is None or not is_on_policy(evidence) or evidence.trace is not None:
        return []
    if evidence.first_update:
        severity, said = "info", "right before the first update: policy and old are the same weights, and clipping cannot act"
    elif isinstance(count, int) and count > 0:
        severity, said = (
            "warning",
            f"after {count} updates on this rollout: the weights have not moved, or old was scored again",
        )
    else:
        return []
    return [
        Finding(
            check="ratio_identically_one", severity=severity, quantity="ratio",
            message=f"The ratio is 1 on all {int(inputs.mask.sum())} trained tokens; {said}.",
            fix="" if severity == "info" else "Keep the first pass's log-probs as old; look at learning rate and gradient.",
            expected={"ratio": 1.0, "clip_fraction": 0.0} if severity == "info" else {},
            found={"ratio": 1.0} | ({} if clip is None else {"clip_fraction": clip}),
        )
    ]  # fmt: skip


def stale_iteration(evidence: Evidence) -> list[Finding]:
    """After an update on the rollout the policy differs from the one that sampled it."""
    batch, count = evidence.batch, evidence.batch.meta.get("iteration")
    if not isinstance(count, int) or count < 1 or evidence.trace is not None or batch.sampler_logprobs is None:
        return []
    policy, mask = batch.policy_logprobs, batch.trained_mask()
    assert policy is not None
    same = policy if batch.old_logprobs is None else batch.old_logprobs
    if not mask.any() or not bool((policy == same)[mask].all()) or not bool((policy == batch.sampler_logprobs)[mask].all()):
        return []
    return [
        Finding(
            check="stale_iteration", severity="warning", quantity="policy_logprobs",
            message=f"{count} updates were made on this rollout and no log-prob has moved from what the sampler said.",
            fix="See whether the optimizer steps at all: learning rate, gradient, frozen parameters, the engine's weight sync.",
            found={"max_abs_log_ratio": 0.0, "iteration": count},
        )
    ]  # fmt: skip
