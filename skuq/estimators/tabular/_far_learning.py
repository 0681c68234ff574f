"""Learn from training rows what is not known away from them; see ``_far.py``.

Notation: n rows, d columns, m outputs or classes, R reference rows, G rows of the process.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy import optimize
from scipy.linalg import cholesky, lapack
from scipy.spatial.distance import cdist

from skuq._random import generator
from skuq.backend._scopes import one_thread_if_small
from skuq.estimators._task import Task
from skuq.estimators.tabular._far import KERNELS, PROCESS_ROWS, TINY, FarUncertainty
from skuq.fitted._ensemble import FittedEnsemble
from skuq.predictive._calibration import calibrate_normals
from skuq.tables._inputs import Rows, TableInputs
from skuq.tables._scaling import FARTHEST, RobustScaling
from skuq.training import predict_members

_FEWEST_ROWS = 10  # with fewer rows nothing is learnt
_MOST_COLUMNS_READ = 256  # with more columns nothing is learnt
_LEAST_WEIGHT = 1e-3  # of a row that counts, in weights of the average row
_MOST_ROWS = 512  # reference rows; of these the first `PROCESS_ROWS` are drawn at random
_MOST_COVERED = 50_000  # rows that the others are chosen to cover
_BLOCK_ROWS = 2048  # rows whose distances are held at a time
_CACHED_ROWS = 64  # the same of distances that stay in the cache
_SEARCH_ROWS = 96  # the first of the process' rows, searched for the kernel and its length
_N_COMPARED = 4  # best pairs of these that are compared on all rows of the process
_LENGTH_STEP = 2**0.5
_LAPACK_BLOCK = 64  # columns that are reduced together
_DEVIANCE_LIMIT = 3.84  # of 95 % confidence intervals: quantile of chi squared
_MOST_TOLD_APART = 30.0  # interquartile ranges from the median; see `_limits`
_TINIEST = 1e-300  # std of columns that do not count; makes limits of infinity finite there
_SHARE_NEAR = 0.98  # of the rows have another near by slopes
_SMALLEST_NEAR = 0.02  # a shorter distance changes y by less than 2 % of its standard deviation
_JOINT_SHARES = 0.9, 0.95  # of the rows have another within D90 and D95, Mahalanobis distances
_JOINT_FACTOR = 1.4  # times D95 numbers are far
_SMALLEST_JOINT_NEAR = 0.1  # standard deviations of a column
_DOUBT_OF_NOISE = 1.5  # times the noise that is added to numbers beyond D90 at most
_PRIOR_ROWS = 20  # rows with the classes of all that are added to these
_SLOPE_NUMBERS = 8192  # rows predicted to measure the slopes of the networks
_SLOPE_STEP = 0.1  # share of the rows between two values of a column that are compared
_N_FREQUENCIES = 4  # of the random functions that are drawn

_LENGTHS = 2.0 ** np.arange(-3, 6)  # tried, in median distances of rows
_NOISES = 10.0 ** np.arange(-5, 0.6, 0.5)  # tried, in variances of the process
_MOST_COLUMNS = 4  # steepest columns that are stretched, and whose thirds are left out
_MOST_DOUBLINGS = 3  # of the scale of a column
_LOG_FACTOR_STD = 3.0  # of the factors' wide prior, a normal of their logarithms
_REGION_ROWS = 4  # independent errors that a region counts as
_CLASS_FACTORS = 2.0 ** np.arange(-4, 0.1, 0.5)  # tried
_LEAST_KNOWN = 0.05  # share by which the difference of a process' mean is divided at least
_LEAST_PROBABILITY = 1e-6  # of a class in a left-out region


def with_far_uncertainty(ensemble: FittedEnsemble, task: Task) -> FittedEnsemble:
    """Return the ensemble with what it learns away from its training rows."""
    return replace(ensemble, far=learn_far_uncertainty(ensemble, task.rows, task.entropy))


@one_thread_if_small(PROCESS_ROWS)  # dozens of small factorisations
def learn_far_uncertainty(ensemble: Any, rows: Rows, entropy: int) -> FarUncertainty | None:
    """Learn the uncertainty of an ensemble away from the rows that it was trained on.

    Return None for inputs other than tables, fewer than 10 rows, more than 256 columns, and a
    process that explains the rows no better than noise.

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
    rows = rows.take(rows.used)
    if not isinstance(inputs, TableInputs):
        return None
    # A row of nearly no weight says nothing about y, and does not make its surroundings known.
    rows = rows.take(np.flatnonzero(rows.weight >= _LEAST_WEIGHT * rows.weight.mean()))
    n_rows, n_columns = rows.X.shape
    if n_rows < _FEWEST_ROWS or n_columns > _MOST_COLUMNS_READ or ensemble.passes is not None:
        return None
    rng = generator(entropy, "far")
    # In a random order in which heavy rows tend to come first.
    rows = rows.take(np.argsort(rng.exponential(size=n_rows) / rows.weight, kind="stable"))
    y, mean, of_process = _process_targets(targets, rows)
    limits = _limits(rows.X, inputs)
    rows = rows._replace(X=np.clip(rows.X, *limits))
    inverse_stds, decorrelation = _decorrelate(rows.X, inputs.code_columns)
    centre = inputs.scaling.mean_
    standardised = (rows.X - centre) * inverse_stds
    # An unseen category has no distance: members fill it with different known ones.
    slopes = _mean_slopes(ensemble, rows.X, inverse_stds)
    if head.classifies:  # in standard deviations of the indicators
        slopes /= math.sqrt(max(mean @ (1 - mean), TINY))
    process = fit_process((standardised * slopes)[:PROCESS_ROWS], of_process)
    if process is None:
        return None
    stretch, kernel, length, noise = process
    slopes = slopes * stretch
    z, decorrelated = standardised * slopes, standardised @ decorrelation
    near, joint_near = _near_distances(z, decorrelated)
    references = _choose_references(z)
    bounds = (limits - centre) * np.maximum(inverse_stds, _TINIEST)
    far = FarUncertainty(
        centre=centre,
        inverse_stds=inverse_stds,
        slopes=slopes,
        decorrelation=decorrelation,
        rows=z[references],
        joint_rows=decorrelated[references],
        y=y,
        mean=mean,
        near=near,
        joint_near=joint_near * [1, _JOINT_FACTOR],
        kernel=kernel,
        length=length,
        noise=noise,
        amplitude=np.ones(y.shape[1]),
        factors=np.ones(2),
        frequencies=rng.standard_normal((z.shape[1], _N_FREQUENCIES)) / length,
        doubt=np.ones(y.shape[1]),
        bounds=np.clip(bounds, -FARTHEST, FARTHEST),
    )
    if head.classifies:
        far = replace(far, joint_near=joint_near[[1, 1]])
        return _learn_of_classes(far, rows.y[references[PROCESS_ROWS:], 0].astype(int))
    return _learn_of_numbers(far, _narrowest_noise(ensemble, rows.X))


