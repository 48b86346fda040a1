"""Every way to get a log-prob wrong is planted by the model's own forward pass, and named; what is right is left in peace."""

import math
from dataclasses import replace

import pytest
import torch
from builders import BOS, EOS, PAD, byte_tokenizer, random_llama
from transformers import GPT2Config, GPT2LMHeadModel

from grpo_core import Batch, Policy
from grpo_core.doctor.hypotheses import _against, _sources, explain_logprobs
from grpo_core.doctor.lineage import same_weights

TEMPERATURE, TOP_P, ROWS, PROMPT, COMPLETION = 0.7, 0.8, 4, 7, 8
META = {"temperature": TEMPERATURE, "top_p": TOP_P, "pad_token_id": PAD, "bos_token_id": BOS, "eos_token_ids": [EOS],
        "iteration": 0, "updates_since_sampling": 0}  # fmt: skip


def random_gpt2(vocab_size: int) -> GPT2LMHeadModel:
    torch.manual_seed(1)
    config = GPT2Config(vocab_size=vocab_size, n_positions=64, n_embd=32, n_layer=2, n_head=4, initializer_range=0.3)
    return GPT2LMHeadModel(config).eval()


@pytest.fixture(scope="module", params=["gpt2", "llama"])
def model(request):
    tokenizer = byte_tokenizer()
    net = random_gpt2(len(tokenizer)) if request.param == "gpt2" else random_llama(len(tokenizer))
    return Policy(net, tokenizer, request.param)


def logits_of(policy, ids, mask, positions=None):
    """The model's own logits [B S V]: positions count real tokens unless others are given."""
    positions = (mask.long().cumsum(1) - 1).clamp(min=0) if positions is None else positions
    with torch.no_grad():
        return policy.model(input_ids=ids, attention_mask=mask.long(), position_ids=positions).logits


def at_completion(logits, ids, temperature=TEMPERATURE):
    """[B C] log-probs of the last C tokens of each row."""
    rows = torch.log_softmax(logits[:, -COMPLETION - 1 : -1].float() / temperature, -1)
    return rows.gather(-1, ids[:, -COMPLETION:].unsqueeze(-1)).squeeze(-1)


@pytest.fixture(scope="module")
def sampled(model):
    """Four rows with 0 to 3 pads at the left, their completions drawn from the model under top-p."""
    torch.manual_seed(3)
    prompt = torch.randint(5, 60, (ROWS, PROMPT))
    prompt_mask = torch.arange(PROMPT) >= torch.arange(ROWS).unsqueeze(1)
    prompt[torch.arange(ROWS), torch.arange(ROWS)] = BOS
    ids, mask = torch.where(prompt_mask, prompt, PAD), prompt_mask
    for _ in range(COMPLETION):
        probs, order = torch.softmax(logits_of(model, ids, mask)[:, -1] / TEMPERATURE, -1).sort(-1, descending=True)
        probs = torch.where(probs.cumsum(-1) - probs < TOP_P, probs, 0.0)
        probs[:, 1:] *= (order != EOS)[:, 1:]
        drawn = order.gather(1, torch.multinomial(probs, 1))
        ids, mask = torch.cat([ids, drawn], 1), torch.cat([mask, torch.ones(ROWS, 1, dtype=torch.bool)], 1)
    return ids, mask


@pytest.fixture(scope="module")
def right(model, sampled):
    return at_completion(logits_of(model, *sampled), sampled[0])


def batch_of(sampled, **fields) -> Batch:
    ids, mask = sampled
    meta = META | fields.pop("meta", {})
    return Batch(
        prompt_ids=ids[:, :PROMPT], prompt_mask=mask[:, :PROMPT], completion_ids=ids[:, PROMPT:],
        completion_mask=mask[:, PROMPT:], meta=meta, **fields,
    )  # fmt: skip


# ---- the mistakes, each made by hand: (policy, ids, mask, right) -> [B C] ---------------------------------------------------
def temperature(value):
    return lambda policy, ids, mask, right: at_completion(logits_of(policy, ids, mask), ids, value)


def slot(by):
    def plant(policy, ids, mask, right):
        whole = torch.log_softmax(logits_of(policy, ids, mask)[:, :-1] / TEMPERATURE, -1)
        values = whole.gather(-1, ids[:, 1:].unsqueeze(-1)).squeeze(-1)
        return values.roll(by, 1)[:, -COMPLETION:]

    return plant


def unshifted(policy, ids, mask, right):
    rows = torch.log_softmax(logits_of(policy, ids, mask)[:, -COMPLETION:] / TEMPERATURE, -1)
    return rows.gather(-1, ids[:, -COMPLETION:].unsqueeze(-1)).squeeze(-1)


