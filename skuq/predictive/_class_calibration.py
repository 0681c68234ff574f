"""Fit the calibration of class probabilities: temperature, vector scaling, members' spread.

Notation: K members, n rows, C classes; codes (n,) are the positions of the rows' classes, weights
(n,) are 1 for a row of average weight.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy import optimize
from scipy.special import softmax
from sklearn.neighbors import NearestNeighbors

from skuq.predictive._categorical_mixture import CategoricalMixture

SMALLEST_PROBABILITY = np.finfo(float).eps  # that a temperature can work on
_SMALLEST_DENSITY = np.finfo(float).tiny
_ROW_PRECISION = 0.1  # that a row gives a slope or a bias of logits, about
_MOST_PAIRED = 3000  # rows of a fold whose neighbours are looked for
_NEAR = 10  # neighbours that each of them is paired with
_LARGEST_SPREAD = 5.0


def fit_temperature(probas: np.ndarray, codes: np.ndarray, weights: np.ndarray) -> float:
    """Fit the temperature T of averaged probabilities by maximum likelihood (Guo et al., 2017).

    The prior of log(T) is standard normal. Without it T would be 0 if every row's class is the most
    probable one, and a few such rows do not show that the classifier never errs.
    """
    rows = np.arange(len(codes))

    def nll(log_t: float) -> float:
        proba = temper(probas, np.exp(log_t))[rows, codes]
        # Minus the log prior of log(T), plus the NLL.
        return 0.5 * log_t**2 - weights @ np.log(np.maximum(proba, _SMALLEST_DENSITY))

    # Unimodal in 1 / T, as logistic regression with one coefficient is.
    return float(np.exp(optimize.minimize_scalar(nll, bounds=(-4, 4), method="bounded").x))


def temper(proba: np.ndarray, temperature: float) -> np.ndarray:
    """Raise probabilities (n, C) to the power 1 / T, and normalise them.

    A probability of 0 counts as 2e-16, because a class that a neighbourhood or a tree has not seen
    is not impossible.
    """
    return scaled_probabilities(proba, 1 / temperature, 0.0)


def scaled_probabilities(
    proba: np.ndarray, slopes: float | np.ndarray, biases: float | np.ndarray
) -> np.ndarray:
    """Multiply the logarithms of probabilities (n, C) by slopes, add biases, and normalise.

    Slopes and biases broadcast against (n, C).
    """
    logits = slopes * np.log(np.maximum(proba, SMALLEST_PROBABILITY)) + biases
    return np.asarray(softmax(logits, axis=-1))


def fit_vector_scaling(
    probas: np.ndarray,
    codes: np.ndarray,
    weights: np.ndarray,
    centre: tuple[np.ndarray, np.ndarray],
    n_prior: float = 1.0,
) -> tuple[np.ndarray, np.ndarray]:
    """Fit a slope and a bias of each class' log probability (Guo et al., 2017, section 4.2).

    Slopes and biases (C,) maximise the likelihood times a normal prior. Its mean is `centre`, a
    pair of slopes and biases, and its precision that of `n_prior` rows.
    """
    logs = np.log(np.maximum(probas, SMALLEST_PROBABILITY))
    rows, n_classes = np.arange(len(codes)), probas.shape[1]
    prior = np.concatenate(centre)
    precision = _ROW_PRECISION * n_prior

    def loss(parameters: np.ndarray) -> tuple[float, np.ndarray]:
        slopes, biases = parameters[:n_classes], parameters[n_classes:]
        logits = slopes * logs + biases
        logits -= logits.max(axis=1, keepdims=True)
        powers = np.exp(logits)
        total = powers.sum(axis=1)
        nll = weights @ (np.log(total) - logits[rows, codes])
        # Derivative of the loss by the logits (n, C): probabilities minus indicators.
        residual = powers / total[:, None]
        residual[rows, codes] -= 1
        residual *= weights[:, None]
        gradient = np.concatenate([(residual * logs).sum(axis=0), residual.sum(axis=0)])
        off = parameters - prior
        return nll + 0.5 * precision * off @ off, gradient + precision * off

    # The loss is convex in slopes and biases, so that the start does not matter.
    found = optimize.minimize(loss, prior, jac=True, method="L-BFGS-B").x
    return found[:n_classes], found[n_classes:]


def fit_spread(
    mixtures: Sequence[CategoricalMixture],
    codes: Sequence[np.ndarray],
    weights: Sequence[np.ndarray],
) -> float:
    """Fit the factor s of the members' differences from the average.

    Single labels depend on the average alone. The joint probability of two rows' classes y and y'
    also depends on the differences: members that are right on one row may be right on the other.
    The factor maximises the joint likelihood of pairs of rows on which members differ alike,

        sum log(1 + s**2 * cov(p(y), p(y')) / (mean p(y) * mean p(y'))),

    with a normal prior of s**2 with mean 1 and standard deviation 1. Sequences hold one element per
    fold. For a single member the factor is 1.

    References
    ----------
    Osband et al. (2022), "The Neural Testbed: Evaluating Joint Predictions".
    """
    terms, shares = [], []
    for mixture, code, weight in zip(mixtures, codes, weights):
        rows = np.arange(len(code))
        if len(mixture.weights) == 1 or len(rows) < 2:
            continue
        if len(rows) > _MOST_PAIRED:
            # Evenly spaced rows: the search for neighbours would take too long on all.
            rows = np.linspace(0, len(rows) - 1, _MOST_PAIRED).astype(int)
        differences = mixture.proba[:, rows] - mixture.mean[rows]  # (K, n, C)
        # (p_k(y) - mean p(y)) / mean p(y), so that the products below are relative covariances.
        relative = differences[:, np.arange(len(rows)), code[rows]] / np.maximum(
            mixture.mean[rows, code[rows]], SMALLEST_PROBABILITY
        )  # (K, n)
        # Rows on which members differ alike are near in the space of all differences, (n, K * C).
        n_near = min(_NEAR, len(rows) - 1)
        search = NearestNeighbors(n_neighbors=n_near).fit(
            np.moveaxis(differences, 1, 0).reshape(len(rows), -1)
        )
        near = search.kneighbors(return_distance=False)  # (n, n_near), without the row itself
        # cov(p(y), p(y')) / (mean p(y) * mean p(y')) of each row with each neighbour, (n, n_near).
        terms.append(np.einsum("k,kn,knj->nj", mixture.weights, relative, relative[:, near]))
        # The pairs of a row share its weight.
        shares.append(np.broadcast_to(weight[rows, None] / n_near, near.shape))
    if not terms:
        return 1.0
    ratio, share = (np.concatenate([part.ravel() for part in arrays]) for arrays in (terms, shares))

    def loss(square: float) -> float:
        return 0.5 * (square - 1) ** 2 - float(share @ np.log1p(square * ratio))

    # The probability of each pair must be positive.
    largest = min(0.99 / max(-ratio.min(), 1e-9), _LARGEST_SPREAD**2)
    found = optimize.minimize_scalar(loss, bounds=(0.0, largest), method="bounded")
    return float(np.sqrt(found.x))
