"""The numbers that each trainer logs for a loss, under its names and with its oddities, each beside the number that says what
the name promises: `trainer_metrics(evaluation, inputs, preset)`.

As one process with one micro-batch logs them. Where nothing is trained and a trainer would log NaN or fail, the number is 0.
"""

from collections.abc import Callable

from ..compare import Evaluation
from ..inputs import LossInputs
from ..presets import Preset
from .honest import HONEST
from .liger import LIGER
from .metric import Logged, Metric
from .openrlhf import OPENRLHF
from .others import AREAL, NEMO, PRIME, SKYRL, SLIME, TINKER
from .roll import ROLL, SEED
from .seen import Lacking, Seen
from .trl import EARLY, TRL
from .verl import VERL

__all__ = ["HONEST", "METRICS", "Logged", "Metric", "metrics_of", "trainer_metrics"]

# By a preset's trainer; by trainer and version where an earlier version logged other numbers.
METRICS: dict[str, tuple[Metric, ...]] = {
    "TRL": TRL, "TRL 2025-02": EARLY, "verl": VERL, "ROLL": ROLL, "ROLL 2025": SEED, "OpenRLHF": OPENRLHF,
    "Liger-Kernel": LIGER, "slime": SLIME, "AReaL": AREAL, "NeMo-RL": NEMO, "prime-rl": PRIME, "SkyRL": SKYRL,
    "tinker-cookbook": TINKER,
}  # fmt: skip


def metrics_of(preset: Preset) -> tuple[Metric, ...]:
    """What the preset's trainer logs under its convention; none for a paper."""
    convention = preset.convention()
    rows = METRICS.get(f"{preset.trainer} {preset.version}", METRICS.get(preset.trainer, ()))
    return tuple(row for row in rows if row.applies(convention))


def trainer_metrics(evaluation: Evaluation, inputs: LossInputs, preset: Preset) -> tuple[Logged, ...]:
    """One evaluated batch's numbers; those that need what the batch does not have are left out."""
    seen = Seen(evaluation, inputs)
    logged = []
    for row in metrics_of(preset):
        value = _value(row.value, seen)
        if value is not None:
            logged.append(Logged(row.name, value, row.honest, _value(HONEST[row.honest], seen), row.note))
    return tuple(logged)


def _value(function: Callable[[Seen], float], seen: Seen) -> float | None:
    try:
        return function(seen)
    except Lacking:
        return None
