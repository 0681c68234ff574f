"""Bayesian optimisation: ask where to evaluate an expensive function, tell what came of it."""

from __future__ import annotations

import logging
import time
import warnings
from dataclasses import asdict, dataclass, field
from numbers import Real

import numpy as np
from tqdm.auto import tqdm

from skuq import _archive
from skuq._checks import check_count
from skuq._seeds import draw_entropy, generator
from skuq.bayesopt._acquisition import Acquisition
from skuq.bayesopt._domain import Domain
from skuq.bayesopt._maximize import METHODS
from skuq.bayesopt._results import ResultLog
from skuq.bayesopt._step import SignedObjective, Step, distance_threshold
from skuq.bayesopt._surrogate import check_surrogate
from skuq.exceptions import SearchFailedError

__all__ = ["BayesianOptimizer", "OptimizationResult", "StepRecord"]

_logger = logging.getLogger("skuq")

_BOUNDS = ("ucb", "lcb")  # acquisitions in which beta counts
_IN_A_PROGRAMME = (*_BOUNDS, "mean")
_N_STEPS = 64  # of NOMU's protocol, where nobody says how many there will be
_MANY_AT_ONCE = 20
_HOPELESS = 10
_ATTEMPTS = 2  # seeds that a fit is tried with
_GRID = 4096


@dataclass(frozen=True)
class StepRecord:
    """How one proposal came to be.

    Attributes
    ----------
    n_results : int
        Points told before it.
    acquisition_value : float
        At the points proposed (at the first of them where they came one by one).
    beta : float
        As used, doublings included.
    n_doublings : int
        Of beta, by `dynamic_c`.
    seconds_fit, seconds_acquisition : float
    """

    n_results: int
    acquisition_value: float
    beta: float
    n_doublings: int
    seconds_fit: float
    seconds_acquisition: float


@dataclass(frozen=True, eq=False)
class OptimizationResult:
    """What a search has found.

    Attributes
    ----------
    x : ndarray of shape (d,)
        The best point evaluated.
    fun : float
        The objective's value there.
    x_iters : ndarray of shape (n, d)
        All points in the order of their evaluation, those told before included.
    y_iters : ndarray of shape ``(n, *output_shape)``
        What the function returned; NaN where it failed.
    values : ndarray of shape (n,)
        The objective's values; NaN where it failed.
    message : str
        Why the search ended.
    history : tuple of StepRecord
    """

    x: np.ndarray
    fun: float
    x_iters: np.ndarray
    y_iters: np.ndarray
    values: np.ndarray
    message: str
    history: tuple = field(repr=False)


