"""Ridge regression, and where it is clearly better than a curved fit."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.linalg import cholesky
from sklearn.linear_model import Ridge, RidgeCV
from sklearn.metrics.pairwise import euclidean_distances, manhattan_distances

# Penalties of ridge regression that are tried, as multiples of the mean eigenvalue.
_PENALTIES = np.logspace(-8, 4, 37)
_CLEAR = 0.55  # mean error, to the power 1.5, that is clearly less, as a share of another
_LIKELY = 0.9  # the same, if noise may hide by how much it is less
_FARTHEST = 10.0  # from the median, in interquartile ranges, in a table of few columns
_NOISY = 0.05  # mean error, to the power 1.5, that noise may dominate, as a share of a constant's
_EXACT = 1e-4  # errors that are none, as a share of those of a constant
_JITTER = 1e-10  # added to a kernel, whose rows may repeat
_MOST_COMPARED = 1000  # rows on which regressions are compared, in a second or two


def effective_rank(x: np.ndarray) -> float:
    """Compute the number of directions (participation ratio) in which rows x (n, d) vary."""
    centred = x - x.mean(axis=0)
    products = centred @ centred.T
    return float(np.trace(products) ** 2 / max(np.square(products).sum(), np.finfo(float).tiny))


def fit_ridge(x: np.ndarray, y: np.ndarray, weight: np.ndarray) -> list[tuple[np.ndarray, ...]]:
    """Fit ridge regression, with the penalty of least leave-one-out error.

    It is used for outputs that it predicts better than kernel ridge regression, which is not
    linear. In a table of fewer columns than rows it must be clearly better than with a Gaussian and
    a Laplacian kernel, and better than with a quadratic one: then y is linear in x but for noise.
    Noise may hide by how much; where it is less clear, networks can tell.

    Returns
    -------
    fits : list of tuples
        The fit for outputs where this is clear; then, if there are outputs where it is only likely,
        the fit for both. Each is

        coefficients : ndarray of shape (d, m)
            Zeros for outputs that ridge regression is not used for.
        intercept : ndarray of shape (m,)
        moves : ndarray of shape (n, m)
            Its fit of each row minus its prediction without the row.
        penalties : ndarray of shape (m,)
            As `refit_ridge` takes them: infinite for outputs whose coefficients are zeros.
    """
    x, y, weight = (np.asarray(a, dtype="float64") for a in (x, y, weight))
    share = weight / weight.sum()
    ridge, left = _leave_one_out(x, y, share)
    coefficients = np.reshape(ridge.coef_, (y.shape[1], -1)).T
    moves = np.where(share[:, None] > 0, left - (y - x @ coefficients - ridge.intercept_), 0.0)
    is_clear, is_likely = _is_linear(x, y, left, share)
    fits = []
    for used in [is_clear, is_likely][: 2 if (is_likely > is_clear).any() else 1]:
        parts = (np.where(used, part, 0.0) for part in (coefficients, ridge.intercept_, moves))
        fits.append((*parts, np.where(used, ridge.alpha_, np.inf)))
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
    is_near = is_wide or np.abs(x).max() < _FARTHEST
    some = rows[:: -(-len(rows) // _MOST_COMPARED)]
    x, y, left, part = x[some], y[some], left[some], share[some]
    kernels = [(is_wide, _decay(euclidean_distances(x, squared=True)))]
    if not is_wide:
        products = x @ x.T
        quadratic = np.square(1 + products / (np.trace(products) / len(x) or 1.0))
        kernels += [(False, _decay(manhattan_distances(x))), (True, quadratic)]
    others = [(True, y - part @ y / part.sum())]
    for is_close, kernel in kernels:
        # Ridge regression on a root of the kernel is kernel ridge regression.
        root = cholesky(kernel + _JITTER * np.eye(len(x)), lower=True)
        others.append((is_close, _leave_one_out(root, y, part)[1]))
    power = 2.0 if is_wide else 1.5  # of squared errors a few rows decide
    error = part @ np.abs(left) ** power
    errors = np.array([part @ np.abs(residuals) ** power for _, residuals in others])
    clear, likely = (
        np.min([e if is_close else factor * e for (is_close, _), e in zip(others, errors)], axis=0)
        for factor in (_CLEAR, _LIKELY)
    )
    # Errors that float32 does not resolve are none.
    is_clear = is_near & (error < np.maximum(clear, _EXACT**power * errors[0]))
    # Noise hides by how much ridge regression is better, but not where there is hardly any. With
    # more rows than are compared networks have learnt what is linear.
    hides = (error > _NOISY * errors[0]) & (len(rows) <= _MOST_COMPARED)
    return is_clear, is_clear | (is_near & hides & (error < likely))


def _decay(distances: np.ndarray) -> np.ndarray:
    """Compute a kernel that falls with distances (n, n), in units of their median."""
    return np.exp(-distances / (np.median(distances[np.triu_indices(len(distances), 1)]) or 1.0))


def refit_ridge(
    x: np.ndarray, y: np.ndarray, weight: np.ndarray, penalties: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Fit ridge regression to part of a wide table, with the penalties that `fit_ridge` chose.

    Returns the coefficients (d, m) and the intercept (m,).
    """
    used, share = np.isfinite(penalties), weight / weight.sum()
    ridge = Ridge(np.where(used, penalties, 1.0), solver="cholesky").fit(
        x.astype("float64"), y.astype("float64"), share
    )
    coefficients = np.reshape(ridge.coef_, (y.shape[1], -1)).T
    return np.where(used, coefficients, 0.0), np.where(used, ridge.intercept_, 0.0)


def _leave_one_out(x: np.ndarray, y: np.ndarray, share: np.ndarray) -> tuple[Any, np.ndarray]:
    """Fit ridge regression; return it, and the residuals (n, m) of rows that are left out.

    `share` (n,) are the weights of the rows.
    """
    mean_eigenvalue = np.sum(share @ np.square(x - share @ x / share.sum())) / len(x)
    ridge = RidgeCV(
        _PENALTIES * (mean_eigenvalue or 1.0),  # constant columns allow any penalty
        alpha_per_target=True,
        store_cv_results=True,
    ).fit(x, y, share)
    best = np.searchsorted(ridge.alphas, np.atleast_1d(ridge.alpha_))
    squares = ridge.cv_results_.reshape(*y.shape, -1)  # times the shares
    squares = np.take_along_axis(squares, best[None, :, None], axis=2)[..., 0]
    left = np.sqrt(squares / np.where(share > 0, share, np.inf)[:, None])
    # Without a row, the residual has the sign of that of the fit, and is larger.
    return ridge, np.copysign(left, y - ridge.predict(x).reshape(y.shape))
