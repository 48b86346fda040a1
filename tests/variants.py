"""Settings of the loss that between them use every row of every table: one factor at a time, and the pairs that interact."""

import itertools

from grpo_core.aggregation import AGGREGATION
from grpo_core.correction import BOUND, CORRECTION, GATE
from grpo_core.kl import KL, KL_GRADIENT
from grpo_core.loss import RATIO
from grpo_core.surrogate import SURROGATE

BOUNDED = {"correction_low": 0.5, "correction_high": 2.0}
VARIANTS = [
    *({"surrogate": surrogate, "ratio": ratio} for surrogate, ratio in itertools.product(SURROGATE, RATIO)),
    *({"aggregation": name, "count_empty_rows": empty} for name in AGGREGATION for empty in (True, False)),
    *({"kl_aggregation": name, "entropy_aggregation": name} for name in AGGREGATION),
    *({"kl_estimator": name, "kl_gradient": gradient} for name, gradient in itertools.product(KL, KL_GRADIENT)),
    *({"correction": name, "correction_bound": b, **BOUNDED} for name, b in itertools.product(CORRECTION, BOUND)),
    *({"gates": (name,)} for name in GATE),
    {"gates": tuple(GATE), "correction": "sequence"},
    {"ratio_against": "sampler", "kl_against": "sampler", "ratio": "sequence"},
    {"kl_output_bound": 0.1, "kl_input_bound": 0.5, "log_ratio_bound": 0.5},
]


def label(settings: dict) -> str:
    return "-".join(str(value) for value in settings.values())
