"""The numbers of a calibration, and how they change what the members of an ensemble predict.

Notation: K members, J normals of each, n rows, m outputs.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pandas as pd
from scipy import linalg, optimize, special, stats
from sklearn.covariance import log_likelihood

from skuq.files._registry import saved_as
from skuq.predictive._distributions import Mixture, scaled_probabilities
from skuq.predictive._normals import TwoPieceNormal

#: Keeps the gradient of a root finite at 0.
ROOT_FLOOR = 1e-30


class NumberArrays(NamedTuple):
    """Numbers of a `Calibration` of normals, as arrays or tensors."""

    factor: Any
    share: Any


@saved_as("predictive.Calibration")
@dataclass(frozen=True)
class Calibration:
    """Numbers that calibrate what an ensemble predicts; the defaults change nothing.

    Attributes
    ----------
    factor : float
        Factor of all standard deviations, of regressors.
    share : float
        Share of what each member predicts that is three times as wide about its mean, of
        regressors: errors have heavier tails than predictions.
    temperature : float
        Number by which the networks' logits are divided, of classifiers.
    constant : tuple of float
        Probabilities of the classes that are added to those of the networks, which are multiplied
        by what is left to 1. Empty adds none.
    """

    factor: float = 1.0
    share: float = 0.0
    temperature: float = 1.0
    constant: tuple[float, ...] = ()
    correlation: tuple[tuple[float, ...], ...] = ()

    @property
    def arrays(self) -> NumberArrays | None:
        """The numbers for regressors as arrays; None if they change nothing."""
        found = self.factor, self.share
        return None if found == (1.0, 0.0) else NumberArrays(*map(np.array, found))


WIDE = 3.0  # factor of the share that is wider

#: Changes nothing.
UNCALIBRATED = Calibration()


def calibrate_normals(
    normals: tuple[Any, Any, Any], weights: Any, arrays: NumberArrays | None, xp: Any = np
) -> tuple[Any, Any, Any]:
    """Calibrate the normals (K, J, n, m) of members, in units of the standardised y.

    All are stretched about the mixture's mean by the factor, and a share of each member is then
    stretched once more about its own mean. Without `arrays` nothing changes.
    """
    if arrays is None:
        return normals
    loc, scale, probability = normals
    factor, share = arrays
    centre = xp.tensordot(weights, xp.sum(probability * loc, axis=1), axes=1)
    # Symbolic tensors of Keras stand to the left of numbers.
    loc, scale = (loc - centre) * factor + centre, scale * factor
    mean = xp.sum(probability * loc, axis=1, keepdims=True)
    return (
        xp.concatenate([loc, (loc - mean) * WIDE + mean], axis=1),
        xp.concatenate([scale, scale * WIDE], axis=1),
        xp.concatenate([probability * (1 - share), probability * share], axis=1),
    )


def calibrated_moments(
    normals: tuple[Any, Any, Any], weights: Any, arrays: NumberArrays | None, xp: Any
) -> tuple[Any, Any]:
    """Compute means and variances (K, n, m) of the members' calibrated normals (K, J, n, m)."""
    loc, scale, probability = calibrate_normals(normals, weights, arrays, xp)
    mean = xp.sum(probability * loc, axis=1)
    variance = xp.square(scale) + xp.square(loc - mean[:, None])
    return mean, xp.sum(probability * variance, axis=1)


#: Distributions, and arrays of their rows, of each fold.
Mixtures: TypeAlias = Sequence[Mixture | TwoPieceNormal]
Arrays: TypeAlias = Sequence[np.ndarray]
SMALLEST_UNCERTAINTY = 1e-150  # of a model that claims to be certain; its square is not yet 0
_LEAST_DENSITY = np.finfo(float).tiny  # of which a logarithm is taken
_STEP = 0.1  # of a factor's logarithm, for differences in place of derivatives


