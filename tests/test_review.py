"""What a review found: sound steps under extreme settings raise no alarm, odd models work or are refused in one line."""

import json
from dataclasses import replace

import pytest
import torch
import transformers
from builders import EOS, byte_tokenizer, loss_of, random_llama
from transformers import AutoModelForCausalLM, BartConfig, BartForConditionalGeneration

from grpo_core import CHECKS, Evidence, Policy, Recipe, group_advantages, grpo_step, load_policy, run_checks, sample
from grpo_core.closed_forms import closed_form_logit_grad
from grpo_core.convention import AdvantageConfig
from grpo_core.explain import logprobs_after, update_effect, vocabulary_row
from grpo_core.kl import exact_kl
from grpo_core.logprobs import labels, row_entropy
from grpo_core.rules import RULES
from grpo_core.step import replay

SIZE = {
    "vocab_size": 261, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 128, "initializer_range": 0.2, "pad_token_id": 0,
    "bos_token_id": 1, "eos_token_id": EOS,
}  # fmt: skip
GEMMA2 = {"head_dim": 8, "sliding_window": 16, "final_logit_softcapping": 3.0}
ARCHITECTURES = {
    "Llama": {"tie_word_embeddings": True}, "Qwen2": {}, "Qwen3": {"head_dim": 8}, "GPT2": {"n_positions": 128},
    "GPTNeoX": {}, "Gemma2": GEMMA2, "Mistral": {"sliding_window": 8}, "Phi": {}, "Cohere": {"logit_scale": 0.25},
    "Granite": {"logits_scaling": 4.0}, "Bloom": {"n_layer": 2, "n_head": 4},
}  # fmt: skip


def saved(folder, architecture, **settings):
    config = getattr(transformers, f"{architecture}Config")(**(SIZE | settings))
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    return str(folder)


def alarms(policy, recipe):
    """Every (update, check, message) that is a warning or an error on one real step."""
    rollout, trained = sample(policy, recipe.prompts, recipe), policy.clone()
    trace = grpo_step(trained, policy, rollout, recipe)
    column, after, found = int(trace.batch.trained_mask()[0].nonzero()[0]), logprobs_after(trained, trace), []
    for update in range(len(trace.updates)):
        row = vocabulary_row(replay(policy, rollout, recipe, update), trace, update, 0, column)
        effect = update_effect(trace, update, after)
        evidence = Evidence.of_trace(trace, update=update, policy=policy, token=(0, column), row=row, effect=effect)
        for outcome in run_checks(evidence, CHECKS.values()):
            found += [(update, f.check, f.message) for f in outcome.findings if f.severity != "info"]
    return found


@pytest.fixture(scope="module")
def tiny():
    return load_policy("tiny")


# ---- models ----------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_architectures_walk_through_a_step_without_an_alarm(tmp_path, architecture):
    policy = load_policy(saved(tmp_path, architecture, **ARCHITECTURES[architecture]))
    edits = tuple((row, 0, float(row % 3)) for row in range(8))
    recipe = Recipe(prompts=("What is 4 + 5?", "2 - 1?"), max_completion_length=6, edited_rewards=edits, learning_rate=1e-3)
    assert alarms(policy, recipe) == []


@pytest.mark.parametrize(
    ("architecture", "settings", "said"),
    [
        ("Bert", {}, "see those behind it"),
        ("Mamba", {"state_size": 4}, "other states from its cache"),
        ("OpenAIGPT", {"n_layer": 2, "n_head": 4, "n_embd": 32}, "cannot be sampled from"),
    ],
)
def test_what_cannot_be_sampled_from_here_is_refused(tmp_path, architecture, settings, said):
    with pytest.raises(ValueError, match=said) as caught:
        load_policy(saved(tmp_path, architecture, **settings))
    assert "\n" not in str(caught.value)


def test_an_encoder_decoder_is_refused_by_name(tmp_path):
    sizes = {f"{half}_{part}": n for half in ("encoder", "decoder") for part, n in (("layers", 1), ("attention_heads", 2))}
    BartForConditionalGeneration(BartConfig(vocab_size=261, d_model=32, **sizes)).save_pretrained(tmp_path)
    byte_tokenizer().save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="an encoder-decoder"):
        load_policy(str(tmp_path))


def test_a_model_with_code_of_its_own_is_refused_without_asking(tmp_path, monkeypatch):
    classes = {"AutoConfig": "code.C", "AutoModelForCausalLM": "code.M"}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "mine", "auto_map": classes}))
    (tmp_path / "model.safetensors").touch()
    (tmp_path / "code.py").write_text("raise SystemExit('foreign code ran')")
    monkeypatch.setattr("builtins.input", lambda *_: "y")
    with pytest.raises(ValueError, match="no readable config.json"):
        load_policy(str(tmp_path))


def test_a_pad_token_that_the_model_does_not_know_is_not_fed_to_it():
    tokenizer = byte_tokenizer()
    tokenizer.add_special_tokens({"pad_token": "<new>"})
    policy, recipe = Policy(random_llama(261), tokenizer, "padded"), Recipe(prompts=("2 - 1?", "What is 3 + 3?"))
    assert tokenizer.pad_token_id == 261 and policy.pad_id == EOS
    assert len(sample(policy, recipe.prompts, recipe).completions) == 8


def test_a_tokenizer_larger_than_the_model_is_said(tmp_path):
    policy, recipe = Policy(random_llama(60), byte_tokenizer(), "small"), Recipe(prompts=("zz",))
    with pytest.raises(ValueError, match="allowed: below 60"):
        sample(policy, recipe.prompts, recipe)


