"""A group as one row: the same log-probs, entropies and gradients as padded rows, where it is right, and refused elsewhere."""

import copy
from dataclasses import replace
from functools import partial

import pytest
import torch
from builders import BOS, EOS, PAD, byte_tokenizer, full_logprobs
from ragged import COMPLETIONS, LONGEST, PROMPTS, ragged
from transformers import (
    AutoModelForCausalLM,
    BloomConfig,
    Gemma3TextConfig,
    GPT2Config,
    GPTNeoXConfig,
    LlamaConfig,
    MambaConfig,
    MistralConfig,
    Qwen2Config,
    Qwen3Config,
)

from grpo_core import Batch, Policy, score_tokens
from grpo_core.packing import choose_scoring, packs_of, why_padded

SPECIAL = {"vocab_size": 261, "pad_token_id": PAD, "bos_token_id": BOS, "eos_token_id": EOS, "initializer_range": 0.3}
SMALL = SPECIAL | {
    "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "max_position_embeddings": 64, "tie_word_embeddings": False,
}  # fmt: skip
OLD_STYLE = SPECIAL | {"n_layer": 2, "n_head": 4}
GROUPED = SMALL | {"num_key_value_heads": 2}
RIGHT = {
    "llama": LlamaConfig(**GROUPED),
    "qwen2": Qwen2Config(**GROUPED),
    "qwen3": Qwen3Config(**GROUPED, head_dim=8),
    "neox": GPTNeoXConfig(**SMALL),
    "gpt2": GPT2Config(**OLD_STYLE, n_embd=32, n_positions=64),
}


def policy_of(config, dtype=torch.float64, attention: str | None = None) -> Policy:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, attn_implementation=attention)
    return Policy(model.to(dtype), byte_tokenizer(), config.model_type)


def with_exact_norms(policy: Policy) -> Policy:
    """RMSNorm in the dtype of the weights: transformers' own goes through fp32, whatever the model is in."""

    def norm(module, x):
        return module.weight * x * torch.rsqrt(x.square().mean(-1, keepdim=True) + module.variance_epsilon)

    for module in policy.model.modules():
        if type(module).__name__.endswith("RMSNorm"):
            module.forward = partial(norm, module)
    return policy


def scored_with_gradients(policy: Policy, batch: Batch, packed: bool):
    """Log-probs, entropies and the weights' gradients of a loss that has a different factor on every token."""
    policy.packed = packed
    policy.model.zero_grad()
    scored = score_tokens(policy, batch, 0.7, entropy_grad=True)
    factors = torch.linspace(-1.0, 2.0, scored.logprobs.numel(), dtype=policy.dtype).view(scored.logprobs.shape)
    (factors * (scored.logprobs + 0.5 * scored.entropy)).sum().backward()
    gradients = {name: p.grad.clone() for name, p in policy.model.named_parameters() if p.grad is not None}
    return {"logprobs": scored.logprobs.detach(), "entropy": scored.entropy.detach(), "hidden": scored.hidden} | gradients


def largest_gap(policy: Policy, batch: Batch) -> float:
    """Largest difference between packed and padded, the gradients' relative to the largest of them."""
    padded, packed = (scored_with_gradients(policy, batch, way) for way in (False, True))
    assert padded.keys() == packed.keys() and (padded["logprobs"] != 0).sum() == batch.trained_mask().sum()
    return max(float((padded[name] - packed[name]).abs().max() / padded[name].abs().max().clamp(min=1)) for name in padded)


@pytest.mark.parametrize("layout", ["prompt_completion", "sequence"])
@pytest.mark.parametrize("name", RIGHT)
def test_packed_rows_give_log_probs_entropies_and_gradients_of_padded_ones(name, layout):
    assert largest_gap(with_exact_norms(policy_of(RIGHT[name])), ragged(layout)) <= 1e-10


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("name", RIGHT)
def test_in_fp32_only_the_last_digits_differ(name, attention):
    assert largest_gap(policy_of(RIGHT[name], torch.float32, attention), ragged("prompt_completion")) <= 1e-5


def test_packed_log_probs_are_those_of_the_model_alone():
    # not only like the padded path: like the model's own forward pass over each row without any padding
    policy, batch = policy_of(RIGHT["llama"]), ragged("prompt_completion")
    policy.packed = True
    scored = score_tokens(policy, batch, 0.7).logprobs
    for row, (prompt, completion) in enumerate(zip(PROMPTS, COMPLETIONS, strict=True)):
        alone = replace(
            batch.rows(torch.tensor([row])), prompt_ids=torch.tensor([prompt]), completion_ids=torch.tensor([completion]),
            prompt_mask=torch.ones(1, len(prompt), dtype=torch.bool), loss_mask=None,
            completion_mask=torch.ones(1, len(completion), dtype=torch.bool),
        )  # fmt: skip
        own = full_logprobs(policy, alone, 0.7).gather(1, torch.tensor([completion]).T).squeeze(1)
        trained = batch.loss_mask[row, : len(completion)]
        torch.testing.assert_close(scored[row, : len(completion)][trained], own[trained], atol=1e-10, rtol=0)


@pytest.mark.parametrize("one_pack", [True, False])
def test_the_packed_path_reads_each_prompt_once_and_no_padding(monkeypatch, one_pack):
    # prompts 5 + 3 + 2, completions up to the token before the last trained one: 3, -, 2, 5, 1, 1
    policy, read = policy_of(RIGHT["llama"]), []
    monkeypatch.setattr(policy, "hidden", lambda ids, mask: pytest.fail("padded rows were built"))
    original = policy.hidden_packed
    monkeypatch.setattr(policy, "hidden_packed", lambda ids, *rest: read.append(ids.numel()) or original(ids, *rest))
    policy.packed, policy.one_pack = True, one_pack
    score_tokens(policy, ragged("prompt_completion"), 1.0)
    assert sum(read) == 10 + 12 and len(read) == 1


