"""Acquisition functions, computed from draws of the objective, and their compiled programs.

Draws are of the function: `posterior_fn` of a surrogate gives them without noise.

All are maximised. Notation: `values` are draws of the objective of shape (n_draws, n), or
(n_draws, n, q) for n batches of q points; `best` is the best known value, in the same units: one
number, or one for each draw (n_draws,). `xp` is `numpy` or `keras.ops`. Results have shape (n,).

Points that are being evaluated elsewhere are *pending*. A draw is a function, so it has values at
them; the best of these is the *level* that new points must exceed in this draw: one number for
each draw (n_draws,), see `Acquisition.pending_level`.

The form for batches is the mean over the draws of the value of the batch's best point (q-EI: Wang
et al. 2016; leaky: NEON, section 7). With q = 1 it equals the form for single points.

Only the arrays of a fit, the best value, beta and the bounds change between the steps of a
search. They are arguments of a program, so that all steps share one compilation.
"""

import math
from collections.abc import Callable, Hashable
from dataclasses import KW_ONLY, dataclass
from numbers import Real
from typing import Any, NamedTuple, Self

import joblib
import numpy as np

from skuq._formulas import UNDER_ROOT
from skuq._params import Interval, Settings, StrOptions
from skuq.backend import BoundedCache, in_thread
from skuq.predictive import Posterior

_SQRT_HALF_PI = math.sqrt(math.pi / 2)  # std of a normal is this times E|g - mu|
# Parameters that change nothing in a compiled function: beta is its argument.
_OF_SEARCH = ("beta", "mean_width", "dynamic_c")


class Acquisition(Settings):
    """Base class of acquisition functions.

    A subclass defines `_value`. If that depends on the best known value, it sets `uses_best`.

    Examples
    --------
    >>> import numpy as np
    >>> from skuq.bayesopt import Acquisition
    >>> class LargestDraw(Acquisition):
    ...     def _value(self, xp, values, best, pending):
    ...         return xp.max(values, axis=0)
    >>> LargestDraw()(np, np.array([[0.0, 2.0], [1.0, 4.0]]), best=1.0)
    array([1., 4.])
    """

    #: Whether the function depends on the best known value.
    uses_best = False

    def __call__(self, xp: Any, values: Any, best: Any, pending: Any = None) -> Any:
        """Compute the acquisition of points or batches.

        Parameters
        ----------
        xp : module
            `numpy` or `keras.ops`.
        values : array of shape (n_draws, n) or (n_draws, n, q)
            Draws of the objective.
        best : float or array of shape (n_draws,)
            Best known value; any value if the function does not depend on it.
        pending : array of shape (n_draws,), optional
            The `pending_level` of points that are being evaluated.

        Returns
        -------
        array of shape (n,)
        """
        # Pending points raise `best`; functions without `best` raise their own values instead.
        if self.uses_best and pending is not None:
            best, pending = xp.maximum(best, pending), None
        return self._value(xp, values, best, pending)

    def pending_level(self, values: np.ndarray) -> np.ndarray:
        """Compute what pending points reach in each draw (n_draws,), from values (n_draws, p)."""
        return np.max(values, axis=1)

    def beta_at(self, n_results: int) -> float | None:
        """Compute the weight of the deviation for a number of results; None if there is none."""
        return None

    def at(self, beta: Any) -> Self:
        """Return the function with this weight of the deviation, itself if it has none."""
        return self

    @property
    def key(self) -> Hashable:
        """Everything that distinguishes compiled functions, of which beta is an argument."""
        params = self.get_params().items()
        return type(self), *sorted(
            # Lists and arrays cannot be part of a key.
            (k, joblib.hash(v) if isinstance(v, list | np.ndarray) else v)
            for k, v in params
            if k not in _OF_SEARCH
        )

    def _value(self, xp: Any, values: Any, best: Any, pending: Any) -> Any:
        raise NotImplementedError


