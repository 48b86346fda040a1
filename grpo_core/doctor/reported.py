"""Checks on the numbers that the trainer printed: which reduction, which denominator, which split gives them?"""

import torch

from ..aggregation import AGGREGATION
from ..compare import Evaluation, reaggregated
from .finding import Evidence, Finding
from .whatif import agrees, evaluation, loss_inputs, number, reductions

NAMED = [name for name in AGGREGATION if not name.startswith("micro-") and name != "length-over-cells"]


def printed_loss(evidence: Evidence) -> tuple[float, Evaluation] | None:
    """The printed loss and the batch under its own convention; None where one is missing, or the loss is our own."""
    loss = number(evidence.batch.reported.get("loss"))
    if loss is None or not abs(loss) < float("inf") or evidence.trace is not None:
        return None
    got = evaluation(evidence, None, None, **({} if evidence.settings.get("aggregation") else {"aggregation": "token-mean"}))
    return None if got is None or not got.terms.loss.isfinite() else (loss, got)


def _size(got: Evaluation) -> float:
    """What the summands of the loss add up to in size: float32 sums lose about a millionth of it."""
    return float(got.contributions().double().abs().sum())


def aggregation_fingerprint(evidence: Evidence) -> list[Finding]:
    """The printed loss is the one that the stated aggregation gives, not another's."""
    pair = printed_loss(evidence)
    if pair is None:
        return []
    (loss, got), stated = pair, evidence.settings.get("aggregation")
    values = _candidates(evidence, got)
    fitting = [name for name, value in values.items() if agrees(loss, value, _size(got))]
    if stated in fitting or "policy part alone" in fitting or _split_loss(evidence) is not None:
        return []
    common = reductions(evidence)
    if stated is None:
        said = f"The printed loss {loss:.6g} is {' or '.join(fitting)}; no aggregation is stated"
        return [] if not fitting or len(fitting) > 3 else [_fingerprint("info", said, "", {}, common)]
    if not fitting:
        said = f"The printed loss {loss:.6g} is no known reduction of this batch; {stated} gives {got.loss:.6g}"
        return [_fingerprint("info", said, "Look for a part that the file does not hold: another term, another scale.",
                             {"loss": got.loss, "all_reductions": common}, {"loss": loss, "matches": "none"})]  # fmt: skip
    return [
        _fingerprint(
            "error",
            f"The printed loss {loss:.6g} equals {' and '.join(fitting[:3])}, not {stated}, which gives {got.loss:.6g}",
            "Use the reduction that is configured in every loss path; long and short rows weigh differently in each.",
            {"loss": got.loss, "all_reductions": common}, {"loss": loss, "matches": fitting[0]},
        )
    ]  # fmt: skip


def _fingerprint(severity: str, said: str, fix: str, expected: dict, found: dict) -> Finding:
    return Finding(
        check="aggregation_fingerprint", severity=severity, quantity="reported.loss", message=f"{said}.", fix=fix,
        expected=expected, found=found,
    )  # fmt: skip


def _candidates(evidence: Evidence, got: Evaluation) -> dict[str, float]:
    """Every named reduction of the batch's token losses, and the usual ways to divide by the wrong number."""
    inputs = loss_inputs(evidence)
    assert inputs is not None
    stated = evidence.settings.get("aggregation")
    values = {name: reaggregated(inputs, got, name)[0] for name in NAMED if name != stated}
    if stated is not None:
        values = {stated: got.loss} | values
    values["policy part alone"] = float(got.terms.policy_loss)
    total, accumulation = reaggregated(inputs, got, "token-sum")[0], evidence.batch.meta.get("gradient_accumulation_steps")
    values["the sum over all slots, padding in the denominator"] = total / inputs.mask.numel()
    values["the sum over rows times the width of the batch"] = total / (inputs.mask.shape[0] * inputs.mask.shape[1])
    values["the sum over prompt and completion tokens"] = total / max(int(evidence.batch.row_mask().sum()), 1)
    if isinstance(accumulation, int) and accumulation > 1:
        values["the loss divided by the accumulation steps once more"] = got.loss / accumulation
        values["the loss times the accumulation steps"] = got.loss * accumulation
    return values


def _split_loss(evidence: Evidence) -> tuple[float, list[float]] | None:
    """(printed loss, each micro-batch's own) where the printed loss is the mean of the micro-batches' own losses."""
    pair, split = printed_loss(evidence), evidence.batch.meta.get("micro_batches")
    aggregation = evidence.settings.get("aggregation")
    if pair is None or not split or aggregation is None or aggregation.startswith("micro-"):
        return None
    loss, got = pair
    parts = []
    for rows in split:
        part = torch.zeros_like(evidence.batch.trained_mask())
        part[list(rows)] = evidence.batch.trained_mask()[list(rows)]
        own = evaluation(evidence, part, aggregation="token-mean" if aggregation == "token-mean" else aggregation)
        if own is None:
            return None
        scale = len(part) / len(rows) if aggregation not in ("token-mean", "token-sum") else 1.0  # rows of the part alone
        parts.append(own.loss * scale)
    mean = sum(parts) / len(parts)
    return (loss, parts) if agrees(loss, mean, _size(got)) and not agrees(loss, got.loss, _size(got)) else None


def printed_split(evidence: Evidence) -> list[Finding]:
    """The printed loss is that of the whole batch, however it was split into micro-batches."""
    split, pair = _split_loss(evidence), printed_loss(evidence)
    if split is None or pair is None:
        return []
    loss, parts = split
    return [
        Finding(
            check="split_invariance", severity="error", quantity="reported.loss",
            message=f"The printed loss {loss:.6g} is the mean of the {len(parts)} micro-batches' own losses "
            f"({', '.join(f'{part:.6g}' for part in parts[:6])}); over the whole batch it is {pair[1].loss:.6g}.",
            fix="Divide every micro-batch by the whole batch's token count, not by its own.",
            expected={"loss": pair[1].loss}, found={"loss": loss, "micro_batch_losses": parts},
        )
    ]  # fmt: skip


def printed_items(evidence: Evidence) -> list[Finding]:
    """`num_items`, the denominator in tokens, is the number of trained tokens."""
    batch, printed = evidence.batch, number(evidence.batch.reported.get("num_items"))
    if printed is None or evidence.trace is not None:
        return []
    mask = batch.trained_mask()
    right = int(mask.sum())
    allowed = {right}
    if batch.meta.get("mask_truncated") and batch.finish_reasons is not None:
        whole = torch.tensor([reason != "length" for reason in batch.finish_reasons])
        allowed.add(int((mask & whole.unsqueeze(1)).sum()))
    if printed in allowed:
        return []
    others = {
        "all slots": mask.numel(), "prompt and completion tokens": int(batch.row_mask().sum()),
        "completion tokens": int(batch.completion_columns().sum()), "rows": len(mask),
        "rows times max_completion_length": len(mask) * int(batch.meta.get("max_completion_length") or 0),
    }  # fmt: skip
    name = next((f", the number of {name}" for name, count in others.items() if count == printed), "")
    return [
        Finding(
            check="denominator_matches_mask", severity="error", quantity="reported.num_items",
            message=f"The loss was divided by {printed:g} tokens{name}; {right} are trained.",
            fix="Count the denominator on the mask that the loss uses.",
            expected={"num_items": right}, found={"num_items": printed},
        )
    ]  # fmt: skip