def argmax(policy, ids, mask, right):
    return torch.log_softmax(logits_of(policy, ids, mask)[:, -COMPLETION - 1 : -1] / TEMPERATURE, -1).amax(-1)


def kept(policy, ids, mask, right):
    """Every token's probability over the mass of those at least as likely as the last one that top-p keeps."""
    probs = torch.softmax(logits_of(policy, ids, mask)[:, -COMPLETION - 1 : -1] / TEMPERATURE, -1)
    ordered = probs.sort(-1, descending=True).values
    mass = torch.where(ordered.cumsum(-1) - ordered < TOP_P, ordered, 0.0).sum(-1)
    return right - mass.log()


def positions_from_pads(policy, ids, mask, right):
    return at_completion(logits_of(policy, ids, mask, torch.arange(ids.shape[1]).expand_as(ids)), ids)


def without_mask(policy, ids, mask, right):
    positions = (mask.long().cumsum(1) - 1).clamp(min=0)
    return at_completion(logits_of(policy, ids, torch.ones_like(mask), positions), ids)


def two_starts(policy, ids, mask, right):
    rows = []
    for row_ids, row_mask in zip(ids, mask, strict=True):
        row = torch.cat([torch.tensor([BOS]), row_ids[row_mask]]).unsqueeze(0)
        rows.append(at_completion(logits_of(policy, row, torch.ones_like(row, dtype=torch.bool)), row))
    return torch.cat(rows)


LOGITS = {
    "right": lambda policy, ids, mask, right: right, "temperature missing": temperature(1.0),
    "temperature twice": temperature(TEMPERATURE**2), "another temperature": temperature(1.6),
    "divided after softmax": lambda *given: temperature(1.0)(*given) / TEMPERATURE,
    "kept tokens only": kept, "one slot late": slot(1), "one slot early": slot(-1), "logits not shifted": unshifted,
    "argmax token": argmax, "sign flipped": lambda policy, ids, mask, right: -right,
    "probabilities": lambda policy, ids, mask, right: right.exp(),
    "base 2": lambda policy, ids, mask, right: right / math.log(2),
}  # fmt: skip
MODEL = {"no position ids": positions_from_pads, "no attention mask": without_mask, "start token twice": two_starts}


def cause(batch, policy=None, field="sampler_logprobs"):
    return next(answer for answer in explain_logprobs(batch, policy) if answer.field == field)


@pytest.mark.parametrize("name", LOGITS)
@pytest.mark.parametrize("source", ["logits", "model"])
def test_every_mistake_is_named_from_logits_and_from_a_model(model, sampled, right, name, source):
    field = LOGITS[name](model, *sampled, right)
    given = {"logits": logits_of(model, *sampled)} if source == "logits" else {}
    answer = cause(batch_of(sampled, sampler_logprobs=field, **given), model if source == "model" else None)
    assert (answer.cause, answer.source) == (name, source)
    torch.testing.assert_close(answer.right, right, rtol=1e-4, atol=1e-4)
    if name == "another temperature":
        assert answer.value == pytest.approx(1.6, abs=1e-3)
    if name != "right":
        assert answer.best.mean_abs < 1e-4 and answer.runner_up.mean_abs > 0.02 and answer.residual("right") > 0.02


@pytest.mark.parametrize("name", MODEL)
def test_what_only_a_model_can_tell(model, sampled, right, name):
    batch = batch_of(sampled, policy_logprobs=MODEL[name](model, *sampled, right), sampler_logprobs=right)
    rotary = model.name == "llama" and name == "no position ids"  # a constant offset turns all positions alike
    assert cause(batch, model, "policy_logprobs").cause == ("right" if rotary else name)
    assert cause(batch, model).cause == "right"


def test_a_mask_with_holes_and_positions_as_stored(model, sampled):
    ids, mask = sampled
    holes = mask.clone()
    holes[:, PROMPT + 2] = False
    through = at_completion(logits_of(model, ids, holes, (mask.long().cumsum(1) - 1).clamp(min=0)), ids)
    batch = batch_of(sampled, policy_logprobs=through, attention_mask=holes, meta={"pad_token_id": 4})
    assert cause(batch, model, "policy_logprobs").cause == "attention mask with holes"
    odd = torch.arange(ids.shape[1]).expand_as(ids) * 2
    batch = batch_of(sampled, policy_logprobs=at_completion(logits_of(model, ids, mask, odd), ids), position_ids=odd)
    assert cause(batch, model, "policy_logprobs").cause == "position ids as stored"


