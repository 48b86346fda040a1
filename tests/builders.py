"""What the tests build by hand: a small batch with known answers, a random model, and short ways to call the core.

Plain functions, no fixtures: those are in conftest.py.
"""

from dataclasses import replace
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from grpo_core import (
    Advantages,
    Batch,
    LossConfig,
    LossTerms,
    Policy,
    Recipe,
    Rollout,
    StepTrace,
    Update,
    policy_loss,
)
from grpo_core.logprobs import select

# Four completions of one prompt, of 3, 2, 4 and 1 tokens; the first and the last are right.
# mean 1/2, unbiased std sqrt(4 * 1/4 / 3) = 0.577350, A = 0.5 / (0.577350 + 1e-4) = 0.865875
BASE_MASK = torch.tensor([[1, 1, 1, 0], [1, 1, 0, 0], [1, 1, 1, 1], [1, 0, 0, 0]], dtype=torch.bool)
BASE_REWARDS = ((1.0,), (0.0,), (0.0,), (1.0,))
BASE_ADVANTAGES = torch.tensor([0.865875, -0.865875, -0.865875, 0.865875])

QUESTIONS = [{"prompt": f"{n} + 1", "answer": str(n + 1), "level": n % 3} for n in range(7)]  # rows of a data set

SPECIALS = ("<pad>", "<bos>", "<eos>", "<user>", "<assistant>")
PAD, BOS, EOS = 0, 1, 2
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}<{{ message['role'] }}>{{ message['content'] }}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


def loss_of(
    logprobs, advantages, mask, *, old=None, ref=None, entropy=None, totals=None, sampler=None, rewards=None, **settings
) -> LossTerms:
    """`policy_loss` with old = ref = policy and no entropy where none is given."""
    old = logprobs.detach() if old is None else old
    ref = logprobs.detach() if ref is None else ref
    entropy = torch.zeros_like(logprobs) if entropy is None else entropy
    return policy_loss(logprobs, old, ref, advantages, mask, entropy, LossConfig(**settings), totals, sampler, rewards)


def one_token(ratio: float, advantage: float, **settings) -> LossTerms:
    """The loss of a single token with the given ratio."""
    logprobs = torch.tensor([[ratio]], dtype=torch.float64).log()
    mask = torch.ones(1, 1, dtype=torch.bool)
    weight = torch.tensor([advantage], dtype=torch.float64)
    return loss_of(logprobs, weight, mask, old=torch.zeros_like(logprobs), beta=0.0, **settings)


def byte_tokenizer(chat: bool = True) -> PreTrainedTokenizerFast:
    """One token per byte and five special ones; pad, bos and eos are 0, 1 and 2."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {piece: i for i, piece in enumerate([*SPECIALS, *alphabet])}
    bytes_only = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    bytes_only.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bytes_only.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bytes_only, pad_token="<pad>", bos_token="<bos>", eos_token="<eos>",
        additional_special_tokens=["<user>", "<assistant>"], clean_up_tokenization_spaces=False,
    )  # fmt: skip
    tokenizer.chat_template = CHAT_TEMPLATE if chat else None
    return tokenizer


def random_llama(vocab_size: int, seed: int = 0) -> LlamaForCausalLM:
    """Two layers, 32 wide, with rows of logits that are far from flat, and an EOS that comes up every few tokens."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=vocab_size, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=128, initializer_range=0.3, tie_word_embeddings=False,
        pad_token_id=PAD, bos_token_id=BOS, eos_token_id=EOS,
    )  # fmt: skip
    model = LlamaForCausalLM(config).eval()
    with torch.no_grad():
        ids = torch.randint(len(SPECIALS), vocab_size, (8, 32))
        average = model.model(input_ids=ids).last_hidden_state.mean((0, 1))
        model.lm_head.weight[EOS] += 2.0 * average / average.square().sum()
    return model


def save_random_model(folder: Path) -> Path:
    tokenizer = byte_tokenizer()
    random_llama(len(tokenizer)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


class TablePolicy:
    """A stand-in for a model whose logits are written down: row p of a batch row scores the token at p + 1."""

    packed = False

    def __init__(self, logits):
        self.logits = logits
        self.vocab_size = logits.shape[-1]

    def hidden(self, ids, mask):
        return self.logits

    def project(self, hidden):
        return hidden


def sequence_batch(ids, response_mask, attention_mask=None) -> Batch:
    """A batch in layout `sequence`, one group."""
    ids, response_mask = torch.tensor(ids), torch.tensor(response_mask, dtype=torch.bool)
    real = torch.ones_like(response_mask) if attention_mask is None else torch.tensor(attention_mask, dtype=torch.bool)
    rows, width = ids.shape
    return Batch(
        input_ids=ids, attention_mask=real, response_mask=response_mask,
        group_ids=torch.zeros(rows, dtype=torch.long), sampler_logprobs=torch.zeros(rows, width - 1),
    )  # fmt: skip


def full_logprobs(policy: Policy, batch: Batch, temperature: float):
    """[N V] log-probs of every trained position by the model's own forward pass, without positions of ours."""
    logits = policy.model(input_ids=batch.row_ids(), attention_mask=batch.row_mask().long()).logits
    return torch.log_softmax(select(logits, batch) / temperature, -1)


def with_first_update(trace, **changes):
    """The trace with fields of its first update replaced."""
    first = replace(trace.updates[0], **changes)
    return replace(trace, updates=(first, *trace.updates[1:]))


def with_terms(trace, **changes):
    """The trace with fields of its first update's terms replaced."""
    return with_first_update(trace, terms=replace(trace.updates[0].terms, **changes))


def bare_trace(terms, grad, advantages, mask, ref, sampler, config) -> StepTrace:
    """A trace of one update with what the closed forms read: terms, advantages [B T], masks, ref and sampler; no more."""
    rows, width = mask.shape
    nothing, none, empty = torch.zeros(rows, width), torch.zeros(rows, dtype=torch.bool), torch.zeros(rows)
    prompt, start = torch.zeros(rows, 1, dtype=torch.long), torch.ones(rows, 1, dtype=torch.bool)
    ids, groups = torch.zeros(rows, width, dtype=torch.long), torch.zeros(rows, dtype=torch.long)
    shared = {"prompt_ids": prompt, "prompt_mask": start, "completion_ids": ids, "completion_mask": mask}
    rollout = Rollout(
        **shared, prompts=("",), group_ids=groups, sampler_logprobs=nothing, kept_mass=nothing,
        finish_reasons=("length",) * rows, completions=("",) * rows, rewards=((0.0,),) * rows, reward_names=("correct",),
    )  # fmt: skip
    given_advantages = Advantages(
        rewards=torch.zeros(rows, 1), missing=none.unsqueeze(1), weights=torch.ones(1), valid=~none, zero_std=none,
        **dict.fromkeys(("reward", "baseline", "scale", "group_mean", "group_std", "advantages"), empty),
    )  # fmt: skip
    update = Update(terms=terms, logprob_grad=grad, hidden=torch.zeros(0, 1), grad_norms={}, grad_norm=0.0, applied=False)
    return StepTrace(
        recipe=Recipe(**vars(config)), rollout=rollout, batch=Batch(**shared, group_ids=groups, sampler_logprobs=sampler),
        advantages=given_advantages, token_advantages=advantages, old_logprobs=nothing, ref_logprobs=ref, ref_hidden=None,
        updates=(update,),
    )  # fmt: skip


def weights_of(policy) -> dict:
    return {name: p.detach().clone() for name, p in policy.model.named_parameters()}


def same_weights(left: dict, right: dict) -> bool:
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)
