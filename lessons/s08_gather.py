"""Lesson 8: gather picks one cell of each row: the log-prob of the id that was sampled. Explains logprobs.gather."""

from grpo_core import logprobs as core

from .absent import said
from .components import matrix
from .examples import gather_example, op_compute_log_probs_example
from .figures import lines_table, piece, window
from .lesson import Context
from .source import whole

slug = "gather"
tensors = ("logprobs", "labels", "policy_logprobs")
checks = ("gather_matches_sampler",)
journey = ("policy_logprobs",)


def formula(context: Context) -> str:
    return r"<<policy_logprobs>> = \log p_t[\,<<labels>>\,]"


def build(context: Context) -> list[dict]:
    scored = [pos for pos in range(context.positions[0], context.positions[-1] + 1)]
    numbers = lines_table(
        context, ("loss_mask", "labels", "policy_logprobs"), scored, title=context.label("gather_lines"),
        caption_html=context.html(context.label("gather_lines_caption")),
    )  # fmt: skip
    return [*cells(context), numbers, *gather_example(context), *op_compute_log_probs_example(context)]


def cells(context: Context) -> list[dict]:
    """A few rows of log-probs, and the cell that is picked out of each."""
    at = {pos: context.distribution_at(context.row, pos) for pos in window(context, context.trained_positions(context.row), 8)}
    known = {pos: row for pos, row in at.items() if row is not None}
    if not known:
        return said(context, ("logprobs",))
    places, rows = list(known), list(known.values())
    ids = list(dict.fromkeys(row.sampled_id for row in rows))
    cells = [
        [context.number("logprobs", context.row, pos, place=i) for i in ids] for pos in places
    ]  # fmt: skip
    picked = matrix(
        rows=[{"p": pos, "label": f"{pos - 1} → {pos}", "index": context.number("labels", context.row, pos)} for pos in places],
        columns=[{"id": i, "text": piece(context, i)} for i in ids], cells=cells,
        picked=[ids.index(row.sampled_id) for row in rows],
        title=context.label("gather_matrix"), caption_html=context.html(context.label("gather_matrix_caption")),
    )  # fmt: skip
    return [picked]


def source(context: Context) -> list[dict]:
    return [whole(core.labels), whole(core.gather)]


def check(context: Context, answer: str) -> bool:
    """What shape has gather's index? One id per row."""
    return answer == "one"
