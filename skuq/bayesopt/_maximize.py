"""Maximisation of acquisition functions over a box."""

from __future__ import annotations

import math
from contextlib import nullcontext
from typing import NamedTuple

import numpy as np
from scipy import optimize
from scipy.stats import qmc

from skuq._utils._checks import check_count
from skuq._utils._environment import one_thread_if_small
from skuq._utils._messages import warn_user
from skuq.bayesopt._acquisition import (
    ACQUISITIONS,
    AcquisitionTask,
    CompiledAcquisition,
    NumpyOnlyError,
    UpperConfidenceBound,
    acquisition_of,
    check_acquisition,
)
from skuq.bayesopt._batch_lbfgs import minimize_batch
from skuq.bayesopt._domain import check_bounds

#: Values of `method` in `maximize_acquisition`.
METHODS = ("auto", "lbfgs", "direct", "scipy")

# On 36 rugged problems of six variables (500 restarts, wavelength a third of the box) the
# restarts from a plain hypercube missed the best known maximum in 17% of the runs, those from
# the best of four times as many points in 3%; eight times as many gained nothing.
_CANDIDATES_PER_RESTART = 4
# {round: share of the restarts that continue}. This finds what converged restarts find, with a
# third of the evaluations. Cuts at rounds 4, 12 and 32 missed 6%.
_SURVIVORS = {6: 1 / 4, 16: 1 / 16, 36: 1 / 50}
# Ten restarts continue in any case. Of few, as for fields, whose acquisition is costly, these
# shares continue if they are less than ten. For a batch of ten images this finds what eight
# converged restarts find, with a third of the evaluations; a quarter and an eighth lost 8%.
_LEAST_SURVIVORS, _LEAST_SHARES = 10, {6: 1 / 2, 16: 1 / 2, 36: 1 / 4}
_MAX_ROUNDS = 150  # of L-BFGS
_FTOL = 1e-7  # smallest gain of a step, in units of the candidates' spread
# A search that proposes points this near to a given start, as a share of the box times sqrt(d),
# has converged to where single precision is coarse: the best maxima are refined in double.
_SMALL_STEP = 0.01
_N_REFINED = 10  # maxima that are refined
_MAX_EXACT_ROUNDS, _EXACT_FTOL = 60, 1e-13  # of their refinement in double precision
_N_CLIMBED = 10  # points of the sample that are improved if there are no gradients
_DIFFERENCE = 1e-6  # share of the box; about the error of a difference in float64
_COST_OF_NON_FINITE = 1e30
# Points where single precision is compared with double, and the tolerated error there as a share
# of the values' spread.
_N_COMPARED, _INEXACT = 8, 0.01


