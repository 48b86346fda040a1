"""Files that want to do harm, and a process with little memory that opens them: `python hostile.py FOLDER` prints, for each
file, what became of it, the seconds that it took and the memory at its highest.
"""

import json
import os
import pickle
import resource
import struct
import sys
import time
import zipfile
from pathlib import Path

import torch

GIB = 2**30
ROOM = 4 * GIB  # beyond what the libraries take


class Runs:
    """Unpickled, it would leave a file behind."""

    def __init__(self, mark: Path):
        self.mark = mark

    def __reduce__(self):
        return os.system, (f"touch {self.mark}",)


def header(tensors: dict, data: bytes = b"", length: int | None = None) -> bytes:
    """A safetensors file by hand."""
    text = json.dumps(tensors).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def sparse(path: Path, start: bytes, size: int) -> None:
    with path.open("wb") as file:
        file.write(start)
        file.truncate(size)


def archives(folder: Path, mark: Path) -> None:
    (folder / "pickle.pt").write_bytes(pickle.dumps(Runs(mark)))
    (folder / "pickle-renamed.json").write_bytes(pickle.dumps(Runs(mark)))
    (folder / "pickle-0.pt").write_bytes(pickle.dumps(Runs(mark), protocol=0))
    torch.save({"samples": [{"tokens": Runs(mark)}]}, folder / "code.pt")
    torch.save({"samples": [{"tokens": Runs(mark)}]}, folder / "code-renamed.safetensors")
    torch.save({"samples": [{"tokens": Runs(mark)}]}, folder / "code-early.pt", _use_new_zipfile_serialization=False)
    with zipfile.ZipFile(folder / "bomb.pt", "w", zipfile.ZIP_DEFLATED) as bomb:
        bomb.writestr("x/data.pkl", b"\0" * 300_000_000)
    huge = torch.zeros(1).expand(10**6, 10**6)
    torch.save({"sequences": huge, "action_mask": huge, "action_log_probs": huge}, folder / "strided.pt")
    around: list = []
    around.append(around)
    torch.save({"samples": [{"tokens": around}]}, folder / "around.pt")
    torch.save({"samples": [{"tokens": torch.ones(3).to_sparse(), "response_lengths": 1}]}, folder / "odd-tensors.pt")
    script = torch.jit.script(torch.nn.Linear(1, 1))
    torch.jit.save(script, str(folder / "script.pt"))
    sparse(folder / "large.pt", b"PK\x03\x04", 2 * GIB)


def tensors(folder: Path) -> None:
    def one(shape, dtype="F32", end=16):
        return header({"old_logprobs": {"dtype": dtype, "shape": shape, "data_offsets": [0, end]}}, b"\0" * 16)

    files = {
        "rows": one([10**9, 10**9]), "overflow": one([2**62, 8]), "negative": one([-1, 4]), "lies": one([4], end=10**12),
        "no-such-type": one([4], "F1"), "length": header({}, length=2**63), "float-shape": one([1.5, 2]),
        "deep": struct.pack("<Q", 200_000) + b'{"a":' + b"[" * 199_995,
    }  # fmt: skip
    for name, content in files.items():
        (folder / f"{name}.safetensors").write_bytes(content)
    shape = [2**20, 2**17]
    large = {name: {"dtype": "F32", "shape": shape, "data_offsets": [at * 2**39, (at + 1) * 2**39]}
             for at, name in enumerate(("prompt_ids", "completion_ids"))}  # fmt: skip
    start = header(large)
    sparse(folder / "terabyte.safetensors", start, len(start) + 2**40)


def texts(folder: Path) -> None:
    files = {
        "deep": "[" * 10**6, "deep-inside": '{"input_ids": [[1, 2]], "x": ' + "[" * 900 + "]" * 900 + "}",
        "deep-rows": '{"prompt": "a", "completion": ' + '{"a":' * 5000 + "1" + "}" * 5000 + "}\n" * 2,
        "lists": '{"input_ids": [' + "[],\n" * 15_000_000 + "[]]}", "numbers": '{"input_ids": [' + "0,\n" * 40_000_000 + "0]}",
        "twice": "{" + ",".join(f'"{n}": 0' for n in range(300_000)) + ', "299999": 0}', "lines": "{}\n" * 10**6,
        "digits": '{"input_ids": [[' + "9" * 10**6 + "]]}", "nul": "\0" * 10**6, "nothing": "null",
        "ragged": json.dumps({"completion_ids": [[1] * 20_000] + [[1]] * 20_000, "prompt_ids": [[1]] * 20_001}),
        "markup": '{"<img src=x onerror=alert(1)>": 1}', "half": '{"prompt": "a", "completion": "\\ud800"}',
        "token": '{"token_ids": [[1]], "token_loss_mask": [[1]], "input_lengths": [-5]}',
    }  # fmt: skip
    for name, content in files.items():
        (folder / f"{name}.json").write_text(content)
    sparse(folder / "large.json", b'{"input_ids": [[', 2 * GIB)


def tables(folder: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    same = pa.DictionaryArray.from_arrays(pa.array([0] * 20_000, pa.int32()), pa.array(["x" * 1_000_000]))
    pq.write_table(pa.table({"prompt": same, "completion": same, "advantage": [0.0] * 20_000}), folder / "bomb.parquet")
    zeros = pa.array([0.0] * 300_000)
    pq.write_table(pa.table({"prompt": zeros, "completion": zeros, "advantage": zeros}), folder / "rows.parquet")
    flags = pa.array([[True] * 1_000_000] * 30, pa.list_(pa.bool_()))
    pq.write_table(pa.table({"prompt": flags}), folder / "flags.parquet")
    whole = (folder / "rows.parquet").read_bytes()
    (folder / "cut.parquet").write_bytes(whole[: len(whole) // 2])
    (folder / "footer.parquet").write_bytes(b"PAR1" + b"\xff" * 64 + struct.pack("<I", 2**31 - 1) + b"PAR1")
    sparse(folder / "large.parquet", b"PAR1", 2 * GIB)


def places(folder: Path) -> None:
    os.mkfifo(folder / "pipe.json")
    (folder / "folder.pt").mkdir()
    links = {
        "zero.json": "/dev/zero", "loop.json": "loop.json", "memory.json": "/proc/self/mem", "gone.json": "no",
        "tty.json": "/dev/tty", "kernel.json": "/proc/version", "to-pipe.json": "pipe.json",
    }  # fmt: skip
    for name, target in links.items():
        (folder / name).symlink_to(target)


def write_all(folder: Path, mark: Path) -> None:
    for write in (tensors, texts, tables, places):
        write(folder)
    archives(folder, mark)


def opened(path: Path) -> str:
    from grpo_core import load_batch
    from grpo_core.importers import open_any

    said = []
    for load in (open_any, load_batch):
        try:
            load(path)
            said.append("loaded")
        except ValueError as error:
            said.append(str(error))
    return json.dumps(said)


if __name__ == "__main__":
    import pyarrow.parquet  # noqa: F401  # its room is not the files'

    import grpo_core.importers  # noqa: F401

    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + ROOM, size + ROOM))
    for path in sorted(Path(sys.argv[1]).iterdir()):
        start = time.perf_counter()
        said = opened(path)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        print(json.dumps([path.name, json.loads(said), time.perf_counter() - start, peak]), flush=True)
