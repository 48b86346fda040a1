"""The README's tree against the disk.

The tree is the first fenced block of README.md in which a line is `grpo_core/`: two spaces of indentation per level, the first
word of a line is a name, folders end in `/`, and a name may be a pattern (`s*.py`). A folder with nothing below it in the
block is not looked into; a folder with something below it must be complete. Hidden files need not be listed, nor must what
tools insist on (UNSAID).
"""

import re
import subprocess
from fnmatch import fnmatch
from pathlib import Path

UNSAID = {"__init__.py", "LICENSE", "README.md", "pyproject.toml"}


def tree_block(readme: str) -> str:
    blocks = re.findall(r"^```[^\n]*\n(.*?)^```", readme, flags=re.MULTILINE | re.DOTALL)
    return next((block for block in blocks if re.search(r"^grpo_core/", block, flags=re.MULTILINE)), "")


def listed(block: str) -> dict[str, set[str]]:
    """Folder ("" is the root) -> the names below it; folders keep their slash."""
    folders, path = {}, []
    for line in filter(str.strip, block.splitlines()):
        depth = (len(line) - len(line.lstrip(" "))) // 2
        name, path = line.split()[0], path[:depth]
        folders.setdefault("".join(path), set()).add(name)
        path = [*path, name] if name.endswith("/") else path
    return folders


def on_disk(root: Path) -> dict[str, set[str]]:
    """The same of the files that git knows or would add."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True)
    folders: dict[str, set[str]] = {}
    for file in filter(lambda f: (root / f).exists(), done.stdout.splitlines()):
        parts = file.split("/")
        for depth, part in enumerate(parts):
            name = part + "/" * (depth + 1 < len(parts))
            folders.setdefault("".join(p + "/" for p in parts[:depth]), set()).add(name)
    return folders


def differences(said: dict[str, set[str]], found: dict[str, set[str]]) -> list[str]:
    """One line per name that is listed and not there, or there and not listed."""
    problems = []
    for folder, names in said.items():
        there = {name for name in found.get(folder, set()) if not name.startswith(".")}
        problems += [f"listed, not there: {folder}{n}" for n in sorted(names) if not any(fnmatch(t, n) for t in there)]
        unlisted = sorted(t for t in there - UNSAID if not any(fnmatch(t, n) for n in names))
        problems += [f"there, not listed: {folder}{name}" for name in unlisted]
    return problems