def maximize_acquisition(
    posterior,
    acquisition,
    objective,
    bounds,
    best,
    *,
    q=1,
    method="auto",
    n_restarts=500,
    starts=None,
    exclude=None,
    pending=None,
    min_distance=1e-6,
    random_state=None,
    domain=None,
):
    """Find the point, or the batch of points, where an acquisition function is largest.

    Parameters
    ----------
    posterior : Posterior
        Draws of the surrogate.
    acquisition : Acquisition or str
        The function to maximise, or its short form such as "lei".
    objective : callable or None
        ``draws (n_draws, n, *output_shape) -> (n_draws, n)``, maximised; None for a surrogate of
        one output. Written with operators and `keras.ops` it has exact gradients. Compiled
        programs are found by this object, so give the same one in every step. A program keeps
        what the function read when it was compiled, such as global variables: give another
        function object where these have changed.
    bounds : array-like of shape (d, 2)
        Ends of every input.
    best : float or array-like of shape (n_draws,)
        Best known value of the objective, or one for each draw; None for "ucb", "mean" and
        "uncertainty".
    q : int, default=1
        Size of the batch.
    method : {"auto", "lbfgs", "scipy", "direct"}, default="auto"
        "lbfgs" climbs from all starts at once in compiled programs, "scipy" from one after the
        other with L-BFGS-B. Without gradients (the posterior's key is None) "scipy" climbs from
        the best points of a large sample by forward differences. "direct" is SciPy's DIRECT, not
        locally biased, as in NOMU's appendix B.3. "auto" is "lbfgs", or "scipy" without gradients.
    n_restarts : int, default=500
        Number of starts from a Latin hypercube. Without gradients the best of four times as many
        points are improved, at most ten.
    starts, exclude : array-like of shape (k, d), optional
        Further starts, with q > 1 the first points of k batches; points not to be proposed again.
    pending : array-like of shape (k, d), optional
        Points under evaluation. Each draw takes its own values there for known; they are excluded.
    min_distance : float, default=1e-6
        Distance below which a point counts as excluded, in a box scaled to [0, 1]^d.
    random_state : int, numpy.random.Generator or None, default=None
        Seed of the starts.
    domain : Domain, optional
        Domain of the points, which are encoded, if it has constraints of inputs. Starts are then
        feasible points, whole numbers stay those of their start, and "lbfgs" and "scipy" both
        climb by SciPy's SLSQP. DIRECT evaluates the border where it is outside.

    Returns
    -------
    x : ndarray of shape (q, d)
        Within `bounds`.
    value : float
        The acquisition's value there.

    Raises
    ------
    ValueError
        If an argument is out of range, shapes disagree, the acquisition is NaN or infinite at all
        points tried, all of them are excluded, or q > 1 or points are pending with a posterior
        that is not joint.

    Warns
    -----
    UserWarning
        If DIRECT is used, as the objective fails on tensors.

    Notes
    -----
    "lbfgs" and "scipy" compute in single precision. Where that does not tell points apart, as
    inputs or outputs are far from 0 for how much they vary, or cannot hold the values, they
    compute in double precision, at about twice the time. With "lbfgs", maxima near a given start
    climb on in double precision.

    Examples
    --------
    >>> import numpy as np
    >>> from skuq.bayesopt._maximize import maximize_acquisition
    >>> from skuq.predictive import Posterior
    >>> tops = np.array([0.2, 0.4])  # two parabolas
    >>> posterior = Posterior(
    ...     lambda xp, arguments, X: -((X[:, 0] - arguments[0][:, None]) ** 2),
    ...     arguments=(tops,), key=None, n_draws=2, output_shape=(),
    ... )
    >>> x, value = maximize_acquisition(
    ...     posterior, "mean", None, [(0, 1)], best=None, method="scipy", n_restarts=8,
    ...     random_state=0,
    ... )
    >>> x.round(3), round(value, 3)
    (array([[0.3]]), -0.01)
    """
    bounds = check_bounds(bounds)
    starts = _check_points("starts", starts, bounds)
    exclude = _check_points("exclude", exclude, bounds)
    pending = _check_points("pending", pending, bounds)
    _check_numbers(posterior, q, method, n_restarts, len(pending), min_distance)
    acquisition = _read_acquisition(acquisition)
    if not acquisition.uses_best:
        best = 0.0
    elif best is None or not np.isfinite(best).all():
        raise ValueError(f"best must be finite for {acquisition!r}. Got {best}.")
    elif np.shape(best) not in ((), (posterior.n_draws,)):
        raise ValueError(
            f"best must be one number, or one for each of {posterior.n_draws} draws. "
            f"Got {np.shape(best)}."
        )
    best = np.asarray(best, dtype="float64") if np.ndim(best) else float(best)
    level = None
    if len(pending):
        # Each draw takes its own values at pending points for known.
        draws = posterior(pending)
        values = np.asarray(draws if objective is None else objective(draws), dtype="float64")
        level = acquisition.pending_level(values)
    if domain is not None and domain.feasible is None:
        domain = None
    task = AcquisitionTask(
        posterior, acquisition, objective, bounds, best=best, q=q, pending=level, domain=domain
    )
    # From here on, batches are rows of the unit box, (k, q * d).
    u = _starts(np.random.default_rng(random_state), n_restarts, starts, task)
    found, values = _search(task, u, method, n_restarts, u[: len(starts)])
    # Points whose results are expected are not proposed again either.
    exclude = np.concatenate([exclude, pending])
    i = _best_allowed(found, values, bounds, exclude, min_distance, domain is not None)
    lower, upper = bounds.T
    x = lower + (upper - lower) * found[i].reshape(q, -1)
    return np.clip(x, lower, upper), float(values[i])  # rounding may step outside


