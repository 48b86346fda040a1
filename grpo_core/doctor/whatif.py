"""The batch's own loss under its own convention, and what it would be with one thing changed. All from `compare.evaluate`."""

from dataclasses import replace

from jaxtyping import Bool, Float
from torch import Tensor

from ..compare import Evaluation, evaluate
from ..inputs import LossInputs, missing
from .finding import Evidence
from .reading import off_by

REDUCTIONS = ("seq-mean-token-mean", "token-mean", "seq-mean-token-sum", "dr_grpo")


def loss_inputs(evidence: Evidence) -> LossInputs | None:
    """The batch's, with the advantages as they are stored; None where it holds too little for a loss."""
    batch = evidence.batch
    if batch.advantages is None or (batch.policy_logprobs is None and batch.logits is None):
        return None
    return replace(evidence.inputs, rewards=None)


def evaluation(
    evidence: Evidence,
    mask: Bool[Tensor, "B T"] | None = None,
    advantages: Float[Tensor, " B"] | None = None,
    **settings: object,
) -> Evaluation | None:
    """The loss of the batch with this mask, these advantages and these settings in place of its own; None where the file
    does not say how it is made."""
    inputs = loss_inputs(evidence)
    if inputs is None or ("aggregation" not in settings and evidence.settings.get("aggregation") is None):
        return None
    if advantages is not None:
        inputs = replace(inputs, advantages=advantages.unsqueeze(1).expand_as(inputs.mask).to(inputs.policy_logprobs))
    inputs = replace(inputs, mask=inputs.mask if mask is None else mask)
    convention = replace(evidence.settings.convention, **_assumed(evidence, inputs), **settings)  # type: ignore[arg-type]
    return None if missing(inputs, convention) else evaluate(inputs, convention)


def _assumed(evidence: Evidence, inputs: LossInputs) -> dict[str, object]:
    """What stands for settings that nobody said."""
    assumed: dict[str, object] = {}
    if evidence.settings.get("beta") is None and inputs.ref_logprobs is None:
        assumed["beta"] = 0.0
    if evidence.batch.loss_mask is not None or inputs.truncated is None:
        assumed["mask_truncated"] = False  # the mask is what the trainer's loss counted
    return assumed


def is_on_policy(evidence: Evidence) -> bool:
    """Whether every trained token's ratio is 1: policy and old log-probs agree."""
    inputs = loss_inputs(evidence)
    if inputs is None or inputs.old_logprobs is None or not inputs.mask.any():
        return False
    apart = off_by(inputs.policy_logprobs, inputs.old_logprobs, inputs.mask)
    finite = inputs.policy_logprobs[inputs.mask].isfinite().all() and inputs.old_logprobs[inputs.mask].isfinite().all()
    return bool(finite) and float(apart.abs().max()) <= 1e-6


def right_loss(evidence: Evidence, mask: Tensor | None = None, advantages: Tensor | None = None) -> dict[str, object]:
    """{"loss": …} with the right mask or advantages, for a finding's `expected`; empty where no loss can be taken."""
    got = evaluation(evidence, mask, advantages)
    return {} if got is None else {"loss": got.loss}


def reductions(evidence: Evidence) -> dict[str, float]:
    """The batch's loss under each of the four common aggregations."""
    got = {name: evaluation(evidence, aggregation=name) for name in REDUCTIONS}
    return {name: one.loss for name, one in got.items() if one is not None}


def number(value: object) -> float | None:
    """A printed number, or None for what is none."""
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def agrees(found: float, expected: float, size: float = 0.0) -> bool:
    """Whether a printed number is this one, up to seven printed digits and what float32 sums of this size lose."""
    return abs(found - expected) <= 1e-6 + 2e-5 * max(abs(expected), 0.1 * size) or found == expected


def masked_mean(values: Float[Tensor, "B T"], mask: Bool[Tensor, "B T"]) -> float:
    """Mean over the mask; 0 of nothing."""
    kept = values[mask].double()
    return float(kept.mean()) if kept.numel() else 0.0
