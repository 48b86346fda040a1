"""The formats that `open_any` knows, the surest mark first: a row per format."""

from collections.abc import Callable
from dataclasses import dataclass

from . import nemo_rl, openrlhf, plain_rows, rl_logging_board, slime, trl_completions, unipo, verl_rollout
from .draft import Draft
from .source import Source


@dataclass(frozen=True)
class Format:
    """One tool's file. `read` raises BadField; the step is the one to take of a log that holds several."""

    name: str
    title: str
    holds: Callable[[Source], bool]
    read: Callable[[Source, int | None], Draft]
    marks: str  # what it is known by


FORMATS = (
    Format("slime", "slime's debug dump", slime.holds, slime.read, ".pt with samples or rollout_data"),
    Format("openrlhf", "OpenRLHF's experience", openrlhf.holds, openrlhf.read, "sequences with action_mask"),
    Format("unipo", "a UNIPO run log", unipo.holds, unipo.read, "JSON with entries of prompts"),
    Format("nemo-rl", "NeMo-RL's train data", nemo_rl.holds, nemo_rl.read, "rows with token_ids, token_loss_mask"),
    Format("rl-logging-board", "an RL Logging Board file", rl_logging_board.holds, rl_logging_board.read,
           "rows with response_tokens, logprobs"),
    Format("trl-completions", "TRL's completions log", trl_completions.holds, trl_completions.read,
           "rows with prompt, completion, advantage"),
    Format("verl-rollout", "verl's rollout dump", verl_rollout.holds, verl_rollout.read, "rows with input, output, score"),
    Format("rows", "plain rows", plain_rows.holds, plain_rows.read, "rows with prompt, completion"),
)  # fmt: skip
