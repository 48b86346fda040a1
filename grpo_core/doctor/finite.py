"""Checks for numbers that are none, and for markers that stand in for numbers."""

import torch
from torch import Tensor

from ..batch import Batch
from ..logprobs import log_softmax, row_entropy
from .finding import Evidence, Finding
from .reading import LOGPROBS, rows_at, tokens_at
from .whatif import evaluation, masked_mean, number

SENTINEL = 1e6  # nats; no log-prob of a sampled token is as small
ABOVE_ZERO = 1e-4  # what bf16 rounding can put on top of a log-prob of 0


def logprob_positive(evidence: Evidence) -> list[Finding]:
    """A log-prob is at most 0 and never a million: in every slot, masked ones too, since a marker there enters what forgets
    the mask."""
    batch, findings = evidence.batch, []
    for name in LOGPROBS:
        values = getattr(batch, name)
        if values is None:
            continue
        wrong = values.isfinite() & ((values > ABOVE_ZERO) | (values.abs() > SENTINEL))
        tokens = tokens_at(batch, wrong)
        if not tokens or any(set(tokens) == set(other.tokens) for other in findings):
            continue
        marked, masked = values[wrong], int((wrong & ~batch.trained_mask()).sum())
        kind = (
            f"the marker {float(marked[0]):g}"
            if bool((marked == marked[0]).all())
            else f"up to {float(marked.abs().max()):.4g}"
        )
        findings.append(
            Finding(
                check="logprob_positive", severity="error", quantity=name, rows=rows_at(wrong), tokens=tokens,
                message=f"{len(tokens)} slots of {name} hold {kind}, which is no log-prob; {masked} of them are masked.",
                fix="Fill masked slots with 0 and select by the mask; metrics average over the mask only.",
                expected={"max": 0.0} | _entropy(evidence, name),
                found={"value": float(marked[0])} | _printed_entropy(evidence),
            )
        )  # fmt: skip
    return findings


def _entropy(evidence: Evidence, name: str) -> dict[str, float]:
    """The entropy estimate -log p over the trained tokens, where an entropy was printed."""
    values, mask = getattr(evidence.batch, name), evidence.batch.trained_mask()
    return {"entropy_estimate": -masked_mean(values, mask)} if "entropy" in evidence.batch.reported else {}


def _printed_entropy(evidence: Evidence) -> dict[str, float]:
    printed = number(evidence.batch.reported.get("entropy"))
    return {} if printed is None else {"entropy_estimate": printed}


def rollout_logprob_finite(evidence: Evidence) -> list[Finding]:
    """Every trained token has a finite log-prob under every policy."""
    batch, findings = evidence.batch, []
    for name in LOGPROBS:
        values = getattr(batch, name)
        if values is None or values[batch.trained_mask()].isfinite().all():
            continue
        wrong = batch.trained_mask() & ~values.isfinite()
        tokens, rows = tokens_at(batch, wrong), rows_at(wrong)
        kept = batch.trained_mask() & ~wrong
        got = evaluation(evidence, kept)
        findings.append(
            Finding(
                check="rollout_logprob_finite", severity="error", quantity=name, rows=rows, tokens=tokens,
                message=f"{name} is {float(values[wrong][0])} at {len(tokens)} trained tokens, first row {tokens[0][0]}.",
                fix="Ask the engine for the log-prob of the sampled token; train no token without one.",
                expected={name: "finite"} | ({} if got is None else {"loss": got.loss}),
                found={name: values[wrong][:8].tolist()},
            )
        )  # fmt: skip
    return findings


def nonfinite_under_mask0(evidence: Evidence) -> list[Finding]:
    """Masked slots are never read: but a NaN there survives a multiplication with the mask."""
    batch, findings = evidence.batch, []
    for name in (*LOGPROBS, "entropy", "advantages"):
        values = getattr(batch, name)
        if values is None or values.shape != batch.trained_mask().shape:
            continue
        wrong = ~batch.trained_mask() & ~values.isfinite()
        if not wrong.any():
            continue
        tokens, got = tokens_at(batch, wrong), evaluation(evidence)
        right = {} if got is None else {"loss": got.loss, "grad_policy_logprobs": got.grad}
        findings.append(
            Finding(
                check="nonfinite_under_mask0", severity="warning", quantity=name, rows=rows_at(wrong), tokens=tokens,
                message=f"{len(tokens)} masked slots of {name} are not finite, the first {float(values[wrong][0])}: "
                "times a mask of 0 that is NaN.",
                fix="Select with torch.where(mask, values, 0) before the first operation; do not multiply.",
                expected=right, found={name: values[wrong][:8].tolist()},
            )
        )  # fmt: skip
    return findings


