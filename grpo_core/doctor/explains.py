"""What looks broken and is right: a loss of 0, a negative one, one that is not 0 at ratio 1. Said with this batch's numbers."""

from .finding import Evidence, Finding
from .reported import printed_loss
from .whatif import agrees, evaluation, is_on_policy, number, reductions


def expected_on_policy_loss(evidence: Evidence) -> list[Finding]:
    """At ratio 1 the loss is minus the weighted sum of the advantages: 0 or not, as the reduction has it."""
    if evidence.trace is not None or not is_on_policy(evidence):
        return []
    got, values = evaluation(evidence), reductions(evidence)
    if not values or any(value != value for value in values.values()):
        return []
    pair, stated = printed_loss(evidence), evidence.settings.get("aggregation")
    if got is not None and pair is not None and not agrees(pair[0], got.loss, float(got.contributions().abs().sum())):
        return []  # the printed one is another: `aggregation_fingerprint`
    listed = ", ".join(f"{name} {value:.6g}" for name, value in values.items())
    said = f" The stated {stated} gives {got.loss:.6g}." if got is not None else ""
    numbers = {} if got is None else {
        "loss": got.loss, "policy_term": float(got.terms.policy_loss), "kl_term": got.kl_part,
        "grad_policy_logprobs_norm": float(got.grad.double().norm()),
    } | ({"grad_policy_logprobs": got.grad} if got.grad.numel() <= 4096 else {})  # fmt: skip
    return [
        Finding(
            check="expected_on_policy_loss", severity="info", quantity="loss",
            message="Every ratio is 1, so the loss is minus the weighted sum of the advantages, and the KL: its value says "
            f"nothing about its gradient. {listed}.{said}",
            expected=numbers | {"all_reductions": values}, found={} if pair is None else {"loss": pair[0]},
        )
    ]  # fmt: skip


def loss_zero_explain(evidence: Evidence) -> list[Finding]:
    """A loss of 0 is not a gradient of 0: say which of the two it is."""
    if evidence.trace is not None:
        terms, grad = evidence.step.terms, evidence.step.logprob_grad
    else:
        got, printed = evaluation(evidence), number(evidence.batch.reported.get("loss"))
        if got is None or (printed is not None and not abs(printed) <= 1e-6 + 1e-5 * abs(got.loss)):
            return []
        terms, grad = got.terms, got.grad
    size = float((terms.token_weight * terms.token_loss).abs().sum())
    loss, norm = float(terms.loss), float(grad.norm())
    if not abs(loss) <= 1e-5 * size + 1e-9:
        return []
    if norm > 1e-9:
        message = f"The loss is {loss:.2g} and the gradient is not: |d loss/d log-prob| = {norm:.4g}. The advantages cancel."
    else:
        message = f"Loss and gradient are both 0: {_why_nothing(evidence)}, so this step teaches nothing."
    return [
        Finding(
            check="loss_zero_explain", severity="info", quantity="loss", message=message,
            expected={"loss": 0.0, "grad_policy_logprobs_norm": norm}, found={"loss": loss, "logprob_grad_norm": norm},
        )
    ]  # fmt: skip


def _why_nothing(evidence: Evidence) -> str:
    mask, advantages = evidence.batch.trained_mask(), evidence.batch.advantages
    if not mask.any():
        return "no token is trained (mask_nonempty)"
    if advantages is not None and not advantages[mask if advantages.dim() > 1 else mask.any(1)].any():
        return "every advantage is 0 (zero_std_groups)"
    return "every token with an advantage is clipped or dropped"


def loss_sign_explain(evidence: Evidence) -> list[Finding]:
    """A loss may be negative: the policy part has no sign, only the KL part cannot be below 0."""
    pair = printed_loss(evidence)
    if pair is None or pair[0] >= 0 or not agrees(pair[0], pair[1].loss, float(pair[1].contributions().abs().sum())):
        return []
    policy, kl = float(pair[1].terms.policy_loss), pair[1].kl_part
    return [
        Finding(
            check="loss_sign_explain", severity="info", quantity="loss",
            message=f"The loss {pair[0]:.6g} is negative: policy part {policy:.6g}, KL part {kl:.6g}. The first is minus a "
            "weighted sum of advantages and has no sign; only the second cannot be negative.",
            expected={"loss": pair[1].loss, "policy_term": policy, "kl_term": kl}, found={"loss": pair[0]},
        )
    ]  # fmt: skip
