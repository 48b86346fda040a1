"""Lesson 6: one position's row over the vocabulary: raw, divided by T, softmax. Explains logprobs.log_softmax."""

from grpo_core import logprobs as core
from grpo_core.policy import Policy

from .components import vocab_bars
from .figures import piece, token
from .lesson import Context
from .numbers import shown
from .source import whole

slug = "logits"
tensors = ("logits", "scaled_logits", "logprobs", "probs")
checks = ("probabilities_sum",)
journey = ("logits",)
needs = ("logits",)
SHOWN = 16


def formula(context: Context) -> str:
    softmax = r"<<probs>> = \frac{\exp(<<logits>> / <<temperature>>)}{\sum_u \exp(z_u / <<temperature>>)}"
    return softmax + "\n" + r"<<logprobs>> = \frac{<<logits>>}{<<temperature>>} - \log \sum_u \exp(z_u / <<temperature>>)"


def entries(context: Context, names: tuple[str, ...], ids: list[int], bar: str) -> list[dict]:
    """The vocabulary entries `ids` with their numbers and a bar as long as `bar` says."""
    row = context.vocabulary
    ranks = {int(token_id): place for place, token_id in enumerate(row.order.tolist(), start=1)}
    longest = max((abs(context.value(bar, place=i)) for i in ids), default=0) or 1
    return [
        {
            "id": i, "text": piece(context, i), "rank": ranks[i], "sampled": i == row.sampled_id,
            "values": [context.number(name, context.row, context.pos, place=i) for name in names],
            "bar": context.value(bar, place=i) / longest,
        }
        for i in ids
    ]  # fmt: skip


def top_ids(context: Context) -> list[int]:
    """The likeliest ids, the sampled one among them."""
    row = context.vocabulary
    likeliest = row.order[:SHOWN].tolist()
    return likeliest if row.sampled_id in likeliest else [*likeliest[:-1], row.sampled_id]


def build(context: Context) -> list[dict]:
    ids = top_ids(context)
    left = context.vocabulary.probs.shape[0] - len(ids)
    before = token(context, context.row, context.pos - 1)  # a token that has logits is never the first
    return [
        vocab_bars(
            row=context.row, pos=context.pos, from_=context.pos - 1,
            columns=["logits", f"÷ T = {shown(context.recipe.temperature)}", "probs"],
            entries=entries(context, ("logits", "scaled_logits", "probs"), ids, "probs"),
            rest=context.label("logits_rest", count=left), wide=True,
            title=context.label("logits_row", piece=before["text"], pos=context.pos - 1),
            caption_html=context.html(context.label("logits_caption")),
        )
    ]  # fmt: skip


def source(context: Context) -> list[dict]:
    return [whole(Policy.project), whole(core.log_softmax)]


def check(context: Context, answer: str) -> bool:
    """Is the sampled token the likeliest one?"""
    return answer == ("yes" if context.vocabulary.rank == 1 else "no")
