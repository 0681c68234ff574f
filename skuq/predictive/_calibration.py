"""What calibration learns from predictions of rows a model has not seen.

Notation: n rows; predictions come in folds, a mixture of each; weights w (n,).
"""

from __future__ import annotations

import numpy as np
from scipy import optimize

from skuq.predictive._gaussian_mixture import GaussianMixture

__all__ = ["fit_levels", "fit_scale", "fit_temperature", "tempered", "weighted_quantile"]

_SMALLEST_PROBABILITY = np.finfo(float).eps  # that a temperature can work on


def fit_scale(mixtures: list[GaussianMixture], ys: list, weights: list) -> float:
    """The factor c of all standard deviations under which y is most likely.

    For one normal a row this is ``sqrt(mean(((y - mean) / std) ** 2))``; the mixture's own
    likelihood may have several maxima and is searched. Where every y is met exactly there
    is nothing to learn, and it is 1.

    References
    ----------
    Heiss et al., "NOMU", section 4.1.2 and appendix B.2.1 (NLL_min).
    """
    weight = np.concatenate(weights)
    errors = np.concatenate([abs(y - m.mean) / m.std for m, y in zip(mixtures, ys)])
    largest = errors.max()
    if largest == 0:
        return 1.0
    moment = largest * np.sqrt(np.average((errors / largest) ** 2, weights=weight))
    if max(len(m.weights) for m in mixtures) == 1:
        return float(moment)

    def nll(log_c):
        scaled = (m.scaled(np.exp(log_c)) for m in mixtures)
        return -sum(w @ s.log_prob(y) for s, y, w in zip(scaled, ys, weights))

    # From the best of a coarse grid, which holds 1 and the moments' answer: a member that is
    # wildly unsure pulls that far away from the maximum.
    start = np.log(moment)
    grid = np.unique(
        np.concatenate([np.linspace(min(start, 0) - 2, max(start, 0) + 2, 25), [0.0, start]])
    )
    losses = [nll(log_c) for log_c in grid]
    best = int(np.argmin(losses))
    ends = grid[max(best - 1, 0)], grid[min(best + 1, len(grid) - 1)]
    found = optimize.minimize_scalar(nll, bounds=ends, method="bounded")
    return float(np.exp(found.x if found.fun < losses[best] else grid[best]))


def weighted_quantile(values, weights, levels):
    """Smallest values at which the share of weight reaches each level."""
    order = np.argsort(values)
    share = np.cumsum(weights[order]) / weights.sum()
    at = np.searchsorted(share, np.asarray(levels) - 1e-12)
    return values[order][np.minimum(at, len(values) - 1)]


def fit_levels(pit: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Knots of the map from predicted to observed levels (Kuleshov et al., 2018).

    The isotonic fit of the observed on the predicted levels is the distribution function of
    the PIT values. Between knots, of which each holds ten values or more, and twenty at
    most, it is linear, so that there is a density.

    Parameters
    ----------
    pit : ndarray of shape (n,)
        Predicted cdf at y.
    weights : ndarray of shape (n,)

    Returns
    -------
    predicted, observed : ndarray of shape (n_knots,)
        Strictly increasing, from 0 to 1.
    """
    n_knots = int(np.clip(len(pit) // 10, 1, 20))
    observed = np.arange(n_knots + 1) / n_knots
    inner = weighted_quantile(pit, weights, observed[1:-1])
    predicted = np.concatenate([[0.0], inner, [1.0]])
    # Strictly increasing where values pile up: a thousandth of the identity.
    return 0.999 * predicted + 0.001 * observed, observed


def fit_temperature(probas: np.ndarray, codes: np.ndarray, weights: np.ndarray) -> float:
    """The temperature under which the classes are most likely (Guo et al., 2017).

    Parameters
    ----------
    probas : ndarray of shape (n, C)
        Averaged probabilities.
    codes : ndarray of int of shape (n,)
    weights : ndarray of shape (n,)
    """
    rows = np.arange(len(codes))

    def nll(log_t):
        return -(weights @ np.log(tempered(probas, np.exp(log_t))[rows, codes]))

    # Unimodal in 1 / T, as logistic regression with one coefficient is.
    return float(np.exp(optimize.minimize_scalar(nll, bounds=(-4, 4), method="bounded").x))


def tempered(proba: np.ndarray, temperature: float) -> np.ndarray:
    """Probabilities to the power 1 / T, normalised.

    A 0 counts as the rounding of 1: a class that a neighbourhood or a tree has not seen is
    not impossible, and a temperature above 1 says how far it is.
    """
    logits = np.log(np.maximum(proba, _SMALLEST_PROBABILITY)) / temperature
    powers = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)
