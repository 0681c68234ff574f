"""Tables of functions: inputs, query points and values, checked, scaled and made into rows.

Notation: n functions, each known at q query points y of d_y coordinates and with m components;
a row is a pair of an input u (d_u numbers) and a query.
"""

from __future__ import annotations

import math

import numpy as np
from sklearn.preprocessing import StandardScaler
from sklearn.utils.validation import check_array

from skuq._registry import saved_as
from skuq.tables import NoScaling, Scaling, TrainingData

__all__ = ["FunctionScaling", "check_queries", "flat_values", "scale_of_features"]

# A function far smaller than others would have all the weight of a relative error.
_LEAST_SHARE = 1e-2  # of the mean squared size
_MARGIN = 0.05  # of the range of bounded values: networks reach its ends only in the limit


def check_queries(points, n_columns: int | None = None) -> np.ndarray:
    """Query points (q, d_y) from numbers (q,) or (q, d_y).

    Raises
    ------
    ValueError
        If they are not finite numbers, or of another dimension.
    """
    wanted = "(q, d_y)" if n_columns is None else f"(q, {n_columns}), as in fit"
    if np.ndim(points) not in (1, 2):
        raise ValueError(f"`query_points` must have shape {wanted}. Got {np.shape(points)}.")
    try:
        points = check_array(points, ensure_2d=False, dtype="float64", input_name="query_points")
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"`query_points` must be finite numbers of shape {wanted}: {error}"
        ) from error
    if points.ndim == 1:
        points = points[:, None]
    if n_columns is not None and points.shape[1] != n_columns:
        raise ValueError(f"`query_points` must have shape {wanted}. Got {points.shape}.")
    return points


def flat_values(Y):
    """Function values with their components beside each other (n, q * m), and their shape.

    Returns
    -------
    Y : array-like of shape (n,), (n, q) or (n, q * m)
    shape : tuple
        () for single numbers, (q,) or (q, m).
    """
    values = np.asarray(Y)
    if values.ndim <= 2:
        return Y, values.shape[1:]
    if values.ndim > 3:
        raise ValueError(
            "Y must have shape (n,), (n, q) or (n, q, m) for n functions at q query points with m "
            f"components. Got {values.shape}."
        )
    return values.reshape(len(values), math.prod(values.shape[1:])), values.shape[1:]


@saved_as("estimators.NEONRegressor.FunctionScaling")
class FunctionScaling:
    """Standardised inputs, queries and values, and the way back.

    Values have a mean and a scale for each component; where the query points are only the
    numbers of columns, for each column.

    Parameters
    ----------
    standardize : bool
    by_column : bool
        Whether each query point has a scale of its own.
    bounded : bool
        Whether values are to lie within (0, 1), for networks that give no others.
    """

    def __init__(self, standardize: bool, by_column: bool, bounded: bool = False):
        self.standardize, self.by_column = standardize, by_column
        self.bounded = bounded and standardize

    def fit(self, X, queries, values):
        """Inputs (n, d_u), queries (q, d_y) and values (n, q, m)."""
        make = Scaling if self.standardize else NoScaling
        self.inputs_ = make().fit(X, None)
        n, q, m = values.shape
        columns = values.reshape((n, q * m) if self.by_column else (n * q, m))
        self.queries_ = make().fit(queries, columns)
        scaler = self.queries_.y_
        shape = (q, m) if self.by_column else (1, m)
        self.mean_, self.scale_ = scaler.mean_.reshape(shape), scaler.scale_.reshape(shape)
        if self.bounded:
            low, spread = columns.min(axis=0).reshape(shape), np.ptp(columns, axis=0).reshape(shape)
            spread = np.where(spread > 0, spread, 1.0)
            self.mean_, self.scale_ = low - _MARGIN * spread, (1 + 2 * _MARGIN) * spread
        return self

    def rows(self, X, queries) -> np.ndarray:
        """Standardised rows (n * q, d_u + d_y): every input with every query."""
        u, y = self.inputs_.inputs(X), self.queries_.inputs(queries)
        return np.concatenate([np.repeat(u, len(y), axis=0), np.tile(y, (len(u), 1))], axis=1)

    def scaled(self, values) -> np.ndarray:
        """Standardised values (n, q, m)."""
        return (values - self.mean_) / self.scale_

    def data(self, rows, targets, values, weight, relative: bool) -> TrainingData:
        """What networks train on.

        Parameters
        ----------
        rows : ndarray of shape (n * q, ..)
        targets : ndarray of shape (n, q, m)
            Standardised.
        values : ndarray of shape (n, q, m)
            In their own units, for the size of each function.
        weight : ndarray of shape (n,)
        relative : bool
            Whether a function's error counts in units of its size (Eq. 2).
        """
        if relative:
            size = np.mean((values / self.scale_) ** 2, axis=(1, 2))
            weight = weight / np.maximum(size, _LEAST_SHARE * (size.mean() or 1.0))
        n, q, m = targets.shape
        targets = targets.reshape(n * q, m)
        weight = np.repeat(weight, q)
        return TrainingData.without_validation(rows, targets, weight)


def scale_of_features(features):
    """One mean a column and one scale for all: a single feature may hardly vary."""
    scaler = StandardScaler(with_std=False).fit(features)
    scale = np.sqrt(np.var(features, axis=0).mean()) or 1.0
    return scaler.mean_, scale
