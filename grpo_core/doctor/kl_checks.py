"""Checks on the KL to the reference: is it 0 at the start, can it be computed, and does it pull where it should?"""

import torch
from torch import Tensor

from ..closed_forms import kl_logprob_grad, policy_logprob_grad
from ..kl import KL
from .finding import Evidence, Finding
from .reading import off_by, rows_at, tokens_at
from .whatif import evaluation, masked_mean

FRESH_MAX = 1e-4  # nats; at step 0 policy and reference are the same weights
FAR_MEAN = 0.2  # nats; a policy that has been trained for a while is some hundredths away
RANGE = {"float16": (8.0, 11.0)}  # exp(11.09) overflows fp16, exp(88.7) fp32 and bf16
RANGE_ELSE = (20.0, 80.0)
CLAMPED_AT = 10.0


def _kl(evidence: Evidence) -> Tensor:
    """The batch's estimator, k3 where none is named, on the trained tokens; 0 elsewhere."""
    batch = evidence.batch
    assert batch.policy_logprobs is not None and batch.ref_logprobs is not None
    return KL[evidence.settings.get("kl_estimator") or "k3"](
        off_by(batch.policy_logprobs, batch.ref_logprobs, batch.trained_mask())
    )


def kl_nonnegative(evidence: Evidence) -> list[Finding]:
    """k2, k3 and abs are never negative. k1 may be, token by token: that is right, and said."""
    name, batch = evidence.settings.convention.kl_estimator, evidence.batch
    negative = batch.trained_mask() & ~(evidence.step.terms.kl >= -1e-6)
    if not negative.any():
        return []
    tokens = tokens_at(batch, negative)
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
    """At the start of a run the policy is the reference: the KL is 0. Later it is not, and nobody is to blame."""
    batch, mask = evidence.batch, evidence.batch.trained_mask()
    step, kl = batch.meta.get("step"), _kl(evidence) if evidence.trace is None else evidence.step.terms.kl
    if not mask.any() or not (step == 0 or evidence.first_update) or (step or 0) > 0:
        return []
    mean, largest = masked_mean(kl, mask), float(kl.abs().max())
    fresh = step == 0 or evidence.trace is not None
    if (largest <= FRESH_MAX) if fresh else (mean <= FAR_MEAN):
        return []
    assert batch.policy_logprobs is not None and batch.ref_logprobs is not None
    apart = float(off_by(batch.policy_logprobs, batch.ref_logprobs, mask).abs().max())
    start = "At step 0 of the run" if fresh else "Before any update on this rollout"
    return [
        Finding(
            check="kl_step0_zero", severity="warning", quantity="ref_logprobs",
            message=f"{start} the KL to the reference is {mean:.4g} on average, {largest:.4g} at most"
            f"{'' if fresh else '; if this is the first step of the run, the reference is not what the run started from'}.",
            fix="Look at what the reference is: adapter off or on, dtype, dropout, temperature, other weights.",
            expected={"kl_mean": 0.0}, found={"kl_mean": mean, "max_abs_log_ratio_to_ref": apart},
        )
    ]  # fmt: skip


def reference_is_policy(evidence: Evidence) -> list[Finding]:
    """The reference does not move with the policy."""
    batch, mask = evidence.batch, evidence.batch.trained_mask()
    assert batch.policy_logprobs is not None and batch.ref_logprobs is not None
    counts = [batch.meta.get(name) for name in ("iteration", "step")]
    after = max((count for count in counts if isinstance(count, int) and not isinstance(count, bool)), default=0)
    same = bool((batch.policy_logprobs == batch.ref_logprobs)[mask].all()) and bool(mask.any())
    old = batch.old_logprobs
    moved = old is not None and float(off_by(batch.policy_logprobs, old, mask).abs().max()) > 1e-6
    if not same or after == 0 or evidence.trace is not None or batch.meta.get("beta") == 0:
        return []
    if (counts[0] or 0) > 0 and old is not None and not moved:
        return []  # no weight has moved at all: `ratio_identically_one`
    return [
        Finding(
            check="reference_is_policy", severity="error", quantity="ref_logprobs",
            message=f"After {after} updates ref_logprobs equal policy_logprobs to the last digit on {int(mask.sum())} tokens: "
            "the KL is exactly 0, the reference shares the policy's weights.",
            fix="Copy the reference's weights before the first update, or switch the adapter off to score it.",
            expected={"kl_mean": "> 0"}, found={"kl_mean": 0.0, "updates": after},
        )
    ]  # fmt: skip


