"""The same tokens scored twice: a pass whose numbers differ between equal rows has dropout, or something as random, on."""

from torch import Tensor

from ..types import Batch
from .candidates import Sampling
from .finding import Evidence, Finding
from .hypotheses import explain_logprobs
from .invariance import repeated_pass, repeats, spreads
from .lineage import EXACT, same_weights
from .tokens import places

TRAINER = ("policy_logprobs", "old_logprobs", "ref_logprobs")
APART = 0.02  # nats, a mean: no rounding in fp32
NOISY = 0.15  # the same where the pass ran in bf16, or nobody says in what
FEWEST = 4  # tokens that stand twice in the batch
SHOWN_ROWS, SHOWN_TOKENS = 3, 8
FIX = "Score in eval mode, or set every dropout probability to 0."


def dropout_active(evidence: Evidence) -> list[Finding]:
    """A pass gives equal tokens behind equal tokens equal log-probs: nothing random is on."""
    return [*_equal_rows(evidence.batch), *_said_by_meta(evidence.batch), *_by_the_model(evidence)]


def _equal_rows(batch: Batch) -> list[Finding]:
    """A field in which repeats differ although they do not in another field."""
    if batch.meta.get("packed_boundaries"):
        return []
    sets = repeats(batch)
    if int((sets >= 0).sum()) < FEWEST:
        return []
    stored = {name: getattr(batch, name) for name in (*TRAINER, "sampler_logprobs") if getattr(batch, name) is not None}
    if not stored:
        return []
    apart = {name: spreads(values, sets) for name, values in stored.items()}
    means = {name: float(values.nanmean()) for name, values in apart.items()}
    limit = APART if batch.meta.get("dtype") in ("float32", "float64") else NOISY
    calm = min(means, key=lambda name: means[name])
    random = [name for name in TRAINER if means.get(name, 0.0) > max(limit, 10 * means[calm])]
    return [_differing(batch, random, apart[random[0]], sets, calm)] if random else []


def _differing(batch: Batch, names: list[str], apart: Tensor, sets: Tensor, calm: str) -> Finding:
    name, wide = names[0], apart > EXACT
    rows = tuple(wide.any(1).nonzero().flatten().tolist())
    first, second = _pair(sets, apart)
    both = (sets[first] >= 0) & (sets[first] == sets[second])
    values, right = getattr(batch, name), getattr(batch, calm)
    gap = float((values[first] - values[second]).abs()[both].max())
    expected: dict = {f"max_abs_diff_rows_{first}_{second}": 0.0}
    found: dict = {f"max_abs_diff_rows_{first}_{second}": gap}
    for row in (first, second):
        trained = batch.trained_mask()[row]
        expected[f"{name}[{row}]"], found[f"{name}[{row}]"] = right[row][trained].tolist(), values[row][trained].tolist()
        if name == "policy_logprobs" and batch.old_logprobs is not None and same_weights(batch, name, "old_logprobs"):
            ratio = (values - batch.old_logprobs)[row][trained].exp()
            expected[f"ratio[{row}]"], found[f"ratio[{row}]"] = [1.0] * len(ratio), ratio.tolist()
    return Finding(
        check="dropout_active", severity="error", quantity=name, rows=rows,
        tokens=places(wide, batch.token_positions())[:SHOWN_TOKENS],
        message=f"Rows {first} and {second} hold the same tokens up to there, yet their {' and '.join(names)} differ by up to "
        f"{gap:.4g} nats, while their {calm} do not: the pass is not deterministic (dropout is on).",
        fix=FIX, expected=expected, found=found,
    )  # fmt: skip


def _pair(sets: Tensor, apart: Tensor) -> tuple[int, int]:
    """Two rows that share the set of the widest spread, the lower number first."""
    place = int(apart.nan_to_num(-1.0).argmax())
    number = sets.flatten()[place]
    rows = (sets == number).any(1).nonzero().flatten().tolist()
    return rows[0], rows[1]


def _said_by_meta(batch: Batch) -> list[Finding]:
    """The file says that dropout was on, and the ratio shows it."""
    policy, old = batch.policy_logprobs, batch.old_logprobs
    if batch.meta.get("training_mode") is not True or policy is None or old is None:
        return []
    if not same_weights(batch, "policy_logprobs", "old_logprobs"):
        return []
    gap = (policy - old).abs()[batch.trained_mask()]
    gap = gap[gap.isfinite()]
    if not len(gap) or float(gap.mean()) <= APART:
        return []
    return [
        Finding(
            check="dropout_active", severity="error", quantity="policy_logprobs",
            message=f"meta.training_mode is true, and before any update policy and old differ by {gap.mean():.4g} nats (mean).",
            fix=FIX, expected={"training_mode": False, "max_abs_log_ratio": 0.0},
            found={"training_mode": True, "max_abs_log_ratio": float(gap.max())},
        )
    ]  # fmt: skip


def _by_the_model(evidence: Evidence) -> list[Finding]:
    """Two passes of the model itself, and the fields that lie as far from it as two passes with dropout do."""
    batch, policy = evidence.batch, evidence.policy
    if policy is None:
        return []
    findings = []
    gap = repeated_pass(batch, policy, Sampling.of(batch).temperature)
    if gap > EXACT:
        findings.append(
            Finding(
                check="dropout_active", severity="error", quantity="policy_logprobs",
                message=f"Two passes of the model over the same rows differ by up to {gap:.4g} nats.", fix=FIX,
                expected={"max_gap": 0.0}, found={"max_gap": gap},
            )
        )  # fmt: skip
    for answer in explain_logprobs(batch, policy):
        if answer.cause == "dropout":
            apart = answer.residual("right")
            findings.append(
                Finding(
                    check="dropout_active", severity="error", quantity=answer.field,
                    message=f"{answer.field} lie {apart:.4g} nats from the model's: as far as two dropout passes lie apart.",
                    fix=FIX, expected={"mean_abs_log_ratio": 0.0}, found={"mean_abs_log_ratio": apart},
                )
            )  # fmt: skip
    return findings
