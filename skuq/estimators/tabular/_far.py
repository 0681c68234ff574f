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
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

import numpy as np
from scipy.linalg import blas, cholesky, lapack
from scipy.spatial.distance import cdist

from skuq.files._registry import record_repr, saved_as, state_of
from skuq.predictive import CategoricalMixture
from skuq.tables._scaling import FARTHEST, clip_columns

PROCESS_ROWS = 256  # rows of the process at most
TINY = 1e-12  # added under roots, whose gradients at 0 are infinite
_FULL = 1.5  # times the distance up to which rows are near, all is added
_NEAR_BETWEEN = 2.0  # rows between others are near up to so many times the distance of outer ones
_DOUBT_OF_CLASSES = 0.25  # share of probabilities that is not known there at most
_UNSEEN_DOUBTS = 0.5, 0.2  # least 1 - D90 / D with unseen categories, of numbers and classes
_PARTS = (0, 32, 96, 256, None)  # references are compared in parts: the first decide for most
_BLOCK_ROWS = 4096  # rows whose distances are held at a time
_FAR_BLOCK_ROWS = 128  # the same of rows far away, whose correlations then stay in the cache
_FEWEST_PADDED = 32  # rows of arrays that are padded
_PADDED = 1e3 * FARTHEST  # coordinates of rows without effect
_TIE = 1e-9  # apart from each other, members that predict the same classes
_MOST_APART = 10.0  # distance of two means that counts, in standard deviations of y


def _squared_exponential(xp: Any, distance: Any) -> Any:
    return xp.exp(-0.5 * distance**2)


def _matern_5(xp: Any, distance: Any) -> Any:
    scaled = math.sqrt(5) * distance
    return (1 + scaled + scaled**2 / 3) * xp.exp(-scaled)


def _matern_3(xp: Any, distance: Any) -> Any:
    scaled = math.sqrt(3) * distance
    return (1 + scaled) * xp.exp(-scaled)


#: Correlation functions of the distance in lengths, from smooth to rough.
KERNELS: dict[str, Callable[[Any, Any], Any]] = {
    "squared-exponential": _squared_exponential,
    "matern-5/2": _matern_5,
    "matern-3/2": _matern_3,
}


class FarArrays(NamedTuple):
    """Arrays from which `far_spread` computes; see `FarUncertainty`."""

    centre: Any  # (d,)
    inverse_stds: Any  # (d,)
    slopes: Any  # (d,)
    decorrelation: Any  # (d, d)
    rows: Any  # (d + 1, R), extended
    joint_rows: Any  # (d + 1, R), extended
    low: Any  # (d,), ends of the scaled rows
    high: Any  # (d,)
    mean: Any  # (m,) of the process
    alpha: Any  # (G, m), inverse covariance times y
    whitening: Any  # (G, G), transposed inverse of the Cholesky factor of the covariance
    amplitude: Any  # (m,) standard deviation of the process
    near: Any
    length: Any
    between: Any  # factor of the process' standard deviation between rows, or exponent for classes
    beyond: Any  # the same beyond their ends; not used for classes
    unsure_from: Any  # Mahalanobis distance from which noise, or classes, are less sure
    far_from: Any  # the same from which rows are far
    frequencies: Any  # (d, F)
    doubt: Any  # (m,)
    bounds: Any  # (2, d) of standardised columns


def _extend(rows: np.ndarray) -> np.ndarray:
    """Make (d + 1, R) of rows (R, d): (z, 1) times it are squared distances less that of z."""
    return np.vstack([-2 * rows.T, (rows**2).sum(axis=1)])


