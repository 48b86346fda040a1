"""What a bad batch file is told: one line with the file, the field, the row, what was found and what is allowed."""

import json
import re
import struct
from dataclasses import replace

import pytest
import torch
from safetensors.torch import save_file
from test_batch_io import ENCODINGS, NAN, SEQ, TWO, loaded, written

from grpo_core import load_batch, save_batch

ROWS = [[0.0] * 3] * 2
DEEP = "[" * 100_000 + "]" * 100_000
BAD = [  # layout, what is changed, what the line says behind the file's name
    (TWO, {"completion_ids": ...}, r"completion_ids: found none beside prompt_ids, allowed: both"),
    (TWO, {"input_ids": [[1, 2], [3, 4]]}, r"layout: found input_ids and prompt_ids, allowed: one of"),
    (TWO, {"prompt_ids": ..., "prompt_mask": ..., "completion_ids": ..., "completion_mask": ...}, r"layout: found neither"),
    (TWO, {"prompt_ids": []}, r"prompt_ids: found an empty list, allowed: \[B P\]"),
    (TWO, {"prompt_ids": [[], []]}, r"prompt_ids, row 0: found rows without a number, allowed: \[B P\]"),
    (TWO, {"prompt_ids": [[1], 2]}, r"prompt_ids, row 1: found 2, allowed: \[B P\] of whole numbers"),
    (TWO, {"prompt_ids": [[1], [2.5]]}, r"prompt_ids, row 1: found 2.5, allowed: .*whole numbers"),
    (TWO, {"prompt_ids": [[1], [True]]}, r"prompt_ids, row 1: found true, allowed: .*whole numbers"),
    (TWO, {"prompt_ids": [[1], ["2"]]}, r"prompt_ids, row 1: found '2', allowed"),
    (TWO, {"prompt_ids": [[1], [2**63]]}, r"prompt_ids, row 1: found 9223372036854775808, allowed: .*64 bits"),
    (TWO, {"prompt_ids": [[1], [10**400]]}, r"prompt_ids, row 1: found a whole number of more than 64 bits"),
    (TWO, {"prompt_ids": [[1], [[2]]]}, r"prompt_ids, row 1: found a list, allowed"),
    (TWO, {"prompt_ids": {"0": 1}}, r"prompt_ids: found an object, allowed"),
    (TWO, {"prompt_mask": [[0, 1], [1, 2]]}, r"prompt_mask, row 1: found 2, allowed: \[B P\] of 0 or 1"),
    (TWO, {"completion_mask": [[1, 1, 1]]}, r"completion_mask: found 1 rows, allowed: 2, as in prompt_ids"),
    (TWO, {"old_logprobs": [[0, 0, 0], [0, None, 0]]}, r"old_logprobs, row 1: found null, allowed: .*numbers"),
    (TWO, {"old_logprobs": [[0, 0, 0], [0, "nan", 0]]}, r"old_logprobs, row 1: found 'nan', allowed: .*NaN, Infinity"),
    (TWO, {"old_logprobs": [[0, 0, 0], [0, 1e300, 0]]}, r"old_logprobs, row 1: found 1e\+300, allowed: .*fp32"),
    (TWO, {"old_logprobs": [-1.0, -2.0]}, r"old_logprobs, row 0: found -1.0, allowed: \[B T\]"),
    (TWO, {"old_logprobs": [[0.0] * 5] * 2}, r"old_logprobs, row 0: found 5 columns, allowed: 3 in layout prompt_completion"),
    (TWO, {"old_logprobs": [[0.0] * 4] * 2}, r"old_logprobs, row 0: found 4 columns, allowed: 3"),
    (SEQ, {"old_logprobs": [[0.0] * 4] * 2}, r"old_logprobs, row 0: found 4 columns, allowed: 3 in layout sequence \(column t"),
    (TWO, {"rewards": [1, [2]]}, r"rewards, row 1: found a list, allowed: \[B\] or \[B R\] of null"),
    (TWO, {"rewards": [[1], [2, 3]]}, r"rewards, row 1: found 2 numbers, allowed: 1, as in row 0"),
    (TWO, {"rewards": [[1], [2]], "reward_names": ["a", "b"]}, r"reward_names: found 2 reward functions, allowed: 1, as"),
    (TWO, {"reward_names": ["a"], "reward_weights": [1, 2]}, r"reward_weights: found 2 reward functions, allowed: 1"),
    (TWO, {"reward_names": ["a", 7]}, r"reward_names, row 1: found 7, allowed: \[R\] of texts"),
    (TWO, {"finish_reasons": ["stop"]}, r"finish_reasons: found 1 rows, allowed: 2"),
    (TWO, {"group_ids": [0, "x\n<b>"]}, r"group_ids, row 1: found 'x\\n<b>', allowed: \[B\] of whole numbers"),
    (TWO, {"logits": [[[0, 1]], [[0]]]}, r"logits, row 1: found 1 numbers per position, allowed: 2"),
    (TWO, {"logits": [[[0, 1], [0]], [[0]]]}, r"logits, row 0: found 1 numbers at position 1, allowed: 2, as in position 0"),
    (TWO, {"logits": [[0, 1], [0]]}, r"logits, row 0: found 0, allowed: \[B S V\]"),
    (TWO, {"sampled_ids": [[1] * 9000] + [[1]] * 8999}, r"sampled_ids: found 9000 rows padded to 9000, allowed: 67108864 num"),
    (SEQ, dict.fromkeys(("input_ids", "attention_mask", "response_mask"), [[1], [1]]), r"input_ids: found rows of one token"),
    (TWO, {"completion_mask": ..., "meta": {}}, r"completion_mask: found none, and no meta.pad_token_id .*allowed: \[B C\]"),
    (TWO, {"completion_mask": ..., "meta": {"pad_token_id": 0}}, r"completion_mask, row 1: .*0 at the row's edge may be"),
    (TWO, {"completion_ids": [[5, 6, 2], [7, 2, 2]], "completion_mask": ..., "meta": {"pad_token_id": 2, "eos_token_ids": [2]}},
     r"completion_mask, row 0: found none, and pad_token_id 2 at the row's edge is an EOS id, allowed"),
    (TWO, {"prompt_mask": ..., "meta": {"pad_token_id": 0, "bos_token_id": 0, "eos_token_ids": []}}, "prompt_mask.*the BOS id"),
    (SEQ, {"response_mask": ...}, r"response_mask: found none, and no prompt_lengths .*allowed: \[B S\] of 0 or 1, or"),
    (TWO, {"meta": []}, r"meta: found a list, allowed: an object"),
    (TWO, {"meta": {"temperature": "hot"}}, r"meta.temperature: found 'hot', allowed: a number"),
    (TWO, {"meta": {"eos_token_ids": 2}}, r"meta.eos_token_ids: found 2, allowed: a list of whole numbers"),
    (TWO, {"meta": {"pad_token_id": 2**64}}, r"meta.pad_token_id: found a whole number of more than 64"),
    (TWO, {"meta": {"micro_batches": [[0], [2]]}}, r"meta.micro_batches: found row 2, allowed: 0 to 1"),
    (TWO, {"meta": {"packed_boundaries": [[0]]}}, r"meta.packed_boundaries: found 1 lists, allowed: 2"),
    (TWO, {"meta": {"tokens": {"a": "b"}}}, r"meta.tokens: found an object, allowed: an object of id: text"),
    (TWO, {"reported": {"loss": "low"}}, r"reported.loss: found 'low', allowed: a number"),
    (TWO, {"rewards": [1, 2], "rewards_missing": [[2, 0]]}, r"rewards_missing: found \[2, 0\], allowed: .*below \[2, 1\]"),
    (TWO, {"row_lengths": {"completion_ids": [3, 4]}}, r"row_lengths.completion_ids, row 1: found 4, allowed: 0 to 3"),
    (TWO, {"row_lengths": {"rewards": [1, 1]}}, r"row_lengths: found 'rewards', allowed: fields of this file"),
    (TWO, {"derived": [1]}, r"derived, row 0: found 1, allowed: a list of texts"),
]  # fmt: skip


