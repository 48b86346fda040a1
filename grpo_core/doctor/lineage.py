"""Which log-prob fields were scored by the same weights, and which of them stands for another one's right values."""

from ..types import Batch
from .sources import some_rows

EXACT = 2e-4  # nats, a mean: two fp32 passes over the same tokens


def same_weights(batch: Batch, field: str, source: str) -> bool:
    """Whether `meta` says that no optimizer step lies between the two: another field, the policy's "logits", or a "model".

    A model that somebody hands in may be that of before the updates or of after them: it counts before the first only.
    """
    iteration, updates, step = (batch.meta.get(name) for name in ("iteration", "updates_since_sampling", "step"))
    pair = {"policy_logprobs" if name in ("logits", "model") else name for name in (field, source)}
    fresh = not iteration and not updates and (iteration == 0 or updates == 0)
    if "ref_logprobs" in pair:
        return step == 0 and not iteration and not updates
    if source == "model" or "sampler_logprobs" in pair:
        return fresh
    return len(pair) == 1 or iteration == 0


def anchor(batch: Batch, name: str, stored: list[str]) -> str | None:
    """The other field that stands for this one's right values, so that of two that differ only one is accused."""
    if name == "ref_logprobs":
        return "policy_logprobs" if batch.meta.get("step") == 0 and "policy_logprobs" in stored else None
    rows = some_rows(batch.trained_mask())
    mask = batch.trained_mask()[rows]
    others = [other for other in stored if other not in (name, "ref_logprobs")]

    def agree(one: str, other: str) -> bool:
        gap = (getattr(batch, one)[rows] - getattr(batch, other)[rows]).abs()[mask]
        return bool(len(gap)) and float(gap[gap.isfinite()].mean()) <= 5 * EXACT

    agreeing = [other for other in others if agree(name, other)]
    if agreeing or len(others) == 2 and agree(*others):
        return (agreeing or others)[0]
    order = {"sampler_logprobs": ("old_logprobs", "policy_logprobs"), "old_logprobs": ("policy_logprobs",)}
    return next((other for other in order.get(name, ()) if other in stored), None)
