"""Lesson 1: a prompt becomes ids, and prompts of different length are padded on the left. Explains rollout.encode_prompts."""

from grpo_core.logprobs import position_ids
from grpo_core.rollout import encode_prompts

from .components import table, text
from .figures import strip
from .lesson import Context
from .source import assignment, whole

slug = "prompt"
formula = None
tensors = ("input_ids", "attention_mask", "position_ids")
checks = ("ids_in_vocab", "double_bos")


def first_rows(context: Context) -> list[int]:
    """One row per prompt; of the selected row's prompt, that row."""
    groups = context.rows.groups
    chosen = {groups[row]: row for row in reversed(context.rows.shown)} | {groups[context.row]: context.row}
    return [chosen[group] for group in sorted(chosen)]


def prompt_label(context: Context, row: int) -> str:
    return context.label("prompt_number", number=context.rows.groups[row] + 1)


def build(context: Context) -> list[dict]:
    def places(row: int) -> list[int]:
        return list(range(context.rows.prompt_end(row)))

    legend = [{"k": k, "label": context.label(f"kind_{k}")} for k in ("prompt", "special", "pad")]
    pieces = strip(
        context, first_rows(context), places, sub="input_ids",
        title=context.label("prompt_pieces"), caption_html=context.html(context.label("prompt_pieces_caption")),
        legend=legend, wide=True, aligned="full", label=prompt_label,
    )  # fmt: skip
    positions = strip(
        context, first_rows(context), places, sub="position_ids",
        title=context.label("prompt_positions"), caption_html=context.html(context.label("prompt_positions_caption")),
        wide=True, aligned="full", label=prompt_label,
    )  # fmt: skip
    if context.of_file:
        return [pieces, positions, joined_ids(context)]
    welcome = text(html=context.html(context.label("welcome")))
    plain = [] if context.policy.has_chat_template else [text(html=context.html(context.label("no_chat_template")))]
    return [welcome, *plain, pieces, positions, joined_ids(context)]


def joined_ids(context: Context) -> dict:
    """The founding document's example: prompt and completion ids are two lists that the model reads as one."""
    lists = (("prompt_ids", "101 123 456 789"), ("completion_ids", "234 567 890"), ("input_ids", "101 123 456 789 234 567 890"))
    return table(
        columns=[context.label("column_quantity"), context.label("ids")], rows=[list(line) for line in lists],
        title=context.label("joined_ids"), caption_html=context.html(context.label("joined_ids_why")),
    )  # fmt: skip


def source(context: Context) -> list[dict]:
    return [assignment(encode_prompts, "ids"), assignment(encode_prompts, "mask"), whole(position_ids)]


def check(context: Context, answer: str) -> bool:
    """Where does the padding go? The first column is padding in some row, the last never is."""
    batch = context.trace.batch
    if context.of_file and batch.prompt_mask is None:  # prompts of several widths, completions right behind them
        return answer == ("right" if bool(batch.row_mask()[:, 0].all()) else "left")
    mask = batch.prompt_mask if context.of_file else context.trace.sampled().prompt_mask
    side = "left" if bool(mask[:, -1].all()) else "right"
    return answer == side