class ExpectedImprovement(Acquisition):
    """Expected improvement, "ei": the mean over the draws of ``max(0, value - best)``.

    If no draw improves, value and gradient are 0, so that gradients cannot lead away from there
    (Guilhoto and Perdikaris 2024, "NEON", Table 2).

    Examples
    --------
    >>> import numpy as np
    >>> from skuq.bayesopt import ExpectedImprovement
    >>> values = np.array([[0.0, 2.0], [1.0, 4.0]])  # two draws at two points
    >>> ExpectedImprovement()(np, values, best=1.0)
    array([0., 2.])
    """

    uses_best = True

    def _value(self, xp: Any, values: Any, best: Any, pending: Any) -> Any:
        values = _batch_best(xp, values)  # (n_draws, n)
        return xp.mean(xp.maximum(values - _align_with_draws(xp, best, values), 0.0), axis=0)


@dataclass(eq=False, repr=False)
class LeakyExpectedImprovement(Acquisition):
    """Leaky expected improvement, "lei", which has a slope even if no draw improves.

    For draws in [a, b] it differs from expected improvement by at most ``delta * (b - a)`` a point
    (Theorem 1).

    Parameters
    ----------
    delta : float, default=0.01
        Slope below the best known value, in [0, 1]. In a batch, the weight of every point that is
        not the best of its draw, or does not improve. With 0 it is expected improvement, with 1
        the mean of one point.

    Notes
    -----
    With ``gain_i = value_i - best``, the sum of section 7 equals
    ``delta * sum_i gain_i + (1 - delta) * max(0, max_i gain_i)``, except for ties: points of a
    batch that are exactly equal, as in a corner of the box, count once as the best one. The
    printed weights would count each of them, and reward a batch of q copies q times.

    References
    ----------
    Guilhoto and Perdikaris (2024), "NEON", Eq. 7, 8 and section 7.

    Examples
    --------
    >>> import numpy as np
    >>> from skuq.bayesopt import LeakyExpectedImprovement
    >>> values = np.array([[0.0, 2.0], [1.0, 4.0]])  # two draws at two points
    >>> LeakyExpectedImprovement(delta=0.1)(np, values, best=1.0)
    array([-0.05,  2.  ])
    """

    delta: float = 0.01

    _parameter_constraints = {"delta": [Interval(Real, 0, 1, closed="both")]}
    uses_best = True

    def _value(self, xp: Any, values: Any, best: Any, pending: Any) -> Any:
        gain = values - _align_with_draws(xp, best, values)  # (n_draws, n[, q])
        # Every point of a batch counts a little, the best of each draw in full.
        total = xp.sum(gain, axis=-1) if len(gain.shape) == 3 else gain  # (n_draws, n)
        improvement = xp.maximum(_batch_best(xp, gain), 0.0)
        return xp.mean(self.delta * total + (1.0 - self.delta) * improvement, axis=0)


