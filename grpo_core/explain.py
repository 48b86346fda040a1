"""Functions of a finished trace that training does not need: one vocabulary row, the exact KL, the closed-form gradient,
log-probs after the update, other conventions on the same step, and curves. Lessons and tests call them; the step never does.

They take the policy *as it was when the update scored its tokens*: the loaded one for the first update, `step.replay` for
a later one.
"""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from .advantages import ADVANTAGE_MEAN, ADVANTAGE_STD, group_advantages
from .aggregation import AGGREGATION
from .config import Recipe
from .convention import LossConfig
from .kl import KL, exact_kl
from .logprobs import gather, log_softmax, row_entropy, scatter, score_tokens
from .loss import totals_of
from .policy import Policy
from .surrogate import SURROGATE, Parts
from .types import Advantages, StepTrace
from .workings import judged


@dataclass(frozen=True, kw_only=True)
class VocabularyRow:
    """One position's distribution over the vocabulary, by the very functions that scored the token."""

    logits: Float[Tensor, " V"]  # raw
    scaled_logits: Float[Tensor, " V"]  # divided by the temperature
    logprobs: Float[Tensor, " V"]
    probs: Float[Tensor, " V"]
    sampled_id: int
    rank: int  # of the sampled token among all, 1 = most likely
    logprob: Float[Tensor, ""]  # gathered at the sampled id
    order: Int[Tensor, " V"]  # ids by falling probability
    entropy: Float[Tensor, ""]  # of this row, nats
    entropy_grad: float  # d loss / d entropy: -entropy_coef · weight
    logit_grad: Float[Tensor, " V"]  # d loss / d raw logits, by autograd, through the log-prob and the entropy bonus


def trained_index(trace: StepTrace, row: int, column: int) -> int:
    """Where [row, column] stands among the trained positions N. Raises ValueError where it is masked."""
    mask = trace.batch.trained_mask()
    if not (0 <= row < mask.shape[0] and 0 <= column < mask.shape[1] and mask[row, column]):
        raise ValueError(f"token: found row {row}, column {column}, allowed: a trained token")
    return int(mask.flatten()[: row * mask.shape[1] + column].sum())


def vocabulary_row(policy: Policy, trace: StepTrace, update: int, row: int, column: int) -> VocabularyRow:
    """The row of logits that scored one token, and what the loss asks of each of them."""
    index = trained_index(trace, row, column)
    with torch.no_grad():
        logits = policy.project(trace.updates[update].hidden[index : index + 1])
    return row_of_logits(logits[0], trace, update, row, column)


def row_of_logits(logits: Float[Tensor, " V"], trace: StepTrace, update: int, row: int, column: int) -> VocabularyRow:
    """The same of logits that are at hand. `logit_grad` is NaN where the trace has no loss (a batch file that lacks some of
    it). Raises IndexError where the token is none of the vocabulary."""
    logits = logits.detach().unsqueeze(0).requires_grad_()
    sampled = trace.batch.row_ids()[row, trace.batch.token_positions()[column]]
    logprobs = log_softmax(logits, trace.recipe.temperature)
    logprob = gather(logprobs, sampled.unsqueeze(0))
    entropy = row_entropy(logprobs)
    pull, entropy_grad = _asked(trace, update, row, column)
    upstream = [logprob.new_tensor([pull]), logprob.new_tensor([entropy_grad])]
    (grad,) = torch.autograd.grad([logprob, entropy], logits, grad_outputs=upstream)
    raw, row_logprobs = logits.detach()[0].float(), logprobs.detach()[0]
    return VocabularyRow(
        logits=raw, scaled_logits=raw / trace.recipe.temperature, logprobs=row_logprobs, probs=row_logprobs.exp(),
        sampled_id=int(sampled), rank=int((row_logprobs > row_logprobs[sampled]).sum()) + 1,
        logprob=logprob.detach()[0], order=row_logprobs.argsort(descending=True),
        entropy=entropy.detach()[0], entropy_grad=entropy_grad, logit_grad=grad[0],
    )  # fmt: skip


def _asked(trace: StepTrace, update: int, row: int, column: int) -> tuple[float, float]:
    """d loss / d log-prob and d loss / d entropy of one token."""
    if not trace.updates:
        return float("nan"), 0.0
    step = trace.updates[update]
    entropy_grad = -trace.recipe.entropy_coef * step.terms.entropy_weight[row, column]
    return float(step.logprob_grad[row, column]), float(entropy_grad)


