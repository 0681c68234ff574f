"""The results of a search: points, outputs, values, failures, and points that are pending.

Notation: points (n, d) lie in the domain. An output is what the function returns for a point; all
have one shape. The objective makes a value of it, here with the user's sign. There are J
constraints; a point satisfies one where it is at most 0.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from skuq._utils._checks import as_floats, fill_masked
from skuq._utils._environment import generator
from skuq._utils._messages import warn_user
from skuq.bayesopt._domain import SMALL_DOMAIN, Domain
from skuq.bayesopt._surrogate import (
    OutputConstraints,
    WrongShapeError,
    is_feasible,
    merit_units,
    merits,
)

_LARGEST = 1e150  # surrogates compute variances, and squares of larger numbers overflow
_NEAR = 0.02  # distance in unit coordinates that may come from rounding by hand
_NOT_USABLE = f"NaN, inf or beyond {_LARGEST:g}"


@dataclass(frozen=True, eq=False)
class Results:
    """Results that a surrogate is fitted to.

    `X` (n, d) are the points that have outputs (n, *output_shape), values (n,) and constraints
    (n, J); values are negated when minimising. `failed` (m, d) are points without outputs.
    """

    X: np.ndarray
    outputs: np.ndarray
    values: np.ndarray
    failed: np.ndarray
    constraints: np.ndarray

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

    def __init__(
        self,
        domain: Domain,
        objective: Callable | None,
        constraints: OutputConstraints,
        *,
        repeats: bool = False,
    ):
        self.domain, self.objective, self.rules = domain, objective, constraints
        self._repeats = repeats
        self.x, self.values = np.empty((0, domain.n_columns)), np.empty(0)
        self.constraints = np.empty((0, len(constraints)))
        self.pending = self.x
        self.outputs: list[np.ndarray | None] = []
        self.messages: list[str] = []

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
    def known_constraints(self) -> np.ndarray:
        """Values of the constraints (n, J), NaN where the evaluation failed."""
        return np.where(self.usable[:, None], self.constraints, np.nan)

    @property
    def feasible(self) -> np.ndarray:
        """Tell which evaluations succeeded and satisfy all constraints: (n,)."""
        return (
            self.usable & is_feasible(self.constraints) & self.domain.feasible.is_feasible(self.x)
        )

    @property
    def output_shape(self):
        """Shape of one output; None before the first usable one."""
        return next((y.shape for y in self.outputs if y is not None), None)

    @property
    def y(self) -> np.ndarray:
        """All outputs (n, *output_shape), NaN where the evaluation failed."""
        shape = self.output_shape or ()
        missing = np.full(shape, np.nan)
        rows = [missing if output is None else output for output in self.outputs]
        return np.stack(rows) if rows else np.empty(0)

    @property
    def n_left(self) -> float:
        """Number of points that may be proposed: neither known nor pending ones."""
        if self._repeats or math.isinf(self.domain.n_points):
            return math.inf
        # Points that violate constraints of inputs may be told, but they are none of the domain's.
        taken = np.reshape(list(self.taken), (-1, self.domain.n_columns))
        return self.domain.n_points - int(self.domain.feasible.is_feasible(taken).sum())

    @property
    def taken(self) -> set[tuple[float, ...]]:
        """Set of the points that are known or pending."""
        return {tuple(x) for x in np.vstack([self.x, self.pending]).tolist()}

    def best(self, sign: int) -> int | None:
        """Find the position of the best value that satisfies the constraints.

        If none does, it is that of the smallest violation; None if no evaluation succeeded.
        """
        usable = np.flatnonzero(self.usable)
        if not len(usable):
            return None
        values, constraints = sign * self.values[usable], self.constraints[usable]
        # Merits rank infeasible points below feasible ones, by their violation.
        found = merits(values, constraints, merit_units(values, constraints))
        allowed = self.domain.feasible.is_feasible(self.x[usable])
        found = np.where(allowed | ~allowed.any(), found, -np.inf)
        return int(usable[np.argmax(found)])

    def results(self, sign: int) -> Results:
        """Get the results as a step needs them, with values times `sign`."""
        usable = self.usable
        outputs = np.stack([y for y in self.outputs if y is not None])
        values = sign * self.values[usable]
        return Results(self.x[usable], outputs, values, self.x[~usable], self.constraints[usable])

    def add(self, x, y, constraints=None) -> None:
        """Add points (d,) or (k, d) and their outputs; see `BayesianOptimizer.tell`."""
        points = self.domain.check(x)
        violation = self.domain.feasible.describe_violation(points, self.domain.tolerance)
        if violation:
            warn_user(f"{violation}: the surrogate learns from it, but it is never the best point.")
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
        if constraints is None and not usable.any():  # there was nothing to measure
            self.add_failures(x, _NOT_USABLE)
            return
        measured = self.rules.check_measured(constraints, n)
        values, messages = np.full(n, np.nan), [_NOT_USABLE] * n
        limits = np.full((n, len(self.rules)), np.nan)
        for k in np.flatnonzero(usable):
            constraints_of_point = {name: column[k : k + 1] for name, column in measured.items()}
            values[k], limits[k], messages[k] = self._value_of(y[k], constraints_of_point)
        self._append(points, list(y), values, limits, messages)

    def add_failures(self, x, message: str) -> None:
        """Add points (d,) or (k, d) whose evaluation failed."""
        points = self.domain.check(x)
        values, limits = np.full(len(points), np.nan), np.zeros((len(points), len(self.rules)))
        self._append(points, [None] * len(points), values, limits, [message] * len(points))

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

    def copy(self) -> ResultLog:
        """Return a log that further results do not change."""
        log = copy.copy(self)  # arrays are replaced, never changed
        log.outputs, log.messages = list(self.outputs), list(self.messages)
        return log

    def to_arrays(self) -> dict:
        """Get all but the messages as arrays."""
        known = [y for y in self.outputs if y is not None]
        outputs = np.stack(known) if known else np.empty(0)
        return {
            "x": self.x,
            "outputs": outputs,
            "usable": self.usable,
            "values": self.values,
            "constraints": self.constraints,
            "pending": self.pending,
        }

    def restore(self, arrays, messages) -> None:
        """Fill an empty log with what `to_arrays` gave; raise ValueError if that is no such log."""
        n, d = len(messages), self.domain.n_columns
        x, pending, values, limits, known = (
            np.asarray(arrays[name], dtype="float64")
            for name in ("x", "pending", "values", "constraints", "outputs")
        )
        usable = np.asarray(arrays["usable"])
        shapes = (x.shape, values.shape, limits.shape, usable.shape, pending.shape[1:])
        if shapes != ((n, d), (n,), (n, len(self.rules)), (n,), (d,)) or usable.dtype != bool:
            raise ValueError(f"Results of {n} points disagree in their numbers: {shapes}.")
        for points in (x, pending):
            if len(points):
                self.domain.check(points)
        rest = iter(known)
        outputs = [next(rest) if is_usable else None for is_usable in usable]
        self._append(x, outputs, values, limits, messages)
        self.expect(pending)

    def to_frame(self) -> pd.DataFrame:
        """Tabulate results, then pending points; see `BayesianOptimizer.to_frame`."""
        n_pending = len(self.pending)
        X = np.vstack([self.x, self.pending])
        status = np.where(self.usable, "completed", "failed").tolist() + ["pending"] * n_pending
        columns: dict = {f"x{j}": X[:, j] for j in range(X.shape[1])}
        columns["value"] = np.append(self.values, np.full(n_pending, np.nan))
        if len(self.rules) or self.domain.input_constraints:
            missing = np.full((n_pending, len(self.rules)), np.nan)
            limits = np.vstack([self.known_constraints, missing])
            columns |= {name: limits[:, j] for j, name in enumerate(self.rules.names)}
            columns["feasible"] = self.feasible.tolist() + [False] * n_pending
        columns["status"] = status
        columns["message"] = [*self.messages, *[""] * n_pending]
        return pd.DataFrame(columns)

    def _append(self, points, outputs, values, limits, messages):
        """Add results; without a finite value an evaluation has failed and loses its output."""
        failed = ~np.isfinite(values)
        known = {tuple(x) for x in self.x.tolist()}
        self.x = np.vstack([self.x, points])
        self.outputs += [None if lost else output for output, lost in zip(outputs, failed)]
        self.values = np.append(self.values, np.where(failed, np.nan, values))
        self.constraints = np.vstack([self.constraints, np.where(failed[:, None], 0.0, limits)])
        self.messages += messages
        unsettled = [x for x in points if not self._settle(x)]
        for x in unsettled:
            # A point that has been evaluated before is told again; it is not a rounded pending one.
            k = None if tuple(x) in known else self._find_pending(x, _NEAR)
            if k is not None:
                warn_user(
                    f"The result at {x.tolist()} leaves {self.pending[k].tolist()} pending, which "
                    "is near but not equal. If it belongs to that point, call `forget` with the "
                    "latter, and next time tell the point as it was proposed."
                )
                break  # one warning is enough

    def _value_of(self, output, measured):
        """Evaluate the objective and the constraints of one output.

        Return value, constraints (J,) and a message, which says why they are NaN.
        """
        nothing = np.full(len(self.rules), np.nan)
        try:
            value = output
            if self.objective is not None:
                values = np.asarray(self.objective(output[None]), dtype="float64")
                if values.shape != (1,):
                    raise WrongShapeError(
                        "`objective` must make one number of each output, along the last axes of "
                        f"its argument: of shape {(1, *output.shape)}, (1,). Got {values.shape}."
                    )
                value = values[0]
            limits = self.rules.of_outputs(output[None], measured)[0]
        except WrongShapeError:
            raise
        except Exception as error:  # the evaluation was expensive: keep it
            return (
                np.nan,
                nothing,
                f"the objective or a constraint raised {type(error).__name__}: {error}",
            )
        if not _is_usable(value):
            return np.nan, nothing, f"the objective is {_NOT_USABLE}"
        wrong = np.flatnonzero(~_is_usable(limits))
        if len(wrong):
            return np.nan, nothing, f"constraint {self.rules.names[wrong[0]]!r} is {_NOT_USABLE}"
        return value, limits, ""


def _is_usable(values):
    """Tell which values a surrogate can be fitted to."""
    return np.abs(values) <= _LARGEST  # NaN is not


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

    Examples
    --------
    >>> from sklearn.gaussian_process import GaussianProcessRegressor
    >>> from skuq.bayesopt import BayesianOptimizer
    >>> surrogate = GaussianProcessRegressor(optimizer=None)
    >>> search = BayesianOptimizer(surrogate, [(-2, 2)], n_initial=3, random_state=0)
    >>> result = search.minimize(lambda x: (x[0] - 0.5) ** 2, n_calls=5)
    >>> [step.n_results for step in result.history]
    [3, 4]
    """

    n_results: int
    acquisition_value: float
    beta: float | None
    n_doublings: int
    seconds_fit: float
    seconds_acquisition: float
    n_pending: int


