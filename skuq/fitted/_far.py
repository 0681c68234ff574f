"""Epistemic uncertainty of ensembles that grows with the distance from the training rows.

Networks may agree for no reason where they have seen nothing. A Gaussian process that explains the
same rows is a second opinion: at a point away from the rows its variance, and its distance from
the networks' mean, measure how far the truth may be from that mean.

Class probabilities become shares of the classes there, and members disagree.

Notation: n rows, d columns, m outputs or classes, K members, R reference rows, G rows of the
process, F frequencies.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy import optimize
from scipy.linalg import blas, cholesky, solve_triangular
from scipy.spatial.distance import cdist

from skuq._utils._environment import generator, one_thread_if_small
from skuq._utils._records import record_repr, saved_as, state_of
from skuq.networks._heads import CategoricalHead, GaussianHead, SquaredErrorHead
from skuq.networks._mixture_heads import GaussianMixtureHead, PackedHead
from skuq.predictive import CategoricalMixture, TransformedMixture
from skuq.tables._inputs import Rows, TableInputs
from skuq.tables._scaling import FARTHEST
from skuq.tables._targets import normal_components, unpack_copies
from skuq.training import predict_members

_FEWEST_ROWS = 10  # with fewer rows nothing is learnt
_MOST_COLUMNS_READ = 256  # with more columns nothing is learnt
_LEAST_WEIGHT = 1e-3  # of a row that counts, in weights of the average row
_MOST_ROWS = 512  # reference rows for distances
_PROCESS_ROWS = 256  # of these the first are drawn at random, and are the rows of the process
_MOST_COVERED = 50_000  # rows that the others are chosen to cover
_SEARCH_ROWS = 96  # of these the first are searched for the kernel and its length
_N_COMPARED = 4  # best pairs of these that are compared on all rows of the process
_LENGTH_STEP = 2**0.5
_DEVIANCE_LIMIT = 3.84  # of 95 % confidence intervals: quantile of chi squared
_SHARE_NEAR = 0.98  # rows are near up to the distance in which so many rows have another
_FULL = 1.5  # times the distance up to which rows are near, all is added
_SMALLEST_NEAR = 0.02  # a shorter distance changes y by less than 2 % of its standard deviation
_JOINT_SHARES = 0.9, 0.95  # the same by Mahalanobis distances: where more is unsure, and is far
_JOINT_FACTORS = 1.0, 1.25  # times these distances
_SMALLEST_JOINT_NEAR = 0.1  # standard deviations of a column
_DOUBT_OF_NOISE = 1.5  # times the noise that is added to numbers there at most
_DOUBT_OF_CLASSES = 0.25  # share of probabilities that is not known there at most
_SLOPE_NUMBERS = 8192  # rows predicted to measure the slopes of the networks
_SLOPE_STEP = 0.1  # share of the rows between two values of a column that are compared
_N_FREQUENCIES = 4  # of the random functions that are drawn
_PARTS = (0, 64, 256, None)  # reference rows are compared in parts: the first decide for most rows
_BLOCK_ROWS = 2048  # rows whose distances are held at a time
_FAR_BLOCK_ROWS = 128  # the same of rows far away, whose correlations then stay in the cache
_FEWEST_PADDED = 32  # rows of arrays that are padded
_PADDED = 1e3 * FARTHEST  # coordinates of rows without effect
_TIE = 1e-9  # apart from each other, members that predict the same classes
_TINY = 1e-12  # added under roots, whose gradients at 0 are infinite

_LENGTHS = 2.0 ** np.arange(-3, 6)  # tried, in median distances of rows
_NOISES = 10.0 ** np.arange(-5, 0.6, 0.5)  # tried, in variances of the process
_MOST_COLUMNS = 4  # steepest columns that are stretched, and whose thirds are left out
_MOST_DOUBLINGS = 3  # of the scale of a column
_LOG_FACTOR_STD = 3.0  # of the factors' wide prior, a normal of their logarithms
_REGION_ROWS = 4  # independent errors that a region counts as
_CLASS_FACTORS = 2.0 ** np.arange(-4, 0.1, 0.5)  # tried
_LEAST_KNOWN = 0.05  # share by which the difference of a process' mean is divided at least
_LEAST_PROBABILITY = 1e-6  # of a class in a left-out region
_MOST_APART = 10.0  # distance of two means that counts, in standard deviations of y


def _squared_exponential(xp: Any, distance: Any) -> Any:
    return xp.exp(-0.5 * distance**2)


def _matern_5(xp: Any, distance: Any) -> Any:
    scaled = math.sqrt(5) * distance
    return (1 + scaled + scaled**2 / 3) * xp.exp(-scaled)


def _matern_3(xp: Any, distance: Any) -> Any:
    scaled = math.sqrt(3) * distance
    return (1 + scaled) * xp.exp(-scaled)


#: Heads of normals, which can be widened, and of classes.
_HEADS = GaussianHead, GaussianMixtureHead, SquaredErrorHead, CategoricalHead

#: Correlation functions of the distance in lengths, from smooth to rough.
_KERNELS: dict[str, Callable[[Any, Any], Any]] = {
    "squared-exponential": _squared_exponential,
    "matern-5/2": _matern_5,
    "matern-3/2": _matern_3,
}


class FarArrays(NamedTuple):
    """Arrays from which `far_spread` computes; see `FarUncertainty`."""

    centre: Any  # (d,)
    slopes: Any  # (d,)
    rows: Any  # (R, d), scaled
    low: Any  # (d,), scaled
    high: Any  # (d,), scaled
    mean: Any  # (m,) of the process
    alpha: Any  # (G, m), inverse covariance times y
    whitening: Any  # (G, G), transposed inverse of the Cholesky factor of the covariance
    amplitude: Any  # (m,) standard deviation of the process
    numbers: Any  # (6,): near, length, factors between and beyond, joint_near
    frequencies: Any  # (d, F)
    inverse_stds: Any  # (d,)
    decorrelation: Any  # (d, d)
    joint_rows: Any  # (R, d), decorrelated
    doubt: Any  # (m,)


@saved_as("fitted.FarUncertainty")
@dataclass(frozen=True, eq=False)
class FarUncertainty:
    """Uncertainty that is added to the predictions of an ensemble away from its training rows.

    Distances are in columns scaled by the slopes of the networks: a step of length 1 changes the
    standardised y by about 1, and columns without effect do not count. Within the distance `near`
    of a reference row, in which 98 % of the training rows have another, nothing is added. Beyond,
    the variance that is added to numbers rises to

        (factor**2 * variance + (mean - mean of the networks)**2) * (1 + (distance / length)**2),

    with the mean and the variance of the Gaussian process there. The standard deviation rises with
    the distance, and is added in full from 1.5 times that distance on. The last term
    makes it grow with the distance where the variance of a process would not. Means that are more
    than 10 standard deviations of y apart count as 10, so that it grows in proportion to the
    distance whatever the networks predict.

    A row may also break the correlations between columns. Where D is its Mahalanobis distance to
    the nearest reference row, and D90 and D95 are those in which 90 % and 95 % of the training rows
    have another, the variance above is also added beyond 1.25 times D95, in full from 1.5 times
    that distance on. The noise is less sure there: 1.5 * (1 - D90 / D) times a standard deviation
    of noise is added from D90 on. It is that of the process, or that of the networks where it is
    smaller. The latter is a harmonic mean, so that narrow predictions stay narrow.

    For classes the process is fitted to their indicators, which are 1 for rows of a class and 0 for
    others. Where its variance is v, in units of its variance far from all rows, the share

        1 - (1 - v)**factor

    of the predicted probabilities is not known. In the average over members it is replaced by the
    shares of the classes among the training rows. Each member has other classes in its place, so
    that it is epistemic uncertainty, if there are enough members. The share is at least
    0.25 * (1 - 1.25 * D95 / D). From D90 on, it would cost classes that are far apart a tenth of
    their log loss.

    Attributes
    ----------
    centre, slopes : ndarray of shape (d,)
        Encoded column x becomes ``(x - centre) * slopes``.
    rows : ndarray of shape (R, d)
        Scaled reference rows; the first G of them are those of the process.
    low, high : ndarray of shape (d,)
        Ends of the scaled training rows.
    y : ndarray of shape (G, m)
        Standardised targets of the process, or indicators of the classes.
    mean : ndarray of shape (m,)
        Mean of the process; of classes their shares among all training rows.
    near : float
        Distance up to which nothing is added.
    kernel : str
        Name of the process' correlation function.
    length, noise : float
        Length of the process, and variance of its noise in variances of the process.
    amplitude : ndarray of shape (m,)
        Standard deviation of the process, in units of the standardised y; not used for classes.
    factors : ndarray of shape (2,)
        Factor of the process' standard deviation between training rows and beyond their ends, or
        exponent for classes.
    frequencies : ndarray of shape (d, F)
        Frequencies of the random functions that are drawn; not used for classes.
    inverse_stds : ndarray of shape (d,)
        Standardised columns are ``(x - centre) * inverse_stds``; 0 for codes and constant columns.
    decorrelation : ndarray of shape (d, d)
        Matrix that makes standardised rows uncorrelated; their distances are Mahalanobis distances.
    joint_rows : ndarray of shape (R, d)
        Decorrelated reference rows.
    joint_near : ndarray of shape (2,)
        D90, and 1.25 times D95; for classes both are the latter.
    doubt : ndarray of shape (m,)
        Largest standard deviation that is added since noise is less sure, in units of the
        standardised y; not used for classes.
    """

    centre: np.ndarray
    slopes: np.ndarray
    rows: np.ndarray
    low: np.ndarray
    high: np.ndarray
    y: np.ndarray
    mean: np.ndarray
    near: float
    kernel: str
    length: float
    noise: float
    amplitude: np.ndarray
    factors: np.ndarray
    frequencies: np.ndarray
    inverse_stds: np.ndarray
    decorrelation: np.ndarray
    joint_rows: np.ndarray
    joint_near: np.ndarray
    doubt: np.ndarray

    __repr__ = record_repr

    def __getstate__(self) -> dict[str, Any]:
        return state_of(self)  # without the arrays below, which are large

    @functools.cached_property
    def arrays(self) -> FarArrays:
        """Arrays from which `far_spread` computes."""
        factor = cholesky(self._covariance(self.rows[: len(self.y)]), lower=True)
        whitening = solve_triangular(factor, np.eye(len(factor)), lower=True).T
        return FarArrays(
            self.centre,
            self.slopes,
            self.rows,
            self.low,
            self.high,
            self.mean,
            whitening @ (whitening.T @ (self.y - self.mean)),
            whitening,
            self.amplitude,
            np.array([self.near, self.length, *self.factors, *self.joint_near]),
            self.frequencies,
            self.inverse_stds,
            self.decorrelation,
            self.joint_rows,
            self.doubt,
        )

    def padded_arrays(self) -> FarArrays:
        """Return the arrays with rows without effect, up to a power of two of rows.

        A program that is compiled for their shapes then serves fits with more rows, too.
        """
        arrays, n_rows, n_process = self.arrays, len(self.rows), len(self.y)
        size = max(_FEWEST_PADDED, 2 ** math.ceil(math.log2(n_rows)))
        more, more_process = size - n_rows, min(size, _PROCESS_ROWS) - n_process
        return arrays._replace(
            rows=np.pad(arrays.rows, ((0, more), (0, 0)), constant_values=_PADDED),
            joint_rows=np.pad(arrays.joint_rows, ((0, more), (0, 0)), constant_values=_PADDED),
            alpha=np.pad(arrays.alpha, ((0, more_process), (0, 0))),
            whitening=np.pad(arrays.whitening, ((0, more_process), (0, more_process))),
        )

    def _covariance(self, rows: np.ndarray) -> np.ndarray:
        """Compute the covariance of noisy values at rows (G, d), in variances of the process."""
        correlation = _KERNELS[self.kernel](np, cdist(rows, rows) / self.length)
        return correlation + self.noise * np.eye(len(rows))

    def widen(self, mixture: Any, numbers: np.ndarray, targets: Any) -> Any:
        """Add what is not known at encoded rows (n, d) to the mixture predicted there."""
        if isinstance(mixture, CategoricalMixture):
            far = np.flatnonzero(self._find_far(numbers)[0])
            if not len(far):
                return mixture
            # In place: these are new arrays, and as distributions they have been checked.
            proba, weights = mixture.proba, mixture.weights
            for rows in _blocks(far):
                of_rows = np.moveaxis(proba[:, rows], 0, 1)
                of_rows = far_classes(np, self.arrays, self.kernel, numbers[rows], of_rows, weights)
                proba[:, rows] = np.moveaxis(of_rows, 1, 0)
            return mixture
        if isinstance(mixture, TransformedMixture):  # the inner mixture is of the standardised y
            inner: Any = mixture.inner
            spread = self.spread(numbers, inner.mean.reshape(len(numbers), -1))
            if spread is None:
                return mixture
            # The mean of y moves with the spread of what is transformed, and would be absurd with
            # more than the standard deviation of the training rows.
            spread /= np.maximum(np.sqrt(np.square(spread).sum(axis=0)), 1.0)
            return replace(mixture, inner=inner.widened(spread))
        scaling = targets.scaling
        spread = self.spread(numbers, scaling.forward(mixture.mean.reshape(len(numbers), -1)))
        return mixture if spread is None else mixture.widened(spread * scaling.scale_)

    def spread(self, numbers: np.ndarray, mean: np.ndarray) -> np.ndarray | None:
        """Compute the spread (2F, n, m) at encoded rows; None if all rows are near others.

        `mean` (n, m) is the networks' mean, and all are in units of the standardised y.
        """
        doubtful, far = self._find_far(numbers)
        if not doubtful.any():
            return None
        spread = np.zeros((2 * _N_FREQUENCIES, *mean.shape))
        for rows in _blocks(np.flatnonzero(far)):
            spread[:, rows] = far_spread(np, self.arrays, self.kernel, numbers[rows], mean[rows])
        for rows in _blocks(np.flatnonzero(doubtful & ~far)):  # without the process, for speed
            _, unsure = _joint_distance(np, self.arrays, numbers[rows])
            z = _scale(np, self.arrays, numbers[rows])
            spread[:, rows] = _waves(np, self.arrays, z, (unsure * self.arrays.doubt) ** 2)
        return spread

    def _find_far(self, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Find rows (n,) to which something may be added, and those that may be far."""
        found = np.zeros((2, len(numbers)), dtype=bool)
        slopes, inverse_stds = self.slopes.astype("f4"), self.inverse_stds.astype("f4")
        decorrelation = self.decorrelation.astype("f4")
        for start in range(0, len(numbers), _BLOCK_ROWS):
            block = numbers[start : start + _BLOCK_ROWS]
            # In single precision, with room for its rounding: `far_spread` is exact.
            centred = np.empty(block.shape, dtype="f4")
            with np.errstate(over="ignore", invalid="ignore"):
                np.subtract(block, self.centre, out=centred, casting="same_kind")
                z = np.clip(centred * slopes, -FARTHEST, FARTHEST)
                far = _find_beyond(z, self._extended[0], self.near)
                np.clip(np.multiply(centred, inverse_stds, out=z), -FARTHEST, FARTHEST, out=z)
                z = z @ decorrelation
                doubtful = far | _find_beyond(z, self._extended[1], self.joint_near[0])
                rest = np.flatnonzero(doubtful & ~far)
                far[rest] = _find_beyond(z[rest], self._extended[1], self.joint_near[1])
            found[:, start : start + _BLOCK_ROWS] = doubtful, far
        return found[0], found[1]

    @functools.cached_property
    def _extended(self) -> list[np.ndarray]:
        """Matrices (R, d + 1) whose products with (z, 1) are squared distances less that of z."""
        return [
            np.column_stack([-2 * rows, (rows**2).sum(axis=1)]).astype("f4")
            for rows in (self.rows, self.joint_rows)
        ]


