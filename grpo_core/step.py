"""The one GRPO step, called by the lessons and by the trainer alike.

rewards -> advantages -> score under old and reference -> per update: score, `policy_loss`, backward, optimizer step.
The trace it returns holds every tensor on the way, detached, and no weights.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from .advantages import batch_advantages
from .aggregation import Totals
from .config import Recipe
from .engine import LOCAL, Engine
from .loss import policy_loss, totals_of
from .policy import Policy
from .rollout import to_batch
from .splitting import (
    detached,
    everyones_advantages,
    joined,
    looks_beyond_the_group,
    part_of,
    pick_rows,
    split_rows,
    step_totals,
)  # fmt: skip
from .types import Advantages, Batch, LossTerms, Rollout, Scored, StepTrace, Update


def make_optimizer(policy: Policy, recipe: Recipe, weight_decay: float = 0.0) -> torch.optim.Optimizer:
    """A fresh optimizer over everything in the policy that has a gradient. Without weight decay only the loss moves it."""
    parameters = [p for p in policy.model.parameters() if p.requires_grad]
    if recipe.optimizer == "sgd":
        return torch.optim.SGD(parameters, lr=recipe.learning_rate, weight_decay=weight_decay)
    # one pass over weights, gradient and moments instead of nine: twelve times as fast on a CPU
    return torch.optim.AdamW(parameters, lr=recipe.learning_rate, weight_decay=weight_decay, fused=True)


def rewards_after_edits(rollout: Rollout, recipe: Recipe) -> tuple[tuple[float | None, ...], ...]:
    """The rewards [B][R] that count: what the functions returned, with the recipe's edits typed over them."""
    rewards = [list(row) for row in rollout.rewards]
    for row, function, value in recipe.edited_rewards:
        if row >= len(rewards) or function >= len(rollout.reward_names):
            raise ValueError(
                f"edited_rewards: found row {row}, function {function}, allowed: rows 0 to {len(rewards) - 1}, "
                f"functions 0 to {len(rollout.reward_names) - 1}"
            )
        rewards[row][function] = value
    return tuple(map(tuple, rewards))


def advantages_of(
    rollout: Rollout, batch: Batch, old: Tensor, ref: Tensor, recipe: Recipe, engine: Engine = LOCAL
) -> tuple[Advantages, Tensor]:
    """Advantages per row and per token of the rollout's rewards, edits included, in the recipe's convention.

    Where the convention looks beyond a row's group, at the whole batch, that is the batch of all processes.
    """
    rewards, mask, config = rewards_after_edits(rollout, recipe), batch.trained_mask(), recipe.advantage_config()
    if engine.processes == 1 or not looks_beyond_the_group(config):
        return batch_advantages(rewards, recipe.reward_weights, rollout.group_ids, old, ref, mask, config)
    return everyones_advantages(rewards, recipe.reward_weights, rollout.group_ids, old, ref, mask, config, engine)


