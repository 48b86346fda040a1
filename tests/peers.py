"""Real components that a test needs and a machine may lack: a browser, a package. No test replaces one by a stand-in."""

import importlib.util
import os
from pathlib import Path

import pytest

REQUIREMENTS = "pip install -r tests/requirements.txt"
PEERS = "pip install --no-deps -r tests/peers.txt"


def require(name: str, where: str = REQUIREMENTS) -> None:
    """A package, or a program by its path. Absent: skip, saying where it comes from; fail if GRPO_REQUIRE_PEERS is set."""
    there = Path(name).exists() if os.sep in name else importlib.util.find_spec(name) is not None
    if there:
        return
    missing = f"{name} is not installed: {where}"
    if os.environ.get("GRPO_REQUIRE_PEERS"):
        pytest.fail(missing)
    pytest.skip(missing)
