"""grpo_core: one real GRPO step, every tensor on the way, and nothing that is only for show.

    prompts --tasks--> rollout.sample --> Rollout ---------> to_batch --> Batch (two layouts)
                                            |                               |
    rewards --advantages.group_advantages --+--> Advantages                 |
                                                     |                      v
    policy, old, reference --logprobs.score_tokens---+--> loss.policy_loss --> LossTerms --> step.grpo_step --> StepTrace

`Recipe` (config) says everything a step depends on. `explain` answers questions about a finished trace, `doctor` checks
one, `metrics` names what is logged. Nothing here imports gradio, plotly or the lessons.
"""

from . import capture
from .advantages import group_advantages
from .aggregation import Totals
from .batch_file import load_batch, save_batch
from .config import Recipe
from .convention import LossConfig
from .doctor import CHECKS, Diagnosis, Evidence, Finding, diagnose, run_checks
from .loading import load_policy
from .logprobs import score_tokens
from .loss import policy_loss
from .metrics import summarize
from .policy import AdaptersOff, Policy
from .rollout import sample, to_batch
from .step import grpo_step, replay, reweigh
from .trace_batch import batch_of_trace
from .types import Advantages, Batch, LossTerms, Rollout, StepTrace, Update

__all__ = [
    "CHECKS", "AdaptersOff", "Advantages", "Batch", "Diagnosis", "Evidence", "Finding", "LossConfig", "LossTerms",
    "Policy", "Recipe", "Rollout", "StepTrace", "Totals", "Update", "batch_of_trace", "capture", "diagnose",
    "group_advantages", "grpo_step", "load_batch", "load_policy", "policy_loss", "replay", "reweigh", "run_checks",
    "sample", "save_batch", "score_tokens", "summarize", "to_batch",
]  # fmt: skip
