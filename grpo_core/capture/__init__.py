"""A batch file at the source: what a trainer really used, written while it trains.

    grpo_core.capture.trl(trainer, "batches/", every=10)      a live TRL GRPOTrainer
    grpo_core.capture.verl(data, "batch.safetensors")         a verl DataProto, where its actor is updated
    grpo_core.capture.save("batch.json", prompt_ids=…, …)     a loop of your own

Nothing of a trainer is imported here: `from_trl` and `from_verl` read the objects they are given.
"""

from .by_hand import save
from .from_trl import TRLCapture, trl
from .from_verl import verl

__all__ = ["TRLCapture", "save", "trl", "verl"]
