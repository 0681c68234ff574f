"""Handle functions as targets: inputs u with query points, and the functions' values there.

Notation: n functions with m components, each known at q query points y of d_y coordinates. One
row of a network's inputs is a pair of an input u (d_u numbers) and a query point.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Self

import numpy as np
from sklearn.utils.validation import check_array, validate_data

from skuq import backend
from skuq._params import check_targets, fill_masked, read_only_copy, refuse_dates, refuse_lazy
from skuq.files._registry import saved_as
from skuq.networks._operator_network import OperatorHead
from skuq.predictive import EpistemicNormal, GaussianMixture
from skuq.tables._inputs import Inputs
from skuq.tables._scaling import NoScaling, Scaling, TargetScaling, scale_of_equal_values
from skuq.tables._targets import Targets

# Smallest squared size of a function in a relative error, relative to the mean over functions.
# Otherwise a very small function would dominate the loss.
_LEAST_SHARE = 1e-2
_MARGIN = 0.05  # share of the range added to bounded values, whose ends networks never reach
_SMALLEST_STD = 1e-9  # smallest standard deviation of the standardised values


def check_queries(points: Any, n_columns: int | None = None) -> np.ndarray:
    """Check query points of shape (q,) or (q, d_y), and return a read-only copy (q, d_y)."""
    refuse_dates(points, "`query_points`")
    points = check_array(
        fill_masked(points), ensure_2d=False, dtype="float64", input_name="query_points"
    )
    # Points on a line may be given as a list of numbers.
    points = points[:, None] if points.ndim == 1 else points
    if n_columns is not None and points.shape[1] != n_columns:
        raise ValueError(
            f"`query_points` must have shape (q, {n_columns}), as in fit. Got {points.shape}."
        )
    return read_only_copy(points)


def column_names(points: Any) -> list[str] | None:
    """List the names of a frame's columns; None without a frame, or if they are not all text."""
    names = list(getattr(points, "columns", [None]))
    return names if all(isinstance(name, str) for name in names) else None


def flat_values(Y: Any) -> tuple[Any, tuple[int, ...]]:
    """Flatten function values to (n,), (n, q) or (n, q * m).

    Returns them, and the shape of one function's values: () for single numbers, (q,) or (q, m).
    """
    Y = fill_masked(Y)
    values = np.asarray(Y)
    if values.ndim <= 2:
        return Y, values.shape[1:]
    if values.ndim > 3:
        raise ValueError(
            "Y must have shape (n,), (n, q) or (n, q, m) for n functions at q query points with m "
            f"components. Got {values.shape}."
        )
    return values.reshape(len(values), math.prod(values.shape[1:])), values.shape[1:]


def pair_rows(xp: Any, inputs: Any, queries: Any) -> Any:
    """Pair every input (n, d_u) with every query point (q, d_y): rows (n * q, d_u + d_y)."""
    n, q = inputs.shape[0], queries.shape[0]
    return xp.concatenate([xp.repeat(inputs, q, axis=0), xp.tile(queries, (n, 1))], axis=-1)


