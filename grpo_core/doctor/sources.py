"""Where right log-probs come from: the batch's own logits, a model, or another stored field. And what each tells of mistakes.

Axes: B rows · T scored positions · n sampled places (row, column) · V vocabulary. Log-probs in nats.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ..policy import Policy
from ..types import Batch
from .candidates import CHUNK, Sampling, fitted_temperature, of_rows, of_values, scored
from .model_candidates import (
    hidden_of,
    in_bf16,
    logits_of,
    real_mask,
    right_pass,
    values_of,
    with_dropout,
    wrong_passes,
)  # fmt: skip

MODEL_ROWS = 32  # rows that a model scores again; and as many as hold this many tokens
MODEL_TOKENS = 2**15
STORED = 2**19  # slots over which two stored fields are compared


@dataclass(frozen=True)
class Source:
    """Right values, and the values under each mistake at the places where all are compared."""

    name: str  # "logits", "model", or the field that stands for the right values
    right: Tensor  # [B T], NaN where not scored
    places: Tensor  # [n 2] trained (row, column)
    sampling: Sampling
    at_places: Mapping[str, Tensor]  # name -> [n]
    rows: Tensor | None = None  # [n V] logits, for the search for a temperature
    ids: Tensor | None = None  # [n]
    dropout_gap: float | None = None  # mean difference of two passes with dropout on
    passes: Mapping[str, Tensor] = field(default_factory=dict)  # name -> [n], of ways to ask a model

    def candidates(self) -> Mapping[str, Callable[[], Tensor]]:
        """name -> a function that gives the [n] values."""
        used, local = self.places[:, 0].unique(return_inverse=True)  # the rows looked at may be a small part
        columns = self.places[:, 1]
        found: dict[str, Callable[[], Tensor]] = {"right": lambda: self.pick(self.right)}
        for name, whole in of_values(self.right[used], self.sampling, stored=self.rows is None).items():
            found[name] = lambda whole=whole: whole()[local, columns]
        for name, values in (self.at_places | self.passes).items():  # pyright: ignore[reportOperatorIssue]
            found[name] = lambda values=values: values
        return found

    def pick(self, values: Tensor) -> Tensor:
        """[B T] -> [n]."""
        return values[self.places[:, 0], self.places[:, 1]]

    def fit(self, wanted: Tensor) -> tuple[float, Tensor] | None:
        """The temperature under which the rows of logits give these [n] values best, and what they give."""
        usable = wanted.isfinite()
        if self.rows is None or self.ids is None or int(usable.sum()) < 4:
            return None
        temperature = fitted_temperature(self.rows[usable], self.ids[usable], wanted[usable])
        return temperature, scored(self.rows, self.ids, temperature)


def spread(places: Tensor, most: int) -> Tensor:
    """At most so many of these places or rows, evenly spread over all of them."""
    if len(places) <= most:
        return places
    return places[torch.linspace(0, len(places) - 1, most).long()]


def scored_places(batch: Batch) -> Tensor:
    """[N 2] the trained columns and their neighbours, for a shift; never padding."""
    trained = batch.trained_mask()
    near = trained.clone()
    near[:, 1:] |= trained[:, :-1]
    near[:, :-1] |= trained[:, 1:]
    return (near & real_mask(batch)[:, batch.token_positions()]).nonzero()


def from_logits(batch: Batch, sampling: Sampling) -> Source | None:
    """The policy's own logits, as the batch has them; None where no token is trained."""
    assert batch.logits is not None
    places = batch.trained_mask().nonzero()
    if not len(places):
        return None
    right = torch.full(batch.trained_mask().shape, torch.nan)
    for part in scored_places(batch).split(max(1, CHUNK // batch.logits.shape[-1])):
        right[part[:, 0], part[:, 1]] = scored(_stored_logits(batch, part), _ids(batch, part), sampling.temperature)
    sample = spread(places, max(64, CHUNK // batch.logits.shape[-1]))
    rows, ids = _stored_logits(batch, sample), _ids(batch, sample)
    others = of_rows(rows, ids, sampling)
    del others["right"]
    others["logits not shifted"] = scored(_stored_logits(batch, sample, 1), ids, sampling.temperature)
    return Source(name="logits", right=right, places=sample, sampling=sampling, at_places=others, rows=rows, ids=ids)


def _stored_logits(batch: Batch, places: Tensor, offset: int = 0) -> Tensor:
    """[n V] the logits `offset` positions behind those that predict the tokens at these places, in fp32."""
    assert batch.logits is not None
    source = (batch.token_positions()[places[:, 1]] - 1 + offset).clamp(0, batch.logits.shape[1] - 1)
    return batch.logits[places[:, 0], source].float()


def _ids(batch: Batch, places: Tensor) -> Tensor:
    """[n] ids of the tokens there; an id that the logits do not know is another check's affair."""
    assert batch.logits is not None
    ids = batch.row_ids()[places[:, 0], batch.token_positions()[places[:, 1]]]
    return ids.clamp(0, batch.logits.shape[-1] - 1)


def from_model(batch: Batch, policy: Policy, sampling: Sampling) -> Source | None:
    """The model, on the rows that tell most; None where it cannot read the batch."""
    index = telling_rows(batch)
    part = batch.rows(index)
    places = part.trained_mask().nonzero()
    ids = part.row_ids()
    if not len(places) or int(ids.max()) >= policy.vocab_size or int(ids.min()) < 0:
        return None
    way = right_pass(part)
    if policy.max_length is not None and int(way.positions.max()) >= policy.max_length:
        return None
    hidden, temperature = hidden_of(policy, way), sampling.temperature
    around = scored_places(part)
    right = torch.full(batch.trained_mask().shape, torch.nan)
    right[index[around[:, 0]], around[:, 1]] = values_of(policy, way, around, temperature, hidden)
    sample = spread(places, max(64, CHUNK // policy.vocab_size))
    rows = logits_of(policy, hidden, way, sample)
    labels = way.ids[sample[:, 0], way.targets[sample[:, 0], sample[:, 1]]]
    others = of_rows(rows, labels, sampling)
    del others["right"]
    others["logits not shifted"] = scored(logits_of(policy, hidden, way, sample, 1), labels, temperature)
    passes = {
        name: values_of(policy, wrong, sample, temperature) for name, wrong in wrong_passes(part, policy.bos_id).items()
        if int(wrong.ids.max()) < policy.vocab_size
    }  # fmt: skip
    passes["bf16 forward"] = in_bf16(policy, way, sample, temperature)
    dropped = with_dropout(policy, way, sample, temperature)
    gap = None if dropped is None else float((dropped[0] - dropped[1]).abs().mean())
    whole = torch.stack([index[sample[:, 0]], sample[:, 1]], 1)
    return Source(
        name="model", right=right, places=whole, sampling=sampling, at_places=others, rows=rows, ids=labels,
        dropout_gap=gap, passes=passes,
    )  # fmt: skip


def telling_rows(batch: Batch) -> Tensor:
    """Rows for a model to score: those in which the stored fields differ most, and some spread over all others."""
    mask = batch.trained_mask()
    stored = [values for values in (batch.policy_logprobs, batch.old_logprobs, batch.sampler_logprobs) if values is not None]
    gap = torch.zeros(len(mask))
    for other in stored[1:]:
        gap += torch.where(mask, (stored[0] - other).abs(), 0.0).nan_to_num(0.0).sum(1).float()
    width = batch.row_ids().shape[1]
    most = max(2, min(MODEL_ROWS, MODEL_TOKENS // max(width, 1)))
    trained = mask.any(1).nonzero().flatten()
    if len(trained) <= most:
        return trained
    worst = trained[gap[trained].argsort(descending=True, stable=True)[: most // 2]]
    rest = trained[~torch.isin(trained, worst)]
    return torch.cat([worst, spread(rest, most - len(worst))]).sort().values


def from_field(batch: Batch, name: str, sampling: Sampling) -> Source:
    """Another stored field as the right values: it can tell a shift, a rounding, a factor."""
    mask = batch.trained_mask()
    right = torch.where(mask, getattr(batch, name), torch.nan).float()
    rows = some_rows(mask)
    places = mask[rows].nonzero()
    places[:, 0] = rows[places[:, 0]]
    return Source(name=name, right=right, places=places, sampling=sampling, at_places={})


def some_rows(mask: Tensor) -> Tensor:
    """Rows with a trained token, evenly spread, few enough to be compared in no time."""
    return spread(mask.any(1).nonzero().flatten(), max(2, STORED // max(mask.shape[1], 1)))
