"""Runs in processes of their own: many at once as torchrun starts them, or one that a test may kill."""

import multiprocessing
import os
import subprocess
import sys
import time
from multiprocessing.process import BaseProcess
from pathlib import Path

ROOT = Path(__file__).parent.parent
SERVER = multiprocessing.get_context("forkserver")  # imports once, then every process starts at once
SERVER.set_forkserver_preload(["grpo_core.__main__", "transformers.models.llama.modeling_llama"])


def torchrun(count: int, *arguments: str, limit: float = 120) -> subprocess.CompletedProcess:
    """A module (`-m`, name) or a script in so many processes, as `torchrun --nproc-per-node` starts it."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(count), *arguments]
    paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    alike = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=limit, env=alike)


def _main(arguments: list[str], log: str) -> None:
    with open(log, "w", buffering=1, encoding="utf-8") as file:
        sys.stdout = sys.stderr = file
        os.dup2(file.fileno(), 2)
        from grpo_core.__main__ import main

        status = main(arguments)
    os._exit(status)


def started(arguments: list[str], log: Path) -> BaseProcess:
    """`python -m grpo_core ARGUMENTS` as a process of its own; what it says is in the log."""
    process = SERVER.Process(target=_main, args=(arguments, str(log)))
    process.start()
    return process


def wait_for(path: Path, process: BaseProcess, limit: float = 60) -> None:
    """Until the file is there. Fails where the process ends before."""
    end = time.monotonic() + limit
    while not path.exists():
        assert process.is_alive() and time.monotonic() < end, f"{path.name} never came"
        time.sleep(0.01)
