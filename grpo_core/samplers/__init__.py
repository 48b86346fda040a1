"""Where a run's completions come from: one row of `SAMPLERS` for each value of the setting `sampler`.

A sampler only takes the place of `rollout.generate`; `rollout.sample` makes the rollout of whatever it draws.
"""

from .continuous_batching import ContinuousBatching
from .sampler import Sampler
from .vllm import Vllm

SAMPLERS: dict[str, type[Sampler]] = {"own": Sampler, "continuous_batching": ContinuousBatching, "vllm": Vllm}
