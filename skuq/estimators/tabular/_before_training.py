"""What is learnt of y before networks train: a scale for heavy tails, and a linear part."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from scipy.linalg import cholesky
from sklearn.base import is_classifier
from sklearn.linear_model import RidgeCV
from sklearn.metrics.pairwise import euclidean_distances, manhattan_distances

from skuq.estimators._task import Task
from skuq.estimators.tabular import _recipes as tuned
from skuq.networks._operations import unclip
from skuq.tables._scaling import TargetScaling, check_target_sizes
from skuq.tables._targets import ClassTargets, NumberTargets
from skuq.tables._transforms import Power, TargetTransform, moments


def make_targets(estimator: Any, loss: str) -> ClassTargets | NumberTargets:
    """Make the encoding of y for a recommended estimator."""
    if is_classifier(estimator):
        return ClassTargets(estimator.class_weight)
    if estimator.target_transform == "auto":
        return NumberTargets(loss=loss, scaling=ScalingByTails())
    return NumberTargets(estimator.target_transform, loss=loss)


class ScalingByTails(TargetScaling):
    """Scale of y that becomes a transform, when it is fitted, where y has heavy tails."""

    def fit(self, y: np.ndarray, sample_weight: np.ndarray | None = None) -> Any:
        """Return the fitted scale or transform that suits the tails of y (n, m)."""
        kind = transform_of_tails(y, sample_weight)
        chosen: Any = TargetScaling() if kind == "standard" else TargetTransform(kind)
        return chosen.fit(y, sample_weight)


def transform_of_tails(y: np.ndarray, sample_weight: np.ndarray | None = None) -> str:
    """Choose the transform of targets (n, m) by their tails: the parameter's "auto".

    "standard" is for outputs without heavy tails. One with them takes "yeo-johnson", which bends a
    skewed y and keeps its order of sizes, or "quantile" if its tails are heavy even so, as those of
    far values on both sides.
    """
    kinds = {"standard"}
    if len(y) >= tuned.FEWEST_ROWS_WITH_TAILS:
        check_target_sizes(y)
        weight = np.ones(len(y)) if sample_weight is None else np.asarray(sample_weight)
        weight = weight / weight.sum()
        for column in y.T:
            if _tail(column, weight) > tuned.HEAVY_TAILS:
                bent = Power.learn(column, weight).forward(column)
                kinds.add("quantile" if _tail(bent, weight) > tuned.HEAVY_TAILS else "yeo-johnson")
    return next(kind for kind in ("quantile", "yeo-johnson", "standard") if kind in kinds)


def _tail(y, weight):
    """Compute the standard deviation over that of a normal with the same middle half.

    If this half has one value, it is the middle 90 %; the ratio is 1 if that has one, too.
    """
    order = np.argsort(y)
    at = np.searchsorted(np.cumsum(weight[order]), [0.05, 0.25, 0.75, 0.95])
    low, first, third, high = y[order[np.minimum(at, len(y) - 1)]]
    normal = (third - first) / 1.349 or (high - low) / 3.29
    return moments(y, weight)[1] / normal if normal else 1.0


def linear_tasks(task: Task) -> list[Task]:
    """List the task with a frozen linear part of all networks, where y is linear in X.

    Networks learn a linear y only roughly. So ridge regression becomes a part of them, and they
    learn its residuals. It needs an effective rank of X below a quarter of the rows, as of spectra.
    Where it is not clear for some outputs whether y is linear, they have no linear part in the
    first task, and one in a second task. Each target is moved by the difference between the fit of
    its row and the prediction without that row (leave-one-out). Residuals are then as large as
    those of new rows.
    """
    data, codes = task.data, list(task.inputs.code_columns)
    n_rows = np.count_nonzero(data.weight)
    has_rows = tuned.FEWEST_RIDGE_ROWS <= n_rows <= tuned.MOST_RIDGE_ROWS
    # Rows of one group predict each other too well.
    if not (has_rows and isinstance(task.targets, NumberTargets) and task.groups is None):
        return [task]
    # Smooth bounds would bend what is linear. Codes of categories are no numbers.
    x = unclip(np, data.x.astype("float64"))
    x[:, codes] = 0
    # Among independent columns a tabular network finds the few that count, ridge does not.
    if _effective_rank(x) > tuned.LOW_RANK * n_rows:
        return [task]
    return [_with_ridge(task, x, *fit) for fit in fit_ridge(x, data.y, data.weight)]


def _with_ridge(
    task: Task, x: np.ndarray, coefficients: Any, intercept: Any, moves: np.ndarray
) -> Task:
    """Return the task with a fit of `fit_ridge` as the linear part."""
    if not coefficients.any():
        return task
    data, targets = task.data, task.targets
    y, y_valid = data.y + moves, data.y_valid
    # Residuals become targets of unit variance, for which networks are tuned.
    if not targets.is_transformed:
        left = np.square(y - x @ coefficients - intercept)
        unit = np.sqrt(np.average(left, axis=0, weights=data.weight)).clip(tuned.SMALLEST_UNIT, 1)
        unit = np.where(coefficients.any(axis=0), unit, 1.0)  # others stay as they are
        coefficients, intercept = coefficients / unit, intercept / unit
        targets, y, y_valid = targets.in_units(unit), y / unit, y_valid / unit
    linear = targets.head.raw_of_means(coefficients), targets.head.raw_of_means(intercept)
    return replace(task, data=replace(data, y=y, y_valid=y_valid), targets=targets, linear=linear)


def _effective_rank(x: np.ndarray) -> float:
    """Compute the number of directions (participation ratio) in which rows x (n, d) vary."""
    centred = x - x.mean(axis=0)
    products = centred @ centred.T
    return float(np.trace(products) ** 2 / max(np.square(products).sum(), np.finfo(float).tiny))


def fit_ridge(x: np.ndarray, y: np.ndarray, weight: np.ndarray) -> list[list[np.ndarray]]:
    """Fit ridge regression, with the penalty of least leave-one-out error.

    It is used for outputs that it predicts better than kernel ridge regression, which is not
    linear. In a table of fewer columns than rows it must be clearly better than with a Gaussian and
    a Laplacian kernel, and better than with a quadratic one: then y is linear in x but for noise.
    Noise may hide by how much; where it is less clear, networks can tell.

    Returns
    -------
    fits : list of lists
        The fit for outputs where this is clear; then, if there are outputs where it is only likely,
        the fit for both. Each is

        coefficients : ndarray of shape (d, m)
            Zeros for outputs that ridge regression is not used for.
        intercept : ndarray of shape (m,)
        moves : ndarray of shape (n, m)
            Its fit of each row minus its prediction without the row.
    """
    x, y, weight = (np.asarray(a, dtype="float64") for a in (x, y, weight))
    share = weight / weight.sum()
    ridge, left = _leave_one_out(x, y, share)
    coefficients = np.reshape(ridge.coef_, (y.shape[1], -1)).T
    moves = np.where(share[:, None] > 0, left - (y - x @ coefficients - ridge.intercept_), 0.0)
    is_clear, is_likely = _is_linear(x, y, left, share)
    fits = []
    for used in [is_clear, is_likely][: 2 if (is_likely > is_clear).any() else 1]:
        fits.append([np.where(used, p, 0.0) for p in (coefficients, ridge.intercept_, moves)])
    return fits


def _is_linear(
    x: np.ndarray, y: np.ndarray, left: np.ndarray, share: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Whether `left`, what ridge regression leaves of each output (m,), is as `fit_ridge` asks.

    Returns for which outputs this is clear, and for which it is clear or likely.
    """
    rows = np.flatnonzero(share)
    is_wide = x.shape[1] > len(rows)
    # New rows have values that are farther still, where columns have far values.
    is_near = is_wide or np.abs(x).max() < tuned.FARTHEST
    some = rows[:: -(-len(rows) // tuned.MOST_COMPARED)]
    x, y, left, part = x[some], y[some], left[some], share[some]
    kernels = [(is_wide, _decay(euclidean_distances(x, squared=True)))]
    if not is_wide:
        products = x @ x.T
        quadratic = np.square(1 + products / (np.trace(products) / len(x) or 1.0))
        kernels += [(False, _decay(manhattan_distances(x))), (True, quadratic)]
    others = [(True, y - part @ y / part.sum())]
    for is_close, kernel in kernels:
        # Ridge regression on a root of the kernel is kernel ridge regression.
        root = cholesky(kernel + tuned.JITTER * np.eye(len(x)), lower=True)
        others.append((is_close, _leave_one_out(root, y, part)[1]))
    power = tuned.ERROR_POWERS["wide" if is_wide else "other"]
    error = part @ np.abs(left) ** power
    errors = np.array([part @ np.abs(residuals) ** power for _, residuals in others])
    clear, likely = (
        np.min([e if is_close else factor * e for (is_close, _), e in zip(others, errors)], axis=0)
        for factor in (tuned.CLEAR, tuned.LIKELY)
    )
    # Errors that float32 does not resolve are none.
    is_clear = is_near & (error < np.maximum(clear, tuned.EXACT**power * errors[0]))
    # Noise hides by how much ridge regression is better, but not where there is hardly any. With
    # more rows than are compared networks have learnt what is linear.
    hides = (error > tuned.NOISY * errors[0]) & (len(rows) <= tuned.MOST_COMPARED)
    return is_clear, is_clear | (is_near & hides & (error < likely))


def _decay(distances: np.ndarray) -> np.ndarray:
    """Compute a kernel that falls with distances (n, n), in units of their median."""
    return np.exp(-distances / (np.median(distances[np.triu_indices(len(distances), 1)]) or 1.0))


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
