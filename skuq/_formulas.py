"""Formulas that heads, scores and predictive distributions share."""

from __future__ import annotations

import math

import numpy as np
from scipy import special

#: Minus the log density of a standard normal at 0.
LOG_SQRT_2PI = 0.5 * math.log(2 * math.pi)

_SQRT_HALF, _SQRT_2_OVER_PI = math.sqrt(0.5), math.sqrt(2 / math.pi)


def mean_distance(mean, std, xp=np):
    """Compute E|X| of normals X with these means and standard deviations, arrays or tensors."""
    z, erf = mean / std, special.erf if xp is np else xp.erf
    return std * (z * erf(_SQRT_HALF * z) + _SQRT_2_OVER_PI * xp.exp(-0.5 * xp.square(z)))
