"""From one convention's loss to another's, one knob at a time: which difference makes how much of the gap.

The steps depend on their order, because knobs act on each other; their sum does not.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from jaxtyping import Bool
from torch import Tensor

from .compare import Evaluation, evaluate
from .convention import Convention
from .inputs import LossInputs, missing

# Settings that only mean something together are one knob, in the order in which a step reads them.
KNOBS: dict[str, tuple[str, ...]] = {
    "reward": ("reward_shift", "reward_scale", "reward_clip"),
    "kl_in_reward": ("reward_kl", "reward_kl_coef", "reward_kl_estimator"),
    "baseline": ("advantage_mean",),
    "std": ("advantage_std",),
    "std_eps": ("advantage_eps",),
    "group_of_one": ("advantage_alone",),
    "whitening": ("advantage_whiten",),
    "advantage_clip": ("advantage_clip",),
    "truncated_rows": ("mask_truncated",),
    "ratio_against": ("ratio_against",),
    "ratio": ("ratio",),
    "log_ratio_bound": ("log_ratio_bound",),
    "surrogate": ("surrogate", "dual_clip", "sapo_temperatures", "vespo_shape", "quadratic_coef",
                  "cov_fraction", "cov_bounds", "cov_coef", "cov_seed"),
    "clip": ("clip_low", "clip_high"),
    "correction": ("correction", "correction_bound", "correction_low", "correction_high"),
    "gates": ("gates", "off_policy_threshold", "entropy_quantile"),
    "aggregation": ("aggregation", "count_padding"),
    "empty_rows": ("count_empty_rows",),
    "kl": ("beta",),
    "kl_estimator": ("kl_estimator", "kl_input_bound", "kl_output_bound"),
    "kl_against": ("kl_against",),
    "kl_gradient": ("kl_gradient",),
    "kl_aggregation": ("kl_aggregation",),
    "entropy": ("entropy_coef", "entropy_aggregation"),
}  # fmt: skip
RUN = ("max_completion_length",)  # the batch's, not the trainer's
assert {name for names in KNOBS.values() for name in names} | {*RUN} == {f.name for f in fields(Convention)}


@dataclass(frozen=True, kw_only=True)
class Bar:
    """One step of a bridge."""

    knobs: tuple[str, ...]  # one; several where the batch lacks what the step between them needs
    changes: Mapping[str, tuple[Any, Any]]  # setting -> (before, after)
    before: Evaluation
    after: Evaluation
    touched: Bool[Tensor, "B T"]  # tokens whose contribution to the loss or whose gradient changed

    @property
    def delta(self) -> float:
        return self.after.loss - self.before.loss


def differing(start: Convention, end: Convention) -> tuple[str, ...]:
    """The knobs in which two conventions differ, in the order of the step."""
    return tuple(knob for knob, names in KNOBS.items() if any(getattr(start, n) != getattr(end, n) for n in names))


def bridge(inputs: LossInputs, start: Convention, end: Convention, order: Sequence[str] = ()) -> tuple[Bar, ...]:
    """The steps from `start` to `end`. `order`: knobs to turn first, in this order; the rest follow in the step's order.

    Raises ValueError for a knob that does not exist, and where the batch lacks what either end needs.
    """
    unknown = [knob for knob in order if knob not in KNOBS]
    if unknown:
        raise ValueError(f"order: found {unknown[0]!r}, allowed: {', '.join(KNOBS)}")
    remaining = differing(start, end)
    wanted = [knob for knob in dict.fromkeys(order) if knob in remaining]
    here, evaluation, bars, pending = start, evaluate(inputs, start), [], ()
    for knob in [*wanted, *(knob for knob in remaining if knob not in wanted)]:
        here = replace(here, **{name: getattr(end, name) for name in KNOBS[knob]})
        pending += (knob,)
        if missing(inputs, here) and missing(inputs, end) == ():
            continue
        after = evaluate(inputs, here)
        bars.append(_bar(pending, evaluation, after))
        evaluation, pending = after, ()
    return tuple(bars)


def _bar(knobs: tuple[str, ...], before: Evaluation, after: Evaluation) -> Bar:
    names = [name for knob in knobs for name in KNOBS[knob]]
    pairs = {name: (getattr(before.convention, name), getattr(after.convention, name)) for name in names}
    moved = (before.contributions() != after.contributions()) | (before.grad != after.grad)
    return Bar(
        knobs=knobs, changes={name: pair for name, pair in pairs.items() if pair[0] != pair[1]},
        before=before, after=after, touched=moved,
    )  # fmt: skip