def fit_std_factor(mixtures: Mixtures, ys: Arrays, weights: Arrays) -> float:
    """Fit the factor c of all standard deviations by maximum likelihood.

    Each set of rows has its own mixtures, targets and weights, as the folds of a cross-validation
    do. With a single normal for each row, c is ``sqrt(mean(((y - mean) / std) ** 2))``. The
    likelihood of mixtures can have several maxima, so that c is searched from a grid. If all errors
    are 0, c is 1.

    References
    ----------
    Heiss et al., "NOMU", section 4.1.2 and appendix B.2.1 (NLL_min).
    """
    weight = np.concatenate(weights)
    errors = np.concatenate([abs(y - m.mean) / m.std for m, y in zip(mixtures, ys)])
    moment = root_mean_square(errors, weight)
    if moment == 0:
        return 1.0
    # One normal for each row: the maximum has a closed form.
    if all(m.is_normal for m in mixtures):
        return moment

    def nll(log_c: float) -> float:
        scaled = (m.scaled(np.exp(log_c)) for m in mixtures)
        return -sum(w @ s.log_prob(y) for s, y, w in zip(scaled, ys, weights))

    # The search begins at the best point of a coarse grid. Moments alone would start it far from
    # the maximum if one member has a very large standard deviation.
    start = np.log(moment)
    grid = np.unique(
        np.concatenate([np.linspace(min(start, 0) - 2, max(start, 0) + 2, 25), [0.0, start]])
    )
    return float(np.exp(minimise(nll, grid)))


def shrink_std_factor(mixtures: Mixtures, ys: Arrays, weights: Arrays, factor: float) -> float:
    """Shrink the most likely factor of all standard deviations towards 1, by its own error.

    The logarithm of the factor is multiplied by ``1 - (2 * error / logarithm)**2``, or by 0 where
    that is negative (the non-negative garrote). Hence a factor within two standard errors of 1 is
    1, and one that is clearly different hardly changes. The standard error stays right if errors
    have heavier tails than predicted (White's sandwich): a factor that depends on a few large
    errors has a large one.

    References
    ----------
    Breiman (1995), "Better Subset Regression Using the Nonnegative Garrote"; White (1982), "Maximum
    Likelihood Estimation of Misspecified Models".
    """
    if factor == 1:
        return 1.0

    def log_density(step: float) -> np.ndarray:
        scaled = (m.scaled(factor * np.exp(step)) for m in mixtures)
        return np.concatenate([s.log_prob(y) for s, y in zip(scaled, ys)])

    weight = np.concatenate(weights)
    below, middle, above = (log_density(step) for step in (-_STEP, 0.0, _STEP))
    # Derivatives by the logarithm of the factor. The step also smooths densities that have jumps.
    score = (above - below) / (2 * _STEP)
    curvature = weight @ (2 * middle - below - above) / _STEP**2
    if curvature <= 0:  # too few rows to tell how certain the factor is
        return factor
    error = np.sqrt(weight @ score**2) / curvature  # a row of weight 2 counts as two rows
    return float(factor ** max(0.0, 1 - (2 * error / np.log(factor)) ** 2))


def fit_scales(
    mixtures: Sequence[Any], y: np.ndarray, weight: np.ndarray, *, conformal: bool = False
) -> tuple[Any, ...]:
    """Fit a factor of the standard deviations of each output and, if `conformal`, the scores.

    Returns the factor (m,), or a number, and with `conformal` the sorted absolute errors in
    calibrated standard deviations, and the coverage of intervals of each; see `conformal_quantile`.

    Parameters
    ----------
    mixtures : sequence of distributions
        Predictions, fold by fold.
    y : ndarray of shape (n[, m])
        Truths, in the order of the folds.
    weight : ndarray of shape (n,)
        Positive weights. Those of a row that repeated folds predict several times add up to the
        row's own.
    conformal : bool, default=False
    """
    single = y.ndim == 1
    ends = np.cumsum([len(mixture.mean) for mixture in mixtures])[:-1]
    outputs = [
        _fit_scale_of_output(
            [m if single else m.output(k) for m in mixtures],
            np.split(y if single else y[:, k], ends),
            np.split(weight, ends),
            conformal,
        )
        for k in range(1 if single else y.shape[1])
    ]
    scale, *scores = (part[0] if single else np.stack(part, axis=-1) for part in zip(*outputs))
    return float(scale) if single else scale, *scores