def _learn_of_classes(far: FarUncertainty, codes: np.ndarray) -> FarUncertainty:
    """Learn the shares of the classes, and the exponent, from the codes of isolated rows."""
    # The rows farthest from others have the shares of classes beyond them best.
    counts = np.bincount(codes, minlength=len(far.mean)) + _PRIOR_ROWS * far.mean
    far = replace(far, mean=counts / counts.sum())
    return replace(far, factors=fit_class_factors(far))


def _learn_of_numbers(far: FarUncertainty, narrowest_noise: np.ndarray) -> FarUncertainty:
    """Learn the amplitude and the factors of the process, and the doubt of noise."""
    residuals = far.y - far.y.mean(axis=0)
    # The most likely variance of the process, given the others.
    amplitude = np.sqrt((residuals * far.arrays.alpha).mean(axis=0))
    noise_variance = np.minimum(far.noise * amplitude**2, narrowest_noise)
    doubt = _DOUBT_OF_NOISE * np.sqrt(noise_variance)
    return replace(far, amplitude=amplitude, doubt=doubt, factors=_fit_factors(far, amplitude))


def _near_distances(z: np.ndarray, decorrelated: np.ndarray) -> tuple[float, np.ndarray]:
    """Distances within which rows are near: one by slopes, and D90 and D95 of Mahalanobis.

    Quantiles count a new row beside the n rows, since those of few rows alone would be too small.
    Copies of a row are not its nearest others: they say nothing about the distance of new rows.
    """
    distinct = np.sort(np.unique(z[:_MOST_ROWS], axis=0, return_index=True)[1])
    near = np.quantile(_nearest_others(z[distinct]), _SHARE_NEAR, method="weibull")
    central = decorrelated[distinct] - decorrelated.mean(axis=0)  # its centre may be medians
    nearest = _nearest_others(central, len(z))
    joint_near = np.quantile(nearest, _JOINT_SHARES, method="weibull")
    return max(near, _SMALLEST_NEAR), np.maximum(joint_near, _SMALLEST_JOINT_NEAR)


