"""Attention of a pack block by block: which blocks there are, and that they give what one mask over the pack gives."""

from functools import partial

import pytest
import torch
from ragged import ragged
from test_packing import GROUPED, OLD_STYLE, RIGHT, largest_gap, policy_of, with_exact_norms
from transformers import BloomConfig, MistralConfig
from transformers.integrations import sdpa_attention

from grpo_core import blocks
from grpo_core.blocks import BLOCK_COST, Block, blocks_of
from grpo_core.packing import LARGEST_GAP, choose_scoring, packs_of


def test_a_pack_is_cut_where_that_multiplies_less():
    # width 2: 4 multiply-adds for each query and key. Prompt 4, completions of 3, 5 and 2: 14 tokens, one mask 4 x 196 = 784
    parts = [(4, [3, 5, 2])]
    # each alone: 4 x (4x4 + 3x7 + 5x9 + 2x6) = 4 x 94 = 376, and 4 calls
    assert blocks_of(parts, 2, 0.0) == (Block(0, 4, (0, 0)), Block(4, 7, (0, 4)), Block(7, 12, (0, 4)), Block(12, 14, (0, 4)))
    # blocks of sqrt(100 / 4) = 5 and more: 4 x (16 + 8 x 12 + 2 x 6) + 3 x 100 = 796 < 784 + 100
    assert blocks_of(parts, 2, 100.0) == (Block(0, 4, (0, 0)), Block(4, 12, (0, 4)), Block(12, 14, (0, 4)))
    # of sqrt(400 / 4) = 10: 4 x (16 + 10 x 14) + 2 x 400 = 1424, and one mask is 784 + 400
    assert blocks_of(parts, 2, 400.0) == () == blocks_of(parts, 2, None)


def test_each_group_of_a_pack_has_blocks_of_its_own_and_empty_completions_none():
    found = blocks_of([(2, [1, 0]), (3, [0, 0])], 1, 0.0)
    assert found == (Block(0, 2, (0, 0)), Block(2, 3, (0, 2)), Block(3, 6, (3, 3)))


def cut(policy):
    policy.block_cost = 0.0
    assert policy.takes_blocks and all(pack.blocks for pack in packs_of(policy, ragged("prompt_completion")))
    return policy


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("layout", ["prompt_completion", "sequence"])
@pytest.mark.parametrize("name", RIGHT)
def test_blocks_give_log_probs_entropies_and_gradients_of_padded_rows(name, layout, checkpointing):
    policy = cut(with_exact_norms(policy_of(RIGHT[name])))
    if checkpointing:
        policy.checkpoint_activations()
    assert largest_gap(policy, ragged(layout)) <= 1e-10


def test_the_model_multiplies_block_by_block(monkeypatch):
    seen, original = [], sdpa_attention.sdpa_attention_forward

    def watched(module, query, key, *rest, **more):
        seen.append((query.shape[2], key.shape[2]))
        return original(module, query, key, *rest, **more)

    monkeypatch.setattr(blocks, "sdpa_attention_forward", watched)
    policy, batch = cut(policy_of(RIGHT["llama"])), ragged("prompt_completion")
    policy.packed = True
    from grpo_core import score_tokens

    score_tokens(policy, batch, 1.0)
    expected = [(b.end - b.start, b.keys) for pack in packs_of(policy, batch) for b in pack.blocks]
    assert seen == expected * 2  # layers


def test_proven_blocks_are_used_and_others_give_way_to_one_mask(monkeypatch):
    batch, machine = ragged("prompt_completion"), BLOCK_COST["cpu"]
    policy = policy_of(RIGHT["llama"], torch.float32)
    found = choose_scoring(policy, batch, 1.0, "packed")
    assert found.packed and policy.block_cost == found.block_cost == machine and policy.clone().block_cost == machine
    # a block that does not know its prompt
    monkeypatch.setattr(
        "grpo_core.packing.blocks_of", lambda *pack: tuple(Block(b.start, b.end, (b.start, b.start)) for b in blocks_of(*pack))
    )
    found = choose_scoring(policy, batch, 1.0, "packed")
    assert found.packed and found.gap <= LARGEST_GAP and policy.block_cost is found.block_cost is None


def test_blocks_that_the_model_refuses_give_way_to_one_mask(monkeypatch):
    policy, batch = policy_of(RIGHT["qwen2"], torch.float32), ragged("sequence")
    original = policy.hidden_packed

    def strict(ids, positions, mask):
        return original(ids, positions, mask)

    monkeypatch.setattr(policy, "hidden_packed", strict)
    assert choose_scoring(policy, batch, 1.0, "packed").packed and policy.block_cost is None


@pytest.mark.parametrize("config", [BloomConfig(**OLD_STYLE, hidden_size=32), MistralConfig(**GROUPED, head_dim=8)])
def test_eager_attention_has_no_blocks(config):
    assert not policy_of(config, torch.float32, "eager").takes_blocks


def test_without_blocks_it_is_the_very_attention_of_transformers():
    states = partial(torch.randn, 1, 4, 6, 8)
    module = torch.nn.Module()
    module.num_key_value_groups, module.is_causal = 1, True
    query, key, value = states(), states(), states()
    expected, _ = sdpa_attention.sdpa_attention_forward(module, query, key, value, None)
    assert torch.equal(blocks.attend(module, query, key, value, None)[0], expected)
