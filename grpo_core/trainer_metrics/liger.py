"""What Liger-Kernel 0.8.5 returns beside its loss (liger_kernel/chunked_loss/grpo_loss.py): unnamed, in this order. The names
are those of the variables there."""

from .metric import Metric, kl_mean, with_kl
from .seen import Seen


def clip_fraction(seen: Seen) -> float:
    """The ratio before `delta`, by the sign of A; tokens are counted at sequence level too."""
    ratio, advantages, convention = seen.of_ratio("ratio"), seen.advantages, seen.convention
    too_high = (ratio > 1 + convention.clip_high) & (advantages > 0)
    too_low = (ratio < 1 - convention.clip_low) & (advantages < 0)
    return 0.0 if convention.surrogate in ("sapo", "vespo") else seen.mean(too_low | too_high)


LIGER = (
    Metric("kl_mean", kl_mean, "kl_ref", "Multiplied by the ratio with use_bias_correction_kl; off by default.", with_kl),
    Metric("clip_fraction", clip_fraction, "clip_fraction", "What `delta` cuts off is not in it. With cispo it counts tokens "
           "that keep their gradient."),
)  # fmt: skip