class BayesianOptimizer:
    """Finds the best input of an expensive function, with a regressor that knows what it knows.

    Each step fits a clone of the regressor to all results and asks for the points that maximise
    an acquisition function of its draws. `maximize` and `minimize` run the loop; `ask` and `tell`
    leave it to you.

    Parameters
    ----------
    estimator : regressor
        With ``posterior_fn`` (skuq's) or ``predict(X, return_std=True)`` (scikit-learn's Gaussian
        process). It sees inputs in your units: where it needs scaled ones (a Gaussian process
        does, our networks do not) put it behind a scaler in a pipeline. In every clone each
        `random_state` is replaced by a seed of this step.
    bounds : array-like of shape (d, 2)
        Lowest and highest value of each column of x.
    acquisition : {"lei", "ei", "pi", "ucb", "lcb", "mean", "uncertainty"}, default="lei"
        See `Acquisition`. "lcb" is "ucb": both prefer what is uncertain.
    objective : callable, optional
        From outputs (.., q) or (.., q, d_s) of the function to the values (..,) that are to be
        best. Written with operators and `keras.ops` its gradients are exact. With it the
        surrogate learns the outputs, not the values.
    delta : float, default=0.01
        Slope of "lei" below the best value.
    beta : float or callable, default=1.0
        Weight of the standard deviation in "ucb"; a function gets the number of usable results.
    deviation : {"std", "absolute"}, default="std"
        In "ucb", see `Acquisition`.
    mean_width : float, optional
        NOMU's scaling, for "ucb": beta is chosen once, at the first step with a model, so that the
        bounds mean +- beta * std have this width on average over the domain. In units of the
        objective; the paper has 0.05 and 0.5 for values in [-1, 1]. `beta` is not used then.
    dynamic_c : bool, default=False
        NOMU's protocol, for "ucb": while a proposal is nearly a known point, double beta for it,
        15 times at most. What is near shrinks from 0.0625 to 0.01 over the steps, in a box
        scaled to [-1, 1].
    maximizer : {"auto", "lbfgs", "scipy", "direct", "milp"}, default="auto"
        As in `maximize_acquisition`. "milp" is exact, for "ucb" and "mean" with estimators that
        offer `readout_weights` (`NOMURegressor` with ``readout="linear"``).
    n_restarts : int, default=500
        Of the maximiser.
    n_draws : int, default=128
        Functions drawn from the surrogate. The draws of ensembles are their members.
    n_initial : int, optional
        Usable results before there is a model. By default 2 d + 1, as many as a quadratic without
        mixed terms has coefficients.
    integer : sequence of int, optional
        Columns of whole numbers.
    categories : sequence of int, optional
        Columns of codes 0, 1, .., K - 1 without an order, with bounds (0, K - 1). The surrogate
        sees K columns of zeros and a one in the place of each.
    random_state : int, RandomState instance or None, default=None
        With the results told it decides every proposal.
    verbose : int, default=0
        1 shows a progress bar.
    callback : callable, optional
        ``callback(optimizer)`` after every batch of `maximize` and `minimize`; True stops.

    Attributes
    ----------
    x_ : ndarray of shape (n, d)
        All points told.
    y_ : ndarray of shape ``(n, *output_shape)``
        What was told of them, NaN where the evaluation failed.
    values_ : ndarray of shape (n,)
        The objective's values, NaN where the evaluation failed.
    messages_ : tuple of str
        Why evaluations failed; empty where they did not.
    best_x_ : ndarray of shape (d,) or None
        None before the first usable result.
    best_value_ : float
    beta_ : float or None
        What `mean_width` came to.
    history_ : tuple of StepRecord
    model_ : regressor or None
        The last step's, fitted; None before there was one.

    Raises
    ------
    ValueError
        If bounds are reversed, of zero width or not finite, or settings do not go together.

    See Also
    --------
    maximize_acquisition : One step without the loop.

    Notes
    -----
    `ask` is a function of what has been told and of `random_state`: asked again without a `tell`
    it answers the same, and so it does after `save` and `load`, bit by bit. For several points
    at once use q.

    Failed evaluations (an exception, NaN, inf) are kept, not fitted, and not asked again: in
    domains with continuous columns proposals keep 0.05 sqrt(D) away from them, in a box scaled to
    [-1, 1]^D. A proposal that is known already is replaced by the best of 2000 points all over the
    domain and near it.

    With surrogates that are not joint (a Gaussian process of scikit-learn, NOMU) and with "milp"
    the points of a batch are found one after the other, each after a fit that takes the mean
    prediction at those before it for their results.

    References
    ----------
    L. S. Guilhoto and P. Perdikaris. "Composite Bayesian optimization in function spaces using
    NEON", 2024. J. Heiss et al. "NOMU", ICML 2022, section 4.2 and appendix B.3.

    Examples
    --------
    >>> from sklearn.gaussian_process import GaussianProcessRegressor
    >>> from skuq.bayesopt import BayesianOptimizer
    >>> surrogate = GaussianProcessRegressor(optimizer=None)
    >>> search = BayesianOptimizer(surrogate, [(-2, 2)], random_state=0)
    >>> result = search.minimize(lambda x: (x[0] - 0.5) ** 2, n_calls=8)
    >>> bool(abs(result.x[0] - 0.5) < 0.1)
    True
    """

    def __init__(
        self,
        estimator,
        bounds,
        acquisition="lei",
        *,
        objective=None,
        delta=0.01,
        beta=1.0,
        deviation="std",
        mean_width=None,
        dynamic_c=False,
        maximizer="auto",
        n_restarts=500,
        n_draws=128,
        n_initial=None,
        integer=None,
        categories=None,
        random_state=None,
        verbose=0,
        callback=None,
    ):
        self.domain = Domain(bounds, integer, categories)
        self.estimator, self.objective, self.callback = estimator, objective, callback
        self.acquisition = Acquisition(
            acquisition, delta, 1.0 if callable(beta) else beta, deviation
        )
        self.beta, self.mean_width, self.dynamic_c = beta, mean_width, bool(dynamic_c)
        self.maximizer, self.n_restarts, self.n_draws = maximizer, n_restarts, n_draws
        self.n_initial = 2 * self.domain.n_columns + 1 if n_initial is None else n_initial
        self.verbose = verbose
        self._check_settings()
        self._entropy = draw_entropy(random_state)
        self._log = ResultLog(self.domain, objective)
        self._history: dict[int, StepRecord] = {}
        self._n_steps = _N_STEPS
        self.beta_: float | None = None
        self.model_ = None
        self._set_sign(1)

    # What is known

    @property
    def x_(self):
        return self._log.x.copy()

    @property
    def y_(self):
        return self._log.y

    @property
    def values_(self):
        return self._log.values.copy()

    @property
    def messages_(self):
        return tuple(self._log.messages)

    @property
    def history_(self):
        return tuple(self._history.values())

    @property
    def best_x_(self):
        best = self._log.best(self._objective.sign)
        return None if best is None else self._log.x[best].copy()

    @property
    def best_value_(self):
        best = self._log.best(self._objective.sign)
        return float("nan") if best is None else float(self._log.values[best])

    # Asking and telling

    def ask(self, q=1):
        """Where to evaluate next: for the largest value, and after `minimize` for the smallest.

        Parameters
        ----------
        q : int, default=1
            Points to be evaluated at once.

        Returns
        -------
        ndarray of shape (q, d)
            Of a Latin hypercube until there are `n_initial` usable results, uniform ones where that
            is used up; then those the acquisition prefers.

        Raises
        ------
        ValueError
            If `q` is below 1, larger than the number of points that are left, or, once there is a
            model, than the number of its draws.

        Warns
        -----
        UserWarning
            Of a model, if `q` is above 20: so many points are hard to place well together. If
            no model could be fitted, twice: the points are uniform ones then.
        """
        check_count("q", q)
        left = self._log.n_left
        if q > left:
            raise ValueError(
                f"All but {left} points of the domain are known. `q` must not be larger. Got {q}."
            )
        if self._log.usable.sum() < self.n_initial:
            return self._initial(q)
        step = self._fitted_step()
        if step is None:
            return self._initial(q)
        self._check_batch(q, step)
        start, fitted = time.perf_counter(), step.seconds_fit
        if self.mean_width is not None and self.beta_ is None:
            self.beta_ = step.beta_of_width(self.mean_width)
        beta, threshold = self._current_beta(), self._threshold()
        if step.takes_batches:
            proposal = step.propose(q, beta, threshold)
        else:
            proposal = step.propose_one_by_one(q, self._step, beta, threshold)
        seconds = time.perf_counter() - start - (step.seconds_fit - fitted)
        self.model_, n = step.model, len(self._log)
        self._history[n] = StepRecord(
            n, proposal.value, proposal.beta, proposal.n_doublings, step.seconds_fit, seconds
        )
        return proposal.x

    def tell(self, x, y):
        """Learn what an evaluation gave.

        Parameters
        ----------
        x : array-like of shape (d,) or (k, d)
            Within the bounds; they need not have been asked for.
        y : array-like of shape () or (k,), or None
            Of x (d,) one number, of (k, d) as many. With an `objective` the function's outputs
            (q,) or (q, d_s), or (k, q) or (k, q, d_s). NaN, inf or None: the evaluation failed.

        Returns
        -------
        self

        Raises
        ------
        ValueError
            If x is outside of the bounds, y has another shape than expected, or before, or the
            objective does not make one number of each.
        """
        if y is None:
            self._log.add_failures(x, "no result")
        else:
            self._log.add(x, y)
        return self

    # Steps

    def _initial(self, q):
        """Points before there is a model: what is left of the design, then uniform ones."""
        n = len(self._log)
        design = self.domain.design(self.n_initial, generator(self._entropy, "initial"))
        rng = generator(self._entropy, "uniform", n)
        points = [design[n:], self.domain.sample(2 * q, rng)]
        if self.domain.n_points <= _GRID:
            points.append(rng.permutation(self.domain.grid()))
        taken, chosen = {tuple(x) for x in self._log.x.tolist()}, []
        for x in np.concatenate(points).tolist():
            if tuple(x) not in taken:
                taken.add(tuple(x))
                chosen.append(x)
        return np.array(chosen[:q])

    def _fitted_step(self):
        """A step, with another seed where a fit fails numerically; None if it fails again."""
        results = self._log.results(self._objective.sign)
        for attempt in range(_ATTEMPTS):
            try:
                return self._step(results, attempt)
            except (FloatingPointError, np.linalg.LinAlgError) as error:
                failure = error
        warnings.warn(
            f"The surrogate could not be fitted to {len(results.X)} results, with "
            f"{_ATTEMPTS} seeds ({failure}): the next points are random ones.",
            stacklevel=3,
        )
        return None

    def _step(self, results, attempt=0):
        entropy = self._entropy
        if attempt:
            entropy = int(generator(entropy, "attempt", attempt).integers(1, 2**31 - 1))
        return Step(
            self.estimator,
            self.domain,
            results,
            self.acquisition,
            self._objective,
            maximizer=self.maximizer,
            n_restarts=self.n_restarts,
            n_draws=self.n_draws,
            entropy=entropy,
        )

    def _current_beta(self):
        if self.beta_ is not None:
            return self.beta_
        if not callable(self.beta):
            return float(self.beta)
        n = int(self._log.usable.sum())
        beta = float(self.beta(n))
        if not 0 <= beta < np.inf:
            raise ValueError(f"`beta` must give finite numbers >= 0. Got {beta} for {n} results.")
        return beta

    def _threshold(self):
        """How near is near, for `dynamic_c`."""
        if not self.dynamic_c:
            return None
        return distance_threshold(max(0, len(self._log) - self.n_initial) / self._n_steps)

    def _set_sign(self, sign):
        self._objective = SignedObjective(self.objective, sign)

    # Loops

    def maximize(self, func, n_calls, q=1, x0=None):
        """Evaluate a function `n_calls` times, where it seems largest.

        Parameters
        ----------
        func : callable
            ``func(x)`` of an array (d,): a number, or with an `objective` the outputs (q,) or
            (q, d_s). If it raises, or returns NaN or inf, that is recorded, and the search goes on.
        n_calls : int
            Evaluations, on top of those told before.
        q : int, default=1
            Points asked for at once. They are evaluated one after the other; to evaluate them
            side by side use `ask` and `tell`.
        x0 : array-like of shape (k, d), optional
            Points to evaluate first. They count as initial ones.

        Returns
        -------
        OptimizationResult
            Also after a keyboard interrupt, with a warning.

        Raises
        ------
        SearchFailedError
            If none of the first ten evaluations, or of all, was usable.
        ValueError
            If `n_calls` is below 1, or the function returns something else than before.

        Warns
        -----
        UserWarning
            If `n_calls` are too few for a model.
        """
        return self._run(func, n_calls, q, x0, 1)

    def minimize(self, func, n_calls, q=1, x0=None):
        """Evaluate a function `n_calls` times, where it seems smallest.

        Parameters and results are those of `maximize`: values and the best are the function's own.
        Only acquisition values are of what is maximised inside, minus the objective.

        Parameters
        ----------
        func : callable
        n_calls : int
        q : int, default=1
        x0 : array-like of shape (k, d), optional

        Returns
        -------
        OptimizationResult
        """
        return self._run(func, n_calls, q, x0, -1)

    def _run(self, func, n_calls, q, x0, sign):
        if not callable(func):
            raise TypeError(f"`func` must be a function of one point (d,). Got {func!r}.")
        check_count("n_calls", n_calls)
        check_count("q", q)
        given = self._log.x[:0] if x0 is None else self.domain.check(x0)
        if len(given) > n_calls:
            raise ValueError(f"`x0` has {len(given)} points, more than `n_calls`={n_calls}.")
        self._set_sign(sign)
        end = len(self._log) + n_calls
        if end <= self.n_initial:
            warnings.warn(
                f"{end} evaluations are all initial ones (n_initial={self.n_initial}): no model is "
                "used. Lower `n_initial` or raise `n_calls`.",
                stacklevel=3,
            )
        self._n_steps = max(1, end - self.n_initial)
        message = f"All {n_calls} evaluations are done."
        with tqdm(total=n_calls, desc="search", unit="point", disable=not self.verbose) as bar:
            try:
                while len(self._log) < end:
                    n = min(q, end - len(self._log))
                    if not len(given) and not self._log.n_left:
                        message = "Every point of the domain is known."
                        break
                    batch = given[:n] if len(given) else self.ask(min(n, self._log.n_left))
                    given = given[n:]
                    for x in batch:
                        self._evaluate(func, x)
                        bar.update()
                    bar.set_postfix(best=f"{self.best_value_:.4g}")
                    if self._is_to_stop():
                        message = "Stopped by `callback`."
                        break
            except KeyboardInterrupt:
                if self.best_x_ is None:
                    raise
                message = f"Interrupted after {len(self._log)} of {end} evaluations."
                warnings.warn(message, stacklevel=3)
        self._check_hopeless(at_the_end=True)
        return OptimizationResult(
            self.best_x_,
            self.best_value_,
            self.x_,
            self.y_,
            self.values_,
            message,
            self.history_,
        )

    def _is_to_stop(self):
        answer = None if self.callback is None else self.callback(self)
        return isinstance(answer, bool | np.bool_) and bool(answer)

    def _evaluate(self, func, x):
        try:
            y = func(x.copy())
        except Exception as error:
            message = f"{type(error).__name__}: {error}"
            _logger.info("evaluation %d failed: %s", len(self._log), message)
            self._log.add_failures(x, message)
        else:
            if y is None:
                raise ValueError(f"The function must return numbers. Got None at x={x.tolist()}.")
            self._log.add(x, y)
        self._check_hopeless()

    def _check_hopeless(self, at_the_end=False):
        n = len(self._log)
        if not n or self.best_x_ is not None or not (at_the_end or n >= _HOPELESS):
            return
        raise SearchFailedError(
            f"None of {n} evaluations was usable. The last one: {self._log.messages[-1]}. "
            "The function gets one point of shape (d,), and returns a finite number."
        )

    # Saving

    def to_state(self):
        """All that the next proposal depends on, but estimator, objective and callables.

        Returns
        -------
        dict
            `settings` of JSON types, and arrays.
        """
        settings = {
            "bounds": self.domain.bounds.tolist(),
            "integer": list(self.domain.integer),
            "categories": list(self.domain.categories),
            "acquisition": self.acquisition.name,
            "delta": self.acquisition.delta,
            "deviation": self.acquisition.deviation,
            **{name: getattr(self, name) for name in _PLAIN},
            "beta": None if callable(self.beta) else self.beta,
            "has_objective": self.objective is not None,
            "entropy": self._entropy,
            "sign": self._objective.sign,
            "n_steps": self._n_steps,
            "beta_": self.beta_,
            "messages": list(self._log.messages),
            "history": [asdict(record) for record in self.history_],
        }
        return {"settings": settings, **self._log.to_arrays()}

    @classmethod
    def from_state(cls, state, estimator, **changes):
        """A search that goes on where `to_state` was called.

        Parameters
        ----------
        state : dict
        estimator : regressor
        **changes
            Parameters: those that a state does not hold (`objective`, a callable `beta`,
            `callback`, `verbose`), and others that are to be different from now on.

        Returns
        -------
        BayesianOptimizer
            Given the same estimator and objective, `ask` answers bit by bit what it would have.

        Raises
        ------
        ValueError
            If bounds, columns or `random_state` are to be different, or the objective is missing
            where there was one.
        """
        kept = dict(state["settings"])
        own = {name: kept.pop(name) for name in _OF_A_RUN}
        if "random_state" in changes:
            raise ValueError("A search goes on with its own random numbers: leave `random_state`.")
        if own["has_objective"] != (changes.get("objective") is not None):
            raise ValueError(
                "This search has an `objective`, which no state holds: give it again."
                if own["has_objective"]
                else "This search was told numbers, not outputs: it takes no `objective`."
            )
        if kept["beta"] is None and "beta" not in changes:
            raise ValueError(
                "This search has a function for `beta`, which no state holds: give it."
            )
        before = Domain(kept["bounds"], kept["integer"], kept["categories"])
        self = cls(estimator, **{**kept, **changes})
        if self.domain != before:
            raise ValueError(
                "A search goes on in its own domain. It has bounds "
                f"{before.bounds.tolist()}, integer={before.integer} and "
                f"categories={before.categories}. Got {self.domain.bounds.tolist()}, "
                f"{self.domain.integer} and {self.domain.categories}."
            )
        self._entropy, self._n_steps, self.beta_ = own["entropy"], own["n_steps"], own["beta_"]
        self._set_sign(own["sign"])
        self._log.restore(state, own["messages"])
        self._history = {record["n_results"]: StepRecord(**record) for record in own["history"]}
        return self

    def save(self, path):
        """Write `to_state` to a file. It is whole at any time, and safe to read."""
        _archive.write(path, self.to_state(), kind=_KIND)

    @classmethod
    def load(cls, path, estimator, **changes):
        """Go on with a search from a file; see `from_state`.

        Raises
        ------
        FileFormatError
            If the file is broken, or not one that `save` has written.
        """
        return cls.from_state(_archive.read(path, kind=_KIND), estimator, **changes)

    # Checks

    def _check_settings(self):
        name = self.acquisition.name
        for parameter in ("n_restarts", "n_draws", "n_initial"):
            check_count(parameter, getattr(self, parameter))
        check_surrogate(self.estimator)
        if self.callback is not None and not callable(self.callback):
            raise TypeError(f"`callback` must be a function. Got {self.callback!r}.")
        if self.n_draws < 2:
            raise ValueError("`n_draws` must be at least 2: one function shows no uncertainty.")
        if self.objective is not None and not callable(self.objective):
            raise TypeError(f"`objective` must be a function of outputs. Got {self.objective!r}.")
        if self.maximizer not in (*METHODS, "milp"):
            raise ValueError(
                f"`maximizer` must be one of {', '.join((*METHODS, 'milp'))}. "
                f"Got {self.maximizer!r}."
            )
        for parameter in ("mean_width", "dynamic_c"):
            if getattr(self, parameter) and name not in _BOUNDS:
                raise ValueError(f'`{parameter}` is for acquisition="ucb". Got {name!r}.')
        width = self.mean_width
        if width is not None and not (isinstance(width, Real) and 0 < width < np.inf):
            raise ValueError(f"`mean_width` must be a positive number. Got {width!r}.")
        if self.maximizer == "milp" and (name not in _IN_A_PROGRAMME or self.objective is not None):
            raise ValueError(
                'maximizer="milp" is for acquisition="ucb" or "mean" without an `objective`. '
                f"Got {name!r}{'' if self.objective is None else ' with one'}."
            )

    def _check_batch(self, q, step):
        if step.takes_batches and q > step.posterior.n_draws:
            raise ValueError(
                f"`q` must not be larger than the number of draws, {step.posterior.n_draws}, among "
                f"which a batch shares the best. Got {q}."
            )
        if q > _MANY_AT_ONCE:
            warnings.warn(
                f"q={q} points at once are hard to place well together: above {_MANY_AT_ONCE} "
                "consider several batches.",
                stacklevel=3,
            )


_KIND = "Bayesian optimisation"
# Parameters that are kept as they are, and what else a state's settings hold.
_PLAIN = ("mean_width", "dynamic_c", "maximizer", "n_restarts", "n_draws", "n_initial")
_OF_A_RUN = ("has_objective", "entropy", "sign", "n_steps", "beta_", "messages", "history")