def entropy_finite(evidence: Evidence) -> list[Finding]:
    """The entropy of a row of logits with a -inf in it is finite: p log p is 0 there."""
    batch, mask = evidence.batch, evidence.batch.trained_mask()
    wrong, said = torch.zeros_like(mask), []
    if batch.entropy is not None and not batch.entropy[mask].isfinite().all():
        wrong |= mask & ~batch.entropy.isfinite()
        said.append("the entropy is not finite")
    if batch.logits is not None:
        rows = (~batch.logits.isfinite()).any(2)[:, batch.token_positions() - 1]
        if (rows & mask).any():
            wrong |= rows & mask
            said.append("logits are not finite")
    printed = batch.reported.get("entropy")
    if isinstance(printed, float) and printed != printed:
        said.append("the printed entropy is NaN")
    if not said:
        return []
    return [
        Finding(
            check="entropy_finite", severity="warning", quantity="entropy", rows=rows_at(wrong), tokens=tokens_at(batch, wrong),
            message=f"At {int(wrong.sum())} trained tokens {' and '.join(said)}.",
            fix="Take the entropy from log_softmax, and count a probability of 0 as 0: where(p > 0, p * log p, 0).",
            expected=_finite_entropy(batch, mask), found={} if printed is None else {"entropy": printed},
        )
    ]  # fmt: skip


def _finite_entropy(batch: Batch, mask: Tensor) -> dict:
    if batch.logits is None:
        return {"entropy": "finite"}
    scored = batch.logits[:, batch.token_positions() - 1][mask].float()
    lowest = torch.finfo(scored.dtype).min / 4  # -inf without the arithmetic of infinities; its probability is 0 all the same
    logprobs = log_softmax(scored.nan_to_num(nan=lowest, neginf=lowest), float(batch.meta.get("temperature") or 1.0))
    return {"entropy": float(row_entropy(logprobs).double().mean())}


def loss_finite(evidence: Evidence) -> list[Finding]:
    """The printed loss is a number wherever the batch gives one."""
    loss, got = number(evidence.batch.reported.get("loss")), evaluation(evidence)
    if loss is None or abs(loss) < float("inf") or got is None or not abs(got.loss) < float("inf"):
        return []
    if not evidence.batch.trained_mask().any():
        return []  # `mask_nonempty`
    return [
        Finding(
            check="loss_finite", severity="error", quantity="reported.loss",
            message=f"The printed loss is {loss}; over the trained tokens of this batch it is {got.loss:.6g}.",
            fix="Select trained tokens before the first operation: 0 times NaN is NaN, as is 0 / 0 of an empty micro-batch.",
            expected={"loss": got.loss}, found={"loss": loss},
        )
    ]  # fmt: skip


def backward_finite(evidence: Evidence) -> list[Finding]:
    """Every gradient is a finite number, as the loss is."""
    if evidence.trace is not None:
        return _of_the_step(evidence)
    loss, norm = (number(evidence.batch.reported.get(name)) for name in ("loss", "grad_norm"))
    if norm is None or abs(norm) < float("inf") or loss is None or not abs(loss) < float("inf"):
        return []
    got = evaluation(evidence)
    slots = torch.zeros_like(evidence.batch.trained_mask())
    for name in LOGPROBS:
        values = getattr(evidence.batch, name)
        slots |= torch.zeros_like(slots) if values is None else ~values.isfinite()
    right = (
        {} if got is None else {"grad_policy_logprobs_norm": float(got.grad.double().norm()), "grad_policy_logprobs": got.grad}
    )
    return [
        Finding(
            check="backward_finite", severity="error", quantity="logprob_grad", rows=rows_at(slots),
            tokens=tokens_at(evidence.batch, slots),
            message=f"The loss is {loss:.6g}, the gradient norm {norm}: a branch that is thrown away still has a gradient.",
            fix="Clamp before the exponential and select before the first operation, so that no branch overflows.",
            expected=right, found={"grad_norm": norm, "loss": loss},
        )
    ]  # fmt: skip


def _of_the_step(evidence: Evidence) -> list[Finding]:
    grad, total = evidence.step.logprob_grad, evidence.step.grad_norm
    broken = ~grad.isfinite()
    unfinished = not evidence.step.grad_norms  # the norms follow from a backward pass that has not run yet
    if not broken.any() and (unfinished or abs(total) < float("inf")):
        return []
    return [
        Finding(
            check="backward_finite", severity="error", quantity="logprob_grad", tokens=tokens_at(evidence.batch, broken),
            message=f"{int(broken.sum())} entries of d loss/d log-prob are not finite; gradient norm {total}.",
            fix="Find the first non-finite tensor: rewards, then advantages, then log-probs.",
        )
    ]  # fmt: skip