@saved_as("fitted.FarUncertainty")
@dataclass(frozen=True, eq=False)
class FarUncertainty:
    """Uncertainty that is added to the predictions of an ensemble away from its training rows.

    Distances are in columns scaled by the slopes of the networks: a step of length 1 changes the
    standardised y by about 1, and columns without effect do not count. Within the distance `near`
    of a reference row, in which 98 % of the training rows have another, nothing is added; between
    the ends of the columns, where networks interpolate, within twice that distance. Beyond, the
    variance that is added to numbers rises to

        (factor**2 * variance + (mean - mean of the networks)**2) * (1 + (distance / length)**2),

    with the mean and the variance of the Gaussian process there. The standard deviation rises with
    the distance, and is added in full from 1.5 times that distance on. The last term
    makes it grow with the distance where the variance of a process would not. Means that are more
    than 10 standard deviations of y apart count as 10, so that it grows in proportion to the
    distance whatever the networks predict.

    A row may also break the correlations between columns. Where D is its Mahalanobis distance to
    the nearest reference row, and D90 and D95 are those in which 90 % and 95 % of new rows
    have another, the variance above is also added beyond 1.4 times D95, in full from 1.5 times
    that distance on. The noise is less sure there: 1.5 * (1 - D90 / D) times a standard deviation
    of noise is added from D90 on. It is that of the process, or that of the networks where it is
    smaller. The latter is a harmonic mean, so that narrow predictions stay narrow. A row with an
    unseen category has a D of at least 2 D90 here, whatever the rest of it is.

    For classes the process is fitted to their indicators, which are 1 for rows of a class and 0 for
    others. Where its variance is v, in units of its variance far from all rows, the share

        1 - (1 - v)**factor

    of the predicted probabilities is not known. In the average over members it is replaced by the
    shares of the classes among isolated training rows: classes that are rare among all rows are
    often less rare there. Each member has other classes in its place, so that it is epistemic
    uncertainty, if there are enough members. The share is at least 0.25 * (1 - D95 / D), where rows
    with unseen categories have a D of at least 1.25 D95. From D90 on, it would cost classes that
    are far apart a tenth of their log loss.

    Attributes
    ----------
    centre, inverse_stds : ndarray of shape (d,)
        Standardised columns are ``(x - centre) * inverse_stds``, with 0 for codes and constants.
    slopes : ndarray of shape (d,)
        Standardised columns times these are scaled ones.
    decorrelation : ndarray of shape (d, d)
        Matrix that makes standardised rows uncorrelated; their distances are Mahalanobis distances.
    rows, joint_rows : ndarray of shape (R, d)
        Scaled and decorrelated reference rows; the first G of them are those of the process.
    y : ndarray of shape (G, m)
        Standardised targets of the process, or indicators of the classes.
    mean : ndarray of shape (m,)
        Mean of the process; of classes their shares among isolated training rows.
    near : float
        Distance up to which nothing is added beyond the ends of columns; between, twice that.
    joint_near : ndarray of shape (2,)
        D90, and 1.4 times D95; for classes both are D95.
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
    doubt : ndarray of shape (m,)
        Largest standard deviation that is added since noise is less sure, in units of the
        standardised y; not used for classes.
    bounds : ndarray of shape (2, d)
        Smallest and largest values of standardised columns that are told apart.
    """

    centre: np.ndarray
    inverse_stds: np.ndarray
    slopes: np.ndarray
    decorrelation: np.ndarray
    rows: np.ndarray
    joint_rows: np.ndarray
    y: np.ndarray
    mean: np.ndarray
    near: float
    joint_near: np.ndarray
    kernel: str
    length: float
    noise: float
    amplitude: np.ndarray
    factors: np.ndarray
    frequencies: np.ndarray
    doubt: np.ndarray
    bounds: np.ndarray

    __repr__ = record_repr

    def __getstate__(self) -> dict[str, Any]:
        return state_of(self)  # without the arrays below, which are large

    @functools.cached_property
    def arrays(self) -> FarArrays:
        """Arrays from which `far_spread` computes."""
        factor = cholesky(self._covariance(self.rows[: len(self.y)]), lower=True)
        whitening = lapack.dtrtri(factor, lower=1)[0].T
        numbers = self.near, self.length, *self.factors, *self.joint_near
        arrays: list[Any] = [
            self.centre,
            self.inverse_stds,
            self.slopes,
            self.decorrelation,
            _extend(self.rows),
            _extend(self.joint_rows),
            self.rows.min(axis=0),
            self.rows.max(axis=0),
            self.mean,
            whitening @ (whitening.T @ (self.y - self.mean)),
            whitening,
            self.amplitude,
            *map(np.array, numbers),
            self.frequencies,
            self.doubt,
            self.bounds,
        ]
        return FarArrays(*arrays)

    def padded_arrays(self) -> FarArrays:
        """Return the arrays with rows without effect, up to a power of two of rows.

        A program that is compiled for their shapes then serves fits with more rows, too.
        """
        n_rows, n_process = len(self.rows), len(self.y)
        size = max(_FEWEST_PADDED, 2 ** math.ceil(math.log2(n_rows)))
        more = min(size, PROCESS_ROWS) - n_process
        far_rows = _extend(np.full((size - n_rows, len(self.centre)), _PADDED))
        return self.arrays._replace(
            rows=np.hstack([self.arrays.rows, far_rows]),
            joint_rows=np.hstack([self.arrays.joint_rows, far_rows]),
            alpha=np.pad(self.arrays.alpha, ((0, more), (0, 0))),
            whitening=np.pad(self.arrays.whitening, ((0, more), (0, more))),
        )

    @property
    def draws(self) -> FarDraws:
        """Function that computes, for draws, what is added away from the rows."""
        return FarDraws(self.kernel, 2 * self.frequencies.shape[1])

    def variance_of_tensors(self, ops: Any, numbers: Any, mean: Any) -> Any:
        """Compute the variance (n, m) that is added at encoded rows, in a Keras model.

        `mean` (n, m) is the networks' mean, in units of the standardised y.
        """
        return ops.sum(ops.square(far_spread(ops, self.arrays, self.kernel, numbers, mean)), axis=0)

    def classes_of_tensors(self, ops: Any, numbers: Any, proba: Any, weights: Any) -> Any:
        """Compute what members predict at encoded rows, (n, K, C), in a Keras model."""
        return far_classes(ops, self.arrays, self.kernel, numbers, proba, weights)

    def _covariance(self, rows: np.ndarray) -> np.ndarray:
        """Compute the covariance of noisy values at rows (G, d), in variances of the process."""
        correlation = KERNELS[self.kernel](np, cdist(rows, rows) / self.length)
        return correlation + self.noise * np.eye(len(rows))

    def widen(self, mixture: Any, numbers: np.ndarray, targets: Any, unseen: Any = ()) -> Any:
        """Add what is not known at encoded rows (n, d) to the mixture predicted there.

        `unseen` lists the rows in which an unseen category was replaced by a known one.
        """
        least = np.zeros((len(numbers), 1))
        of_classes = targets.head.classifies
        least[np.asarray(unseen, dtype=int)] = _UNSEEN_DOUBTS[of_classes]
        if of_classes:
            far = np.flatnonzero(self._find_far(numbers)[0] | (least[:, 0] > 0))
            if not len(far):
                return mixture
            proba, weights = mixture.proba.copy(), mixture.weights
            for rows in _blocks(far):
                of_rows = np.moveaxis(proba[:, rows], 0, 1)
                of_rows = far_classes(
                    np, self.arrays, self.kernel, numbers[rows], of_rows, weights, least[rows]
                )
                proba[:, rows] = np.moveaxis(of_rows, 1, 0)
            return CategoricalMixture(proba, weights)
        if targets.is_transformed:  # the inner mixture is of the standardised y
            inner: Any = mixture.inner
            spread = self.spread(numbers, inner.mean.reshape(len(numbers), -1), least)
            if spread is None:
                return mixture
            # The mean of y moves with the spread of what is transformed, and would be absurd with
            # more than the standard deviation of the training rows.
            spread /= np.maximum(np.sqrt(np.square(spread).sum(axis=0)), 1.0)
            return replace(mixture, inner=inner.widened(spread))
        scaling = targets.scaling
        mean = scaling.forward(mixture.mean.reshape(len(numbers), -1))
        spread = self.spread(numbers, mean, least)
        if spread is None:
            return mixture
        spread *= scaling.scale_
        return mixture.widened(spread)

    def spread(
        self, numbers: np.ndarray, mean: np.ndarray, least: np.ndarray | None = None
    ) -> np.ndarray | None:
        """Compute the spread (2F, n, m) at encoded rows; None if all rows are near others.

        `mean` (n, m) is the networks' mean, and all are in units of the standardised y. `least`
        (n, 1) is the doubt that rows have at least.
        """
        least = np.zeros((len(numbers), 1)) if least is None else least
        doubtful, far = self._find_far(numbers)
        doubtful |= least[:, 0] > 0
        if not doubtful.any():
            return None
        spread = np.zeros((2 * self.frequencies.shape[1], *mean.shape))
        for rows in _blocks(np.flatnonzero(far)):
            spread[:, rows] = far_spread(
                np, self.arrays, self.kernel, numbers[rows], mean[rows], least[rows]
            )
        # Others do not need the process, for speed.
        for rows in _blocks(np.flatnonzero(doubtful & ~far), _BLOCK_ROWS):
            z, _, unsure = _look(np, self.arrays, numbers[rows], least[rows])
            spread[:, rows] = _waves(np, self.arrays, z, (unsure * self.arrays.doubt) ** 2)
        return spread

    def _find_far(self, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Find rows (n,) to which something may be added, and those that may be far."""
        found = np.zeros((2, len(numbers)), dtype=bool)
        inverse_stds, slopes, decorrelation, low, high, least, most, *extended = self._single
        for start in range(0, len(numbers), _BLOCK_ROWS):
            # In single precision, with room for its rounding: `far_spread` is exact.
            block = numbers[start : start + _BLOCK_ROWS].T
            with np.errstate(over="ignore", invalid="ignore"):
                standardised = np.empty(block.shape, dtype="f4")
                np.subtract(block, self.centre[:, None], out=standardised, casting="same_kind")
                standardised *= inverse_stds
                np.clip(standardised, least, most, out=standardised)
                z = np.ones((len(standardised) + 1, block.shape[1]), dtype="f4")
                np.multiply(standardised, slopes, out=z[:-1])
                outside = z[:-1] - np.clip(z[:-1], low, high)
                # The share of the distance that is outside is at most this.
                share = np.minimum(np.einsum("ij,ij->j", outside, outside) / self.near**2, 1)
                far, _ = _find_beyond(z, extended[0], self.near * _near_factor(share))
                np.matmul(decorrelation, standardised, out=z[:-1])
                doubtful, excess = _find_beyond(z, extended[1], self.joint_near[0])
                far = np.append(far, doubtful[~(excess <= np.ptp(self.joint_near**2))])
            found[0, start + doubtful] = True
            found[:, start + far] = True
        return found[0], found[1]

    @functools.cached_property
    def _single(self) -> list[np.ndarray]:
        """Arrays in single precision, for rows that are columns."""
        arrays = (
            self.inverse_stds[:, None],
            self.slopes[:, None],
            self.decorrelation.T,
            self.arrays.low[:, None],
            self.arrays.high[:, None],
            *self.bounds[..., None],
            self.arrays.rows.T,
            self.arrays.joint_rows.T,
        )
        with np.errstate(over="ignore"):  # rows of tiny units then count as far, and are exact
            return [np.ascontiguousarray(array, dtype="f4") for array in arrays]


def _find_beyond(z: np.ndarray, extended: np.ndarray, near: Any) -> tuple[np.ndarray, np.ndarray]:
    """List the columns of (z, 1), (d + 1, n), that may be farther than `near` from all rows.

    The second array is by how much their squared distances exceed the square of `near`.
    """
    squares = np.einsum("ij,ij->j", z[:-1], z[:-1])
    bound = near**2 - squares * (1 + 1e-5) - 1e-5 * extended[:, -1].max()
    beyond, excess = np.arange(len(squares)), np.full(len(squares), np.inf, dtype="f4")
    for part in map(slice, _PARTS, _PARTS[1:]):
        if len(extended[part]) and len(beyond):
            nearest = (extended[part] @ (z[:, beyond] if part.start else z)).min(axis=0)
            excess = np.minimum(excess, nearest - bound[beyond])
            remain = ~(excess <= 0)  # numbers that overflow are far
            beyond, excess = beyond[remain], excess[remain]
    return beyond, excess


def _blocks(rows: np.ndarray, size: int = _FAR_BLOCK_ROWS) -> list[np.ndarray]:
    """Divide rows into blocks of multiples of 16, the last row repeated.

    Products of matrices then round each row alike, whatever the other rows are.
    """
    rows = np.append(rows, np.repeat(rows[-1:], -len(rows) % 16))
    return [rows[k : k + size] for k in range(0, len(rows), size)]


def _near_factor(share: Any) -> Any:
    """Compute how far rows are near, by the share of the distance that is outside."""
    return share * (1 - _NEAR_BETWEEN) + _NEAR_BETWEEN


def _rise(xp: Any, distance: Any) -> Any:
    """Rise from 0, up to the distance 1, to 1."""
    return xp.clip((distance - 1) / (_FULL - 1), 0.0, 1.0)


def _look(xp: Any, arrays: FarArrays, numbers: Any, least: Any) -> tuple[Any, Any, Any]:
    """Look at encoded rows (n, d) from the reference rows.

    Returns the scaled rows, their Mahalanobis distances (n, 1), and 1 - D90 / D, or `least` where
    that is more. Instead of D90, classes have the other distance of `joint_near`.
    """
    standardised = (numbers - arrays.centre) * arrays.inverse_stds
    standardised = clip_columns(xp, standardised, arrays.bounds[0], arrays.bounds[1])
    squared = _nearest_square(xp, xp.matmul(standardised, arrays.decorrelation), arrays.joint_rows)
    distance = xp.sqrt(squared + TINY)
    unsure = 1 - 1 / xp.maximum(distance / arrays.unsure_from, 1.0)
    return standardised * arrays.slopes, distance, xp.maximum(unsure, least)


def _squares(xp: Any, z: Any, extended: Any) -> Any:
    """Compute squared distances (n, R) of rows z (n, d) from extended ones (d + 1, R)."""
    # All terms are in one product: Keras takes a second one (n, 1) for a bias if n = R.
    squares = xp.sum(z**2, axis=1, keepdims=True)
    left = xp.concatenate([z, xp.ones_like(squares), squares], axis=1)
    right = xp.concatenate([extended, xp.ones_like(extended[:1])], axis=0)
    return xp.maximum(xp.matmul(left, right), 0.0)


def _nearest_square(xp: Any, z: Any, extended: Any) -> Any:
    """Compute the squared distance (n, 1) of rows z (n, d) to the nearest extended one."""
    if xp is not np:
        return xp.min(_squares(xp, z, extended), axis=1, keepdims=True)
    # The nearest row is found in single precision, in half the time.
    z1 = np.column_stack([z, np.ones(len(z))]).astype("f4")
    index = (z1 @ extended.astype("f4")).argmin(axis=1)
    return ((z + extended[:-1, index].T / 2) ** 2).sum(axis=1, keepdims=True)


def _process_at(xp: Any, arrays: FarArrays, kernel: str, z: Any) -> tuple[Any, Any, Any, Any]:
    """Look at scaled rows (n, d) from the reference rows and from the process.

    Returns the squared distance (n, 1) to the nearest reference row, the rise (n, 1) from 0 near
    the rows to 1, the correlations (n, G) with the process' rows, and the share (n, 1) of the
    squared distance that lies beyond the ends of the columns.
    """
    nearest = _nearest_square(xp, z, arrays.rows)
    squared = _squares(xp, z, arrays.rows[:, : arrays.alpha.shape[0]])
    correlation = KERNELS[kernel](xp, xp.sqrt(squared + TINY) / arrays.length)
    # Symbolic tensors of Keras stand to the left of arrays.
    outside = xp.maximum(-z + arrays.low, 0.0) + xp.maximum(z - arrays.high, 0.0)
    share = xp.minimum(xp.sum(outside**2, axis=1, keepdims=True) / (nearest + TINY), 1.0)
    distance = xp.sqrt(nearest + TINY) / (_near_factor(share) * arrays.near)
    return nearest, _rise(xp, distance), correlation, share


def _unexplained(xp: Any, arrays: FarArrays, correlation: Any) -> Any:
    """Compute the variance (n, 1) of the process, in variances of the process."""
    if xp is np:  # the product with a triangular matrix takes half the time
        whitened = blas.dtrmm(1.0, arrays.whitening.T, correlation.T, lower=1).T
        explained = np.einsum("ij,ij->i", whitened, whitened)[:, None]
    else:
        whitened = xp.matmul(correlation, arrays.whitening)
        explained = xp.sum(whitened**2, axis=1, keepdims=True)
    return xp.clip(-explained + 1, 0.0, 1.0)


def far_spread(
    xp: Any, arrays: FarArrays, kernel: str, numbers: Any, mean: Any, least: Any = 0.0
) -> Any:
    """Compute the spread (2F, n, m) of `FarUncertainty` at encoded rows (n, d).

    A draw of the function adds the sum of the 2F arrays, each times a standard normal number of
    its own: a random smooth function of variance 1, times the standard deviation. `mean` (n, m) is
    the networks' mean in units of the standardised y, and `least` (n, 1) the doubt that rows have
    at least. `xp` is `numpy` or `keras.ops`.
    """
    z, distance, unsure = _look(xp, arrays, numbers, least)
    nearest, rise, correlation, share = _process_at(xp, arrays, kernel, z)
    rise = xp.maximum(rise, _rise(xp, distance / arrays.far_from))
    process_mean = xp.matmul(correlation, arrays.alpha) + arrays.mean
    apart = xp.clip(process_mean - mean, -_MOST_APART, _MOST_APART)
    between = arrays.between**2
    factor = share * (arrays.beyond**2 - between) + between
    variance = _unexplained(xp, arrays, correlation) * factor
    size = variance * arrays.amplitude**2 + apart**2  # (n, m)
    variance = rise**2 * size * (1 + nearest / arrays.length**2)
    return _waves(xp, arrays, z, variance + (unsure * arrays.doubt) ** 2)


def _waves(xp: Any, arrays: FarArrays, z: Any, variance: Any) -> Any:
    """Compute the spread (2F, n, m) of variances (n, m) at scaled rows (n, d)."""
    # Nothing is added near the rows, where the gradient of a root alone would be infinite.
    std = xp.sqrt(variance + TINY**2) - TINY
    phase = xp.matmul(z, arrays.frequencies)
    waves = xp.concatenate([xp.cos(phase), xp.sin(phase)], axis=1)
    waves = xp.transpose(waves) / math.sqrt(arrays.frequencies.shape[1])
    return xp.expand_dims(waves, 2) * xp.expand_dims(std, 0)


def far_classes(
    xp: Any,
    arrays: FarArrays,
    kernel: str,
    numbers: Any,
    proba: Any,
    mix: Any,
    least: Any = 0.0,
) -> Any:
    """Compute what members predict at encoded rows (n, d), from their probabilities (n, K, C).

    The share that is not known goes to the classes by the shares of `FarUncertainty`. It is divided
    among the members with weights `mix` (K,) as on a line: a member has few classes, of which the
    others have as little as possible, and those near the classes that it predicts.
    """
    z, _, unsure = _look(xp, arrays, numbers, least)
    _, rise, correlation, _ = _process_at(xp, arrays, kernel, z)
    known = (1 - _unexplained(xp, arrays, correlation)) ** arrays.between
    unknown = xp.maximum(rise * (1 - known), _DOUBT_OF_CLASSES * unsure)
    doubt = xp.expand_dims(unknown, 2)  # (n, 1, 1)
    ends = xp.cumsum(arrays.mean)
    starts = ends - arrays.mean
    # Members in the order of the classes that they predict, or of their numbers if they agree.
    position = xp.sum(proba * (starts + ends), axis=2) + _TIE * np.arange(len(mix))
    before = xp.expand_dims(position, 1) < xp.expand_dims(position, 2)  # (n, K, K)
    start = xp.expand_dims(xp.sum(xp.where(before, mix, 0.0), axis=2), 2)
    overlap = xp.minimum(start + mix[:, None], ends) - xp.maximum(start, starts)
    overlap = xp.maximum(overlap, 0.0) + TINY * arrays.mean
    classes = overlap / xp.sum(overlap, axis=2, keepdims=True)
    return doubt * (classes - proba) + proba


@dataclass(frozen=True)
class FarDraws:
    """Function ``(xp, arrays, numbers, mean) -> (2F, n, m)`` that computes `far_spread` for draws.

    It is part of the key of compiled programs, which are shared by fits with equal ones.
    """

    kernel: str
    n_functions: int

    n_arrays: ClassVar[int] = len(FarArrays._fields)

    def __call__(self, xp: Any, arrays: Any, numbers: Any, mean: Any) -> Any:
        """Compute the spread in double precision; of tensors, return it in that of `mean`."""
        if xp is np:
            return far_spread(np, FarArrays(*arrays), self.kernel, numbers, mean)
        arrays = FarArrays(*(xp.cast(array, "float64") for array in arrays))
        numbers = xp.cast(numbers, "float64")
        spread = far_spread(xp, arrays, self.kernel, numbers, xp.cast(mean, "float64"))
        return xp.cast(spread, mean.dtype)