def _fit_scale_of_output(
    mixtures: Sequence[Any], ys: Arrays, weights: Arrays, conformal: bool
) -> tuple[Any, ...]:
    """Fit the factor of one output and, if `conformal`, the scores and their coverage."""
    scale = fit_std_factor(mixtures, ys, weights)
    if not all((m.std == 1).all() for m in mixtures):
        scale = shrink_std_factor(mixtures, ys, weights, scale)
    elif not any((y != m.mean).any() for m, y in zip(mixtures, ys)):
        scale = SMALLEST_UNCERTAINTY  # a regressor without uncertainty that makes no errors
    if not conformal:
        return (scale,)
    scaled = [mixture.scaled(scale) for mixture in mixtures]
    errors = np.concatenate([abs(y - m.mean) / m.std for m, y in zip(scaled, ys)])
    weight, order = np.concatenate(weights), np.argsort(errors)
    # The new row has weight 1 and an unknown error: it counts as outside (Lei et al., 2018).
    return scale, errors[order], np.cumsum(weight[order]) / (weight.sum() + 1)


def fit_temperature(probas: np.ndarray, codes: np.ndarray, weights: np.ndarray) -> float:
    """Fit the temperature T of averaged probabilities by maximum likelihood (Guo et al., 2017).

    The prior of log(T) is standard normal. Without it T would be 0 if every row's class is the most
    probable one, and a few such rows do not show that the classifier never errs.
    """
    rows = np.arange(len(codes))

    def nll(log_t: float) -> float:
        proba = scaled_probabilities(probas, 1 / np.exp(log_t))[rows, codes]
        # Minus the log prior of log(T), plus the NLL.
        return 0.5 * log_t**2 - weights @ np.log(np.maximum(proba, _LEAST_DENSITY))

    # Unimodal in 1 / T, as logistic regression with one coefficient is.
    return float(np.exp(optimize.minimize_scalar(nll, bounds=(-4, 4), method="bounded").x))


def root_mean_square(values: np.ndarray, weights: np.ndarray) -> float:
    """Compute the root mean square of values (n[, m]), whose squares may overflow or vanish."""
    largest = abs(values).max()
    if largest == 0:
        return 0.0
    squares = ((values / largest) ** 2).reshape(len(values), -1).mean(axis=1)
    return float(largest * np.sqrt(np.average(squares, weights=weights)))


def minimise(loss: Callable[[float], float], grid: np.ndarray) -> float:
    """Minimise a scalar function: grid search, then refinement."""
    losses = [loss(x) for x in grid]
    best = int(np.argmin(losses))
    # The neighbours of the best grid point bracket a minimum.
    ends = grid[max(best - 1, 0)], grid[min(best + 1, len(grid) - 1)]
    found = optimize.minimize_scalar(loss, bounds=ends, method="bounded")
    # The bounded search compares no values at the ends and may stop above the grid's best.
    return float(found.x if found.fun < losses[best] else grid[best])


# Rows that "no correction" counts as, and the logarithm of a factor from which they count less and
# less; rows of which one is far off.
_PRIOR_ROWS, _LARGE_CHANGE, _SHARE_ROWS = 100, 0.3, 20
_LOG_FACTORS = np.linspace(-2, 2, 17)  # where the search of the factor begins
_MOST_STEPS, _TOLERANCE = 200, 1e-6  # of the share
# Bounds of the search for a factor and a floor, logarithms of squares, and its first floors.
_LOG_SQUARED_FACTORS, _LOG_SQUARED_FLOORS, _FIRST_FLOORS = (-6, 6), (-20, 6), (-8, -4, -1)


