"""Lesson 7: the logits at position t score the token at t+1, and the mask follows the target. Explains logprobs.select."""

from grpo_core import logprobs as core
from grpo_core.types import Batch

from .components import shift
from .examples import shift_exhibits
from .figures import lines_table, token, window
from .lesson import Context
from .source import whole

slug = "shift"
formula = None
tensors = ("input_ids", "loss_mask", "policy_logprobs")
checks = ("shift_probe",)


def build(context: Context) -> list[dict]:
    places = window(context, range(context.rows.width), 26)
    trained = set(context.trained_positions(context.row))
    tokens = [token(context, context.row, pos) for pos in places]
    arrows = shift(
        row=context.row, top=[{"p": t["p"], "text": t["text"]} for t in tokens],
        bottom=[{"p": t["p"], "text": t["text"], "trained": t["p"] in trained} for t in tokens],
        label_top=context.label("shift_top"), label_bottom=context.label("shift_bottom"),
        title=context.label("shift_arrows"),
        caption_html=context.html(context.label(f"shift_caption_{context.trace.batch.layout}")),
    )  # fmt: skip
    numbers = lines_table(
        context, ("loss_mask", "policy_logprobs"), [p for p in places if p >= context.positions[0]],
        title=context.label("shift_numbers"), caption_html=context.html(context.label("shift_numbers_caption")),
    )  # fmt: skip
    return [arrows, numbers, *shift_exhibits(context)]


def source(context: Context) -> list[dict]:
    return [whole(core.select), whole(Batch.token_positions)]


def check(context: Context, answer: str) -> bool:
    """Which position's logits score the selected token?"""
    ids = context.trace.batch.row_ids()
    before = context.token_id == int(ids[context.row, context.pos])
    return answer == ("before" if before else "same")