def test_the_engine_saw_a_longer_prompt(model, sampled, right):
    ids, mask = sampled
    longer = torch.cat([torch.full((ROWS, 1), BOS), torch.randint(5, 60, (ROWS, 2)), ids[:, 3:]], 1)
    seen = torch.ones_like(longer, dtype=torch.bool)
    shorter = (ids[:, 3:], seen[:, 3:])
    values = at_completion(logits_of(model, longer, seen), longer)
    batch = replace(
        batch_of(sampled, sampler_logprobs=values, sampler_prompt_ids=longer[:, :-COMPLETION]),
        prompt_ids=shorter[0][:, :-COMPLETION], prompt_mask=shorter[1][:, :-COMPLETION],
    )  # fmt: skip
    assert cause(batch, model).cause == "the engine's prompt"


def test_noise_of_the_precision_is_one_class(model, sampled, right):
    rounded = torch.log_softmax(logits_of(model, *sampled)[:, -COMPLETION - 1 : -1].bfloat16().float() / TEMPERATURE, -1)
    values = rounded.gather(-1, sampled[0][:, -COMPLETION:].unsqueeze(-1)).squeeze(-1)
    assert cause(batch_of(sampled, sampler_logprobs=values), model).cause == "precision noise"


@pytest.mark.parametrize("source", ["logits", "model"])
def test_noise_misnames_nothing(model, sampled, right, source):
    """σ = .02 on every value, 20 seeds: no mistake is taken for another, and none is seen where there is none."""
    given, policy = ({"logits": logits_of(model, *sampled)}, None) if source == "logits" else ({}, model)
    batch = batch_of(sampled, sampler_logprobs=right, **given)
    (asked,) = _sources(batch, policy, ["sampler_logprobs"])
    wrong = []
    for name, plant in (LOGITS | (MODEL if policy else {})).items():
        values = plant(model, *sampled, right)
        rotary = model.name == "llama" and name == "no position ids"
        allowed = ("right", "precision noise") if name == "right" or rotary else (name,)
        for seed in range(20):
            noise = 0.02 * torch.randn(values.shape, generator=torch.Generator().manual_seed(seed))
            answer = _against(replace(batch, sampler_logprobs=values + noise), "sampler_logprobs", asked)
            wrong += [] if answer.cause in allowed else [(name, answer.cause)]
    assert not wrong


def test_dropout_is_told_by_its_size(sampled, model, right):
    if model.name != "gpt2":
        pytest.skip("no dropout in this model")
    noisy = model.clone()
    noisy.model.train()
    torch.manual_seed(5)
    with torch.no_grad():
        logits = noisy.model(input_ids=sampled[0], attention_mask=sampled[1].long(),
                             position_ids=(sampled[1].long().cumsum(1) - 1).clamp(min=0)).logits  # fmt: skip
    answer = cause(batch_of(sampled, policy_logprobs=at_completion(logits, sampled[0])), model, "policy_logprobs")
    assert answer.cause == "dropout"


def test_stored_fields_explain_each_other(sampled, right):
    for name, values in {"one slot late": right.roll(1, 1), "base 2": right / math.log(2),
                         "divided after softmax": right / TEMPERATURE, "sign flipped": -right}.items():  # fmt: skip
        batch = batch_of(sampled, policy_logprobs=right, old_logprobs=right, sampler_logprobs=values)
        assert cause(batch).cause == name
        assert cause(batch, field="old_logprobs").cause == "right"


def test_after_an_update_only_an_exact_match_counts(model, sampled, right):
    logits, moved = logits_of(model, *sampled), right + 0.05 * torch.randn(right.shape)
    meta = {"iteration": 1, "updates_since_sampling": 1}
    batch = batch_of(sampled, policy_logprobs=right, old_logprobs=moved, sampler_logprobs=moved, logits=logits, meta=meta)
    assert cause(batch, field="policy_logprobs").cause == "right"
    assert not any(answer.is_wrong for answer in explain_logprobs(batch))
    late = replace(batch, sampler_logprobs=moved.roll(1, 1))
    assert cause(late).cause == "one slot late"  # of the old ones, whatever the weights are now
    assert same_weights(batch, "policy_logprobs", "logits") and not same_weights(batch, "old_logprobs", "logits")


def test_without_a_temperature_in_the_file_the_samplers_is_taken(model, sampled, right):
    raw = temperature(1.0)(model, *sampled, right)
    batch = batch_of(sampled, policy_logprobs=raw, sampler_logprobs=right, logits=logits_of(model, *sampled))
    batch = replace(batch, meta={name: value for name, value in META.items() if name not in ("temperature", "top_p")})
    answer = cause(batch, field="policy_logprobs")
    assert answer.cause == "temperature missing" and answer.temperature == pytest.approx(TEMPERATURE, abs=1e-3)
