"""Formulas and constants that heads, scores, predictive distributions and searches share."""

import math
from typing import Any

import numpy as np
from scipy import special

#: Minus the log density of a standard normal at 0.
LOG_SQRT_2PI = 0.5 * math.log(2 * math.pi)

#: Quartiles and median, as levels of quantiles.
QUARTILES = (0.25, 0.5, 0.75)

#: Added under roots, or the least number under them: the slope of a root at 0 is infinite. It is a
#: normal number in float32.
UNDER_ROOT = 1e-30

#: In place of 0 in denominators and logarithms: far below all numbers that count.
TINIEST = 1e-300

#: Squares of larger numbers, and their sums over many rows, would overflow float64.
SQUARABLE = 1e150

_SQRT_HALF, _SQRT_2_OVER_PI = math.sqrt(0.5), math.sqrt(2 / math.pi)


@np.errstate(under="ignore")
def mean_distance(mean: Any, std: Any, xp: Any = np) -> Any:
    """Compute E|X| of normals X with these means and standard deviations, arrays or tensors."""
    z, erf = mean / std, special.erf if xp is np else xp.erf
    return std * (z * erf(_SQRT_HALF * z) + _SQRT_2_OVER_PI * xp.exp(-0.5 * xp.square(z)))


def crps_normal(error: Any, std: Any, xp: Any = np) -> Any:
    """Compute the CRPS of normals from errors of the mean, arrays or tensors."""
    # E|X - y| - E|X - X'| / 2, where E|X - X'| = 2 std / sqrt(pi).
    return mean_distance(error, std, xp) - std / math.sqrt(math.pi)