def fit_calibration(
    loc: np.ndarray,
    scale: np.ndarray,
    probability: np.ndarray,
    member_weights: np.ndarray,
    unseen: np.ndarray,
    y: np.ndarray,
    weight: np.ndarray,
) -> Calibration:
    """Fit the calibration of an ensemble on rows that members have not seen.

    A row's prediction is that of the members that have not trained on it, with the spread of all
    members' means: a single unseen member would have none. Factor and share are those under which
    y is most likely. Few rows cannot tell that an ensemble is too sure. So no correction counts as
    100 rows in the logarithm of the factor, and as less where the factor is clearly another one (a
    Student t prior), and 20 further rows, of which one is far off, count in the share.

    Parameters
    ----------
    loc, scale, probability : ndarray of shape (K, J, n, m)
        Normals of the members, and their probabilities.
    member_weights : ndarray of shape (K,)
        Positive weights of the members, summing to 1.
    unseen : ndarray of bool of shape (K, n)
        Whether a member has not trained on a row.
    y : ndarray of shape (n, m)
    weight : ndarray of shape (n,)
        Non-negative.

    Returns
    -------
    Calibration
        It changes nothing without rows, or if predictions are not finite.
    """
    # Rows that all members have trained on say nothing about new rows.
    used = unseen.any(axis=0) & (weight > 0)
    n_rows = int(used.sum())
    if n_rows == 0:
        return UNCALIBRATED
    loc, scale, probability = (part[:, :, used] for part in (loc, scale, probability))
    rows = weight[used] * n_rows / weight[used].sum() / y.shape[1]
    # Weights (K, n, 1) of the members that have not trained on the row.
    share = member_weights[:, None, None] * unseen[:, used, None]
    share = share / share.sum(axis=0)
    means = (probability * loc).sum(axis=1)  # (K, n, m)
    centre = (share * means).sum(axis=0)
    spread = np.tensordot(member_weights, (means - np.tensordot(member_weights, means, 1)) ** 2, 1)
    # The unseen members' means differ by less than those of all members: widen each normal by the
    # rest of the spread.
    hidden = np.maximum(spread - (share * (means - centre) ** 2).sum(axis=0), 0)
    width, chance = np.sqrt(scale**2 + hidden), share[:, None] * probability
    inner, apart, error = loc - means[:, None], (means - centre)[:, None], y[used] - centre

    def densities(log_factor: float) -> list[np.ndarray]:
        """Compute log densities (n, m) of the stretched members, and of those that are wider."""
        found = []
        for wide in (1.0, WIDE):
            factor = math.exp(log_factor)
            std = wide * factor * width
            z = (error - factor * (apart + wide * inner)) / std
            found.append(special.logsumexp(-0.5 * z**2 - np.log(std), axis=(0, 1), b=chance))
        return found

    def share_of(own: np.ndarray, far: np.ndarray) -> float:
        """Compute the most likely share by expectation maximisation."""
        found = 1 / _SHARE_ROWS
        for _ in range(_MOST_STEPS):
            part = rows @ special.expit(special.logit(found) + far - own)
            previous, found = found, (float(part.sum()) + 1) / (n_rows + _SHARE_ROWS)
            if abs(found - previous) < _TOLERANCE:
                break
        return found

    def loss(log_factor: float) -> float:
        """Compute minus the log posterior of the factor, at its best share."""
        own, far = densities(log_factor)
        share = share_of(own, far)
        log_rest, log_share = math.log1p(-share), math.log(share)
        fit = (rows @ np.logaddexp(log_rest + own, log_share + far)).sum()
        of_factor = _LARGE_CHANGE**2 * math.log1p((log_factor / _LARGE_CHANGE) ** 2)
        prior = log_share + (_SHARE_ROWS - 1) * log_rest - _PRIOR_ROWS * of_factor
        return float(-fit - prior)

    with np.errstate(invalid="ignore", over="ignore"):
        if not np.isfinite(densities(0.0)).all():
            return UNCALIBRATED
        log_factor = minimise(loss, _LOG_FACTORS)
        return Calibration(math.exp(log_factor), share_of(*densities(log_factor)))


_FEWEST_ROWS, _N_BLOCKS = 10, 5  # from which outputs are correlated; blocks that are left out
_LEAST_SHRINKAGE = 1e-6


