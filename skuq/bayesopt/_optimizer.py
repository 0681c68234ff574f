"""Bayesian optimisation: propose points of an expensive function and learn from its results."""

import copy
import functools
import logging
import threading
import time
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np

from skuq._messages import Progress, warn_user
from skuq._params import check_count, resolve_settings
from skuq._random import draw_entropy
from skuq.bayesopt import _results
from skuq.bayesopt._results import Domain, OptimizationResult, ResultLog, StepRecord
from skuq.bayesopt._step import Step
from skuq.bayesopt._surrogate import FIT_ERRORS, N_ATTEMPTS, SHORT_FORMS, Fits, SearchSettings
from skuq.exceptions import SearchFailedError

_logger = logging.getLogger("skuq")

_MOST_FAILURES = 10  # evaluations that may fail before the first success
#: Parameters on which the results so far depend.
_FIXED = "bounds", "objective", "n_initial", "integer", "categories", "noisy", "random_state"
_N_STEPS = 64  # over which the threshold of `dynamic_c` falls, until a loop knows it


def _locked(method):
    """Let one thread at a time into the methods of a search."""

    @functools.wraps(method)
    def wrapper(self, *args, **kwargs):
        with self._lock:
            return method(self, *args, **kwargs)

    return wrapper


class BayesianOptimizer:
    """Find the best input of an expensive function by Bayesian optimisation.

    Each step fits a clone of a regressor to all results and proposes the points that maximise an
    acquisition function of draws from the regressor. `maximize` and `minimize` run the whole
    search; with `ask` and `tell` you evaluate the function yourself.

    Parameters
    ----------
    estimator : regressor
        Surrogate with ``posterior_fn`` (those of skuq) or ``predict(X, return_std=True)``
        (scikit-learn's Gaussian process). Inputs come in your units: a Gaussian process needs a
        pipeline with a scaler, our networks do not. Each `random_state` of a clone is replaced by
        a seed of the step. Assign another one to change it: changes in place wait for a result.
    bounds : array-like of shape (d, 2)
        Lowest and highest value of each column of x.
    acquisition : {"lei", "ei", "ucb", "mean", "uncertainty"} or Acquisition, default="lei"
        Acquisition function. Those with settings are `LeakyExpectedImprovement` ("lei") and
        `UpperConfidenceBound` ("ucb").
    objective : callable, optional
        Map from outputs (.., q) or (.., q, d_s) of the function to the values (..,) that are
        optimised. The surrogate then learns the outputs, not the values. Written with operators
        and `keras.ops` it has exact gradients. Nothing that it reads, such as a global variable,
        may change during the search; compiled programs keep what was there.
    maximizer : {"auto", "lbfgs", "scipy", "direct"} or MultiStart, default="auto"
        Method that maximises the acquisition. "auto", "lbfgs" and "scipy" stand for `MultiStart`,
        which has the number of restarts, and "direct" for SciPy's DIRECT.
    n_draws : int, default=128
        Number of functions drawn from the surrogate, at least 2. An ensemble's draws are its
        members.
    n_initial : int, optional
        Number of usable results before a model is used. By default 2 d + 1, the number of
        coefficients of a quadratic without mixed terms; of points of your own, told or given as
        `x0`, d + 1 are enough.
    integer : sequence of int, optional
        Indices of the columns that hold whole numbers.
    categories : sequence of int, optional
        Indices of the columns that hold unordered codes 0, 1, .., K - 1, with bounds (0, K - 1).
        The surrogate gets them one-hot encoded.
    noisy : bool, default=False
        Whether results carry noise. The incumbent is then, in each draw, the draw's best value at
        known points (Letham et al. 2019), not the luckiest result; the best point is the one of
        the best mean prediction; and a point may be proposed again. The surrogate must model
        noise, too: give a Gaussian process a noise term.
    random_state : int, RandomState instance or None, default=None
        Seed. Together with the results and the pending points it determines every proposal.
    direction : {"maximize", "minimize"}, default="maximize"
        Whether `ask` searches for the largest or the smallest value. The methods `maximize` and
        `minimize` set it.
    verbose : int or None, default=None
        Whether to show a progress bar: 1 always, 0 never, None on a terminal after 20 seconds.
    callback : callable, optional
        Called as ``callback(optimizer)`` after every batch of `maximize` and `minimize`. The
        search stops if it returns True.

    Attributes
    ----------
    x_ : ndarray of shape (n, d)
        All evaluated points.
    y_ : ndarray of shape ``(n, *output_shape)``
        Their outputs, NaN where the evaluation failed.
    values_ : ndarray of shape (n,)
        Their values of the objective, NaN where the evaluation failed.
    messages_ : tuple of str
        Reasons of failures; empty for successful evaluations.
    pending_ : ndarray of shape (p, d)
        Points that were asked for and not told yet.
    best_x_ : ndarray of shape (d,) or None
        Best point; None before the first usable result.
    best_value_ : float
        Value of the best point; NaN before the first usable result. With `noisy` it is the mean
        that the last model predicts, or the result itself without one, as after a pickle or copy.
    beta_ : float or None
        Value of beta that `mean_width` led to; None before the first step with a model.
    history_ : tuple of StepRecord
        Record of each proposal by a model.
    model_ : regressor or None
        Fitted surrogate of the last step; None before the first.

    Raises
    ------
    ValueError
        If bounds are reversed, of zero width or not finite, or a setting is wrong.

    Notes
    -----
    Points that were asked for are *pending* until their results are told. Later proposals keep
    away from them, and each draw of the surrogate takes its own values there for known
    ("fantasies"). So several workers may ask, each when it is free; they share the fit until there
    is a new result. `forget` drops points of a worker that is lost. Workers may be threads: while
    one asks, the others wait.

    A proposal depends only on the results, the pending points and `random_state`: a search that
    was pickled or copied goes on with the same points. `estimator`, `acquisition`, `maximizer`,
    `n_draws` and `direction` may be changed between steps by setting these attributes.

    Failed evaluations (an exception, NaN, inf, numbers beyond 1e150) are recorded, but not
    fitted. If any column is continuous, proposals of the model keep away from failed points.
    Points of a batch and pending ones keep apart. A proposal that is known, or too close to
    another point, is replaced by the best of 2000 points, half of them near it and half anywhere
    in the domain. A proposal on a face of the box is moved inwards if results near it all lie on
    that face (Conn et al. 2009).

    With surrogates without joint draws (scikit-learn's Gaussian process, NOMU) the points of a
    batch are found one after the other. Before each, the surrogate is fitted with its own mean
    predictions at the points before it, and at pending ones, as results. If a fit fails
    numerically with two seeds, the next points are uniform ones, with a warning.

    References
    ----------
    L. S. Guilhoto and P. Perdikaris. "Composite Bayesian optimization in function spaces using
    NEON", 2024. J. Heiss et al. "NOMU", ICML 2022, section 4.2 and appendix B.3. B. Letham et al.
    "Constrained Bayesian optimization with noisy experiments", Bayesian Analysis, 2019. A. R. Conn
    et al. "Introduction to derivative-free optimization", 2009, chapters 3 and 6.

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

    _settings = SHORT_FORMS

    def __setattr__(self, name, value):
        if name in _FIXED and "_log" in vars(self):
            raise AttributeError(f"`{name}` cannot be changed: make a new search.")
        super().__setattr__(name, value)

    def __init__(
        self,
        estimator,
        bounds,
        acquisition="lei",
        *,
        objective=None,
        maximizer="auto",
        n_draws=128,
        n_initial=None,
        integer=None,
        categories=None,
        noisy=False,
        random_state=None,
        direction="maximize",
        verbose=None,
        callback=None,
    ):
        if callback is not None and not callable(callback):
            raise TypeError(f"`callback` must be a function. Got {callback!r}.")
        self.domain = Domain(bounds, integer, categories)
        self.estimator, self.objective, self.callback = estimator, objective, callback
        self.acquisition, self.maximizer, self.n_draws = acquisition, maximizer, n_draws
        d = self.domain.n_columns
        numbers = (2 * d + 1, d + 1) if n_initial is None else (n_initial,) * 2
        self.n_initial, self._n_given = numbers  # the second of points of one's own
        self.noisy, self.direction, self.verbose = noisy, direction, verbose
        self.model_: Any = None
        self.history_: tuple[StepRecord, ...] = ()
        self._entropy, self._n_steps = draw_entropy(random_state), _N_STEPS
        self._width_and_beta: tuple = None, None  # `mean_width`, and the beta that it led to
        # It tells compiled programs of this search from others, see `SignedObjective`.
        self._identity = None if objective is None else object()
        self._search_settings()  # raises an error if one is wrong
        self._log = ResultLog(self.domain, objective, repeats=bool(noisy))
        self._fits = Fits()
        self._lock = threading.RLock()

    # The whole search

    def maximize(self, func, n_calls, q=1, x0=None):
        """Find where a function is largest, with `n_calls` evaluations.

        Parameters
        ----------
        func : callable
            ``func(x)`` gets an array (d,) and returns a number, or with an `objective` the
            outputs (q,) or (q, d_s). If it raises, or returns NaN, inf or numbers beyond 1e150,
            this is recorded and the search goes on; likewise None, once a result is known.
        n_calls : int
            Number of evaluations, in addition to those told before.
        q : int, default=1
            Number of points proposed at once. They are evaluated one after the other; to evaluate
            them in parallel use `ask` and `tell`.
        x0 : array-like of shape (k, d), optional
            Points to evaluate first. They count as initial ones.

        Returns
        -------
        OptimizationResult
            `x` and `fun`, the best evaluated point and its value, as `best_x_` and `best_value_`;
            `x_iters` and `values`, all points in the order of their evaluation and their values;
            `message`, why the search ended; and `history`. A keyboard interrupt gives the result so
            far, with a warning.

        Raises
        ------
        SearchFailedError
            If none of the first ten evaluations, or of all, was usable.
        ValueError
            If `n_calls` is below 1, or the function returns something else than before.

        Warns
        -----
        UserWarning
            If `n_calls` is too small to use a model.
        """
        return self._search(func, n_calls, q, x0, "maximize")

    def minimize(self, func, n_calls, q=1, x0=None):
        """Find where a function is smallest, with `n_calls` evaluations.

        Values in the result are the function's own. Only acquisition values refer to the negated
        objective, which is maximised internally.

        Parameters
        ----------
        func : callable
            See `maximize`.
        n_calls : int
            Number of evaluations, in addition to those told before.
        q : int, default=1
            Number of points proposed at once.
        x0 : array-like of shape (k, d), optional
            Points to evaluate first. They count as initial ones.

        Returns
        -------
        OptimizationResult
            See `maximize`.
        """
        return self._search(func, n_calls, q, x0, "minimize")

    def _search(self, func, n_calls, q, x0, direction):
        """Evaluate `func` at `n_calls` more points."""
        if not callable(func):
            raise TypeError(f"`func` must be a function of one point (d,). Got {func!r}.")
        check_count("n_calls", n_calls)
        check_count("q", q)
        given = self._log.x[:0] if x0 is None or not np.size(x0) else self.domain.check(x0)
        if len(given) > n_calls:
            raise ValueError(f"`x0` has {len(given)} points, more than `n_calls`={n_calls}.")
        end, n_initial = len(self._log) + n_calls, self._n_before_model(given)
        if end <= n_initial:
            warn_user(
                f"{end} evaluations are all initial ones (n_initial={n_initial}): no model is "
                "used. Lower `n_initial` or raise `n_calls`."
            )
        self.direction, self._n_steps = direction, max(1, end - n_initial)

        message = self._run(func, n_calls, q, given)
        self._check_success()
        with self._lock:
            if self.noisy and self._log.n_usable >= self._n_before_model():
                with suppress(*FIT_ERRORS):  # so that a model of all results chooses the best point
                    self._step()
            return OptimizationResult(*self._best(), self.x_, self.values_, message, self.history_)

    def _run(self, func, n_calls, q, first):
        """Evaluate the points of `first` (k, d), then batches of q points that are asked for.

        Return why it ended: other threads may tell results, so that there may be more of them.
        Raise SearchFailedError if none of the first ten evaluations, or of all, was usable.
        """
        log, end = self._log, len(self._log) + n_calls
        with Progress("search", "point", n_calls, verbose=self.verbose) as progress:
            try:
                while len(log) < end:
                    n = min(q, end - len(log))
                    if len(first):
                        batch, first = first[:n], first[n:]
                        with self._lock:
                            log.expect(batch)
                    elif log.n_left:
                        batch = self.ask(int(min(n, log.n_left)))
                    else:
                        return "Every point of the domain is known."
                    n_done = 0
                    try:
                        for x in batch:
                            if n_done:
                                progress.step()
                            self._evaluate(func, x)
                            n_done += 1
                    finally:  # after an interrupt, the rest of the batch is no longer pending
                        with self._lock:
                            log.forget(batch[n_done:])
                    progress.step(best=f"{self.best_value_:.4g}", failed=len(log) - log.n_usable)
                    answer = None if self.callback is None else self.callback(self)
                    if isinstance(answer, bool | np.bool_) and answer:
                        return "Stopped by `callback`."
            except KeyboardInterrupt:
                if not log.n_usable:
                    raise
                message = f"Interrupted after {len(log)} of {end} evaluations."
                warn_user(message)
                return message
        return f"All {n_calls} evaluations are done."

    def _evaluate(self, func, x):
        """Call the function at one point (d,) and record its result or its exception."""
        log = self._log
        try:
            y = func(x.copy())
        except Exception as error:
            message = f"{type(error).__name__}: {error}"
            _logger.info("evaluation %d failed: %s", len(log), message)
            with self._lock:
                log.add_failures(x, message)
        else:
            if y is None and not log.n_usable:  # perhaps a forgotten `return`
                raise ValueError(f"The function must return numbers. Got None at x={x.tolist()}.")
            self.tell(x, y)
        if len(log) >= _MOST_FAILURES:
            self._check_success()

    def _check_success(self):
        """Raise SearchFailedError if no evaluation was usable."""
        if not self._log.n_usable:
            raise SearchFailedError(
                f"None of {len(self._log)} evaluations was usable. The last one: "
                f"{self._log.messages[-1]}. The function gets one point of shape (d,), and returns "
                "a finite number."
            )

    # Proposals and results, one by one

    @_locked
    def ask(self, q=1):
        """Propose points to evaluate next; they are pending until they are told.

        The search is for the largest value, or with ``direction="minimize"`` for the smallest. It
        may be called again while points are pending.

        Parameters
        ----------
        q : int, default=1
            Number of points that are evaluated at once.

        Returns
        -------
        ndarray of shape (q, d)
            Points of a Latin hypercube, followed by uniform ones, until there are `n_initial`
            usable results. Later the points that maximise the acquisition.

        Raises
        ------
        ValueError
            If `q` is below 1, above the number of points of the domain that are neither known nor
            pending, or, once there is a model, above the number of its draws.

        Warns
        -----
        UserWarning
            If `q` > 20 with a model: large batches are hard to optimise jointly. If the model
            cannot be fitted with two seeds: the points are uniform ones then.
        """
        check_count("q", q)
        left = self._log.n_left
        if q > left:
            raise ValueError(
                f"All but {left} points of the domain are known or pending. `q` must not be "
                f"larger. Got {q}. `forget` frees pending points, and a search with noisy=True "
                "proposes known ones again."
            )
        x = None
        if self._log.n_usable >= self._n_before_model():
            try:
                step, start = self._step(), time.perf_counter()
                # Once, at the first model: the width may change with later results (NOMU,
                # appendix B.3.2).
                width = getattr(step.acquisition, "mean_width", None)
                if width is not None and self.beta_ is None:
                    self._width_and_beta = width, step.beta_of_width(width)
                n_before = self.history_[0].n_results if self.history_ else step.results.n_told
                proposal = step.propose(q, self.beta_, self._fits, n_before)
                self.model_ = step.surrogate.model
                record = StepRecord(
                    n_results=step.results.n_told,
                    acquisition_value=proposal.value,
                    beta=proposal.beta,
                    n_doublings=proposal.n_doublings,
                    seconds_fit=step.surrogate.seconds + proposal.seconds_fit,
                    seconds_acquisition=time.perf_counter() - start - proposal.seconds_fit,
                    n_pending=len(step.pending),
                )
                self.history_, x = (*self.history_, record), proposal.x
            except FIT_ERRORS as error:
                warn_user(
                    f"The surrogate could not be fitted to {self._log.n_usable} results, with "
                    f"{N_ATTEMPTS} seeds ({error}): the next points are random ones."
                )
        # Too few results for a model, or one that could not be fitted.
        if x is None:
            x = _results.initial_points(q, self._log, self.n_initial, self._entropy)
        self._log.expect(x)
        return x.copy()

    @_locked
    def tell(self, x, y):
        """Add the results of evaluations. Each of them settles its point, if that is pending.

        Points may have been rounded to single precision. Coarser rounding leaves a point pending,
        with a warning: tell the point as it was proposed, or `forget` it.

        Parameters
        ----------
        x : array-like of shape (d,) or (k, d)
            Points within the bounds, proposed by `ask` or not.
        y : array-like of shape () or (k,), or None
            One number for each point; that of a single row may be a scalar. With an `objective`
            the function's outputs (q,) or (q, d_s), or (k, q) or (k, q, d_s). NaN, inf or None mean
            that the evaluation failed; one of them is enough for a point, whatever the shape of
            the outputs.

        Returns
        -------
        self

        Raises
        ------
        ValueError
            If x is outside of the bounds, y has another shape than expected or than before, or the
            objective does not give one number for each point.

        Warns
        -----
        UserWarning
            If a point is near a pending one without being equal.
        """
        if y is None:
            self._log.add_failures(x, "no result")
        else:
            self._log.add(x, y)
        return self

    @_locked
    def forget(self, x=None):
        """Drop pending points whose results will not come; they may be proposed again.

        A point that is pending twice is dropped once.

        Parameters
        ----------
        x : array-like of shape (d,) or (k, d), optional
            The points; by default all that are pending.

        Returns
        -------
        self
        """
        self._log.forget(None if x is None else self.domain.check(x))
        return self

    # Steps

    def _n_before_model(self, more=()):
        """Count the results needed before a model: fewer where the user's points are enough."""
        points = np.vstack([self._log.x[self._log.usable], *more])
        design = _results.initial_design(self.domain, self.n_initial, self._entropy)
        is_own = self.domain.distance(points, design) > self.domain.tolerance
        return self._n_given if is_own.sum() >= self._n_given else self.n_initial

    def _step(self):
        """Make a step from a surrogate that is fitted to all results."""
        settings = self._search_settings()
        results = self._log.results(settings.sign)
        return Step(self._fits.surrogate(settings, results), settings, results, self._log.pending)

    def _search_settings(self):
        """Collect the parameters and check them: they may have been changed since the last step."""
        names = ("estimator", "domain", "objective", "n_draws", "n_initial", "noisy", "direction")
        return SearchSettings(
            **{name: getattr(self, name) for name in names},
            acquisition=resolve_settings(self, "acquisition"),
            maximizer=resolve_settings(self, "maximizer"),
            entropy=self._entropy,
            n_steps=self._n_steps,
            search=self._identity,
        )

    # Results so far

    x_ = property(lambda self: self._log.x.copy())
    y_ = property(_locked(lambda self: self._log.y))
    values_ = property(lambda self: self._log.values.copy())
    messages_ = property(lambda self: self._log.messages)
    pending_ = property(lambda self: self._log.pending.copy())
    best_x_ = property(lambda self: self._best()[0])
    best_value_ = property(lambda self: self._best()[1])

    @property
    def beta_(self):
        width, beta = self._width_and_beta
        return beta if getattr(self.acquisition, "mean_width", None) == width else None

    @_locked
    def _best(self):
        """Find the best point and its value, in the user's sign."""
        sign = 1 if self.direction == "maximize" else -1
        best = self._log.best(sign)
        if best is None:
            return None, float("nan")
        if not self.noisy or self._fits.last is None:
            return self._log.x[best].copy(), float(self._log.values[best])
        # The last model averages noisy values. Its own settings are valid, whatever was set since,
        # but not its sign: a search may have maximised first.
        last, none_pending = self._fits.last, self._log.pending[:0]
        settings = replace(last.settings, noisy=True, direction=self.direction)
        return Step(last, settings, self._log.results(sign), none_pending).best_known()

    @_locked
    def to_frame(self):
        """Tabulate all results in the order of their evaluation, then the pending points.

        Returns
        -------
        DataFrame
            Columns "x0", "x1", .. of the points, "value" of the objective, "status" ("completed",
            "failed" or "pending") and "message", the reason of a failure.
        """
        return self._log.to_frame()

    @_locked
    def __repr__(self):
        return (
            f"<BayesianOptimizer: {type(self.estimator).__name__}, {self.acquisition!r}, "
            f"{self.direction}; results: {len(self._log)}, best: {self.best_value_:.6g}>"
        )

    @_locked
    def __getstate__(self):
        """Return all but the lock, which belongs to this process, and the last fit.

        The next step fits again, with its seed. Results are copied, so that other threads can go on
        while they are pickled, and copies of a search part ways.
        """
        state = {name: value for name, value in vars(self).items() if name != "_lock"}
        # Arrays and tuples of the log are replaced, never changed.
        return {**state, "_log": copy.copy(self._log), "_fits": Fits()}

    def __setstate__(self, state):
        vars(self).update(state, _lock=threading.RLock(), _identity=state["objective"] and object())
