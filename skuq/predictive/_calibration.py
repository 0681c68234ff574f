"""Fit the calibration of a regressor's predictions to rows that it has not seen.

Notation: n rows; predictions come in folds, a mixture of each; weights (n,) are 1 for a row of
average weight.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import ArrayLike
from scipy import optimize, special

from skuq.predictive._gaussian_mixture import GaussianMixture
from skuq.predictive._mixture import Mixture
from skuq.predictive._two_piece import TwoPieceNormal

_MOST_PIECES = 20  # largest number of pieces of a map of levels
_PIECES = (1, 2, 4, 5, 10, 20)  # divisors of 20, so that all maps share their knots
_STEP = 0.1  # of a factor's logarithm, for differences in place of derivatives
_SMALLEST_SPREAD = 1e-6  # variance of the logarithms of groups' variances that counts as none


def fit_std_factor(
    mixtures: Sequence[Mixture | TwoPieceNormal],
    ys: Sequence[np.ndarray],
    weights: Sequence[np.ndarray],
) -> float:
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
    if all(isinstance(m, GaussianMixture) and len(m.weights) == 1 for m in mixtures):
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


def shrink_std_factor(
    mixtures: Sequence[Mixture | TwoPieceNormal],
    ys: Sequence[np.ndarray],
    weights: Sequence[np.ndarray],
    factor: float,
) -> float:
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


def root_mean_square(values: np.ndarray, weights: np.ndarray) -> float:
    """Compute the root mean square of values (n,), whose squares may overflow or vanish."""
    largest = abs(values).max()
    if largest == 0:
        return 0.0
    return float(largest * np.sqrt(np.average((values / largest) ** 2, weights=weights)))


def minimise(loss: Callable[[float], float], grid: np.ndarray) -> float:
    """Minimise a scalar function: grid search, then refinement."""
    losses = [loss(x) for x in grid]
    best = int(np.argmin(losses))
    # The neighbours of the best grid point bracket a minimum.
    ends = grid[max(best - 1, 0)], grid[min(best + 1, len(grid) - 1)]
    found = optimize.minimize_scalar(loss, bounds=ends, method="bounded")
    # The bounded search compares no values at the ends and may stop above the grid's best.
    return float(found.x if found.fun < losses[best] else grid[best])


def weighted_quantile(values: np.ndarray, weights: np.ndarray, levels: ArrayLike) -> np.ndarray:
    """Compute the smallest values (q,) at which the share of the weight reaches each level."""
    order = np.argsort(values)
    share = np.cumsum(weights[order]) / weights.sum()
    # The tolerance is for levels that a sum of weights reaches up to rounding.
    at = np.searchsorted(share, np.asarray(levels) - 1e-12)
    return values[order][np.minimum(at, len(values) - 1)]


def effective_rows(weights: np.ndarray, factor: ArrayLike = 1.0) -> float:
    """Compute how many rows of equal weight are worth as much as these rows.

    A row of weight 2 is worth two rows. If `factor` (n,) is a part of the weights that does not
    count rows, n rows are worth ``(sum factor)**2 / sum factor**2`` (Kish).
    """
    total = weights.sum()
    return float(total**2 / np.sum(weights * factor)) if total > 0 else 0.0


def fit_levels(
    pit: np.ndarray, weights: np.ndarray, n_effective: float
) -> tuple[np.ndarray, np.ndarray]:
    """Fit a piecewise linear map from predicted to observed levels.

    Return the predicted and the observed levels of its knots, (21,) each, which increase strictly
    from 0 to 1. The isotonic fit is the distribution function of the PIT values (n,) (Kuleshov et
    al., 2018); a piecewise linear map has a density, too. Maps of 1 to 20 pieces of equal observed
    probability, with at least ten of the `n_effective` rows in each, are averaged with Akaike's
    weights. If predictions are calibrated, little more than the identity is left, where twenty
    pieces would lower the mean log density by about 20 / (2 n).

    References
    ----------
    Burnham and Anderson (2002), "Model Selection and Multimodel Inference", section 2.9 (weights).
    """
    observed = np.arange(_MOST_PIECES + 1) / _MOST_PIECES
    knots = np.concatenate([[0.0], weighted_quantile(pit, weights, observed[1:-1]), [1.0]])
    # A thousandth of the identity makes the map strictly increasing where values are equal.
    knots = 0.999 * knots + 0.001 * observed
    criteria, maps = [], []
    for n_pieces in _PIECES:
        if n_pieces > 1 and n_effective + 1e-6 < 10 * n_pieces:  # 99.999.. effective rows are 100
            break
        every = slice(None, None, _MOST_PIECES // n_pieces)
        # Log density 1 / (n * width) on n pieces of equal mass; n - 1 parameters.
        log_density = -np.log(n_pieces * np.diff(knots[every])).mean()
        criteria.append(n_effective * log_density - (n_pieces - 1))
        maps.append(np.interp(observed, observed[every], knots[every]))
    predicted = special.softmax(criteria) @ maps
    predicted[-1] = 1.0  # the sum of the weights is rounded
    return predicted, observed


def pool_variances(variances: np.ndarray, degrees: np.ndarray) -> np.ndarray:
    """Shrink the variances of groups towards a common one, by empirical Bayes.

    The true variances have a scaled inverse chi-square prior, and their estimates (G,) have the
    given degrees of freedom (G,). The two parameters of the prior are found from the mean and the
    variance of the logarithms. Groups that differ by no more than chance get one variance. A
    variance of 0 counts as unknown for the prior.

    References
    ----------
    Smyth (2004), "Linear models and empirical Bayes methods for assessing differential expression
    in microarray experiments", section 6.2.
    """
    used = variances > 0
    if used.sum() < 2:
        return np.full(len(variances), variances.max())
    half = 0.5 * degrees[used]
    # Unbiased logarithms of the variances, and the variances of their errors (Smyth, 6.2).
    logs = np.log(variances[used]) - special.digamma(half) + np.log(half)
    noise = special.polygamma(1, half)
    weight = 1 / (noise + 0.1)  # small for groups of few rows, which say little of the prior
    weight /= weight.sum()
    centre = weight @ logs
    # The weighted variance about the weighted mean has the expectation
    # sum w (1 - w) (spread + noise).
    share = weight * (1 - weight)
    spread = (weight @ (logs - centre) ** 2 - share @ noise) / share.sum()
    if spread < _SMALLEST_SPREAD:
        return np.full(len(variances), np.average(variances[used], weights=degrees[used]))
    prior = _inverse_trigamma(spread)  # half of the prior's degrees of freedom
    # The logarithm of a scaled inverse chi-square of d0 degrees has the variance trigamma(d0 / 2)
    # and the mean log(typical) - digamma(d0 / 2) + log(d0 / 2).
    typical = np.exp(centre + special.digamma(prior) - np.log(prior))
    # The posterior mean: prior and estimate weighted by their degrees of freedom.
    averaged: np.ndarray = (2 * prior * typical + degrees * variances) / (2 * prior + degrees)
    return averaged


def _inverse_trigamma(value: float) -> float:
    """Solve trigamma(x) = value."""

    def excess(log_x: float) -> float:
        return float(special.polygamma(1, np.exp(log_x))) - value

    return float(np.exp(optimize.brentq(excess, -20, 20)))
