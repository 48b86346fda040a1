"""What stands beside every picture: question, formula, source, tensors, checks, prose."""

from ..shared.html import Drawn


class Side(Drawn):
    """Question, formula, the formula with numbers, source lines, tensors, checks, prose."""

    VIEW = "side"
    SENDS = ("answer",)
    LABELS = (
        "predict", "reveal", "key_space", "answer_right", "answer_wrong", "answer_shown", "formula", "numbers",
        "source", "tensors", "checks", "status_pass", "status_info", "status_warning", "status_error", "status_skipped",
        "fix", "about",
    )  # fmt: skip
