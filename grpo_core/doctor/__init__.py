"""Checks on one step: small functions in one table, used as badges in the lessons and as the doctor of a batch."""

from .checks import CHECKS
from .finding import Evidence, Finding, Outcome, run_checks

__all__ = ["CHECKS", "Evidence", "Finding", "Outcome", "run_checks"]
