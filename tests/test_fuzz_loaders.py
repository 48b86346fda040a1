"""Every loader against broken and invented files, for a bounded number of examples: a batch or the documented ValueError."""

import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from import_samples import HERE

from grpo_core import Batch, load_batch, save_batch
from grpo_core.importers import open_any

EXAMPLES = {"deadline": None, "suppress_health_check": list(HealthCheck)}
BINARY = ("slime.pt", "slime-early.pt", "openrlhf.pt", "trl-completions.parquet")
TEXT = ("nemo-rl.jsonl", "unipo.json", "rl-logging-board.jsonl", "verl-rollout.jsonl", "rows.json")
ODD = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.floats(), st.text(max_size=4), st.just([]), st.just({}),
    st.lists(st.integers(-3, 3), max_size=3), st.just([[[]]]), st.just({"role": 1}), st.just("NaN"),
    st.just([{"role": "user", "content": "x"}]), st.dictionaries(st.text(max_size=3), st.integers(), max_size=2),
)  # fmt: skip

CONTENT = st.one_of(
    st.binary(max_size=80), st.text(max_size=80).map(lambda text: text.encode("utf-8", "surrogatepass")),
    ODD.map(json.dumps).map(str.encode),
)  # fmt: skip


def refused_or_read(path: Path) -> None:
    for load in (open_any, load_batch):
        try:
            made = load(path)
        except ValueError as error:
            line = str(error)
            assert str(path) in line and len(line.splitlines()) == 1 and line.isprintable(), line
        else:
            batch = made if isinstance(made, Batch) else made[0]
            assert len(batch.row_ids()) > 0 and batch.trained_mask().shape[0] == len(batch.row_ids())


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return tmp_path_factory.mktemp("fuzz") / "x.safetensors"


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    """Our own file in both encodings."""
    folder = tmp_path_factory.mktemp("own")
    batch = open_any(HERE / "slime.pt")[0]
    for suffix in ("json", "safetensors"):
        save_batch(batch, folder / f"own.{suffix}")
    return folder


def broken(data, content: bytes) -> bytes:
    """A few bytes changed, put in, cut out; or an end that is missing."""
    edits = data.draw(st.lists(st.tuples(st.floats(0, 1), st.integers(0, 3), st.binary(min_size=1, max_size=8)), max_size=4))
    for where, what, piece in edits:
        at = int(where * len(content))
        kept = {0: content[at + len(piece) :], 1: content[at:], 2: content[at + 16 :], 3: b""}[what]
        content = content[:at] + (piece if what < 3 else b"") + kept
    return content


@settings(max_examples=100, **EXAMPLES)
@given(data=st.data(), name=st.sampled_from(BINARY + TEXT + ("own.json", "own.safetensors")))
def test_broken_bytes(path, own, data, name):
    content = ((own if name.startswith("own") else HERE) / name).read_bytes()
    path.write_bytes(broken(data, content))
    refused_or_read(path)


def changed(data, value, depth: int = 0):
    """One value somewhere inside replaced by an odd one, or a name left out."""
    if depth and data.draw(st.integers(0, 3)) == 0 or not isinstance(value, (dict, list)) or not value:
        return data.draw(ODD)
    key = data.draw(st.sampled_from(sorted(value) if isinstance(value, dict) else list(range(len(value)))))
    copy = dict(value) if isinstance(value, dict) else list(value)
    if isinstance(copy, dict) and data.draw(st.integers(0, 5)) == 0:
        del copy[key]
    else:
        copy[key] = changed(data, value[key], depth + 1)
    return copy


@settings(max_examples=100, **EXAMPLES)
@given(data=st.data(), name=st.sampled_from(TEXT + ("own.json",)))
def test_odd_values_in_known_layouts(path, own, data, name):
    text = ((own if name.startswith("own") else HERE) / name).read_text()
    rows = [json.loads(line) for line in text.splitlines()[:2]] if name.endswith("jsonl") else [json.loads(text)]
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(rows) - 1))
        rows[at] = changed(data, rows[at])
    path.with_suffix(".json").write_text("\n".join(map(json.dumps, rows)))
    refused_or_read(path.with_suffix(".json"))


@settings(max_examples=40, **EXAMPLES)
@given(data=st.data(), name=st.sampled_from(("slime.pt", "slime-early.pt", "openrlhf.pt")))
def test_odd_values_in_archives(path, data, name):
    import torch

    tensors = st.sampled_from([torch.zeros(0), torch.ones(2, 2), torch.tensor(3), torch.ones(3, dtype=torch.complex64),
                               torch.full((4,), torch.nan), torch.ones(5, dtype=torch.bool), torch.ones(2, 3, 4)])  # fmt: skip
    content = torch.load(HERE / name, weights_only=True)
    spot, key = content, None
    while isinstance(spot, (dict, list)) and spot and (key is None or data.draw(st.integers(0, 3))):
        parent, key = (
            spot,
            data.draw(st.sampled_from(sorted(spot, key=str) if isinstance(spot, dict) else list(range(len(spot))))),
        )
        spot = parent[key]
    parent[key] = data.draw(tensors | ODD)
    torch.save(content, path)
    refused_or_read(path)


@settings(max_examples=100, **EXAMPLES)
@given(content=CONTENT, start=st.sampled_from([b"", b"PAR1", b"PK\x03\x04", b"\x80", b"{", b"[{"]))
def test_anything_at_all(path, content, start):
    path.write_bytes(start + content)
    refused_or_read(path)
