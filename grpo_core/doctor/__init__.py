"""Checks on one batch or step: small functions in one table, used as badges in the lessons and as the doctor of a batch."""

from .checks import CHECKS
from .diagnose import Diagnosis, diagnose, in_order, positions
from .finding import Check, Evidence, Finding, Outcome, run_checks

__all__ = [
    "CHECKS", "Check", "Diagnosis", "Evidence", "Finding", "Outcome", "diagnose", "in_order", "positions", "run_checks",
]  # fmt: skip
