"""The check on a stored weight per row against the sampler: a product of ratios, their mean, or their sum?"""

import torch
from torch import Tensor

from .finding import Evidence, Finding
from .reading import off_by, rows_at
from .whatif import number

PRINTED = ("importance_sampling_ratio/mean", "importance_sampling_ratio/max", "seq_weight/mean", "sequence_weight/mean")
MEANT = ("exp(sum d)", "exp(mean d)")


def forms(evidence: Evidence) -> dict[str, Tensor]:
    """[B] every way to make one weight of a row's d = trainer - sampler log-probs."""
    batch, mask = evidence.batch, evidence.batch.trained_mask()
    old = batch.old_logprobs if batch.old_logprobs is not None else batch.policy_logprobs
    assert old is not None and batch.sampler_logprobs is not None
    d = off_by(old, batch.sampler_logprobs, mask).double()
    tokens = mask.sum(1).clamp(min=1)
    ratios = torch.where(mask, d.exp(), 0.0).sum(1)
    return {
        "exp(sum d)": d.sum(1).exp(), "exp(mean d)": (d.sum(1) / tokens).exp(), "sum of exp(d)": ratios,
        "mean of exp(d)": ratios / tokens, "exp(-sum d)": (-d.sum(1)).exp(), "exp(-mean d)": (-d.sum(1) / tokens).exp(),
    }  # fmt: skip


def seq_weight_definition(evidence: Evidence) -> list[Finding]:
    """A weight per row is the product of its tokens' ratios, or their geometric mean; a sum of them grows with the length."""
    stored, made = evidence.batch.sequence_weights, forms(evidence)
    fitting = _stored(stored.double(), made) if stored is not None else _of_printed(evidence, made)
    if fitting is None or any(name in MEANT or name == "mean of exp(d)" for name in fitting):
        return []
    name = fitting[0]
    wrong = (made[name] - made[MEANT[0]]).abs() > 1e-4 * (1 + made[MEANT[0]].abs())
    return [
        Finding(
            check="seq_weight_definition", severity="error", quantity="sequence_weights", rows=rows_at(wrong),
            message=f"The weight per row is the {name} of the token log-ratios ({float(made[name].mean()):.6g} on average); "
            f"the product exp(sum d) is {float(made[MEANT[0]].mean()):.6g}.",
            fix="Add the log-ratios first, then take the exponential once.",
            expected={
                "sequence_weight": made[MEANT[0]], "mean": float(made[MEANT[0]].mean()), "geometric_mean_form": made[MEANT[1]],
            },
            found={"sequence_weight": made[name], "mean": float(made[name].mean())},
        )
    ]  # fmt: skip


def _stored(stored: Tensor, made: dict[str, Tensor]) -> list[str] | None:
    """The forms that give the stored weights, up to clipping from above; None where none does."""
    fitting = []
    for name, values in made.items():
        clipped = stored == stored.max()  # a truncated weight says no more than that it was larger
        near = (stored - values).abs() <= 1e-3 * values.abs() + 1e-5
        if bool((near | (clipped & (values >= stored))).all()) and bool(near.any()):
            fitting.append(name)
    return fitting or None


def _of_printed(evidence: Evidence, made: dict[str, Tensor]) -> list[str] | None:
    """The forms whose mean or maximum was printed under a trainer's own key."""
    fitting = None
    for key, value in evidence.batch.reported.items():
        printed, of = number(value), "max" if key.endswith("max") else "mean"
        if printed is None or not key.endswith(PRINTED):
            continue
        names = [
            n for n, v in made.items() if abs(float(v.max() if of == "max" else v.mean()) - printed) <= 1e-4 * abs(printed)
        ]
        names += ["exp(sum d)"] * (_is_a_token_ratio(evidence, printed, of))
        fitting = names if fitting is None else [name for name in fitting if name in names]
    return fitting or None


def _is_a_token_ratio(evidence: Evidence, printed: float, of: str) -> bool:
    """Whether the printed number is one about the tokens' own ratios: then no weight per row is meant."""
    batch, mask = evidence.batch, evidence.batch.trained_mask()
    old = batch.old_logprobs if batch.old_logprobs is not None else batch.policy_logprobs
    assert old is not None and batch.sampler_logprobs is not None
    ratios = off_by(old, batch.sampler_logprobs, mask).double().exp()[mask]
    return bool(ratios.numel()) and abs(float(ratios.max() if of == "max" else ratios.mean()) - printed) <= 1e-4 * abs(printed)