def _search(task, u, method, n_restarts, given):
    """Search the unit box from candidates u (k, q * d), of which the first are `given`.

    Return points (n, q * d), candidates included, and their values (n,).
    """
    if method == "auto":
        method = "scipy" if task.posterior.key is None else "lbfgs"
    finder = _FINDERS[method]
    if task.domain is not None and finder is not _run_direct:
        finder = _climb_inside
    try:
        return finder(task, u, n_restarts, given)
    except NumpyOnlyError as error:
        warn_user(
            f"The objective does not take the backend's tensors ({error}), so there are no "
            "gradients and the acquisition is maximised by DIRECT, more slowly. Write it with "
            "operators and keras.ops.",
        )
        return _run_direct(task, u, n_restarts, given)


def _climb_together(task, u, n_restarts, given):
    """Climb from the best candidates, all at once."""
    compiled, values = _compile(task, u)
    units = _Units.of(values)
    survivors = {number: _n_survivors(number, n_restarts) for number in _SURVIVORS}
    # Climb only from the best of the screened candidates.
    starts = u[_rank(values)[:n_restarts]]
    if not len(starts):  # nothing is finite, which `_best_allowed` reports
        return u, values
    x, found = _climb(compiled, starts, units, _MAX_ROUNDS, _FTOL, survivors)
    top = _rank(found)[:_N_REFINED]
    # Gaps from the points of the best batches to the given starts, each the first of its batch:
    # (n * q, k, d).
    d = len(task.bounds)
    gaps = np.linalg.norm(x[top].reshape(-1, 1, d) - given[:, :d], axis=-1)
    if gaps.min(initial=math.inf) < _SMALL_STEP * math.sqrt(d):
        exact = CompiledAcquisition(task, "float64")
        try:
            best, best_values = _climb(exact, x[top], units, _MAX_EXACT_ROUNDS, _EXACT_FTOL)
        except NumpyOnlyError:  # the objective takes tensors of single precision only
            return np.concatenate([x, u]), np.concatenate([found, values])
        # The other values are in single precision: their rounding must not beat a refined one.
        least = best_values[np.isfinite(best_values)].min(initial=math.inf)
        found, values = np.minimum(found, least), np.minimum(values, least)
        x, found = np.concatenate([best, x]), np.concatenate([best_values, found])
    return np.concatenate([x, u]), np.concatenate([found, values])


def _n_survivors(number, n_restarts):
    """Count the restarts that continue from a round on."""
    least = min(_LEAST_SURVIVORS, math.ceil(_LEAST_SHARES[number] * n_restarts))
    return max(least, math.ceil(_SURVIVORS[number] * n_restarts))


def _climb(compiled, starts, units, max_rounds, ftol, survivors=None):
    """Climb from all starts at once; return points and values."""

    def cost(u):
        values, gradients = compiled.values_and_gradients(u)
        return units.to_cost(values), -gradients / units.spread

    # No smaller gain than the precision of the values resolves.
    ftol = max(ftol, np.finfo(compiled.dtype).eps * abs(units.best) / units.spread)
    result = minimize_batch(cost, starts, max_rounds=max_rounds, ftol=ftol, survivors=survivors)
    return result.x, units.to_value(result.value)


