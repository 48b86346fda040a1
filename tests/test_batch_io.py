"""The batch file: known files, both encodings there and back, and what a bad file is told."""

import json
import re
from dataclasses import fields, replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file

from grpo_core import Batch, load_batch, save_batch
from grpo_core.batch_file import remarks
from grpo_core.batch_file.fields import FIELDS, TEXTS

NAN, INF = float("nan"), float("inf")
ENCODINGS = ("json", "safetensors")
TWO = {  # layout prompt_completion: two rows, nothing ragged
    "prompt_ids": [[0, 4], [3, 4]], "prompt_mask": [[0, 1], [1, 1]],
    "completion_ids": [[5, 6, 2], [7, 2, 0]], "completion_mask": [[1, 1, 1], [1, 1, 0]],
    "policy_logprobs": [[-0.1, -0.2, -0.3], [-0.4, -0.5, 0.0]],
    "meta": {"pad_token_id": 0, "eos_token_ids": [2]},
}  # fmt: skip
SEQ = {
    "input_ids": [[4, 5, 2, 0], [3, 4, 6, 2]], "attention_mask": [[1, 1, 1, 0], [1, 1, 1, 1]],
    "response_mask": [[0, 1, 1, 0], [0, 0, 1, 1]], "meta": {"pad_token_id": 0, "eos_token_ids": [2]},
}  # fmt: skip


def written(folder, content, name="batch.json"):
    path = folder / name
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def loaded(folder, content, **changes) -> Batch:
    content = {k: v for k, v in {**content, **changes}.items() if v is not ...}
    return load_batch(written(folder, content))


def same(left, right) -> bool:
    if isinstance(left, torch.Tensor) and isinstance(right, torch.Tensor):
        return (
            left.dtype == right.dtype
            and left.shape == right.shape
            and bool(((left == right) | (left.isnan() & right.isnan())).all())
        )
    return type(left) is type(right) and repr(left) == repr(right)


def differences(left: Batch, right: Batch) -> list[str]:
    return [f.name for f in fields(Batch) if not same(getattr(left, f.name), getattr(right, f.name))]


def there_and_back(batch: Batch, folder) -> list[str]:
    """Through each encoding, and from one into the other."""
    save_batch(batch, folder / "a.safetensors")
    save_batch(load_batch(folder / "a.safetensors"), folder / "b.json")
    save_batch(load_batch(folder / "b.json"), folder / "c.safetensors")
    return [
        name for file in ("a.safetensors", "b.json", "c.safetensors") for name in differences(batch, load_batch(folder / file))
    ]


# ---- known files -----------------------------------------------------------------------------------------------------------
def test_every_name_of_the_format_is_a_field_of_the_batch():
    assert {*FIELDS, *TEXTS, "reported", "meta"} <= {f.name for f in fields(Batch)}


def test_a_file_in_layout_prompt_completion(tmp_path):
    batch = loaded(tmp_path, TWO, tool_mask=[[1, 0, 1], [1, 1, 1]])
    assert batch.layout == "prompt_completion" and batch.token_positions().tolist() == [2, 3, 4]
    assert batch.row_mask().int().tolist() == [[0, 1, 1, 1, 1], [1, 1, 1, 1, 0]]
    assert batch.trained_mask().int().tolist() == [[1, 0, 1], [1, 1, 0]]
    assert batch.completion_columns().int().tolist() == [[1, 1, 1], [1, 1, 0]]
    assert batch.policy_logprobs is not None and batch.policy_logprobs.dtype == torch.float32
    assert batch.group_ids is batch.rewards is batch.logits is None and not batch.row_lengths and not batch.derived
    given = [[1, 1, 1, 1, 0], [0, 1, 1, 1, 0]]
    assert loaded(tmp_path, TWO, attention_mask=given).row_mask().int().tolist() == given
    assert loaded(tmp_path, TWO, loss_mask=[[0, 0, 1], [1, 1, 1]]).trained_mask().int().tolist() == [[0, 0, 1], [1, 1, 1]]