def refusal(path) -> str:
    with pytest.raises(ValueError) as caught:
        load_batch(path)
    line = str(caught.value)
    assert line.startswith(f"{path}: ") and len(line.splitlines()) == 1 and line.isprintable(), line
    return line.removeprefix(f"{path}: ")


@pytest.mark.parametrize("content, changes, message", BAD)
def test_a_bad_field_is_named_with_what_was_found_and_what_is_allowed(tmp_path, content, changes, message):
    content = {name: value for name, value in {**content, **changes}.items() if value is not ...}
    line = refusal(written(tmp_path, content))
    assert re.match(message, line) and ": found " in line and ", allowed: " in line, line


@pytest.mark.parametrize(
    "text, message",
    [
        ("", r"content: found text that is not JSON \(Expecting value: line 1"),
        ("[1, 2]", "content: found a JSON list, allowed: one JSON object"),
        (DEEP, "content: found text that is not JSON .*nested too deeply"),
        ('{"a": ' + DEEP + "}", "content: found text that is not JSON .*nested too deeply"),
        ('{"meta": {}, "meta": {}}', "'meta': found the name twice, allowed: once"),
        ('{"group_ids": [' + "1" * 5000 + "]}", "content: found text that is not JSON .*4300 digits"),
        ("\ud800", "content: found a byte that is not UTF-8 at 0"),
    ],
)
def test_text_that_is_not_a_json_object(tmp_path, text, message):
    path = tmp_path / "batch.json"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    assert re.match(message, refusal(path))