@dataclass(eq=False, repr=False)
class UpperConfidenceBound(Acquisition):
    """Upper confidence bound, "ucb": the mean plus beta standard deviations.

    A search that minimises negates the objective, so that this is the lower confidence bound.
    Batches, and single points beside pending ones, use the absolute deviation: the mean over the
    draws of the largest ``mu + beta * sqrt(pi / 2) * |g - mu|``.

    Parameters
    ----------
    beta : float, callable or None, default=None
        Weight of the standard deviation; a function gets the number of usable results. None is 1,
        or what `mean_width` leads to.
    deviation : {"std", "absolute"}, default="std"
        Measure of deviation. "absolute" is ``sqrt(pi / 2) E|g - mu|``, which equals the standard
        deviation for normals.
    mean_width : float, optional
        Scaling of NOMU: at the first step with a model beta is chosen such that the bounds
        mean +- beta * std have this average width over the domain, in units of the objective. The
        paper has 0.05 and 0.5 for values in [-1, 1]. Of `BayesianOptimizer` only.
    dynamic_c : bool, default=False
        Protocol of NOMU: while a proposal is too close to a known point, double beta for this
        proposal, up to 15 times. The threshold falls from 0.0625 to 0.01 over the steps, in a box
        scaled to [-1, 1]. Of `BayesianOptimizer` only.

    References
    ----------
    Guilhoto and Perdikaris (2024), "NEON", Table 2. Wilson et al. (2017), "The
    reparameterization trick for acquisition functions". Heiss et al. (2022), "NOMU", section 4.2
    and appendix B.3.

    Examples
    --------
    >>> import numpy as np
    >>> from skuq.bayesopt import UpperConfidenceBound
    >>> values = np.array([[0.0, 2.0], [1.0, 4.0]])  # two draws at two points
    >>> UpperConfidenceBound(beta=2.0)(np, values, best=1.0)
    array([1.5, 5. ])
    """

    beta: float | Callable[[int], float] | None = None
    _: KW_ONLY
    deviation: str = "std"
    mean_width: float | None = None
    dynamic_c: bool = False

    _parameter_constraints = {
        "beta": [Interval(Real, 0, None, closed="left"), callable, None],
        "deviation": [StrOptions({"std", "absolute"})],
        "mean_width": [Interval(Real, 0, None, closed="neither"), None],
        "dynamic_c": ["boolean"],
    }

    def validate(self) -> None:
        """Raise ValueError if a parameter is invalid, or contradicts another."""
        super().validate()
        if self.mean_width is not None and self.beta is not None:
            raise ValueError(
                f"`mean_width` determines `beta`. Got mean_width={self.mean_width} and "
                f"beta={self.beta}: leave one of them out."
            )

    def beta_at(self, n_results: int) -> float:
        """Compute beta for a number of usable results, before `dynamic_c` doubles it."""
        if not callable(self.beta):
            return 1.0 if self.beta is None else float(self.beta)
        beta = float(self.beta(n_results))
        if not 0 <= beta < np.inf:
            raise ValueError(
                f"`beta` must give finite numbers >= 0. Got {beta} for {n_results} results."
            )
        return beta

    def at(self, beta: Any) -> Self:
        """Return the bound with this beta, which may be a tensor."""
        return type(self)(beta, deviation=self.deviation)

    def pending_level(self, values: np.ndarray) -> np.ndarray:
        """Compute what pending points reach in each draw, by the absolute form as for batches."""
        beta = 1.0 if self.beta is None else self.beta
        centre = values.mean(axis=0)
        return np.max(centre + beta * (_SQRT_HALF_PI * np.abs(values - centre)), axis=1)

    def _value(self, xp: Any, values: Any, best: Any, pending: Any) -> Any:
        beta = 1.0 if self.beta is None else self.beta
        centre = xp.mean(values, axis=0, keepdims=True)
        return _bound(xp, centre, values - centre, beta, self.deviation, pending)


class PosteriorMean(Acquisition):
    """Mean of the draws, "mean"; of a batch and pending points the mean of the best in each draw.

    Examples
    --------
    >>> import numpy as np
    >>> from skuq.bayesopt import PosteriorMean
    >>> values = np.array([[0.0, 2.0], [1.0, 4.0]])  # two draws at two points
    >>> PosteriorMean()(np, values, best=1.0)
    array([0.5, 3. ])
    """

    def _value(self, xp: Any, values: Any, best: Any, pending: Any) -> Any:
        return xp.mean(_raise_to_level(xp, _batch_best(xp, values), pending), axis=0)


