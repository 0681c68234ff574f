"""Calibrate an ensemble with rows that some of its members have not trained on.

Notation: K members, n rows, m outputs.
"""

from __future__ import annotations

import numpy as np
from scipy import optimize

_FEWEST_ROWS = 30  # with fewer, nothing is fitted
_PRIOR_ROWS = 100  # weight of "no correction", in rows
_BOUNDS = [(-6.0, 6.0), (-20.0, 6.0)]  # of the logarithms of the squared factor and floor
_FLOORS = (-8.0, -4.0, -1.0)  # where the search for the second begins


def fit_out_of_bag_scale(
    loc: np.ndarray,
    scale: np.ndarray,
    unseen: np.ndarray,
    y: np.ndarray,
    weight: np.ndarray,
) -> tuple[float, float]:
    """Fit a factor a of an ensemble's total standard deviation, and a floor b of its noise.

    Under them the errors on rows that members have not seen are most likely to come from normals
    of variance ``a**2 * total**2 + b**2``. A row's prediction is the mean of the members that have
    not trained on it; its total variance is their noise and the spread of all members.

    Two priors protect ensembles with few rows. ``log(a**2)`` is standard normal, because rows of
    equal variance cannot tell a factor from a floor. The fitted variance is averaged with the
    predicted one, which counts as much as 100 rows.

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
        1 and 0 if there are fewer than 30 rows, or errors are not finite.
    """
    # Rows that all members have trained on say nothing about new rows.
    used = unseen.any(axis=0)
    loc, scale, unseen = loc[:, used], scale[:, used], unseen[:, used]
    # Equal weights (K, n, 1) of the members that have not trained on the row.
    share = (unseen / unseen.sum(axis=0))[..., None]
    squared_error = (y[used] - (share * loc).sum(axis=0)) ** 2
    # The spread is that of all members: a single unseen member would have none.
    total = (share * scale**2).sum(axis=0) + loc.var(axis=0)
    return fit_scale(squared_error, total, weight[used])


def fit_scale(
    squared_error: np.ndarray,
    total: np.ndarray,
    weight: np.ndarray,
    prior_rows: float | None = None,
    fewest_rows: int = _FEWEST_ROWS,
) -> tuple[float, float]:
    """Fit the factor and the floor of `fit_out_of_bag_scale` to errors and predicted variances.

    Parameters
    ----------
    squared_error, total : ndarray of shape (n, m)
        Squared errors on rows that have not been trained on, and the variances predicted there.
    weight : ndarray of shape (n,)
        Non-negative.
    prior_rows : float, optional
        Number of rows that the predicted variance counts as much as; 100 by default.
    fewest_rows : int, default=30
        With fewer rows nothing is fitted: the factor is 1 and the floor 0.
    """
    used = weight > 0
    n_used = int(used.sum())
    if n_used < fewest_rows:
        return 1.0, 0.0
    squared_error, total = squared_error[used], total[used]
    # Weights (n, 1) of the terms (n, m), which sum to 1 over all of them.
    rows = (weight[used] / weight[used].sum())[:, None] / total.shape[-1]

    def nll(parameters: np.ndarray) -> tuple[float, np.ndarray]:
        # The parameters are log(a^2) and log(b^2): both variances stay positive.
        scaled, floor = np.exp(parameters[0]) * total, np.exp(parameters[1])
        variance = scaled + floor
        # Twice the mean negative log likelihood of normals, without its constant.
        loss = (rows * (np.log(variance) + squared_error / variance)).sum()
        slope = rows * (1 / variance - squared_error / variance**2)
        # The standard normal prior of log(a^2), on the same scale: log(a^2)^2 / n.
        prior = parameters[0] / n_used
        gradient = np.array([(slope * scaled).sum() + 2 * prior, slope.sum() * floor])
        return float(loss + prior * parameters[0]), gradient

    # The loss can have several minima in the floor; the factor always starts at 1.
    fits = [
        optimize.minimize(nll, (0.0, floor), jac=True, method="L-BFGS-B", bounds=_BOUNDS)
        for floor in _FLOORS
    ]
    best = min(fits, key=lambda fit: fit.fun)
    if not np.isfinite(best.fun):
        return 1.0, 0.0
    factor, floor = np.exp(best.x)
    # Average the fitted variance a^2 * total + b^2 with the predicted one, by numbers of rows.
    # `factor` and `floor` still are squares.
    trust = n_used / (n_used + (_PRIOR_ROWS if prior_rows is None else prior_rows))
    return float(np.sqrt(1 + trust * (factor - 1))), float(np.sqrt(trust * floor))
