"""Standardise inputs and targets, and convert predictions back; ridge regression of wide tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import numpy as np

from skuq._formulas import QUARTILES, SQUARABLE
from skuq.files._registry import saved_as

#: Weights of rows, and names of columns for messages; None if there are none.
Weights = np.ndarray | None
Names = Sequence[Any] | None

# Bound of standardised inputs. Outputs of deep networks can grow like powers of their inputs, and
# would overflow float64 for larger inputs.
FARTHEST = 1e6

_LEAST_STD = 1e-153  # smallest standard deviation of y; its square is normal in float64


def hard_clip(xp: Any, z: Any) -> Any:
    """Clip standardised values (arrays or tensors) at a million standard deviations."""
    return xp.clip(z, -FARTHEST, FARTHEST)


def smooth_clip(xp: Any, z: Any, bound: int = 3) -> Any:
    """Bound standardised values smoothly: z / sqrt(1 + (z / bound)**2)."""
    z = hard_clip(xp, z)  # keeps squares finite
    return z / xp.sqrt(1 + (z / bound) ** 2)


def refuse_overflow(values: np.ndarray, sound: np.ndarray, names: Names) -> None:
    """Raise ValueError that names the first column of (n, d) that is not sound (d,)."""
    if not sound.all():
        k = int(np.argmin(sound))
        raise ValueError(
            f"Column {k if names is None else names[k]} has values so large that their variance "
            f"overflows float64, such as {values[abs(values[:, k]).argmax(), k]:.6g}. Rescale it, "
            "or drop the outliers."
        )


def target_names(n_outputs: int) -> list[str]:
    """Name the outputs of y, for messages."""
    return ["y"] if n_outputs == 1 else [f"{k} of y" for k in range(n_outputs)]


def standard(
    values: np.ndarray, weight: Weights = None, names: Names = None
) -> tuple[np.ndarray, np.ndarray]:
    """Compute mean and standard deviation of each column of (n, d); 1 for a constant column.

    Raises ValueError if a variance overflows.
    """
    with np.errstate(over="ignore", invalid="ignore"):  # checked below
        spread = np.ptp(values, axis=0)
        # Within [-1, 1], where no column loses its variance to rounding or underflow.
        unit = np.where(spread > 0, spread, 1.0)
        z = (values - values[0]) / unit
        mean = np.average(z, axis=0, weights=weight)
        scale = np.sqrt(np.average((z - mean) ** 2, axis=0, weights=weight)) * unit
        refuse_overflow(values, np.isfinite(scale**2), names)
    return values[0] + mean * unit, np.where(spread > 0, scale, 1.0)


@saved_as("tables.Scaling")
class Scaling:
    """Scale every column of X to zero mean and unit variance.

    Constant columns are only centred.

    Parameters
    ----------
    passthrough : sequence of int, default=()
        Columns of X that are not scaled, such as codes for an embedding.

    Attributes
    ----------
    mean_, scale_ : ndarray of shape (n_features,)
        Location and scale of each column: it becomes ``(x - mean_) / scale_``, clipped at a
        million.
    """

    #: Function ``clip(xp, z)`` that bounds standardised inputs.
    clip = staticmethod(hard_clip)

    #: Function ``(X, weight, names)`` that computes location and scale of each column.
    _learn: Any = staticmethod(standard)

    def __init__(self, passthrough: Sequence[int] = ()) -> None:
        self.passthrough = list(passthrough)

    def fit(self, X: np.ndarray, sample_weight: Weights = None, names: Names = None) -> Self:
        """Learn location and scale from finite rows X (n, d), with positive weights if given.

        Raise ValueError if values are too large; it names the column by `names` or its position.
        """
        self.mean_, self.scale_ = self._learn(X, sample_weight, names)
        self.mean_[self.passthrough], self.scale_[self.passthrough] = 0.0, 1.0
        return self

    def transform(self, X: Any, xp: Any = np) -> Any:
        """Standardise X, an array or a tensor with operations `xp`."""
        # Not by scikit-learn's transform, which would validate X again: for one row that costs
        # more than a small network.
        with np.errstate(over="ignore"):  # values that overflow are clipped
            z = self.clip(xp, (X - self.mean_) / self.scale_)
        if not self.passthrough:
            return z
        return xp.where(np.isin(np.arange(len(self.mean_)), self.passthrough), X, z)


@saved_as("tables.RobustScaling")
class RobustScaling(Scaling):
    """Scale columns of X to zero median and unit interquartile range, smoothly bounded by 3.

    If half of the rows have the median itself, quartiles may be much closer than the other values.
    Half the median distance of these from the median is used if it is larger; for columns with two
    values this is half the range, as in the paper. A column that is constant in training always
    becomes 0. A single outlier among several values does not change the scale. Sample weights are
    ignored.

    References
    ----------
    D. Holzmüller, L. Grinsztajn, I. Steinwart. "Better by Default: Strong Pre-Tuned MLPs and
    Boosted Trees on Tabular Data", NeurIPS 2024.
    """

    clip = staticmethod(smooth_clip)

    @staticmethod
    def _learn(columns: np.ndarray, weight: Any, names: Any) -> tuple[np.ndarray, np.ndarray]:
        """Learn medians and interquartile ranges, or distances of values other than the median."""
        with np.errstate(over="ignore", invalid="ignore"):  # checked below
            first, median, third = np.quantile(columns, QUARTILES, axis=0)
            scale = third - first
        for k in np.flatnonzero((columns == median).mean(axis=0) >= 0.5):
            others = columns[columns[:, k] != median[k], k]
            # Halve first, since the distance of two numbers can overflow.
            if len(others):
                scale[k] = max(scale[k], np.median(abs(others / 2 - median[k] / 2)))
        refuse_overflow(columns, np.isfinite(scale), names)
        # Divide constant columns by infinity, so that they are 0 in prediction, too.
        return median, np.where(scale > 0, scale, np.inf)


@saved_as("tables.ImageScaling")
class ImageScaling(Scaling):
    """Scale every channel of images to zero mean and unit variance, over all pixels.

    A scale for each pixel would amplify pixels that are nearly always black.

    Parameters
    ----------
    shape : tuple of int
        Shape (height, width, channels) of the images, which are given as flat rows.
    """

    def __init__(self, shape: Sequence[int]) -> None:
        super().__init__()
        self.shape = tuple(shape)

    def fit(self, X: np.ndarray, sample_weight: Weights = None, names: Names = None) -> Self:
        """Learn location and scale of each channel from flat rows or images."""
        pixels = X.reshape(-1, self.shape[-1])
        if sample_weight is not None:
            sample_weight = np.repeat(sample_weight, len(pixels) // len(X))
        super().fit(pixels, sample_weight, [f"{k} of the channels" for k in range(self.shape[-1])])
        return self

    def transform(self, X: Any, xp: Any = np) -> Any:
        """Standardise flat rows or images, and return images (n, height, width, channels)."""
        return super().transform(X if xp is not np else X.reshape(len(X), *self.shape), xp)


@saved_as("tables.NoScaling")
class NoScaling(Scaling):
    """Leave columns unscaled, for data that already have a suitable scale."""

    @staticmethod
    def _learn(columns: np.ndarray, weight: Any, names: Any) -> tuple[np.ndarray, np.ndarray]:
        """Check the size of the values; means are 0 and scales 1."""
        mean, scale = standard(columns, weight, names)  # raises an error if values overflow
        if abs(columns).max() > FARTHEST:
            raise ValueError(
                f"X that is not standardised must lie within {FARTHEST:g} of 0; networks train "
                f"best within 1. Got {columns.flat[abs(columns).argmax()]:.6g}. Scale it, or set "
                "`standardize=True`."
            )
        return np.zeros_like(mean), np.ones_like(scale)


def check_target_sizes(y: np.ndarray, scale: np.ndarray | None = None) -> None:
    """Raise ValueError if squares of y (n, m), or of its scale (m,), leave the range of floats."""
    names = target_names(y.shape[1])
    refuse_overflow(y, abs(y).max(axis=0) <= SQUARABLE, names)
    if scale is not None and scale.min() < _LEAST_STD:
        raise ValueError(
            f"Column {names[scale.argmin()]} has values so small that their variance underflows "
            f"float64. Rescale y. Its standard deviation is below {_LEAST_STD}."
        )


@saved_as("tables.TargetScaling")
class TargetScaling:
    """Scale every output of y to zero mean and unit variance, and convert predictions back.

    An output of equal values is only centred, until `rescale_equal` is called.

    Parameters
    ----------
    standardize : bool, default=True
        Standardise y. False leaves it unchanged.

    Attributes
    ----------
    mean_, scale_ : ndarray of shape (n_outputs,)
        Mean and scale of each output.
    """

    def __init__(self, standardize: bool = True) -> None:
        self.standardize = standardize

    def fit(self, y: np.ndarray, sample_weight: Weights = None) -> TargetScaling:
        """Learn mean and scale from finite targets y (n, m), with positive weights if given."""
        check_target_sizes(y)
        self.mean_, self.scale_ = standard(y, sample_weight)
        check_target_sizes(y, self.scale_)
        if not self.standardize:
            self.mean_, self.scale_ = np.zeros_like(self.mean_), np.ones_like(self.scale_)
        return self

    def rescale_equal(self, is_equal: np.ndarray, n: int) -> None:
        """Scale outputs whose `n` values are equal (m,) by `scale_of_equal_values`."""
        self.scale_ = np.where(is_equal, scale_of_equal_values(self.mean_, n), self.scale_)

    def forward(self, y: np.ndarray) -> np.ndarray:
        """Standardise y (.., m)."""
        return (y - self.mean_) / self.scale_

    def restore(self, loc: Any, scale: Any) -> tuple[Any, Any]:
        """Convert means and standard deviations (.., m) to units of y; arrays or tensors."""
        return loc * self.scale_ + self.mean_, scale * self.scale_


# Fewest equal values that show a constant. After n equal values the next one is another with
# probability 1 / (n + 2), by Laplace's rule of succession. With 20 it is below the 5 % that an
# interval of 95 % may miss.
_VALUES_OF_A_CONSTANT = 20


def scale_of_equal_values(value: Any, n: int) -> Any:
    """Return the scale of `n` targets that all have one value.

    Below 20 targets, the next one may differ: with probability 1 / (n + 2), and by about the size
    of the value (by 1, if that is 0). The scale is the standard deviation of that difference.
    From 20 targets on they count as a constant. The scale is then the precision of float32 at the
    value, so that small errors of the networks, which compute in float32, vanish.
    """
    # Squares of it are not 0.
    size = np.where(np.equal(value, 0), 1.0, np.maximum(np.abs(value), 1e-100))
    return size * ((n + 2) ** -0.5 if n < _VALUES_OF_A_CONSTANT else np.finfo("float32").eps)
