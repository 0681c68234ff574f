"""Increasing piecewise linear functions, for maps of levels and of scores.

Notation: q knots, n rows, m outputs (the last axis is absent where y was 1-D).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, eq=False)
class PiecewiseLinear:
    """Strictly increasing function of one output, or one function for each of several outputs.

    Attributes
    ----------
    x, y : ndarray of shape (q,) or (q, m)
        Knots and the values there, both strictly increasing. Beyond the last knots the function is
        constant.
    """

    x: np.ndarray
    y: np.ndarray

    def __call__(self, values: np.ndarray) -> np.ndarray:
        """Compute the function at values (.., n[, m])."""
        if self.x.ndim == 1:
            return np.interp(values, self.x, self.y)
        columns = [
            np.interp(values[..., k], self.x[:, k], self.y[:, k]) for k in range(self.x.shape[1])
        ]
        return np.stack(columns, axis=-1)

    @property
    def inverse(self) -> PiecewiseLinear:
        """The inverse function, between the outermost knots."""
        return PiecewiseLinear(self.y, self.x)

    def slope(self, values: np.ndarray) -> np.ndarray:
        """Compute the derivative at values (n[, m]); the outer pieces extend beyond their knots."""
        x, y = (knots.reshape(len(knots), -1) for knots in (self.x, self.y))
        slopes = np.diff(y, axis=0) / np.diff(x, axis=0)  # (q - 1, 1 or m)
        # Values beyond the knots belong to the first or the last piece.
        columns = [
            slope[np.clip(np.searchsorted(knots, column) - 1, 0, len(slope) - 1)]
            for slope, knots, column in zip(slopes.T, x.T, values.reshape(len(values), -1).T)
        ]
        return np.stack(columns, axis=1).reshape(values.shape)
