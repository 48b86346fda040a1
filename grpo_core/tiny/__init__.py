"""The built-in language model: a small Llama that does sums, carelessly, until GRPO teaches it care.

Covers the questions, the training text, the tokenizer, pretraining (``python -m grpo_core.tiny.make``),
the measurement, and the check that GRPO lifts the model (``python -m grpo_core.tiny.lift``).
Does not cover sampling, rewards and the GRPO step for the app: those are the rest of ``grpo_core``.
"""

import json
from pathlib import Path

MODEL_FOLDER = Path(__file__).parent / "model"


def record(file: Path, part: str, result: dict) -> None:
    """Put one command's result into a JSON file of curves and leave the other command's part as it is."""
    parts = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    file.write_text(json.dumps(parts | {part: result}, indent=1) + "\n", encoding="utf-8")