def _limits(numbers: np.ndarray, inputs: TableInputs) -> np.ndarray:
    """Compute the smallest and largest values (2, d) of columns that are told apart.

    One far value, such as 9999 for a missing one, would decide the standard deviation and the slope
    of its column, and no other distance in it would count. To networks with a smooth clip all
    values so far from the median are the same. Columns without such rows have no limits.
    """
    if not isinstance(inputs.scaling, RobustScaling):
        return np.full((2, numbers.shape[1]), [[-np.inf], [np.inf]])
    with np.errstate(over="ignore"):  # no value lies beyond a limit of infinity
        median, reach = inputs.scaling.mean_, _MOST_TOLD_APART * inputs.scaling.scale_
    reach[list(inputs.code_columns)] = np.inf
    low = np.where(numbers.min(axis=0) < median - reach, median - reach, -np.inf)
    return np.array([low, np.where(numbers.max(axis=0) > median + reach, median + reach, np.inf)])


def _process_targets(targets: Any, rows: Rows) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return targets (G, m) of the process, their mean (m,), and the columns that it is fitted to.

    The indicators of all classes sum to 1. Therefore that of the most frequent class follows from
    the others, and does not count in the likelihood. The mean of indicators is taken over all
    training rows, so that no class has the share 0.
    """
    few = rows.take(np.arange(min(len(rows.X), PROCESS_ROWS)))
    if not targets.head.classifies:
        y = targets.transform(few.y)
        return y, y.mean(axis=0), y
    n_classes = len(targets.classes)
    counts = np.bincount(rows.y[:, 0].astype(int), rows.weight, minlength=n_classes) + 0.5
    y = np.eye(n_classes)[few.y[:, 0].astype(int)]
    return y, counts / counts.sum(), np.delete(y, counts.argmax(), axis=1)


def _mean_slopes(ensemble: Any, numbers: np.ndarray, inverse_stds: np.ndarray) -> np.ndarray:
    """Measure root mean square slopes (d,) of the ensemble's mean, by standardised columns.

    A column's values are replaced by those of rows that are a tenth of the rows higher, for all
    other columns as they are, and the change of the mean is compared with that of the column.
    """
    inputs, n_columns = ensemble.inputs, numbers.shape[1]
    n = min(len(numbers), max(16, min(PROCESS_ROWS, _SLOPE_NUMBERS // (n_columns + 1))))
    numbers = numbers[:n]
    step = max(1, round(_SLOPE_STEP * n))

    def predict(rows: np.ndarray) -> np.ndarray:
        raw = predict_members(ensemble.members, inputs.transform(rows))
        return ensemble.targets.head.mean(raw, ensemble.weights, ensemble.calibration)

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
            moved = ((changed[j, :, k] - numbers[:, k]) * inverse_stds[k]) ** 2
            if moved.sum() > 0:
                slopes[k] = math.sqrt(squared[j] / moved.sum())
    return slopes


def _narrowest_noise(ensemble: Any, numbers: np.ndarray) -> np.ndarray:
    """Compute the harmonic mean (m,) of the variances of all predicted normals, as calibrated.

    Half of a variance over it is what adding that variance costs in nats at most.
    """
    raw = predict_members(ensemble.members, ensemble.inputs.transform(numbers[:PROCESS_ROWS]))
    weights = ensemble.weights
    normals = ensemble.targets.head.normals(raw)
    _, std, probability = calibrate_normals(normals, weights, ensemble.calibration.arrays)
    precision = np.tensordot(weights, (probability / std**2).sum(axis=1), axes=1)
    harmonic_mean: np.ndarray = 1 / precision.mean(axis=0)
    return harmonic_mean


def _choose_references(z: np.ndarray) -> np.ndarray:
    """List the rows of the process, and then rows that are farthest from all listed before.

    So a few rows of a region of their own have one among them.
    """
    chosen = list(range(min(len(z), PROCESS_ROWS)))
    z = z[:_MOST_COVERED]
    nearest = np.full(len(z), np.inf)
    for start in range(0, len(z), _BLOCK_ROWS):
        block = z[start : start + _BLOCK_ROWS]
        nearest[start : start + _BLOCK_ROWS] = cdist(block, z[chosen], "sqeuclidean").min(axis=1)
    while len(chosen) < _MOST_ROWS and nearest.max() > 0:
        chosen.append(int(nearest.argmax()))
        np.minimum(nearest, cdist(z[chosen[-1:]], z, "sqeuclidean")[0], out=nearest)
    return np.array(chosen)


def _decorrelate(numbers: np.ndarray, codes: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """Compute 1 / standard deviation of columns (d,), and a matrix (d, d) that decorrelates them.

    The correlations are shrunk towards none, by more in wide tables of few rows, which would
    otherwise have directions in which only other rows vary.
    """
    n_rows, n_columns = numbers.shape
    # Powers of two change no digit, and squares of values of any size are finite after them.
    exponents = np.frexp(abs(numbers).max(axis=0))[1]
    numbers = np.ldexp(numbers, -exponents)
    stds = numbers.std(axis=0)
    stds[list(codes)] = 0.0
    stds[np.ptp(numbers, axis=0) == 0] = 0.0  # that of equal values is rounded, and not always 0
    counts = np.ldexp(stds, exponents) > _TINIEST
    inverse_stds = np.divide(1.0, stds, out=np.zeros(n_columns), where=counts)
    standardised = (numbers - numbers.mean(axis=0)) * inverse_stds
    shrinkage = n_columns / (n_rows + n_columns)
    correlations = (1 - shrinkage) / n_rows * standardised.T @ standardised
    values, vectors = np.linalg.eigh(correlations + shrinkage * np.eye(n_columns))
    return np.ldexp(inverse_stds, -exponents), vectors / np.sqrt(values)


def _nearest_others(rows: np.ndarray, n_rows: float = math.inf) -> np.ndarray:
    """Compute distances (n,) of rows (n, d) to the nearest other one.

    If the rows are decorrelated, and the mean of all `n_rows` rows is 0, these are Mahalanobis
    distances by covariances without the row. It pulls the covariance towards itself, and would look
    nearer than a new one. Without its product with itself, the inverse of the covariance is known
    (Sherman and Morrison).
    """
    lengths, nearest = (rows**2).sum(axis=1), []
    share = 1 / (n_rows + len(rows.T))  # of one row in the shrunk covariance
    pulls = share / np.maximum(1 - share * lengths, TINY)
    for start in range(0, len(rows), _CACHED_ROWS):
        block = slice(start, start + _CACHED_ROWS)
        products = rows[block] @ rows.T
        apart = lengths[block, None] - products
        squared = pulls[block, None] * apart**2 + apart + lengths - products
        np.fill_diagonal(squared[:, start:], np.inf)
        nearest.append(squared.min(axis=1))
    return np.sqrt(np.maximum(np.concatenate(nearest), 0))


def fit_process(z: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, str, float, float] | None:
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
    pairs = [(kernel, float(length)) for kernel in KERNELS for length in median * _LENGTHS]
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
    n, n_noises = len(y), len(_NOISES)
    # In the basis of a tridiagonal covariance, all noises take less time than its eigenvectors.
    covariance = KERNELS[kernel](np, distances / length).T
    reflectors, diagonal, beside, tau, _ = lapack.dsytrd(
        covariance, lower=1, lwork=_LAPACK_BLOCK * n, overwrite_a=1
    )
    turned = y - y.mean(axis=0)
    turned[1:] = lapack.dormqr(
        "L", "T", reflectors[1:, :-1], tau, turned[1:], lwork=_LAPACK_BLOCK * y.shape[1]
    )[0]
    # The tridiagonal matrices of all noises, one below the other, are one that is factorised once.
    beside = np.tile(np.append(beside, 0.0), n_noises)[:-1]
    pivots, beside, failed = lapack.dpttrf((diagonal + _NOISES[:, None]).ravel(), beside)
    if failed:
        return np.full(n_noises, np.inf)
    turned = np.tile(turned, (n_noises, 1))
    products = turned * lapack.dpttrs(pivots, beside, turned)[0]
    scales = products.reshape(n_noises, n, -1).sum(axis=1) / n
    deviances: np.ndarray = n * np.log(scales).sum(axis=1)
    return deviances + y.shape[1] * np.log(pivots).reshape(n_noises, n).sum(axis=1)


def _left_out_regions(far: FarUncertainty) -> list[tuple[int, np.ndarray, Any, np.ndarray]]:
    """List regions of rows, and what the process predicts there without them, in closed form.

    They are thirds of the rows by one of the steepest columns: the middle one, of kind 0, asks for
    an interpolation, the others, of kind 1, for an extrapolation. A region has its kind, its rows,
    the errors (rows, m) there, and their variances (rows, 1) in variances of the process.
    """
    z, whitening, alpha = far.rows[: len(far.y)], far.arrays.whitening, far.arrays.alpha
    inverse, spreads = whitening @ whitening.T, z.std(axis=0)
    steepest, regions = np.argsort(-spreads)[:_MOST_COLUMNS], []
    for column in steepest[spreads[steepest] > 0.2 * spreads.max()]:
        thirds = np.array_split(np.argsort(z[:, column], kind="stable"), 3)
        for kind, rows in zip((1, 0, 1), thirds):
            # The covariance of the errors is this block's inverse, half.T @ half.
            half = lapack.dtrtri(cholesky(inverse[np.ix_(rows, rows)], lower=True), lower=1)[0]
            variance = (half**2).sum(axis=0)[:, None]
            regions.append((kind, rows, half.T @ (half @ alpha[rows]), variance))
    return regions


def _fit_factors(far: FarUncertainty, amplitude: np.ndarray) -> np.ndarray:
    """Fit the factors of the process' standard deviation between rows and beyond their ends."""
    errors: dict[int, list[np.ndarray]] = {0: [], 1: []}
    for kind, _, error, variance in _left_out_regions(far):
        errors[kind].append(np.stack([error, variance * amplitude**2]))
    noise = far.noise * amplitude**2
    return np.array([_fit_factor(errors[kind], noise) for kind in (0, 1)])


def fit_class_factors(far: FarUncertainty) -> np.ndarray:
    """Choose the exponent of what is known of classes by its log loss in left-out regions.

    An exponent of 1 trusts the variance of the process. Smaller ones add less where the process
    explains a part of the classes, and still add everything where it explains nothing.
    """
    losses = np.zeros(len(_CLASS_FACTORS))
    for _, rows, error, variance in _left_out_regions(far):
        y = far.y[rows]
        known = np.clip(1 - (variance - far.noise), 0, 1)
        # Networks do not shrink their predictions towards the shares, as the process does.
        apart = y - error - far.mean
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
        total = noise + np.exp(2 * log_factor) * beyond_noise + TINY
        nll = 0.5 * (np.log(total) + error**2 / total).mean()
        return _REGION_ROWS * len(parts) * nll + 0.5 * (log_factor / _LOG_FACTOR_STD) ** 2

    return float(np.exp(optimize.minimize_scalar(loss, bounds=(-3, 2), method="bounded").x))
