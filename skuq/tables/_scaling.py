"""Standardising inputs and targets, and the way back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from sklearn.preprocessing import StandardScaler

from skuq._registry import saved_as

# Networks extrapolate with powers of their input; farther out than this, and outputs
# would leave the range of float64.
FARTHEST = 1e6

_TOO_LARGE = (
    "X or y has values so large that their variance overflows float64. "
    "Rescale them, or drop the outliers."
)


def hard_clip(xp: Any, z: Any) -> Any:
    """Clip standardised values at a million standard deviations, on arrays or tensors."""
    return xp.clip(z, -FARTHEST, FARTHEST)


def smooth_clip(xp: Any, z: Any) -> Any:
    """Bound standardised values by 3, smoothly: z / sqrt(1 + (z / 3)**2)."""
    z = hard_clip(xp, z)  # squares stay finite
    return z / xp.sqrt(1 + (z / 3) ** 2)


@saved_as("tables.Scaling")
class Scaling:
    """Zero mean and unit variance for every column of X.

    Constant columns are centred only.

    Parameters
    ----------
    passthrough : sequence of int, default=()
        Columns of X that stay as they are: codes for an embedding.
    limits : pair of ndarray of shape (n_features,), optional
        Smallest and largest value of each column; others are taken for the nearer of them.

    Attributes
    ----------
    mean_, scale_ : ndarray of shape (n_features,)
        A column becomes ``(x - mean_) / scale_``, within a million of zero.
    """

    #: What keeps standardised inputs within bounds; ``clip(xp, z)``.
    clip = staticmethod(hard_clip)

    limits: tuple[np.ndarray, np.ndarray] | None = None  # files of earlier versions have none

    def __init__(
        self,
        passthrough: Sequence[int] = (),
        limits: tuple[np.ndarray, np.ndarray] | None = None,
    ) -> None:
        self.passthrough = list(passthrough)
        self.limits = limits

    def fit(self, X: np.ndarray, sample_weight: np.ndarray | None = None) -> Scaling:
        """Learn from finite rows X (n, d) with positive weights (n,), if any are given."""
        self.mean_, self.scale_ = self._learn(*self._columns(self._limited(X), sample_weight))
        self.mean_[self.passthrough], self.scale_[self.passthrough] = 0.0, 1.0
        return self

    def _limited(self, X: Any, xp: Any = np) -> Any:
        return X if self.limits is None else xp.clip(X, *self.limits)

    def _columns(
        self, X: np.ndarray, weight: np.ndarray | None
    ) -> tuple[np.ndarray, np.ndarray | None]:
        """Columns that share a mean and a scale, and the weight of each of their rows."""
        return X, weight

    def _learn(
        self, columns: np.ndarray, weight: np.ndarray | None
    ) -> tuple[np.ndarray, np.ndarray]:
        return standard(columns, weight)

    def transform(self, X: Any, xp: Any = np) -> Any:
        """Standardise X, an array or a tensor whose operations are `xp`."""
        X = self._limited(X, xp)
        if xp is not np:
            z = self.clip(xp, (X - self.mean_) / self.scale_)
            if not self.passthrough:
                return z
            return xp.where(np.isin(np.arange(len(self.mean_)), self.passthrough), X, z)
        # X has been validated: scikit-learn's own transform would check it again, which costs
        # more than a small network does for one row.
        inputs = X - self.mean_
        inputs /= self.scale_  # in place: X may be most of the memory there is
        np.clip(inputs, -FARTHEST, FARTHEST, out=inputs)
        return self._with_passthrough(inputs, X)

    def _with_passthrough(self, inputs: np.ndarray, X: np.ndarray) -> np.ndarray:
        if self.passthrough:
            inputs[:, self.passthrough] = np.asarray(X)[:, self.passthrough]
        return inputs


@saved_as("tables.RobustScaling")
class RobustScaling(Scaling):
    """Zero median and unit interquartile range for columns of X, smoothly bounded by 3.

    Where a column's quartiles coincide, half the median distance of its other values from the
    median takes their place: of two values half the range, as in the paper. A constant column
    is 0, whatever it is later. One outlier among several values, however far, moves nothing
    else. Sample weights are ignored.

    References
    ----------
    D. Holzmüller, L. Grinsztajn, I. Steinwart. "Better by Default: Strong Pre-Tuned MLPs and
    Boosted Trees on Tabular Data", NeurIPS 2024.
    """

    clip = staticmethod(smooth_clip)

    def _learn(
        self, columns: np.ndarray, weight: np.ndarray | None
    ) -> tuple[np.ndarray, np.ndarray]:
        first, median, third = np.quantile(columns, [0.25, 0.5, 0.75], axis=0)
        with np.errstate(over="ignore"):
            scale = third - first
        for k in np.flatnonzero(scale == 0):
            others = columns[columns[:, k] != median[k], k]
            # Halved first: the distance of two numbers may overflow.
            scale[k] = np.median(abs(others / 2 - median[k] / 2)) if len(others) else 0.0
        if not np.isfinite(scale).all():
            raise ValueError(_TOO_LARGE)
        # By infinity, so that a column constant in training stays 0 afterwards too.
        return median, np.where(scale > 0, scale, np.inf)

    def transform(self, X: Any, xp: Any = np) -> Any:
        """Scale X, an array or a tensor whose operations are `xp`, to within 3 of zero."""
        if xp is not np:
            return super().transform(X, xp)
        with np.errstate(over="ignore"):  # clipped
            inputs = smooth_clip(np, super().transform(X))
        return self._with_passthrough(inputs, X)


@saved_as("tables.ImageScaling")
class ImageScaling(Scaling):
    """Zero mean and unit variance for every channel of images, over all pixels.

    A scale for every pixel would blow up those that are nearly always black.

    Parameters
    ----------
    shape : tuple of int
        (height, width, channels) of the images, which come as flat rows.
    """

    def __init__(self, shape: Sequence[int]) -> None:
        super().__init__()
        self.shape = tuple(shape)

    def _columns(
        self, X: np.ndarray, weight: np.ndarray | None
    ) -> tuple[np.ndarray, np.ndarray | None]:
        pixels = X.reshape(-1, self.shape[-1])
        return pixels, None if weight is None else np.repeat(weight, len(pixels) // len(X))

    def transform(self, X: Any, xp: Any = np) -> Any:
        """Standardise flat rows or images to images (n, height, width, channels)."""
        return super().transform(X if xp is not np else X.reshape(len(X), *self.shape), xp)


@saved_as("tables.NoScaling")
class NoScaling(Scaling):
    """Columns as they are, for data that already have the scale a method asks for."""

    def _learn(
        self, columns: np.ndarray, weight: np.ndarray | None
    ) -> tuple[np.ndarray, np.ndarray]:
        mean, scale = standard(columns, weight)  # raises where values overflow
        if abs(columns).max() > FARTHEST:
            raise ValueError(
                f"X that is not standardised must lie within {FARTHEST:g} of 0, better within 1. "
                f"Got {columns.flat[abs(columns).argmax()]:.6g}."
            )
        return np.zeros_like(mean), np.ones_like(scale)


@saved_as("tables.TargetScaling")
class TargetScaling:
    """Zero mean and unit variance for every output of y, and the way back.

    A constant output is centred only, until `narrow`.

    Parameters
    ----------
    standardize : bool, default=True
        False leaves y as it is.

    Attributes
    ----------
    mean_, scale_ : ndarray of shape (n_outputs,)
    """

    def __init__(self, standardize: bool = True) -> None:
        self.standardize = standardize

    def fit(self, y: np.ndarray, sample_weight: np.ndarray | None = None) -> TargetScaling:
        """Learn from finite targets y (n, m) with positive weights (n,), if any are given."""
        self.mean_, self.scale_ = standard(y, sample_weight)
        if not self.standardize:
            self.mean_, self.scale_ = np.zeros_like(self.mean_), np.ones_like(self.scale_)
        return self

    def narrow(self, constant: np.ndarray) -> None:
        """Scale outputs that are constant (m,) by `constant_scale` instead of 1."""
        self.scale_ = np.where(constant, constant_scale(self.mean_), self.scale_)

    def forward(self, y: np.ndarray) -> np.ndarray:
        """Standardise y (.., m)."""
        return (y - self.mean_) / self.scale_

    def restore(self, loc: Any, scale: Any) -> tuple[Any, Any]:
        """Means and standard deviations (.., m) in units of y, from arrays or tensors."""
        return loc * self.scale_ + self.mean_, scale * self.scale_


def constant_scale(value: Any) -> Any:
    """Return the scale of targets that all have one value: what float32 cannot tell from it.

    Networks compute in float32. In this unit their small errors vanish, and their small standard
    deviations stay positive.
    """
    size = np.where(np.equal(value, 0), 1.0, np.clip(np.abs(value), 1e-100, 1e100))
    return np.finfo("float32").eps * size  # squares of it are finite and not 0


def standard(values: np.ndarray, weight: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation of each column of (n, d); 1 for a constant column.

    Raises ValueError if a variance overflows.
    """
    with np.errstate(over="ignore"):  # seen below, and said in words
        scaler = StandardScaler().fit(values, sample_weight=weight)
    # A constant's mean is itself, without the rounding of a sum of large numbers.
    constant = np.ptp(values, axis=0) == 0
    mean = np.where(constant, values[0], scaler.mean_)
    if not (np.isfinite(mean).all() and np.isfinite(scaler.var_).all()):
        raise ValueError(_TOO_LARGE)
    return mean, scaler.scale_
