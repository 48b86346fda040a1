"""Lesson 14: before and after on the same tokens, and what the new weights sample. Explains Engine.update."""

from grpo_core import explain, step
from grpo_core.engine import Engine

from .components import table, text
from .figures import completion_positions, lines_table, row_label, strip
from .lesson import Context
from .numbers import sign
from .quantities import tensor_of
from .source import whole

slug = "update"
tensors = ("logprobs_before", "logprobs_after", "logprob_change", "row_change")
checks = ("update_applied", "update_direction")
journey = ("logprob_change",)
needs = ("logprob_change",)
MARKS = {1: "▲", -1: "▼", 0: None}


def formula(context: Context) -> str:
    return "" if context.effect is None else r"<<logprob_change>> = <<logprobs_after>> - <<logprobs_before>>"


def build(context: Context) -> list[dict]:
    if context.effect is None:
        return [text(html=context.html(context.label("update_pending")))]
    change = tensor_of(context, "logprob_change")
    most = float(change.abs().max()) or 1.0

    def at(row: int, pos: int) -> float:
        return float(change[row, context.column_of(pos)])

    strips = strip(
        context, range(change.shape[0]), completion_positions(context), sub="logprob_change", wide=True,
        tint=lambda row, pos: at(row, pos) / most, mark=lambda row, pos: MARKS[sign(at(row, pos))],
        badge=lambda row: f"A {context.number('advantages', row)['v']}",
        title=context.label("change_strips"), caption_html=context.html(context.label("change_strips_caption")),
    )  # fmt: skip
    numbers = lines_table(context, ("logprobs_before", "logprobs_after", "logprob_change"), title=context.label("change_lines"))
    return [strips, numbers, rows(context), again(context)]


def rows(context: Context) -> dict:
    """Whole completions: did what was rewarded become likelier?"""
    names = ("advantages", "row_change")
    count = context.rows.shown
    return table(
        columns=[context.label("column_row"), context.label("column_completion"), *names],
        rows=[
            [row_label(context, row), context.rows.text(row), *(context.number(n, row) for n in names)]
            for row in count
        ],
        row_ids=count, title=context.label("row_change_table"), wide=True,
        caption_html=context.html(context.label("row_change_caption")),
    )  # fmt: skip


def again(context: Context) -> dict:
    """The same prompts and the same random numbers, sampled from the new weights."""
    old, new = context.trace.sampled(), context.step.again
    assert new is not None
    return table(
        columns=[context.label(key) for key in ("column_row", "column_before", "column_after_update")],
        rows=[[row_label(context, row), old.completions[row], new.completions[row]] for row in range(len(old.completions))],
        title=context.label("again"), caption_html=context.html(context.label("again_caption")), wide=True,
    )  # fmt: skip


def source(context: Context) -> list[dict]:
    return [whole(step.make_optimizer), whole(explain.update_effect), whole(Engine.update)]


def check(context: Context, answer: str) -> bool:
    """Did every token of the best completion become likelier?"""
    if context.effect is None:
        return False
    best = int(context.trace.advantages.advantages.argmax())
    changes = context.effect.change[best][context.trace.batch.trained_mask()[best]]
    return answer == ("all" if bool((changes > 0).all()) else "not-all")
