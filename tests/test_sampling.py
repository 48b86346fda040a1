"""Sampling as a batch that changes: a row's text is its own, prompts are read once, finished rows leave."""

from dataclasses import replace

import pytest
import torch

from grpo_core import load_policy, sample, score_tokens, to_batch
from grpo_core.loading import _reorders
from grpo_core.rollout import draws_of, encode_prompts, pick

PROMPTS = ("What is 4 + 5?", "2 - 1?", "7?", "What is 12 + 30, then?")
LARGEST = 1 - 2**-24  # the largest number that torch.rand gives in fp32


@pytest.fixture(scope="module")
def settings(recipe):
    """Four prompts of different lengths, two rows each."""
    return replace(recipe, prompts=PROMPTS, group_size=2, max_completion_length=16, edited_rewards=(), seed=5)


@pytest.fixture(scope="module")
def whole(policy, settings):
    rollout = sample(policy, PROMPTS, settings)
    assert set(rollout.finish_reasons) == {"stop", "length"}
    return rollout


def tokens_of(rollout) -> list[list[int]]:
    return [ids[mask].tolist() for ids, mask in zip(rollout.completion_ids, rollout.completion_mask, strict=True)]


def logprobs_of(rollout) -> torch.Tensor:
    return rollout.sampler_logprobs[rollout.completion_mask]


@pytest.mark.parametrize("chosen", [(0, 1), (2, 3), (1,), (3, 0)])
def test_a_row_does_not_depend_on_the_rows_sampled_beside_it(policy, settings, whole, chosen):
    rows = [2 * prompt + place for prompt in chosen for place in (0, 1)]
    prompts = tuple(PROMPTS[prompt] for prompt in chosen)
    part = sample(policy, prompts, replace(settings, prompts=prompts), draws=draws_of(settings, 8)[rows])
    assert tokens_of(part) == [tokens_of(whole)[row] for row in rows]
    assert part.completions == tuple(whole.completions[row] for row in rows)
    assert part.finish_reasons == tuple(whole.finish_reasons[row] for row in rows)
    expected = torch.cat([whole.sampler_logprobs[row, whole.completion_mask[row]] for row in rows])
    assert float((logprobs_of(part) - expected).abs().max()) < 1e-5


def test_a_longer_limit_only_adds_tokens_to_the_rows_that_were_cut(policy, settings, whole):
    # the numbers of a column are drawn together: those of column 0 … 7 stay when there are 8 more
    short = sample(policy, PROMPTS, replace(settings, max_completion_length=8))
    assert tokens_of(short) == [row[:8] for row in tokens_of(whole)]


@pytest.mark.parametrize("filters", [{}, {"top_k": 5, "top_p": 0.9}])
def test_finished_rows_leave_the_batch_without_a_trace(policy, settings, filters):
    staying = policy.clone()
    staying.reorders_cache = False
    assert policy.reorders_cache
    settings = replace(settings, **filters)
    left, stayed = sample(policy, PROMPTS, settings), sample(staying, PROMPTS, settings)
    assert tokens_of(left) == tokens_of(stayed) and left.completion_ids.shape == stayed.completion_ids.shape
    assert torch.equal(left.completion_ids, stayed.completion_ids) and left.finish_reasons == stayed.finish_reasons
    assert float((left.sampler_logprobs - stayed.sampler_logprobs).abs().max()) < 1e-5
    assert float((left.kept_mass - stayed.kept_mass).abs().max()) < 1e-5


def read_by(policy, monkeypatch) -> list[tuple[int, ...]]:
    """The shapes of what `extend` is given from now on."""
    shapes, original = [], policy.extend
    monkeypatch.setattr(policy, "extend", lambda ids, *rest: shapes.append(tuple(ids.shape)) or original(ids, *rest))
    return shapes


def test_a_prompt_is_read_once_for_its_group_and_each_token_once(policy, settings, whole, monkeypatch):
    # the last token of a row is never read; without dropping every row is read to the end of the longest
    lengths = whole.completion_mask.sum(1)
    width = whole.prompt_ids.shape[1]
    shapes = read_by(policy, monkeypatch)
    sample(policy, PROMPTS, settings)
    assert shapes[0] == (4, width) and sum(rows * columns for rows, columns in shapes[1:]) == int((lengths - 1).sum())
    assert [rows for rows, _ in shapes[1:]] == [int((lengths > column).sum()) for column in range(1, int(lengths.max()))]

    staying = policy.clone()
    staying.reorders_cache = False
    shapes = read_by(staying, monkeypatch)
    sample(staying, PROMPTS, settings)
    assert shapes == [(8, width)] + [(8, 1)] * (int(lengths.max()) - 1)


def test_the_states_behind_a_prompt_are_the_same_read_once_or_for_each_row(policy, settings):
    ids, mask = encode_prompts(policy, PROMPTS, settings)
    assert ids.shape[0] == 4
    staying = policy.clone()
    staying.reorders_cache = False
    with torch.no_grad():
        (once, _), (each, _) = policy.prefill(ids, mask, 3), staying.prefill(ids, mask, 3)
        alone = policy.hidden(ids, mask)[:, -1]
    assert once.shape == each.shape == (12, 32)
    assert float((once - each).abs().max()) < 1e-4 and float((once[::3] - alone).abs().max()) < 1e-4


