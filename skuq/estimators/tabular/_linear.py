"""The linear part of networks for tables, which learn what ridge regression leaves."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from scipy.linalg import cholesky, svd
from sklearn.metrics.pairwise import euclidean_distances, manhattan_distances

from skuq.backend._scopes import one_thread_if_small
from skuq.estimators._task import Task
from skuq.estimators.tabular import _recipes as tuned
from skuq.networks._operations import unclip
from skuq.tables._repeats import number_rows
from skuq.tables._targets import NumberTargets


def with_linear_part(task: Task) -> Task:
    """Return the task with a frozen linear part of all networks, for outputs linear in X.

    Networks learn a linear y only roughly. So ridge regression becomes a part of them, and they
    learn its residuals, where it predicts rows that are left out better than kernel ridge
    regression does, with a Gaussian, a Laplacian and a quadratic kernel. Each target is moved by
    the difference between the fit of its row and the prediction without that row (leave-one-out):
    residuals are then as large as those of new rows.
    """
    data, targets = task.data, task.targets
    # Rows of one group predict each other too well.
    if not isinstance(targets, NumberTargets) or task.groups is not None:
        return task
    # Smooth bounds would bend what is linear. Codes of categories are no numbers.
    x, y = unclip(np, data.x.astype("float64")), data.y.astype("float64")
    x[:, list(task.inputs.code_columns)] = 0
    share = data.weight.astype("float64") / data.weight.sum()
    distinct, units = _merge_equal_rows(x, y, share)
    n_rows = np.count_nonzero(distinct[2])
    if not tuned.FEWEST_RIDGE_ROWS <= n_rows <= tuned.MOST_RIDGE_ROWS:
        return task
    with one_thread_if_small(tuned.MOST_COMPARED):
        used = is_linear(*distinct)
    if not used.any():
        return task
    ridge = RidgeRegression.fit(*distinct)
    coefficients = np.where(used, ridge.coefficients, 0.0)
    if not coefficients.any():
        return task
    intercept = np.where(used, ridge.intercept, 0.0)
    left = y - distinct[1][units] + ridge.left_out[units]
    residual = y - x @ coefficients - intercept
    moved = np.where(used & (share[:, None] > 0), left - residual, 0.0)
    y, y_valid = data.y + moved, data.y_valid
    # Residuals become targets of unit variance, for which networks are tuned.
    if not targets.is_transformed:
        unit = np.sqrt(share @ np.square(np.where(used, left, 1.0))).clip(tuned.SMALLEST_UNIT, 1)
        coefficients, intercept = coefficients / unit, intercept / unit
        targets, y, y_valid = targets.in_units(unit), y / unit, y_valid / unit
    linear = targets.head.raw_of_means(coefficients), targets.head.raw_of_means(intercept)
    return replace(task, data=replace(data, y=y, y_valid=y_valid), targets=targets, linear=linear)


def is_linear(x: np.ndarray, y: np.ndarray, share: np.ndarray) -> np.ndarray:
    """Tell for which outputs (m,) of y (n, m) ridge regression is best on rows that are left out.

    It is compared with kernel ridge regression on at most 500 rows. `share` (n,) are weights that
    sum to 1. Errors that float32 does not resolve count as none.
    """
    rows = np.flatnonzero(share)
    some = rows[:: -(-len(rows) // tuned.MOST_COMPARED)]
    x, y, share = x[some], y[some], share[some]

    def error(design: np.ndarray) -> Any:
        return share @ np.square(RidgeRegression.fit(design, y, share).left_out)

    def decay(distances: np.ndarray) -> np.ndarray:
        median = np.median(distances[np.triu_indices(len(distances), 1)])
        return np.exp(-distances / (median or 1.0))

    products = x @ x.T
    kernels = [
        decay(euclidean_distances(x, squared=True)),
        decay(manhattan_distances(x)),
        np.square(1 + products / (np.trace(products) / len(x) or 1.0)),
    ]
    # Ridge regression on a root of a kernel is kernel ridge regression.
    roots = [cholesky(k + tuned.JITTER * np.eye(len(x)), lower=True) for k in kernels]
    of_ridge, others = error(x), np.min([error(root) for root in roots], axis=0)
    variance = share @ np.square(y - share @ y / share.sum())
    found: np.ndarray = of_ridge < np.maximum(others, tuned.EXACT * variance)
    return found


def _merge_equal_rows(x: np.ndarray, y: np.ndarray, share: np.ndarray) -> tuple[Any, np.ndarray]:
    """Merge equal rows of x into one with their mean y, since copies predict each other.

    Returns x, y and the weights of the merged rows, and the number of each row among them.
    """
    units = number_rows(x, np.flatnonzero(share))
    if units is None:
        return (x, y, share), np.arange(len(x))
    first, total = np.unique(units, return_index=True)[1], np.bincount(units, share)
    sums = np.transpose([np.bincount(units, share * column) for column in y.T])
    return (x[first], sums / np.where(total > 0, total, 1)[:, None], total), units


class RidgeRegression(NamedTuple):
    """Ridge regression of each output, with the penalty that is best for rows that are left out.

    Attributes
    ----------
    coefficients, intercept : ndarray of shape (n_features, m) and (m,)
    left_out : ndarray of shape (n, m)
        Residual of each row of the fit without it; 0 for rows of weight 0.
    """

    coefficients: np.ndarray
    intercept: np.ndarray
    left_out: np.ndarray

    @classmethod
    def fit(cls, x: np.ndarray, y: np.ndarray, share: np.ndarray) -> RidgeRegression:
        """Fit rows x (n, n_features) and y (n, m) of the weights `share` (n,)."""
        share = share / share.sum()
        mean_x, mean_y, root = share @ x, share @ y, np.sqrt(share)[:, None]
        u, s, v = svd(root * (x - mean_x), full_matrices=False)
        centred = root * (y - mean_y)
        projected, squares = u.T @ centred, np.square(s)[:, None]

        def left_out(penalty: Any) -> np.ndarray:
            kept = squares / (squares + penalty)
            # Its leverage is how much a row changes its own fit; a part is that of the mean of y.
            others = 1 - np.square(u) @ kept - share[:, None]
            return (centred - u @ (kept * projected)) / np.maximum(others, np.finfo(float).eps)

        penalties = np.logspace(*tuned.PENALTY_POWERS, tuned.N_PENALTIES)
        penalties *= squares.sum() / len(x) or 1.0  # constant columns allow any penalty
        errors = [np.square(left_out(penalty)).sum(axis=0) for penalty in penalties]
        penalty = penalties[np.argmin(errors, axis=0)]  # of each output
        coefficients = v.T @ (s[:, None] / (squares + penalty) * projected)
        left = left_out(penalty) / np.where(root > 0, root, np.inf)
        return cls(coefficients, mean_y - mean_x @ coefficients, left)
