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


def interval_levels(coverage: float) -> list[float]:
    """Compute lower and upper level of the central interval with a coverage in (0, 1)."""
    if not 0 < coverage < 1:
        raise ValueError(f"`coverage` must lie strictly in (0, 1). Got {coverage}.")
    return [(1 - coverage) / 2, (1 + coverage) / 2]
