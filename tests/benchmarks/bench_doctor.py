"""Whom the doctor accuses: `python tests/benchmarks/bench_doctor.py [--own 500] [--trl 500] [FOLDER ...]`.

Worked cases (found, missed and false per kind; further folders as arguments), steps of our own under settings drawn at random,
and every step of real TRL runs: nothing is wrong with those, so that each error is a false one. The figures are printed.
"""

import argparse
import collections
import json
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[2])]

import torch  # noqa: E402
from builders import save_random_model  # noqa: E402
from sound_batches import sound_batches  # noqa: E402
from test_cases import FOLDERS, meets  # noqa: E402

from grpo_core import Batch, Recipe, diagnose, load_batch, load_policy  # noqa: E402


def cases(folders: list[Path]) -> None:
    """Found, missed and false per kind."""
    tally: dict[str, list[int]] = collections.defaultdict(lambda: [0, 0, 0])
    for folder in folders:
        for name, case in json.loads((folder / "expected.json").read_text(encoding="utf-8")).items():
            batch = load_batch(str(folder / name))
            found = json.loads(json.dumps(diagnose(batch).as_json(batch)))["findings"]
            met = sum(any(meets(finding, wanted) for finding in found) for wanted in case["expect"])
            sound, clean = case.get("no_error", False), not case["expect"]
            false = [
                f for f in found if f["severity"] == "error" and sound
                or f["severity"] == "warning" and clean and f["check"] not in case.get("may_warn", ())
            ]  # fmt: skip
            counts = (met, len(case["expect"]) - met, len(false))
            tally[case["kind"]] = [a + b for a, b in zip(tally[case["kind"]], counts, strict=True)]
    print("kind   found missed false")
    for kind in sorted(tally):
        print(f"{kind:6} {tally[kind][0]:5} {tally[kind][1]:6} {tally[kind][2]:5}")


def own(count: int) -> Iterator[Batch]:
    with tempfile.TemporaryDirectory() as folder:
        path = save_random_model(Path(folder))
        recipe = Recipe(
            model=str(path), prompts=("What is 4 + 5?", "2 - 1?"), max_completion_length=12, reward_functions=("correct",),
            reward_weights=(1.0,),
        )  # fmt: skip
        for _, batch in sound_batches(load_policy(str(path)), recipe, count):
            yield batch


def trl(count: int) -> Iterator[Batch]:
    """The captured steps of runs with the settings of the capture's own tests, seed after seed."""
    from test_capture_trl import RUNS, run

    draw, steps, left = random.Random(0), 10, count
    while left > 0:
        settings = RUNS[draw.choice(list(RUNS))] | {"seed": draw.randrange(1000), "max_steps": min(steps, left)}
        settings["learning_rate"] = draw.choice((1e-3, 1e-2, 5e-2))
        with tempfile.TemporaryDirectory() as folder:
            paths = run(Path(folder), **settings)[1].paths
            for path in paths:
                yield load_batch(str(path))
        left -= max(len(paths), 1)


def sound(name: str, batches: Iterator[Batch]) -> None:
    counts: dict[str, int] = collections.Counter()
    raised: dict[tuple[str, str], int] = collections.Counter()
    start = time.perf_counter()
    for batch in batches:
        findings = diagnose(batch).findings
        counts["batches"] += 1
        counts["false errors"] += any(f.severity == "error" for f in findings)
        raised.update((f.severity, f.check) for f in findings if f.severity != "info")
    print(f"{name}: {dict(counts)}, {time.perf_counter() - start:.0f} s")
    for (severity, check), number in sorted(raised.items()):
        print(f"  {severity:8} {check:28} {number}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="*", type=Path, help="further cases, each folder with an expected.json")
    parser.add_argument("--own", type=int, default=500)
    parser.add_argument("--trl", type=int, default=500)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    cases([FOLDERS[0], *arguments.folders])
    sound("steps of our own", own(arguments.own))
    if arguments.trl:
        sound("steps of TRL", trl(arguments.trl))


if __name__ == "__main__":
    main()
