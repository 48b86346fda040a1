"""Loading a model: what is taken, and the one line that says why something is not."""

import shutil

import pytest
import torch
from builders import BOS, byte_tokenizer, random_llama, same_weights, weights_of
from safetensors.torch import load_file, save_file
from transformers import AutoConfig

from grpo_core import Policy, load_policy


def refused(name):
    with pytest.raises(ValueError) as caught:
        load_policy(str(name))
    message = str(caught.value)
    assert message.startswith("model: ") and "\n" not in message
    return message


def test_hidden_then_project_are_the_models_own_logits(policy, rollout):
    ids, mask = rollout.prompt_ids[:1], rollout.prompt_mask[:1]
    own = policy.model(input_ids=ids, attention_mask=mask.long()).logits[0]
    torch.testing.assert_close(policy.project(policy.hidden(ids, mask)[0]), own, rtol=1e-5, atol=1e-5)


def test_a_model_that_does_something_unknown_behind_its_head_is_refused(model_folder, monkeypatch):
    monkeypatch.setattr(Policy, "project", lambda self, hidden: 1.01 * self.model.lm_head(hidden))
    assert "its logits differ from head(hidden)" in refused(model_folder)


def test_a_copy_shares_no_memory(policy):
    copy = policy.clone()
    assert same_weights(weights_of(copy), weights_of(policy))
    theirs = {p.data_ptr() for p in policy.model.parameters()}
    assert not any(p.data_ptr() in theirs for p in copy.model.parameters())


def test_dropout_is_off(policy):
    assert not any(module.training for module in policy.model.modules())


def test_a_chat_template_writes_the_start_token_once(policy):
    ids = policy.encode("2 - 1?")
    assert ids.count(BOS) == 1 and ids[0] == BOS
    assert policy.decode(ids) == "2 - 1?"


def test_without_a_template_the_prompt_is_plain_text():
    plain = Policy(random_llama(261), byte_tokenizer(chat=False), "plain")
    assert not plain.has_chat_template and plain.decode(plain.encode("2 - 1?")) == "2 - 1?"
    assert len(plain.encode("2 - 1?")) == 6


def test_any_text_survives_the_way_there_and_back(policy):
    text = "héllo 世界 🙂 <img src=x onerror=alert(1)>"
    assert policy.decode(policy.encode(text)) == text


def test_pieces_show_bytes_specials_and_ids_that_do_not_exist(policy):
    assert policy.piece(policy.encode("a")[-2]) == "a" and policy.piece(BOS) == "<bos>" and policy.is_special(BOS)
    assert policy.piece(-100) == "<-100>" and policy.piece(10**6) == "<1000000>"
    lone = policy.tokenizer("é", add_special_tokens=False).input_ids[0]
    assert "\ufffd" not in policy.piece(lone) and policy.piece(lone)


def test_what_is_no_model_is_refused_in_one_line(tmp_path, model_folder):
    assert "without config.json" in refused(tmp_path)
    assert "allowed: an existing folder, a hub id, or tiny" in refused(tmp_path / "nowhere" / "at-all")
    file = tmp_path / "file.txt"
    file.write_text("x")
    assert "found the file" in refused(file)
    half = tmp_path / "half"
    half.mkdir()
    shutil.copy(model_folder / "config.json", half)
    assert "without weights" in refused(half)


def test_weights_without_a_tokenizer_are_refused(tmp_path, model_folder):
    for name in ("config.json", "model.safetensors", "generation_config.json"):
        shutil.copy(model_folder / name, tmp_path)
    assert "no tokenizer could be read" in refused(tmp_path)


def test_torn_weights_are_refused(tmp_path, model_folder):
    folder = shutil.copytree(model_folder, tmp_path / "torn")
    whole = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(whole[: len(whole) // 2])
    assert "no weights of a causal LM could be read" in refused(folder)


def test_a_model_with_a_weight_missing_is_refused_and_not_filled_with_random_numbers(tmp_path, model_folder):
    folder = shutil.copytree(model_folder, tmp_path / "holed")
    weights = load_file(folder / "model.safetensors")
    weights.pop("model.layers.1.mlp.up_proj.weight")
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    assert "without 1 of its weights (model.layers.1.mlp.up_proj.weight)" in refused(folder)


def test_a_model_that_does_not_fit_is_refused_before_it_is_read(tmp_path, model_folder):
    folder = shutil.copytree(model_folder, tmp_path / "giant")
    config = AutoConfig.from_pretrained(folder)
    config.hidden_size, config.intermediate_size, config.num_hidden_layers = 16384, 65536, 100
    config.num_attention_heads = config.num_key_value_heads = 128
    config.save_pretrained(folder)
    message = refused(folder)
    assert "B parameters" in message and "choose a smaller model" in message
