"""Domain of a search, and the results at its points.

The domain is a box whose columns may be whole numbers or categories. Notation: the user has d
columns, where a category is one column of codes 0, 1, .., K - 1, and points (n, d) lie in the
domain. The surrogate gets D columns, where a category is one-hot encoded. *Unit* coordinates are
the latter, scaled to [-1, 1]. An output is what the function returns for a point; all have one
shape. The objective makes a value of it, here with the sign of the user.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from numbers import Integral

import numpy as np
import pandas as pd
from scipy.spatial.distance import cdist
from scipy.stats import qmc

from skuq._formulas import SQUARABLE
from skuq._messages import short_repr, warn_user
from skuq._params import as_floats, fill_masked, read_only_copy
from skuq._random import generator

#: Points of a domain that is small enough to list.
SMALL_DOMAIN = 4096


class _Tolerances:
    """Up to which errors points are taken for equal, and for inside of the box."""

    # Workers may round points to single precision: this is the relative error, and the largest
    # error that counts, as a share of a side.
    rounding: float = 2.0**-24
    most_rounding: float = 2e-4
    slack: float = 1e-9  # share of a side by which other rounding may carry a point over the edge
    equal: float = 1e-6  # distance in unit coordinates, in addition to the rounding
    most_points: int = 2**62  # from here on a discrete domain counts as infinite


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
        rounding = _Tolerances.rounding * np.abs(self.bounds).max(axis=1)
        self._whole = np.isin(np.arange(d), [*self.integer, *self.categories])
        # Whole numbers must be equal.
        self._rounding = np.where(
            self._whole, 0, np.minimum(rounding, _Tolerances.most_rounding * widths)
        )
        #: Distance in unit coordinates up to which points are equal.
        self.tolerance = _Tolerances.equal + np.linalg.norm(2 * self._rounding / widths)
        #: Number of columns d, and which of them are continuous (d,).
        self.n_columns, self.is_continuous = d, ~self._whole
        #: Number of points; inf if any column is continuous.
        self.n_points = math.inf
        if self._whole.all():
            counts = math.prod(int(high - low) + 1 for low, high in self.bounds)
            self.n_points = counts if counts < _Tolerances.most_points else math.inf
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
        slack = _Tolerances.slack * (high - low) + self._rounding
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
        bounds = read_only_copy(as_floats(bounds))
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


_ROUNDED_BY_HAND = 0.02  # distance in unit coordinates that may come from rounding by hand
_NOT_USABLE = f"NaN, inf or beyond {SQUARABLE:g}"


@dataclass(frozen=True, eq=False)
class Results:
    """Results that a surrogate is fitted to.

    `X` (n, d) are the points that have outputs (n, *output_shape) and values (n,), which are
    negated when minimising. `failed` (m, d) are points without outputs.
    """

    X: np.ndarray
    outputs: np.ndarray
    values: np.ndarray
    failed: np.ndarray

    @property
    def n_told(self) -> int:
        """Number of results, failed ones included."""
        return len(self.X) + len(self.failed)


class ResultLog:
    """All results in the order of their evaluation: points `x` (n, d), outputs, values (n,).

    A failed evaluation has None as output, NaN as value and its reason in `messages`, which are
    empty for the others. The objective, if any, maps outputs (k, ..) to values (k,). `pending`
    (p, d) are points whose results are expected; a result settles its point. With `repeats` known
    points may be evaluated again.
    """

    def __init__(self, domain: Domain, objective: Callable | None, repeats: bool):
        self.domain, self.objective, self._repeats = domain, objective, repeats
        self.x, self.values = np.empty((0, domain.n_columns)), np.empty(0)
        self.pending = self.x
        self.outputs: tuple[np.ndarray | None, ...] = ()
        self.messages: tuple[str, ...] = ()

    def __len__(self):
        return len(self.x)

    @property
    def usable(self) -> np.ndarray:
        """Tell which evaluations succeeded: (n,)."""
        return np.array([output is not None for output in self.outputs], dtype=bool)

    @property
    def n_usable(self) -> int:
        """Number of evaluations that succeeded."""
        return int(self.usable.sum())

    @property
    def output_shape(self):
        """Shape of one output; None before the first usable one."""
        return next((y.shape for y in self.outputs if y is not None), None)

    @property
    def y(self) -> np.ndarray:
        """All outputs (n, *output_shape), NaN where the evaluation failed."""
        missing = np.full(self.output_shape or (), np.nan)
        rows = [missing if output is None else output for output in self.outputs]
        return np.stack(rows) if rows else np.empty(0)

    @property
    def n_left(self) -> float:
        """Number of points that may be proposed: neither known nor pending ones."""
        if self._repeats or math.isinf(self.domain.n_points):
            return math.inf
        return self.domain.n_points - len(self.taken)

    @property
    def taken(self) -> set[tuple[float, ...]]:
        """Set of the points that are known or pending."""
        return {tuple(x) for x in np.vstack([self.x, self.pending]).tolist()}

    def best(self, sign: int) -> int | None:
        """Find the position of the best value; None if no evaluation succeeded."""
        return int(np.nanargmax(sign * self.values)) if self.usable.any() else None

    def results(self, sign: int) -> Results:
        """Get the results as a step needs them, with values times `sign`."""
        usable = self.usable
        outputs = np.stack([y for y in self.outputs if y is not None])
        return Results(self.x[usable], outputs, sign * self.values[usable], self.x[~usable])

    def add(self, x, y) -> None:
        """Add points (d,) or (k, d) and their outputs; see `BayesianOptimizer.tell`."""
        points = self.domain.check(x)
        n, single = len(points), np.ndim(x) == 1
        try:
            y = fill_masked(y)
            is_sequence = isinstance(y, list | tuple) or np.ndim(y) == 1
            if self.objective is not None and not single and is_sequence:
                # None, or one NaN, is a failure: it becomes NaN of the shape that outputs have.
                failed = [v is None or (np.ndim(v) == 0 and not _is_usable(float(v))) for v in y]
                shape = self.output_shape
                if shape is None:
                    shape = next((np.shape(v) for v, lost in zip(y, failed) if not lost), ())
                y = [np.full(shape, np.nan) if lost else v for v, lost in zip(y, failed)]
            # A copy, as a simulator may write its next output to the same array.
            y = as_floats(y).copy()
        except (TypeError, ValueError) as error:
            raise ValueError(f"`y` must be numbers. Got {y!r}.") from error
        # One number may be the result of one row, as `ask` returns it.
        if single or (n == 1 and y.ndim == 0):
            if y.ndim == 0 and not _is_usable(y):  # a failure, whatever the outputs' shape
                y = np.full(self.output_shape or (), y)
            y = y.reshape(1) if self.objective is None and y.size == 1 else y[None]
        if self.objective is None:
            expected = (n,)
            hint = "" if y.ndim < 2 else " With several numbers for each x give an `objective`."
        else:
            known, hint = self.output_shape, ""
            expected = (n, *(y.shape[1:] if known is None else known))
        if y.shape != expected:
            raise ValueError(
                f"`y` must have shape {expected}, a value for each of {n} x. Got {y.shape}.{hint}"
            )
        usable = _is_usable(y).reshape(len(y), -1).all(axis=1)
        values, messages = np.full(n, np.nan), [_NOT_USABLE] * n
        for k in np.flatnonzero(usable):
            values[k], messages[k] = self._value_of(y[k])
        self._append(points, y, values, messages)

    def add_failures(self, x, message: str) -> None:
        """Add points (d,) or (k, d) whose evaluation failed."""
        points = self.domain.check(x)
        n = len(points)
        self._append(points, [None] * n, np.full(n, np.nan), [message] * n)

    def expect(self, points) -> None:
        """Add points (k, d) to the pending ones."""
        self.pending = np.vstack([self.pending, points])

    def forget(self, points=None) -> None:
        """Drop points (k, d) from the pending ones, each once; by default drop all.

        They may have been rounded to single precision. Whole numbers and categories must be equal.
        """
        if points is None:
            self.pending = self.pending[:0]
            return
        for x in points:
            self._settle(x)

    def _settle(self, x) -> bool:
        """Drop one pending point that equals x (d,), and tell whether there was one."""
        k = self._find_pending(x, self.domain.tolerance)
        if k is not None:
            self.pending = np.delete(self.pending, k, axis=0)
        return k is not None

    def _find_pending(self, x, largest_distance: float) -> int | None:
        """Find the position of the pending point nearest to x (d,); None if it is too far away."""
        if not len(self.pending):
            return None
        distance = self.domain.distance(self.pending, x[None]).ravel()
        # Whole numbers and categories are not rounded.
        distance[((x != self.pending) & ~self.domain.is_continuous).any(axis=1)] = np.inf
        k = int(distance.argmin())  # one of them, where a point is pending several times
        return k if distance[k] <= largest_distance else None

    def to_frame(self) -> pd.DataFrame:
        """Tabulate results, then pending points; see `BayesianOptimizer.to_frame`."""
        n_pending, X = len(self.pending), np.vstack([self.x, self.pending])
        status = np.where(self.usable, "completed", "failed").tolist() + ["pending"] * n_pending
        columns: dict = {f"x{j}": X[:, j] for j in range(X.shape[1])}
        columns["value"] = np.append(self.values, np.full(n_pending, np.nan))
        columns["status"] = status
        columns["message"] = [*self.messages, *[""] * n_pending]
        return pd.DataFrame(columns)

    def _append(self, points, outputs, values, messages):
        """Add results; without a finite value an evaluation has failed and loses its output."""
        failed = ~np.isfinite(values)
        known = {tuple(x) for x in self.x.tolist()}
        self.x = np.vstack([self.x, points])
        self.outputs += tuple(None if lost else y for y, lost in zip(outputs, failed))
        self.values = np.append(self.values, np.where(failed, np.nan, values))
        self.messages += tuple(messages)
        unsettled = [x for x in points if not self._settle(x)]
        for x in unsettled:
            # A point that has been evaluated before is told again; it is not a rounded pending one.
            k = None if tuple(x) in known else self._find_pending(x, _ROUNDED_BY_HAND)
            if k is not None:
                warn_user(
                    f"The result at {x.tolist()} leaves {self.pending[k].tolist()} pending, which "
                    "is near but not equal. If it belongs to that point, call `forget` with the "
                    "latter, and next time tell the point as it was proposed."
                )
                break  # one warning is enough

    def _value_of(self, output):
        """Evaluate the objective of one output; return the value and the reason why it is NaN."""
        if self.objective is None:
            return output, ""
        try:
            values = np.asarray(self.objective(output[None].copy()), dtype="float64")
        except Exception as error:  # the evaluation was expensive: keep it
            return np.nan, f"the objective raised {type(error).__name__}: {error}"
        if values.shape != (1,):
            raise ValueError(
                "`objective` must make one number of each output, along the last axes of its "
                f"argument: of shape {(1, *output.shape)}, (1,). Got {values.shape}."
            )
        if not _is_usable(values[0]):
            return np.nan, f"the objective is {_NOT_USABLE}"
        return values[0], ""


def _is_usable(values):
    """Tell which values a surrogate can be fitted to."""
    return np.abs(values) <= SQUARABLE  # NaN is not


@dataclass(frozen=True)
class StepRecord:
    """Record of how one proposal was found.

    Attributes
    ----------
    n_results : int
        Number of results known before it.
    acquisition_value : float
        Acquisition at the proposed points; at the first of them if they were found one by one.
    beta : float or None
        Weight of the standard deviation, doublings included; None for acquisitions without it.
    n_doublings : int
        How often `dynamic_c` doubled beta.
    seconds_fit, seconds_acquisition : float
    n_pending : int
        Number of points that were pending.
    """

    n_results: int
    acquisition_value: float
    beta: float | None
    n_doublings: int
    seconds_fit: float
    seconds_acquisition: float
    n_pending: int


@dataclass(frozen=True, eq=False)
class OptimizationResult:
    """Result of a search; see `BayesianOptimizer.maximize`."""

    x: np.ndarray
    fun: float
    x_iters: np.ndarray
    values: np.ndarray
    message: str
    history: tuple[StepRecord, ...] = field(repr=False)


def initial_design(domain: Domain, n_initial: int, entropy: int) -> np.ndarray:
    """Draw the Latin hypercube (n_initial, d) that a search begins with."""
    return domain.design(n_initial, generator(entropy, "initial"))


def initial_points(q: int, log: ResultLog, n_initial: int, entropy: int) -> np.ndarray:
    """Propose q points: the rest of a Latin hypercube of `n_initial`, then uniform ones.

    Known and pending points count as points of the design. None of them is proposed again, unless
    a noisy function is asked for more than its domain has.
    """
    n, domain = len(log) + len(log.pending), log.domain
    design = initial_design(domain, n_initial, entropy)
    rng = generator(entropy, "uniform", n)
    # More uniform points than asked for, since some may be taken.
    points = [design[n:], domain.sample(2 * q, rng)]
    # The whole of a small domain in random order, so that no free point is missed.
    if domain.n_points <= SMALL_DOMAIN:
        points.append(rng.permutation(domain.grid()))
    taken, chosen = log.taken, []
    for x in np.concatenate(points).tolist():
        if tuple(x) not in taken:
            taken.add(tuple(x))
            chosen.append(x)
    rest = domain.sample(max(0, q - len(chosen)), rng)
    return np.vstack([np.array(chosen[:q]).reshape(-1, domain.n_columns), rest])