def fit_correlation(
    errors: np.ndarray, weight: np.ndarray, rows: np.ndarray | None = None
) -> tuple[tuple[float, ...], ...]:
    """Fit the correlation of outputs to errors of held-out rows.

    It is the correlation of the normal scores of the errors' ranks, which are the same whether
    standard deviations are right or too small. It is shrunk towards independent outputs, by the
    share under which the scores of left-out blocks of rows are most likely.

    Parameters
    ----------
    errors : ndarray of shape (n[, m])
        Errors in predicted standard deviations, or predicted distribution functions at y.
    weight : ndarray of shape (n,)
        Non-negative weights of the rows.
    rows : ndarray of shape (n,), optional
        Numbers of the rows; of those that come several times, the first is taken.

    Returns
    -------
    tuple of m tuples of m floats
        Correlation matrix; empty with one output, with fewer than 10 rows, or if no correlation is
        best.
    """
    if errors.ndim == 1 or errors.shape[1] == 1:
        return ()
    used = (weight > 0) & np.isfinite(errors).all(axis=1)
    if rows is not None:
        used &= ~pd.Series(rows).duplicated().to_numpy()
    ranks, weight = stats.rankdata(errors[used], axis=0), weight[used, None]
    if len(ranks) < _FEWEST_ROWS:
        return ()
    scores = np.sqrt(weight / weight.mean()) * special.ndtri((ranks - 0.5) / len(ranks))
    blocks = np.array_split(scores, _N_BLOCKS)
    products = np.stack([block.T @ block for block in blocks])
    # Ranks are equal by chance, too, if the correlation is within about 1 / n^2 of 1.
    shares = np.geomspace(max(_LEAST_SHRINKAGE, len(ranks) ** -2), 1, 31)

    def loss(share: float) -> float:
        return -sum(
            len(block) * log_likelihood(own / len(block), linalg.inv(_shrunk(others, share)))
            for block, own, others in zip(blocks, products, products.sum(axis=0) - products)
        )

    share = min(shares, key=loss)
    return tuple(map(tuple, _shrunk(products.sum(axis=0), share).tolist())) if share < 1 else ()


def _shrunk(products: np.ndarray, share: float) -> np.ndarray:
    """Compute the shrunk correlation matrix (m, m) of sums of products; constants have none."""
    stds = np.sqrt(np.maximum(np.diag(products), np.finfo(float).tiny))
    found = (1 - share) * products / np.outer(stds, stds)
    np.fill_diagonal(found, 1.0)
    return found


def fit_factor_and_floor(
    squared_error: np.ndarray, total: np.ndarray, weight: np.ndarray, fewest_rows: int = 30
) -> tuple[float, float]:
    """Fit a factor a and a floor b of standard deviations: errors have ``a**2 * total + b**2``.

    Errors are normal, and ``log(a**2)`` has a standard normal prior.

    Parameters
    ----------
    squared_error, total : ndarray of shape (n,)
        Squared errors on rows that have not been trained on, and the variances predicted there.
    weight : ndarray of shape (n,)
        Non-negative.
    fewest_rows : int, default=30
        With fewer rows nothing is fitted: the factor is 1 and the floor 0.
    """
    used = weight > 0
    n_used = int(used.sum())
    if n_used < fewest_rows:
        return 1.0, 0.0
    squared_error, rows = squared_error[used], weight[used] / weight[used].sum()
    variances = np.stack([total[used], np.ones(n_used)])

    def nll(logs: np.ndarray) -> tuple[float, np.ndarray]:
        """Compute the loss and its gradient from the logarithms of both squares."""
        scaled = np.exp(logs)[:, None] * variances
        variance = scaled.sum(axis=0)
        # Twice the mean negative log likelihood of normals, without its constant, and the prior
        # on the same scale.
        loss = rows @ (np.log(variance) + squared_error / variance) + logs[0] ** 2 / n_used
        gradient = scaled @ (rows * (1 / variance - squared_error / variance**2))
        return float(loss), gradient + [2 * logs[0] / n_used, 0.0]

    # The loss can have several minima in the floor; the factor always starts at 1.
    bounds = [_LOG_SQUARED_FACTORS, _LOG_SQUARED_FLOORS]
    fits = [
        optimize.minimize(nll, (0.0, floor), jac=True, method="L-BFGS-B", bounds=bounds)
        for floor in _FIRST_FLOORS
    ]
    best = min(fits, key=lambda fit: fit.fun)
    if not math.isfinite(best.fun):
        return 1.0, 0.0
    factor, floor = np.exp(best.x / 2)
    return float(factor), float(floor)
