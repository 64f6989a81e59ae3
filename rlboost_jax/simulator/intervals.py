"""Means over seeds with 95 % confidence intervals."""

import math
from collections.abc import Sequence
from typing import Final

# Two-sided 95 % quantiles of Student's t with 1, 2, … degrees of freedom.
_T: Final = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
    2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086,
    2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip
NORMAL: Final = 1.96  # with more

Number = float | None  # None: there is none, whatever the reason


def mean(values: Sequence[Number]) -> Number:
    """Mean of the values; None where any is None or not finite."""
    numbers = [value for value in values if value is not None and math.isfinite(value)]
    if not numbers or len(numbers) < len(values):
        return None
    return math.fsum(numbers) / len(numbers)


def half_width(values: Sequence[Number]) -> Number:
    """Half width of the mean's 95 % interval, by Student's law; None for fewer than two values."""
    middle = mean(values)
    if middle is None or len(values) < 2:
        return None
    squares = math.fsum((value - middle) ** 2 for value in values if value is not None)
    degrees = len(values) - 1
    quantile = _T[degrees - 1] if degrees <= len(_T) else NORMAL
    return quantile * math.sqrt(squares / degrees / len(values))


def with_interval(name: str, values: Sequence[Number]) -> dict[str, Number]:
    """Return the mean as `name`, and its interval's half width as `name_half_width`."""
    return {name: mean(values), f"{name}_half_width": half_width(values)}