def kl_logratio_range(evidence: Evidence) -> list[Finding]:
    """exp(ref - policy) stays inside the numbers of its dtype."""
    batch, mask = evidence.batch, evidence.batch.trained_mask()
    assert batch.policy_logprobs is not None and batch.ref_logprobs is not None
    if (evidence.settings.get("kl_estimator") or "k3") != "k3" or batch.meta.get("beta") == 0:
        return []  # only k3 takes the exponential
    apart = -off_by(batch.policy_logprobs, batch.ref_logprobs, mask)
    far, over = RANGE.get(str(batch.meta.get("dtype")), RANGE_ELSE)
    findings = []
    for severity, wrong in (("error", apart > over), ("warning", (apart > far) & (apart <= over))):
        if not wrong.any():
            continue
        largest = float(apart[wrong].max())
        findings.append(
            Finding(
                check="kl_logratio_range", severity=severity, quantity="ref_logprobs", rows=rows_at(wrong),
                tokens=tokens_at(batch, wrong),
                message=f"At {int(wrong.sum())} tokens the reference is up to {largest:.4g} nats above the policy: "
                f"k3 is exp({largest:.4g}) there{', an overflow' if severity == 'error' else ''}.",
                fix=f"Clamp the difference before the exponential (at {CLAMPED_AT:g} here), not the result behind it.",
                expected={
                    "k3_clamped_before_at_10": float(KL["k3"](torch.tensor(-CLAMPED_AT))), "gradient_clamped_before": 0.0,
                },
                found={"log_ratio": largest, "k3_float32": float(KL["k3"](torch.tensor(-largest)))},
            )
        )  # fmt: skip
    return findings


def kl_has_grad(evidence: Evidence) -> list[Finding]:
    """The KL in the loss reaches the gradient."""
    assert evidence.trace is not None
    beta, policy = evidence.trace.recipe.beta, policy_logprob_grad(evidence.trace, evidence.update)
    pull = kl_logprob_grad(evidence.trace, evidence.update)
    if not beta or policy is None or not pull.isfinite().all() or float(pull.abs().max()) <= 1e-4 * float(policy.abs().max()):
        return []
    found = evidence.step.logprob_grad
    if not torch.allclose(found, policy, rtol=1e-5, atol=1e-3 * float(pull.abs().max())):
        return []
    return [
        Finding(
            check="kl_has_grad", severity="error", quantity="logprob_grad",
            message=f"beta is {beta:g}, and the gradient is what it would be with beta 0.",
            fix="Take the policy's log-probs in the KL with their graph: no detach, no no_grad.",
            expected={"kl_grad_norm": float(pull.norm())}, found={"kl_grad_norm": float((found - policy).norm())},
        )
    ]  # fmt: skip


def kl_estimator_in_loss(evidence: Evidence) -> list[Finding]:
    """What the estimator's derivative pulls towards: k1's contains no reference, k2's is the reverse KL's."""
    settings, batch = evidence.settings, evidence.batch
    name, beta = settings.get("kl_estimator"), settings.get("beta")
    if (
        name not in ("k1", "k3")
        or not beta
        or settings.convention.kl_gradient != "plain"
        or batch.meta.get("kl_in") == "reward"
    ):
        return []
    mine, k2 = kl_gradient(evidence, name), kl_gradient(evidence, "k2")
    if mine is None or k2 is None or not bool(k2.abs().max() > 0):
        return []
    mask = batch.trained_mask()
    rows = (
        [[values[row][mask[row]].tolist() for row in range(len(mask))] for values in (k2, mine)] if mask.numel() <= 4096 else []
    )
    numbers = (
        [{f"kl_gradient_{est}_in_this_loss": of} for est, of in zip(("k2", name), rows, strict=True)] if rows else [{}, {}]
    )
    said, fix = _pull_of(name, mine[mask], k2)
    return [
        Finding(
            check="kl_estimator_in_loss", severity="error" if name == "k1" and not _is_asked_for(evidence) else "info",
            quantity="kl", message=f"{said}.", fix=fix,
            expected={"kl_grad_norm_k2": float(k2.double().norm())} | numbers[0],
            found={f"kl_grad_norm_{name}": float(mine.double().norm())} | numbers[1],
        )
    ]  # fmt: skip


def _pull_of(name: str, mine: Tensor, k2: Tensor) -> tuple[str, str]:
    """What the estimator's gradient does, and what to use instead."""
    if name == "k1":
        said = (
            f"k1 as a term of the loss does not pull towards the reference: each token gets beta · weight "
            f"({float(mine.abs().max()):.4g} at most) whatever the reference says, and its expectation is 0"
        )
        fix = "Use k2 (the reverse KL's gradient) or k3 (the forward KL's), or put k1 into the reward."
    else:
        said = (
            "k3 is an unbiased estimate of the reverse KL, but as a term of the loss its gradient is the forward KL's; "
            f"k2's, the reverse KL's, would be {float(k2.double().norm()):.4g} in size here, "
            f"not {float(mine.double().norm()):.4g}"
        )
        fix = ""
    return said, fix


def _is_asked_for(evidence: Evidence) -> bool:
    """A step of our own was told to do so, and the lesson on the KL shows what comes of it."""
    return evidence.trace is not None


def kl_gradient(evidence: Evidence, estimator: str) -> Tensor | None:
    """d (beta · KL part) / d log-prob [B T] with this estimator: the loss's gradient with the KL minus that without."""
    aggregation = evidence.settings.get("aggregation") or "token-mean"
    with_kl = evaluation(evidence, aggregation=aggregation, kl_estimator=estimator, kl_gradient="plain")
    without = evaluation(evidence, aggregation=aggregation, beta=0.0)
    return None if with_kl is None or without is None else with_kl.grad - without.grad