@torch.no_grad()
def exact_token_kl(policy: Policy, reference: Policy, trace: StepTrace, update: int) -> Float[Tensor, "B T"]:
    """KL(policy || reference) summed over the whole vocabulary at every trained position; 0 where masked."""
    assert trace.ref_hidden is not None, "the step was run without a reference"
    temperature = trace.recipe.temperature
    pieces = []
    for mine, theirs in zip(trace.updates[update].hidden.split(256), trace.ref_hidden.split(256), strict=True):
        rows = log_softmax(policy.project(mine), temperature), log_softmax(reference.project(theirs), temperature)
        pieces.append(exact_kl(*rows))
    return scatter(torch.cat(pieces), trace.batch.trained_mask())


@torch.no_grad()
def logprobs_after(trained: Policy, trace: StepTrace) -> Float[Tensor, "B T"]:
    """The same tokens under the weights after the last update."""
    return score_tokens(trained, trace.batch, trace.recipe.temperature).logprobs


def probabilities(logprobs: Float[Tensor, "B T"], trace: StepTrace) -> Float[Tensor, "B T"]:
    """exp of log-probs on trained tokens, 0 where masked."""
    return torch.where(trace.batch.trained_mask(), logprobs.exp(), 0.0)


def least_likely_column(trace: StepTrace, row: int) -> int:
    """The column of the row's trained token that the sampler gave the lowest probability; else the old or the trained policy.
    The first trained one where a batch file holds no log-probs."""
    batch = trace.batch
    known = (values for values in (batch.sampler_logprobs, trace.old_logprobs, batch.policy_logprobs) if values is not None)
    logprobs = next(known, torch.zeros(batch.trained_mask().shape))[row]
    return int(torch.where(batch.trained_mask()[row], logprobs, torch.inf).argmin())


def weighted_token_loss(trace: StepTrace, update: int) -> Float[Tensor, "B T"]:
    """What each token adds to `policy_loss`."""
    terms = trace.updates[update].terms
    return terms.token_weight * terms.token_loss


def weighted_row_loss(trace: StepTrace, update: int) -> Float[Tensor, " B"]:
    """What each completion adds to `policy_loss`."""
    return weighted_token_loss(trace, update).sum(1)


def kl_estimates(trace: StepTrace, update: int) -> dict[str, Float[Tensor, "B T"]]:
    """Every estimator on the same tokens, against the recipe's other side of the KL; 0 where masked."""
    mask, policy_logprobs = trace.batch.trained_mask(), trace.updates[update].terms.policy_logprobs
    other = trace.batch.sampler_logprobs if trace.recipe.kl_against == "sampler" else trace.ref_logprobs
    x = torch.where(mask, policy_logprobs - trace.known(other), 0.0)
    return {name: estimator(x) for name, estimator in KL.items()}


@dataclass(frozen=True, kw_only=True)
class UpdateEffect:
    """What an update did to the tokens that it trained on."""

    before: Float[Tensor, "B T"]
    after: Float[Tensor, "B T"]
    change: Float[Tensor, "B T"]  # after - before, nats
    row_change: Float[Tensor, " B"]  # summed over the row: log of how many times likelier the completion became


def update_effect(trace: StepTrace, update: int, after_all: Float[Tensor, "B T"]) -> UpdateEffect:
    """Before and after one update; the update behind it has already scored the tokens, the last needs `after_all`."""
    before = trace.updates[update].terms.policy_logprobs
    is_last = update + 1 == len(trace.updates)
    after = after_all if is_last else trace.updates[update + 1].terms.policy_logprobs
    change = torch.where(trace.batch.trained_mask(), after - before, 0.0)
    return UpdateEffect(before=before, after=after, change=change, row_change=change.sum(1))


def other_advantages(trace: StepTrace) -> dict[tuple[str, str], Advantages]:
    """The same rewards under every pair of baseline and spread that has a name of its own, and under the recipe's."""
    pairs = [("group", std) for std in ADVANTAGE_STD] + [(mean, "none") for mean in ADVANTAGE_MEAN if mean != "group"]
    own = (trace.recipe.advantage_mean, trace.recipe.advantage_std)
    pairs = pairs if own in pairs else [own, *pairs]
    rewards, weights, ids = judged(trace)
    return {
        (mean, std): group_advantages(
            rewards,
            weights,
            ids,
            replace(trace.recipe.advantage_config(), advantage_mean=mean, advantage_std=std),
        )
        for mean, std in pairs
    }


