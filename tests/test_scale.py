"""The formulas of `grpo_core.scale` against what really happens: bytes of real tensors, saved tensors, cache, counted FLOP."""

from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch
from builders import byte_tokenizer
from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count, sdpa_flop_count
from transformers import LlamaConfig, LlamaForCausalLM

from grpo_core import Batch, Policy
from grpo_core.blocks import BLOCK_COST
from grpo_core.loading import add_adapters
from grpo_core.logprobs import score_tokens
from grpo_core.packing import packs_of
from grpo_core.rollout import generate
from grpo_core.scale import estimate, memory
from grpo_core.scale.shape import readings_of, shape_of
from grpo_core.step import make_optimizer
from grpo_core.train_config import TrainConfig

PROMPT, COMPLETION, ROWS = 48, 24, 4
MODEL = LlamaConfig(
    vocab_size=300, hidden_size=64, intermediate_size=160, num_hidden_layers=6, num_attention_heads=4, num_key_value_heads=2,
    max_position_embeddings=512, tie_word_embeddings=False,
)  # fmt: skip
BASE = {"prompts_per_step": 1, "group_size": ROWS, "max_completion_length": COMPLETION, "scoring": "packed"}
KINDS = {
    "fp32": {}, "padded": {"scoring": "padded"}, "bf16": {"dtype": "bfloat16"}, "autocast": {"autocast": True},
    "lora": {"lora_rank": 4}, "lora bf16": {"lora_rank": 4, "dtype": "bfloat16", "scoring": "padded"},
    "lora autocast": {"lora_rank": 4, "autocast": True},
}  # fmt: skip
AGAIN = {"gradient_checkpointing": True}


def config_of(**settings) -> TrainConfig:
    return TrainConfig(**BASE | settings)


def policy_of(config: TrainConfig) -> Policy:
    model = LlamaForCausalLM._from_config(MODEL, dtype=getattr(torch, config.dtype))
    policy = Policy(model, byte_tokenizer(), "small")
    policy.eos_ids = frozenset({MODEL.vocab_size})  # never drawn: rows are as long as they may be
    if config.lora_rank:
        policy = add_adapters(policy, config.lora_rank, config.lora_alpha, config.lora_targets, 0)
    if config.gradient_checkpointing:
        policy.checkpoint_activations()
    policy.reorders_cache, policy.packed = True, config.scoring == "packed"
    policy.block_cost = BLOCK_COST["cpu"]
    return policy


def batch_of(rows: int = ROWS) -> Batch:
    """One group. A row is a token shorter, so that the padded way needs a mask."""
    ids = torch.randint(3, 300, (1, PROMPT)).repeat(rows, 1)
    mask = torch.ones(rows, COMPLETION, dtype=torch.bool)
    mask[0, -1] = False
    return Batch(
        prompt_ids=ids, prompt_mask=torch.ones_like(ids, dtype=torch.bool), completion_ids=torch.randint(3, 300, mask.shape),
        completion_mask=mask, group_ids=torch.zeros(rows, dtype=torch.long),
    )  # fmt: skip


def precision(config: TrainConfig):
    return torch.autocast("cpu", torch.bfloat16) if config.autocast else nullcontext()


def saved_bytes(policy: Policy, config: TrainConfig) -> int:
    """Of the tensors that autograd keeps in a forward pass, each storage once, weights aside."""
    seen, weights = {}, {p.untyped_storage().data_ptr() for p in policy.model.parameters()}

    def keep(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            seen[storage.data_ptr()] = (storage.nbytes(), tensor)  # held, so that no address comes twice
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor), precision(config):
        score_tokens(policy, batch_of(), 1.0)
    return sum(size for size, _ in seen.values())


