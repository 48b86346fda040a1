"""What a check sees, what it says, and how the table of checks is run."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from jaxtyping import Float
from torch import Tensor

from ..explain import UpdateEffect, VocabularyRow
from ..policy import Policy
from ..types import StepTrace, Update

SEVERITIES = ("info", "warning", "error")


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """Everything that a check may look at. A check that needs a part that is None is skipped, and says what it needs."""

    trace: StepTrace
    update: int = 0  # the update looked at
    policy: Policy | None = None  # for the vocabulary, special ids and the tokenizer only
    token: tuple[int, int] | None = None  # [row, column] of the selected token
    row: VocabularyRow | None = None  # the selected token's distribution
    exact_kl: Float[Tensor, "B T"] | None = None
    effect: UpdateEffect | None = None  # what the update did to the tokens

    @property
    def step(self) -> Update:
        return self.trace.updates[self.update]


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
    needs: tuple[str, ...] = ()  # fields of Evidence


def run_checks(evidence: Evidence, checks: Iterable[Check]) -> list[Outcome]:
    """Run each check on the evidence, in the order given."""
    outcomes = []
    for check in checks:
        missing = tuple(name for name in check.needs if getattr(evidence, name) is None)
        if missing:
            outcomes.append(Outcome(check=check.name, status="skipped", needs=missing))
            continue
        findings = tuple(check.run(evidence))
        status = max((f.severity for f in findings), key=SEVERITIES.index, default="pass")
        outcomes.append(Outcome(check=check.name, status=status, findings=findings))
    return outcomes