@dataclass(frozen=True, kw_only=True)
class Aggregated:
    """One aggregation on given token losses."""

    token_weight: Float[Tensor, "B T"]
    policy_loss: Float[Tensor, ""]


def other_aggregations(trace: StepTrace, update: int) -> dict[str, Aggregated]:
    """The weight matrix and policy loss of every aggregation, over the same token losses."""
    mask, terms = trace.batch.trained_mask(), trace.updates[update].terms
    totals = totals_of(mask, trace.recipe.loss_config(), trace.batch.row_ids().shape[1] - 1)
    results = {}
    for name, weigh in AGGREGATION.items():
        weight = weigh(mask.to(terms.token_loss.dtype), totals, trace.recipe.loss_config())
        results[name] = Aggregated(token_weight=weight, policy_loss=(weight * terms.token_loss).sum())
    return results


def split_loss(trace: StepTrace, update: int, micro_batches: int) -> Float[Tensor, ""]:
    """The policy loss as the sum over micro-batches that share the whole batch's denominators."""
    mask, terms = trace.batch.trained_mask(), trace.updates[update].terms
    config = trace.recipe.loss_config()
    totals = totals_of(mask, config, trace.batch.row_ids().shape[1] - 1, micro_batches)
    parts = []
    for rows, losses in zip(mask.chunk(micro_batches), terms.token_loss.chunk(micro_batches), strict=True):
        weight = AGGREGATION[config.aggregation](rows.to(losses.dtype), totals, config)
        parts.append((weight * losses).sum())
    return torch.stack(parts).sum()


def kl_curves(low: float, high: float, points: int = 81) -> dict[str, Tensor]:
    """Each estimator as a function of x = policy - ref log-prob, under the key "x" and its name."""
    x = torch.linspace(low, high, points)
    return {"x": x} | {name: estimator(x) for name, estimator in KL.items()}


# What these make of a token that they neither draw nor hold back nor drop.
OTHERWISE = {"clip-cov": "min-clip", "kl-cov": "none", "dppo-ratio": "none"}


def surrogate_curve(config: LossConfig, advantage: float, low: float, high: float, points: int = 121) -> dict[str, Tensor]:
    """What is maximised as a function of the ratio, for one advantage: unclipped, and with the surrogate's clip."""
    ratio = torch.linspace(low, high, points)
    weight = torch.full_like(ratio, advantage)
    row = SURROGATE[OTHERWISE.get(config.surrogate, config.surrogate)]
    token_loss, _ = row(Parts.of_ratio(ratio, weight, config), config)
    return {"ratio": ratio, "surrogate": ratio * weight, "objective": -token_loss}


def weight_curve(config: LossConfig, advantage: float, reward: float, low: float, high: float) -> dict[str, Tensor]:
    """What multiplies A · log p as a function of the ratio, in a surrogate of that family; each point is a row of one token."""
    ratio = torch.linspace(low, high, 121).unsqueeze(1)
    parts = Parts.of_ratio(ratio, torch.full_like(ratio, advantage), config)
    minus_one = torch.full_like(ratio, -1.0)  # a log-prob of -1 leaves weight · A of the token's loss
    parts = replace(parts, policy_logprobs=minus_one, denominator=minus_one, rewards=torch.full_like(ratio, reward))
    token_loss, _ = SURROGATE[config.surrogate](parts, config)
    return {"ratio": ratio.squeeze(1), "weight": token_loss.squeeze(1) / advantage}


def winner_advantages(recipe: Recipe, group_size: int) -> dict[int, tuple[float, float]]:
    """k winners of G (reward 1, the rest 0) -> the advantage of a winner and of a loser, in the recipe's convention."""
    table = {}
    for winners in range(1, group_size):
        rewards = [(1.0,)] * winners + [(0.0,)] * (group_size - winners)
        got = group_advantages(
            rewards, (1.0,), torch.zeros(group_size, dtype=torch.long), recipe.advantage_config()
        ).advantages  # fmt: skip
        table[winners] = (float(got[0]), float(got[-1]))
    return table
