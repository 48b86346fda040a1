"""Checks on a step of our own: its weights, its gradient and the update; `reported` and `explains` have those on a file."""

import torch
from torch import Tensor

from ..closed_forms import closed_form_logit_grad, closed_form_logprob_grad, kl_logprob_grad
from ..explain import split_loss
from .finding import Evidence, Finding
from .metric_checks import printed_clip_fraction
from .reading import tokens_at
from .reported import printed_items, printed_split


def _apart(found: Tensor, expected: Tensor, rounding: float = 1e-9) -> Tensor:
    """True where the two differ by more than 1e-5 of the largest expected entry: fp32 sums of a few hundred terms.

    Entries that have overflown in both are alike: `backward_finite` reports them.
    """
    finite = expected.isfinite()
    limit = 1e-5 * torch.where(finite, expected, 0.0).abs().max() + rounding
    return (finite | found.isfinite()) & ~((found - expected).abs() <= limit)


CLIPS_BY_RATIO = ("min-clip", "dual-clip", "two-sided", "none")  # the others drop tokens for other reasons, or none


def clip_fraction_by_gradient(evidence: Evidence) -> list[Finding]:
    """The tokens counted as clipped are those that the policy loss gives no gradient."""
    if evidence.trace is None:
        return printed_clip_fraction(evidence)
    trace, terms, config = evidence.trace, evidence.step.terms, evidence.trace.recipe
    if config.ratio != "token" or config.entropy_coef or config.surrogate not in CLIPS_BY_RATIO:
        return []
    mask, kl_pull = evidence.batch.trained_mask(), kl_logprob_grad(trace, evidence.update)
    pull, unclipped = evidence.step.logprob_grad - kl_pull, (terms.surrogate * terms.token_weight * terms.correction).abs()
    # Beside a KL gradient 1e5 times its size a pull drowns in fp32's rounding: such a token says nothing.
    # A log-ratio at its bound has no gradient either, whatever the clip says.
    readable = mask & pull.isfinite() & (unclipped > 1e-5 * kl_pull.abs()) & (terms.log_ratio.abs() < config.log_ratio_bound)
    without = readable & (pull.abs() <= unclipped / 2)
    clipped = readable & terms.is_clipped
    if bool((without == clipped).all()):
        return []
    tokens = tokens_at(evidence.batch, without != clipped)
    total = max(int(mask.sum()), 1)
    return [
        Finding(
            check="clip_fraction_by_gradient", severity="warning", quantity="is_clipped", tokens=tokens,
            message=f"Clip fraction {float(clipped.sum()) / total:.3f} by the metric, "
            f"{float(without.sum()) / total:.3f} by the gradient.",
            fix="A token is clipped where ratio > 1 + high and A > 0, or ratio < 1 - low and A < 0.",
            expected={"clip_fraction": float(without.sum()) / total}, found={"clip_fraction": float(clipped.sum()) / total},
        )
    ]  # fmt: skip


def weight_sum(evidence: Evidence) -> float:
    """What the weights of the recipe's aggregation must add up to, from the mask alone."""
    assert evidence.trace is not None
    mask, recipe = evidence.batch.trained_mask(), evidence.trace.recipe
    tokens, filled = int(mask.sum()), int(mask.any(1).sum())
    rows = mask.shape[0] if recipe.count_empty_rows else max(filled, 1)
    width = evidence.batch.row_ids().shape[1] - 1
    return {
        "seq-mean-token-mean": filled / rows,
        "micro-seq-mean-token-mean": filled / mask.shape[0],
        "token-mean": 1.0 if tokens else 0.0,
        "micro-token-mean": 1.0 if tokens else 0.0,
        "dr_grpo": tokens / (rows * recipe.max_completion_length),
        "seq-mean-token-sum": tokens / rows,
        "token-sum": float(tokens),
        "sum-over-width": tokens / width,
        "length-over-cells": tokens / rows,
    }[recipe.aggregation]


def denominator_matches_mask(evidence: Evidence) -> list[Finding]:
    """The weights add up to what the trained tokens say, and no masked token weighs anything."""
    if evidence.trace is None:
        return printed_items(evidence)
    weight, mask = evidence.step.terms.token_weight, evidence.batch.trained_mask()
    expected, found = weight_sum(evidence), float(weight.double().sum())
    outside = ~mask & (weight != 0) & (evidence.trace.recipe.aggregation != "length-over-cells")
    if abs(found - expected) <= 1e-4 * max(1.0, abs(expected)) and not outside.any():
        return []
    return [
        Finding(
            check="denominator_matches_mask", severity="error", quantity="token_weight",
            tokens=tokens_at(evidence.batch, outside),
            message=f"The weights of {int(mask.sum())} trained tokens add up to {found:.6g}; they should to {expected:.6g}.",
            fix="Count the denominator on the mask that the loss uses.",
            expected={"weight_sum": expected}, found={"weight_sum": found},
        )
    ]  # fmt: skip


