"""Worked batches with one known fault each, or none: every fault is found where it is, nothing sound is called wrong.

`GRPO_CASES` names further folders, separated by `:`, each with its own `expected.json`.
"""

import json
import math
import os
from functools import cache
from pathlib import Path

import pytest

from grpo_core import diagnose, load_batch

FOLDERS = [Path(__file__).parent / "data" / "cases", *map(Path, filter(None, os.environ.get("GRPO_CASES", "").split(":")))]
CASES = [(folder, name) for folder in FOLDERS for name in json.loads((folder / "expected.json").read_text(encoding="utf-8"))]


def as_number(value):
    """Numbers, truth values and the words for what is not finite; None for anything else."""
    if isinstance(value, str):
        return {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}.get(value)
    return float(value) if isinstance(value, (bool, int, float)) else None


def alike(right, value):
    """Equal up to 1e-4 relative and 1e-6 absolute, entry by entry."""
    if isinstance(right, list) and isinstance(value, list):
        return len(right) == len(value) and all(map(alike, right, value))
    if isinstance(right, dict) and isinstance(value, dict):
        return set(right) == set(value) and all(alike(right[key], value[key]) for key in right)
    one, other = as_number(right), as_number(value)
    if one is None or other is None:
        return right == value
    return (math.isnan(one) and math.isnan(other)) or one == other or abs(one - other) <= 1e-6 + 1e-4 * abs(one)


def parts(value):
    """A value and everything inside it."""
    yield value
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    for part in inside:
        yield from parts(part)


def meets(finding, wanted):
    """Same severity, same rows and tokens where the case gives any, and either its name or one of its right values."""
    if finding["severity"] != wanted["severity"]:
        return False
    if wanted.get("rows") and set(wanted["rows"]) != set(finding["rows"]):
        return False
    if wanted.get("tokens") and set(map(tuple, wanted["tokens"])) != set(map(tuple, finding["tokens"])):
        return False
    if finding["check"] in (wanted.get("check_hint"), *wanted.get("check_also", ())):
        return True
    rights = wanted.get("right_value", {}).values()
    return any(alike(right, value) for right in rights for value in parts(finding["expected"]))


@cache
def report(path):
    batch = load_batch(str(path))
    return json.loads(json.dumps(diagnose(batch).as_json(batch), allow_nan=False))["findings"]


@pytest.mark.parametrize(("folder", "name"), CASES, ids=[name for _, name in CASES])
def test_a_case_is_met_and_nothing_sound_is_called_wrong(folder, name):
    case, found = json.loads((folder / "expected.json").read_text(encoding="utf-8"))[name], report(folder / name)
    missed = [wanted["about"] for wanted in case["expect"] if not any(meets(finding, wanted) for finding in found)]
    assert not missed, [(f["severity"], f["check"], f["rows"], f["tokens"]) for f in found]
    if case.get("no_error"):
        assert not [f for f in found if f["severity"] == "error"]
    if not case["expect"]:
        assert not [f for f in found if f["severity"] == "warning" and f["check"] not in case.get("may_warn", ())]


@pytest.mark.parametrize(("folder", "name"), CASES, ids=[name for _, name in CASES])
def test_every_finding_can_be_read(folder, name):
    for finding in report(folder / name):
        assert finding["message"] and finding["quantity"] and (finding["fix"] or finding["severity"] == "info")
        if finding["severity"] != "info":
            assert finding["expected"] or finding["found"]


def test_the_cause_comes_before_what_follows_from_it():
    names = [finding["check"] for finding in report(FOLDERS[0] / "A01-alder.json")]
    assert names.index("logprob_hypotheses") < names.index("sampler_logprobs_match") < names.index("expected_on_policy_loss")
    shifted = [finding["check"] for finding in report(FOLDERS[0] / "C02-limestone.json")]
    assert shifted[0] == "mask_shift"
