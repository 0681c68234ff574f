"""The linear part of networks for tables, which learn what ridge regression leaves."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from scipy.linalg import cholesky
from sklearn.linear_model import RidgeCV
from sklearn.metrics.pairwise import euclidean_distances, manhattan_distances

from skuq.estimators._task import Task
from skuq.estimators.tabular import _recipes as tuned
from skuq.networks._operations import unclip
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
    n_rows = np.count_nonzero(data.weight)
    has_rows = tuned.FEWEST_RIDGE_ROWS <= n_rows <= tuned.MOST_RIDGE_ROWS
    # Rows of one group predict each other too well.
    if not (has_rows and isinstance(targets, NumberTargets) and task.groups is None):
        return task
    # Smooth bounds would bend what is linear. Codes of categories are no numbers.
    x, y = unclip(np, data.x.astype("float64")), data.y.astype("float64")
    x[:, list(task.inputs.code_columns)] = 0
    share = data.weight.astype("float64") / data.weight.sum()
    used = is_linear(x, y, share)
    if not used.any():
        return task
    ridge, left = _leave_one_out(x, y, share)
    coefficients = np.where(used, np.reshape(ridge.coef_, (y.shape[1], -1)).T, 0.0)
    if not coefficients.any():
        return task
    intercept = np.where(used, ridge.intercept_, 0.0)
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
        return share @ np.square(_leave_one_out(design, y, share)[1])

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


def _leave_one_out(x: np.ndarray, y: np.ndarray, share: np.ndarray) -> tuple[Any, np.ndarray]:
    """Fit ridge regression; return it, and the residuals (n, m) of rows that are left out.

    `share` (n,) are the weights of the rows.
    """
    mean_eigenvalue = np.sum(share @ np.square(x - share @ x / share.sum())) / len(x)
    ridge = RidgeCV(
        np.logspace(*tuned.PENALTY_POWERS, tuned.N_PENALTIES)
        * (mean_eigenvalue or 1.0),  # constant columns allow any penalty
        alpha_per_target=True,
        store_cv_results=True,
    ).fit(x, y, share)
    best = np.searchsorted(ridge.alphas, np.atleast_1d(ridge.alpha_))
    squares = ridge.cv_results_.reshape(*y.shape, -1)  # times the shares
    squares = np.take_along_axis(squares, best[None, :, None], axis=2)[..., 0]
    left = np.sqrt(squares / np.where(share > 0, share, np.inf)[:, None])
    # Without a row, the residual has the sign of that of the fit, and is larger.
    return ridge, np.copysign(left, y - ridge.predict(x).reshape(y.shape))