def grpo_step(
    policy: Policy,
    reference: Policy | None,
    rollout: Rollout,
    recipe: Recipe,
    optimizer: torch.optim.Optimizer | None = None,
    *,
    engine: Engine = LOCAL,
    minibatches: int = 1,
    micro_batch_rows: int = 0,
    keep_hidden: bool = True,
) -> StepTrace:
    """`recipe.updates` passes over one rollout, an optimizer step for each of its `minibatches`. Trains `policy` in place;
    hand in `policy.clone()` to keep it.

    `reference` is frozen and only enters the KL; without one the KL is taken to the start of the step.
    `optimizer` keeps its state across the trainer's steps; a lesson's single step makes its own.
    `micro_batch_rows` rows are scored at a time (0 = all); the denominators are those of the whole optimizer step, over
    all processes of `engine`, so that the split moves only the last digits. What looks across rows inside the loss
    (`clip-cov`, `kl-cov`, the gate `top-entropy`, the aggregations `micro-…`) sees its micro-batch, as in the trainers.
    Without `keep_hidden` the trace's hidden states are empty: they are what `explain` needs and training does not.
    """
    optimizer = optimizer or make_optimizer(policy, recipe)
    batch = to_batch(rollout, recipe.layout, recipe.mask_truncated)
    work = _Work(batch, recipe, engine, keep_hidden)
    plan = split_rows(len(rollout.completions), minibatches, micro_batch_rows)
    ref = _score_all(work, reference, plan) if reference else None
    # Later minibatches are scored by weights that have moved; a KL in the reward comes before the first loss.
    old = _score_all(work, policy, plan).logprobs if len(plan) > 1 or recipe.reward_kl != "none" else None
    ref_logprobs = ref.logprobs if ref else old
    unread = torch.zeros(batch.trained_mask().shape, device=policy.device)
    known, known_ref = (unread if logprobs is None else logprobs for logprobs in (old, ref_logprobs))
    advantages, token_advantages = advantages_of(rollout, batch, known, known_ref, recipe, engine)
    updates = []
    for micro_batches in plan * recipe.updates:
        worth = (advantages.reward, token_advantages)
        updates.append(_update(work, policy, optimizer, micro_batches, old, ref_logprobs, worth))
        old = updates[0].terms.policy_logprobs if old is None else old
        ref_logprobs = old if ref_logprobs is None else ref_logprobs
    assert old is not None and ref_logprobs is not None  # there is at least one update
    return StepTrace(
        recipe=recipe, rollout=rollout, batch=batch, advantages=advantages, token_advantages=token_advantages, old_logprobs=old,
        ref_logprobs=ref_logprobs, ref_hidden=ref.hidden if ref else None, updates=tuple(updates),
    )  # fmt: skip


@dataclass(frozen=True)
class _Work:
    """What stays the same during a step."""

    batch: Batch
    recipe: Recipe
    engine: Engine
    keep_hidden: bool

    def score(self, policy: Policy, rows: Tensor | None, last: bool = True) -> tuple[Batch, Scored]:
        part, recipe = part_of(self.batch, rows), self.recipe
        scored = self.engine.score(policy, part, recipe.temperature, recipe.entropy_coef != 0, last)
        return part, scored if self.keep_hidden else replace(scored, hidden=scored.hidden[:0])

    def evenly(self, micro_batches: list[Tensor]) -> list[Tensor | None]:
        """With an empty micro-batch for each one that another process has more."""
        return micro_batches + [None] * (self.engine.most(len(micro_batches)) - len(micro_batches))


def _score_all(work: _Work, policy: Policy, plan: list[list[Tensor]]) -> Scored:
    """What the policy says of all rows as it is now, a micro-batch at a time, without a graph."""
    micro_batches = [rows for part in plan for rows in part]
    with torch.no_grad():
        scored = [work.score(policy, rows)[1] for rows in work.evenly(micro_batches)][: len(micro_batches)]
    return Scored(**{f.name: torch.cat([getattr(part, f.name) for part in scored]) for f in fields(Scored)})


def _update(
    work: _Work, policy: Policy, optimizer: torch.optim.Optimizer, micro_batches: list[Tensor],
    old: Tensor | None, ref: Tensor | None, worth: tuple[Tensor, Tensor],
) -> Update:  # fmt: skip
    """One optimizer step on these rows. Without `old` the policy as it is now is the old one; without `ref` it is both."""
    recipe, batch = work.recipe, work.batch
    totals = step_totals(batch, micro_batches, recipe.loss_config(), work.engine)
    optimizer.zero_grad(set_to_none=True)
    pieces, turns = [], work.evenly(micro_batches)
    for turn, rows in enumerate(turns, start=1):
        part, scored = work.score(policy, rows, last=turn == len(turns))
        part_old = scored.logprobs.detach() if old is None else pick_rows(old, rows)
        part_ref = part_old if ref is None else pick_rows(ref, rows)
        part_worth = [pick_rows(values, rows) for values in worth]
        terms = loss_of_batch(scored.logprobs, part_old, part_ref, part_worth, scored.entropy, part, recipe, totals)
        terms.policy_logprobs.retain_grad()
        work.engine.backward(policy, terms.loss)
        logprob_grad = terms.policy_logprobs.grad
        assert logprob_grad is not None
        if rows is not None:
            pieces.append((rows, detached(terms), logprob_grad, scored.hidden))
    whole = joined(pieces, batch)
    norms, norm, applied = _apply(policy, optimizer, recipe, work.engine)
    return Update(terms=whole[0], logprob_grad=whole[1], hidden=whole[2], grad_norms=norms, grad_norm=norm, applied=applied)