def split_invariance(evidence: Evidence) -> list[Finding]:
    """The loss is the same as a sum over two micro-batches that share the denominators; a `micro-` aggregation depends on
    the split, and says so."""
    if evidence.trace is None:
        return printed_split(evidence)
    whole = evidence.step.terms.policy_loss
    parts = split_loss(evidence.trace, evidence.update, min(2, len(evidence.batch.row_ids())))
    size = float((evidence.step.terms.token_weight * evidence.step.terms.token_loss).abs().sum())
    if float((whole - parts).abs()) <= 1e-5 * size + 1e-9:
        return []
    name = evidence.trace.recipe.aggregation
    meant = name.startswith("micro-")
    because = f": {name} divides each by its own tokens, so the loss depends on the split" if meant else ""
    return [
        Finding(
            check="split_invariance", severity="info" if meant else "error", quantity="policy_loss",
            message=f"Whole batch {float(whole):.6g}, sum of two micro-batches {float(parts):.6g}{because}.",
            fix="Divide every micro-batch by the whole batch's count, not by its own.",
            expected={"policy_loss": float(parts)}, found={"policy_loss": float(whole)},
        )
    ]  # fmt: skip


def logprob_gradient_closed_form(evidence: Evidence) -> list[Finding]:
    """Autograd's d loss / d log-prob is what the formula says."""
    assert evidence.trace is not None
    expected, found = closed_form_logprob_grad(evidence.trace, evidence.update), evidence.step.logprob_grad
    if expected is None:
        return []
    wrong = _apart(found, expected)
    if not wrong.any():
        return []
    return [
        Finding(
            check="logprob_gradient_closed_form", severity="error", quantity="logprob_grad",
            tokens=tokens_at(evidence.batch, wrong),
            message=f"Autograd and the closed form differ by up to {float((found - expected).abs().max()):.3g}.",
            fix="Look for a missing detach, or a mask applied to one of the two only.",
            expected={"norm": float(expected.norm())}, found={"norm": float(found.norm())},
        )
    ]  # fmt: skip


def logit_gradient_closed_form(evidence: Evidence) -> list[Finding]:
    """d loss / d logits of the selected row is (one-hot - p) · d loss/d log-prob / T."""
    assert evidence.trace is not None and evidence.token is not None and evidence.row is not None
    row, column = evidence.token
    upstream = evidence.step.logprob_grad[row, column]
    temperature = evidence.trace.recipe.temperature
    expected = closed_form_logit_grad(evidence.row, upstream, temperature)
    found = evidence.row.logit_grad
    # Where p is almost 1, what is left of 1 - p is its rounding.
    rounding = 1e-6 * (abs(float(upstream)) + abs(evidence.row.entropy_grad)) / temperature + 1e-9
    if not _apart(found, expected, rounding).any():
        return []
    return [
        Finding(
            check="logit_gradient_closed_form", severity="error", quantity="logit_grad", rows=(row,),
            tokens=((row, int(evidence.batch.token_positions()[column])),),
            message=f"Autograd and (one-hot - p) · upstream / T differ by up to {float((found - expected).abs().max()):.3g}.",
            fix="Divide the logits by the temperature exactly once.",
            expected={"norm": float(expected.norm())}, found={"norm": float(found.norm())},
        )
    ]  # fmt: skip


def update_applied(evidence: Evidence) -> list[Finding]:
    """The optimizer step was made."""
    step = evidence.step
    if step.applied:
        return []
    if not step.grad_norms:
        return [
            Finding(
                check="update_applied", severity="info", quantity="grad_norm",
                message="The recipe changed; the update has not been run with it yet.", fix="Run the update.",
            )
        ]  # fmt: skip
    return [
        Finding(
            check="update_applied", severity="error", quantity="grad_norm",
            message=f"The gradient norm is {step.grad_norm}: no weight was moved.",
            fix="See backward_finite.", found={"grad_norm": step.grad_norm},
        )
    ]  # fmt: skip


def update_direction(evidence: Evidence) -> list[Finding]:
    """Weighted by advantage, the tokens became likelier. Single tokens may move the other way: weights are shared."""
    assert evidence.trace is not None and evidence.effect is not None
    trace, weight = evidence.trace, evidence.step.terms.token_weight
    gain = float((weight * trace.token_advantages * evidence.effect.change).sum())
    has_advantage = bool((trace.token_advantages != 0).any())
    if not has_advantage or gain > 0 or trace.recipe.learning_rate == 0:
        return []
    return [
        Finding(
            check="update_direction", severity="info", quantity="logprob_change",
            message=f"Sum of weight · A · change is {gain:.3g}: this step did not raise what it was rewarded for.",
            fix="Lower the learning rate: a step this long leaves the region in which the gradient holds.",
            found={"gain": gain},
        )
    ]  # fmt: skip
