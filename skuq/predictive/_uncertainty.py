"""A prediction's standard deviation, by source."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

__all__ = ["Uncertainty"]


class Uncertainty(NamedTuple):
    """Mean and standard deviations, each (n_samples,) or (n_samples, n_outputs).

    All are in units of y; ``total**2 == aleatoric**2 + epistemic**2``.
    """

    mean: np.ndarray
    aleatoric: np.ndarray
    epistemic: np.ndarray
    total: np.ndarray
