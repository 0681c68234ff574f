"""Calibration of an ensemble by rows that some of its members have not trained on.

Notation: K members, n rows, m outputs.
"""

from __future__ import annotations

import numpy as np
from scipy import optimize

_FEWEST_ROWS = 30
_PRIOR_ROWS = 200  # weight of "no correction", in rows
# Of the logarithms of factor and floor. A floor alone may fit few rows best; the factor, near 0,
# would then outweigh its shrinkage, and the floor's would leave too small a total.
_BOUNDS = ([np.log(1 / 3), -50.0], [50.0, 50.0])
_STARTS = [(factor, floor) for factor in (-1.0, 0.0, 0.4) for floor in (-5.0, -3.0, -1.5)]


def fit_out_of_bag_scale(
    loc: np.ndarray, scale: np.ndarray, unseen: np.ndarray, y: np.ndarray, weight: np.ndarray
) -> tuple[float, float]:
    """Fit a factor a of an ensemble's total standard deviation, and a floor b of its noise.

    Under them the errors on rows that members have not seen are most likely to come from normals
    of variance ``a**2 * total**2 + b**2``. A row's prediction is the mean of the members that have
    not trained on it; its total variance is their noise and the spread of all members. The
    logarithm of a, and b, are shrunk towards no correction: few rows decide little.

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
        1 and 0 if there are fewer than 30 rows.
    """
    used = unseen.any(axis=0) & (weight > 0)
    n_used = int(used.sum())
    if n_used < _FEWEST_ROWS:
        return 1.0, 0.0
    loc, scale, unseen = loc[:, used], scale[:, used], unseen[:, used]
    share = (unseen / unseen.sum(axis=0))[..., None]
    squared_error = (y[used] - (share * loc).sum(axis=0)) ** 2
    total = (share * scale**2).sum(axis=0) + loc.var(axis=0)
    rows = weight[used] / weight[used].sum()

    def nll(parameters: np.ndarray) -> float:
        log_factor, log_floor = np.clip(parameters, *_BOUNDS)
        variance = np.exp(2 * log_factor) * total + np.exp(2 * log_floor)
        return float(rows @ (np.log(variance) + squared_error / variance).mean(axis=-1))

    fits = [optimize.minimize(nll, start, method="Nelder-Mead") for start in _STARTS]
    log_factor, log_floor = np.clip(min(fits, key=lambda fit: fit.fun).x, *_BOUNDS)
    trust = n_used / (n_used + _PRIOR_ROWS)
    return float(np.exp(trust * log_factor)), float(trust * np.exp(log_floor))
