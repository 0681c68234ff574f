"""Conformal quantiles and intervals: those of the standardised errors of held-out rows.

They are a rule for the intervals of a fitted model. Its distributions stay as they are.

References
----------
Lei, G'Sell, Rinaldo, Tibshirani and Wasserman (2018), "Distribution-Free Predictive Inference for
Regression", section 5.2 (locally weighted).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from skuq.predictive._distributions import ordered_quantiles


def conformal_quantile(
    distribution: Any, scores: np.ndarray, reach: np.ndarray, probability: ArrayLike
) -> np.ndarray:
    """Compute quantiles, as `GaussianMixture.quantile`, that are ends of conformal intervals.

    Intervals are symmetric about the mean. Raise ValueError if the scores are too few for a
    probability.

    Parameters
    ----------
    distribution : Mixture or TwoPieceNormal
        Distribution with calibrated standard deviations.
    scores : ndarray of shape (n_scores,) or (n_scores, m)
        Sorted absolute errors of held-out rows, in predicted standard deviations.
    reach : ndarray of the same shape
        Least coverage of intervals whose half width is the score: increasing, below 1.
    probability : float, or array-like of shape (q,) or that broadcasts to (n, q[, m])
    """
    mean, std = distribution.mean, distribution.std

    def ends(levels: np.ndarray) -> np.ndarray:
        levels = np.broadcast_to(levels, (len(levels), *mean.shape))
        coverage = abs(2 * levels - 1)  # of the central interval that ends at the level
        if scores.ndim == 1:
            radii = _radius(coverage, scores, reach)
        else:
            each = zip(np.moveaxis(coverage, -1, 0), scores.T, reach.T)
            radii = np.stack([_radius(*output) for output in each], axis=-1)
        return mean + np.sign(levels - 0.5) * std * radii

    return ordered_quantiles(ends, mean.shape, probability)


def _radius(coverage: np.ndarray, scores: np.ndarray, reach: np.ndarray) -> np.ndarray:
    """Find the smallest score whose interval has the coverage."""
    at = np.searchsorted(reach, coverage - 1e-9)  # 0.9 of ten rows is nine of them, rounded or not
    if (at >= len(scores)).any():
        raise ValueError(
            f"The calibration rows reach a coverage of {reach[-1]:.4g}. Got "
            f'{coverage.max():.4g}: calibrate on more rows, or take method="scale".'
        )
    return np.asarray(scores[at])
