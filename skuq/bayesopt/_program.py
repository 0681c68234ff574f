"""Acquisition functions as compiled programs, for any number of points.

Only the arrays of a fit, the best value, beta and the bounds change between the steps of a
search. They are arguments of a program, so that all steps share one compilation.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from skuq.backend import BoundedCache
from skuq.bayesopt._acquisition import Acquisition
from skuq.predictive import Posterior

# A search has three programs: values, gradients, gradients of one batch. Room for 8 searches.
_programs = BoundedCache(24)

# Size of one call. Above some 1e5 draws of outputs larger calls gain nothing (128 draws of a
# network at 12 queries: 512 rows with gradients take 0.19 s in calls of 64 rows, 0.20 of 16,
# 0.22 of 8), and small calls waste less when few starts are left.
_ENTRIES_PER_CALL = 2**16
_MAX_ROWS = 512  # of one call, with however few draws


class NumpyOnlyError(Exception):
    """The objective cannot be evaluated on the backend's tensors."""


class AcquisitionTask(NamedTuple):
    """An acquisition function to maximise over a box (d, 2), by batches of q points.

    `best` is a number or one for each draw (n_draws,), `pending` the level that pending points
    reach in each draw (n_draws,).
    """

    posterior: Posterior
    acquisition: Acquisition
    objective: Callable[..., Any] | None
    bounds: np.ndarray
    best: float | np.ndarray
    q: int
    pending: np.ndarray | None = None


