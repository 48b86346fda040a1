"""Which mistake explains the stored log-probs: each field against its right values and against those under every mistake.

A ratio that is not 1 has a dozen possible causes. So the tokens are scored again, from the batch's own logits or a model, once
rightly and once per mistake (temperature missing, twice, divided after the softmax; one slot off; no position ids; …), and the
mean |difference| of each, its residual, is put in a table. A cause is named only where its residual is that of rounding or
noise and the next best explanation is clearly worse. Without logits or model a field can still explain another.

Axes: B rows · T scored positions · n tokens compared. Log-probs and residuals in nats.
"""

import weakref
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from ..policy import Policy
from ..types import Batch
from .candidates import FAMILY, Sampling, number
from .lineage import EXACT, anchor, same_weights
from .sources import Source, from_field, from_logits, from_model

FIELDS = ("policy_logprobs", "old_logprobs", "sampler_logprobs", "ref_logprobs")
CLOSE = 0.1  # nats, a mean: as far as bf16 passes and engines were seen to lie apart
CLEAR = 4.0  # the runner-up's residual over the best one's
TOKENS = 4  # fewer say nothing
TWOFOLD = ("neither mask nor positions",)


@dataclass(frozen=True)
class Hypothesis:
    """One explanation and how far the field's values are from it."""

    name: str
    mean_abs: float  # nats
    max_abs: float
    tokens: int  # that could be compared
    value: float | None = None  # the temperature that was fitted


@dataclass(frozen=True, eq=False)
class Explained:
    """One stored field and what explains it."""

    field: str
    source: str  # where the right values come from: "logits", "model", or another field
    same_weights: bool  # the file says that the field was scored by the weights of the source
    table: tuple[Hypothesis, ...]  # the smallest residual first
    right: Tensor  # [B T] nats, NaN where not scored
    temperature: float  # of the right values
    cause: str | None  # a name of the table, "precision noise", or None: nothing explains the field

    @property
    def best(self) -> Hypothesis:
        return self.table[0]

    @property
    def runner_up(self) -> Hypothesis | None:
        """The best explanation of another family than the best one."""
        return runner_up(self.table, self.best.name)

    @property
    def is_wrong(self) -> bool:
        """A mistake explains the field."""
        return self.cause not in (None, "right", "precision noise")

    def residual(self, name: str) -> float:
        """Of one hypothesis; infinite where it could not be compared."""
        return next((h.mean_abs for h in self.table if h.name == name), float("inf"))

    @property
    def value(self) -> float | None:
        """The temperature that explains the field, where one does."""
        named = {"right": self.temperature, "temperature missing": 1.0, "temperature twice": self.temperature**2}
        fitted = next((h.value for h in self.table if h.name == self.cause), None)
        return fitted if fitted is not None else named.get(self.cause or "")


def explain_logprobs(batch: Batch, policy: Policy | None = None) -> tuple[Explained, ...]:
    """What explains each stored log-prob field, in the order policy, old, sampler, reference; nothing is changed.

    A field is left out where there is nothing to compare it with: no logits, no model, no other field of the same weights.
    """
    kept = _LAST.get(batch, policy)
    if kept is None:
        kept = _explain(batch, policy)
        _LAST.put(batch, policy, kept)
    return kept


class _Last:
    """The last answer: several checks ask the same question of one batch. It goes when the batch goes."""

    def __init__(self):
        self.held: tuple | None = None

    def get(self, batch: Batch, policy: Policy | None) -> tuple[Explained, ...] | None:
        held = self.held
        if held is None or held[0]() is not batch or (held[1] is None) != (policy is None):
            return None
        return held[2] if policy is None or held[1]() is policy else None

    def put(self, batch: Batch, policy: Policy | None, answer: tuple[Explained, ...]) -> None:
        self.held = (weakref.ref(batch, self._forget), weakref.ref(policy) if policy is not None else None, answer)

    def _forget(self, gone: weakref.ref) -> None:
        held = self.held
        if held is not None and held[0] is gone:
            self.held = None


_LAST = _Last()


def _explain(batch: Batch, policy: Policy | None) -> tuple[Explained, ...]:
    stored = [name for name in FIELDS if getattr(batch, name) is not None]
    sources = _sources(batch, policy, stored)
    explained = []
    for name in stored:
        answers = [_against(batch, name, source) for source in sources]
        if not any(answer is not None and answer.cause for answer in answers):
            other = anchor(batch, name, stored)
            answers += [_against(batch, name, from_field(batch, other, Sampling.of(batch)))] if other else []
        known = [answer for answer in answers if answer is not None]
        if known:
            explained.append(min(known, key=lambda answer: _rank(answer)))
    return tuple(explained)


def _rank(answer: Explained) -> tuple:
    """The answers that explain something first, the better the earlier; those of equal exactness in the order asked."""
    return answer.cause is None, 0.0 if answer.best.mean_abs <= EXACT else answer.best.mean_abs