def _compile(task, u):
    """Compile the acquisition in single precision, or in double where that is too coarse.

    Return it with its values (n,) at candidates u (n, q * d).
    """
    compiled = CompiledAcquisition(task)
    values = compiled(u)
    # Compare a few points with double precision.
    rows = np.linspace(0, len(u) - 1, _N_COMPARED).astype(int)
    exact = acquisition_of(task)(u[rows])
    usable = np.isfinite(exact)
    largest = _INEXACT * max(_spread(values), np.ptp(exact[usable]) if usable.any() else 0.0)
    # Values beyond the range of single precision are inf or NaN, and not near the exact ones.
    if not np.all(np.abs(exact - values[rows])[usable] <= largest):
        compiled = CompiledAcquisition(task, "float64")
        values = compiled(u)
    return compiled, values


def _climb_one_by_one(task, u, n_restarts, given):
    """Climb from one candidate after the other with SciPy's L-BFGS-B."""
    has_gradients = task.posterior.key is not None
    if has_gradients:
        u = u[:n_restarts]
    function, values, units = _evaluate(task, u)
    starts = u[_rank(values)[: None if has_gradients else min(n_restarts, _N_CLIMBED)]]
    found, kept = [u], [values]
    with nullcontext() if has_gradients else one_thread_if_small(0):  # calls predict a few points
        for start in starts:
            result = optimize.minimize(
                _cost(function, units),
                start,
                jac=True,
                bounds=[(0.0, 1.0)] * len(start),
                method="L-BFGS-B",
            )
            found.append(np.clip(result.x, 0.0, 1.0)[None])
            is_finite = result.fun < _COST_OF_NON_FINITE
            kept.append([units.to_value(result.fun) if is_finite else -math.inf])
    return np.concatenate(found), np.concatenate(kept)


def _climb_inside(task, u, n_restarts, given):
    """Climb from some of the candidates by SLSQP, which keeps constraints of inputs.

    Only continuous columns move. Where SLSQP ends outside, as functions are not smooth, the point
    is the last feasible one on the way from its start.
    """
    function, values, units = _evaluate(task, u)
    ranks, free = _rank(values), np.tile(~task.domain.encoded_integer, task.q)
    if not (len(ranks) and free.any()):
        return u, values
    cost, feasible, found = _cost(function, units), task.domain.feasible, []
    # The best candidates are often near each other: take ever worse ones, too.
    chosen = np.unique(np.geomspace(1, min(len(ranks), n_restarts), _N_CLIMBED).astype(int)) - 1
    with one_thread_if_small(0):
        for start in u[ranks[chosen]]:  # copies
            X = _to_points(task, start)
            v, points, constraints = feasible.local_constraints(X)

            def cost_of_free(v, row=start):
                row[free] = v
                value, gradient = cost(row)
                return value, gradient[free]

            result = optimize.minimize(
                cost_of_free,
                v,
                jac=True,
                bounds=[(0.0, 1.0)] * len(v),
                constraints=constraints,
                method="SLSQP",
                options={"ftol": _FTOL, "maxiter": _MAX_EXACT_ROUNDS},
            )
            ends = np.where(np.isfinite(result.x), np.clip(result.x, 0.0, 1.0), v)
            found.append(_to_unit(task, feasible.pull(points(ends), X)))
    found = np.array(found)
    return np.concatenate([found, u]), np.concatenate([function(found), values])


def _evaluate(task, u):
    """Make the acquisition function of a task, and evaluate it at candidates u (k, q * d)."""
    if task.posterior.key is None:
        function = acquisition_of(task)
        values = function(u)
    else:
        function, values = _compile(task, u)
    return function, values, _Units.of(values)


