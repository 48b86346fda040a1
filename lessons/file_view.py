"""What the page says of a batch file: its name, what it lacks, and only what can be drawn."""

import math
from typing import Any

from . import absent
from .lesson import Context, Lesson


def panels(context: Context, lesson: Lesson) -> list[dict[str, Any]]:
    """The lesson's picture; of a batch file that lacks all of it, what that is."""
    return absent.said(context, lesson.needs) or lesson.build(context)


def batch_line(context: Context) -> dict[str, Any] | None:
    """Which batch file this is, what was filled in while it was read, and where the loss comes from."""
    if not context.of_file:
        return None
    untrained = [context.label("not_trained")] if not context.is_trained else []
    lacks = [context.label("batch_no_loss", needs=absent.words(context, context.trace.needs))] if context.trace.needs else []
    return {
        "file": context.source.file if context.source else "", "text": context.label("batch_origin"),
        "notes": [*context.trace.batch.derived, *(word.replace("`", "") for word in lacks)], "untrained": untrained,
        "summary": context.label("batch_notes"),
    }  # fmt: skip


def drawable(value: Any) -> Any:
    """Bars, tints and axes know no NaN and no infinity: as None they are left out. Numbers on screen are texts by now."""
    if isinstance(value, dict):
        return {key: drawable(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [drawable(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