# ---- refused ---------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("kind", [MistralConfig, Gemma3TextConfig])
def test_a_sliding_window_shorter_than_a_row_is_refused_and_a_longer_one_is_right(kind):
    short, fits = (policy_of(kind(**GROUPED, head_dim=8, sliding_window=window)) for window in (LONGEST - 1, LONGEST))
    batch = ragged("prompt_completion")
    with pytest.raises(ValueError, match=r"rows of 9 tokens are longer than the model's sliding window of 8"):
        choose_scoring(short, batch, 1.0, "packed")
    assert not short.packed and not choose_scoring(short, batch, 1.0).packed
    assert choose_scoring(fits, batch, 1.0, "packed").gap <= 1e-6 and largest_gap(fits, batch) <= 1e-6  # their norms are fp32


@pytest.mark.parametrize(
    "config",
    [MambaConfig(**SPECIAL, hidden_size=32, num_hidden_layers=2, state_size=4), BloomConfig(**OLD_STYLE, hidden_size=32)],
)
def test_a_model_without_position_ids_keeps_padded_rows(config):
    policy, batch = policy_of(config, torch.float32), ragged("prompt_completion")
    found = choose_scoring(policy, batch, 1.0)
    assert not found.packed and not policy.packed and found.reason == "padded: the model takes no position ids"
    with pytest.raises(ValueError, match="scoring: found 'packed', but the model takes no position ids; allowed here: padded"):
        choose_scoring(policy, batch, 1.0, "packed")


def causal_only(ids, positions, mask):
    """Every token sees all before it: the other completions too."""
    size = ids.shape[1]
    return positions, torch.zeros_like(mask).masked_fill(torch.ones(size, size).triu(1).bool(), torch.finfo(mask.dtype).min)


def running_on(ids, positions, mask):
    """Positions that do not start again for each completion."""
    return torch.arange(ids.shape[1]).unsqueeze(0), mask


@pytest.mark.parametrize("wrong", [causal_only, running_on])
def test_a_pack_that_the_model_reads_wrongly_is_found_out(monkeypatch, wrong):
    policy, batch = policy_of(RIGHT["llama"]), ragged("prompt_completion")
    original = policy.hidden_packed
    monkeypatch.setattr(policy, "hidden_packed", lambda ids, *rest: original(ids, *wrong(ids, *rest)))
    found = choose_scoring(policy, batch, 1.0)
    assert not found.packed and not policy.packed and found.gap > 1e-2
    assert "the log-probs of a packed group differ by" in found.reason and "allowed: 0.0001" in found.reason
    with pytest.raises(ValueError, match="scoring: found 'packed', but the log-probs of a packed group differ"):
        choose_scoring(policy, batch, 1.0, "packed")


def test_a_model_that_refuses_the_mask_keeps_padded_rows(monkeypatch):
    policy = policy_of(RIGHT["llama"])

    def refuse(*pack):
        raise NotImplementedError("masks of two dimensions only\nmore")

    monkeypatch.setattr(policy, "hidden_packed", refuse)
    found = choose_scoring(policy, ragged("sequence"), 1.0)
    assert not policy.packed and "refuses a packed group (masks of two dimensions only)" in found.reason


def test_what_was_asked_for_is_what_is_used(monkeypatch):
    policy, batch = policy_of(RIGHT["llama"]), ragged("sequence")
    assert choose_scoring(policy, batch, 1.0, "packed").packed and policy.packed and policy.clone().packed
    assert choose_scoring(policy, batch, 1.0, "padded").reason == "padded, as asked for" and not policy.packed
    for seconds in ((2.0, 1.0), (1.0, 2.0)):  # padded, packed: auto takes what was faster
        monkeypatch.setattr("grpo_core.packing._both_ways", lambda *batch, each=seconds: (0.0, each))
        found = choose_scoring(policy, batch, 1.0)
        assert found.packed == policy.packed == (seconds[1] < seconds[0]) and found.seconds == seconds
        assert ("2.0 x as fast" if found.packed else "0.5 x as fast") in found.reason
    unused = copy.copy(RIGHT["qwen2"])
    unused.sliding_window, unused.use_sliding_window = 4, False
    assert why_padded(policy_of(unused), batch) is None


def test_a_large_batch_is_scored_in_several_packs(monkeypatch):
    monkeypatch.setattr("grpo_core.packing.pack_cost", lambda *machine: lambda tokens: tokens**2)  # starting costs nothing
    policy, batch = with_exact_norms(policy_of(RIGHT["llama"])), ragged("sequence")
    assert len(packs_of(policy, batch)) == 4 and largest_gap(policy, batch) <= 1e-10


def test_rows_that_outgrow_a_sliding_window_later_are_padded(monkeypatch):
    # proven on rows that fit: 5 + 4, 3 + 2 and 2 + 2 tokens; row 3 comes later and has 3 + 6
    policy, batch = (
        policy_of(MistralConfig(**GROUPED, head_dim=8, sliding_window=LONGEST - 1), torch.float32),
        ragged("sequence"),
    )
    short = batch.rows(torch.tensor([1, 2, 4, 5]))
    assert choose_scoring(policy, short, 1.0, "packed").packed
    packed = score_tokens(policy, batch, 1.0).logprobs
    policy.packed = False
    assert torch.equal(packed, score_tokens(policy, batch, 1.0).logprobs)