def _cost(function, units):
    """Make the cost of one batch (q * d,) and its gradient, from an acquisition function."""

    def cost(u):
        if isinstance(function, CompiledAcquisition):
            value, gradient = function.value_and_gradient(u)
            value, gradient = units.to_cost(value), -gradient / units.spread
        else:
            steps = np.where(u > 0.5, -_DIFFERENCE, _DIFFERENCE)  # away from the nearer bound
            # The point and its neighbour in each direction, in one call.
            costs = units.to_cost(function(np.concatenate([u[None], u + np.diag(steps)])))
            value, gradient = costs[0], (costs[1:] - costs[0]) / steps
        if np.isfinite(value) and np.isfinite(gradient).all():
            return value, gradient
        return _COST_OF_NON_FINITE, np.zeros_like(u)  # SciPy fails on what is not finite

    return cost


def _to_points(task, u):
    """Make points (k * q, d) of the domain of batches u (k, q * D) in the unit box."""
    lower, upper = task.bounds.T
    return task.domain.decode(lower + (upper - lower) * np.reshape(u, (-1, len(lower))))


def _to_unit(task, X):
    """Make a batch (q * D,) in the unit box of points (q, d) of the domain."""
    lower, upper = task.bounds.T
    return ((task.domain.encode(X) - lower) / (upper - lower)).reshape(-1)


def _run_direct(task, u, n_restarts, given):
    """Run DIRECT with the settings of NOMU's code; return all points it has evaluated.

    It takes no starts: of u only the number of columns counts, and `n_restarts` and `given` are
    ignored.
    """
    function = acquisition_of(task)
    found = []  # all evaluated points, since the best may be an excluded one

    def negative(point):
        if task.domain is not None:
            point = _to_unit(task, task.domain.feasible.move_inside(_to_points(task, point)))
        value = function(point[None])[0]
        found.append((point.copy(), value))
        return -value if np.isfinite(value) else _COST_OF_NON_FINITE

    # Tolerances of 0: only the limits of evaluations and of iterations end the search.
    optimize.direct(
        negative,
        [(0.0, 1.0)] * u.shape[1],
        eps=1e-4,
        maxfun=5000,
        maxiter=100,
        locally_biased=False,
        vol_tol=0.0,
        len_tol=0.0,
    )
    points, values = map(np.array, zip(*found))
    if task.domain is not None:  # u are feasible, and DIRECT may have found few of these
        return np.concatenate([points, u]), np.concatenate([values, function(u)])
    return points, values


_FINDERS = {"lbfgs": _climb_together, "scipy": _climb_one_by_one, "direct": _run_direct}


def _starts(rng, n_restarts, starts, task):
    """Draw candidates (.., q * d) in the unit box; given starts come first."""
    n_candidates, q, d = _CANDIDATES_PER_RESTART * n_restarts, task.q, len(task.bounds)
    lower, upper = task.bounds.T
    if task.domain is not None:
        X = task.domain.encode(task.domain.sample((len(starts) + n_candidates) * q, rng))
        batches = ((X - lower) / (upper - lower)).reshape(-1, q * d)
        for batch, start in zip(batches, starts):
            start = task.domain.feasible.move_inside(task.domain.decode(start[None]))
            batch[:d] = (task.domain.encode(start)[0] - lower) / (upper - lower)
        return batches
    u = qmc.LatinHypercube(q * d, rng=rng).random(n_candidates)
    if not len(starts):
        return u
    batches = qmc.LatinHypercube(q * d, rng=rng).random(len(starts))
    # The first point of a batch; its others are drawn.
    batches[:, :d] = np.clip((starts - lower) / (upper - lower), 0.0, 1.0)
    return np.concatenate([batches, u])


def _rank(values):
    """Rank rows from the best to the worst, without those that are not finite."""
    order = np.argsort(-np.where(np.isfinite(values), values, -math.inf), kind="stable")
    return order[: np.isfinite(values).sum()]


