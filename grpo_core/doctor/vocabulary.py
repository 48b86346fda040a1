"""Checks on the selected token's row of logits: is it a distribution, and did gather pick its cell?"""

from .finding import Evidence, Finding
from .scores import SAMPLER_TOLERANCE


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
    sampler = evidence.batch.sampler_logprobs
    if evidence.update == 0 and sampler is not None:
        others["sampler_logprobs"] = float(sampler[row, column])
    tolerance = max(SAMPLER_TOLERANCE, 1e-5 * abs(gathered))  # where weights have run away, log-probs are in the thousands
    wrong = {name: value for name, value in others.items() if not abs(value - gathered) <= tolerance}
    if not wrong:
        return []
    name, value = next(iter(wrong.items()))
    return [
        Finding(
            check="gather_matches_sampler", severity="error", quantity=name, rows=(row,),
            tokens=((row, int(evidence.batch.token_positions()[column])),),
            message=f"Gather picks {gathered:.4f} from this row, {name} has {value:.4f}.",
            fix="Index with the id of the token that the row predicts, not the one that stands at the row.",
            expected={name: gathered}, found={name: value},
        )
    ]  # fmt: skip
