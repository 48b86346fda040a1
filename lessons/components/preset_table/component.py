"""Every preset's numbers on one batch: a strip with their losses, and a table that sorts, filters and unfolds."""

from collections.abc import Sequence
from typing import Any

from ..shared.component import panel


def preset_table(
    *, columns: Sequence[dict[str, str]], rows: Sequence[dict[str, Any]], trainers: Sequence[str], a: str, b: str
) -> dict[str, Any]:
    """columns: {name, label}; rows: {name, trainer, version, summary, default?, needs?, cells: [{v, x} or None]}.

    x: the number itself, to sort by; v: how it is written. The first column is the loss.
    """
    return panel("preset_table", None, None, True, columns=list(columns), rows=list(rows), trainers=list(trainers), a=a, b=b)
