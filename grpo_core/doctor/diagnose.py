"""One batch through every check: findings with causes first, what passed, and what could not be looked at."""

import math
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ..batch import Batch
from ..policy import Policy
from .checks import CHECKS
from .finding import SEVERITIES, Evidence, Finding, Outcome, run_checks

PLACES_SHOWN = 4096  # of a tensor in the report: beyond that a report is longer than the batch


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """What the doctor says of one batch."""

    findings: tuple[Finding, ...]  # causes first
    passed: tuple[str, ...]  # names of checks
    skipped: tuple[Outcome, ...]  # with what they need

    @property
    def has_error(self) -> bool:
        return any(finding.severity == "error" for finding in self.findings)

    def as_json(self, batch: Batch) -> dict[str, Any]:
        """The report as plain values; a token is [row, position in completion_ids or input_ids], as the file has it."""
        return {
            "findings": [_finding(finding, batch) for finding in self.findings],
            "passed": list(self.passed),
            "skipped": [{"check": outcome.check, "needs": list(outcome.needs)} for outcome in self.skipped],
        }


def diagnose(batch: Batch, policy: Policy | None = None, preset: str | None = None) -> Diagnosis:
    """Every check of a batch. `policy` scores the rows again; `preset` says whose convention it was made under.

    Raises ValueError for a preset that does not exist and for settings in the file that cannot be read.
    """
    evidence = Evidence(batch=batch, policy=policy, preset=preset)
    outcomes = run_checks(evidence, (check for check in CHECKS.values() if not _about_a_step(check.needs)))
    return Diagnosis(
        findings=in_order(finding for outcome in outcomes for finding in outcome.findings),
        passed=tuple(outcome.check for outcome in outcomes if outcome.status == "pass"),
        skipped=tuple(outcome for outcome in outcomes if outcome.status == "skipped"),
    )


def _about_a_step(needs: tuple[str, ...]) -> bool:
    """A check that no batch file can answer, whatever it holds: it looks at a step of our own."""
    return bool({"trace", "row", "token", "effect"} & set(needs))


def in_order(findings: Any) -> tuple[Finding, ...]:
    """Causes before consequences: a finding is as urgent as the worst that it explains, then comes the table's order."""
    found = tuple(findings)
    worst = {name: max(SEVERITIES.index(f.severity) for f in found if f.check == name) for name in {f.check for f in found}}
    place = {name: number for number, name in enumerate(CHECKS)}

    def key(finding: Finding) -> tuple[int, int, int]:
        own = SEVERITIES.index(finding.severity)
        explained = [worst[name] for name in CHECKS[finding.check].explains if name in worst]
        urgency = max([own, *explained]) if own else own  # what is right explains no fault
        return -urgency, place[finding.check], -own

    return tuple(sorted(found, key=key))


def _finding(finding: Finding, batch: Batch) -> dict[str, Any]:
    return {
        "check": finding.check, "severity": finding.severity, "quantity": finding.quantity, "rows": list(finding.rows),
        "tokens": [[row, place] for row, place in positions(finding, batch)],
        "expected": _plain(finding.expected), "found": _plain(finding.found), "message": finding.message, "fix": finding.fix,
    }  # fmt: skip


def positions(finding: Finding, batch: Batch) -> list[tuple[int, int]]:
    """The finding's tokens as (row, position in `completion_ids`), in `input_ids` in layout sequence, in a `prompt_…` tensor
    where the finding is about one."""
    whole = batch.prompt_ids is None or finding.quantity.startswith("prompt_")
    shift = 0 if whole or batch.prompt_ids is None else batch.prompt_ids.shape[1]
    return [(row, place - shift) for row, place in finding.tokens if place >= shift]


def _plain(value: Any) -> Any:
    """Tensors as lists, NaN and the infinities as words."""
    if isinstance(value, dict):
        return {str(name): _plain(item) for name, item in value.items()}
    if isinstance(value, Tensor):
        value = value.int() if value.dtype.is_floating_point is False else value
        return _plain(value.tolist() if value.numel() <= PLACES_SHOWN else f"{list(value.shape)} values")
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}[str(value)]
    return value