def _find_beyond(z: np.ndarray, extended: np.ndarray, near: float) -> np.ndarray:
    """Tell (n,) which rows z (n, d) may be farther than `near` from all rows of `extended`."""
    bound = near**2 - np.einsum("ij,ij->i", z, z) * (1 + 1e-5) - 1e-5 * extended[:, -1].max()
    z, far = np.column_stack([z, np.ones(len(z), dtype="f4")]), np.arange(len(z))
    for part in map(slice, _PARTS, _PARTS[1:]):
        if extended[part].size and len(far):
            nearest = (extended[part] @ z[far].T).min(axis=0)
            far = far[~(nearest <= bound[far])]  # numbers that overflow are far
    beyond = np.zeros(len(z), dtype=bool)
    beyond[far] = True
    return beyond


def _blocks(rows: np.ndarray) -> list[np.ndarray]:
    """Divide rows into blocks of multiples of 16, the last row repeated.

    Products of matrices then round each row alike, whatever the other rows are.
    """
    rows = np.append(rows, np.repeat(rows[-1:], -len(rows) % 16))
    return [rows[k : k + _FAR_BLOCK_ROWS] for k in range(0, len(rows), _FAR_BLOCK_ROWS)]


def _scale(xp: Any, arrays: FarArrays, numbers: Any) -> Any:
    return xp.clip((numbers - arrays.centre) * arrays.slopes, -FARTHEST, FARTHEST)


