"""What a token's log-prob would be, had something gone wrong: one named vector of candidates per mistake.

Axes: n scored tokens · V vocabulary · B rows · T scored positions. All values in nats. A candidate is NaN where the mistake
leaves nothing to compare, as for the first token of a row that is one slot late.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ..logprobs import gather, log_softmax
from ..types import Batch

CHUNK = 2**24  # logits held in fp32 at once: 64 MiB
FIT = 2**22  # logits that the search for a temperature looks at, some forty times
COARSE, FINE = 25, 20  # steps of that search

# name -> family: of two hypotheses of one family the one cannot be the runner-up of the other
FAMILY = {
    "right": "precision", "bf16": "precision", "bf16 forward": "precision", "temperature missing": "temperature",
    "temperature twice": "temperature", "another temperature": "temperature", "no position ids": "positions",
    "position ids as stored": "positions", "no attention mask": "mask", "neither mask nor positions": "mask",
}  # fmt: skip


@dataclass(frozen=True)
class Sampling:
    """How the tokens were drawn, as `meta` says; what it does not say is off."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0

    @classmethod
    def of(cls, batch: Batch) -> "Sampling":
        meta = batch.meta
        temperature, top_p, top_k, min_p = (number(meta.get(name)) for name in ("temperature", "top_p", "top_k", "min_p"))
        return cls(
            temperature=temperature if temperature and temperature > 0 else 1.0,
            top_p=top_p if top_p and 0 < top_p < 1 else 1.0, top_k=int(top_k) if top_k and top_k >= 1 else 0,
            min_p=min_p if min_p and 0 < min_p < 1 else 0.0,
        )  # fmt: skip

    @property
    def truncates(self) -> bool:
        return self.top_p < 1 or self.top_k > 0 or self.min_p > 0


def number(value: object) -> float | None:
    """A finite number of a stranger's `meta`, else None."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value) if math.isfinite(value) else None


# ---- [n V] logits -> [n] candidates --------------------------------------------------------------------------------------
def scored(rows: Tensor, ids: Tensor, temperature: float) -> Tensor:
    """[n] log-probs of these tokens."""
    return gather(log_softmax(rows, temperature), ids)


def kept_only(rows: Tensor, ids: Tensor, sampling: Sampling) -> Tensor:
    """[n] log-probs over the tokens that top-k, top-p and min-p keep; those of the whole vocabulary for a token outside."""
    logprobs = log_softmax(rows, sampling.temperature)
    ordered, order = logprobs.sort(-1, descending=True)
    probs = ordered.exp()
    keep = torch.ones_like(ordered, dtype=torch.bool)
    if sampling.top_k:
        keep[:, sampling.top_k :] = False
    if sampling.top_p < 1:
        kept = torch.where(keep, probs, 0.0)
        kept = kept / kept.sum(-1, keepdim=True)  # top-k comes first, and top-p is a share of what it leaves
        keep &= kept.cumsum(-1) - kept < sampling.top_p
    if sampling.min_p:
        keep &= probs >= sampling.min_p * probs[:, :1]
    place = (order == ids.unsqueeze(-1)).long().argmax(-1)
    inside = keep.gather(-1, place.unsqueeze(-1)).squeeze(-1)
    mass = torch.where(keep, probs, 0.0).sum(-1).log()
    own = gather(logprobs, ids)
    return torch.where(inside, own - mass, own)


def of_rows(rows: Tensor, ids: Tensor, sampling: Sampling) -> dict[str, Tensor]:
    """Every mistake that one row of logits and one id can tell."""
    temperature = sampling.temperature
    found = {
        "right": scored(rows, ids, temperature),
        "bf16": torch.log_softmax(rows.bfloat16() / temperature, -1).float().gather(-1, ids.unsqueeze(-1)).squeeze(-1),
        "argmax token": log_softmax(rows, temperature).amax(-1),
    }
    if temperature != 1:
        raw = scored(rows, ids, 1.0)
        found |= {"temperature missing": raw, "divided after softmax": raw / temperature}
        found["temperature twice"] = scored(rows, ids, temperature**2)
    if sampling.truncates:
        found["kept tokens only"] = kept_only(rows, ids, sampling)
    return found


def fitted_temperature(rows: Tensor, ids: Tensor, field: Tensor) -> float:
    """The temperature between 0.1 and 10 under which these logits come closest to the field's values."""
    step = max(1, rows.numel() // FIT)
    rows, ids, field = rows[::step].float(), ids[::step], field[::step]

    def gap(log_temperature: float) -> float:
        return float((scored(rows, ids, math.exp(log_temperature)) - field).abs().mean())

    grid = torch.linspace(-math.log(10), math.log(10), COARSE).tolist()
    best = min(range(COARSE), key=lambda i: gap(grid[i]))
    return math.exp(_golden(gap, grid[max(best - 1, 0)], grid[min(best + 1, COARSE - 1)]))


def _golden(gap: Callable[[float], float], low: float, high: float) -> float:
    """Where `gap` is smallest between low and high, by golden section."""
    share = (math.sqrt(5) - 1) / 2
    left, right = high - share * (high - low), low + share * (high - low)
    at_left, at_right = gap(left), gap(right)
    for _ in range(FINE):
        if at_left < at_right:
            high, right, at_right = right, left, at_left
            left = high - share * (high - low)
            at_left = gap(left)
        else:
            low, left, at_left = left, right, at_right
            right = low + share * (high - low)
            at_right = gap(right)
    return (low + high) / 2


# ---- [B T] right values -> [B T] candidates ------------------------------------------------------------------------------
def moved(values: Tensor, by: int) -> Tensor:
    """Every row moved by `by` columns to the right; NaN where nothing comes in."""
    out = torch.full_like(values, torch.nan)
    if by > 0:
        out[:, by:] = values[:, :-by]
    else:
        out[:, :by] = values[:, -by:]
    return out


def of_values(right: Tensor, sampling: Sampling, stored: bool) -> dict[str, Callable[[], Tensor]]:
    """Mistakes made with finished log-probs, each as a function, so that a large batch holds one at a time.

    `stored`: the right values are another field, not scored here; then rounding and a division can be told as well.
    """
    found = {
        "one slot late": lambda: moved(right, 1), "one slot early": lambda: moved(right, -1),
        "sign flipped": lambda: -right, "probabilities": right.exp, "base 2": lambda: right / math.log(2),
        "base 10": lambda: right / math.log(10),
    }  # fmt: skip
    if stored:
        found["bf16"] = lambda: right.bfloat16().to(right.dtype)
        if sampling.temperature != 1:
            found["divided after softmax"] = lambda: right / sampling.temperature
    return found
