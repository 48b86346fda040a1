"""The one GRPO step, called by the lessons and by the trainer alike.

rewards -> advantages -> score under old and reference -> per update: score, `policy_loss`, backward, optimizer step.
The trace it returns holds every tensor on the way, detached, and no weights.
"""

from dataclasses import fields, replace

import torch
from torch import Tensor

from .advantages import batch_advantages
from .config import Recipe
from .logprobs import score_tokens
from .loss import policy_loss, totals_of
from .policy import Policy
from .rollout import to_batch
from .types import Advantages, Batch, LossTerms, Rollout, Scored, StepTrace, Update


def make_optimizer(policy: Policy, recipe: Recipe) -> torch.optim.Optimizer:
    """A fresh optimizer over everything in the policy that has a gradient. No weight decay: only the loss moves it."""
    parameters = [p for p in policy.model.parameters() if p.requires_grad]
    if recipe.optimizer == "sgd":
        return torch.optim.SGD(parameters, lr=recipe.learning_rate)
    return torch.optim.AdamW(parameters, lr=recipe.learning_rate, weight_decay=0.0)


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


def advantages_of(rollout: Rollout, batch: Batch, old: Tensor, ref: Tensor, recipe: Recipe) -> tuple[Advantages, Tensor]:
    """Advantages per row and per token of the rollout's rewards, edits included, in the recipe's convention."""
    return batch_advantages(
        rewards_after_edits(rollout, recipe), recipe.reward_weights, rollout.group_ids,
        old, ref, batch.trained_mask(), recipe.advantage_config(),
    )  # fmt: skip


def grpo_step(
    policy: Policy,
    reference: Policy | None,
    rollout: Rollout,
    recipe: Recipe,
    optimizer: torch.optim.Optimizer | None = None,
) -> StepTrace:
    """`recipe.updates` optimizer steps on one rollout. Trains `policy` in place; hand in `policy.clone()` to keep it.

    `reference` is frozen and only enters the KL; without one the KL is taken to the start of the step.
    `optimizer` keeps its state across the trainer's steps; a lesson's single step makes its own.
    """
    batch = to_batch(rollout, recipe.layout, recipe.mask_truncated)
    optimizer = optimizer or make_optimizer(policy, recipe)
    with torch.no_grad():
        ref = score_tokens(reference, batch, recipe.temperature) if reference else None
    scored = score_tokens(policy, batch, recipe.temperature, entropy_grad=recipe.entropy_coef != 0)
    old = scored.logprobs.detach()
    ref_logprobs = ref.logprobs if ref else old
    advantages = advantages_of(rollout, batch, old, ref_logprobs, recipe)
    updates = [_update(policy, optimizer, scored, old, ref_logprobs, advantages, batch, recipe)]
    for _ in range(1, recipe.updates):
        scored = score_tokens(policy, batch, recipe.temperature, entropy_grad=recipe.entropy_coef != 0)
        updates.append(_update(policy, optimizer, scored, old, ref_logprobs, advantages, batch, recipe))
    return StepTrace(
        recipe=recipe, rollout=rollout, batch=batch, advantages=advantages[0], token_advantages=advantages[1], old_logprobs=old,
        ref_logprobs=ref_logprobs, ref_hidden=ref.hidden if ref else None, updates=tuple(updates),
    )  # fmt: skip


def _update(
    policy: Policy, optimizer: torch.optim.Optimizer, scored: Scored, old: Tensor, ref: Tensor,
    advantages: tuple[Advantages, Tensor], batch: Batch, recipe: Recipe,
) -> Update:  # fmt: skip
    terms = loss_of_batch(scored.logprobs, old, ref, advantages, scored.entropy, batch, recipe)
    terms.policy_logprobs.retain_grad()
    optimizer.zero_grad(set_to_none=True)
    terms.loss.backward()
    assert terms.policy_logprobs.grad is not None
    norms = grad_norms(policy)
    total = float(torch.tensor(list(norms.values())).norm())
    finite = total == total and total != float("inf")
    if finite:
        if recipe.max_grad_norm:
            torch.nn.utils.clip_grad_norm_(policy.model.parameters(), recipe.max_grad_norm)
        optimizer.step()
    return Update(
        terms=detached(terms), logprob_grad=terms.policy_logprobs.grad, hidden=scored.hidden,
        grad_norms=norms, grad_norm=total, applied=finite,
    )  # fmt: skip


def loss_of_batch(
    policy: Tensor, old: Tensor, ref: Tensor, advantages: tuple[Advantages, Tensor], entropy: Tensor, batch: Batch,
    recipe: Recipe,
) -> LossTerms:  # fmt: skip
    """`policy_loss` of a batch; `advantages` are those of `advantages_of`, per row and per token."""
    mask, config = batch.trained_mask(), recipe.loss_config()
    totals = totals_of(mask, config, width=batch.row_ids().shape[1] - 1)
    rows, per_token = advantages
    return policy_loss(
        policy, old, ref, per_token, mask, entropy, config, totals, batch.sampler_logprobs, rows.reward.nan_to_num(0.0)
    )


def grad_norms(policy: Policy) -> dict[str, float]:
    """L2 norm of the gradient of each parameter that has one."""
    named = [(name, p.grad) for name, p in policy.model.named_parameters() if p.grad is not None]
    norms = torch.stack([grad.norm() for _, grad in named])  # one transfer for all of them
    return dict(zip([name for name, _ in named], norms.tolist(), strict=True))


def detached(terms: LossTerms) -> LossTerms:
    return LossTerms(**{f.name: getattr(terms, f.name).detach() for f in fields(terms)})


def reweigh(trace: StepTrace, recipe: Recipe) -> StepTrace:
    """The first update of the same rollout under another recipe's rewards, advantages and loss, without the model.

    Right down to d loss / d log-prob. What needs a backward pass through the model is absent: `grad_norms` is empty,
    `applied` False, and there is no second update. Raises ValueError where the recipe would sample another rollout.
    """
    if recipe.rollout_key() != trace.recipe.rollout_key():
        raise ValueError("recipe: found other sampling settings than the trace's; run the step instead")
    batch = to_batch(trace.rollout, recipe.layout, recipe.mask_truncated)
    moved = {name: _to_columns(tensor, batch) for name, tensor in _first_scores(trace).items()}
    advantages = advantages_of(trace.rollout, batch, moved["old"], moved["ref"], recipe)
    leaf = moved["policy"].requires_grad_()
    terms = loss_of_batch(leaf, moved["old"], moved["ref"], advantages, moved["entropy"], batch, recipe)
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
        "policy": terms.policy_logprobs, "old": trace.old_logprobs,
        "ref": trace.ref_logprobs, "entropy": terms.entropy,
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
