"""What calibration learns from predictions of rows a model has not seen.

Notation: n rows; predictions come in folds, a mixture of each; weights w (n,).
"""

from __future__ import annotations

import numpy as np
from scipy import optimize

from skuq.predictive._gaussian_mixture import GaussianMixture

__all__ = ["fit_levels", "fit_scale", "fit_temperature", "tempered", "weighted_quantile"]

_WIDEST = np.log(1e4)  # of a factor, either way


def fit_scale(mixtures: list[GaussianMixture], ys: list, weights: list) -> float:
    """The factor c of all standard deviations under which y is most likely.

    For one normal a row this is ``sqrt(mean(((y - mean) / std) ** 2))``; the mixture's own
    likelihood has to be searched, from there.

    References
    ----------
    Heiss et al., "NOMU", section 4.1.2 and appendix B.2.1 (NLL_min).
    """
    squares = [((y - m.mean) / m.std) ** 2 for m, y in zip(mixtures, ys)]
    start = 0.5 * np.log(np.average(np.concatenate(squares), weights=np.concatenate(weights)))
    if max(len(m.weights) for m in mixtures) == 1 or not np.isfinite(start):
        return float(np.exp(np.clip(start, -_WIDEST, _WIDEST)))

    def nll(log_c):
        scaled = (m.scaled(np.exp(log_c)) for m in mixtures)
        return -sum(w @ s.log_prob(y) for s, y, w in zip(scaled, ys, weights))

    start = np.clip(start, -_WIDEST, _WIDEST)
    found = optimize.minimize_scalar(nll, bounds=(start - 2, start + 2), method="bounded")
    return float(np.exp(found.x if found.fun < nll(start) else start))


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
        return -(weights @ np.log(tempered(probas, np.exp(log_t))[rows, codes] + 1e-300))

    # Unimodal in 1 / T, as logistic regression with one coefficient is.
    return float(np.exp(optimize.minimize_scalar(nll, bounds=(-4, 4), method="bounded").x))


def tempered(proba: np.ndarray, temperature: float) -> np.ndarray:
    """Probabilities to the power 1 / T, normalised; zeros stay so."""
    with np.errstate(divide="ignore"):
        logits = np.log(proba) / temperature
    powers = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)
