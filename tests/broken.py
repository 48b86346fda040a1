"""For every check: evidence that it must mark (RED), with the status, and evidence close to it that it must let pass (NEAR).

Each function takes the sound evidence of conftest.py and returns it with one thing changed.
"""

from dataclasses import replace

import torch
from builders import BOS, EOS

from grpo_core import Evidence, group_advantages, reweigh
from grpo_core.closed_forms import policy_logprob_grad
from grpo_core.explain import UpdateEffect


def on_trace(evidence, **changes):
    """The same evidence about the changed trace, its batch made anew."""
    more = {name: getattr(evidence, name) for name in ("policy", "token", "row", "exact_kl", "effect")}
    return Evidence.of_trace(replace(evidence.trace, **changes), evidence.update, **more)


def on_batch(evidence, **changes):
    return on_trace(evidence, batch=replace(evidence.trace.batch, **changes))


def on_update(evidence, **changes):
    updates = list(evidence.trace.updates)
    updates[evidence.update] = replace(updates[evidence.update], **changes)
    return on_trace(evidence, updates=tuple(updates))


def on_terms(evidence, **changes):
    return on_update(evidence, terms=replace(evidence.step.terms, **changes))


def on_recipe(evidence, **changes):
    """The first update of the same rollout under another recipe."""
    more = {name: getattr(evidence, name) for name in ("policy", "token", "row", "exact_kl", "effect")}
    return Evidence.of_trace(reweigh(evidence.trace, replace(evidence.trace.recipe, **changes)), **more)


def on_advantages(evidence, change):
    advantages, per_token = evidence.trace.advantages, evidence.trace.token_advantages
    changed = replace(advantages, advantages=change(advantages.advantages))
    return on_trace(evidence, advantages=changed, token_advantages=change(per_token))


def with_rewards(evidence, rewards):
    """The same rollout, rewarded with these numbers (one function)."""
    values = tuple((None if value is None else float(value),) for value in rewards)
    trace = evidence.trace
    return on_trace(
        evidence, advantages=group_advantages(values, (1.0,), trace.batch.group_ids),
        rollout=replace(trace.rollout, rewards=values), recipe=replace(trace.recipe, edited_rewards=()),
    )  # fmt: skip


def put(tensor, place, value):
    """The tensor with one entry replaced."""
    changed = tensor.clone()
    changed[place] = value
    return changed


def add(tensor, place, amount):
    return put(tensor, place, tensor[place] + amount)


def stopped_row(evidence):
    """(row, column of its EOS) of a row that stopped with room behind it."""
    trace = evidence.trace
    lengths = trace.rollout.completion_mask.sum(1).tolist()
    row = next(r for r, n in enumerate(lengths) if n < max(lengths) and trace.rollout.finish_reasons[r] == "stop")
    return row, lengths[row] - 1


def completion_id(e, value):
    return on_batch(e, completion_ids=put(e.trace.batch.completion_ids, (0, 0), value))


def start_tokens(e, places):
    first = int(e.trace.batch.prompt_mask[5].long().argmax())
    ids = e.trace.batch.prompt_ids.clone()
    ids[5, [first + place for place in places]] = BOS
    return on_batch(e, prompt_ids=ids)


def sampler(e, amount, place=None):
    return on_batch(e, sampler_logprobs=add(e.trace.batch.sampler_logprobs, place or e.token, amount))


def masked_nan(e):
    row, end = stopped_row(e)
    return sampler(e, float("nan"), (row, end + 1))


def mask_at(e, step, value):
    row, end = stopped_row(e)
    return on_batch(e, completion_mask=put(e.trace.batch.completion_mask, (row, end + step), value))


def pad_is_eos(e):
    batch = e.trace.batch
    return on_batch(e, completion_ids=torch.where(batch.completion_mask, batch.completion_ids, EOS))


def groups(e, *ids):
    ids = torch.tensor(ids)
    values = group_advantages(tuple((float(r),) for r in e.trace.advantages.reward), (1.0,), ids)
    return on_trace(e, batch=replace(e.trace.batch, group_ids=ids), advantages=values)


def row_of(e, **changes):
    return replace(e, row=replace(e.row, **changes))


def clipped_by_ratio_alone(e):
    """Forgets the sign of the advantage."""
    terms = e.step.terms
    return on_terms(e, is_clipped=(terms.ratio != 0) & ((terms.ratio - 1).abs() > 0.2))


