"""Standardising inputs and targets, and the way back."""

from __future__ import annotations

import numpy as np
from sklearn.preprocessing import StandardScaler

__all__ = ["FARTHEST", "ImageScaling", "NoScaling", "Scaling"]

# Networks extrapolate with powers of their input; farther out than this, and outputs
# would leave the range of float64.
FARTHEST = 1e6


class Scaling:
    """Zero mean and unit variance for every column of X and of y.

    Constant columns are only centred, so they survive; a constant y too.

    Attributes
    ----------
    x_, y_ : sklearn.preprocessing.StandardScaler
        `y_` only where targets are numbers.
    """

    def fit(self, X, y, sample_weight=None):
        """X (n, d), y (n, m) or None, finite; weights (n,) or None."""
        columns, weight = self._columns(X, sample_weight)
        with np.errstate(over="ignore"):  # seen below, and said in words
            self.x_ = StandardScaler().fit(columns, sample_weight=weight)
            scaled = [(self.x_, columns)]
            if y is not None:
                self.y_ = StandardScaler().fit(y, sample_weight=sample_weight)
                scaled.append((self.y_, y))
        for scaler, values in scaled:
            # A constant's mean is itself, without the rounding of a sum of large numbers.
            constant = np.ptp(values, axis=0) == 0
            scaler.mean_ = np.where(constant, values[0], scaler.mean_)
            if not (np.isfinite(scaler.mean_).all() and np.isfinite(scaler.var_).all()):
                raise ValueError(
                    "X or y has values so large that their variance overflows float64. "
                    "Rescale them, or drop the outliers."
                )
        return self

    def _columns(self, X, weight):
        """What shares a mean and a scale, as columns; and the weight of each row of these."""
        return X, weight

    def inputs(self, X) -> np.ndarray:
        """Standardised X, clipped at a million standard deviations."""
        # Past the door X is trusted: scikit-learn's own transform would check it again,
        # which costs more than a small network does for one row.
        inputs = X - self.x_.mean_
        inputs /= self.x_.scale_  # in place: X may be most of the memory there is
        return np.clip(inputs, -FARTHEST, FARTHEST, out=inputs)

    def targets(self, y) -> np.ndarray:
        """Standardised y, (n, m)."""
        return self.y_.transform(y)

    def restore(self, loc, scale):
        """Means and standard deviations (.., m) in units of y."""
        return loc * self.y_.scale_ + self.y_.mean_, scale * self.y_.scale_


class ImageScaling(Scaling):
    """Zero mean and unit variance for every channel of images, over all pixels.

    A column of its own for every pixel would blow up those that are nearly always black.

    Parameters
    ----------
    shape : tuple of int
        (height, width, channels) of the images, which come as flat rows.
    """

    def __init__(self, shape):
        self.shape = tuple(shape)

    def _columns(self, X, weight):
        pixels = X.reshape(-1, self.shape[-1])
        return pixels, None if weight is None else np.repeat(weight, len(pixels) // len(X))

    def inputs(self, X) -> np.ndarray:
        """Standardised images (n, height, width, channels)."""
        return super().inputs(X.reshape(len(X), *self.shape))


class NoScaling(Scaling):
    """Columns as they are, for data that already have the scale a method asks for."""

    def fit(self, X, y, sample_weight=None):
        """The same scalers, with means of 0 and scales of 1.

        Raises
        ------
        ValueError
            If X is beyond where inputs are clipped.
        """
        super().fit(X, y, sample_weight)
        if abs(X).max() > FARTHEST:
            raise ValueError(
                f"X that is not standardised must lie within {FARTHEST:g} of 0, better within 1. "
                f"Got {X.flat[abs(X).argmax()]:.6g}."
            )
        for scaler in (self.x_, self.y_) if y is not None else (self.x_,):
            scaler.mean_, scaler.scale_ = np.zeros_like(scaler.mean_), np.ones_like(scaler.scale_)
        return self