def test_a_file_in_layout_sequence(tmp_path):
    batch = loaded(tmp_path, SEQ, tool_mask=[[1, 0, 1], [1, 1, 1]], advantages=[[0.0, 1.0, 1.0], [0.0, 0.0, -1.0]])
    assert batch.layout == "sequence" and batch.token_positions().tolist() == [1, 2, 3]
    assert batch.trained_mask().int().tolist() == [[1, 0, 0], [0, 1, 1]]
    assert batch.advantages is not None and batch.advantages.shape == (2, 3)


def test_null_is_not_nan(tmp_path):
    content = json.dumps({**TWO, "rewards": 0}).replace('"rewards": 0', '"rewards": [[null, NaN], ["-Infinity", 1]]')
    batch = load_batch(written(tmp_path, content))
    assert batch.rewards is not None and batch.rewards_missing is not None
    assert batch.rewards_missing.tolist() == [[True, False], [False, False]]
    assert same(batch.rewards, torch.tensor([[NAN, NAN], [-INF, 1.0]]))
    assert there_and_back(batch, tmp_path) == []
    assert json.loads((tmp_path / "b.json").read_text())["rewards"] == [[None, "NaN"], ["-Infinity", 1.0]]
    one = loaded(tmp_path, TWO, rewards=[None, 0.1])
    assert one.rewards is not None and one.rewards.shape == (2, 1) and there_and_back(one, tmp_path) == []
    assert json.loads((tmp_path / "b.json").read_text())["rewards"] == [None, 0.1]


def test_ragged_rows_that_agree_are_padded_and_masked_by_their_lengths(tmp_path):
    batch = loaded(
        tmp_path, TWO, prompt_ids=[[4], [3, 4]], prompt_mask=..., completion_ids=[[5, 6, 2], [7, 2]], completion_mask=...,
        policy_logprobs=[[-0.1, -0.2, -0.3], [-0.4, -0.5]], position_ids=[[0, 1, 2, 3], [0, 1, 2, 3]],
        meta={"pad_token_id": 9}, sampled_ids=[[5, 6, 2], [7]], sampler_prompt_ids=[[1], [2, 3]],
    )  # fmt: skip
    assert batch.prompt_ids is not None and batch.prompt_ids.tolist() == [[9, 4], [3, 4]]
    assert batch.completion_ids is not None and batch.completion_ids.tolist() == [[5, 6, 2], [7, 2, 9]]
    assert batch.row_mask().int().tolist() == [[0, 1, 1, 1, 1], [1, 1, 1, 1, 0]]
    assert batch.position_ids is not None and batch.position_ids.tolist() == [[0, 0, 1, 2, 3], [0, 1, 2, 3, 0]]
    assert batch.derived == ("prompt_mask derived from the rows' lengths", "completion_mask derived from the rows' lengths")
    assert batch.row_lengths == {"sampled_ids": (3, 1), "sampler_prompt_ids": (1, 2)}
    assert batch.sampler_prompt_ids is not None and batch.sampler_prompt_ids.tolist() == [[9, 1], [2, 3]]
    assert there_and_back(batch, tmp_path) == []