@pytest.mark.parametrize("block_cost", [1e7, 1e4], ids=["", "blocks"])
@pytest.mark.parametrize("groups, completion", [(1, COMPLETION), (3, 40), (2, 8)])
def test_packs_are_those_of_a_run(groups, completion, block_cost, monkeypatch):
    monkeypatch.setitem(BLOCK_COST, "cpu", block_cost)
    config = config_of(prompts_per_step=groups, group_size=12)
    policy = policy_of(config)
    ids = torch.arange(groups).repeat_interleave(12)
    prompts = (ids + 3).unsqueeze(1).repeat(1, PROMPT)
    batch = Batch(
        prompt_ids=prompts, prompt_mask=torch.ones_like(prompts, dtype=torch.bool), group_ids=ids,
        completion_ids=prompts[:, :completion], completion_mask=torch.ones(len(ids), completion, dtype=torch.bool),
    )  # fmt: skip
    packs = packs_of(policy, batch)
    lengths, blocks = [pack.ids.shape[1] for pack in packs], [block for pack in packs for block in pack.blocks]
    (reading,) = readings_of(shape_of(MODEL, config), config, PROMPT, completion, 1, "cpu")
    assert (reading.tokens, reading.squares) == (sum(lengths), sum(tokens**2 for tokens in lengths))
    if blocks:
        assert reading.keys == sum(block.keys for block in blocks) > reading.tokens
        assert reading.seen == sum((block.end - block.start) * block.keys for block in blocks) < reading.squares
    else:
        assert (reading.keys, reading.seen) == (reading.tokens, reading.squares)
    assert reading.scored == int(batch.trained_mask().sum())


def test_what_is_shared_out_is_held_in_parts():
    """The sampler's copy is not: it is there whole, on top."""
    one, four = (
        estimate(config_of(prompts_per_step=4, sharding=kind, beta=0.1), MODEL, PROMPT, COMPLETION, 4)
        for kind in ("replicate", "shard")
    )
    for name in ("weights", "gradients", "reference"):
        assert getattr(one.held, name) == 4 * getattr(four.held, name)
    assert (one.held.buckets, four.held.buckets) == (one.held.gradients, 0)
    assert (one.sampling.whole, four.sampling.whole) == (0, one.held.weights)