def _squared_distances(xp: Any, z: Any, rows: Any) -> Any:
    """Compute squared distances (n, R) of rows z (n, d) to others (R, d)."""
    squares, others = xp.sum(z**2, axis=1, keepdims=True), xp.sum(rows**2, axis=1)
    products = xp.matmul(-2 * z, xp.transpose(rows))
    if xp is not np:
        return xp.maximum(squares + others + products, 0.0)
    products += others  # in place, since this takes most of the time
    products += squares
    return np.maximum(products, 0.0, out=products)


def _rise(xp: Any, distance: Any) -> Any:
    """Rise from 0, up to the distance 1, to 1."""
    return xp.clip((distance - 1) / (_FULL - 1), 0.0, 1.0)


def _process_at(xp: Any, arrays: FarArrays, kernel: str, z: Any) -> tuple[Any, Any, Any, Any]:
    """Look at scaled rows (n, d) from the reference rows and from the process.

    Returns the squared distance (n, 1) to the nearest reference row, the rise (n, 1) from 0 near
    the rows to 1, the correlations (n, G) with the process' rows, and the share (n, 1) of the
    squared distance that lies beyond the ends of the columns.
    """
    near, length = arrays.numbers[0], arrays.numbers[1]
    squared = _squared_distances(xp, z, arrays.rows)
    nearest = xp.min(squared, axis=1, keepdims=True)
    distances = xp.sqrt(squared[:, : arrays.alpha.shape[0]] + _TINY)
    correlation = _KERNELS[kernel](xp, distances / length)
    # Symbolic tensors of Keras stand to the left of arrays.
    outside = xp.maximum(-z + arrays.low, 0.0) + xp.maximum(z - arrays.high, 0.0)
    share = xp.minimum(xp.sum(outside**2, axis=1, keepdims=True) / (nearest + _TINY), 1.0)
    return nearest, _rise(xp, xp.sqrt(nearest + _TINY) / near), correlation, share


