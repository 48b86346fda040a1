"""What the doctor says of the batch: findings, causes first, each with its tokens and the way to the lesson that shows it."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from grpo_core import CHECKS, Finding, Recipe
from grpo_core.doctor.diagnose import Diagnosis

from .. import LESSONS, badges, link, prose, view
from ..components import finding_list
from ..figures import VISIBLE
from ..numbers import shown
from . import made
from .link import Wanted
from .source import Source

SIGNS = {"error": "✕", "warning": "!", "info": "i"}
TOKENS, ROWS = 12, 24  # that are listed; the rest is counted
LONGEST = 120  # characters of one found or expected value
HOME = {check: lesson.slug for lesson in reversed(LESSONS) for check in badges.hanging(lesson.slug, lesson.checks)}


def panel(wanted: Wanted, batch: Source, found: Diagnosis) -> dict[str, Any]:
    """The verdict, the findings, and the other checks folded."""
    lang, checks = wanted.selection.lang, prose.lines(wanted.selection.lang, "checks")
    counts = {severity: sum(f.severity == severity for f in found.findings) for severity in SIGNS}
    said = [prose.label(lang, f"debug_count_{severity}", count=count) for severity, count in counts.items() if count]
    total = len({f.check for f in found.findings}) + len(found.passed)
    plain = made.kept(("report", batch.key), lambda: found.as_json(batch.batch))["findings"]
    verdict = "debug_verdict_found" if counts["error"] or counts["warning"] else "debug_verdict_sound"
    return finding_list(
        verdict=prose.label(lang, verdict, checks=total, counts=", ".join(said)), worst=worst(found),
        findings=[
            _finding(wanted, batch, place, found, checks) | {"numbers": numbers(said["found"], said["expected"])}
            for place, said in enumerate(plain)
        ],
        passed=[{"check": name, "label": checks.get(name, "")} for name in found.passed],
        skipped=[{"check": o.check, "label": checks.get(o.check, ""), "needs": ", ".join(o.needs)} for o in found.skipped],
    )  # fmt: skip


def worst(found: Diagnosis) -> str:
    """The strongest severity, or `pass`."""
    return next((severity for severity in SIGNS if any(f.severity == severity for f in found.findings)), "pass")


def _finding(wanted: Wanted, batch: Source, place: int, found: Diagnosis, checks: Mapping[str, str]) -> dict[str, Any]:
    lang, finding = wanted.selection.lang, found.findings[place]
    slug = HOME[finding.check]  # the lesson with that badge
    tokens = [
        {"r": row, "p": pos, "text": batch.text(row, pos).translate(VISIBLE), "label": batch.labels[row]}
        for row, pos in finding.tokens[:TOKENS]
    ]  # fmt: skip
    title = prose.sections(lang, slug)["title"]
    return {
        "n": place + 1, "check": finding.check, "label": checks.get(finding.check, ""), "severity": finding.severity,
        "sign": SIGNS[finding.severity], "word": prose.label(lang, f"debug_{finding.severity}"), "message": finding.message,
        "fix": finding.fix, "quantity": finding.quantity, "tokens": tokens, "all_tokens": len(finding.tokens),
        "rows": [batch.labels[row] for row in finding.rows[:ROWS]], "all_rows": len(finding.rows),
        "explains": said_of(lang, explained(found, place)), "by": explained_by(found, place),
        "filter": f"check:{finding.check}" if finding.rows or finding.tokens else "",
        "href": lesson_href(wanted, batch, slug, finding), "lesson": prose.label(lang, "debug_show", title=title),
    }  # fmt: skip


def lesson_href(wanted: Wanted, batch: Source, slug: str, finding: Finding) -> str:
    """The lesson, on this very batch, with the finding's first token selected; "" where it is too large for them."""
    row, pos = finding.tokens[0] if finding.tokens else (finding.rows[0] if finding.rows else 0, -1)
    recipe = lesson_recipe(wanted, batch)
    there = replace(wanted.selection, lesson=slug, row=row, pos=pos, update=batch.update)
    return "./" + link.query(recipe, there) if recipe else ""


def lesson_recipe(wanted: Wanted, batch: Source) -> Recipe | None:
    """Under which the lessons show this batch: the step's own, or that of the batch as a file."""
    if batch.recipe is not None and not batch.planted:
        return wanted.recipe
    try:
        return view.bench().sources.recipe(made.lesson_model(batch))
    except ValueError:
        return None


def explained(found: Diagnosis, place: int) -> list[int]:
    """The numbers of the findings behind this one that are its consequences."""
    behind = set(CHECKS[found.findings[place].check].explains)
    return [n for n, other in enumerate(found.findings, start=1) if n > place + 1 and other.check in behind]


def explained_by(found: Diagnosis, place: int) -> int:
    """The number of the first finding that this one is a consequence of; 0: none."""
    return next((n + 1 for n in range(place) if place + 1 in explained(found, n)), 0)


def said_of(lang: str, others: list[int]) -> str:
    return prose.label(lang, "debug_explains", numbers=", ".join(map(str, others))) if others else ""


def numbers(found: Mapping[str, Any], expected: Mapping[str, Any]) -> list[dict[str, str]]:
    """What was found beside what was expected, by name."""
    return [
        {"name": str(name), "found": written(found.get(name)), "expected": written(expected.get(name))}
        for name in dict.fromkeys((*expected, *found))
    ]  # fmt: skip


def written(value: Any, longest: int = LONGEST) -> str:
    """A number as everywhere on the page, a list in brackets, a table as `name value`; cut where it is long, "" for None."""
    if value is None:
        return ""
    text = _plain(value)
    return text if len(text) <= longest else f"{text[:longest]}…"


def _plain(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_plain(item)}" for name, item in value.items())
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_plain, value[: LONGEST // 2]))}]"
    return shown(value) if isinstance(value, (bool, int, float)) else str(value)


def rows_named(found: Diagnosis, check: str = "") -> dict[int, int]:
    """Row -> how many findings name it or one of its tokens; only those of one check, where it is given."""
    counted: dict[int, int] = {}
    for finding in found.findings:
        if finding.severity == "info" and not check or check and finding.check != check:
            continue
        for row in {*finding.rows, *(row for row, _ in finding.tokens)}:
            counted[row] = counted.get(row, 0) + 1
    return counted


def tokens_named(found: Diagnosis) -> dict[int, set[int]]:
    """Row -> the positions that a finding names."""
    named: dict[int, set[int]] = {}
    for finding in found.findings:
        for row, pos in finding.tokens:
            named.setdefault(row, set()).add(pos)
    return named