def moved(e, change):
    zeros = torch.zeros_like(change)
    return replace(e, effect=UpdateEffect(before=zeros, after=change, change=change, row_change=change.sum(1)))


def grad(e, amount=0.0, factor=1.0):
    return on_update(e, logprob_grad=add(e.step.logprob_grad * factor, e.token, amount))


def shifted(e, offset):
    return on_trace(e, old_logprobs=e.trace.old_logprobs.roll(offset, 1))


def noisy(e):
    noise = 0.3 * torch.randn(e.trace.old_logprobs.shape, generator=torch.Generator().manual_seed(0))
    return on_trace(e, old_logprobs=e.trace.old_logprobs + noise)


def one_fell(e):
    return moved(e, add(e.effect.change, e.token, -1e-4))


NAN, INF = float("nan"), float("inf")
# check -> [(broken evidence of (first update, second update), status)]
RED = {
    "ids_in_vocab": [
        (lambda e, s: completion_id(e, e.policy.vocab_size), "error"), (lambda e, s: completion_id(e, -100), "error")],
    "double_bos": [(lambda e, s: start_tokens(e, (0, 1)), "warning")],
    "sampler_logprobs_match": [(lambda e, s: sampler(e, 0.01), "error"), (lambda e, s: sampler(e, NAN), "error")],
    "reward_finite": [
        (lambda e, s: with_rewards(e, [NAN, 0, 0, 1, 1, 0, 0, 1]), "error"),
        (lambda e, s: with_rewards(e, [1, INF, 0, 1, 1, 0, 0, 1]), "error"),
        (lambda e, s: with_rewards(e, [None, 0, 0, 1, 1, 0, 0, 1]), "info")],
    "group_size_min": [
        (lambda e, s: groups(e, 0, 0, 0, 0, 1, 1, 1, 2), "error"),
        (lambda e, s: with_rewards(e, [1, None, None, None, 1, 0, 0, 1]), "error")],
    "advantage_group_sum": [
        (lambda e, s: on_advantages(e, lambda a: a + 0.1), "error"),
        (lambda e, s: on_batch(e, group_ids=torch.tensor([0, 0, 1, 1, 0, 0, 1, 1])), "error")],
    "advantage_magnitude": [(lambda e, s: on_advantages(e, lambda a: 2 * a), "error")],
    "zero_std_groups": [(lambda e, s: with_rewards(e, [1, 1, 1, 1, 1, 0, 0, 1]), "info")],
    "eos_in_mask": [(lambda e, s: mask_at(e, 0, False), "error")],
    "mask_after_eos": [(lambda e, s: mask_at(e, 1, True), "error")],
    "probabilities_sum": [(lambda e, s: row_of(e, probs=0.99 * e.row.probs), "error")],
    "shift_probe": [(lambda e, s: shifted(e, 1), "error"), (lambda e, s: shifted(e, -1), "error")],
    "gather_matches_sampler": [(lambda e, s: row_of(e, logprob=e.row.logprob + 0.01), "error")],
    "ratio_first_step": [(lambda e, s: on_terms(e, ratio=add(e.step.terms.ratio, e.token, 1e-3)), "error")],
    "kl_nonnegative": [
        (lambda e, s: on_terms(e, kl=add(e.step.terms.kl, e.token, -0.01)), "error"),
        (lambda e, s: on_terms(on_recipe(e, kl_estimator="k1"), kl=e.step.terms.kl - 0.01), "info")],
    "kl_step0_zero": [(lambda e, s: on_terms(e, kl=add(e.step.terms.kl, e.token, 0.005)), "warning")],
    "clip_fraction_by_gradient": [(lambda e, s: clipped_by_ratio_alone(s), "warning")],
    "denominator_matches_mask": [
        (lambda e, s: on_terms(e, token_weight=2 * e.step.terms.token_weight), "error"),
        (lambda e, s: on_terms(e, token_weight=torch.full_like(e.step.terms.token_weight, 1 / 96)), "error")],
    "split_invariance": [
        (lambda e, s: on_terms(e, policy_loss=e.step.terms.policy_loss + 1e-3), "error"),
        (lambda e, s: on_recipe(e, aggregation="micro-token-mean"), "info")],
    "loss_zero_explain": [(lambda e, s: e, "info")],
    "kl_has_grad": [(lambda e, s: on_update(s, logprob_grad=policy_logprob_grad(s.trace, s.update)), "error")],
    "logprob_gradient_closed_form": [(lambda e, s: grad(e, 0.01), "error")],
    "logit_gradient_closed_form": [(lambda e, s: row_of(e, logit_grad=2 * e.row.logit_grad), "error")],
    "backward_finite": [
        (lambda e, s: grad(e, NAN), "error"), (lambda e, s: on_update(e, grad_norm=INF), "error"),
        (lambda e, s: on_update(e, grad_norm=NAN), "error")],
    "update_applied": [
        (lambda e, s: on_update(e, applied=False), "error"), (lambda e, s: on_recipe(e, beta=0.5), "info")],
    "update_direction": [(lambda e, s: moved(e, -e.effect.change), "info")],
}  # fmt: skip
NEAR = {
    "ids_in_vocab": [lambda e, s: completion_id(e, e.policy.vocab_size - 1), lambda e, s: completion_id(e, 0)],
    "double_bos": [lambda e, s: start_tokens(e, (2, 3)), lambda e, s: start_tokens(e, (0, 2))],
    "sampler_logprobs_match": [lambda e, s: sampler(e, 5e-4), lambda e, s: masked_nan(e)],
    "reward_finite": [lambda e, s: with_rewards(e, [1e6, -1e6, 0, 1, 1, 0, 0, 1])],
    "group_size_min": [
        lambda e, s: groups(e, 0, 0, 1, 1, 2, 2, 3, 3),
        lambda e, s: groups(on_recipe(e, advantage_mean="none", advantage_std="none"), 0, 1, 2, 3, 4, 5, 6, 7)],
    "advantage_group_sum": [
        lambda e, s: on_advantages(e, lambda a: a + 5e-4),
        lambda e, s: on_recipe(e, advantage_mean="batch"),
        lambda e, s: on_recipe(e, advantage_mean="leave-one-out", advantage_std="leave-one-out")],
    "advantage_magnitude": [
        lambda e, s: with_rewards(e, [1, 0, 0, 0, 0, 1, 1, 1]),
        lambda e, s: on_advantages(on_recipe(e, advantage_std="none"), lambda a: 9 * a)],
    "zero_std_groups": [
        lambda e, s: with_rewards(e, [1, 1, 1, 0.999, 1, 0, 0, 1]),
        lambda e, s: with_rewards(on_recipe(e, advantage_mean="batch"), [1, 1, 1, 1, 1, 0, 0, 1])],
    "eos_in_mask": [lambda e, s: pad_is_eos(e)],
    "mask_after_eos": [lambda e, s: pad_is_eos(e)],
    "probabilities_sum": [lambda e, s: row_of(e, probs=1.00005 * e.row.probs)],
    "shift_probe": [lambda e, s: noisy(e)],
    "gather_matches_sampler": [lambda e, s: row_of(e, logprob=e.row.logprob + 5e-4), lambda e, s: s],
    "ratio_first_step": [
        lambda e, s: on_terms(e, ratio=add(e.step.terms.ratio, e.token, 5e-6)), lambda e, s: s],
    "kl_nonnegative": [lambda e, s: on_terms(e, kl=e.step.terms.kl - 5e-7), lambda e, s: s],
    "kl_step0_zero": [lambda e, s: on_terms(e, kl=add(e.step.terms.kl, e.token, 5e-5)), lambda e, s: s],
    "clip_fraction_by_gradient": [lambda e, s: s, lambda e, s: on_recipe(e, clip_low=0.0, clip_high=0.0)],
    "denominator_matches_mask": [lambda e, s: on_terms(e, token_weight=1.00005 * e.step.terms.token_weight)],
    "split_invariance": [lambda e, s: on_terms(e, policy_loss=e.step.terms.policy_loss + 1e-7)],
    "loss_zero_explain": [lambda e, s: on_recipe(e, aggregation="token-mean")],
    "kl_has_grad": [lambda e, s: s, lambda e, s: on_recipe(e, beta=0.0)],
    "logprob_gradient_closed_form": [lambda e, s: grad(e, factor=1 + 5e-6), lambda e, s: s],
    "logit_gradient_closed_form": [lambda e, s: row_of(e, logit_grad=(1 + 5e-6) * e.row.logit_grad), lambda e, s: s],
    "backward_finite": [lambda e, s: grad(e, 1e30), lambda e, s: on_recipe(e, beta=0.5)],
    "update_applied": [lambda e, s: on_update(e, grad_norm=1e-30)],
    "update_direction": [
        lambda e, s: one_fell(e),
        lambda e, s: moved(on_advantages(e, torch.zeros_like), -e.effect.change)],
}  # fmt: skip