def _joint_distance(xp: Any, arrays: FarArrays, numbers: Any) -> tuple[Any, Any]:
    """Compute Mahalanobis distances (n, 1) to the nearest reference row, and 1 - D90 / D.

    Instead of D90, classes have the other distance of `joint_near`.
    """
    z = xp.clip((numbers - arrays.centre) * arrays.inverse_stds, -FARTHEST, FARTHEST)
    squared = _squared_distances(xp, xp.matmul(z, arrays.decorrelation), arrays.joint_rows)
    distance = xp.sqrt(xp.min(squared, axis=1, keepdims=True) + _TINY)
    return distance, 1 - 1 / xp.maximum(distance / arrays.numbers[4], 1.0)


def _unexplained(xp: Any, arrays: FarArrays, correlation: Any) -> Any:
    """Compute the variance (n, 1) of the process, in variances of the process."""
    if xp is np:  # the product with a triangular matrix takes half the time
        whitened = blas.dtrmm(1.0, arrays.whitening.T, correlation.T, lower=1).T
    else:
        whitened = xp.matmul(correlation, arrays.whitening)
    explained = xp.sum(whitened**2, axis=1, keepdims=True)
    return xp.clip(-explained + 1, 0.0, 1.0)


def far_spread(xp: Any, arrays: FarArrays, kernel: str, numbers: Any, mean: Any) -> Any:
    """Compute the spread (2F, n, m) of `FarUncertainty` at encoded rows (n, d).

    A draw of the function adds the sum of the 2F arrays, each times a standard normal number of
    its own: a random smooth function of variance 1, times the standard deviation. `mean` (n, m) is
    the networks' mean in units of the standardised y. `xp` is `numpy` or `keras.ops`.
    """
    _, length, between, beyond, _, joint_near = (arrays.numbers[k] for k in range(6))
    z = _scale(xp, arrays, numbers)
    nearest, rise, correlation, share = _process_at(xp, arrays, kernel, z)
    distance, unsure = _joint_distance(xp, arrays, numbers)
    rise = xp.maximum(rise, _rise(xp, distance / joint_near))
    process_mean = xp.matmul(correlation, arrays.alpha) + arrays.mean
    apart = xp.clip(process_mean - mean, -_MOST_APART, _MOST_APART)
    factor = share * (beyond**2 - between**2) + between**2
    variance = _unexplained(xp, arrays, correlation) * factor
    size = variance * arrays.amplitude**2 + apart**2  # (n, m)
    variance = rise**2 * size * (1 + nearest / length**2)
    return _waves(xp, arrays, z, variance + (unsure * arrays.doubt) ** 2)


