"""Shift, gather, masks and padding: from logits to the log-prob of each trained token."""

import pytest
import torch
from builders import TablePolicy, full_logprobs, sequence_batch

from grpo_core import logprobs as scoring
from grpo_core import score_tokens, to_batch
from grpo_core.logprobs import gather, labels, log_softmax, position_ids, row_entropy, scatter, select

ROWS = [[-1.6, -2.1, -0.9, -3.0, -1.8], [-0.5, -1.1, -2.5, -1.3, -4.0], [-3.2, -1.9, -1.0, -2.2, -0.8]]


def test_gather_takes_one_cell_of_each_row():
    # ids 2, 0, 4 of the three rows
    picked = gather(torch.tensor(ROWS), torch.tensor([2, 0, 4]))
    torch.testing.assert_close(picked, torch.tensor([-0.9, -0.5, -0.8]))


def test_a_smaller_index_does_not_broadcast_it_returns_less():
    assert torch.gather(torch.randn(2, 3, 5), -1, torch.zeros(1, 3, 1, dtype=torch.long)).shape == (1, 3, 1)


def test_numbers_that_are_no_log_probs_do_not_sum_to_1():
    # exp of each row summed: .945845, 1.311868, 1.117666
    sums = torch.tensor(ROWS).exp().sum(-1)
    assert sums.tolist() == pytest.approx([0.946, 1.312, 1.118], abs=5e-4)
    torch.testing.assert_close(log_softmax(torch.tensor(ROWS), 1.0).exp().sum(-1), torch.ones(3))


def test_log_softmax_keeps_what_the_log_of_a_softmax_loses():
    # fp32: exp(-100) is a subnormal, exp(-104) is 0
    logits = torch.tensor([[0.0, -100.0, -104.0]])
    naive = logits.softmax(-1).log()[0]
    assert float(naive[1]) == pytest.approx(-99.983, abs=1e-3) and float(naive[2]) == -float("inf")
    assert log_softmax(logits, 1.0)[0].tolist() == [0.0, -100.0, -104.0]


def test_labels_are_the_targets_and_0_where_masked():
    batch = sequence_batch([[101, 102, 201, 202, 203, 0, 0]], [[0, 0, 1, 1, 1, 0, 0]])
    assert labels(batch).tolist() == [[0, 201, 202, 203, 0, 0]]
    assert batch.trained_mask().tolist() == [[False, True, True, True, False, False]]


def test_the_mask_follows_the_target():
    # prompt prompt r1 r2 r3 EOS: the row that stands at the last prompt token predicts r1
    batch = sequence_batch([[7, 7, 1, 1, 1, 2]], [[0, 0, 1, 1, 1, 1]])
    assert batch.trained_mask().int().tolist() == [[0, 1, 1, 1, 1]]
    assert batch.token_positions().tolist() == [1, 2, 3, 4, 5]


def table_of(values, ids, size):
    """Log-probs of the targets written down: the rest of each row shares what is left."""
    table = torch.zeros(1, len(ids[0]), size)
    for position, (value, target) in enumerate(zip(values, ids[0][1:], strict=True)):
        p = torch.tensor(value).exp()
        table[0, position] = ((1 - p) / (size - 1)).log()
        table[0, position, target] = value
    return table


def test_scores_are_gathered_at_the_target_and_0_where_masked():
    # gathered -3.2 -1.1 -0.8 -1.5 -4.5 -4.8 at the targets; only the three of the response stay
    ids = [[101, 102, 201, 202, 203, 0, 0]]
    policy = TablePolicy(table_of([-3.2, -1.1, -0.8, -1.5, -4.5, -4.8], ids, 300))
    everything = score_tokens(policy, sequence_batch(ids, [[0, 1, 1, 1, 1, 1, 1]]), 1.0)
    expected = torch.tensor([[-3.2, -1.1, -0.8, -1.5, -4.5, -4.8]])
    torch.testing.assert_close(everything.logprobs, expected, atol=1e-5, rtol=0)
    masked = score_tokens(policy, sequence_batch(ids, [[0, 0, 1, 1, 1, 0, 0]]), 1.0)
    torch.testing.assert_close(masked.logprobs, torch.tensor([[0.0, -1.1, -0.8, -1.5, 0.0, 0.0]]), atol=1e-5, rtol=0)


def test_ids_and_logits_that_are_not_trained_are_never_looked_at():
    ids = [[101, 102, 201, 202, 203, -100, 10**9]]
    logits = torch.randn(1, 7, 300)
    logits[0, [0, 4, 5, 6]] = float("nan")  # the rows that predict no trained token
    logits.requires_grad_()
    scored = score_tokens(TablePolicy(logits), sequence_batch(ids, [[0, 0, 1, 1, 1, 0, 0]]), 1.0)
    (grad,) = torch.autograd.grad(scored.logprobs.sum(), logits)
    assert scored.logprobs.isfinite().all() and scored.entropy.isfinite().all() and grad.isfinite().all()


def test_scatter_puts_values_back_row_by_row():
    mask = torch.tensor([[False, True], [True, True]])
    assert scatter(torch.tensor([1.0, 2.0, 3.0]), mask).tolist() == [[0.0, 1.0], [2.0, 3.0]]


