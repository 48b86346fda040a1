"""Lesson 2: G completions of each prompt, token by token. Explains rollout.generate."""

from grpo_core.rollout import generate

from .components import table
from .figures import completion_positions, row_label, strip
from .lesson import Context
from .quantities import tensor_of
from .source import assignment

slug = "sample"
tensors = ("sampler_logprobs", "kept_mass", "input_ids")
checks = ("sampler_logprobs_match",)
journey = ("sampler_logprobs",)


def formula(context: Context) -> str:
    return r"<<sampler_probs>> = \exp(<<sampler_logprobs>>)"


def build(context: Context) -> list[dict]:
    probabilities = tensor_of(context, "sampler_probs")
    rollout = context.trace.rollout
    rows = range(len(rollout.completions))
    strips = strip(
        context, rows, completion_positions(context), sub="sampler_probs",
        tint=lambda row, pos: float(probabilities[row, context.column_of(pos)]),
        badge=lambda row: context.label(f"finish_{rollout.finish_reasons[row]}"),
        title=context.label("sample_strips"), caption_html=context.html(context.label("sample_strips_caption")),
        legend=[{"tint": 0.15, "label": context.label("unlikely")}, {"tint": 0.95, "label": context.label("likely")},
                {"k": "eos", "label": context.label("kind_eos")}],
        wide=True,
    )  # fmt: skip
    texts = table(
        columns=[context.label(key) for key in ("column_row", "column_prompt", "column_completion", "column_tokens")],
        rows=[
            [row_label(context, row), rollout.prompts[int(rollout.group_ids[row])], rollout.completions[row],
             context.number("row_tokens", row)]
            for row in rows
        ],
        row_ids=list(rows), title=context.label("sample_texts"), wide=True,
    )  # fmt: skip
    return [strips, texts]


def source(context: Context) -> list[dict]:
    return [assignment(generate, name) for name in ("logprobs", "chosen", "kept", "alive")]


def check(context: Context, answer: str) -> bool:
    """How many of the completions ended by themselves?"""
    reasons = context.trace.rollout.finish_reasons
    stopped = sum(reason == "stop" for reason in reasons)
    return answer == ("all" if stopped == len(reasons) else "none" if stopped == 0 else "some")
