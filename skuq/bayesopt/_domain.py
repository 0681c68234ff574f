"""The domain of a search: a box whose columns may be whole numbers or categories.

Notation: the user has d columns, where a category is one column of codes 0, 1, .., K - 1. The
surrogate gets D columns, where a category is one-hot encoded. *Unit* coordinates are the latter,
scaled to [-1, 1].

Proposals are moved off faces of the box. Maximisers end on faces often, because a surrogate
extrapolates the trend of distant results to them. Results that all lie on a face say nothing of
the slope away from it: the surrogate continues the trend, however wrong, and a search converges
on the face. Model-based optimisation without derivatives therefore evaluates points that improve
the geometry of its data.

References
----------
A. R. Conn, K. Scheinberg, L. N. Vicente. "Introduction to Derivative-Free Optimization", 2009,
chapters 3 and 6 (poisedness, geometry-improving steps).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Integral

import numpy as np
from scipy.spatial.distance import cdist
from scipy.stats import qmc

from skuq._checks import as_floats
from skuq._messages import short_repr

#: Points of a domain that is small enough to list.
SMALL_DOMAIN = 4096


@dataclass(frozen=True)
class _Tolerances:
    """Up to which errors points are taken for equal, and for inside of the box."""

    # Workers may round points to single precision: this is the relative error, and the largest
    # error that counts, as a share of a side.
    rounding: float = 2.0**-24
    most_rounding: float = 2e-4
    slack: float = 1e-9  # share of a side by which other rounding may carry a point over the edge
    equal: float = 1e-6  # distance in unit coordinates, in addition to the rounding
    most_points: int = 2**62  # from here on a discrete domain counts as infinite


_TOLERANCES = _Tolerances()


class Domain:
    """A box of d columns, and its encoding for a surrogate.

    `integer` are indices of the columns that hold whole numbers, `categories` of those that hold
    unordered codes, 0 to K - 1. Raise ValueError if the bounds do not fit these columns.
    """

    def __init__(self, bounds, integer=None, categories=None):
        self.bounds = check_bounds(bounds)
        d = len(self.bounds)
        self.integer = _check_columns("integer", integer, d)
        self.categories = _check_columns("categories", categories, d)
        both = set(self.integer) & set(self.categories)
        if both:
            raise ValueError(f"Column {min(both)} is in both `integer` and `categories`.")
        for name, columns in (("integer", self.integer), ("categories", self.categories)):
            sides = self.bounds[list(columns)]
            wrong = np.flatnonzero((sides % 1 != 0).any(axis=1))
            if name == "categories" and not len(wrong):
                wrong = np.flatnonzero(sides[:, 0] != 0)
            if len(wrong):
                expected = "whole numbers" if name == "integer" else "(0, K - 1) for K codes"
                raise ValueError(
                    f"`bounds` of the columns in `{name}` must be {expected}. "
                    f"Got {tuple(sides[wrong[0]].tolist())} in column {columns[wrong[0]]}."
                )
        widths = np.diff(self.bounds, axis=1)[:, 0]
        rounding = _TOLERANCES.rounding * np.abs(self.bounds).max(axis=1)
        self._whole = np.isin(np.arange(d), [*self.integer, *self.categories])
        # Whole numbers must be equal.
        self._rounding = np.where(
            self._whole, 0, np.minimum(rounding, _TOLERANCES.most_rounding * widths)
        )
        #: Distance in unit coordinates up to which points are equal.
        self.tolerance = _TOLERANCES.equal + np.linalg.norm(2 * self._rounding / widths)
        #: Number of columns d, and which of them are continuous (d,).
        self.n_columns, self.is_continuous = d, ~self._whole
        #: Number of points; inf if any column is continuous.
        self.n_points = math.inf
        if self._whole.all():
            counts = math.prod(int(high - low) + 1 for low, high in self.bounds)
            self.n_points = counts if counts < _TOLERANCES.most_points else math.inf
        # A category becomes one column, 0 or 1, for each of its codes.
        is_category = np.isin(np.arange(d), self.categories)
        sizes = np.where(is_category, self.bounds[:, 1] + 1, 1).astype(int)
        # Positions of each column in the encoded points, and their bounds.
        self._columns = np.split(np.arange(sizes.sum()), np.cumsum(sizes)[:-1])
        ends = np.where(is_category[:, None], [0.0, 1.0], self.bounds)
        self.encoded_bounds = np.repeat(ends, sizes, axis=0)

    def check(self, X) -> np.ndarray:
        """Validate points (n, d), or one point (d,), inside of the box as an array (n, d)."""
        X = as_floats(X, "x")
        if X.ndim == 1:
            X = X[None]
        if X.ndim != 2 or X.shape[1] != self.n_columns or not len(X):
            raise ValueError(
                f"`x` must be numbers of shape ({self.n_columns},) or (k, {self.n_columns}), as "
                f"there are {self.n_columns} bounds. Got shape {X.shape}."
            )
        low, high = self.bounds.T
        slack = _TOLERANCES.slack * (high - low) + self._rounding
        outside = ~((low - slack <= X) & (high + slack >= X))  # NaN is outside
        if outside.any():
            row, column = np.argwhere(outside)[0]
            raise ValueError(
                f"`x` must lie within the bounds. Got {X[row, column]} in column {column}, whose "
                f"bounds are {tuple(self.bounds[column].tolist())}."
            )
        X = np.clip(X, low, high)
        uneven = np.argwhere(self._whole & (np.round(X) != X))
        if len(uneven):
            row, column = uneven[0]
            raise ValueError(
                f"Column {column} of `x` must be whole numbers (see `integer` and `categories`). "
                f"Got {X[row, column]}."
            )
        return X

    def encode(self, X) -> np.ndarray:
        """Encode points (n, d) for a surrogate: (n, D).

        A categorical column holds codes, which become one-hot columns. Others stay as they are.
        """
        parts = [
            np.eye(len(encoded))[X[:, column].astype(int)]
            if column in self.categories
            else X[:, column, None]
            for column, encoded in enumerate(self._columns)
        ]
        return np.hstack(parts)

    def decode(self, encoded) -> np.ndarray:
        """Find the points (n, d) of the domain that are nearest to encoded ones (n, D)."""
        # The largest one-hot column is the category.
        parts = [
            encoded[:, encoded_columns].argmax(axis=1)
            if column in self.categories
            else np.clip(encoded[:, encoded_columns[0]], *self.bounds[column])
            for column, encoded_columns in enumerate(self._columns)
        ]
        X = np.stack(parts, axis=1).astype("float64")
        return np.where(self._whole, np.round(X), X)

    def unit(self, X) -> np.ndarray:
        """Encode points (n, d) and scale them to unit coordinates (n, D)."""
        low, high = self.encoded_bounds.T
        return 2 * (self.encode(X) - low) / (high - low) - 1

    def distance(self, X, known) -> np.ndarray:
        """Compute the distance of each X (n, d) to the nearest of known points (m, d): (n,).

        Distances are in unit coordinates, where different categories are sqrt(8) apart. They are
        inf without known points.
        """
        if not len(known):
            return np.full(len(X), np.inf)
        return cdist(self.unit(X), self.unit(known)).min(axis=1)

    def from_quantiles(self, u) -> np.ndarray:
        """Map numbers in [0, 1) to points (n, d); whole numbers get equal shares."""
        low, high = self.bounds.T
        # The minimum is for products that round up to the next whole number.
        whole = np.minimum(low + np.floor(u * (high - low + 1)), high)
        return np.where(self._whole, whole, low + u * (high - low))

    def sample(self, n, rng) -> np.ndarray:
        """Draw uniform points (n, d)."""
        return self.from_quantiles(rng.random((n, self.n_columns)))

    def design(self, n, rng) -> np.ndarray:
        """Draw a Latin hypercube of points (n, d)."""
        return self.from_quantiles(qmc.LatinHypercube(self.n_columns, rng=rng).random(n))

    def grid(self) -> np.ndarray:
        """List all points (n_points, d) of a domain without continuous columns."""
        codes = [np.arange(low, high + 1) for low, high in self.bounds]
        return np.stack(np.meshgrid(*codes, indexing="ij"), axis=-1).reshape(-1, self.n_columns)

    def neighbours(self, x, n, rng, *, exponents=(-4, -0.5)) -> np.ndarray:
        """Get points (k, d) near x (d,) that differ in one discrete column, or in continuous ones.

        A whole number moves by 1, a category to each other one. The continuous columns move
        together, n times at random, by log-uniform shares of their ranges: 10 to the power of
        numbers between the exponents, which is 0.01 % to 30 %.
        """
        steps = []
        for column in np.flatnonzero(self._whole):
            low, high = self.bounds[column]
            if column in self.categories:
                others = np.arange(high + 1)
            else:
                others = np.array([x[column] - 1, x[column] + 1])
            others = others[(others >= low) & (others <= high) & (others != x[column])]
            moved = np.tile(x, (len(others), 1))
            moved[:, column] = others
            steps.append(moved)
        if not self._whole.all():
            low, high = self.bounds.T
            reach = (high - low) * 10 ** rng.uniform(*exponents, (n, 1))
            jittered = x + np.where(self._whole, 0, reach * rng.normal(size=(n, len(x))))
            steps.append(np.clip(jittered, low, high))
        return np.concatenate(steps)


def check_bounds(bounds) -> np.ndarray:
    """Validate bounds as an array (d, 2) of finite numbers, each low below its high."""
    given = bounds
    try:
        bounds = np.asarray(bounds, dtype="float64")
    except (TypeError, ValueError):
        bounds = np.empty(0)
    if bounds.ndim != 2 or bounds.shape[1] != 2 or not len(bounds):
        raise ValueError(
            "`bounds` must be pairs of numbers (low, high), one for each column of x; a category "
            f"with K values is a column of codes, with bounds (0, K - 1). Got {short_repr(given)}."
        )
    with np.errstate(over="ignore", invalid="ignore"):
        widths = np.diff(bounds, axis=1)
    if not np.isfinite(bounds).all() or not np.isfinite(widths).all():
        raise ValueError(f"`bounds` must be finite, and so must high - low. Got {bounds.tolist()}.")
    wrong = np.flatnonzero(bounds[:, 0] >= bounds[:, 1])
    if len(wrong):
        low, high = bounds[wrong[0]]
        reason = "of zero width: leave that column out" if low == high else "reversed"
        raise ValueError(
            f"`bounds` must have low < high. Got ({low}, {high}) in column {wrong[0]}, {reason}."
        )
    return bounds


def _check_columns(name, columns, d):
    """Validate indices of columns; sort them without repeats."""
    if columns is None:
        return ()
    columns = np.atleast_1d(np.asarray(columns)).tolist()
    if any(not isinstance(c, Integral) or isinstance(c, bool) or not 0 <= c < d for c in columns):
        raise ValueError(
            f"`{name}` must hold indices of columns, from 0 to {d - 1}. Got {columns}."
        )
    return tuple(sorted(set(columns)))


def moves_off_faces(
    domain: Domain,
    batch: np.ndarray,
    results: np.ndarray,
    others: np.ndarray,
    *,
    near: float = 0.1,
    n_near: int = 3,
    move: float = 0.02,
    on_face: float = 1e-3,
) -> tuple[np.ndarray, np.ndarray]:
    """Find moves of proposals off faces on which all points near them lie.

    Parameters
    ----------
    batch : ndarray of shape (q, d)
        Proposals.
    results : ndarray of shape (n, d)
        Points with results. Proposals with few of them near are left where they are.
    others : ndarray of shape (k, d)
        Further points, whose results are expected or have failed: they count as near, too, so that
        no move is made twice.
    near : float, default=0.1
        Distance of near points in unit coordinates, in units of sqrt(D).
    n_near : int, default=3
        Number of near results at which a search counts as converging there.
    move : float, default=0.02
        Length of a move, as a share of the side.
    on_face : float, default=1e-3
        Share of the side within which a proposal is on a face. DIRECT stops this near to it in up
        to about six dimensions.

    Returns
    -------
    rows : ndarray of int of shape (m,)
        Number of the proposal that each move is for.
    moved : ndarray of shape (m, d)
        The proposal moved inwards along one continuous column.
    """
    rows, moved = [], []
    reach = near * math.sqrt(len(domain.encoded_bounds))
    points = np.vstack([results, others, batch])
    is_near = cdist(domain.unit(batch), domain.unit(points)) <= reach
    for row, x in enumerate(batch):
        if is_near[row, : len(results)].sum() < n_near:
            continue
        for column in np.flatnonzero(domain.is_continuous):
            low, high = domain.bounds[column]
            face, inwards = (low, high - low) if 2 * x[column] < low + high else (high, low - high)
            shares = (points[is_near[row], column] - face) / inwards
            if (x[column] - face) / inwards > on_face or shares.max() > move / 2:
                continue
            inside = x.copy()
            inside[column] = face + move * inwards
            rows.append(row)
            moved.append(inside)
    return np.array(rows, dtype=int), np.array(moved).reshape(-1, domain.n_columns)
