"""The built-in language model: a small Llama that does sums, carelessly, until GRPO teaches it care.

Covers the questions, the training text, the tokenizer, pretraining (``python -m grpo_core.tiny.make``),
the measurement, and the check that GRPO lifts the model (``python -m grpo_core.tiny.lift``).
Does not cover sampling, rewards and the GRPO step for the app: those are the rest of ``grpo_core``.
"""

from pathlib import Path

MODEL_FOLDER = Path(__file__).parent / "model"
CURVES_FILE = Path(__file__).parent / "curves.json"
