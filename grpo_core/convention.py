"""What trainers differ in: every setting between rewards and loss, as hashable primitives.

A `Convention` names one row of each of the core's tables and the constants that these rows read. A preset is a convention
with a name; a `Recipe` is a convention with prompts, a model and an optimizer. 0 switches a bound off wherever it says so.
"""

from dataclasses import dataclass, fields
from typing import Any


@dataclass(frozen=True, kw_only=True)
class AdvantageConfig:
    """Rewards -> advantages. Defaults: GRPO as in TRL, (r - group mean) / (unbiased group std + 1e-4)."""

    reward_shift: float = 0.0  # the reward becomes (r + shift) · scale, then clipped to ±clip
    reward_scale: float = 1.0
    reward_clip: float = 0.0  # 0 = off
    reward_kl: str = "none"  # KL to the reference in the reward: none, before or after the normalisation
    reward_kl_coef: float = 0.0
    reward_kl_estimator: str = "k1"
    advantage_mean: str = "group"
    advantage_std: str = "unbiased"
    advantage_eps: float = 1e-4
    advantage_alone: str = "zero"  # a group of one gets 0, or its reward as it is
    advantage_whiten: str = "none"  # over all trained tokens, after everything above
    advantage_clip: float = 0.0  # 0 = off


@dataclass(frozen=True, kw_only=True)
class LossConfig:
    """Settings of the loss. Defaults: GRPO as in DeepSeekMath (arXiv 2402.03300), eq. 3."""

    # ---- the ratio ----
    ratio: str = "token"
    ratio_against: str = "old"  # old, or sampler: the policy in the denominator
    log_ratio_bound: float = 80.0  # the log-ratio is clamped to ±this before exp; exp(88.7) overflows float32
    # ---- what is maximised ----
    surrogate: str = "min-clip"
    clip_low: float = 0.2  # the ratio is clipped to 1 - clip_low … 1 + clip_high
    clip_high: float = 0.2
    dual_clip: float = 3.0  # the ceiling of dual-clip, two-sided and the dppo rows
    sapo_temperatures: tuple[float, ...] = (1.0, 1.05)  # for A > 0, and for the others
    vespo_shape: tuple[float, ...] = (2.0, 3.0, 3.0, 2.0)  # k and lambda for A >= 0, k and lambda for the others
    quadratic_coef: float = 0.1  # of the squared log-ratio in the surrogate `quadratic`
    cov_fraction: float = 2e-4  # of the tokens, at least one: clip-cov and kl-cov
    cov_bounds: tuple[float, ...] = (1.0, 5.0)  # clip-cov draws among tokens with a covariance between these
    cov_coef: float = 0.1  # kl-cov
    cov_seed: int = 0  # clip-cov draws at random
    # ---- against the sampler, and tokens left out ----
    correction: str = "none"
    correction_bound: str = "truncate"
    correction_low: float = 0.0
    correction_high: float = 0.0  # 0 = no upper bound
    gates: tuple[str, ...] = ()
    off_policy_threshold: float = 0.1
    entropy_quantile: float = 0.2  # the share of tokens, by falling entropy, that `top-entropy` keeps
    mask_truncated: bool = False  # rows that were cut off are not trained
    # ---- KL ----
    beta: float = 0.04
    kl_estimator: str = "k3"
    kl_against: str = "ref"  # ref, or sampler
    kl_gradient: str = "plain"
    kl_input_bound: float = 80.0  # the log-ratio to the reference is clamped to ±this
    kl_output_bound: float = 0.0  # the estimate is clamped to ±this; 0 = off
    kl_aggregation: str = "same"
    # ---- entropy ----
    entropy_coef: float = 0.0
    entropy_aggregation: str = "same"
    # ---- from tokens to one number ----
    aggregation: str = "seq-mean-token-mean"
    count_empty_rows: bool = True  # a row without a trained token counts as a row in the denominator
    count_padding: bool = False  # padding slots are summed as well, with ratio 1
    max_completion_length: int = 16  # the constant of the aggregation `dr_grpo`


@dataclass(frozen=True, kw_only=True)
class Convention(AdvantageConfig, LossConfig):
    """Everything between rewards and loss."""


def part(kind: type, settings: Any) -> Any:
    """The fields of `kind` out of any object that has them: `part(LossConfig, recipe)`."""
    return kind(**{f.name: getattr(settings, f.name) for f in fields(kind)})


def tuples(value: Any) -> Any:
    """Lists, as TOML and JSON have them, as the tuples that settings are."""
    return tuple(map(tuples, value)) if isinstance(value, list) else value
