"""Checks on metrics that the trainer printed: clip fraction, KL and gradient norm against what the batch gives."""

from torch import Tensor

from ..kl import KL
from .finding import Evidence, Finding
from .printed import misread
from .reading import off_by, rows_at, tokens_at
from .whatif import agrees, evaluation, masked_mean, number


def printed_clip_fraction(evidence: Evidence) -> list[Finding]:
    """The printed clip fraction is the share of trained tokens that clipping leaves without a gradient."""
    batch, printed = evidence.batch, number(evidence.batch.reported.get("clip_fraction"))
    bounds = all(evidence.settings.get(name) is not None for name in ("clip_low", "clip_high"))
    got = evaluation(evidence, aggregation="token-mean") if printed is not None and bounds and evidence.trace is None else None
    if got is None or printed is None or got.convention.surrogate not in ("min-clip", "dual-clip", "two-sided"):
        return []
    mask = batch.trained_mask()
    right = masked_mean(got.terms.is_clipped.double(), mask)
    single = masked_mean(_clipped(evidence, surrogate="min-clip"), mask)
    if agrees(printed, right) or agrees(printed, single):
        return []
    outside = mask & ((got.terms.ratio - 1 > got.convention.clip_high) | (1 - got.terms.ratio > got.convention.clip_low))
    others = {
        "every ratio outside the bounds, whatever the sign of A": masked_mean(outside.double(), mask),
        "a mean over all slots, masked ones too": float((got.terms.is_clipped & mask).double().mean()),
        "every ratio outside the bounds, over all slots": float(outside.double().mean()),
    }
    name = next((f": it is {name}" for name, value in others.items() if agrees(printed, value)), "")
    if (
        not name
        and "ratio" not in evidence.settings.said
        and agrees(printed, masked_mean(_clipped(evidence, ratio="sequence"), mask))
    ):
        return []  # the ratio of whole rows, which nobody said
    return [
        Finding(
            check="clip_fraction_by_gradient", severity="warning", quantity="reported.clip_fraction",
            tokens=tokens_at(batch, got.terms.is_clipped & mask), rows=rows_at(got.terms.is_clipped & mask),
            message=f"The printed clip fraction is {printed:.6g}; clipping leaves {right:.6g} of the trained tokens without a "
            f"gradient{name}.",
            fix="A token is clipped where ratio > 1 + high and A > 0, or ratio < 1 - low and A < 0; average over the mask.",
            expected={"clip_fraction": right}, found={"clip_fraction": printed},
        )
    ]  # fmt: skip


def _clipped(evidence: Evidence, **settings: object) -> Tensor:
    """Which tokens are clipped [B T] with another setting, as 0 and 1."""
    got = evaluation(evidence, None, None, **({"aggregation": "token-mean"} | settings))
    assert got is not None
    return got.terms.is_clipped.double()


def printed_kl_estimator(evidence: Evidence) -> list[Finding]:
    """The printed KL is the mean of the named estimator, policy against reference."""
    batch, printed, named = evidence.batch, number(evidence.batch.reported.get("kl")), evidence.settings.get("kl_estimator")
    if printed is None or evidence.trace is not None or not abs(printed) < float("inf") or named not in KL:
        return []
    assert batch.policy_logprobs is not None and batch.ref_logprobs is not None
    mask, x = batch.trained_mask(), off_by(batch.policy_logprobs, batch.ref_logprobs, batch.trained_mask())
    right = masked_mean(KL[named](x), mask)
    if abs(printed - right) <= 0.02 * abs(right) + 1e-6 or evidence.settings.convention.kl_gradient != "plain":
        return []
    others = {f"the mean of {name}": masked_mean(KL[name](x), mask) for name in KL if name != named}
    others |= {f"the mean of {name} of the reference against the policy": masked_mean(KL[name](-x), mask) for name in KL}
    if batch.old_logprobs is not None:
        to_old = off_by(batch.policy_logprobs, batch.old_logprobs, mask)
        others |= {f"the mean of {name} against old, not the reference": masked_mean(KL[name](to_old), mask) for name in KL}
    name = next((name for name, value in others.items() if agrees(printed, value)), None)
    if name is None:
        return []  # over other slots: `padding_invariance`; or of something that the file does not hold
    return [
        Finding(
            check="kl_metric", severity="warning", quantity="reported.kl",
            message=f"The printed KL {printed:.6g} is {name}; the mean of {named} over the trained tokens is {right:.6g}.",
            fix="Print the estimator that the loss uses, policy against reference, over the loss's mask.",
            expected={"kl": right}, found={"kl": printed},
        )
    ]  # fmt: skip


def kl_outliers_not_sampled(evidence: Evidence) -> list[Finding]:
    """Tokens that the policy did not sample have no place in a KL estimate: their log-ratios are no samples."""
    batch = evidence.batch
    assert batch.tool_mask is not None
    trained = batch.trained_mask()
    for one in misread(batch, evidence.settings):
        written = one.mask & ~trained & ~batch.tool_mask
        if one.name != "kl" or not written.any() or (one.mask & ~trained & batch.tool_mask).any():
            continue
        share = 1 - one.right * int(trained.sum()) / (one.printed * int(one.mask.sum())) if one.printed else 0.0
        return [
            Finding(
                check="kl_outliers_not_sampled", severity="error", quantity="reported.kl", rows=rows_at(written),
                tokens=tokens_at(batch, written),
                message=f"{int(written.sum())} tokens that a tool wrote make {share:.1%} of the printed KL {one.printed:.6g}; "
                f"over the trained tokens it is {one.right:.6g}.",
                fix="Take the KL over the loss's mask, as the policy part.",
                expected={"kl": one.right}, found={"kl": one.printed, "share": share},
            )
        ]  # fmt: skip
    return []


def requires_grad(evidence: Evidence) -> list[Finding]:
    """A loss with something to learn has a gradient."""
    norm, got = number(evidence.batch.reported.get("grad_norm")), evaluation(evidence, aggregation="token-mean")
    if norm != 0.0 or got is None or evidence.trace is not None or not float(got.grad.double().norm()) > 1e-6:
        return []
    return [
        Finding(
            check="requires_grad", severity="error", quantity="reported.grad_norm",
            message=f"The printed gradient norm is 0, while d loss / d log-prob has the norm "
            f"{float(got.grad.double().norm()):.4g}.",
            fix="Look for a forward pass under no_grad, log-probs that were detached, or frozen parameters.",
            expected={"grad_policy_logprobs_norm": float(got.grad.double().norm())}, found={"grad_norm": 0.0},
        )
    ]  # fmt: skip