def _waves(xp: Any, arrays: FarArrays, z: Any, variance: Any) -> Any:
    """Compute the spread (2F, n, m) of variances (n, m) at scaled rows (n, d)."""
    # Nothing is added near the rows, where the gradient of a root alone would be infinite.
    std = xp.sqrt(variance + _TINY**2) - _TINY
    phase = xp.matmul(z, arrays.frequencies)
    waves = xp.concatenate([xp.cos(phase), xp.sin(phase)], axis=1)
    waves = xp.transpose(waves) / math.sqrt(_N_FREQUENCIES)
    return xp.expand_dims(waves, 2) * xp.expand_dims(std, 0)


def far_classes(xp: Any, arrays: FarArrays, kernel: str, numbers: Any, proba: Any, mix: Any) -> Any:
    """Compute what members predict at encoded rows (n, d), from their probabilities (n, K, C).

    The share that is not known goes to the classes by the shares of `FarUncertainty`. It is divided
    among the members with weights `mix` (K,) as on a line: a member has few classes, of which the
    others have as little as possible, and those near the classes that it predicts.
    """
    _, rise, correlation, _ = _process_at(xp, arrays, kernel, _scale(xp, arrays, numbers))
    known = (1 - _unexplained(xp, arrays, correlation)) ** arrays.numbers[2]
    _, unsure = _joint_distance(xp, arrays, numbers)
    unknown = xp.maximum(rise * (1 - known), _DOUBT_OF_CLASSES * unsure)
    doubt = xp.expand_dims(unknown, 2)  # (n, 1, 1)
    ends = xp.cumsum(arrays.mean)
    starts = ends - arrays.mean
    # Members in the order of the classes that they predict, or of their numbers if they agree.
    position = xp.sum(proba * (starts + ends), axis=2) + _TIE * np.arange(len(mix))
    before = xp.expand_dims(position, 1) < xp.expand_dims(position, 2)  # (n, K, K)
    start = xp.expand_dims(xp.sum(xp.where(before, mix, 0.0), axis=2), 2)
    overlap = xp.minimum(start + mix[:, None], ends) - xp.maximum(start, starts)
    overlap = xp.maximum(overlap, 0.0) + _TINY * arrays.mean
    classes = overlap / xp.sum(overlap, axis=2, keepdims=True)
    return doubt * (classes - proba) + proba


def far_spread_of_tensors(ops: Any, arrays: Any, kernel: str, numbers: Any, mean: Any) -> Any:
    """Compute `far_spread` of tensors, in double precision and returned in that of `mean`."""
    arrays = FarArrays(*(ops.cast(array, "float64") for array in arrays))
    numbers = ops.cast(numbers, "float64")
    spread = far_spread(ops, arrays, kernel, numbers, ops.cast(mean, "float64"))
    return ops.cast(spread, mean.dtype)


# ---------------------------------------------------------------- learn it from training rows


