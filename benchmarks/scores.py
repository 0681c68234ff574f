"""Scores of what a method predicts, the same for all methods."""

from typing import NamedTuple

import numpy as np
from peer import LEVELS
from scipy.integrate import simpson
from sklearn.metrics import log_loss

from skuq.metrics import brier_loss, ece_loss, gaussian_nll_loss
from skuq.predictive import GaussianMixture

COVERAGES = (0.5, 0.8, 0.9, 0.95)
N_WORST = 3  # rows of largest NLL that are kept


class Predicted(NamedTuple):
    """Predictions of a regressor for n rows, and its seconds."""

    mean: np.ndarray
    std: np.ndarray
    fit_seconds: float
    predict_seconds: float
    distribution: object = None  # None: a normal
    has_density: bool = True


class Quantiles:
    """Distribution of each row with quantiles (19, n) at `LEVELS`; equal ones get a little spread.

    The density is constant between levels, and falls exponentially beyond the outermost ones.
    """

    def __init__(self, values):
        least = 1e-3 * np.maximum(np.ptp(values, axis=0), 1e-9) / len(values)
        self.values = values + least * np.arange(len(values))[:, None]
        self.density = np.diff(LEVELS)[:, None] / np.diff(self.values, axis=0)
        # Scales of the tails, by which the density is continuous.
        self.below, self.above = LEVELS[0] / self.density[0], (1 - LEVELS[-1]) / self.density[-1]

    def cdf(self, y):
        """Compute the cumulative probability of y (n,) or (n, k)."""
        parts = self.values, self.below, self.above
        values, low, high = (part[..., None] if y.ndim > 1 else part for part in parts)
        below = LEVELS[0] * np.exp(np.minimum(y - values[0], 0) / low)
        above = (1 - LEVELS[-1]) * -np.expm1(np.minimum(values[-1] - y, 0) / high)
        share = np.clip((y - values[:-1]) / np.diff(values, axis=0), 0, 1)
        return below + above + np.tensordot(np.diff(LEVELS), share, 1)

    def log_prob(self, y):
        piece = np.clip((y >= self.values).sum(axis=0) - 1, 0, len(self.density) - 1)
        inside = np.log(np.take_along_axis(self.density, piece[None], axis=0)[0])
        low = np.minimum(y - self.values[0], 0) / self.below
        return inside + low + np.minimum(self.values[-1] - y, 0) / self.above

    def quantile(self, levels):
        """Quantiles (n, k) at k levels."""
        p = np.asarray(levels)[:, None]
        low = self.below * np.minimum(np.log(p / LEVELS[0]), 0)
        high = self.above * np.minimum(np.log((1 - p) / (1 - LEVELS[-1])), 0)
        share = np.clip((p[:, None] - LEVELS[:-1, None]) / np.diff(LEVELS)[:, None], 0, 1)
        return (self.values[0] + (share * np.diff(self.values, axis=0)).sum(axis=1) + low - high).T

    def interval(self, coverage):
        return self.quantile([(1 - coverage) / 2, (1 + coverage) / 2]).T


def exact_crps(distribution, y, n_points=401):
    """CRPS of each row: the integral of (F - 1{y <= .})^2, by Simpson's rule on either side."""
    low, high = distribution.quantile([1e-5, 1 - 1e-5]).T
    total = 0.0
    for end in (np.minimum(low, y), np.maximum(high, y)):
        grid = np.linspace(end, y, n_points, axis=1)
        beyond = distribution.cdf(grid) - (end > y)[:, None]
        total = total + abs(simpson(beyond**2, x=grid, axis=1))
    return total


def regression_scores(predicted, y):
    """Score a distribution.

    `nll` and `crps` are those of the normal with its mean and standard deviation, which every
    method has; `nll_own`, `crps_own` and intervals are its own (samples have no density).
    """
    mean, std, distribution = predicted.mean, predicted.std, predicted.distribution
    if distribution is None:
        distribution = GaussianMixture(mean[None], std[None])
    by_row = 0.5 * ((y - mean) / std) ** 2 + np.log(std * np.sqrt(2 * np.pi))
    scores = {
        "nll": gaussian_nll_loss(y, mean, std),
        "nll_worst": by_row.max(),
        "crps": float(GaussianMixture(mean[None], std[None]).crps(y).mean()),
        "rmse": float(np.sqrt(np.mean((y - mean) ** 2))),
        "crps_own": float(exact_crps(distribution, y).mean()),
    }
    if predicted.has_density:
        losses = -distribution.log_prob(y)
        worst = np.argsort(-losses)[:N_WORST]
        scores["nll_own"] = float(losses.mean())
        scores["worst_rows"] = [[int(row), float(losses[row])] for row in worst]
    for level in COVERAGES:
        low, high = distribution.interval(level)
        name = "" if level == 0.9 else f"_{100 * level:.0f}"
        scores[f"coverage{name}"] = float(np.mean((low <= y) & (y <= high)))
        scores[f"width{name}"] = float(np.mean(high - low))
    return {
        **scores,
        "sharpness": float(np.sqrt(np.mean(std**2))),
        "fit_seconds": predicted.fit_seconds,
        "predict_seconds": predicted.predict_seconds,
    }


def class_scores(proba, y, y_train, classes):
    """Score probabilities; classes that training rows do not have are not tested."""
    tested = np.isin(y, y_train)
    proba, codes = proba[tested], np.searchsorted(classes, y[tested])
    shares = np.bincount(np.searchsorted(classes, y_train), minlength=len(classes)) / len(y_train)
    return {
        "nll": log_loss(codes, proba, labels=np.arange(len(classes))),
        "nll_of_shares": -np.log(shares[codes]).mean(),
        "brier": float(brier_loss(codes, proba)),
        "ece": float(ece_loss(codes, proba)),
        "error": float(np.mean(proba.argmax(axis=1) != codes)),
    }