# ---- the token that a number picks -----------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("probs", "draw", "token"),
    [
        # shares of [0, 1): 0 … 1/4, 1/4 … 1/2, 1/2 … 1
        ((0.25, 0.25, 0.5), 0.0, 0),
        ((0.25, 0.25, 0.5), 0.2499, 0),
        ((0.25, 0.25, 0.5), 0.25, 1),
        ((0.25, 0.25, 0.5), 0.5, 2),
        ((0.25, 0.25, 0.5), LARGEST, 2),
        # a token of probability 0 has no share, wherever it stands
        ((0.0, 0.5, 0.0, 0.5), 0.0, 1),
        ((0.0, 0.5, 0.0, 0.5), 0.5, 3),
        ((0.5, 0.5, 0.0), LARGEST, 1),
        ((0.0, 0.0, 1.0, 0.0), 0.0, 2),
        # what does not quite add up to 1 is stretched: 0.9 of 0.5 is 0.45, beyond 0.4
        ((0.4, 0.1, 0.0), 0.9, 1),
        ((0.4, 0.1, 0.0), LARGEST, 1),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_number_picks_the_token_in_whose_share_it_falls(probs, draw, token, dtype):
    assert pick(torch.tensor([probs], dtype=dtype), torch.tensor([draw], dtype=dtype)).tolist() == [token]


def test_each_row_has_its_own_number():
    probs = torch.tensor([[0.5, 0.5], [0.5, 0.5], [0.0, 1.0]])
    assert pick(probs, torch.tensor([0.1, 0.9, 0.0])).tolist() == [0, 1, 1]


def test_in_a_large_vocabulary_the_shares_stay_where_they_are():
    # 2**18 equal tokens: number (i + 1/2) / 2**18 falls into the middle of token i's share
    size = 2**18
    probs = torch.full((1, size), 1 / size).expand(3, -1)
    wanted = torch.tensor([1, size // 3, size - 1])
    assert pick(probs, (wanted.double() + 0.5) / size).tolist() == wanted.tolist()


def test_what_is_picked_is_where_one_running_sum_passes_the_number():
    torch.manual_seed(0)
    probs = torch.where(torch.rand(64, 1000) < 0.9, 0.0, torch.rand(64, 1000))  # in pieces, many of them almost empty
    probs[0, 256:512] = 0.0
    for draw in (torch.rand(64), torch.zeros(64), torch.full((64,), LARGEST)):
        ends = probs.cumsum(1, dtype=torch.float64)
        expected = (ends <= draw.unsqueeze(1) * ends[:, -1:]).sum(1)
        found = pick(probs, draw)
        assert found.tolist() == expected.tolist() and (probs.gather(1, found.unsqueeze(1)) > 0).all()


def test_the_first_and_the_last_number_pick_likely_tokens(policy, settings):
    # draws of 0 and of almost 1 under top-k 3: what was filtered away has no share at either end of the vocabulary
    settings = replace(settings, top_k=3)
    for draw in (0.0, LARGEST):
        draws = torch.full((8, settings.max_completion_length), draw)
        rollout = sample(policy, PROMPTS, settings, draws=draws)
        scored = score_tokens(policy, to_batch(rollout, "prompt_completion"), 1.0).logprobs.detach()
        assert (rollout.kept_mass[rollout.completion_mask] < 1).all()
        assert float(scored[rollout.completion_mask].min()) > -12 and len(set(map(tuple, tokens_of(rollout)))) <= 4


def test_draws_are_uniform_and_depend_on_the_seed_alone(settings):
    draws = draws_of(settings, 1000)
    assert draws.shape == (1000, 16) and draws.min() >= 0 and draws.max() < 1
    assert float(draws.mean()) == pytest.approx(0.5, abs=4 * (1 / 12 / 16000) ** 0.5)
    assert torch.equal(draws, draws_of(replace(settings, temperature=0.5), 1000))
    assert not torch.equal(draws, draws_of(replace(settings, seed=6), 1000))


# ---- caches that cannot be taken apart -------------------------------------------------------------------------------------
def test_a_cache_that_cannot_be_reordered_is_found_out_and_sampled_from_all_the_same(
    policy, settings, whole, model_folder, monkeypatch
):
    def refuse(cache, rows):
        raise NotImplementedError("no rows here")

    monkeypatch.setattr("grpo_core.policy.Policy.reorder", staticmethod(refuse))
    fixed = load_policy(str(model_folder))
    assert not fixed.reorders_cache and policy.reorders_cache
    assert tokens_of(sample(fixed, PROMPTS, settings)) == tokens_of(whole)


def test_a_cache_that_reorders_wrongly_is_found_out(policy, monkeypatch):
    ids, mask = torch.arange(10).reshape(2, 5), torch.tensor([[True] * 5, [False] * 2 + [True] * 3])
    with torch.no_grad():
        assert _reorders(policy, ids, mask, 1e-3)
        right = policy.reorder
        monkeypatch.setattr(policy, "reorder", lambda cache, rows: right(cache, rows.flip(0)))
        assert not _reorders(policy, ids, mask, 1e-3)
        monkeypatch.setattr(policy, "reorder", lambda cache, rows: None)
        assert not _reorders(policy, ids, mask, 1e-3)