def learn_far_uncertainty(ensemble: Any, rows: Rows, entropy: int) -> FarUncertainty | None:
    """Learn the uncertainty of an ensemble away from the rows that it was trained on.

    Return None where it has no place: for inputs other than tables, heads that predict neither
    normals nor classes, fewer than 10 rows, more than 256 columns, or a process that explains the
    rows no better than noise.

    Parameters
    ----------
    ensemble : FittedEnsemble
        Ensemble of networks for tables.
    rows : Rows
        Encoded training rows and their targets, in units of y or codes of classes.
    entropy : int
        Origin of the random numbers of the fit.

    References
    ----------
    Rasmussen and Williams (2006), "Gaussian Processes for Machine Learning", chapters 2, 4 and 5.
    Errors of rows left out: Sundararajan and Keerthi (2001), "Predictive Approaches for Choosing
    Hyperparameters in Gaussian Processes". Random functions: Rahimi and Recht (2007), "Random
    Features for Large-Scale Kernel Machines".
    """
    inputs, targets, head = ensemble.inputs, ensemble.targets, ensemble.targets.head
    head = head.head if isinstance(head, PackedHead) else head
    rows = rows.take(rows.used)
    if not isinstance(inputs, TableInputs) or not isinstance(head, _HEADS):
        return None
    # A row of nearly no weight says nothing about y, and does not make its surroundings known.
    rows = rows.take(np.flatnonzero(rows.weight >= _LEAST_WEIGHT * rows.weight.mean()))
    n_rows, n_columns = rows.X.shape
    if n_rows < _FEWEST_ROWS or n_columns > _MOST_COLUMNS_READ or ensemble.passes is not None:
        return None
    rng = generator(entropy, "far")
    # In a random order in which heavy rows tend to come first.
    rows = rows.take(np.argsort(rng.exponential(size=n_rows) / rows.weight, kind="stable"))
    scaling = inputs.scaling
    y, mean, of_process = _process_targets(targets, rows)
    slopes = _mean_slopes(ensemble, rows.X) / scaling.scale_
    if isinstance(head, CategoricalHead):  # in standard deviations of the indicators
        slopes /= math.sqrt(max(mean @ (1 - mean), _TINY))
    # An unseen category has no distance: members fill it with different known ones.
    slopes[list(inputs.code_columns)] = 0.0
    z = np.clip((rows.X - scaling.mean_) * slopes, -FARTHEST, FARTHEST)
    with one_thread_if_small(_PROCESS_ROWS):  # dozens of small factorisations
        process = _fit_process(z[:_PROCESS_ROWS], of_process)
    if process is None:
        return None
    stretch, kernel, length, noise = process
    slopes, z = slopes * stretch, z * stretch
    near = max(_typical_distance(z, _SHARE_NEAR), _SMALLEST_NEAR)
    references = _choose_references(z)
    inverse_stds, decorrelation = _decorrelate(rows.X, inputs.code_columns)
    decorrelated = (rows.X - scaling.mean_) * inverse_stds @ decorrelation
    joint_near = _typical_distance(decorrelated, _JOINT_SHARES) * _JOINT_FACTORS
    far = FarUncertainty(
        scaling.mean_,
        slopes,
        z[references],
        z.min(axis=0),
        z.max(axis=0),
        y,
        mean,
        near,
        kernel,
        length,
        noise,
        np.ones(y.shape[1]),
        np.ones(2),
        rng.standard_normal((z.shape[1], _N_FREQUENCIES)) / length,
        inverse_stds,
        decorrelation,
        decorrelated[references],
        np.maximum(joint_near, _SMALLEST_JOINT_NEAR),
        np.ones(y.shape[1]),
    )
    if isinstance(head, CategoricalHead):
        nears = np.full(2, far.joint_near[1])
        return replace(far, factors=_fit_class_factors(far), joint_near=nears)
    residuals = far.y - far.y.mean(axis=0)
    # The most likely variance of the process, given the others.
    amplitude = np.sqrt((residuals * far.arrays.alpha).mean(axis=0))
    noise_variance = np.minimum(noise * amplitude**2, _narrowest_noise(ensemble, rows.X))
    far = replace(far, amplitude=amplitude, doubt=_DOUBT_OF_NOISE * np.sqrt(noise_variance))
    return replace(far, factors=_fit_factors(far))


