"""The workings behind single terms: what a row of a table computes on the way and does not keep.

Lessons put them into formulas, tests evaluate those. Each function takes a finished trace; training never calls them.
Entries of masked tokens mean nothing.
"""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from .advantages import reward_kl_of
from .kl import token_kl
from .surrogate import SURROGATE, VESPO_LOWEST, Parts, min_clip
from .types import StepTrace


# ---- rewards and advantages -------------------------------------------------------------------------------------------------
@dataclass(frozen=True, kw_only=True)
class AdvantageWorkings:
    """Between the reward functions and the advantage of a token."""

    weighted: Float[Tensor, " B"]  # weighted sum of the reward functions, before shift, scale, clip and KL
    token_penalty: Float[Tensor, "B T"]  # what the KL takes off the reward of each token
    penalty: Float[Tensor, " B"]  # and of each row
    penalty_to_come: Float[Tensor, "B T"]  # of this token and the ones behind it
    group_rows: Int[Tensor, " B"]  # rows of the group that have a reward
    batch_mean: Float[Tensor, ""]
    spread_rows: Int[Tensor, " B"]  # how many rewards the spread is taken over
    spread_squares: Float[Tensor, " B"]  # the sum of their squared distances from their mean
    mean: Float[Tensor, ""]  # of the tokens' advantages before whitening
    variance: Float[Tensor, ""]


def group_ids_of(trace: StepTrace) -> Int[Tensor, " B"]:
    """Rows with the same id answer the same prompt; where a batch file says nothing of groups every row is its own."""
    ids = trace.batch.group_ids
    return torch.arange(len(trace.advantages.valid)) if ids is None else ids


def judged(trace: StepTrace) -> tuple[list[list[float | None]], list[float], Tensor]:
    """Rewards [B][R] as they count, edits included, their weights and the rows' groups; without any reward function one
    that returned nothing."""
    got, ids = trace.advantages, group_ids_of(trace)
    if not len(got.weights):
        return [[None]] * len(got.valid), [1.0], ids
    pairs = zip(got.rewards.tolist(), got.missing.tolist(), strict=True)
    return [[None if gone else v for v, gone in zip(*row, strict=True)] for row in pairs], got.weights.tolist(), ids


def advantage_workings(trace: StepTrace) -> AdvantageWorkings:
    got, config, mask = trace.advantages, trace.recipe.advantage_config(), trace.batch.trained_mask()
    token_penalty = reward_kl_of(trace.known(trace.old_logprobs), trace.known(trace.ref_logprobs), mask, config)
    to_come = token_penalty.flip(1).cumsum(1).flip(1)
    groups, valid = group_ids_of(trace), got.valid
    squares, counts, group_rows = torch.zeros_like(got.reward), torch.zeros_like(groups), torch.zeros_like(groups)
    for row in valid.nonzero().flatten().tolist():
        own = valid & (groups == groups[row])
        group_rows[row] = own.sum()
        others = own & (torch.arange(len(own), device=own.device) != row)
        members = got.reward[{"batch": valid, "leave-one-out": others}.get(config.advantage_std, own)]
        counts[row] = len(members)
        squares[row] = (members - members.mean()).square().sum() if len(members) else 0.0
    values = got.advantages.unsqueeze(1).expand_as(mask)
    trained = (values - to_come if config.reward_kl == "after" else values)[mask]
    correction = 0 if config.advantage_whiten == "biased" else 1
    return AdvantageWorkings(
        weighted=torch.where(got.missing, 0.0, got.rewards * got.weights).sum(1), token_penalty=token_penalty,
        penalty=token_penalty.sum(1), penalty_to_come=to_come, group_rows=group_rows,
        batch_mean=got.reward[valid].mean() if valid.any() else got.reward.new_zeros(()), spread_rows=counts,
        spread_squares=squares, mean=trained.mean() if len(trained) else trained.new_zeros(()),
        variance=trained.var(correction=correction) if len(trained) > correction else trained.new_zeros(()),
    )  # fmt: skip


