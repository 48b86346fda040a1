"""What a person can turn: one row per setting of the recipe that has a control, in the order of the panel."""

from collections.abc import Callable
from dataclasses import dataclass

from grpo_core.advantages import ADVANTAGE_MEAN, ADVANTAGE_STD, WHITEN
from grpo_core.aggregation import AGGREGATION
from grpo_core.batch_step import FIXED
from grpo_core.config import Recipe
from grpo_core.correction import BOUND, CORRECTION, GATE
from grpo_core.kl import KL, KL_GRADIENT
from grpo_core.loss import RATIO
from grpo_core.rules import ALONE, OLD_OR_SAMPLER, OPTIMIZERS, OR_SAME, REF_OR_SAMPLER, REWARD_KL
from grpo_core.surrogate import SURROGATE
from grpo_core.types import LAYOUTS

from .batches import is_batch


@dataclass(frozen=True)
class Knob:
    """A control. `kind`: lines (one text per line), numbers (with commas between), slider, number, choice, names or switch."""

    field: str
    kind: str
    section: str  # sample, reward, loss or update
    low: float | None = None
    high: float | None = None
    step: float | None = None
    choices: tuple[str, ...] = ()
    fold: bool = False  # among the section's further settings
    read: Callable[[Recipe], bool] = lambda recipe: True  # whether anything reads it: hidden where nothing does

    @property
    def label(self) -> str:
        """Its key in ui.md; `<key>_info` is the line below it."""
        return f"knob_{self.field}"


def surrogate(*names: str) -> Callable[[Recipe], bool]:
    return lambda recipe: recipe.surrogate in names


def gate(*names: str) -> Callable[[Recipe], bool]:
    return lambda recipe: bool(set(names) & set(recipe.gates))


def corrected(recipe: Recipe) -> bool:
    return recipe.correction != "none"


def kl_in_reward(recipe: Recipe) -> bool:
    return recipe.reward_kl != "none"


def kl_in_loss(recipe: Recipe) -> bool:
    return recipe.beta != 0


def divided(recipe: Recipe) -> bool:
    return recipe.advantage_std != "none" or recipe.advantage_alone == "reward"


def entropy_counts(recipe: Recipe) -> bool:
    return recipe.entropy_coef != 0


DPPO = ("dppo-tv", "dppo-kl", "dppo-ratio")
CLIPS = surrogate("min-clip", "dual-clip", "two-sided", "geometric-mean", "clip-cov", "cispo", *DPPO)
CAPS = surrogate("dual-clip", "two-sided", "dppo-tv", "dppo-kl")

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
    Knob("advantage_eps", "number", "reward", 0, 1, read=divided),
    Knob("advantage_whiten", "choice", "reward", choices=tuple(WHITEN)),
    Knob("reward_kl", "choice", "reward", choices=REWARD_KL, fold=True),
    Knob("reward_kl_coef", "number", "reward", 0, 100, fold=True, read=kl_in_reward),
    Knob("reward_kl_estimator", "choice", "reward", choices=tuple(KL), fold=True, read=kl_in_reward),
    Knob("reward_shift", "number", "reward", fold=True),
    Knob("reward_scale", "number", "reward", fold=True),
    Knob("reward_clip", "number", "reward", 0, fold=True),
    Knob("advantage_clip", "number", "reward", 0, fold=True),
    Knob("advantage_alone", "choice", "reward", choices=ALONE, fold=True),
    Knob("ratio", "choice", "loss", choices=tuple(RATIO)),
    Knob("surrogate", "choice", "loss", choices=tuple(SURROGATE)),
    Knob("clip_low", "slider", "loss", 0, 1, 0.01, read=CLIPS),
    Knob("clip_high", "slider", "loss", 0, 2, 0.01, read=CLIPS),
    Knob("dual_clip", "number", "loss", 1, read=CAPS),
    Knob("sapo_temperatures", "numbers", "loss", read=surrogate("sapo")),
    Knob("vespo_shape", "numbers", "loss", read=surrogate("vespo")),
    Knob("quadratic_coef", "number", "loss", 0, 100, read=surrogate("quadratic")),
    Knob("cov_fraction", "number", "loss", 0, 1, read=surrogate("clip-cov", "kl-cov")),
    Knob("cov_bounds", "numbers", "loss", read=surrogate("clip-cov")),
    Knob("cov_coef", "number", "loss", 0, 1000, read=surrogate("kl-cov")),
    Knob("cov_seed", "number", "loss", 0, None, 1, read=surrogate("clip-cov")),
    Knob("beta", "slider", "loss", 0, 1, 0.01),
    Knob("kl_estimator", "choice", "loss", choices=tuple(KL)),
    Knob("kl_gradient", "choice", "loss", choices=tuple(KL_GRADIENT), read=kl_in_loss),
    Knob("aggregation", "choice", "loss", choices=tuple(AGGREGATION)),
    Knob("entropy_coef", "slider", "loss", -0.1, 0.1, 0.005),
    Knob("ratio_against", "choice", "loss", choices=OLD_OR_SAMPLER, fold=True),
    Knob("log_ratio_bound", "number", "loss", 0, 80, fold=True),
    Knob("correction", "choice", "loss", choices=tuple(CORRECTION), fold=True),
    Knob("correction_bound", "choice", "loss", choices=tuple(BOUND), fold=True, read=corrected),
    Knob("correction_low", "number", "loss", 0, fold=True, read=corrected),
    Knob("correction_high", "number", "loss", 0, fold=True, read=corrected),
    Knob("gates", "names", "loss", choices=tuple(GATE), fold=True),
    Knob("off_policy_threshold", "number", "loss", 0, 100, fold=True, read=gate("on-policy-rows", "sampler-rows")),
    Knob("entropy_quantile", "slider", "loss", 0, 1, 0.05, fold=True, read=gate("top-entropy")),
    Knob("mask_truncated", "switch", "loss", fold=True),
    Knob("kl_against", "choice", "loss", choices=REF_OR_SAMPLER, fold=True),
    Knob("kl_input_bound", "number", "loss", 0, 80, fold=True),
    Knob("kl_output_bound", "number", "loss", 0, fold=True),
    Knob("kl_aggregation", "choice", "loss", choices=OR_SAME, fold=True, read=kl_in_loss),
    Knob("entropy_aggregation", "choice", "loss", choices=OR_SAME, fold=True, read=entropy_counts),
    Knob("count_empty_rows", "switch", "loss", fold=True),
    Knob("count_padding", "switch", "loss", fold=True),
    Knob("updates", "slider", "update", 1, 8, 1),
    Knob("learning_rate", "number", "update", 0, 10),
    Knob("optimizer", "choice", "update", choices=OPTIMIZERS),
    Knob("max_grad_norm", "number", "update", 0),
    Knob("layout", "choice", "update", choices=LAYOUTS),
)


def unread(recipe: Recipe) -> list[str]:
    """The settings that nothing reads under this recipe; of a batch file, all that belongs to the file."""
    fixed = FIXED if is_batch(recipe.model) else ()
    return [knob.field for knob in KNOBS if knob.field in fixed or not knob.read(recipe)]


def unread_sections(recipe: Recipe) -> list[str]:
    """The sections of the form in which no control is left."""
    gone = unread(recipe)
    return [
        name for name in dict.fromkeys(k.section for k in KNOBS) if all(k.field in gone for k in KNOBS if k.section == name)
    ]
