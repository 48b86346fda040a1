"""The Compare page: a heading, numbered sections of panels, and the panels that somebody fills in."""

from collections.abc import Sequence
from typing import Any

from ..shared.component import panel
from ..shared.html import Drawn


class Compare(Drawn):
    """All of the page beside the navigation; it also keeps the address bar."""

    VIEW = "compare"
    SENDS = ("choose", "select", "clear", "order", "swap", "table", "csv")
    LABELS = (
        "brand", "no_token", "masked", "token", "position", "chart_loading", "which_update", "update_info", "compare_running",
        "compare_open_file", "compare_open_hint", "compare_swap", "compare_filter", "compare_all_trainers", "compare_trainer",
        "compare_all", "compare_count", "compare_csv", "compare_preset", "compare_source", "compare_logged", "compare_logs_as",
        "compare_value", "compare_honest", "compare_note", "compare_as", "compare_strip", "compare_none", "compare_unfold",
        "bridge_earlier", "bridge_later", "bridge_usual", "bridge_idle", "bridge_gradient_only", "bridge_before",
        "bridge_after", "bridge_more", "bridge_together", "printed_label", "printed_find", "printed_from_file", "printed_gap",
        "map_lit", "map_dark", "batch_remarks",
    )  # fmt: skip


def batch_source(
    *,
    name: str,
    size: str,
    remarks: Sequence[str],
    updates: Sequence[dict[str, Any]],
    other: dict[str, str] | None,
    note_html: str | None,
) -> dict[str, Any]:
    """What is compared on. updates: {index, label, current}; other: {label, batch}, a batch to go to."""
    return panel(
        "batch_source", None, None, True,
        name=name, size=size, remarks=list(remarks), updates=list(updates), other=other, note_html=note_html,
    )  # fmt: skip


def preset_pair(*, presets: Sequence[dict[str, str]], a: str, b: str, needs: Sequence[str]) -> dict[str, Any]:
    """The two lists to choose A and B from. presets: {name, trainer, version}."""
    return panel("preset_pair", None, None, True, presets=list(presets), a=a, b=b, needs=list(needs))


def printed_loss(
    *, value: str, from_file: bool, sentence: str, matches: Sequence[dict[str, Any]], more: str = ""
) -> dict[str, Any]:
    """A field for a number. matches: {preset, trainer, version, how, v, gap, exact}."""
    return panel(
        "printed_loss", None, None, True,
        value=value, from_file=from_file, sentence=sentence, matches=list(matches), more=more,
    )  # fmt: skip