# ---- the loss ----------------------------------------------------------------------------------------------------------
def parts_of(trace: StepTrace, update: int) -> Parts:
    """What the surrogates, corrections, gates and KL gradients of this update read."""
    terms, mask, config = trace.updates[update].terms, trace.batch.trained_mask(), trace.recipe
    old, sampler = (torch.where(mask, values, 0.0) for values in (trace.known(trace.old_logprobs), _sampler(trace)))
    return Parts(
        mask=mask, policy_logprobs=terms.policy_logprobs, denominator={"old": old, "sampler": sampler}[config.ratio_against],
        old_logprobs=old, sampler_logprobs=sampler, entropy=terms.entropy,
        rewards=trace.advantages.reward.nan_to_num(0.0).unsqueeze(1).expand_as(mask),
        advantages=torch.where(mask, trace.token_advantages, 0.0), log_ratio=terms.log_ratio, ratio=terms.ratio,
        clipped_ratio=terms.clipped_ratio, surrogate=terms.surrogate, clipped_surrogate=terms.clipped_surrogate,
    )  # fmt: skip


def _sampler(trace: StepTrace) -> Tensor:
    return trace.known(trace.batch.sampler_logprobs)


@dataclass(frozen=True, kw_only=True)
class LossWorkings:
    """Between the log-probs and the loss of a token."""

    difference: Float[Tensor, "B T"]  # log-prob of the policy minus that of the ratio's denominator
    span_sum: Float[Tensor, "B T"]  # of the differences that the token's log-ratio averages: its row's, or its turn's
    span_tokens: Int[Tensor, "B T"]  # and how many they are
    row_log_ratio: Float[Tensor, "B T"]  # sum of the row's log-ratios, as `vespo` takes it
    row_ratio: Float[Tensor, "B T"]  # and its exp
    kept_log_ratio: Float[Tensor, "B T"]  # the log-ratio clipped on the side that the advantage forbids: `geometric-mean`
    kept_sum: Float[Tensor, "B T"]  # and its sum over the row
    mean_advantage: Float[Tensor, ""]  # over the trained tokens: `clip-cov` and `kl-cov`
    mean_logprob: Float[Tensor, ""]
    log_weight_sum: Float[Tensor, "B T"]  # old minus sampler log-probs, summed over the row
    moved_from_old: Float[Tensor, "B T"]  # old minus policy log-probs, averaged over the row: the gate `on-policy-rows`
    moved_from_sampler: Float[Tensor, "B T"]
    entropy_threshold: Float[Tensor, ""]  # what a token's entropy must reach: the gate `top-entropy`
    kl_difference: Float[Tensor, "B T"]  # log-prob of the policy minus that of the KL's other side
    kl_unbounded: Float[Tensor, "B T"]  # what kl_output_bound is put on


def loss_workings(trace: StepTrace, update: int) -> LossWorkings:
    parts, mask, config = parts_of(trace, update), trace.batch.trained_mask(), trace.recipe

    def over_row(values: Tensor) -> Tensor:
        return torch.where(mask, values, 0.0).sum(1, keepdim=True).expand_as(values)

    count = mask.sum(1, keepdim=True).clamp(min=1)
    difference = parts.policy_logprobs - parts.denominator
    span_sum, span_tokens = _spans(difference, mask, config.ratio == "segment")
    sign, clipped = parts.advantages.sign(), parts.log_ratio.clamp(-config.clip_low, config.clip_high)
    kept = sign * torch.min(sign * parts.log_ratio, sign * clipped)
    against = {"ref": trace.known(trace.ref_logprobs), "sampler": parts.sampler_logprobs}[config.kl_against]
    x = torch.where(mask, parts.policy_logprobs - against, 0.0)
    row_log_ratio = over_row(parts.log_ratio.clamp(-20.0, 20.0)).clamp(VESPO_LOWEST, 20.0)
    entropies = parts.entropy[mask].float()
    threshold = torch.quantile(entropies, 1 - config.entropy_quantile) if len(entropies) else entropies.new_zeros(())
    return LossWorkings(
        difference=difference, span_sum=span_sum, span_tokens=span_tokens,
        row_log_ratio=row_log_ratio, row_ratio=row_log_ratio.exp(),
        kept_log_ratio=kept, kept_sum=over_row(kept),
        mean_advantage=parts.advantages.sum() / mask.sum().clamp(min=1),
        mean_logprob=parts.policy_logprobs.sum() / mask.sum().clamp(min=1),
        log_weight_sum=over_row(parts.old_logprobs - parts.sampler_logprobs),
        moved_from_old=over_row(parts.old_logprobs - parts.policy_logprobs) / count,
        moved_from_sampler=over_row(parts.sampler_logprobs - parts.policy_logprobs) / count,
        entropy_threshold=threshold, kl_difference=x,
        kl_unbounded=token_kl(x, parts, replace(config.loss_config(), kl_output_bound=0.0)),
    )  # fmt: skip