@saved_as("tables.FunctionInputs")
class FunctionInputs(Inputs):
    """Inputs of functions, and the query points at which the functions are evaluated.

    Parameters
    ----------
    query_points : array-like of shape (q, d_y) or (q,), optional
        By default the columns of Y are numbered from 0 to 1, and no points between them can be
        predicted.
    standardize : bool, default=True
        Standardise inputs and query points.
    only_fitted : bool, default=False
        Raise ValueError for query points other than those of `fit`.

    Attributes
    ----------
    query_points : ndarray of shape (q, d_y)
        Query points of `fit`.
    are_columns : bool
        Whether query points only number the columns of Y.
    scaling : Scaling
        Scale of the inputs, fitted by `fit`.
    query_scaling : Scaling
        Scale of the query points, fitted by `fit`.
    """

    query_points: Any
    query_names: Any = None  # of the columns of a frame

    def __init__(
        self, query_points: Any = None, *, standardize: bool = True, only_fitted: bool = False
    ) -> None:
        self.are_columns, self.only_fitted = query_points is None, only_fitted
        self.query_points = None if query_points is None else check_queries(query_points)
        self.query_names = column_names(query_points)
        scaling = Scaling if standardize else NoScaling
        self.scaling, self.query_scaling = scaling(), scaling()

    def validate(self, X: Any, estimator: Any, *, reset: bool = False, min_rows: int = 1) -> Any:
        """Check that X holds finite numbers (n, d_u)."""
        refuse_lazy(X)
        refuse_dates(X, "X")
        return validate_data(
            estimator, fill_masked(X), reset=reset, dtype="float64", ensure_min_samples=min_rows
        )

    def fit_encoder(self, X: Any, y: np.ndarray, weight: Any, estimator: Any) -> np.ndarray:
        """Return X, and check that there is a query point for each value of y (n[, q[, m]])."""
        n_queries = y.shape[1] if y.ndim > 1 else 1
        # Numbers stand for the columns, at equal distances.
        if self.are_columns:
            self.query_points = np.linspace(0.0, 1.0, n_queries)[:, None]
        elif len(self.query_points) != n_queries:
            raise ValueError(
                f"`query_points` must have one row for each of the {n_queries} query points of Y. "
                f"Got {len(self.query_points)}."
            )
        return X

    def fit(self, X: np.ndarray, weight: Any = None) -> Self:
        """Learn the scales of inputs and query points; weights are ignored."""
        self.scaling.fit(X, None, [f"{k} of X" for k in range(X.shape[1])])
        names = [f"{k} of `query_points`" for k in range(self.query_points.shape[1])]
        self.query_scaling.fit(self.query_points, None, names)
        return self

    def take_scales(self, other: FunctionInputs) -> None:
        """Take the scales of an earlier fit of the same widths, in place of learning them."""
        # The weights that training goes on with are for inputs on these scales.
        self.scaling, self.query_scaling = other.scaling, other.query_scaling

    def points(self, query_points: Any = None) -> np.ndarray:
        """Check the query points (q, d_y) of a prediction; by default those of `fit`."""
        if query_points is None:
            return self.query_points
        if self.are_columns:
            raise ValueError(
                "The columns of Y have no query points of their own. To predict at other points, "
                "set the estimator's parameter `query_points` before fitting."
            )
        # A frame with columns in another order would be read wrongly, without an error.
        names = column_names(query_points)
        if None not in (names, self.query_names) and names != self.query_names:
            raise ValueError(
                "`query_points` must have the columns that it had in fit, in their order: "
                f"{self.query_names}. Got {names}."
            )
        points = check_queries(query_points, self.query_points.shape[1])
        if self.only_fitted and not np.array_equal(points, self.query_points):
            raise ValueError(
                "With standardize='columns' each query point of Y has a scale of its own: there "
                "are no predictions at others. Leave `query_points` out, or fit with "
                "standardize=True."
            )
        return points

    def transform(self, X: np.ndarray, query_points: Any = None) -> np.ndarray:
        """Standardise inputs and query points, and pair them to rows (n * q, d_u + d_y)."""
        queries = self.query_scaling.transform(self.points(query_points))
        return pair_rows(np, self.scaling.transform(X), queries)