def _process_targets(targets: Any, rows: Rows) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return targets (G, m) of the process, their mean (m,), and the columns that it is fitted to.

    The indicators of all classes sum to 1. Therefore that of the most frequent class follows from
    the others, and does not count in the likelihood. The mean of indicators is taken over all
    training rows, so that no class has the share 0.
    """
    few = rows.take(np.arange(min(len(rows.X), _PROCESS_ROWS)))
    if not hasattr(targets, "classes"):
        y = targets.transform(few.y)
        return y, y.mean(axis=0), y
    n_classes = len(targets.classes)
    counts = np.bincount(rows.y[:, 0].astype(int), rows.weight, minlength=n_classes) + 0.5
    y = np.eye(n_classes)[few.y[:, 0].astype(int)]
    return y, counts / counts.sum(), np.delete(y, counts.argmax(), axis=1)


def _mean_slopes(ensemble: Any, numbers: np.ndarray) -> np.ndarray:
    """Measure root mean square slopes (d,) of the ensemble's mean, in standardised units.

    A column's values are replaced by those of rows that are a tenth of the rows higher, for all
    other columns as they are, and the change of the mean is compared with that of the column.
    """
    inputs, n_columns = ensemble.inputs, numbers.shape[1]
    n = min(len(numbers), max(16, min(_PROCESS_ROWS, _SLOPE_NUMBERS // (n_columns + 1))))
    numbers = numbers[:n]
    step = max(1, round(_SLOPE_STEP * n))

    def predict(rows: np.ndarray) -> np.ndarray:
        raw = predict_members(ensemble.members, inputs.transform(rows))
        if hasattr(ensemble.targets, "classes"):
            return ensemble.targets.distribution(raw, ensemble.weights).mean
        return np.tensordot(ensemble.weights, ensemble.targets.head.moments(raw)[0], axes=1)

    base, slopes = predict(numbers), np.zeros(n_columns)
    per_block = max(1, _SLOPE_NUMBERS // n)
    for start in range(0, n_columns, per_block):
        columns = range(start, min(start + per_block, n_columns))
        changed = np.tile(numbers, (len(columns), 1, 1))
        for block, k in zip(changed, columns):
            order = np.argsort(numbers[:, k], kind="stable")
            # The highest values have none above them, and take lower ones.
            source = np.concatenate([order[step:], order[n - 2 * step : n - step]])
            block[order, k] = numbers[source, k]
        means = predict(changed.reshape(-1, n_columns)).reshape(len(columns), n, -1)
        squared = ((means - base) ** 2).mean(axis=2).sum(axis=1)
        for j, k in enumerate(columns):
            moved = ((changed[j, :, k] - numbers[:, k]) / inputs.scaling.scale_[k]) ** 2
            if moved.sum() > 0:
                slopes[k] = math.sqrt(squared[j] / moved.sum())
    return slopes


def _narrowest_noise(ensemble: Any, numbers: np.ndarray) -> np.ndarray:
    """Compute the harmonic mean (m,) of the variances of all predicted normals.

    Half of a variance over it is what adding that variance costs in nats at most.
    """
    inputs, targets = ensemble.inputs, ensemble.targets
    raw = predict_members(ensemble.members, inputs.transform(numbers[:_PROCESS_ROWS]))
    head, raw, weights = unpack_copies(targets.head, raw, ensemble.weights)
    _, std, probability = normal_components(head, raw)
    precision = np.tensordot(weights, (probability / std**2).sum(axis=1), axes=1)
    harmonic_mean: np.ndarray = 1 / precision.mean(axis=0)
    return harmonic_mean


def _choose_references(z: np.ndarray) -> np.ndarray:
    """List the rows of the process, and then rows that are farthest from all listed before.

    So a few rows of a region of their own have one among them.
    """
    chosen = list(range(min(len(z), _PROCESS_ROWS)))
    z = z[:_MOST_COVERED]
    nearest = np.full(len(z), np.inf)
    for start in range(0, len(z), _BLOCK_ROWS):
        block = z[start : start + _BLOCK_ROWS]
        nearest[start : start + _BLOCK_ROWS] = cdist(block, z[chosen], "sqeuclidean").min(axis=1)
    while len(chosen) < min(len(z), _MOST_ROWS):
        chosen.append(int(nearest.argmax()))
        np.minimum(nearest, ((z - z[chosen[-1]]) ** 2).sum(axis=1), out=nearest)
    return np.array(chosen)


def _decorrelate(numbers: np.ndarray, codes: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """Compute 1 / standard deviation of columns (d,), and a matrix (d, d) that decorrelates them.

    The correlations are shrunk towards none, by more in wide tables of few rows, which would
    otherwise have directions in which only other rows vary.
    """
    n_rows, n_columns = numbers.shape
    stds = numbers.std(axis=0)
    stds[list(codes)] = 0.0
    stds[np.ptp(numbers, axis=0) == 0] = 0.0  # that of equal values is rounded, and not always 0
    inverse_stds = np.divide(1.0, stds, out=np.zeros(n_columns), where=stds > 0)
    standardised = (numbers - numbers.mean(axis=0)) * inverse_stds
    shrinkage = n_columns / (n_rows + n_columns)
    correlations = (1 - shrinkage) / n_rows * standardised.T @ standardised
    values, vectors = np.linalg.eigh(correlations + shrinkage * np.eye(n_columns))
    return inverse_stds, vectors / np.sqrt(values)


def _typical_distance(z: np.ndarray, share: Any) -> Any:
    """Compute the distance within which a share of the rows has one of as many others."""
    distances = cdist(z[:_MOST_ROWS], z[:_MOST_ROWS])
    np.fill_diagonal(distances, np.inf)
    nearest = distances.min(axis=1)
    return np.quantile(nearest, share)


def _fit_process(z: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, str, float, float] | None:
    """Find the most likely stretch of columns (d,), kernel, length and noise; None if noise wins.

    A search on a part of the rows takes a small part of the time. Its best kernels and lengths are
    compared on all rows.
    """
    y = y[:, np.ptp(y, axis=0) > 0]
    # A rare class may have no row among the first: what is constant there cannot tell lengths.
    searched = slice(_SEARCH_ROWS if np.ptp(y[:_SEARCH_ROWS], axis=0).any() else None)
    few, few_y = z[searched], y[searched]
    few_y = few_y[:, np.ptp(few_y, axis=0) > 0]
    distances = cdist(few, few)
    if not (distances > 0).any() or not y.size:
        return None
    median = np.median(distances[distances > 0])
    pairs = [(kernel, float(length)) for kernel in _KERNELS for length in median * _LENGTHS]
    found = [_deviances(*pair, distances, few_y).min() for pair in pairs]
    pairs = [pairs[k] for k in np.argsort(found)[:_N_COMPARED]]
    stretch = _fit_stretch(few, few_y, *pairs[0])
    distances = cdist(z * stretch, z * stretch)
    found = [_deviances(*pair, distances, y) for pair in pairs]
    best = int(np.argmin([deviances.min() for deviances in found]))
    (kernel, length), deviances = pairs[best], found[best]
    residuals = y - y.mean(axis=0)
    noise_alone = len(y) * np.log((residuals**2).mean(axis=0)).sum()
    if deviances.min() > noise_alone - _DEVIANCE_LIMIT:
        return None
    # Far from the rows, the longest length that they do not refute leaves the most open.
    limit = deviances.min() + _DEVIANCE_LIMIT
    while (longer := _deviances(kernel, length * _LENGTH_STEP, distances, y)).min() < limit:
        length, deviances = length * _LENGTH_STEP, longer
        if length > median * _LENGTHS[-1]:
            break
    return stretch, kernel, length, float(_NOISES[deviances.argmin()])


def _fit_stretch(z: np.ndarray, y: np.ndarray, kernel: str, length: float) -> np.ndarray:
    """Halve or double the scale of one steep column after the other, while the rows ask for it.

    A function can be steep in one column and smooth, and flat in another and rough.
    """
    stretch, spreads = np.ones(z.shape[1]), z.std(axis=0)
    squared = cdist(z, z) ** 2
    least = _deviances(kernel, length, np.sqrt(squared), y).min()
    for column in np.argsort(-spreads)[:_MOST_COLUMNS]:
        steps = (z[:, column, None] - z[:, column]) ** 2
        for factor in (0.5, 2.0):
            for _ in range(_MOST_DOUBLINGS):
                changed = np.maximum(squared + (factor**2 - 1) * stretch[column] ** 2 * steps, 0)
                deviance = _deviances(kernel, length, np.sqrt(changed), y).min()
                if deviance > least - _DEVIANCE_LIMIT:
                    break
                squared, least = changed, deviance
                stretch[column] *= factor
    return stretch


def _deviances(kernel: str, length: float, distances: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Compute minus twice the log likelihood for each noise, summed over outputs, without constant.

    The variance of each output is the most likely one.
    """
    values, vectors = np.linalg.eigh(_KERNELS[kernel](np, distances / length))
    squares = (vectors.T @ (y - y.mean(axis=0))) ** 2  # (n, m)
    variances = np.maximum(values, 0) + _NOISES[:, None]  # (q, n)
    scales = (1 / variances) @ squares / len(y)
    deviances: np.ndarray = len(y) * np.log(scales).sum(axis=1)
    return deviances + y.shape[1] * np.log(variances).sum(axis=1)


