"""`python -m grpo_core compare FILE`: every preset's loss on one batch, the bridge between two, the preset behind a number."""

import argparse
import csv
import json
import sys
from collections.abc import Sequence
from typing import Any

from ..batch_file import load_batch
from ..bridge import Bar, bridge
from ..compare import NUMBERS, Compared, compare, evaluate
from ..fingerprint import Match, decimals_of, fingerprint
from ..inputs import LossInputs
from ..presets import PRESETS, preset
from .output import plain

UNSIGNED = ("clip_fraction", "grad_norm")
NEAREST = 10  # matches printed


def line_of(row: Compared) -> dict[str, Any]:
    """One preset as `--json` prints it: numbers, or what it needs."""
    who = {"preset": row.preset.name, "trainer": row.preset.trainer, "version": row.preset.version}
    return who | ({"needs": list(row.needs)} if row.needs else {k: plain(v) for k, v in row.numbers().items()})


def bar_of(bar: Bar) -> dict[str, Any]:
    return {
        "knobs": list(bar.knobs), "changes": {name: list(pair) for name, pair in bar.changes.items()},
        "loss_before": plain(bar.before.loss), "loss_after": plain(bar.after.loss), "delta": plain(bar.delta),
        "tokens": int(bar.touched.sum()),
    }  # fmt: skip


def match_of(match: Match) -> dict[str, Any]:
    return {
        "preset": match.preset, "aggregation": match.aggregation, "part": match.part,
        "value": plain(match.value), "gap": plain(match.gap), "exact": match.exact,
    }  # fmt: skip


def print_table(rows: Sequence[Compared]) -> None:
    print(f"{'preset':33} {'version':>8} " + " ".join(f"{name:>13}" for name in NUMBERS))
    for row in rows:
        cells = " ".join(f"{cell(name, value):>13}" for name, value in row.numbers().items())
        print(f"{row.preset.name:33} {row.preset.version:>8} " + (cells or f"needs {', '.join(row.needs)}"))


def cell(name: str, value: float | None) -> str:
    return "-" if value is None else format(value, ".6f" if name in UNSIGNED else "+.6f")


def print_bridge(ends: Sequence[str], bars: Sequence[Bar], first: float) -> None:
    start, end = ends
    print(f"\n{first:+.6f}  {start}")
    for bar in bars:
        changes = ", ".join(f"{name} {before} -> {after}" for name, (before, after) in bar.changes.items())
        print(f"{bar.delta:+.6f}  {' + '.join(bar.knobs)}: {changes}  ({int(bar.touched.sum())} tokens)")
    print(f"{bars[-1].after.loss if bars else first:+.6f}  {end}")


def print_matches(text: str, matches: Sequence[Match]) -> None:
    exact = [match for match in matches if match.exact]
    print(f"\n{text}: {len(exact)} ways give it" if exact else f"\n{text}: nothing gives it; the nearest:")
    for match in (exact or matches)[:NEAREST]:
        own = "" if match.own_aggregation else f" with {match.aggregation}"
        print(f"{match.value:+.6f}  gap {match.gap:+.6f}  {match.preset}{own}{'' if match.part == 'loss' else ', policy part'}")


def write_csv(rows: Sequence[Compared]) -> None:
    writer = csv.writer(sys.stdout)
    writer.writerow(["preset", "trainer", "version", *NUMBERS, "needs"])
    for row in rows:
        said = row.numbers()
        needs = " ".join(row.needs)
        writer.writerow([row.preset.name, row.preset.trainer, row.preset.version, *(said.get(n) for n in NUMBERS), needs])


def add(commands: Any) -> None:
    """The command's arguments."""
    command = commands.add_parser("compare", help="every preset's loss on one batch file")
    command.add_argument("file", metavar="FILE", help="a batch file, .json or .safetensors")
    command.add_argument("--json", action="store_true", help="one JSON object instead of text")
    command.add_argument("--csv", action="store_true", help="the table as CSV")
    command.add_argument("--preset", action="append", metavar="NAME", help="only this preset; give it again for more")
    command.add_argument("--against", default="trl", metavar="NAME", help="cosines are to this preset's gradient (trl)")
    command.add_argument("--bridge", nargs=2, metavar=("A", "B"), help="from A's loss to B's, one knob at a time")
    command.add_argument("--order", default="", metavar="KNOB,KNOB", help="knobs that the bridge turns first")
    command.add_argument("--loss", metavar="NUMBER", help="the loss that your trainer printed: which preset gives it?")
    command.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Exit status. Raises ValueError for a file that cannot be read and for names that do not exist."""
    batch = load_batch(arguments.file)
    inputs = LossInputs.of_batch(batch)
    names = [preset(name).name for name in arguments.preset or PRESETS]
    rows = compare(inputs, names, preset(arguments.against).name)
    rows = sorted(rows, key=lambda row: (row.evaluation is None, -(row.evaluation.loss if row.evaluation else 0.0)))
    bars, first = (), 0.0
    if arguments.bridge:
        start, end = (preset(name).convention() for name in arguments.bridge)
        first = evaluate(inputs, start).loss
        bars = bridge(inputs, start, end, [knob for knob in arguments.order.split(",") if knob])
    text = arguments.loss if arguments.loss is not None else str(batch.reported.get("loss", ""))
    matches = fingerprint(inputs, *_number(text)) if text else ()
    if arguments.csv:
        write_csv(rows)
    elif arguments.json:
        whole: dict[str, Any] = {"presets": [line_of(row) for row in rows], "derived": list(inputs.derived)}
        whole |= {"bridge": [bar_of(bar) for bar in bars]} if arguments.bridge else {}
        whole |= {"printed": text, "matches": [match_of(match) for match in matches[:NEAREST]]} if text else {}
        json.dump(whole, sys.stdout, indent=1, allow_nan=False)
        print()
    else:
        print_table(rows)
        if arguments.bridge:
            print_bridge(arguments.bridge, bars, first)
        if text:
            print_matches(text, matches)
        for sentence in inputs.derived:
            print(sentence)
    return 0


def _number(text: str) -> tuple[float, int]:
    try:
        return float(text), decimals_of(text)
    except ValueError:
        raise ValueError(f"--loss: found {text[:40]!r}, allowed: a number as it was printed") from None
