"""What a file is recognised by, what nobody knows, and `python -m grpo_core convert`."""

import json

import pytest
import torch
from import_samples import HERE, WRITERS, rows_of, step_batch
from test_importers import TEXTS, WITH_IDS, tokens

from grpo_core import load_batch, load_policy, save_batch
from grpo_core.__main__ import main
from grpo_core.importers import FORMATS, open_any

NAMES = (*WITH_IDS, *TEXTS, "unipo.json", "rl-logging-board.jsonl")


@pytest.fixture(scope="module")
def tiny():
    return load_policy("tiny")


@pytest.fixture(scope="module")
def step():
    return step_batch()


REFUSED = {
    "": "an empty file", "[]": "a JSON list without rows", "[1]": "row 0: found 1, allowed: objects",
    '{"prompt": "a", "completion": "b"}\n{': "line 2: found text that is not JSON",
    '{"prompt": "a", "completion": 3}': "completion, row 0: found 3, allowed: a text",
    '{"generation_logprobs": [[1]], "prev_logprobs": [[1]]}': "an older NeMo-RL wrote texts",
}  # fmt: skip


# ---- recognition ------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", NAMES)
def test_the_name_of_a_file_says_nothing(tmp_path, tiny, name):
    for suffix in (".json", ".txt", ".safetensors", ""):
        path = tmp_path / f"x{suffix}"
        path.write_bytes((HERE / name).read_bytes())
        assert open_any(path, tiny)[1].format == open_any(HERE / name, tiny)[1].format


def test_our_own_batch_file_is_recognised_under_any_name(tmp_path, step, tiny):
    for suffix in (".json", ".safetensors"):
        save_batch(step, tmp_path / f"a{suffix}")
        (tmp_path / f"a{suffix}").rename(tmp_path / "b.pt")
        batch, found = open_any(tmp_path / "b.pt", tiny)
        assert found.format == "batch file" and found.encoding == suffix[1:] and batch.meta == step.meta
        assert torch.equal(batch.policy_logprobs, step.policy_logprobs)


def test_what_nobody_knows_is_refused_with_what_is_known(tmp_path):
    (tmp_path / "x.json").write_text('{"a": 1, "b": [2]}')
    with pytest.raises(ValueError, match=r"x.json: content: found json with a, b, allowed: a batch file; ") as refused:
        open_any(tmp_path / "x.json")
    assert all(known.title in str(refused.value) for known in FORMATS)
    for text, message in REFUSED.items():
        (tmp_path / "y").write_text(text)
        with pytest.raises(ValueError, match=message):
            open_any(tmp_path / "y")


def test_the_samples_are_what_import_samples_writes(tmp_path, step):
    rows = rows_of(step)
    for name, write in WRITERS.items():
        write(rows, tmp_path / name)
        made, kept = open_any(tmp_path / name, load_policy("tiny"))[0], open_any(HERE / name, load_policy("tiny"))[0]
        assert tokens(made) == tokens(kept), name


# ---- the command ------------------------------------------------------------------------------------------------------------
def test_convert_says_what_it_did_and_writes_a_batch_file(tmp_path, capsys):
    out = tmp_path / "out.safetensors"
    assert main(["convert", str(HERE / "slime.pt"), str(out)]) == 0
    said = capsys.readouterr().out
    assert "recognised  slime's debug dump (pt), 6 rows" in said and "filled in   rewards: raw_reward" in said
    assert "missing     for which tokens count: meta.eos_token_ids" in said and f"written     {out}" in said
    assert torch.equal(load_batch(out).old_logprobs, open_any(HERE / "slime.pt")[0].old_logprobs)
    assert main(["convert", str(HERE / "verl-rollout.jsonl"), str(tmp_path / "v.json"), "--model", "tiny", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (
        said["format"] == "verl-rollout"
        and said["rows"] == 6
        and said["file"].endswith("v.json")
        and "the loss" not in said["missing"]
    )


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["verl-rollout.jsonl", "a.json"], "found texts only, 6 rows, allowed: --model"),
        (["slime.pt", "a.pt"], "FILE: found 'a.pt', allowed: a name that ends in .json or .safetensors"),
        (["none", "a.json"], "content: found no such file"),
        (["slime.pt", "no/such/a.json"], "cannot be written"),
        (["slime.pt", "a.json", "--temperature", "0"], "--temperature: found 0, allowed: above 0"),
    ],
)
def test_convert_refuses_in_one_line_and_writes_nothing(tmp_path, capsys, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    assert main(["convert", str(HERE / arguments[0]), *arguments[1:]]) == 2
    said = capsys.readouterr()
    assert message in said.err and said.err.count("\n") == 1 and not said.out and not list(tmp_path.iterdir())