class PosteriorUncertainty(Acquisition):
    """Standard deviation of the draws, "uncertainty", for exploration alone.

    Examples
    --------
    >>> import numpy as np
    >>> from skuq.bayesopt import PosteriorUncertainty
    >>> values = np.array([[0.0, 2.0], [1.0, 4.0]])  # two draws at two points
    >>> PosteriorUncertainty()(np, values, best=1.0)
    array([0.5, 1. ])
    """

    def pending_level(self, values: np.ndarray) -> np.ndarray:
        """Compute what pending points reach in each draw, by the absolute form as for batches."""
        return np.max(_SQRT_HALF_PI * np.abs(values - values.mean(axis=0)), axis=1)

    def _value(self, xp: Any, values: Any, best: Any, pending: Any) -> Any:
        centred = values - xp.mean(values, axis=0, keepdims=True)
        return _bound(xp, 0.0, centred, 1.0, "std", pending)


#: Short forms of acquisition functions.
ACQUISITIONS: dict[str, type[Acquisition]] = {
    "ei": ExpectedImprovement,
    "lei": LeakyExpectedImprovement,
    "ucb": UpperConfidenceBound,
    "mean": PosteriorMean,
    "uncertainty": PosteriorUncertainty,
}


def _batch_best(xp: Any, values: Any) -> Any:
    """Reduce batches (n_draws, n, q) to their best points (n_draws, n)."""
    return xp.max(values, axis=-1) if len(values.shape) == 3 else values


def _align_with_draws(xp: Any, level: Any, values: Any) -> Any:
    """Reshape a level of each draw (n_draws,) to (n_draws, 1[, 1]); a number stays a number."""
    if not getattr(level, "shape", ()):
        return level
    return xp.reshape(level, (-1,) + (1,) * (len(values.shape) - 1))


def _raise_to_level(xp: Any, values: Any, pending: Any) -> Any:
    """Raise values (n_draws, n) to the level of pending points, if there are any."""
    return values if pending is None else xp.maximum(values, _align_with_draws(xp, pending, values))


def _bound(xp: Any, centre: Any, centred: Any, beta: Any, deviation: str, pending: Any) -> Any:
    """Compute ``centre + beta * deviation``, of batches in the mean over the draws: (n,).

    `centre` is a number or (1, n[, q]), `centred` are draws minus their mean (n_draws, n[, q]).
    """
    one_point = len(centred.shape) == 2 or centred.shape[-1] == 1
    if one_point and deviation == "std" and pending is None:
        bound = centre + beta * _std(xp, centred)
    else:
        bound = centre + beta * _SQRT_HALF_PI * xp.abs(centred)  # (n_draws, n[, q])
    return xp.mean(_raise_to_level(xp, _batch_best(xp, bound), pending), axis=0)


