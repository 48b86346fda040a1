"""Hostile files: refused in one line, within bounded time and memory, nothing executed, nothing left behind. `hostile.py` makes
them and opens them, all in one process that may take 4 GiB.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import hostile
import psutil
import pytest
import torch
from safetensors.torch import save_file

from grpo_core import diagnose, load_batch, save_batch
from grpo_core.__main__ import main
from grpo_core.batch_file.reading import MAPPED_BYTES, read_bytes
from grpo_core.importers import open_any
from grpo_core.inputs import LossInputs

SECONDS = 30  # for one file, both loaders, on a busy machine


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    folder, mark = tmp_path_factory.mktemp("hostile"), tmp_path_factory.mktemp("mark") / "executed"
    hostile.write_all(folder, mark)
    before = sorted(path.name for path in folder.iterdir())
    paths = f"{Path(__file__).parent.parent}{os.pathsep}{Path(__file__).parent}"
    env = os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "TMPDIR": str(mark.parent)}
    command = [sys.executable, str(Path(hostile.__file__)), str(folder)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, (done.stdout[-500:], done.stderr[-2000:])
    assert sorted(path.name for path in folder.iterdir()) == before and list(mark.parent.iterdir()) == []
    lines = {name: (said, seconds, peak) for name, said, seconds, peak in map(json.loads, done.stdout.splitlines())}
    assert sorted(lines) == before
    yield lines
    for path in folder.iterdir():
        path.unlink() if not path.is_dir() or path.is_symlink() else path.rmdir()


def test_each_is_refused_in_one_printable_line(results):
    for name, (said, _, _) in results.items():
        for line in said:
            assert line != "loaded" and len(line.splitlines()) == 1 and line.isprintable() and len(line) < 1500, (name, line)
            assert ": found " in line and ", allowed: " in line and name in line, (name, line)


def test_time_and_memory_are_bounded(results):
    slow = {name: seconds for name, (_, seconds, _) in results.items() if seconds > SECONDS}
    assert not slow and max(peak for _, _, peak in results.values()) < hostile.ROOM


@pytest.mark.parametrize(
    "name, message",
    [
        ("pickle.pt", "a pickle, which may hold code"), ("pickle-renamed.json", "a pickle, which may hold code"),
        ("pickle-0.pt", "text that is not JSON"), ("code.pt", "it asks for posix.system, which"),
        ("code-renamed.safetensors", "it asks for posix.system"), ("code-early.pt", "a pickle"),
        ("bomb.pt", "a compressed entry of 300000000 bytes"), ("strided.pt", "that is not stored in full"),
        ("odd-tensors.pt", "a tensor of shape"), ("script.pt", "a compressed entry"),
        ("around.pt", "tokens"), ("large.pt", "an archive of 2147483648 bytes"), ("rows.safetensors", "no safetensors file"),
        ("negative.safetensors", "no safetensors file"), ("terabyte.safetensors", "content: found"),
        ("deep.json", "nested too deeply"), ("deep-inside.json", ""), ("lists.json", "lists and objects in one text"),
        ("numbers.json", "commas in one text"), ("twice.json", "'299999': found the name twice"), ("lines.json", "rows"),
        ("large.json", "2147483648 bytes"), ("bomb.parquet", "a parquet file"), ("rows.parquet", "300000 rows"),
        ("flags.parquet", "unpacks to more than it says"), ("kernel.json", "text that is not JSON"),
        ("large.parquet", "a parquet file of 2147483648 bytes"), ("pipe.json", "something that is not a file"),
        ("zero.json", "something that is not a file"), ("folder.pt", "something that is not a file"),
        ("to-pipe.json", "something that is not a file"), ("loop.json", "a file that cannot be opened"),
        ("ragged.json", "rows padded to 20000"), ("token.json", "input_lengths"),
    ],
)  # fmt: skip
def test_what_is_said(results, name, message):
    assert message in results[name][0][0], results[name][0][0]


def test_a_file_that_has_nothing_to_give_yet_is_empty():
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    with os.fdopen(reading, "rb", buffering=0) as file, os.fdopen(writing, "wb"):
        assert read_bytes(file, 16) == b""


def test_convert_leaves_nothing_behind(tmp_path, capsys):
    source, out = tmp_path / "x.pt", tmp_path / "out"
    torch.save({"samples": [{"tokens": hostile.Runs(tmp_path / "executed")}]}, source)
    out.mkdir()
    assert main(["convert", str(source), str(out / "y.safetensors")]) == 2
    assert capsys.readouterr().err.count("\n") == 1 and not list(out.iterdir()) and not (tmp_path / "executed").exists()
    assert main(["convert", f"{tmp_path}/a\0b", str(out / "y.json")]) == 2 and not list(out.iterdir())


def test_not_a_number_everywhere_is_data(tmp_path):
    nan = torch.full((2, 3), torch.nan)
    names = ("policy_logprobs", "old_logprobs", "ref_logprobs", "sampler_logprobs", "entropy", "advantages")
    ids = {"prompt_ids": torch.ones(2, 2).long(), "completion_ids": torch.ones(2, 3).long()}
    masks = {"prompt_mask": torch.ones(2, 2), "completion_mask": torch.ones(2, 3)}
    logits = {"logits": torch.full((2, 5, 4), torch.nan), "rewards": torch.full((2,), torch.nan)}
    save_file(
        {**ids, **masks, **dict.fromkeys(names[:1], nan), **{n: nan.clone() for n in names[1:]}, **logits}, tmp_path / "x"
    )
    batch, found = open_any(tmp_path / "x")
    assert found.format == "batch file" and all(getattr(batch, name).isnan().all() for name in (*names, "logits", "rewards"))
    diagnose(batch)


# ---- large and honest --------------------------------------------------------------------------------------------------------
@pytest.fixture
def large(tmp_path):
    """1.6 GB of logits in bfloat16 that take no room on the disk."""
    rows, width, vocabulary = 8, 2000, 50_000
    end = rows * width * vocabulary * 2
    ids = torch.arange(rows * width).view(rows, width) % 7 + 1
    mask = torch.arange(width).expand(rows, width) >= 10
    small = {"input_ids": ids, "attention_mask": torch.ones(rows, width).bool(), "response_mask": mask}
    fields, data = {"logits": {"dtype": "BF16", "shape": [rows, width, vocabulary], "data_offsets": [0, end]}}, b""
    for name, tensor in small.items():
        piece = tensor.numpy().tobytes()
        kind, start = ("I64" if tensor.dtype == torch.int64 else "BOOL"), end + len(data)
        fields[name] = {"dtype": kind, "shape": [rows, width], "data_offsets": [start, start + len(piece)]}
        data += piece
    path, start = tmp_path / "large.safetensors", hostile.header(fields)
    with path.open("wb") as file:
        file.write(start)
        file.seek(len(start) + end)
        file.write(data)
    return path


def memory() -> int:
    return psutil.Process().memory_info().rss


@pytest.mark.parametrize("load", [load_batch, lambda path: open_any(path)[0]], ids=["load_batch", "open_any"])
def test_a_large_file_opens_without_its_logits_and_gives_a_window_of_rows(large, load):
    assert large.stat().st_size > 1.4 * 2**30
    before = memory()
    batch = load(large)
    assert batch.logits.shape == (8, 2000, 50_000) and batch.logits.dtype == torch.bfloat16
    assert memory() - before < 100e6
    window = batch.rows(torch.tensor([6]))  # 200 MB, once here and once as pages of the file
    assert window.logits.shape == (1, 2000, 50_000) and memory() - before < 600e6


def test_the_loss_takes_large_logits_a_row_at_a_time(large):
    before, batch = memory(), load_batch(large)
    part = batch.rows(torch.arange(1))
    inputs = LossInputs.of_batch(part)
    assert inputs.policy_logprobs.shape == (1, 1999) and torch.allclose(inputs.entropy, torch.tensor(50_000.0).log())
    assert memory() - before < 2e9


def test_small_tensors_are_not_tied_to_their_file(tmp_path):
    batch = load_batch(small_file(tmp_path))
    (tmp_path / "small.safetensors").write_bytes(b"")  # whoever is mapped to it would die here
    assert batch.input_ids.sum() == 6 and MAPPED_BYTES >= 2**26
    save_batch(batch, tmp_path / "again.safetensors")


def small_file(folder: Path) -> Path:
    tensors = {
        "input_ids": torch.tensor([[1, 2, 3]]),
        "attention_mask": torch.ones(1, 3),
        "response_mask": torch.tensor([[0, 1, 1]]),
    }
    save_file(tensors, folder / "small.safetensors")
    return folder / "small.safetensors"
