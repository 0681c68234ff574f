"""Calibration of an ensemble by rows that some of its members have not trained on.

Notation: K members, n rows, m outputs.
"""

from __future__ import annotations

import numpy as np
from scipy import optimize

_FEWEST_PAIRS = 30  # rows that two members have not seen
_PRIOR_ROWS = 600  # weight of "no correction", in rows
_STARTS = [(factor, floor) for factor in (-1.0, 0.0, 0.4) for floor in (-5.0, -3.0, -1.5)]


def fit_out_of_bag_scale(
    loc: np.ndarray,
    scale: np.ndarray,
    unseen: np.ndarray,
    y: np.ndarray,
    weight: np.ndarray,
) -> tuple[float, float]:
    """Fit a factor a of an ensemble's total standard deviation, and a floor b of its noise.

    Under them the errors of the whole ensemble are most likely to come from normals of variance
    ``a**2 * total**2 + b**2``. A row's error is that of the members which have not trained on it.
    The whole ensemble errs less: by how much follows from the errors of one member and of the
    average of several, on the same rows. Logarithms of a, and b, are shrunk towards no correction
    by the number of rows.

    Parameters
    ----------
    loc, scale : ndarray of shape (K, n, m)
        Means and standard deviations of the members, of equal weight.
    unseen : ndarray of bool of shape (K, n)
        Whether a member has not trained on a row.
    y : ndarray of shape (n, m)
    weight : ndarray of shape (n,)
        Non-negative.

    Returns
    -------
    factor, floor : float
        1 and 0 if fewer than 30 rows are unseen by two members.
    """
    counts = unseen.sum(axis=0)
    several = (counts > 1) & (weight > 0)
    if several.sum() < _FEWEST_PAIRS:
        return 1.0, 0.0
    used = (counts > 0) & (weight > 0)
    share = (unseen / np.maximum(counts, 1))[..., None]
    error = y - (share * loc).sum(axis=0)
    total = np.sqrt((share * scale**2).sum(axis=0) + loc.var(axis=0))
    variance = _relative_variance(loc, unseen, y, error, several)

    def relative_square(count):
        """Mean squared error of the average of some members, relative to that of one."""
        return 1 - variance * (1 - 1 / count)

    ratio = np.sqrt(relative_square(len(loc)) / relative_square(np.maximum(counts, 1)))
    error, total = (error * ratio[:, None])[used], total[used]
    rows = weight[used] / weight[used].sum()

    def nll(parameters):
        log_factor, log_floor = np.minimum(parameters, 50.0)
        squared = np.exp(2 * log_factor) * total**2 + np.exp(2 * log_floor)
        return rows @ (np.log(squared) + error**2 / squared).mean(axis=-1)

    fits = [optimize.minimize(nll, start, method="Nelder-Mead") for start in _STARTS]
    log_factor, log_floor = min(fits, key=lambda fit: fit.fun).x
    trust = used.sum() / (used.sum() + _PRIOR_ROWS)
    return float(np.exp(trust * log_factor)), float(trust * np.exp(log_floor))


def _relative_variance(loc, unseen, y, error, several):
    """Estimate the share of one member's squared error that averaging members removes.

    By mean absolute errors, which outliers decide less than squares.
    """
    members, rows = np.nonzero(unseen[:, several])
    alone = abs(y[several][rows] - loc[:, several][members, rows]).mean()
    together = abs(error[several]).mean()
    count = unseen[:, several].sum(axis=0).mean()
    return np.clip((1 - (together / alone) ** 2) / (1 - 1 / count), 0, 1) if alone > 0 else 0.0
