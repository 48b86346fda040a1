"""Lesson 2: G completions of each prompt, token by token. Explains rollout.generate_tokens."""

from grpo_core.rollout import generate_tokens

from .absent import lacking, said
from .components import table
from .figures import completion_positions, row_label, strip
from .lesson import Context
from .quantities import tensor_of
from .source import assignment

slug = "sample"
tensors = ("sampler_logprobs", "kept_mass", "input_ids")
checks = ("sampler_logprobs_match",)
journey = ("sampler_logprobs",)
asks = ("finish_reasons",)


def formula(context: Context) -> str:
    return r"<<sampler_probs>> = \exp(<<sampler_logprobs>>)"


def build(context: Context) -> list[dict]:
    known, rows = not lacking(context, ("sampler_probs",)), context.rows
    probabilities = tensor_of(context, "sampler_probs") if known else None
    strips = strip(
        context, rows.shown, completion_positions(context), sub="sampler_probs",
        tint=None if probabilities is None else lambda row, pos: float(probabilities[row, context.column_of(pos)]),
        badge=lambda row: finish(context, row),
        title=context.label("sample_strips"), caption_html=context.html(context.label("sample_strips_caption")),
        legend=[{"tint": 0.15, "label": context.label("unlikely")}, {"tint": 0.95, "label": context.label("likely")},
                {"k": "eos", "label": context.label("kind_eos")}],
        wide=True,
    )  # fmt: skip
    texts = table(
        columns=[context.label(key) for key in ("column_row", "column_prompt", "column_completion", "column_tokens")],
        rows=[
            [row_label(context, row), rows.prompt(row), rows.text(row), context.number("row_tokens", row)]
            for row in rows.shown
        ],
        row_ids=rows.shown, title=context.label("sample_texts"), wide=True,
    )  # fmt: skip
    return [*said(context, ("sampler_logprobs",)), strips, texts]


def finish(context: Context, row: int) -> str | None:
    """How the answer ended: in words where they are known, else as the file says it."""
    reasons = context.rows.finish_reasons
    if reasons is None:
        return None
    return context.label(f"finish_{reasons[row]}") if reasons[row] in ("stop", "length") else reasons[row][:40]


def source(context: Context) -> list[dict]:
    return [assignment(generate_tokens, name) for name in ("logprobs", "chosen", "mass", "kept", "alive")]


def check(context: Context, answer: str) -> bool:
    """How many of the completions ended by themselves?"""
    reasons = context.rows.finish_reasons or ()
    stopped = sum(reason == "stop" for reason in reasons)
    return answer == ("all" if stopped == len(reasons) else "none" if stopped == 0 else "some")