def _spans(difference: Tensor, mask: Tensor, by_run: bool) -> tuple[Tensor, Tensor]:
    """Sums and counts of the differences over the token's unbroken run of trained tokens, or over its row."""
    starts = mask & ~torch.nn.functional.pad(mask, (1, 0))[:, :-1]
    run = torch.where(mask, starts.cumsum(1) if by_run else 1, 0)
    empty = difference.new_zeros(mask.shape[0], mask.shape[1] + 1)
    sums = empty.scatter_add(1, run, torch.where(mask, difference, 0.0))
    counts = empty.scatter_add(1, run, mask.to(difference.dtype))
    return sums.gather(1, run), counts.gather(1, run).long()


def logprob_weights(trace: StepTrace, update: int) -> Float[Tensor, "B T"]:
    """What multiplies A · log p in a surrogate of that family; 0 where the advantage is 0: nothing multiplies there."""
    parts = parts_of(trace, update)
    leaf = parts.policy_logprobs.clone().requires_grad_()
    token_loss, _ = SURROGATE[trace.recipe.surrogate](replace(parts, policy_logprobs=leaf), trace.recipe.loss_config())
    (slope,) = torch.autograd.grad(token_loss.sum() + 0 * leaf.sum(), leaf)  # + 0: surrogates that never read the log-prob
    return torch.where(parts.advantages != 0, -slope / parts.advantages, 0.0)


# ---- which way a token went ------------------------------------------------------------------------------------------------
@dataclass(frozen=True, kw_only=True)
class Branch:
    """Which case of each rule applies to one token. Bounds are True where they bind."""

    sign: int  # of the token's advantage
    rewarded: bool  # its row's reward is above 0
    alone: bool  # the only row of its group that has a reward
    spread: bool  # there is one to divide by
    whitened: bool  # more than one token, or a whitening that takes one alone
    clipped: bool  # no gradient through the clip
    left_out: bool  # the surrogate drops it
    held: bool  # `kl-cov` holds it back
    log_ratio_bound: bool
    row_bound: bool  # of `vespo`
    kl_input_bound: bool
    kl_output_bound: bool


def branch_of(trace: StepTrace, update: int, row: int, column: int) -> Branch:
    terms, config, got = trace.updates[update].terms, trace.recipe, trace.advantages
    parts, workings = parts_of(trace, update), loss_workings(trace, update)
    at, advantage = (row, column), float(parts.advantages[row, column])
    groups = group_ids_of(trace)
    same = got.valid & (groups == groups[row])
    average = workings.difference if config.ratio == "token" else workings.span_sum / workings.span_tokens.clamp(min=1)
    logs = torch.where(parts.mask, parts.log_ratio, 0.0)[row].sum()
    return Branch(
        sign=(advantage > 0) - (advantage < 0), rewarded=bool(parts.rewards[at] > 0), alone=int(same.sum()) == 1,
        spread=bool(got.group_std[row] != 0), clipped=bool(terms.is_clipped[at]),
        whitened=config.advantage_whiten == "biased" or int(parts.mask.sum()) > 1,
        left_out=bool(left_out(parts, terms.is_clipped, config.surrogate, trace)[at]),
        held=config.surrogate == "kl-cov" and bool(_held(parts, trace)[at]),
        log_ratio_bound=bool(average[at].abs() > config.log_ratio_bound),
        row_bound=bool((logs - workings.row_log_ratio[at]).abs() > 1e-4),
        kl_input_bound=bool(workings.kl_difference[at].abs() > config.kl_input_bound),
        kl_output_bound=bool(config.kl_output_bound) and bool(workings.kl_unbounded[at].abs() > config.kl_output_bound),
    )  # fmt: skip


def left_out(parts: Parts, is_clipped: Tensor, surrogate: str, trace: StepTrace) -> Bool[Tensor, "B T"]:
    """Tokens whose loss the surrogate sets to 0."""
    if surrogate == "clip-cov":
        return is_clipped & ~min_clip(parts, trace.recipe.loss_config())[1]
    return is_clipped & surrogate.startswith("dppo")


def _held(parts: Parts, trace: StepTrace) -> Bool[Tensor, "B T"]:
    # far from ratio 1, so that the penalty shows: which tokens are held depends on log-prob and advantage alone
    apart = replace(parts, log_ratio=torch.ones_like(parts.log_ratio))
    token_loss, _ = SURROGATE["kl-cov"](apart, replace(trace.recipe.loss_config(), cov_coef=1.0))
    return (token_loss + parts.surrogate) > 0.5