def _apply(
    policy: Policy, optimizer: torch.optim.Optimizer, recipe: Recipe, engine: Engine
) -> tuple[dict[str, float], float, bool]:
    """Clip the gradients and step, unless they are not finite. Returns the norms before clipping, and whether it stepped."""
    gradients = engine.gradients(policy)
    norms = engine.norms(list(gradients.values()))
    norm = norms.norm()
    named = dict(zip(gradients, norms.tolist(), strict=True))  # one transfer for all of them
    return named, float(norm), engine.update(policy, optimizer, recipe.max_grad_norm, norm)


def loss_of_batch(
    policy: Tensor, old: Tensor, ref: Tensor, advantages: Sequence[Tensor], entropy: Tensor, batch: Batch,
    recipe: Recipe, totals: Totals | None = None,
) -> LossTerms:  # fmt: skip
    """`policy_loss` of a batch; `advantages` are the rewards [B] and the advantages [B T] of `advantages_of`."""
    mask, config = batch.trained_mask(), recipe.loss_config()
    totals = totals or totals_of(mask, config, width=batch.row_ids().shape[1] - 1)
    reward, per_token = advantages
    return policy_loss(
        policy, old, ref, per_token, mask, entropy, config, totals, batch.sampler_logprobs, reward.nan_to_num(0.0)
    )


def reweigh(trace: StepTrace, recipe: Recipe) -> StepTrace:
    """The first update of the same rollout under another recipe's rewards, advantages and loss, without the model.

    Right down to d loss / d log-prob. What needs a backward pass through the model is absent: `grad_norms` is empty,
    `applied` False, and there is no second update. Raises ValueError where the recipe would sample another rollout.
    """
    if recipe.rollout_key() != trace.recipe.rollout_key():
        raise ValueError("recipe: found other sampling settings than the trace's; run the step instead")
    batch = to_batch(trace.sampled(), recipe.layout, recipe.mask_truncated)
    moved = {name: _to_columns(tensor, batch) for name, tensor in _first_scores(trace).items()}
    advantages = advantages_of(trace.sampled(), batch, moved["old"], moved["ref"], recipe)
    leaf = moved["policy"].requires_grad_()
    values = (advantages[0].reward, advantages[1])
    terms = loss_of_batch(leaf, moved["old"], moved["ref"], values, moved["entropy"], batch, recipe)
    (grad,) = torch.autograd.grad(terms.loss, terms.policy_logprobs)
    first = replace(
        trace.updates[0], terms=detached(terms), logprob_grad=grad, grad_norms={}, grad_norm=float("nan"), applied=False
    )
    return replace(
        trace, recipe=recipe, batch=batch, advantages=advantages[0], token_advantages=advantages[1], old_logprobs=moved["old"],
        ref_logprobs=moved["ref"], updates=(first,),
    )  # fmt: skip


def _first_scores(trace: StepTrace) -> dict[str, Tensor]:
    terms = trace.updates[0].terms
    return {
        "policy": terms.policy_logprobs, "old": trace.known(trace.old_logprobs),
        "ref": trace.known(trace.ref_logprobs), "entropy": terms.entropy,
    }  # fmt: skip


def _to_columns(values: Tensor, batch: Batch) -> Tensor:
    """[B T] of either layout as the columns of `batch`: the completion's columns are the last C in both."""
    width = batch.trained_mask().shape[1]
    if values.shape[1] >= width:
        return values[:, values.shape[1] - width :].clone()
    return torch.nn.functional.pad(values, (width - values.shape[1], 0))


def replay(policy: Policy, rollout: Rollout, recipe: Recipe, updates: int) -> Policy:
    """A copy of `policy` after the first `updates` optimizer steps of this step."""
    trained = policy.clone()
    if updates:
        grpo_step(trained, policy, rollout, replace(recipe, updates=updates))
    return trained