def test_entropy_of_a_fair_choice_and_of_a_certainty():
    # ln 2, and 0 with no NaN from 0 · -inf
    rows = torch.tensor([[0.0, 0.0, -torch.inf], [0.0, -torch.inf, -torch.inf]])
    assert row_entropy(log_softmax(rows, 1.0)).tolist() == pytest.approx([0.693147, 0.0], abs=1e-6)


def test_positions_count_real_tokens():
    mask = torch.tensor([[False, False, True, True], [True, True, True, False]])
    assert position_ids(mask).tolist() == [[0, 0, 0, 1], [0, 1, 2, 2]]


def test_both_layouts_give_the_same_numbers_behind_left_padding(policy, rollout):
    pair = {layout: to_batch(rollout, layout) for layout in ("prompt_completion", "sequence")}
    scored = {name: score_tokens(policy, batch, 1.0) for name, batch in pair.items()}
    width = rollout.completion_ids.shape[1]
    short, long = scored["prompt_completion"], scored["sequence"]
    assert long.logprobs.shape[1] == rollout.prompt_ids.shape[1] - 1 + width
    assert torch.equal(long.logprobs[:, -width:], short.logprobs) and (long.logprobs[:, :-width] == 0).all()
    assert torch.equal(long.entropy[:, -width:], short.entropy) and torch.equal(long.hidden, short.hidden)
    sampler = pair["sequence"].sampler_logprobs
    assert torch.equal(sampler[:, -width:], rollout.sampler_logprobs) and (sampler[:, :-width] == 0).all()


def test_scores_are_the_models_own_log_probs_one_position_before(policy, rollout):
    batch = to_batch(rollout, "prompt_completion")
    own = full_logprobs(policy, batch, 0.7)
    expected = own.gather(1, batch.row_ids()[:, batch.token_positions()][batch.trained_mask()].unsqueeze(1)).squeeze(1)
    scored = score_tokens(policy, batch, 0.7)
    torch.testing.assert_close(scored.logprobs[batch.trained_mask()], expected, atol=1e-4, rtol=0)
    entropy = -(own.exp() * own).sum(-1)
    torch.testing.assert_close(scored.entropy[batch.trained_mask()], entropy, atol=1e-4, rtol=0)


def test_a_row_alone_scores_as_in_its_batch(policy, rollout):
    batch = to_batch(rollout, "sequence")
    together = score_tokens(policy, batch, 1.0).logprobs
    short_rows = (~rollout.prompt_mask).any(1).nonzero().flatten().tolist()
    assert short_rows
    for row in short_rows:
        real = batch.row_mask()[row]
        ids, response = batch.input_ids[row, real].tolist(), batch.response_mask[row, real].tolist()
        alone = score_tokens(policy, sequence_batch([ids], [response]), 1.0).logprobs
        torch.testing.assert_close(alone[alone != 0], together[row][together[row] != 0], atol=1e-4, rtol=0)


def test_the_logits_are_divided_by_the_temperature_once():
    # logits 2, 1, 0 at T = .5 are 4, 2, 0: log p of the first = 4 - ln(e⁴ + e² + 1) = -.142932
    policy = TablePolicy(torch.tensor([[[2.0, 1.0, 0.0], [0.0, 0.0, 0.0]]]))
    scored = score_tokens(policy, sequence_batch([[1, 0]], [[0, 1]]), 0.5)
    assert float(scored.logprobs) == pytest.approx(-0.142932, abs=1e-6)


def test_chunks_of_the_vocabulary_change_neither_values_nor_gradients(policy, rollout, monkeypatch):
    batch = to_batch(rollout, "prompt_completion")

    def run():
        copy = policy.clone()
        scored = score_tokens(copy, batch, 0.9, entropy_grad=True)
        (scored.logprobs.sum() + 0.1 * scored.entropy.sum()).backward()
        return scored, [p.grad for p in copy.model.parameters()]

    one, one_grads = run()
    monkeypatch.setattr(scoring, "CHUNK_ELEMENTS", 10 * policy.vocab_size)  # ten positions at a time, the last fewer
    assert int(batch.trained_mask().sum()) % 10
    many, many_grads = run()
    torch.testing.assert_close(many.logprobs, one.logprobs, atol=1e-5, rtol=1e-6)
    torch.testing.assert_close(many.entropy, one.entropy, atol=1e-5, rtol=1e-6)
    for left, right in zip(one_grads, many_grads, strict=True):
        assert float((left - right).abs().max()) <= 2e-6 * float(left.abs().max()) + 1e-7


def test_the_entropy_has_a_gradient_only_if_asked(policy, rollout):
    batch = to_batch(rollout, "prompt_completion")
    assert not score_tokens(policy, batch, 1.0).entropy.requires_grad
    assert score_tokens(policy, batch, 1.0, entropy_grad=True).entropy.requires_grad


def test_selected_states_stand_one_before_their_tokens(rollout):
    batch = to_batch(rollout, "prompt_completion")
    positions = torch.arange(batch.row_ids().shape[1], dtype=torch.float32)
    states = positions.view(1, -1, 1).expand(batch.row_ids().shape[0], -1, 1)
    assert select(states, batch).min() == rollout.prompt_ids.shape[1] - 1
