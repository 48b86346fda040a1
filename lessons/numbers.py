"""How a number of a tensor is written: four significant digits, a real minus sign, never more than it holds."""

import math

MINUS = "\u2212"


def shown(value: float | int | bool) -> str:
    """The text of one number. Booleans are 0 and 1, whole numbers stay whole, tiny ones take an exponent."""
    if isinstance(value, bool):
        return str(int(value))
    if isinstance(value, int):
        return str(value).replace("-", MINUS)
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "\u221e" if value > 0 else MINUS + "\u221e"
    if value == 0:
        return "0"
    size = abs(value)
    if size < 1e-4 or size >= 1e6:
        mantissa, exponent = f"{value:.2e}".split("e")
        text = f"{mantissa}e{int(exponent)}"
    else:
        digits = max(0, 3 - math.floor(math.log10(size)))
        text = f"{value:.{digits}f}"
        if "." in text:
            text = text.rstrip("0").rstrip(".")
    return text.replace("-", MINUS)


def sign(value: float) -> int:
    return (value > 0) - (value < 0)


def signed(value: float) -> str:
    """A number to set beside others of its kind: its sign, and six decimals where they hold it."""
    if not math.isfinite(value) or value == 0:
        return shown(value)
    text = f"{value:+.6f}"
    if not 1e-4 <= abs(value) < 1e6:
        mantissa, exponent = f"{value:+.2e}".split("e")
        text = f"{mantissa}e{int(exponent)}"
    return text.replace("-", MINUS)