@dataclass
class SearchState:
    """State of a search besides its parameters and results.

    Attributes
    ----------
    entropy : int
        Seed of the whole search.
    sign : {1, -1}
        1 if the objective is maximised, -1 if it is minimised.
    n_steps : int
        Number of steps over which the threshold of `dynamic_c` falls; 64 until a loop knows it.
    beta_ : float or None
        Value of beta that `mean_width` led to; None before the first step with a model.
    width : float or None
        Value of `mean_width` that led to it.
    history : list of StepRecord
    """

    entropy: int
    sign: int = 1
    n_steps: int = 64
    beta_: float | None = None
    width: float | None = None
    history: list[StepRecord] = field(default_factory=list)


@dataclass(frozen=True, eq=False)
class OptimizationResult:
    """Result of a search.

    Attributes
    ----------
    x : ndarray of shape (d,)
        The best evaluated point, see `BayesianOptimizer.best_x_`.
    fun : float
        Value of the objective there; with ``noisy=True`` the mean that the surrogate predicts.
    x_iters : ndarray of shape (n, d)
        All points in the order of their evaluation, including those told before.
    y_iters : ndarray of shape ``(n, *output_shape)``
        Outputs of the function; NaN where it failed.
    values : ndarray of shape (n,)
        Values of the objective; NaN where the function failed.
    message : str
        Why the search ended.
    history : tuple of StepRecord

    Examples
    --------
    >>> from sklearn.gaussian_process import GaussianProcessRegressor
    >>> from skuq.bayesopt import BayesianOptimizer
    >>> surrogate = GaussianProcessRegressor()
    >>> search = BayesianOptimizer(surrogate, [(-2, 2)], n_initial=3, random_state=0)
    >>> result = search.minimize(lambda x: (x[0] - 0.5) ** 2, n_calls=3)
    >>> result.x_iters.shape, bool(result.fun == result.values.min())
    ((3, 1), True)
    """

    x: np.ndarray
    fun: float
    x_iters: np.ndarray
    y_iters: np.ndarray
    values: np.ndarray
    message: str
    history: tuple[StepRecord, ...] = field(repr=False)


def initial_points(q: int, log: ResultLog, n_initial: int, entropy: int) -> np.ndarray:
    """Propose q points: the rest of a Latin hypercube of `n_initial`, then uniform ones.

    Known and pending points count as points of the design. None of them is proposed again, unless
    a noisy function is asked for more than its domain has.
    """
    n, domain = len(log) + len(log.pending), log.domain
    design = domain.design(n_initial, generator(entropy, "initial"))
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