def test_what_each_stage_of_zero_shares_out():
    kinds = ("replicate", "zero1", "zero2", "zero3")
    plain, *stages = (
        estimate(config_of(prompts_per_step=4, sharding=kind, beta=0.1), MODEL, PROMPT, COMPLETION, 4).held for kind in kinds
    )
    shared = {"optimizer": 1, "gradients": 2, "weights": 3, "reference": 3}
    for number, held in enumerate(stages, start=1):
        for name, stage in shared.items():
            parts = 4 if number >= stage else 1
            assert getattr(held, name) == pytest.approx(getattr(plain, name) / parts, abs=4 * 100)  # `step`, once a parameter
        assert (held.master, plain.master) == (plain.weights // 4, 0)


# ---- memory ----------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("kind", KINDS)
def test_weights_gradients_and_optimizer_are_those_of_the_model(kind):
    config = config_of(**KINDS[kind])
    policy, held = policy_of(config), estimate(config, MODEL, PROMPT, COMPLETION).held
    optimizer = make_optimizer(policy, config)
    score_tokens(policy, batch_of(), 1.0).logprobs.sum().backward()
    optimizer.step()
    parameters = list(policy.model.parameters())
    assert held.weights + held.adapters == sum(p.nbytes for p in parameters)
    assert held.gradients == sum(p.grad.nbytes for p in parameters if p.grad is not None)
    assert held.optimizer == sum(t.nbytes for state in optimizer.state.values() for t in state.values())


@pytest.mark.parametrize("block_cost", [1e7, 1e4], ids=["", "blocks"])
@pytest.mark.parametrize("again", [{}, AGAIN], ids=["", "checkpointed"])
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_kept_for_backward_is_what_the_formula_says(kind, again, block_cost, monkeypatch):
    monkeypatch.setitem(BLOCK_COST, "cpu", block_cost)
    config = config_of(**KINDS[kind] | again)
    found = estimate(config, MODEL, PROMPT, COMPLETION)
    (reading,), scoring = found.readings, found.scoring
    kept = scoring.activations + 4 * reading.scored * MODEL.vocab_size
    if again:  # the one layer that is made again is not there yet
        kept -= memory.kept_in_layer(found.shape, config, reading)
        kept += 2 * found.shape.head if config.autocast else 0
    else:
        kept += scoring.casts + scoring.masks - reading.squares
    assert saved_bytes(policy_of(config), config) == pytest.approx(kept, rel=0.06)


@pytest.mark.parametrize("kind", ["fp32", "bf16", "autocast"])
def test_the_cache_is_as_large_as_it_is(kind):
    config = config_of(**KINDS[kind])
    policy, batch = policy_of(config), batch_of()
    with torch.no_grad(), precision(config):
        _, cache = policy.prefill(batch.prompt_ids[:1], batch.prompt_mask[:1], ROWS)
    held = sum(layer.keys.nbytes + layer.values.nbytes for layer in cache.layers)
    assert held == memory.cache_of_token(shape_of(MODEL, config), config) * ROWS * PROMPT


# ---- FLOP ------------------------------------------------------------------------------------------------------------------
def counted(run) -> int:
    """FLOP as torch counts them; it does not know attention on the CPU by name."""
    aten = torch.ops.aten
    names = {
        aten._scaled_dot_product_flash_attention_for_cpu: lambda q, k, v, *_, **__: sdpa_flop_count(q, k, v),
        aten._scaled_dot_product_flash_attention_for_cpu_backward: lambda g, q, k, v, *_, **__: sdpa_backward_flop_count(
            g, q, k, v
        ),
    }
    with FlopCounterMode(display=False, custom_mapping=names) as counter:
        run()
    return counter.get_total_flops()


@pytest.mark.parametrize("block_cost", [1e7, 1e4], ids=["", "blocks"])
@pytest.mark.parametrize("chunk", [2**26, 300 * 40], ids=["", "chunks"])
@pytest.mark.parametrize("again", [{}, AGAIN], ids=["", "checkpointed"])
@pytest.mark.parametrize("kind", ["fp32", "padded", "lora"])
def test_scoring_and_backward_take_the_flop_of_the_formula(kind, again, chunk, block_cost, monkeypatch):
    monkeypatch.setitem(BLOCK_COST, "cpu", block_cost)
    for module in ("logprobs", "scale.flop", "scale.memory"):
        monkeypatch.setattr(f"grpo_core.{module}.CHUNK_ELEMENTS", chunk)
    config = config_of(**KINDS[kind] | again)
    policy, batch = policy_of(config), batch_of()
    batch = replace(batch, completion_mask=torch.ones_like(batch.completion_mask))
    expected = estimate(config, MODEL, PROMPT, COMPLETION).flop.training
    assert counted(lambda: score_tokens(policy, batch, 1.0).logprobs.sum().backward()) == pytest.approx(expected, rel=0.02)


def test_sampling_and_the_passes_without_gradient_take_the_flop_of_the_formula():
    config = config_of(minibatches=2, beta=0.1)
    policy, batch = policy_of(config), batch_of()
    expected = estimate(config, MODEL, PROMPT, COMPLETION).flop
    draws = torch.rand(ROWS, COMPLETION)
    assert counted(lambda: generate(policy, batch.prompt_ids[:1], batch.prompt_mask[:1], config, draws)) == pytest.approx(
        expected.prefill + expected.decode, rel=0.01
    )
    halves = [batch.rows(torch.tensor(rows)) for rows in ([0, 1], [2, 3])]
    with torch.no_grad():
        scored = counted(lambda: [score_tokens(policy, half, 1.0) for half in halves])
    assert scored == pytest.approx(expected.old, rel=0.02)
    assert expected.old == expected.reference
