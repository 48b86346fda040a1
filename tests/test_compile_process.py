"""Starts tests/compile in a second process, without the shape checks that torch.compile cannot trace."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_the_compile_tests_pass_in_their_own_process():
    command = [sys.executable, "-m", "pytest", "tests/compile", "-q", "-p", "no:cacheprovider", "-o", "addopts="]
    alone = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, env=alone)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
    assert " passed" in done.stdout
