"""What a person can turn: one row per setting of the recipe that has a control, in the order of the panel."""

from dataclasses import dataclass

from grpo_core.advantages import ADVANTAGE_MEAN, ADVANTAGE_STD
from grpo_core.config import OPTIMIZERS
from grpo_core.kl import KL
from grpo_core.loss import AGGREGATION, RATIO, SURROGATE
from grpo_core.types import LAYOUTS


@dataclass(frozen=True)
class Knob:
    """A control. `kind`: lines (one text per line), slider, number or choice."""

    field: str
    kind: str
    section: str  # sample, reward, loss or update
    low: float | None = None
    high: float | None = None
    step: float | None = None
    choices: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        """Its key in ui.md; `<key>_info` is the line below it."""
        return f"knob_{self.field}"


KNOBS = (
    Knob("prompts", "lines", "sample"),
    Knob("group_size", "slider", "sample", 1, 16, 1),
    Knob("temperature", "slider", "sample", 0, 3, 0.05),
    Knob("top_p", "slider", "sample", 0, 1, 0.05),
    Knob("top_k", "number", "sample", 0, None, 1),
    Knob("max_completion_length", "slider", "sample", 1, 128, 1),
    Knob("seed", "number", "sample", 0, None, 1),
    Knob("advantage_mean", "choice", "reward", choices=tuple(ADVANTAGE_MEAN)),
    Knob("advantage_std", "choice", "reward", choices=tuple(ADVANTAGE_STD)),
    Knob("advantage_eps", "number", "reward", 0, 1, None),
    Knob("ratio", "choice", "loss", choices=tuple(RATIO)),
    Knob("surrogate", "choice", "loss", choices=tuple(SURROGATE)),
    Knob("clip_low", "slider", "loss", 0, 1, 0.01),
    Knob("clip_high", "slider", "loss", 0, 2, 0.01),
    Knob("beta", "slider", "loss", 0, 1, 0.01),
    Knob("kl_estimator", "choice", "loss", choices=tuple(KL)),
    Knob("aggregation", "choice", "loss", choices=tuple(AGGREGATION)),
    Knob("entropy_coef", "slider", "loss", -0.1, 0.1, 0.005),
    Knob("updates", "slider", "update", 1, 8, 1),
    Knob("learning_rate", "number", "update", 0, 10, None),
    Knob("optimizer", "choice", "update", choices=OPTIMIZERS),
    Knob("max_grad_norm", "number", "update", 0, None, None),
    Knob("layout", "choice", "update", choices=LAYOUTS),
)
