"""`python -m grpo_core convert SOURCE FILE`: another tool's dump as a batch file, and what it lacks."""

import argparse
import json
import math
from pathlib import Path
from typing import Any

from ..batch_file import save_batch
from ..importers import Recognised, open_any
from ..loading import load_policy


def report(found: Recognised, written: str) -> dict[str, Any]:
    """What `--json` prints."""
    missing = {question: list(needs) for question, needs in found.lacking.items()}
    return {
        "format": found.format, "encoding": found.encoding, "rows": found.rows, "filled": list(found.filled),
        "missing": missing, "file": written,
    }  # fmt: skip


def print_report(found: Recognised, written: str) -> None:
    print(f"recognised  {found.title} ({found.encoding}), {found.rows} rows")
    for line in found.filled:
        print(f"filled in   {line}")
    for question, needs in found.lacking.items():
        print(f"missing     for {question}: {', '.join(need.replace('|', ' or ') for need in needs)}")
    print(f"written     {written}")


def add(commands: Any) -> None:
    """The command's arguments."""
    convert = commands.add_parser("convert", help="another tool's dump as a batch file; says what it lacks")
    convert.add_argument("source", metavar="SOURCE", help="a dump of TRL, verl, NeMo-RL, slime, OpenRLHF, UNIPO, …; any name")
    convert.add_argument("file", metavar="FILE", help="the batch file to write, .json or .safetensors")
    convert.add_argument("--model", metavar="NAME", help="tiny, a folder or a hub id: tokenises texts, scores the tokens")
    convert.add_argument("--temperature", type=float, metavar="T", help="of that scoring; default: what the dump says, else 1")
    convert.add_argument("--step", type=int, metavar="N", help="which step of a log that holds several; default: the last")
    convert.add_argument("--json", action="store_true", help="one JSON object instead of text")
    convert.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Exit status. Raises ValueError for a file that cannot be read or written; nothing is written then."""
    heat = arguments.temperature
    if heat is not None and not 0 < heat < math.inf:
        raise ValueError(f"--temperature: found {heat:g}, allowed: above 0")
    if Path(arguments.file).suffix.lower() not in (".json", ".safetensors"):  # before a model is loaded for nothing
        raise ValueError(f"FILE: found {ascii(arguments.file)}, allowed: a name that ends in .json or .safetensors")
    policy = load_policy(arguments.model) if arguments.model else None
    batch, found = open_any(arguments.source, policy, arguments.step, heat)
    save_batch(batch, arguments.file)
    if arguments.json:
        print(json.dumps(report(found, arguments.file), indent=1))
    else:
        print_report(found, arguments.file)
    return 0