def test_a_chat_template_that_refuses_is_said():
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = "{{ raise_exception('needs a system role') }}"
    with pytest.raises(ValueError, match="needs a system role"):
        Policy(random_llama(261), tokenizer, "strict").encode("hi")


def test_sampling_from_weights_that_have_run_away_says_so(policy, recipe):
    broken = policy.clone()
    torch.nn.init.constant_(broken.model.lm_head.weight, float("nan"))
    with pytest.raises(ValueError, match="not finite"):
        sample(broken, recipe.prompts, recipe)


# ---- false alarms ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "settings",
    [
        {"temperature": 0.3}, {"temperature": 2.5}, {"top_p": 0.5, "temperature": 2.5}, {"top_k": 3}, {"advantage_eps": 0.0},
        {"ratio": "sequence", "kl_estimator": "k1", "updates": 4, "learning_rate": 1e-3},
        {"surrogate": "dual-clip", "updates": 8, "learning_rate": 3e-3},  # the KL's gradient is 1e5 times the clip's
        {"clip_low": 1.0, "clip_high": 100.0, "updates": 4, "learning_rate": 3e-3},  # ratios near 0
        {"learning_rate": 1.0, "updates": 4, "beta": 0.0},  # k3 overflows; without a beta it must not matter
        {"learning_rate": 10.0, "updates": 2, "kl_estimator": "k2"},  # log-probs in the thousands
        {"entropy_coef": 0.01, "aggregation": "token-sum"},
    ],
    ids=str,
)  # fmt: skip
def test_a_sound_step_raises_no_alarm(tiny, settings):
    assert alarms(tiny, replace(Recipe(), **settings)) == []


def test_an_overflow_is_reported_by_the_checks_that_are_about_it(tiny):
    found = {check for _, check, _ in alarms(tiny, replace(Recipe(), learning_rate=10.0, seed=1))}
    assert found == {"backward_finite", "kl_logratio_range", "update_applied"}


def test_large_rewards_undivided_by_a_spread_raise_no_alarm(tiny):
    edits = ((0, 0, 1e6), (1, 0, -999_999.9), (2, 0, 12345.67))
    assert alarms(tiny, replace(Recipe(), edited_rewards=edits, advantage_std="none", reward_weights=(100.0, 0.2))) == []


# ---- the maths -------------------------------------------------------------------------------------------------------------
def test_a_beta_of_0_keeps_an_overflown_kl_out_of_the_loss():
    # ratio e^80 times a k3 of e^80 is beyond fp32, the clipped loss beside it is -1.2
    logprobs, old, ref = torch.tensor([[-200.0]], requires_grad=True), torch.tensor([[-400.0]]), torch.zeros(1, 1)
    mask, settings = torch.ones(1, 1, dtype=torch.bool), {"beta": 0.0, "kl_gradient": "times-ratio"}
    terms = loss_of(logprobs, torch.tensor([1.0]), mask, old=old, ref=ref, **settings)
    (grad,) = torch.autograd.grad(terms.loss, logprobs)
    assert terms.kl.isinf().all() and float(terms.loss.detach()) == pytest.approx(-1.2) and float(grad) == 0.0


def test_advantages_of_large_rewards_are_not_rounding_noise():
    # three of 1e6, one of 1e6 - 1/8 (exact in fp32): mean 1e6 - 1/32, unbiased std 1/16
    rewards = ((1e6,), (1e6,), (1e6,), (999_999.875,))
    got = group_advantages(rewards, (1.0,), torch.zeros(4, dtype=torch.long), AdvantageConfig(advantage_eps=0.0)).advantages
    assert got.tolist() == pytest.approx([0.5, 0.5, 0.5, -1.5], abs=1e-6) and got.dtype == torch.float32


def test_the_rows_gradient_has_the_entropy_bonus_in_it(policy, rollout, recipe, token):
    changed = replace(recipe, entropy_coef=0.5, updates=1, temperature=recipe.temperature)
    trace = grpo_step(policy.clone(), policy, rollout, changed)
    row, weight = vocabulary_row(policy, trace, 0, *token), trace.updates[0].terms.entropy_weight[token]
    leaf = row.logits.double().requires_grad_()
    logprobs = torch.log_softmax(leaf, -1)
    picked = logprobs[labels(trace.batch)[token]]
    upstream = trace.updates[0].logprob_grad[token]
    (expected,) = torch.autograd.grad(upstream * picked - 0.5 * weight * row_entropy(logprobs.unsqueeze(0))[0], leaf)
    torch.testing.assert_close(row.logit_grad, expected.float(), rtol=1e-4, atol=1e-7)
    torch.testing.assert_close(closed_form_logit_grad(row, upstream, 1.0), expected.float(), rtol=1e-4, atol=1e-7)


def test_a_token_that_both_policies_rule_out_adds_nothing_to_the_exact_kl():
    row = torch.log_softmax(torch.tensor([[1.0, 2.0, -torch.inf]]), -1)
    assert float(exact_kl(row, row)[0]) == 0.0


# ---- recipes ---------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("name", "value"), [("beta", 10**400), ("edited_rewards", ((0, 0, 10**400),)), ("reward_functions", (["correct"],))]
)
def test_a_rule_answers_no_to_an_absurd_value_and_does_not_raise(name, value):
    # the rule itself: in tests the type checker would refuse some of these values before it
    (ok,) = (ok for field, _, ok in RULES if field == name)
    assert not ok(value)
