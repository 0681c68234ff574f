"""Standardising inputs and targets, and the way back."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from sklearn.preprocessing import StandardScaler

from skuq._registry import saved_as

__all__ = [
    "FARTHEST",
    "ImageScaling",
    "NoScaling",
    "RobustScaling",
    "Scaling",
    "hard_clip",
    "smooth_clip",
]

# Networks extrapolate with powers of their input; farther out than this, and outputs
# would leave the range of float64.
FARTHEST = 1e6


def hard_clip(xp, z):
    """Standardised values within a million standard deviations, on arrays or tensors."""
    return xp.clip(z, -FARTHEST, FARTHEST)


def smooth_clip(xp, z):
    """Standardised values within 3 of zero: z / sqrt(1 + (z / 3)**2)."""
    z = hard_clip(xp, z)  # squares stay finite
    return z / xp.sqrt(1 + (z / 3) ** 2)


@saved_as("tables.Scaling")
class Scaling:
    """Zero mean and unit variance for every column of X and of y.

    Constant columns are only centred, so they survive; a constant y too.

    Parameters
    ----------
    passthrough : sequence of int, default=()
        Columns of X that stay as they are: codes for an embedding.
    target_transform : object of `skuq.tables`' target transforms, optional
        In place of y's mean and scale; fitted with the scaling.

    Attributes
    ----------
    x_, y_ : sklearn.preprocessing.StandardScaler
        `y_` only where targets are numbers without a transform of their own.
    target_transform : object or None
        Fitted.
    """

    #: What keeps standardised inputs within bounds; ``clip(xp, z)``.
    clip = staticmethod(hard_clip)

    def __init__(self, passthrough=(), target_transform=None):
        self.passthrough = list(passthrough)
        self.target_transform = target_transform

    def fit(self, X, y, sample_weight=None):
        """X (n, d), y (n, m) or None, finite; weights (n,) or None."""
        columns, weight = self._columns(X, sample_weight)
        self.x_ = self._fit_inputs(columns, weight)
        for name, value in (("mean_", 0.0), ("scale_", 1.0)):
            getattr(self.x_, name)[self.passthrough] = value
        if y is not None and self.target_transform is not None:
            self.target_transform.fit(y, sample_weight)
        elif y is not None:
            self.y_ = _standard(y, sample_weight)
        return self

    def _columns(self, X, weight):
        """What shares a mean and a scale, as columns; and the weight of each row of these."""
        return X, weight

    def _fit_inputs(self, columns, weight):
        return _standard(columns, weight)

    def inputs(self, X) -> np.ndarray:
        """Standardised X, clipped at a million standard deviations."""
        # Past the door X is trusted: scikit-learn's own transform would check it again,
        # which costs more than a small network does for one row.
        inputs = X - self.x_.mean_
        inputs /= self.x_.scale_  # in place: X may be most of the memory there is
        np.clip(inputs, -FARTHEST, FARTHEST, out=inputs)
        if self.passthrough:
            inputs[:, self.passthrough] = np.asarray(X)[:, self.passthrough]
        return inputs

    def on_tensors(self, X, xp):
        """What `inputs` gives, of tensors and with their operations."""
        z = type(self).clip(xp, (X - self.x_.mean_) / self.x_.scale_)
        if not self.passthrough:
            return z
        return xp.where(np.isin(np.arange(len(self.x_.mean_)), self.passthrough), X, z)

    def targets(self, y) -> np.ndarray:
        """Standardised y, (n, m)."""
        if self.target_transform is not None:
            return self.target_transform.forward(y)
        return self.y_.transform(y)

    def restore(self, loc, scale):
        """Means and standard deviations (.., m) in units of y; not with a target transform."""
        return loc * self.y_.scale_ + self.y_.mean_, scale * self.y_.scale_


@saved_as("tables.RobustScaling")
class RobustScaling(Scaling):
    """Zero median and unit interquartile range for columns of X, smoothly bounded by 3.

    Where a column's quartiles coincide, half the median distance of its other values from the
    median is in their place: of two values half the range, as in the paper. A constant column
    is 0, whatever it is later. One outlier among several values, however far, moves nothing
    else. y as in `Scaling`; weights count for y only.

    References
    ----------
    D. Holzmüller, L. Grinsztajn, I. Steinwart. "Better by Default: Strong Pre-Tuned MLPs and
    Boosted Trees on Tabular Data", NeurIPS 2024.
    """

    clip = staticmethod(smooth_clip)

    def _fit_inputs(self, columns, weight):
        first, median, third = np.quantile(columns, [0.25, 0.5, 0.75], axis=0)
        with np.errstate(over="ignore"):
            scale = third - first
        for k in np.flatnonzero(scale == 0):
            others = columns[columns[:, k] != median[k], k]
            # Halved first: the distance of two numbers may overflow.
            scale[k] = np.median(abs(others / 2 - median[k] / 2)) if len(others) else 0.0
        if not np.isfinite(scale).all():
            raise ValueError(_TOO_LARGE)
        # By infinity, so that a column constant in training says nothing afterwards either.
        return _Affine(median, np.where(scale > 0, scale, np.inf))

    def inputs(self, X) -> np.ndarray:
        """Scaled X, within 3 of zero."""
        with np.errstate(over="ignore"):  # clipped
            inputs = smooth_clip(np, super().inputs(X))
        if self.passthrough:
            inputs[:, self.passthrough] = np.asarray(X)[:, self.passthrough]
        return inputs


@saved_as("tables.ImageScaling")
class ImageScaling(Scaling):
    """Zero mean and unit variance for every channel of images, over all pixels.

    A column of its own for every pixel would blow up those that are nearly always black.

    Parameters
    ----------
    shape : tuple of int
        (height, width, channels) of the images, which come as flat rows.
    target_transform : object, optional
        As in `Scaling`.
    """

    def __init__(self, shape, target_transform=None):
        super().__init__((), target_transform)
        self.shape = tuple(shape)

    def _columns(self, X, weight):
        pixels = X.reshape(-1, self.shape[-1])
        return pixels, None if weight is None else np.repeat(weight, len(pixels) // len(X))

    def inputs(self, X) -> np.ndarray:
        """Standardised images (n, height, width, channels)."""
        return super().inputs(X.reshape(len(X), *self.shape))


@saved_as("tables.NoScaling")
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


@saved_as("tables.Scaling.Affine")
@dataclass
class _Affine:
    """``(x - mean_) / scale_``, under the names that scikit-learn's scalers have for them."""

    mean_: np.ndarray
    scale_: np.ndarray


_TOO_LARGE = (
    "X or y has values so large that their variance overflows float64. "
    "Rescale them, or drop the outliers."
)


def _standard(values, weight):
    """A fitted `StandardScaler`.

    Raises
    ------
    ValueError
        If the variance overflows.
    """
    with np.errstate(over="ignore"):  # seen below, and said in words
        scaler = StandardScaler().fit(values, sample_weight=weight)
    # A constant's mean is itself, without the rounding of a sum of large numbers.
    constant = np.ptp(values, axis=0) == 0
    scaler.mean_ = np.where(constant, values[0], scaler.mean_)
    if not (np.isfinite(scaler.mean_).all() and np.isfinite(scaler.var_).all()):
        raise ValueError(_TOO_LARGE)
    return scaler
