"""What every command prints in the same way."""

import math


def plain(number: float | None) -> float | str | None:
    """A number that strict JSON can hold: NaN and the infinities in quotes."""
    if number is None or math.isfinite(number):
        return number
    return {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}[str(number)]
