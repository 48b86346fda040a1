"""`python -m grpo_core doctor FILE`: what is wrong with one batch, where, and what the numbers should have been."""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from ..batch import Batch
from ..batch_file import remarks
from ..doctor import Diagnosis, Finding, diagnose, positions
from ..importers import open_any
from ..loading import load_policy
from ..report import report_html
from .output import plain

TOKENS_PRINTED = 12
WIDTH = 100  # of a printed value


def add(commands: Any) -> None:
    """The command's arguments."""
    command = commands.add_parser("doctor", help="what is wrong with one batch file, and what the numbers should have been")
    command.add_argument("file", metavar="FILE", help="a batch file, or what `convert` reads")
    command.add_argument("--model", metavar="PATH|ID", help="score the rows again with this model")
    command.add_argument("--preset", metavar="NAME", help="the convention that the batch was made under, such as trl or verl")
    command.add_argument("--json", action="store_true", help="one JSON object instead of text")
    command.add_argument("--html", metavar="OUT", help="write the report as one HTML page that needs nothing else")
    command.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Exit status: 0, or 1 where there is an error. Raises ValueError for what cannot be read."""
    policy = load_policy(arguments.model) if arguments.model else None
    batch, _ = open_any(arguments.file, policy)
    diagnosis = diagnose(batch, policy, arguments.preset)
    if arguments.html:
        write_report(arguments.html, report_html(batch, diagnosis, Path(arguments.file).name))
    if arguments.json:
        json.dump(diagnosis.as_json(batch), sys.stdout, indent=1, allow_nan=False)
        print()
    else:
        print_diagnosis(diagnosis, batch)
    return int(diagnosis.has_error)


def write_report(path: str, text: str) -> None:
    """Raises ValueError where it cannot be written."""
    try:
        Path(path).write_text(text, encoding="utf-8", errors="backslashreplace")
    except (OSError, ValueError) as error:
        raise ValueError(f"--html: {path}: cannot be written ({getattr(error, 'strerror', None) or error})") from error


def print_diagnosis(diagnosis: Diagnosis, batch: Batch) -> None:
    for finding in diagnosis.findings:
        print_finding(finding, batch)
    counts = {severity: sum(f.severity == severity for f in diagnosis.findings) for severity in ("error", "warning", "info")}
    said = ", ".join(f"{count} {severity}" for severity, count in counts.items())
    print(f"{len(batch.row_ids())} rows: {said}; {len(diagnosis.passed)} checks passed, {len(diagnosis.skipped)} skipped")
    for outcome in diagnosis.skipped:
        print(f"skipped  {outcome.check}: needs {', '.join(outcome.needs)}")
    for remark in (*batch.derived, *remarks(batch)):
        print(remark)


def print_finding(finding: Finding, batch: Batch) -> None:
    print(f"{finding.severity:8} {finding.check}: {finding.message}")
    if finding.rows:
        print(f"         rows {_some(finding.rows)}")
    if places := positions(finding, batch):
        print(f"         tokens {_some([list(place) for place in places])} of {finding.quantity}")
    for name, values in (("expected", finding.expected), ("found", finding.found)):
        for key, value in values.items():
            print(f"         {name} {key}: {_short(value)}")
    if finding.fix:
        print(f"         {finding.fix}")
    print()


def _some(items: Any) -> str:
    items = list(items)
    more = f" and {len(items) - TOKENS_PRINTED} more" if len(items) > TOKENS_PRINTED else ""
    return ", ".join(map(str, items[:TOKENS_PRINTED])) + more


def _short(value: Any) -> str:
    value = value.tolist() if hasattr(value, "tolist") else value
    text = str(plain(round(value, 7)) if isinstance(value, float) else value)
    return text if len(text) <= WIDTH else f"{text[:WIDTH]} …"