def test_ragged_rows_that_disagree_are_padded_to_the_longest_and_keep_their_lengths(tmp_path):
    batch = loaded(
        tmp_path, TWO, completion_ids=[[5, 2], [7, 8, 2]], completion_mask=[[1, 1], [1, 0, 1, 1]],
        policy_logprobs=[[-1, -1], [-1, -1, -1]], prompt_ids=[[4], [3, 4]], prompt_mask=...,
        attention_mask=[[1, 1, 1], [1] * 5],
    )  # fmt: skip
    assert batch.completion_ids is not None and batch.completion_ids.tolist() == [[5, 2, 0, 0], [7, 8, 2, 0]]
    assert batch.trained_mask().int().tolist() == [[1, 1, 0, 0], [1, 0, 1, 1]]
    assert batch.row_mask().int().tolist() == [[0, 1, 1, 1, 0, 0], [1, 1, 1, 1, 1, 0]]
    assert batch.row_lengths == {
        "prompt_ids": (1, 2), "completion_ids": (2, 3), "completion_mask": (2, 4), "attention_mask": (3, 5),
        "policy_logprobs": (2, 3), "prompt_mask": (1, 2),
    }  # fmt: skip
    assert there_and_back(batch, tmp_path) == []
    assert json.loads((tmp_path / "b.json").read_text())["completion_mask"] == [[1, 1], [1, 0, 1, 1]]
    longer = loaded(tmp_path, SEQ, policy_logprobs=[[-1.0] * 4, [-1.0] * 3])
    assert longer.row_lengths["policy_logprobs"] == (4, 3) and longer.row_ids().shape == (2, 5)
    assert there_and_back(longer, tmp_path) == []
    wide = loaded(tmp_path, TWO, attention_mask=[[1] * 7, [1] * 5])
    assert wide.row_ids().shape == wide.row_mask().shape == (2, 7) and wide.row_lengths["attention_mask"] == (7, 5)


@pytest.mark.parametrize(
    "content, changes, mask, expected, source",
    [
        (TWO, {"completion_mask": ...}, "completion_mask", [[1, 1, 1], [1, 1, 0]], "pad_token_id 0"),
        (TWO, {"prompt_mask": ...}, "prompt_mask", [[0, 1], [1, 1]], "pad_token_id 0"),
        (TWO, {"prompt_mask": ..., "prompt_lengths": [2, 1]}, "prompt_mask", [[1, 1], [0, 1]], "prompt_lengths"),
        (TWO, {"completion_mask": ..., "attention_mask": [[1] * 5, [1, 1, 1, 0, 0]]}, "completion_mask", [[1] * 3, [1, 0, 0]],
         "attention_mask"),
        (TWO, {"completion_ids": [[0, 5, 0], [0, 0, 0]], "completion_mask": ...}, "completion_mask", [[1, 1, 0], [0, 0, 0]],
         "pad_token_id 0"),
        (TWO, {"completion_ids": [[2, 5], [2, 5]], "completion_mask": ..., "policy_logprobs": ..., "meta": {"pad_token_id": 2}},
         "completion_mask", [[1, 1], [1, 1]], "pad_token_id 2"),
        (SEQ, {"attention_mask": ..., "input_ids": [[0, 5, 2, 0], [3, 0, 6, 2]]}, "attention_mask", [[0, 1, 1, 0], [1] * 4],
         "pad_token_id 0"),
        (SEQ, {"response_mask": ..., "prompt_lengths": [1, 2]}, "response_mask", [[0, 1, 1, 0], [0, 0, 1, 1]],
         "attention_mask and prompt_lengths"),
    ],
)  # fmt: skip
def test_a_mask_left_out_is_derived_where_only_one_fits_and_said(tmp_path, content, changes, mask, expected, source):
    batch = loaded(tmp_path, content, **changes)
    assert getattr(batch, mask).int().tolist() == expected
    assert f"{mask} derived from {source}" in batch.derived and batch.derived == remarks(batch)
    assert there_and_back(batch, tmp_path) == []


def test_unknown_names_are_kept_and_mentioned(tmp_path):
    batch = loaded(
        tmp_path, TWO, my_scores=[["NaN", 2]], meta={"pad_token_id": 0, "colour": "red"}, reported={"loss": "NaN", "x": 1}
    )
    assert [note.split(":")[0] for note in remarks(batch)] == ["my_scores", "meta.colour"]
    assert batch.meta["colour"] == "red" and repr(batch.reported) == "{'loss': nan, 'x': 1}"
    assert there_and_back(batch, tmp_path) == []