def _sources(batch: Batch, policy: Policy | None, stored: list[str]) -> list[Source]:
    """The model first: it can be asked in more ways than the logits, which are as they are."""
    sampling = Sampling.of(batch)
    made = []
    for name, make in (("model", from_model), ("logits", from_logits)):
        if (policy is None) if name == "model" else (batch.logits is None):
            continue
        source = _made(make, batch, policy, sampling)
        if source is not None and number(batch.meta.get("temperature")) is None:
            source = _at_the_fields_temperature(batch, source, stored, make, policy)
        made += [source] if source is not None else []
    return made


def _made(make, batch: Batch, policy: Policy | None, sampling: Sampling) -> Source | None:
    return make(batch, policy, sampling) if make is from_model else make(batch, sampling)


def _at_the_fields_temperature(batch: Batch, source: Source, stored: list[str], make, policy: Policy | None) -> Source:
    """Where the file names no temperature: the one that the sampler's log-probs fit, else those of old or policy."""
    for name in ("sampler_logprobs", "old_logprobs", "policy_logprobs"):
        if name in stored:
            wanted = source.pick(getattr(batch, name)).float()
            fitted = source.fit(wanted)
            gap = float("inf") if fitted is None else float((fitted[1] - wanted).abs().nanmean())
            if fitted is not None and gap <= 0.02 and abs(fitted[0] - 1) > 1e-3:
                return _made(make, batch, policy, replace(source.sampling, temperature=round(fitted[0], 4))) or source
    return source


def _against(batch: Batch, name: str, source: Source) -> Explained | None:
    field = source.pick(getattr(batch, name)).float()
    table = [row for row in _table(field, source) if row is not None]
    right = next((row for row in table if row.name == "right"), None)
    if right is None or right.tokens < TOKENS:
        return None
    table.sort(key=_order)
    same = same_weights(batch, name, source.name)
    cause = verdict(table, same) or _dropout(source, right, same)
    return Explained(
        field=name, source=source.name, same_weights=same, table=tuple(table), right=source.right,
        temperature=source.sampling.temperature, cause=cause,
    )  # fmt: skip


def _order(row: Hypothesis) -> tuple[float, bool]:
    """By residual; what has more to fit with, or is two mistakes, comes behind a simpler one that does nearly as well."""
    simple = row.value is None and row.name not in TWOFOLD
    return row.mean_abs if simple else 1.5 * row.mean_abs + EXACT, row.name != "right"


def _table(field: Tensor, source: Source) -> Iterable[Hypothesis | None]:
    found = [_measured(name, field, values()) for name, values in source.candidates().items()]
    yield from found
    if min((row.mean_abs for row in found if row is not None), default=0.0) > EXACT:
        fitted = source.fit(field)
        if fitted is not None:
            yield _measured("another temperature", field, fitted[1], value=round(fitted[0], 4))


def _measured(name: str, field: Tensor, values: Tensor, value: float | None = None) -> Hypothesis | None:
    """None where less than a third of the tokens can be compared."""
    gap = (field - values.to(field.dtype)).abs()
    gap = gap[gap.isfinite()]
    if len(gap) < TOKENS or 3 * len(gap) < int(field.isfinite().sum()):
        return None
    return Hypothesis(name, float(gap.double().mean()), float(gap.max()), len(gap), value)


def runner_up(table: Sequence[Hypothesis], name: str) -> Hypothesis | None:
    """The best explanation of another family; "right" stands for its own, whose others lie within rounding of it."""
    own = FAMILY.get(name, name)
    other = next((row for row in table if FAMILY.get(row.name, row.name) != own), None)
    if other is None or FAMILY.get(other.name) != "precision":
        return other
    return next(row for row in table if row.name == "right")


def verdict(table: list[Hypothesis], same_weights: bool) -> str | None:
    """The name of what explains the field; None where nothing does, or where two explanations are too close to tell.

    `table` is sorted. Other weights, after an update say, never give the field exactly: then only an exact match counts.
    """
    right, best = next(row for row in table if row.name == "right"), table[0]
    if right.mean_abs <= EXACT:
        return "right"
    other = runner_up(table, best.name)
    clear = other is None or other.mean_abs >= max(CLEAR * best.mean_abs, 5 * EXACT)
    if best.mean_abs > (CLOSE if same_weights else EXACT):
        return None
    if FAMILY.get(best.name) != "precision" and clear:
        return best.name
    return "precision noise" if same_weights and right.mean_abs <= CLOSE else None


def _dropout(source: Source, right: Hypothesis, same_weights: bool) -> str | None:
    """Dropout is random, so it cannot be matched token by token: what is unexplained is as large as two passes differ."""
    gap = source.dropout_gap
    fits = gap is not None and gap > EXACT and gap / 2 <= right.mean_abs <= 2 * gap
    return "dropout" if same_weights and fits and right.mean_abs > CLOSE / 2 else None
