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

_SMALLEST_SPREAD = 1e-6  # variance of the logarithms of groups' variances that counts as none


def fit_std_factor(
    mixtures: Sequence[GaussianMixture],
    ys: Sequence[np.ndarray],
    weights: Sequence[np.ndarray],
) -> float:
    """Fit the factor c of all standard deviations by maximum likelihood.

    For one normal a row this is ``sqrt(mean(((y - mean) / std) ** 2))``; the mixture's own
    likelihood may have several maxima and is searched. Where every y is met exactly there
    is nothing to learn, and it is 1.

    References
    ----------
    Heiss et al., "NOMU", section 4.1.2 and appendix B.2.1 (NLL_min).
    """
    weight = np.concatenate(weights)
    errors = np.concatenate([abs(y - m.mean) / m.std for m, y in zip(mixtures, ys)])
    moment = root_mean_square(errors, weight)
    if moment == 0:
        return 1.0
    if all(len(m.weights) == 1 and isinstance(m, GaussianMixture) for m in mixtures):
        return moment

    def nll(log_c: float) -> float:
        scaled = (m.scaled(np.exp(log_c)) for m in mixtures)
        return -sum(w @ s.log_prob(y) for s, y, w in zip(scaled, ys, weights))

    # From the best of a coarse grid, which holds 1 and the moments' answer: a member that is
    # wildly unsure pulls that far away from the maximum.
    start = np.log(moment)
    grid = np.unique(
        np.concatenate([np.linspace(min(start, 0) - 2, max(start, 0) + 2, 25), [0.0, start]])
    )
    return float(np.exp(minimise(nll, grid)))


def root_mean_square(values: np.ndarray, weights: np.ndarray) -> float:
    """Root mean square of values (n,), whose squares may overflow or vanish."""
    largest = abs(values).max()
    if largest == 0:
        return 0.0
    return float(largest * np.sqrt(np.average((values / largest) ** 2, weights=weights)))


def minimise(loss: Callable[[float], float], grid: np.ndarray) -> float:
    """Minimise a scalar function: grid search, then refinement."""
    losses = [loss(x) for x in grid]
    best = int(np.argmin(losses))
    ends = grid[max(best - 1, 0)], grid[min(best + 1, len(grid) - 1)]
    found = optimize.minimize_scalar(loss, bounds=ends, method="bounded")
    return float(found.x if found.fun < losses[best] else grid[best])


def weighted_quantile(values: np.ndarray, weights: np.ndarray, levels: ArrayLike) -> np.ndarray:
    """Smallest values at which the share of weight reaches each level."""
    order = np.argsort(values)
    share = np.cumsum(weights[order]) / weights.sum()
    at = np.searchsorted(share, np.asarray(levels) - 1e-12)
    return values[order][np.minimum(at, len(values) - 1)]


def effective_rows(weights: np.ndarray) -> float:
    """Compute how many rows of equal weight tell as much as rows of these weights (n,)."""
    total = weights.sum()
    return float(total**2 / np.sum(weights**2)) if total > 0 else 0.0


def fit_levels(
    pit: np.ndarray, weights: np.ndarray, n_rows: float
) -> tuple[np.ndarray, np.ndarray]:
    """Fit knots (n_knots,) of the map from predicted to observed levels (Kuleshov et al., 2018).

    The isotonic fit of the observed on the predicted levels is the distribution function of
    the PIT values (n,). Between knots, of which each holds ten values or more, and twenty at
    most, it is linear, so that there is a density. Both ends increase strictly from 0 to 1.
    `n_rows` is the effective number of rows.
    """
    n_knots = int(
        np.clip((n_rows + 1e-6) // 10, 1, 20)
    )  # n_rows is rounded where weights are equal
    observed = np.arange(n_knots + 1) / n_knots
    inner = weighted_quantile(pit, weights, observed[1:-1])
    predicted = np.concatenate([[0.0], inner, [1.0]])
    # Strictly increasing where values pile up: a thousandth of the identity.
    return 0.999 * predicted + 0.001 * observed, observed


def pool_variances(variances: np.ndarray, degrees: np.ndarray) -> np.ndarray:
    """Average the variance of each group with that of all, the more so the less groups differ.

    Empirical Bayes: variances (G,) with so many degrees of freedom are taken for draws around true
    ones with a scaled inverse chi-square distribution, whose two parameters are found from the
    mean and the variance of the logarithms. Groups that differ by no more than chance get one
    variance.

    References
    ----------
    Smyth (2004), "Linear models and empirical Bayes methods for assessing differential expression
    in microarray experiments", section 6.2.
    """
    used = variances > 0
    if used.sum() < 2:
        return np.full(len(variances), variances.max())
    half = 0.5 * degrees[used]
    logs = np.log(variances[used]) - special.digamma(half) + np.log(half)
    # A group of few rows tells little of how much groups differ.
    noise = special.polygamma(1, half)
    weight = 1 / (noise + 0.1)
    centre = np.average(logs, weights=weight)
    spread = np.average((logs - centre) ** 2 - noise, weights=weight)
    spread *= len(logs) / (len(logs) - 1)
    if spread < _SMALLEST_SPREAD:
        return np.full(len(variances), np.average(variances[used], weights=degrees[used]))
    prior = _inverse_trigamma(spread)  # half of the degrees of freedom
    typical = np.exp(centre + special.digamma(prior) - np.log(prior))
    averaged: np.ndarray = (2 * prior * typical + degrees * variances) / (2 * prior + degrees)
    return averaged


def _inverse_trigamma(value: float) -> float:
    """Find x with trigamma(x) = value."""

    def excess(log_x: float) -> float:
        return float(special.polygamma(1, np.exp(log_x))) - value

    return float(np.exp(optimize.brentq(excess, -20, 20)))