def _std(xp: Any, centred: Any) -> Any:
    """Compute standard deviations (1, n[, q]) of centred draws (n_draws, n[, q])."""
    # In units of the largest deviation, since squares of small numbers are 0 in single precision.
    largest = xp.max(xp.abs(centred), axis=0, keepdims=True)
    unit = xp.where(largest > 0, largest, xp.ones_like(largest))
    if xp is not np:
        unit = xp.stop_gradient(unit)  # the result does not depend on it
    variance = xp.mean(xp.square(centred / unit), axis=0, keepdims=True)
    return unit * xp.sqrt(xp.maximum(variance, UNDER_ROOT))


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

    `posterior` has draws of the surrogate, joint if q > 1 or points are pending. `objective` maps
    draws (n_draws, n, *output_shape) to (n_draws, n); None is for a surrogate of one output.
    Written with operators and `keras.ops` it has exact gradients. Compiled programs are found by
    this object, so give the same one in every step. A program keeps what the function read when
    it was compiled, such as global variables: give another function object where these have
    changed.

    `best` is the best known value, one number or one for each draw (n_draws,), `pending` the level
    that pending points reach in each draw (n_draws,).
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

    @in_thread
    def __init__(self, task: AcquisitionTask, dtype: str = "float32"):
        self._task, self.dtype, posterior = task, dtype, task.posterior
        # The best value and the level of pending points, as one number for each draw. If the
        # acquisition does not need the best value, pending points alone are a level.
        level, self._pends = task.best, task.pending is not None and not task.acquisition.uses_best
        if task.pending is not None:
            level = task.pending if self._pends else np.maximum(level, task.pending)
        level = np.broadcast_to(np.asarray(level, dtype="float64"), posterior.n_draws)
        # beta is an argument of the program, so that a search compiles once for all its values.
        beta = np.asarray(task.acquisition.beta_at(0) or 0.0)
        self._arguments = self._tensors((posterior.arguments, *task.bounds.T, level, beta))
        # Looking up and converting are most of the cost of a call with a single row.
        self._used: dict[tuple[str, int], Callable[..., Any]] = {}
        numbers = posterior.n_draws * task.q * math.prod(posterior.output_shape)  # for one batch
        rows = max(1, min(_MAX_ROWS, _ENTRIES_PER_CALL // numbers))
        self.rows_per_call = 2 ** int(math.log2(rows))

    def __call__(self, u):
        """Compute the acquisition of every batch."""
        return self._run("value", u)[0]

    def values_and_gradients(self, u, rows=None):
        """Compute the acquisition of batches, and gradients with respect to u, `rows` in a call."""
        values, gradients = self._run("gradient", u, rows)
        return values, gradients.reshape(u.shape)

    @in_thread
    def _run(self, kind, u, rows=None):
        """Run a program on batches u (n, q * d), some at a time; return NumPy arrays."""
        rows = self.rows_per_call if rows is None else rows
        if (kind, rows) not in self._used:
            self._used[kind, rows] = self._compile(kind, rows)
        program = self._used[kind, rows]
        # A program takes a fixed number of batches: pad the last call with copies.
        u = np.asarray(u, dtype=self.dtype).reshape(len(u), self._task.q, -1)
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
        from skuq.backend import compile_program, ops, value_and_gradient

        shapes = tuple((tuple(a.shape), str(a.dtype)) for a in self._arguments[0])
        task, posterior, d = self._task, self._task.posterior, len(self._task.bounds)
        # Everything that changes the program, but none of its arguments' values.
        key = (
            (kind, rows, task.q, d, shapes, self.dtype, self._pends),
            (task.acquisition.key, task.objective),
            (posterior.key, posterior.n_draws, posterior.output_shape),
        )
        value = _make_value_function(task, self._pends)

        def gradient(*arguments_and_u):
            """Compute values and gradients of batches in the unit box."""
            *arguments, u = arguments_and_u

            def total(u):
                (values,) = value(*arguments, u)
                return ops.sum(values), values  # rows are independent: each gets its gradient

            _, values, gradients = value_and_gradient(total, u)
            return values, gradients

        def make():
            program = gradient if kind == "gradient" else value
            u = self._tensors(np.zeros((rows, task.q, d)))
            try:
                return compile_program(program, (*self._arguments, u), jit=True, key=key)
            except NumpyOnlyError as error:
                return error  # cached too, so that the next step does not try again

        program = _programs.get(key, make)
        if isinstance(program, NumpyOnlyError):
            raise program
        return program


def _make_value_function(task, pends):
    """Make the function that computes the acquisition of batches in the unit box."""
    from skuq.backend import ops

    # Without `task`: a cached program must not keep the arrays of a fit alive.
    function, n_draws = task.posterior.function, task.posterior.n_draws
    acquisition, objective, q, d = task.acquisition, task.objective, task.q, len(task.bounds)

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
        # The level is that of pending points, or the value that is to be improved on.
        return (acquisition.at(beta)(ops, values, level, level if pends else None),)

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


def _cast(tree, dtype):
    """Convert floating-point arrays to one precision; leave integers as they are."""
    if isinstance(tree, tuple):
        return tuple(_cast(part, dtype) for part in tree)
    tree = np.asarray(tree)
    with np.errstate(over="ignore"):  # what single precision cannot hold is noticed by its values
        return tree.astype(dtype) if tree.dtype.kind == "f" else tree