def _left_out_regions(far: FarUncertainty) -> list[tuple[int, np.ndarray, np.ndarray]]:
    """List regions of rows, and what the process predicts there without them, in closed form.

    They are thirds of the rows by one of the steepest columns: the middle one, of kind 0, asks for
    an interpolation, the others, of kind 1, for an extrapolation. A region has its kind, its rows,
    and the covariance of their errors, in variances of the process, which times alpha are errors.
    """
    z, whitening = far.rows[: len(far.y)], far.arrays.whitening
    inverse, spreads = whitening @ whitening.T, z.std(axis=0)
    steepest, regions = np.argsort(-spreads)[:_MOST_COLUMNS], []
    for column in steepest[spreads[steepest] > 0.2 * spreads.max()]:
        thirds = np.array_split(np.argsort(z[:, column], kind="stable"), 3)
        for kind, rows in zip((1, 0, 1), thirds):
            regions.append((kind, rows, np.linalg.inv(inverse[np.ix_(rows, rows)])))
    return regions


def _fit_factors(far: FarUncertainty) -> np.ndarray:
    """Fit the factors of the process' standard deviation between rows and beyond their ends."""
    errors: dict[int, list[np.ndarray]] = {0: [], 1: []}
    for kind, rows, covariance in _left_out_regions(far):
        alpha = far.arrays.alpha[rows]
        variance = np.diag(covariance)[:, None] * far.amplitude**2
        errors[kind].append(np.stack([covariance @ alpha, variance + 0 * alpha]))
    noise = far.noise * far.amplitude**2
    return np.array([_fit_factor(errors[kind], noise) for kind in (0, 1)])


def _fit_class_factors(far: FarUncertainty) -> np.ndarray:
    """Choose the exponent of what is known of classes by its log loss in left-out regions.

    An exponent of 1 is the word of the process. With the smallest one, nothing is added that is
    worth a mention where the process knows a little, and yet all where it knows nothing.
    """
    losses = np.zeros(len(_CLASS_FACTORS))
    for _, rows, covariance in _left_out_regions(far):
        y, alpha = far.y[rows], far.arrays.alpha[rows]
        known = np.clip(1 - (np.diag(covariance) - far.noise), 0, 1)[:, None]
        # Networks do not shrink their predictions towards the shares, as the process does.
        apart = y - covariance @ alpha - far.mean
        sure = np.maximum(far.mean + apart / np.maximum(known, _LEAST_KNOWN), _LEAST_PROBABILITY)
        sure /= sure.sum(axis=1, keepdims=True)
        for k, factor in enumerate(_CLASS_FACTORS):
            proba = far.mean + known**factor * (sure - far.mean)
            losses[k] -= np.log((proba * y).sum(axis=1)).mean()
    return np.full(2, _CLASS_FACTORS[losses.argmin()])


def _fit_factor(parts: list[np.ndarray], noise: ArrayLike) -> float:
    """Fit a factor to errors and variances of regions, each (2, rows, m); a region counts once."""
    error, variance = np.concatenate(parts, axis=1)
    beyond_noise = np.maximum(variance - noise, 0)

    def loss(log_factor: float) -> float:
        total = noise + np.exp(2 * log_factor) * beyond_noise + _TINY
        nll = 0.5 * (np.log(total) + error**2 / total).mean()
        return _REGION_ROWS * len(parts) * nll + 0.5 * (log_factor / _LOG_FACTOR_STD) ** 2

    return float(np.exp(optimize.minimize_scalar(loss, bounds=(-3, 2), method="bounded").x))