def test_files_that_cannot_be_read(tmp_path, monkeypatch):
    assert refusal(tmp_path / "none.json").startswith("content: found no such file, allowed: a readable file")
    assert "found '.pt', allowed: .json or .safetensors" in refusal(written(tmp_path, TWO, "batch.pt"))
    (tmp_path / "folder.json").mkdir()
    assert "found something that is not a file" in refusal(tmp_path / "folder.json")
    monkeypatch.setattr("grpo_core.batch_file.reading.MAX_JSON_BYTES", 10)
    assert "allowed: at most 10 in .json; .safetensors holds any size" in refusal(written(tmp_path, TWO))


@pytest.mark.parametrize("header", [b"", b"\x80", struct.pack("<Q", 2**62) + b"{}", struct.pack("<Q", 2) + b"[]"])
def test_a_corrupt_safetensors_file(tmp_path, header):
    path = tmp_path / "batch.safetensors"
    path.write_bytes(header)
    assert re.match(r"content: found no safetensors file \(.*\), allowed: a whole safetensors file", refusal(path))


@pytest.mark.parametrize(
    "changes, metadata, message",
    [
        ({"completion_mask": torch.tensor([[1.0, 0.5, 1.0]] * 2)}, {}, r"completion_mask, row 0: found 0.5, allowed: .*0 or 1"),
        ({"completion_ids": torch.tensor([[1.0, 2.0, 3.0], [1.0, 2.0, NAN]])}, {}, "completion_ids, row 1: found nan, allowed"),
        ({"old_logprobs": torch.ones(2, 3, dtype=torch.bool)}, {}, "old_logprobs, row 0: found true, allowed: .*numbers"),
        ({"old_logprobs": torch.zeros(2, 3, 1)}, {}, r"old_logprobs: found a tensor of shape \[2, 3, 1\], torch.float32"),
        ({"old_logprobs": torch.zeros(2, 0)}, {}, r"old_logprobs: found a tensor of shape \[2, 0\], allowed: at least one row"),
        ({"old_logprobs": torch.zeros(2, 5)}, {}, "old_logprobs, row 0: found 5 columns, allowed: 3"),
        ({"meta": torch.zeros(1)}, {}, "'meta': found a tensor, allowed"),
        ({}, {"grpo": "{"}, "content: found text that is not JSON"),
        ({}, {"grpo": '{"prompt_ids": [[1], [2]]}'}, "'prompt_ids': found a tensor, allowed: one of"),
    ],
)  # fmt: skip
def test_a_bad_tensor_is_named(tmp_path, changes, metadata, message):
    tensors = {name: torch.tensor(value) for name, value in TWO.items() if name != "meta"} | changes
    save_file(tensors, tmp_path / "batch.safetensors", metadata=metadata)
    assert re.match(message, refusal(tmp_path / "batch.safetensors"))


# ---- writing -----------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_a_failed_save_leaves_everything_as_it_was(tmp_path, monkeypatch, encoding):
    batch, place = loaded(tmp_path, TWO), tmp_path / f"kept.{encoding}"
    save_batch(batch, place)
    before, names = place.read_bytes(), sorted(p.name for p in tmp_path.iterdir())
    with pytest.raises(ValueError, match=rf"kept.{encoding}: meta: found a value that JSON cannot hold"):
        save_batch(replace(batch, meta={"model": torch.nn.Linear(1, 1)}), place)

    def full(*_):
        raise OSError(28, "No space left")

    monkeypatch.setattr("grpo_core.batch_file.files.os.replace", full)
    with pytest.raises(ValueError, match=rf"kept.{encoding}: cannot be written \(No space left\)"):
        save_batch(batch, place)
    assert place.read_bytes() == before and sorted(p.name for p in tmp_path.iterdir()) == names


def test_what_cannot_be_written(tmp_path, monkeypatch):
    batch = loaded(tmp_path, TWO)
    for name, reason in (("no/batch.json", "cannot be written"), ("no/batch.safetensors", "cannot be written"),
                         ("batch.json/x.json", "cannot be written"), ("a.pkl", "found '.pkl', allowed: .json or")):  # fmt: skip
        with pytest.raises(ValueError, match=re.escape(str(tmp_path / name)) + ": .*" + re.escape(reason)):
            save_batch(batch, tmp_path / name)
    monkeypatch.setattr("grpo_core.batch_file.files.MAX_HEADER_BYTES", 5)
    with pytest.raises(ValueError, match=r"a.safetensors: metadata: found \d+ bytes, allowed: at most 5"):
        save_batch(batch, tmp_path / "a.safetensors")
    assert [path.name for path in tmp_path.iterdir()] == ["batch.json"]


def test_a_saved_json_file_is_plain_json_with_short_numbers(tmp_path):
    batch = loaded(tmp_path, TWO, reported={"loss": float("nan")}, meta={"pad_token_id": 0, "dual_clip": float("inf")})
    save_batch(batch, tmp_path / "a.json")
    text = (tmp_path / "a.json").read_text()
    content = json.loads(text, parse_constant=lambda word: pytest.fail(f"bare {word}"))
    assert content == {**TWO, "meta": {"pad_token_id": 0, "dual_clip": "Infinity"}, "reported": {"loss": "NaN"}}
    assert "[-0.1, -0.2, -0.3]" in text
