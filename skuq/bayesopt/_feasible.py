"""Constraints of the inputs, which are known before measuring, and points that satisfy them.

Points are drawn by rejection, or where little of the box is left by random walks: a continuous step
goes along a random chord of the polytope of the linear constraints ("hit-and-run", Smith 1984), and
is shortened until functions allow it. Walks begin at solutions of mixed integer programmes, or
where functions are violated least.

Notation: points (n, d) are those of the user, where a category is a column of codes. They are
*feasible* if they satisfy all constraints. Linear ones are rows of ``lower <= A x <= upper``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, NonlinearConstraint, milp
from scipy.spatial.distance import cdist

# Share of a row's size by which rounding may violate a linear constraint, and by which points may
# miss an equality. Points that can be moved keep a margin: sums of one row round differently
# from those of many.
_ROUNDED_SUM, _INEXACT_SUM, _MARGIN = 1e-12, 1e-9, 1e-14
_N_PROBED = 4096  # points of the box at which constraints are evaluated first
_LEAST_SHARE = 0.02  # of feasible points, from which points are drawn by rejection
_N_WALKS, _N_STEPS, _N_SOLVED = 128, 100, 16  # walks that look for feasible points
_N_SHORTENED, _N_HALVINGS = 10, 25  # of a step of a walk, and of the way to a border
_MOST_LISTED = 2**17  # points of a grid that are all listed


@dataclass(frozen=True, eq=False)
class InputConstraint:
    """One constraint: feasible points have ``lower <= values <= upper``, but for `tolerance`.

    `function` makes the values: a matrix (m, d), a function of points (n, d), or, with `by_point`,
    one of a single point (d,). `strict` takes the place of the tolerance if points keep a margin.
    """

    name: Any
    function: Any
    lower: np.ndarray | float
    upper: np.ndarray | float
    tolerance: np.ndarray | float = 0.0
    strict: np.ndarray | float = 0.0
    by_point: bool = False

    @property
    def is_linear(self) -> bool:
        """Whether the constraint is a matrix."""
        return isinstance(self.function, np.ndarray)

    def violations(self, X, strict=False) -> np.ndarray:
        """Compute the largest violation of each point (n, d): (n,), at most 0 if it is feasible."""
        if not len(X):
            return np.empty(0)
        values = self._values(np.array(X))  # a copy, as a function may change its argument
        beyond = np.maximum(values - self.upper, self.lower - values)
        largest = (beyond - (self.strict if strict else self.tolerance)).max(axis=1)
        return np.where(np.isnan(largest), np.inf, largest)

    def _values(self, X):
        """Compute the constrained values (n, m) of points (n, d)."""
        if self.is_linear:
            return X @ self.function.T
        given = "one point of shape (d,)" if self.by_point else f"points of shape {X.shape}"
        try:
            if self.by_point:
                values = np.stack([np.atleast_1d(self.function(x)) for x in X])
            else:
                values = np.asarray(self.function(X))
        except Exception as error:
            raise ValueError(
                f"Input constraint {self.name!r} raised {type(error).__name__}: {error}. Its "
                f"function gets {given}."
            ) from error
        if values.dtype.kind not in "iuf":
            raise ValueError(
                f"Input constraint {self.name!r} must give numbers, at most 0 where a point is "
                f"feasible: write x <= c as x - c. Got values of type {values.dtype}."
            )
        if values.ndim not in (1, 2) or len(values) != len(X):
            raise ValueError(
                f"Input constraint {self.name!r} must give one number for each row of X, or "
                f"several in a row: of shape ({len(X)},). It gets {given}. Got {values.shape}. A "
                "function f of one point is NonlinearConstraint(f, -np.inf, 0)."
            )
        return values.reshape(len(X), -1).astype("float64")


def named_constraints(given) -> dict[Any, Any]:
    """Name `input_constraints`, which may be one, several without names, or none, by numbers."""
    if given is None or isinstance(given, Mapping):
        return dict(given or {})
    return dict(enumerate(given if isinstance(given, list | tuple) else [given]))


def _read_linear(name, constraint, bounds, is_whole):
    """Validate a linear constraint of the columns of a box (d, 2)."""
    A = constraint.A.toarray() if hasattr(constraint.A, "toarray") else constraint.A
    A = np.atleast_2d(np.asarray(A, dtype="float64"))
    if A.shape[1] != len(bounds) or not np.isfinite(A).all():
        raise ValueError(
            f"The matrix of input constraint {name!r} must be finite, with {len(bounds)} columns, "
            f"one for each of the bounds. Got shape {A.shape}."
        )
    lower, upper = (
        np.broadcast_to(np.asarray(v, dtype="float64"), len(A))
        for v in (constraint.lb, constraint.ub)
    )
    if not (lower <= upper).all():
        raise ValueError(
            f"Input constraint {name!r} must have lb <= ub. Got lb={constraint.lb} and "
            f"ub={constraint.ub}."
        )
    largest = [np.where(np.isfinite(v), np.abs(v), 0.0) for v in (lower, upper)]
    size = np.abs(A) @ np.abs(bounds).max(axis=1) + np.maximum(*largest)
    tolerance = size * np.where(lower == upper, _INEXACT_SUM, _ROUNDED_SUM)
    # Equalities, and sums of whole numbers, can be met exactly or not at all.
    moves = (A[:, ~is_whole] != 0).any(axis=1) & (lower < upper)
    strict = np.where(moves, -_MARGIN * size, tolerance)
    return InputConstraint(name, A, lower, upper, tolerance, strict)


class FeasibleSet:
    """The points of a box (d, 2) that satisfy all constraints.

    `given` are the `input_constraints` of `BayesianOptimizer`, `is_whole` (d,) tells which columns
    hold whole numbers. `listed` are all points of a set without continuous columns; None if they
    are too many, or infinitely many. Raise TypeError or ValueError if a constraint is wrong, or
    ValueError if no point is found that satisfies all.
    """

    def __init__(self, given, bounds, is_whole, from_quantiles):
        self.constraints: list[InputConstraint] = []
        for name, constraint in named_constraints(given).items():
            if isinstance(constraint, LinearConstraint):
                self.constraints.append(_read_linear(name, constraint, bounds, is_whole))
            elif isinstance(constraint, NonlinearConstraint):
                lower, upper = (np.atleast_1d(v) for v in (constraint.lb, constraint.ub))
                if not (lower < upper).all():
                    raise ValueError(
                        f"Input constraint {name!r} must have lb < ub: points that satisfy an "
                        f"equality are found for a LinearConstraint only. Got lb={constraint.lb} "
                        f"and ub={constraint.ub}."
                    )
                self.constraints.append(
                    InputConstraint(name, constraint.fun, lower, upper, by_point=True)
                )
            elif callable(constraint) and not isinstance(constraint, type):
                self.constraints.append(InputConstraint(name, constraint, -np.inf, 0.0))
            else:
                raise TypeError(
                    "`input_constraints` must be LinearConstraint or NonlinearConstraint of "
                    f"SciPy, or functions of X, one or a list or dict of them. Got {constraint!r}."
                )
        self.bounds, self.is_whole, self._from_quantiles = bounds, is_whole, from_quantiles
        self._low, self._width = bounds[:, 0], np.diff(bounds, axis=1)[:, 0]
        linear = [c for c in self.constraints if c.is_linear]
        d = len(bounds)
        self.matrix = np.concatenate([np.empty((0, d)), *(c.function for c in linear)])
        self.lower = np.concatenate([[], *(c.lower for c in linear)])
        self.upper = np.concatenate([[], *(c.upper for c in linear)])
        self.is_equality = self.lower == self.upper
        # In units of the box: a correction of missed equalities by continuous columns, and the
        # projection of continuous steps onto directions that keep equalities.
        rows = self.matrix[self.is_equality] * self._width * ~is_whole
        self._correction = np.linalg.pinv(rows)
        self._along = (np.eye(d) - self._correction @ rows) * ~is_whole
        self.listed, self._units = None, np.empty(0)
        if self.constraints:
            self._find_points()

    def is_feasible(self, X, strict=False) -> np.ndarray:
        """Tell which points (n, d) satisfy all constraints: (n,)."""
        feasible = np.ones(len(X), dtype=bool)
        for constraint, unit in zip(self.constraints, self._units):
            # Functions of whole numbers may be met exactly, too.
            keeps_margin = strict and not constraint.is_linear and not self.is_whole.any()
            feasible &= constraint.violations(X, strict) <= -_MARGIN * unit * keeps_margin
        return feasible

    def describe_violation(self, X, tolerance: float) -> str:
        """Name a constraint that one of points (n, d) violates; "" if none does.

        `tolerance` is a share of how much the violation varies over the box.
        """
        for constraint, unit in zip(self.constraints, self._units):
            violations = constraint.violations(X) - tolerance * unit
            if violations.max(initial=0) > 0:
                x = X[violations.argmax()].tolist()
                return f"x={x} violates the input constraint {constraint.name!r}"
        return ""

    def sample(self, n: int, rng) -> np.ndarray:
        """Draw feasible points (n, d), uniform ones where they are not rare in the box."""
        pool = self._pool[rng.integers(len(self._pool), size=n)]
        if self.listed is not None:
            return pool
        if self._share < _LEAST_SHARE:
            return self._walk(pool, rng, 5 + len(self.bounds))
        u = rng.random((20 + int(1.5 * n / self._share), len(self.bounds)))
        X = self._from_quantiles(u)
        # In the rare case of too few points, known ones fill up.
        return np.concatenate([X[self.is_feasible(X)], pool])[:n]

    def move_inside(self, X) -> np.ndarray:
        """Move points (n, d) of the box towards the nearest known feasible ones, to the border."""
        outside = ~self.is_feasible(X, strict=True)
        if outside.any():
            X = X.copy()
            distance = cdist(X[outside] / self._width, self._pool / self._width)
            anchors = self._pool[distance.argmin(axis=1)]
            moved = self.pull(X[outside], anchors)
            # A feasible set may be too thin to keep a margin in it.
            kept = self.is_feasible(X[outside]) & (moved == anchors).all(axis=1)
            X[outside] = np.where(kept[:, None], X[outside], moved)
        return X

    def pull(self, X, anchors) -> np.ndarray:
        """Move points (n, d) of the box towards feasible anchors (n, d), until they are feasible.

        Columns of whole numbers become those of the anchor.
        """
        steps = self._width * (((X - anchors) / self._width) @ self._along)
        _, farthest = self._chord(anchors, steps)
        most, least = np.minimum(farthest, 1.0), np.zeros(len(X))
        most[most < 1] *= 1 - 1e-12  # rounding may carry the end of a chord over the border
        shares = most.copy()
        # Bisection of the way from the anchor, which mostly ends at its first point.
        for _ in range(_N_HALVINGS):
            moved = np.clip(anchors + shares[:, None] * steps, *self.bounds.T)
            inside = self.is_feasible(moved, strict=True)
            least, most = np.where(inside, shares, least), np.where(inside, most, shares)
            if (least >= most).all():
                break
            shares = (least + most) / 2
        return np.clip(anchors + least[:, None] * steps, *self.bounds.T)

    def change_whole(self, X, rng) -> np.ndarray:
        """Change one whole number of each point (n, d) at random, or two by as much as each other.

        Continuous columns correct what equalities then miss; the points may not be feasible.
        """
        n, columns = np.arange(len(X)), np.flatnonzero(self.is_whole)
        first, second = rng.choice(columns, (2, len(X)))
        low, high = self.bounds.T
        one, two = X.copy(), X.copy()
        one[n, first] = self._from_quantiles(rng.random(X.shape))[n, first]
        most = np.minimum(self._width[first], self._width[second])
        steps = np.floor(most ** rng.random(len(X))) * rng.choice([-1, 1], (2, len(X)))
        two[n, first] += steps[0]
        two[n, second] += steps[1] * (first != second)
        moved = np.where(rng.random((len(X), 1)) < 0.5, one, two)
        missed = moved @ self.matrix[self.is_equality].T - self.upper[self.is_equality]
        moved -= self._width * (missed @ self._correction.T)
        outside = ((moved < low) | (moved > high)).any(axis=1, keepdims=True)
        return np.where(outside, X, moved)

    def local_constraints(self, X):
        """Describe the constraints around feasible points (q, d) in their continuous columns.

        Return the values v (q * c,) of these columns in units of the box, a function that makes
        points (q, d) of other ones, and constraints of v for `scipy.optimize.minimize`.
        """
        free, q = ~self.is_whole, len(X)
        start = ((X - self._low) / self._width)[:, free]

        def points(v):
            moved = X.copy()
            moved[:, free] = self._low[free] + self._width[free] * v.reshape(q, -1)
            return moved

        rows, values = self.matrix[:, free] * self._width[free], points(0 * start) @ self.matrix.T
        # Independent rows instead of the equalities, which may be redundant.
        _, sizes, basis = np.linalg.svd(rows[self.is_equality], full_matrices=False)
        basis = basis[sizes > 1e-9 * sizes.max(initial=0.0)]
        kept = ~self.is_equality
        parts = (
            (basis, start @ basis.T, start @ basis.T),
            (rows[kept], (self.lower - values)[:, kept], (self.upper - values)[:, kept]),
        )
        constraints = [
            LinearConstraint(np.kron(np.eye(q), matrix), lower.ravel(), upper.ravel())
            for matrix, lower, upper in parts
            if len(matrix)
        ]
        constraints += [
            NonlinearConstraint(lambda v, c=c: c.violations(points(v)), -np.inf, 0.0)
            for c in self.constraints
            if not c.is_linear
        ]
        return start.ravel(), points, constraints

    def list_points(self, most=math.inf) -> np.ndarray | None:
        """List all feasible points (n, d) of whole numbers; None if they are more than `most`."""
        points, (low, high) = np.empty((1, 0)), self.bounds.T
        slack = np.concatenate([[], *(c.tolerance for c in self.constraints if c.is_linear)])
        for column in range(len(low)):
            if len(points) * (high[column] - low[column] + 1) > most:
                return None
            codes = np.arange(low[column], high[column] + 1)
            points = np.column_stack(
                [np.repeat(points, len(codes), axis=0), np.tile(codes, len(points))]
            )
            # Leave out beginnings that no columns to come can make feasible.
            done, rest = self.matrix[:, : column + 1], self.matrix[:, column + 1 :]
            ends = rest * low[column + 1 :], rest * high[column + 1 :]
            sums = points @ done.T
            can_sink = sums + np.minimum(*ends).sum(axis=1) <= self.upper + slack
            can_rise = sums + np.maximum(*ends).sum(axis=1) >= self.lower - slack
            points = points[(can_sink & can_rise).all(axis=1)]
        return points[self.is_feasible(points)]

    def _find_points(self):
        """Find points that satisfy all constraints; raise ValueError if there are none."""
        rng = np.random.default_rng(0)
        X = self._from_quantiles(rng.random((_N_PROBED, len(self.bounds))))
        violations = np.stack([c.violations(X) for c in self.constraints])
        spreads = np.ptp(np.where(np.isfinite(violations), violations, 0.0), axis=1)
        self._units = np.where(spreads > 0, spreads, 1.0)
        inside = (violations <= 0).all(axis=0)
        self._share = inside.mean()
        if self.is_whole.all():
            self.listed = self.list_points(_MOST_LISTED)
        if self.listed is not None:
            self._pool = self.listed
        elif self._share >= _LEAST_SHARE:
            self._pool = X[inside]
        else:
            starts = self._solve(rng) if len(self.matrix) else X[np.argsort(self._violation(X))]
            starts = np.resize(starts, (_N_WALKS if len(starts) else 0, len(self.bounds)))
            X = self._walk(starts, rng, _N_STEPS)
            self._pool = X[self.is_feasible(X)]
        if not len(self._pool):
            names = ", ".join(repr(c.name) for c in self.constraints)
            raise ValueError(
                "No point within the bounds was found that satisfies all `input_constraints`, "
                f"{names}. Feasible points have A x within lb and ub, and functions at most 0."
            )

    def _solve(self, rng):
        """Find points (n, d) that satisfy the linear constraints, in the middle of the set."""
        d, kept, free = len(self.bounds), ~self.is_equality, ~self.is_whole
        # The last variable is the distance of the continuous columns to all borders, in units of
        # the box; it is maximised, for random preferences of whole numbers.
        size = np.linalg.norm(self.matrix * self._width * free, axis=1) * kept
        box = np.column_stack([np.eye(d)[free], self._width[free]])
        low, high = self.bounds.T
        constraints = [
            LinearConstraint(np.column_stack([self.matrix, size]), -np.inf, self.upper),
            LinearConstraint(np.column_stack([self.matrix, -size]), self.lower, np.inf),
            LinearConstraint(box, -np.inf, high[free]),
            LinearConstraint(box * np.append(np.ones(d), -1.0), low[free], np.inf),
        ]
        found = []
        for _ in range(_N_SOLVED if self.is_whole.any() else 1):
            preference = rng.normal(size=d) * self.is_whole / self._width
            result = milp(
                np.append(preference, -1.0),
                integrality=np.append(self.is_whole, False),
                bounds=Bounds(np.append(low, 0.0), np.append(high, 0.5)),
                constraints=[c for c in constraints if len(c.A)],
            )
            if result.x is not None:
                found.append(np.clip(result.x[:-1], low, high))
        X = np.array(found).reshape(-1, d)
        return np.where(self.is_whole, np.round(X), X)

    def _violation(self, X):
        """Compute the sum of all violations (n,) of points (n, d), in units of their variation."""
        parts = np.stack([constraint.violations(X) for constraint in self.constraints], axis=1)
        return (np.maximum(parts, 0.0) / self._units).sum(axis=1)

    def _walk(self, X, rng, n_steps):
        """Move points (n, d) at random, never to larger violations: feasible ones stay feasible."""
        X, violation = X.copy(), self._violation(X)
        kinds = [kind for kind in (True, False) if (self.is_whole == kind).any()]
        for step in range(n_steps):
            if kinds[step % len(kinds)]:
                moves = self.change_whole(X, rng) - X
                shares = np.ones(len(X))
            else:
                moves = self._width * (rng.normal(size=X.shape) @ self._along)
                shares = rng.uniform(*self._chord(X, moves))
            waiting = np.arange(len(X))
            for _ in range(1 if kinds[step % len(kinds)] else _N_SHORTENED):
                moved = np.clip(X[waiting] + shares[waiting, None] * moves[waiting], *self.bounds.T)
                after = self._violation(moved)
                better = after <= violation[waiting]
                X[waiting[better]], violation[waiting[better]] = moved[better], after[better]
                waiting = waiting[~better]
                shares *= rng.random(len(X))
        return X

    def _chord(self, X, steps):
        """Find how far steps (n, d) from points (n, d) lead to linear borders: two shares (n,)."""
        kept = ~self.is_equality
        rows = np.concatenate([self.matrix[kept], np.eye(len(self.bounds))])
        lower = np.concatenate([self.lower[kept], self.bounds[:, 0]])
        upper = np.concatenate([self.upper[kept], self.bounds[:, 1]])
        rates, values = steps @ rows.T, X @ rows.T
        with np.errstate(all="ignore"):
            to_lower, to_upper = (lower - values) / rates, (upper - values) / rates
        ahead = np.where(rates > 0, to_upper, np.where(rates < 0, to_lower, np.inf)).min(axis=1)
        behind = np.where(rates > 0, to_lower, np.where(rates < 0, to_upper, -np.inf)).max(axis=1)
        ahead, behind = np.maximum(ahead, 0.0), np.minimum(behind, 0.0)
        return np.where(np.isfinite(behind), behind, 0.0), np.where(np.isfinite(ahead), ahead, 0.0)
