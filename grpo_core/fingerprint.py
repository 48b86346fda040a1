"""My trainer printed this loss: which preset and which aggregation give it on this batch."""

from collections.abc import Iterable
from dataclasses import dataclass

from .aggregation import AGGREGATION
from .compare import evaluate, reaggregated
from .inputs import LossInputs, missing
from .presets import PRESETS

PARTS = ("loss", "policy_loss")


@dataclass(frozen=True, kw_only=True)
class Match:
    """One way to get a number near the one that was printed."""

    preset: str
    aggregation: str  # the preset's own, or the one that it was exchanged for
    own_aggregation: bool
    part: str  # loss, or policy_loss: the loss without KL and entropy
    value: float
    gap: float  # value - printed
    exact: bool  # equal as far as the printed digits go


def decimals_of(text: str) -> int:
    """How many decimals a number was printed with: "0.447" -> 3, "1.2e-05" -> 6. Raises ValueError for what is no number."""
    float(text)
    mantissa, _, exponent = text.strip().lower().partition("e")
    return max(len(mantissa.partition(".")[2]) - int(exponent or 0), 0)


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A number that a trainer might have printed for this batch."""

    preset: str
    aggregation: str
    part: str
    value: float
    size: float  # what the summands add up to in size: float32 sums lose about a millionth of it


def fingerprint(inputs: LossInputs, printed: float, decimals: int = 6) -> tuple[Match, ...]:
    """Every computable preset under its own and every other aggregation, nearest first; what is exact comes before all.

    `exact` allows half a unit in the last of `decimals` printed digits, and what float32 sums lose.
    """
    return matches(candidates(inputs), printed, decimals)


def matches(made: Iterable[Candidate], printed: float, decimals: int = 6) -> tuple[Match, ...]:
    """The same from candidates made once."""
    found = []
    for one in made:
        gap = one.value - printed
        exact = abs(gap) <= 0.5 * 10.0**-decimals + 1e-6 * one.size
        own = one.aggregation == PRESETS[one.preset].convention().aggregation
        found.append(
            Match(
                preset=one.preset, aggregation=one.aggregation, own_aggregation=own, part=one.part, value=one.value,
                gap=gap, exact=exact,
            )
        )  # fmt: skip
    # Beyond the printed digits no gap says anything: there a preset as it stands comes before one that was changed.
    return tuple(sorted(found, key=_rank))


def _rank(match: Match) -> tuple:
    plainness = (not match.own_aggregation, match.part != "loss")
    return (not match.exact, *(plainness if match.exact else ()), abs(match.gap), *plainness, match.preset)


def candidates(inputs: LossInputs) -> tuple[Candidate, ...]:
    """Every computable preset's loss, and its policy part where that is another number, under every aggregation."""
    made = []
    for name, row in PRESETS.items():
        convention = row.convention()
        if missing(inputs, convention):
            continue
        got = evaluate(inputs, convention)
        size = float(got.contributions().abs().sum())
        for aggregation in AGGREGATION:
            values = dict(zip(PARTS, reaggregated(inputs, got, aggregation), strict=True))
            for part in PARTS if got.kl_part or got.entropy_part else PARTS[:1]:
                made.append(Candidate(preset=name, aggregation=aggregation, part=part, value=values[part], size=size))
    return tuple(made)