def test_a_safetensors_file_of_another_program(tmp_path):
    ids = {name: torch.tensor(TWO[name], dtype=torch.int32) for name in ("prompt_ids", "completion_ids")}
    masks = {name: torch.tensor(TWO[name], dtype=torch.bfloat16) for name in ("prompt_mask", "completion_mask")}
    old = torch.tensor([[-0.1, -0.2, -0.3], [-0.4, NAN, 0.0]], dtype=torch.bfloat16)
    others = {"old_logprobs": old, "scores": old.double(), "rewards": torch.tensor([5.0, 6.0])}
    save_file({**ids, **masks, **others}, tmp_path / "a.safetensors", {"grpo": '{"rewards_missing": [[1, 0]]}'})
    batch = load_batch(tmp_path / "a.safetensors")
    assert same(batch.rewards, torch.tensor([[5.0], [NAN]]))
    assert same(batch.old_logprobs, old.float()) and batch.completion_mask is not None
    assert batch.completion_mask.int().tolist() == TWO["completion_mask"] and same(batch.extra["scores"], old.double())
    twin = replace(batch, policy_logprobs=batch.old_logprobs)  # two fields in one memory
    save_batch(twin, tmp_path / "again.safetensors")
    assert differences(twin, load_batch(tmp_path / "again.safetensors")) == []


# ---- there and back --------------------------------------------------------------------------------------------------------
NUMBERS = st.floats(width=32, allow_nan=True, allow_infinity=True)


@st.composite
def files(draw):
    """A batch file with some of the fields, rows ragged at will, in one of the layouts."""
    count, functions, vocabulary = draw(st.integers(1, 3)), draw(st.integers(1, 3)), draw(st.integers(1, 3))
    ids = ("input_ids",) if draw(st.booleans()) else ("prompt_ids", "completion_ids")
    sizes = {"R": functions, "V": vocabulary}

    def cell(name):
        kind = FIELDS[name].kind.allowed
        numbers = st.integers(-(2**63), 2**63 - 1) if "whole" in kind else st.integers(0, 1) if kind == "0 or 1" else NUMBERS
        return draw(st.one_of(st.none(), numbers) if "null" in kind else numbers)

    def block(name, axes):
        if not axes:
            return cell(name)
        size = sizes.get(axes[0]) or draw(st.integers(2, 4) if name in ids else st.integers(0, 4))
        return [block(name, axes[1:]) for _ in range(count if axes[0] == "B" else size)]

    masks = ("attention_mask", "response_mask") if len(ids) == 1 else ("prompt_mask", "completion_mask")
    foreign = {"input_ids", "response_mask", "prompt_ids", "prompt_mask", "completion_ids", "completion_mask"} - {*ids, *masks}
    others = [name for name in FIELDS if name not in foreign and name not in ids + masks]
    chosen = draw(st.lists(st.sampled_from(others), unique=True, max_size=6))
    content = {name: block(name, draw(st.sampled_from(FIELDS[name].axes))) for name in (*ids, *masks, *chosen)}
    if "rewards" in content and not isinstance(content["rewards"][0], list):
        content.pop("reward_weights", None)  # one function
    meta = st.dictionaries(st.sampled_from(["temperature", "clip_high", "my_setting"]), st.floats())
    return content | {"meta": draw(meta), "finish_reasons": draw(st.lists(st.text(max_size=3), min_size=count, max_size=count))}


@given(content=files())
def test_nothing_is_lost_there_and_back(tmp_path_factory, content):
    folder = tmp_path_factory.mktemp("batch")
    try:
        batch = load_batch(written(folder, content))
    except ValueError as error:
        assert re.search("columns, .*in layout|rows without a number", str(error)), error
        return
    assert there_and_back(batch, folder) == []
    for name in content.keys() & {name for name in FIELDS if FIELDS[name].axes == ("BT",)}:
        for row, read in zip(getattr(batch, name), content[name], strict=True):
            assert same(row[: len(read)], torch.tensor(read, dtype=row.dtype)) and not row[len(read) :].any()
