"""Base class of continuous distributions: standard deviations, quantiles and intervals.

Notation: n rows, m outputs (the last axis is absent where y was 1-D).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from skuq._checks import as_floats
from skuq.predictive._levels import check_levels, interval_levels


class Continuous:
    """Continuous distribution for every row.

    A subclass defines `aleatoric_variance`, `epistemic_variance`, `inverse_cdf` and `_shape`.
    """

    @property
    def _shape(self) -> tuple[int, ...]:
        """Shape of y: (n,) or (n, m)."""
        raise NotImplementedError

    @property
    def aleatoric_variance(self) -> np.ndarray:
        """Variance of the noise, in squared units of y."""
        raise NotImplementedError

    @property
    def epistemic_variance(self) -> np.ndarray:
        """Variance in excess of the noise's, in squared units of y."""
        raise NotImplementedError

    @property
    def variance(self) -> np.ndarray:
        """Sum of aleatoric and epistemic variance, in squared units of y."""
        return self.aleatoric_variance + self.epistemic_variance

    @property
    def std(self) -> np.ndarray:
        """Square root of the variance, in units of y."""
        return np.sqrt(self.variance)

    def inverse_cdf(self, levels: np.ndarray) -> np.ndarray:
        """Invert the cdf of each row and output, at common or at individual levels.

        Parameters
        ----------
        levels : ndarray that broadcasts to (q, n[, m])
            Levels strictly between 0 and 1.

        Returns
        -------
        ndarray of shape (q, n[, m])
        """
        raise NotImplementedError

    def quantile(self, probability: ArrayLike) -> np.ndarray:
        """Compute quantiles.

        Parameters
        ----------
        probability : float or array-like of shape (q,)
            Levels strictly between 0 and 1.

        Returns
        -------
        ndarray of shape (n[, m]) for a number, (n, q[, m]) for an array.

        Raises
        ------
        ValueError
            If a probability is outside (0, 1).
        """
        p = check_levels(probability)
        found = self.inverse_cdf(p.reshape(-1, *[1] * len(self._shape)))  # (q, n[, m])
        order = np.argsort(p.ravel(), kind="stable")
        # Make quantiles exactly monotone: a root finder's tolerance can cross them by 1e-16.
        found[order] = np.maximum.accumulate(found[order], axis=0)
        return found[0] if p.ndim == 0 else np.moveaxis(found, 0, 1)

    def interval(self, coverage: ArrayLike = 0.9) -> np.ndarray:
        """Compute the central interval, with equal probability on either side.

        Parameters
        ----------
        coverage : float or array-like of shape (k,), default=0.9
            Probability of the interval, or of each of k intervals, in (0, 1).

        Returns
        -------
        ndarray of shape (n, 2[, m]), or (n, k, 2[, m]) for several coverages
        """
        levels = interval_levels(coverage)
        found = self.quantile(levels.ravel())
        return found.reshape(len(found), *levels.shape, *found.shape[2:])

    def _check_y(self, y: ArrayLike) -> np.ndarray:
        """Convert targets to an array, and check their shape."""
        y = as_floats(y)
        if y.shape != self._shape:
            raise ValueError(f"y must have shape {self._shape}. Got {y.shape}.")
        return y
