"""How a single figure is written: significant digits, the unit of its metric, a dash for unknown."""

import math


def number(value: float | None, digits: int = 3) -> str:
    """A number with that many significant digits; a dash for unknown."""
    if value is None:
        return "-"
    if not math.isfinite(value):
        return str(value)
    if value == 0:
        return "0"
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    return f"{value:,.{decimals}f}"


def quantity(metric: str, value: float | None) -> str:
    """A metric's value in the unit that tables show: joules for `_mj`, the metric's own otherwise."""
    if value is not None and metric.endswith("_mj"):
        value /= 1_000
    return number(value)
