"""The batch of data/golden.json as a batch file: what a person would bring to the Compare page."""

import json
from pathlib import Path
from typing import Any

DATA = Path(__file__).parent / "data" / "golden.json"
FIELDS = {
    "policy_logprobs": "logp", "old_logprobs": "old", "ref_logprobs": "ref", "sampler_logprobs": "rollout",
    "entropy": "entropy", "rewards": "rewards", "group_ids": "group",
}  # fmt: skip
LOSSES = {"trl": "+0.288258", "verl": "+0.116434", "roll": "+0.446902", "nemo": "−0.169590"}


def golden_document(without: tuple[str, ...] = (), **more: Any) -> dict[str, Any]:
    """Rows of a prompt of P and a completion of T ids; `without` leaves fields out, `more` adds some."""
    given = json.loads(DATA.read_text("utf-8"))["inputs"]
    width = given["P"]
    document = {
        "prompt_ids": [row[:width] for row in given["ids"]], "prompt_mask": [[1] * width for _ in given["ids"]],
        "completion_ids": [row[width:] for row in given["ids"]],
        "completion_mask": [[int(trained) for trained in row] for row in given["mask"]],
        "meta": {"max_completion_length": given["T"], "eos_token_ids": [2]},
    }  # fmt: skip
    document |= {name: given[key] for name, key in FIELDS.items()}
    return {name: value for name, value in (document | more).items() if name not in without}


def write_golden(path: Path, without: tuple[str, ...] = (), **more: Any) -> Path:
    path.write_text(json.dumps(golden_document(without, **more)), encoding="utf-8")
    return path