@saved_as("tables.FunctionTargets")
class FunctionTargets(Targets):
    """Targets that are functions: single numbers (n,), values (n, q), or components (n, q, m).

    Internally they are (n, q, m). There is one mean and scale for each component, or for each
    column if query points only number the columns of Y.

    Parameters
    ----------
    loss : {"auto", "relative", "squared", "huber", "nll"}, default="auto"
        The estimators' parameter.
    output_map : {"decaying", "bounded"}, callable or None, default=None
        The estimators' parameter.
    standardize : bool, default=True
        Standardise the values.
    by_column : bool, default=False
        Use a mean and a scale for each column.
    narrow_constants : bool, default=True
        Give values that are equal in several functions the scale that `is_constant_` describes,
        instead of 1.

    Attributes
    ----------
    shape : tuple of int
        Shape of one function's values in `fit`: (), (q,) or (q, m).
    is_relative : bool
        Whether a function's error is measured relative to its size.
    head : OperatorHead
        Head that converts raw outputs to standardised values.
    mean_, scale_ : ndarray of shape (1, m), or (q, m) with `by_column`
        Mean and scale, fitted by `fit`: a value becomes ``(value - mean_) / scale_``.
    is_constant_ : ndarray of bool, of that shape
        Whether the values with this mean and scale are all equal in `fit`. With fewer than 20
        functions the scale of such values is a part of their size. With more it is the smallest
        relative difference of float32 numbers times the value, so that the network's small errors
        vanish.
    """

    shape: tuple[int, ...]
    is_relative: bool
    head: OperatorHead
    mean_: np.ndarray
    scale_: np.ndarray
    is_constant_: np.ndarray

    def __init__(
        self,
        loss: str = "auto",
        output_map: str | Callable[[Any], Any] | None = None,
        *,
        standardize: bool = True,
        by_column: bool = False,
        narrow_constants: bool = True,
    ) -> None:
        if loss == "nll" and output_map is not None:
            raise ValueError(
                "loss='nll' also predicts a standard deviation and therefore takes no output_map. "
                f"Got output_map={output_map!r}."
            )
        self.loss, self.output_map = loss, output_map
        self.standardize, self.by_column = standardize, by_column
        self.narrow_constants = narrow_constants and standardize

    def validate(self, Y: Any, estimator: Any) -> np.ndarray:
        """Check that Y holds finite numbers (n,), (n, q) or (n, q, m)."""
        flat, shape = flat_values(Y)
        flat = check_targets(flat, estimator)
        return flat.reshape(len(flat), *shape)

    def fit_encoder(self, values: np.ndarray, weight: Any) -> np.ndarray:
        """Store the shape of the values, choose head and loss, and return values (n, q, m)."""
        self.shape = values.shape[1:]
        values = values.astype("float64").reshape(len(values), *(*self.shape, 1, 1)[:2])
        n_queries, n_components = values.shape[1:]
        if callable(self.output_map):
            # Try the user's map on a tensor: a wrong one would fail far inside the training.
            tensor = backend.ops.zeros((2, 3, n_components))
            mapped = self.output_map(tensor)
            if not backend.ops.is_tensor(mapped) or tuple(mapped.shape) != tuple(tensor.shape):
                raise ValueError(
                    "`output_map` must be a function of `keras.ops` that keeps shapes. For a "
                    f"tensor of shape {tuple(tensor.shape)} it returned {type(mapped).__name__} of "
                    f"shape {np.shape(mapped)}."
                )
        kind = self.loss if self.loss in ("huber", "nll") else "squared"
        self.head = OperatorHead(n_components, kind, self.output_map)
        # Single numbers have no relative loss by default, since a number can be 0.
        self.is_relative = self.loss == "relative" or (self.loss == "auto" and n_queries > 1)
        return values

    def fit(self, values: np.ndarray, weight: Any = None) -> Self:
        """Learn the scale of values (n, q, m); weights are ignored."""
        n, q, m = values.shape
        # Each column of this table gets a mean and a scale of its own.
        columns = values.reshape((n, q * m) if self.by_column else (n * q, m))
        shape = (q, m) if self.by_column else (1, m)
        scaling = TargetScaling(self.standardize).fit(columns)
        # A single function does not show which of its values vary.
        is_constant = (columns == columns[0]).all(axis=0) & (self.narrow_constants and n > 1)
        unit = np.where(is_constant, scale_of_equal_values(columns[0], n), 1.0)
        mean, scale = scaling.mean_, scaling.scale_ * unit
        if self.standardize and self.output_map == "bounded":
            # Such networks only predict values in (0, 1): map the range, with a margin, to it.
            low, spread = columns.min(axis=0), np.ptp(columns, axis=0)
            spread = np.where(spread > 0, spread, unit)
            mean, scale = low - _MARGIN * spread, (1 + 2 * _MARGIN) * spread
        self.mean_, self.scale_ = mean.reshape(shape), scale.reshape(shape)
        self.is_constant_ = is_constant.reshape(shape)
        return self

    def take_scales(self, other: FunctionTargets, values: np.ndarray) -> None:
        """Take the scales of an earlier fit, in place of learning those of values (n, q, m).

        Equal values of the earlier fit did not show a scale; their scale is learnt now.
        """
        self.fit(values)
        before, now = other.scale_.shape, self.scale_.shape
        if before != now:
            raise ValueError(
                f"`warm_start=True` goes on with a fit whose values have scales of shape {before}. "
                f"Now they have {now}."
            )
        for name in ("standardize", "output_map"):
            was, is_now = getattr(other, name), getattr(self, name)
            if was != is_now:
                raise ValueError(
                    f"`warm_start=True` keeps the scales of the previous fit, which had {name}="
                    f"{was!r}. Got {name}={is_now!r}. Set warm_start=False."
                )
        self.is_constant_ = other.is_constant_ & self.is_constant_
        self.mean_ = np.where(other.is_constant_, self.mean_, other.mean_)
        self.scale_ = np.where(other.is_constant_, self.scale_, other.scale_)

    def transform(self, values: np.ndarray, mean: np.ndarray | None = None) -> np.ndarray:
        """Standardise values (n, q, m) to rows (n * q, m), around `mean_` or other means."""
        standard = (values - (self.mean_ if mean is None else mean)) / self.scale_
        return standard.reshape(-1, values.shape[2])

    def restore(self, loc: Any, scale: Any, mean: Any = None) -> tuple[Any, Any]:
        """Convert means and standard deviations (.., q, m) to units of Y.

        `mean` replaces `mean_` if given, and `scale` can be None.
        """
        loc = loc * self.scale_ + (self.mean_ if mean is None else mean)
        return loc, None if scale is None else scale * self.scale_

    def pair_weights(self, values: np.ndarray, weight: np.ndarray) -> np.ndarray:
        """Compute weights (n * q,) of all pairs from values (n, q, m) and function weights (n,).

        With a relative loss, a function's squared error is divided by its squared size (NEON,
        Eq. 2).
        """
        if self.is_relative:
            # Constants, whose scale is tiny, are as large in all functions.
            sizes = np.where(self.is_constant_, 1.0, values / self.scale_)
            size = np.mean(sizes**2, axis=(1, 2))
            # Divide by the squared size: errors are relative to the function.
            weight = weight / np.maximum(size, _LEAST_SHARE * (size.mean() or 1.0))
        return np.repeat(weight, values.shape[1])

    def output_shape_at(self, n_queries: int) -> tuple[int, ...]:
        """Return the shape of one function's values at so many query points, as in the user's Y."""
        if len(self.shape) == 2:
            return n_queries, self.head.n_outputs
        return () if not self.shape and n_queries == 1 else (n_queries,)

    def distribution(
        self,
        loc: np.ndarray,
        scale: np.ndarray | None = None,
        centre: np.ndarray | None = None,
        noise: np.ndarray | None = None,
        basis: np.ndarray | None = None,
    ) -> EpistemicNormal | GaussianMixture:
        """Make the predictive distribution of draws (S, n, q, m), in units of Y.

        Parameters
        ----------
        loc, scale : ndarray of shape (S, n, q, m)
            Means of each draw and, with loss="nll", standard deviations.
        centre : ndarray of shape (n, q, m), optional
            Point prediction, by default the mean of the draws.
        noise : ndarray of shape (1, m) or (q, m), optional
            Standard deviation of the noise, where draws have none of their own.
        basis : ndarray of shape (S, r), optional
            Orthonormal columns of which the draws' differences from their mean are combinations.

        Returns
        -------
        EpistemicNormal or GaussianMixture
            Distribution of shape (n,) for single numbers and otherwise (n, q * m). It is a normal
            with the draws' mean and standard deviation, or with loss="nll" the mixture of all
            draws (NEON, Eq. 5).
        """
        n_draws, n, *values = loc.shape
        width = (-1,) if self.output_shape_at(values[0]) else ()
        loc = loc.reshape(n_draws, n, *width)
        if scale is not None:
            return GaussianMixture(loc, scale.reshape(loc.shape))
        unit = np.broadcast_to(self.scale_, values).reshape(width)
        # Equal draws would give a normal without width, which has no density.
        mean, spread = loc.mean(axis=0), loc.std(axis=0)
        std = np.maximum(spread, _SMALLEST_STD * unit)
        # Normal draws with the covariance of these draws, and what is missing to the least width.
        functions = (loc - mean) / np.sqrt(n_draws)
        if basis is not None:  # fewer functions of the same covariance
            functions = np.tensordot(basis.T, functions, axes=1)
        functions = np.concatenate([functions, np.sqrt(std**2 - spread**2)[None]])
        centre = mean if centre is None else centre.reshape(std.shape)
        noise = np.zeros(values) if noise is None else np.broadcast_to(noise, values)
        aleatoric = np.broadcast_to(noise.reshape(width), std.shape)
        return EpistemicNormal(centre, aleatoric, std, functions)
