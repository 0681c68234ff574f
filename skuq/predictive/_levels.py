"""Check probability levels of quantiles and intervals."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike


def check_levels(probability: ArrayLike) -> np.ndarray:
    """Check one level or several (q,), which must lie strictly between 0 and 1."""
    levels = np.asarray(probability, dtype=float)
    if levels.ndim > 1 or not ((levels > 0) & (levels < 1)).all():
        raise ValueError(f"Probabilities must lie strictly in (0, 1). Got {probability!r}.")
    return levels


def interval_levels(coverage: ArrayLike) -> np.ndarray:
    """Compute lower and upper levels of central intervals with coverages in (0, 1).

    Return shape (2,) for a number, (k, 2) for coverages (k,).
    """
    given = np.asarray(coverage, dtype=float)
    upper = (1 + given) / 2  # rounds to 1 for the coverage nearest to 1
    if given.ndim > 1 or not given.size or not ((given > 0) & (upper < 1)).all():
        raise ValueError(f"`coverage` must lie strictly in (0, 1). Got {coverage!r}.")
    levels = np.stack([(1 - given) / 2, upper], axis=-1)
    # 1 - 0.9 is less than 0.1 in float64: without rounding the end would be another one than the
    # quantile at 0.05 where a distribution function has a step there.
    is_near_end = np.minimum(levels, 1 - levels) < 1e-12
    return np.where(is_near_end, levels, np.round(levels, 15))
