"""What a check sees, what it says, and how the table of checks is run."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from ..batch import Batch
from ..explain import UpdateEffect, VocabularyRow
from ..inputs import LossInputs
from ..policy import Policy
from ..trace_batch import batch_of_trace
from ..types import StepTrace, Update
from .settings import Settings, settings_of

SEVERITIES = ("info", "warning", "error")


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """Everything that a check may look at. A check that needs a part that is None is skipped, and says what it needs."""

    batch: Batch
    policy: Policy | None = None  # the model, to score again and for special ids
    preset: str | None = None  # whose convention the batch was made under, where the file does not say
    trace: StepTrace | None = None  # the step that the batch is of, where we made it
    update: int = 0  # the update looked at
    token: tuple[int, int] | None = None  # [row, column] of the selected token
    row: VocabularyRow | None = None  # the selected token's distribution
    exact_kl: Float[Tensor, "B T"] | None = None
    effect: UpdateEffect | None = None  # what the update did to the tokens

    @classmethod
    def of_trace(cls, trace: StepTrace, update: int = 0, policy: Policy | None = None, **more: Any) -> "Evidence":
        """Evidence about one update of a traced step: all its rows, those of its minibatch trained."""
        batch = batch_of_trace(trace, update, policy, every_row=True)
        return cls(batch=batch, trace=trace, update=update, policy=policy, **more)

    @property
    def step(self) -> Update:
        assert self.trace is not None
        return self.trace.updates[self.update]

    @cached_property
    def settings(self) -> Settings:
        """The convention, as far as trace, file and preset say."""
        return settings_of(self.batch, self.trace, self.preset)

    @cached_property
    def inputs(self) -> LossInputs:
        """What a loss needs of the batch. Raises ValueError where there are no policy log-probs."""
        return LossInputs.of_batch(self.batch)

    @cached_property
    def group_ids(self) -> Tensor | None:
        """Which rows answer the same prompt: as the file says, else `num_generations` rows in a row."""
        size, rows = self.batch.meta.get("num_generations"), len(self.batch.row_ids())
        if self.batch.group_ids is None and isinstance(size, int) and size > 0 and rows % size == 0:
            return torch.arange(rows) // size
        return self.batch.group_ids

    @cached_property
    def eos_ids(self) -> tuple[int, ...]:
        """The stop ids, the tokenizer's own first; () where nobody says."""
        said = self.batch.meta.get("eos_token_ids") or ()
        return tuple(said) if said or self.policy is None else tuple(sorted(self.policy.eos_ids))

    @cached_property
    def first_update(self) -> bool:
        """Whether the file says that no optimizer step lies between sampling and this update."""
        counts = [self.batch.meta.get(name) for name in ("iteration", "updates_since_sampling")]
        return any(count == 0 for count in counts) and not any(count for count in counts)

    def has(self, need: str) -> bool:
        """Whether a check's need is met: a name of Evidence, Batch, `meta.…`, `reported.…`, or several joined by " or "."""
        return any(self._part(name) is not None for name in need.split(" or "))

    def _part(self, name: str) -> Any:
        if name == "eos_token_ids":
            return self.eos_ids or None
        if name == "--model":  # our own step is not scored again for every badge
            return self.policy if self.trace is None else None
        place, _, key = name.rpartition(".")
        if place == "batch":
            return getattr(self.batch, key)
        if place:
            return getattr(self.batch, place).get(key)
        return getattr(self, name) if hasattr(self, name) else getattr(self.batch, name)


@dataclass(frozen=True, kw_only=True)
class Finding:
    """Something a check noticed. A token is (row, position in the row prompt + completion)."""

    check: str
    severity: str
    quantity: str
    message: str  # one sentence with this batch's numbers
    fix: str = ""
    rows: tuple[int, ...] = ()
    tokens: tuple[tuple[int, int], ...] = ()
    expected: dict = field(default_factory=dict)
    found: dict = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """One check's result: `status` is pass, skipped, or the strongest severity among its findings."""

    check: str
    status: str
    findings: tuple[Finding, ...] = ()
    needs: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Check:
    name: str
    run: Callable[[Evidence], list[Finding]]
    needs: tuple[str, ...] = ()  # as `Evidence.has` reads them
    explains: tuple[str, ...] = ()  # checks that find the consequences of what this one finds


def run_checks(evidence: Evidence, checks: Iterable[Check]) -> list[Outcome]:
    """Run each check on the evidence, in the order given."""
    outcomes = []
    for check in checks:
        missing = tuple(need for need in check.needs if not evidence.has(need))
        if missing:
            outcomes.append(Outcome(check=check.name, status="skipped", needs=missing))
            continue
        findings = tuple(check.run(evidence))
        status = max((f.severity for f in findings), key=SEVERITIES.index, default="pass")
        outcomes.append(Outcome(check=check.name, status=status, findings=findings))
    return outcomes
