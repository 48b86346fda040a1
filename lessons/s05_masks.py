"""Lesson 5: one row, three masks. Explains types.Batch and rollout.generate_tokens's bookkeeping."""

from grpo_core.rollout import generate_tokens
from grpo_core.types import Batch

from .components import text
from .figures import all_positions, lines_table, strip
from .lesson import Context
from .source import assignment, whole

slug = "masks"
formula = None
tensors = ("attention_mask", "completion_mask", "loss_mask")
checks = ("eos_in_mask", "mask_after_eos")
journey = ()
asks = ("finish_reasons",)


def build(context: Context) -> list[dict]:
    kinds = ["pad", "special", "prompt", "completion", "eos", "cut", *(["untrained"] if context.of_file else [])]
    legend = [{"k": k, "label": context.label(f"kind_{k}")} for k in kinds]
    bands = strip(
        context, context.rows.shown, all_positions(context), title=context.label("mask_bands"), legend=legend, wide=True,
        aligned="bands", caption_html=context.html(context.label("mask_bands_caption")),
    )  # fmt: skip
    masks = lines_table(
        context, ("input_ids", "attention_mask", "completion_mask", "loss_mask"), all_positions(context)(context.row),
        title=context.label("mask_lines"), caption_html=context.html(context.label("mask_lines_caption")),
    )  # fmt: skip
    cut = [text(html=context.html(context.label("cut_not_trained")))] if context.recipe.mask_truncated else []
    return [*cut, masks, bands]


def source(context: Context) -> list[dict]:
    return [assignment(generate_tokens, "alive"), whole(Batch.row_completion_mask), whole(Batch.trained_mask)]


def check(context: Context, answer: str) -> bool:
    """Is the EOS trained? Where a row has one, its mask says so."""
    stopped = [row for row, reason in enumerate(context.rows.finish_reasons or ()) if reason == "stop"]
    ids, eos = context.trace.batch.row_ids(), context.tokens.eos_ids
    trained = all(int(ids[row, pos]) in eos for row in stopped for pos in context.trained_positions(row)[-1:] or [0])
    return answer == ("yes" if trained else "no")
