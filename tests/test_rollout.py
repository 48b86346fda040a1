"""Sampling: where a row ends, what was recorded on the way, and what top-k and top-p leave to choose from."""

from dataclasses import replace

import pytest
import torch
from builders import EOS, PAD, full_logprobs

from grpo_core import sample, score_tokens, to_batch
from grpo_core.rollout import draws_of, encode_prompts, generate
from grpo_core.tasks import score

FILTERS = [{"top_k": 3}, {"top_p": 0.5}, {"top_k": 20, "top_p": 0.8}]


def test_the_end_token_counts_and_nothing_counts_behind_it(rollout):
    for row, reason in enumerate(rollout.finish_reasons):
        ids, mask = rollout.completion_ids[row].tolist(), rollout.completion_mask[row].tolist()
        length = sum(mask)
        assert mask == [True] * length + [False] * (len(mask) - length)
        assert EOS not in ids[: length - 1] and (ids[length - 1] == EOS) == (reason == "stop")
        assert ids[length:] == [PAD] * (len(ids) - length)
        assert (rollout.sampler_logprobs[row, length:] == 0).all() and (rollout.kept_mass[row, length:] == 0).all()


def test_a_row_that_is_cut_has_all_the_tokens_it_was_allowed(rollout, recipe):
    lengths = rollout.completion_mask.sum(1).tolist()
    assert all(
        length == recipe.max_completion_length
        for length, reason in zip(lengths, rollout.finish_reasons, strict=True)
        if reason == "length"
    )


def test_sampling_stops_when_every_row_has_stopped(policy, recipe):
    # one row, cut short by its own EOS: the tensors are as wide as it is long
    for seed in range(40):
        rollout = sample(policy, ("2 - 1?",), replace(recipe, prompts=("2 - 1?",), group_size=1, seed=seed, edited_rewards=()))
        if rollout.finish_reasons == ("stop",):
            assert rollout.completion_mask.all() and rollout.completion_ids[0, -1] == EOS
            return
    pytest.fail("no row stopped in 40 seeds")


def test_every_end_token_of_the_model_ends_a_row(policy, recipe, monkeypatch):
    everything = frozenset(range(policy.vocab_size))
    monkeypatch.setattr(policy, "eos_ids", everything)
    rollout = sample(policy, recipe.prompts, recipe)
    assert rollout.completion_ids.shape[1] == 1 and set(rollout.finish_reasons) == {"stop"}


def test_prompts_are_padded_at_the_left_and_repeated_for_their_group(policy, recipe, rollout):
    mask = rollout.prompt_mask
    assert (mask.int().diff(dim=1) >= 0).all() and mask[:, -1].all()
    assert (rollout.prompt_ids[~mask] == PAD).all()
    assert rollout.group_ids.tolist() == [0, 0, 0, 0, 1, 1, 1, 1]
    for row, prompt in enumerate([p for p in recipe.prompts for _ in range(4)]):
        assert rollout.prompt_ids[row, mask[row]].tolist() == policy.encode(prompt)


@pytest.mark.parametrize("temperature", [1.0, 0.6, 1.7])
@pytest.mark.parametrize("filters", [{}, *FILTERS])
def test_the_samplers_log_probs_are_those_of_the_finished_row(policy, recipe, temperature, filters):
    recipe = replace(recipe, temperature=temperature, **filters)
    rollout = sample(policy, recipe.prompts, recipe)
    scored = score_tokens(policy, to_batch(rollout, "prompt_completion"), temperature).logprobs
    assert float((scored - rollout.sampler_logprobs).detach().abs().max()) < 1e-4


def kept_set(probs, top_k=0, top_p=1.0):
    """Ids that top-k, then top-p leave: by falling probability, until the mass of what is left reaches top_p."""
    order = sorted(range(len(probs)), key=lambda i: -probs[i])
    order = order[:top_k] if top_k else order
    total, kept = sum(probs[i] for i in order), []
    for i in order:
        kept.append(i)
        if sum(probs[j] for j in kept) >= top_p * total:
            break
    return set(kept)


