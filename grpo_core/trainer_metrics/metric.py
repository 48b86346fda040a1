"""What a logged number is: its name, how the trainer computes it, and the number that says what its name promises."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from ..convention import Convention
from .seen import Seen


def always(convention: Convention) -> bool:
    return True


@dataclass(frozen=True)
class Metric:
    """One number that a trainer logs."""

    name: str  # exactly as logged
    value: Callable[[Seen], float]  # raises Lacking where the batch does not have what it needs
    honest: str  # the row of HONEST beside it
    note: str = ""  # what it counts and why that may mislead; empty where it is the honest number
    applies: Callable[[Convention], bool] = always  # whether the trainer logs it under this convention


class Logged(NamedTuple):
    """A metric of one batch."""

    name: str
    value: float
    honest_name: str
    honest_value: float | None  # None where the batch lacks what it needs
    note: str


# ---- conditions that several trainers share --------------------------------------------------------------------------
def with_kl(convention: Convention) -> bool:
    """The KL is in the loss."""
    return convention.beta != 0


def with_entropy_bonus(convention: Convention) -> bool:
    return convention.entropy_coef != 0


def corrected(convention: Convention) -> bool:
    """The loss is weighted against the sampler."""
    return convention.correction != "none"


def token_corrected(convention: Convention) -> bool:
    return convention.correction == "token"


def surrogate_in(*names: str) -> Callable[[Convention], bool]:
    """The policy loss is one of these."""
    return lambda convention: convention.surrogate in names


# ---- numbers that several trainers log -------------------------------------------------------------------------------
def loss(seen: Seen) -> float:
    return float(seen.terms.loss)


def policy_loss(seen: Seen) -> float:
    return float(seen.terms.policy_loss)


def kl_loss(seen: Seen) -> float:
    """The KL as it stands in the loss, before the coefficient."""
    seen.given(f"{seen.convention.kl_against}_logprobs")
    return float(seen.terms.kl_loss)


def entropy_mean(seen: Seen) -> float:
    return seen.mean(seen.entropy)


def clipped_branch_mean(seen: Seen) -> float:
    return seen.mean(seen.clipped_branch)


def kl_mean(seen: Seen) -> float:
    """Mean over trained tokens of the KL as it stands in the loss."""
    seen.given(f"{seen.convention.kl_against}_logprobs")
    return seen.mean(seen.terms.kl)
