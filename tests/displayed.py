"""What a displayed number must be, taken straight from the trace: the browser test and the view tests compare with it."""

import re
from collections.abc import Iterator
from typing import Any

from torch import Tensor

from lessons.lesson import Context
from lessons.numbers import shown
from lessons.quantities import QUANTITIES, element

TERMS = (
    "policy_logprobs", "log_ratio", "ratio", "clipped_ratio", "surrogate", "clipped_surrogate", "is_clipped", "correction",
    "token_loss", "token_weight", "policy_loss", "kl", "kl_weight", "kl_loss", "entropy", "entropy_weight", "entropy_loss",
    "loss",
)  # fmt: skip
ADVANTAGES = ("reward", "baseline", "scale", "group_mean", "group_std", "advantages")


def from_trace(context: Context, name: str) -> Any | None:
    """The tensor of a name, read off the trace's own records; None where it is a function of the trace."""
    trace = context.trace
    if not trace.updates:  # a batch file that lacks what the loss needs
        return None
    update = context.update
    if name in TERMS:
        return getattr(update.terms, name)
    if name in ADVANTAGES:
        return getattr(trace.advantages, name)
    batch = trace.batch
    read = {
        "token_advantages": lambda: trace.token_advantages,
        "old_logprobs": lambda: trace.old_logprobs, "ref_logprobs": lambda: trace.ref_logprobs,
        "logprob_grad": lambda: update.logprob_grad, "sampler_logprobs": lambda: batch.sampler_logprobs,
        "grad_norm": lambda: update.grad_norm, "rewards": lambda: trace.advantages.rewards,
        "input_ids": batch.row_ids, "attention_mask": batch.row_mask, "loss_mask": batch.trained_mask,
    }.get(name)  # fmt: skip
    return read and read()


def expected(context: Context, name: str, row: int | None, pos: int | None, place: Any) -> str:
    """The text that must stand on screen."""
    whole = from_trace(context, name)
    if whole is None:
        return shown(element(context, name, row, pos, place))
    if not isinstance(whole, Tensor) or whole.dim() == 0:
        return shown(whole.item() if isinstance(whole, Tensor) else whole)
    axes = QUANTITIES[name].axes
    if axes == "BT":
        first = context.trace.batch.token_positions()[0].item()
        return shown(whole[row, pos - first].item())
    index = {"BS": (row, pos), "B": (row,), "BR": (row, place)}[axes]
    return shown(whole[index].item())


def numbers_in(value: Any) -> Iterator[tuple[str, int | None, int | None, Any, str]]:
    """(quantity, row, pos, place, text) of every number anywhere in a component's value."""
    if isinstance(value, dict):
        if "q" in value and "v" in value:
            place = next((value[key] for key in ("token", "function", "layer") if key in value), None)
            yield value["q"], value["r"], value["p"], place, value["v"]
        if value.get("kind") == "tensor_grid":
            for line in value["rows"]:
                for pos, text in zip(value["positions"], line["cells"], strict=True):
                    if text is not None:
                        yield value["quantity"], line["row"], pos, None, text
        for inner in value.values():
            yield from numbers_in(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from numbers_in(inner)
    elif isinstance(value, str) and "data-quantity" in value:
        yield from _marked(value)


MARKED = re.compile(r"<(?:mn|span)[^>]*?data-quantity=[^>]*>([^<]*)<")
ATTRIBUTE = re.compile(r'data-(\w+)="([^"]*)"')


def _marked(markup: str) -> Iterator[tuple[str, int | None, int | None, Any, str]]:
    for match in MARKED.finditer(markup):
        found = dict(ATTRIBUTE.findall(match[0]))
        row, pos = (int(found[key]) if key in found else None for key in ("row", "pos"))
        place = next((int(found[key]) for key in ("token", "function") if key in found), None)
        yield found["quantity"], row, pos, place, match[1]


def settings_for(context: Context, name: str) -> Context:
    """`name@before` is a number of the step from before the last change."""
    return context.before if name.endswith("@before") else context