class CompiledAcquisition:
    """Values and gradients of an acquisition function at batches u (n, q * d) in the unit box.

    XLA compiles it when it is first called; here it takes a third of a plain graph's time. The
    posterior of the task has a key. Methods raise `NumpyOnlyError` if the objective does not take
    tensors. `dtype` is the precision of the computation.
    """

    def __init__(self, task: AcquisitionTask, dtype: str = "float32"):
        posterior, q, self.dtype = task.posterior, task.q, dtype
        self._posterior, self._objective, self._q = posterior, task.objective, q
        self._acquisition = task.acquisition
        self._d = len(task.bounds)
        # The best value and the level of pending points, as one number for each draw. If the
        # acquisition does not need the best value, pending points alone are a level.
        level: np.ndarray = np.zeros(posterior.n_draws)
        pending, self._has_level = task.pending, False
        if pending is not None and not task.acquisition.uses_best:
            level, self._has_level = pending, True
        elif task.acquisition.uses_best:
            best = task.best if pending is None else np.maximum(task.best, pending)
            level = np.broadcast_to(np.asarray(best, dtype="float64"), level.shape)
        # beta is an argument of the program, so that a search compiles once for all its values.
        beta = np.asarray(task.acquisition.beta_at(0) or 0.0)
        arguments = (posterior.arguments, *task.bounds.T, level, beta)
        self._arguments = self._tensors(arguments)
        # Looking up and converting are most of the cost of a call with a single row.
        self._used: dict[tuple[str, int], Callable[..., Any]] = {}
        numbers = posterior.n_draws * q * math.prod(posterior.output_shape)  # for one batch
        rows = max(1, min(_MAX_ROWS, _ENTRIES_PER_CALL // numbers))
        self.rows_per_call = 2 ** int(math.log2(rows))

    def values(self, u):
        """Compute the acquisition of every batch."""
        return self._run("value", u)[0]

    def values_and_gradients(self, u):
        """Compute the acquisition of every batch, and its gradient with respect to u."""
        values, gradients = self._run("gradient", u)
        return values, gradients.reshape(u.shape)

    def value_and_gradient(self, u):
        """Compute the acquisition of one batch (q * d,), and its gradient."""
        values, gradients = self._run("gradient", u[None], rows=1)
        return values[0], gradients.reshape(u.shape)

    def _run(self, kind, u, rows=None):
        """Run a program on batches u (n, q * d), some at a time; return NumPy arrays."""
        rows = self.rows_per_call if rows is None else rows
        if (kind, rows) not in self._used:
            self._used[kind, rows] = self._compile(kind, rows)
        program = self._used[kind, rows]
        # A program takes a fixed number of batches: pad the last call with copies.
        u = np.asarray(u, dtype=self.dtype).reshape(len(u), self._q, self._d)
        missing = -len(u) % rows
        padded = np.concatenate([u, np.repeat(u[-1:], missing, axis=0)])
        parts = [
            program(*self._arguments, self._tensors(padded[start : start + rows]))
            for start in range(0, len(padded), rows)
        ]
        return [
            np.concatenate([np.asarray(part) for part in column])[: len(u)].astype("float64")
            for column in zip(*parts)
        ]

    def _tensors(self, tree):
        from skuq.backend import to_tensors

        return to_tensors(_cast(tree, self.dtype))

    def _compile(self, kind, rows):
        """Compile the program of a kind for this many batches, or find it in the cache."""
        from skuq.backend import BACKEND, compile_program, ops

        shapes = tuple((tuple(a.shape), str(a.dtype)) for a in self._arguments[0])
        posterior = self._posterior
        # Everything that changes the program, but none of its arguments' values.
        key = (
            (kind, rows, self._q, self._d, shapes, self.dtype, self._has_level),
            (self._acquisition.key, make_hashable(self._objective)),
            (posterior.key, posterior.n_draws, posterior.output_shape),
        )

        value = self._make_value_function()

        def gradient(*arguments_and_u):
            """Compute values and gradients of batches in the unit box."""
            *arguments, u = arguments_and_u

            def total(u):
                (values,) = value(*arguments, u)
                return ops.sum(values), values  # rows are independent: each gets its gradient

            _, values, gradients = BACKEND.value_and_gradient(total, u)
            return values, gradients

        def make():
            program = gradient if kind == "gradient" else value
            u = self._tensors(np.zeros((rows, self._q, self._d)))
            try:
                return compile_program(program, (*self._arguments, u), jit=True)
            except NumpyOnlyError as error:
                return error  # cached too, so that the next step does not try again

        program = _programs.get(key, make)
        if isinstance(program, NumpyOnlyError):
            raise program
        return program

    def _make_value_function(self):
        """Make the function that computes the acquisition of batches in the unit box."""
        from skuq.backend import ops

        # Without `self`: a cached program must not keep the arrays of a fit alive.
        function, acquisition, objective = (
            self._posterior.function,
            self._acquisition,
            self._objective,
        )
        n_draws, q, d = self._posterior.n_draws, self._q, self._d
        has_level = self._has_level

        def value(arguments, lower, upper, level, beta, u):
            x = ops.reshape(lower + (upper - lower) * u, (-1, d))  # (n * q, d)
            values = draws = function(ops, arguments, x)  # (n_draws, n * q, *output_shape)
            if objective is not None:
                try:
                    values = objective(draws)
                except Exception as error:
                    # Without the traceback, which would keep the whole trace alive.
                    reason = f"{type(error).__name__}: {error}"
                    raise NumpyOnlyError(reason.splitlines()[0]) from None
            values = _check_values(values, draws, objective, n_draws)
            if q > 1:  # (n_draws, n * q) to (n_draws, n, q)
                values = ops.reshape(values, (n_draws, -1, q))
            # With `uses_best`, the level already is the larger of the best value and pending.
            pending = level if has_level and not acquisition.uses_best else None
            return (acquisition.at(beta)(ops, values, level, pending),)

        return value


def acquisition_of(task: AcquisitionTask) -> Callable[[np.ndarray], np.ndarray]:
    """Make the acquisition function of batches u (n, q * d) in NumPy, without compilation."""
    posterior, acquisition, objective, bounds, best, q, pending = task
    lower, upper = bounds.T

    def values(u):
        draws = posterior(lower + (upper - lower) * u.reshape(-1, len(lower)))
        drawn = np.asarray(draws if objective is None else objective(draws), dtype="float64")
        drawn = _check_values(drawn, draws, objective, posterior.n_draws)
        if q > 1:
            drawn = drawn.reshape(posterior.n_draws, -1, q)
        return acquisition(np, drawn, best, pending)

    return values


def _check_values(values, draws, objective, n_draws):
    """Check that there is one value for every draw and row."""
    expected = (n_draws, draws.shape[1])
    if tuple(values.shape) == expected:
        return values
    if objective is None:
        raise ValueError(
            f"The surrogate gives outputs of shape {tuple(draws.shape[2:])} in every row: give an "
            "objective that makes one number of them."
        )
    raise ValueError(
        "objective must make one number of the outputs, the last axes of its argument: of shape "
        f"{tuple(draws.shape)}, {expected}. Got {tuple(values.shape)}."
    )


class _ByIdentity:
    """A function that is not hashable, as part of a key: only the same object is equal."""

    def __init__(self, function):
        self.function = function

    def __call__(self, *args):
        return self.function(*args)

    def __hash__(self):
        return id(self.function)

    def __eq__(self, other):
        return isinstance(other, _ByIdentity) and self.function is other.function


def make_hashable(function: Callable[..., Any] | None) -> Callable[..., Any] | None:
    """Return a function that can be part of a program's key, such as an objective."""
    try:
        hash(function)
    except TypeError:
        return _ByIdentity(function)
    return function


def _cast(tree, dtype):
    """Convert floating-point arrays to one precision; leave integers as they are."""
    if isinstance(tree, tuple):
        return tuple(_cast(part, dtype) for part in tree)
    tree = np.asarray(tree)
    with np.errstate(over="ignore"):  # what single precision cannot hold is noticed by its values
        return tree.astype(dtype) if tree.dtype.kind == "f" else tree