@pytest.mark.parametrize("filters", FILTERS)
def test_samples_come_from_the_kept_set_and_its_mass_is_recorded(policy, recipe, filters):
    recipe = replace(recipe, **filters)
    rollout = sample(policy, recipe.prompts, recipe)
    batch, mask = to_batch(rollout, "prompt_completion"), rollout.completion_mask
    rows = full_logprobs(policy, batch, recipe.temperature).detach().exp().double()
    for probs, chosen, mass in zip(rows, rollout.completion_ids[mask], rollout.kept_mass[mask], strict=True):
        kept = kept_set(probs.tolist(), **filters)
        assert int(chosen) in kept
        assert float(mass) == pytest.approx(float(probs[list(kept)].sum()), abs=1e-4)
    assert (rollout.kept_mass[mask] < 1).any()


def test_without_filters_the_kept_mass_is_1(rollout):
    torch.testing.assert_close(rollout.kept_mass[rollout.completion_mask].min(), torch.tensor(1.0))


def test_top_k_1_always_takes_the_likeliest(policy, recipe):
    recipe = replace(recipe, top_k=1)
    rollout = sample(policy, recipe.prompts, recipe)
    rows = full_logprobs(policy, to_batch(rollout, "prompt_completion"), 1.0)
    assert torch.equal(rows.argmax(-1), rollout.completion_ids[rollout.completion_mask])


def test_the_same_seed_samples_the_same_and_another_does_not(policy, recipe, rollout):
    again, other = sample(policy, recipe.prompts, recipe), sample(policy, recipe.prompts, replace(recipe, seed=2))
    assert torch.equal(again.completion_ids, rollout.completion_ids)
    assert torch.equal(again.sampler_logprobs, rollout.sampler_logprobs) and again.completions == rollout.completions
    assert other.completions != rollout.completions


def test_sampling_neither_reads_nor_moves_torchs_own_random_numbers(policy, recipe, rollout):
    torch.manual_seed(123)
    before = torch.get_rng_state()
    assert sample(policy, recipe.prompts, recipe).completions == rollout.completions
    assert torch.equal(torch.get_rng_state(), before)


def test_tokens_come_up_as_often_as_the_model_says(policy, recipe):
    # 4000 rows of one token each: the share of the likeliest token within 4 standard deviations of its probability
    recipe = replace(recipe, prompts=("2 - 1?",), max_completion_length=1, edited_rewards=())
    ids, mask = encode_prompts(policy, recipe.prompts, recipe)
    chosen, _, logprobs, _ = generate(policy, ids, mask, recipe, draws_of(recipe, 4000))
    likeliest = int(chosen.flatten().mode().values)
    p = float(logprobs[chosen == likeliest][0].exp())
    assert float((chosen == likeliest).float().mean()) == pytest.approx(p, abs=4 * (p * (1 - p) / 4000) ** 0.5)


def test_the_text_leaves_special_tokens_out(policy, rollout):
    assert not any("<eos>" in text or "<pad>" in text for text in rollout.completions)
    assert rollout.completions[0] == policy.decode(rollout.completion_ids[0, rollout.completion_mask[0]].tolist())


@pytest.mark.parametrize(
    ("prompt", "completion", "reason", "rewards"),
    [
        ("What is 4 + 5?", "It is 9.", "stop", (1.0, 1.0)),
        ("What is 4 + 5?", "4 + 5 = 9", "length", (1.0, 0.0)),
        ("What is 4 + 5?", "9 or 8", "stop", (0.0, 1.0)),
        ("What is 4 - 9?", "-5", "stop", (1.0, 1.0)),
        ("What is 4 + 5?", "nine", "stop", (0.0, 0.0)),
        ("Tell me a joke.", "9", "stop", (None, None)),
    ],
)
def test_rewards_of_single_answers(prompt, completion, reason, rewards):
    assert score(("correct", "format"), [prompt], (completion,), (reason,)) == (rewards,)
