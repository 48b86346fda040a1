"""The Debug page: a batch to choose, what it is, what is wrong with it, any number in it, and what a trainer would print."""

from collections.abc import Sequence
from typing import Any

from ..shared.component import panel
from ..shared.html import Drawn


class Debug(Drawn):
    """All of the page beside the navigation; it also keeps the address bar."""

    VIEW = "debug"
    SENDS = ("choose", "select", "clear", "save")
    LABELS = (
        "brand", "no_token", "masked", "token", "position", "which_update", "compare_logged", "compare_logs_as",
        "compare_value", "compare_honest", "compare_note", "debug_drop", "debug_open", "debug_drop_hint", "debug_try",
        "debug_too_large", "debug_reading", "debug_compare", "debug_present", "debug_absent", "debug_settings",
        "debug_reported", "debug_remarks", "debug_framework", "debug_preset", "debug_found", "debug_expected", "debug_fix",
        "debug_rows_named", "debug_tokens_named", "debug_more", "debug_passed", "debug_skipped", "debug_needs",
        "debug_in_grid", "debug_quantity", "debug_sort", "debug_falling", "debug_rising", "debug_filter", "debug_window",
        "debug_up", "debug_down", "debug_left", "debug_right", "debug_missing", "debug_overview", "debug_overview_alt",
        "debug_no_rows", "debug_fact_reward", "debug_fact_advantage", "debug_fact_length", "debug_named", "debug_as",
        "debug_own", "debug_file_says", "debug_derived", "debug_save_html", "debug_save_json", "debug_quantity_name",
        "debug_explained_by", "debug_overview_log", "debug_details", "debug_holds",
    )  # fmt: skip


def batch_chooser(*, cards: Sequence[dict[str, Any]], open: bool, most: int) -> dict[str, Any]:
    """Where a file is dropped, and what can be tried. cards: {batch, label, info, current}; most: bytes of a file."""
    return panel("batch_chooser", None, None, True, cards=list(cards), open=open, most=most)


def batch_about(
    *, name: str, numbers: Sequence[dict[str, str]], updates: Sequence[dict[str, Any]], compare: str, preset: str,
    framework: str, recognised: str, present: Sequence[dict[str, str]], absent: Sequence[dict[str, str]],
    settings: Sequence[dict[str, str]], reported: Sequence[dict[str, str]], remarks: Sequence[str],
) -> dict[str, Any]:  # fmt: skip
    """What the batch is. numbers: {name, label, value, note}; compare: the address of its comparison, or ""."""
    return panel(
        "batch_about", None, None, True,
        name=name, numbers=list(numbers), updates=list(updates), compare=compare, preset=preset, framework=framework,
        recognised=recognised,
        present=list(present), absent=list(absent), settings=list(settings), reported=list(reported), remarks=list(remarks),
    )  # fmt: skip


def finding_list(
    *, verdict: str, worst: str, findings: Sequence[dict[str, Any]], passed: Sequence[dict[str, str]],
    skipped: Sequence[dict[str, str]],
) -> dict[str, Any]:  # fmt: skip
    """What was found, causes first. worst: error, warning, info or pass; see `debug.findings` for a finding's parts."""
    return panel(
        "finding_list", None, None, True,
        verdict=verdict, worst=worst, findings=list(findings), passed=list(passed), skipped=list(skipped),
    )  # fmt: skip


def batch_grid(
    *, quantity: str, positions: Sequence[int], rows: Sequence[dict[str, Any]], max: float, log: bool, top: int, left: int,
    all_rows: int, all_columns: int, step: Sequence[int], quantities: Sequence[dict[str, str]], missing: Sequence[str],
    sorts: Sequence[dict[str, str]], sort: str, filters: Sequence[dict[str, str]], filter: str, caption: str,
    overview: dict[str, Any] | None,
) -> dict[str, Any]:  # fmt: skip
    """A window of a [B T] tensor. rows: {row, label, facts, named, cells: {v, t?, f?}}; v None: no number; t: the token's
    text; f: a finding names it. max: the distance from 0 (`log`: the logarithm's) that gets the full colour. overview:
    {lines, peak, log}, a digit a cell, `.` for nothing, `!` for what is no number.
    """
    return panel(
        "batch_grid", None, None, True,
        quantity=quantity, positions=list(positions), rows=list(rows), max=max, log=log, top=top, left=left,
        all_rows=all_rows, all_columns=all_columns, step=list(step), quantities=list(quantities), missing=list(missing),
        sorts=list(sorts), sort=sort, filters=list(filters), filter=filter, caption=caption, overview=overview,
    )  # fmt: skip


def token_card(
    *, text: str, row: int, pos: int, label: str, said: str, lines: Sequence[dict[str, Any]], facts: Sequence[dict[str, Any]]
) -> dict[str, Any]:  # fmt: skip
    """All numbers of one token. lines: {label, name, n}."""
    return panel(
        "token_card",
        None,
        None,
        True,
        text=text,
        row=row,
        pos=pos,
        label=label,
        said=said,
        lines=list(lines),
        facts=list(facts),
    )


def trainer_prints(
    *, presets: Sequence[dict[str, str]], preset: str, own: bool, said: str, needs: str, lines: Sequence[dict[str, Any]],
    derived: Sequence[str], quirk: str,
) -> dict[str, Any]:  # fmt: skip
    """A trainer's numbers. lines: {name, value, honest_name, honest_value, note, reported}."""
    return panel(
        "trainer_prints", None, None, True,
        presets=list(presets), preset=preset, own=own, said=said, needs=needs, lines=list(lines), derived=list(derived),
        quirk=quirk,
    )  # fmt: skip


def report_saver(*, kinds: Sequence[str]) -> dict[str, Any]:
    """A button for each kind of report."""
    return panel("report_saver", None, None, True, kinds=list(kinds))