class _Units(NamedTuple):
    """Level and spread of values, so that tolerances depend neither on level nor on unit of y.

    A *cost* is a value in these units, to be minimised: 0 is as good as the best candidate.
    """

    best: float
    spread: float

    @classmethod
    def of(cls, values) -> _Units:
        """Take level and spread from the values of the candidates."""
        finite = values[np.isfinite(values)]
        best = float(finite.max()) if finite.size else 0.0
        return cls(best, _spread(values) or 1.0)

    def to_cost(self, values):
        """Convert values to costs."""
        return (self.best - values) / self.spread

    def to_value(self, cost):
        """Convert costs to values."""
        return self.best - self.spread * cost


def _spread(values):
    """Compute how far the best of the finite values is above their median."""
    finite = values[np.isfinite(values)]
    return float(finite.max() - np.median(finite)) if finite.size else 0.0


def _best_allowed(u, values, bounds, exclude, min_distance, is_constrained):
    """Find the row of the best value that is not at an excluded point."""
    order = _rank(values)
    if not order.size:
        raise ValueError(
            f"The acquisition is NaN or infinite at all of {len(u)} points tried: look at the "
            "surrogate's predictions and at the objective."
        )
    if not len(exclude):
        return order[0]
    lower, upper = bounds.T
    taken = (exclude - lower) / (upper - lower)
    gaps = np.zeros(len(order))
    for k, i in enumerate(order):
        # (q, k, d): no point of the batch may be near any excluded one.
        offsets = u[i].reshape(-1, 1, len(bounds)) - taken
        gaps[k] = np.linalg.norm(offsets, axis=-1).min()
        if gaps[k] >= min_distance:
            return i
    if is_constrained:  # the feasible set may be small
        return order[gaps.argmax()]
    raise ValueError(
        f"All of {len(u)} points tried are nearer than min_distance={min_distance} to an excluded "
        "one. Lower min_distance or widen the bounds."
    )


def _check_numbers(posterior, q, method, n_restarts, n_pending, min_distance):
    """Raise an error for a number out of range, or a method that the posterior does not allow."""
    check_count("q", q)
    check_count("n_restarts", n_restarts)
    if method not in METHODS:
        raise ValueError(f"method must be one of {', '.join(METHODS)}. Got {method!r}.")
    if method == "lbfgs" and posterior.key is None:
        raise ValueError(
            'method="lbfgs" needs a posterior with gradients (its key is None). Use "scipy" or '
            '"direct".'
        )
    if q > 1 and not posterior.joint:
        raise ValueError(
            f"q must be 1 for a surrogate without joint draws. Got {q}. Ask for one point at a "
            "time, or use a surrogate whose draws are functions, e.g. NEON or an ensemble."
        )
    if n_pending and not posterior.joint:
        raise ValueError(
            "pending points need a surrogate whose draws are joint. Fit this one with its own "
            "predictions at them instead."
        )
    if not min_distance >= 0:
        raise ValueError(f"min_distance must not be negative. Got {min_distance}.")


def _check_points(name, points, bounds):
    """Check points, and return them as an array (k, d); None gives no points."""
    if points is None:
        return np.empty((0, len(bounds)))
    points = np.asarray(points, dtype="float64")
    if points.size == 0:
        return np.empty((0, len(bounds)))
    if points.ndim != 2 or points.shape[1] != len(bounds) or not np.isfinite(points).all():
        raise ValueError(
            f"{name} must be finite, of shape (k, {len(bounds)}). Got shape {points.shape}."
        )
    return points


def _read_acquisition(acquisition):
    """Make an acquisition from its short form, and check that it needs no search."""
    if isinstance(acquisition, str) and acquisition in ACQUISITIONS:
        acquisition = ACQUISITIONS[acquisition]()
    check_acquisition(acquisition)
    acquisition.validate()
    if isinstance(acquisition, UpperConfidenceBound) and (
        acquisition.mean_width is not None or acquisition.dynamic_c or callable(acquisition.beta)
    ):
        raise ValueError(
            "`mean_width`, `dynamic_c` and a function `beta` need the results of a search: give "
            f"them to BayesianOptimizer. Got {acquisition!r}."
        )
    return acquisition
