"""Maximisation of acquisition functions over a box.

L-BFGS climbs from many starts at once: each round is one batched evaluation. Starts in a line
search and starts with a new direction share a round, and converged ones leave the batch, so no
start waits for the slowest. The batched L-BFGS of TFP waits, evaluates converged starts as well,
and has no bounds: with a sigmoid map of the box it took 6 to 10 s for 100 starts on a network,
after 40 to 60 s of compilation. This takes 1.5 s.

Notation of L-BFGS: B starts, n variables, m remembered pairs; f and g are values and gradients.
"""

import math
from contextlib import nullcontext
from typing import NamedTuple, Self

import numpy as np
from scipy import optimize
from scipy.stats import qmc

from skuq._formulas import TINIEST
from skuq._messages import warn_user
from skuq.backend._scopes import one_thread_if_small
from skuq.bayesopt import _acquisition


class _Effort:
    """Effort of a search: the number of points that it tries, and how far it climbs.

    On 36 rugged problems of six variables (500 restarts, wavelength a third of the box) restarts
    from a plain hypercube missed the best known maximum in 17% of the runs, those from the best of
    four times as many points in 3%; eight times as many gained nothing.
    """

    candidates_per_restart: int = 4
    # (round of L-BFGS, share of the restarts that continue, the same of few restarts). The first
    # shares find what converged restarts find, with a third of the evaluations; cuts at rounds 4,
    # 12 and 32 missed 6%. Few restarts are those of fields, whose acquisition is costly. For a
    # batch of ten images the second shares find what eight converged restarts find, with a third
    # of the evaluations; a quarter and an eighth lost 8%.
    survivors: tuple = ((6, 1 / 4, 1 / 2), (16, 1 / 16, 1 / 2), (36, 1 / 50, 1 / 4))
    least_survivors: int = 10  # restarts that continue in any case, unless there are few
    max_rounds: int = 150
    ftol: float = 1e-7  # smallest gain of a step, in units of the candidates' spread
    # A search that proposes points this near to a given start, as a share of the box times sqrt(d),
    # has converged to where single precision is coarse: the best maxima are refined in double.
    small_step: float = 0.01
    n_refined: int = 10
    exact_max_rounds: int = 60
    exact_ftol: float = 1e-13
    # Points where single precision is compared with double, and the tolerated error there as a
    # share of the values' spread.
    n_compared: int = 8
    tolerated_error: float = 0.01
    # Without gradients: points of the sample that are improved, and the step of differences as a
    # share of the box, which is about as exact as float64 allows.
    n_climbed: int = 10
    difference: float = 1e-6


class _LineSearch:
    """Constants of L-BFGS from many starts, usual ones of Nocedal and Wright (2006)."""

    n_pairs: int = 10  # as in SciPy's L-BFGS-B
    least_gradient: float = 1e-5  # largest entry of a projected gradient that counts as zero
    armijo: float = 1e-4  # share of the decrease predicted by the slope that a step must gain
    first_step: float = 0.1  # length of the first step, before the curvature is known
    shortest_cut: float = 0.1  # factors by which a step that gains too little is shortened
    longest_cut: float = 0.5
    max_halvings: int = 8  # of one line search; a step is then 1e-8 to 4e-3 of the first
    curvature: float = 1e-10  # smallest s.y / (|s| |y|) of a pair that is used
    # Share of the smallest relevant gain which the slope along a new direction must predict.
    predicted_share: float = 0.1


_COST_OF_NON_FINITE = 1e30  # SciPy fails on what is not finite


def maximize_acquisition(
    task: _acquisition.AcquisitionTask,
    *,
    method="auto",
    n_restarts=500,
    starts=(),
    pending=(),
    min_distance=1e-6,
    random_state=None,
):
    """Find the point, or the batch of points, where an acquisition function is largest.

    "lbfgs" and "scipy" compute in single precision. Where that does not tell points apart, as
    inputs or outputs are far from 0 for how much they vary, or cannot hold the values, they
    compute in double precision, at about twice the time. With "lbfgs", maxima near a given start
    climb on in double precision.

    Parameters
    ----------
    task : AcquisitionTask
        The acquisition to maximise and the box of encoded points; it has no pending points.
    method : {"auto", "lbfgs", "scipy", "direct"}, default="auto"
        "lbfgs" climbs from all starts at once in compiled programs, "scipy" from one after the
        other with L-BFGS-B. Without gradients (the posterior's key is None) "scipy" climbs from
        the best points of a large sample by forward differences. "direct" is SciPy's DIRECT, not
        locally biased, as in NOMU's code. "auto" is "lbfgs", or "scipy" without gradients.
    n_restarts : int, default=500
        Number of starts from a Latin hypercube. Without gradients the best of four times as many
        points are improved, at most ten.
    starts : array-like of shape (k, d)
        Further starts, with q > 1 the first points of k batches.
    pending : array-like of shape (k, d)
        Points under evaluation. Each draw takes its own values there for known; they are excluded.
    min_distance : float, default=1e-6
        Distance below which a point counts as excluded, in a box scaled to [0, 1]^d.
    random_state : int or None, default=None
        Seed of the starts.

    Returns
    -------
    x : ndarray of shape (q, d)
        Within `bounds`.
    value : float
        The acquisition's value there.

    Raises
    ------
    ValueError
        If the acquisition is NaN or infinite at all points tried, all of them are excluded, or
        "lbfgs" is given a posterior without gradients.

    Warns
    -----
    UserWarning
        If DIRECT is used, as the objective fails on tensors.
    """
    starts, pending = (np.reshape(points, (-1, len(task.bounds))) for points in (starts, pending))
    if len(pending):
        # Each draw takes its own values at pending points for known.
        draws = task.posterior(pending)
        values = draws if task.objective is None else task.objective(draws)
        level = task.acquisition.pending_level(np.asarray(values, dtype="float64"))
        task = task._replace(pending=level)
    # From here on, batches are rows of the unit box, (k, q * d).
    u = _starts(np.random.default_rng(random_state), n_restarts, starts, task)
    found, values = _search(task, u, method, n_restarts, u[: len(starts)])
    i = _best_allowed(found, values, task, pending, min_distance)
    lower, upper = task.bounds.T
    x = lower + (upper - lower) * found[i].reshape(task.q, -1)
    return np.clip(x, lower, upper), float(values[i])  # rounding may step outside


def _search(task, u, method, n_restarts, given):
    """Search the unit box from candidates u (k, q * d), of which the first are `given`.

    Return points (n, q * d), candidates included, and their values (n,).
    """
    if method == "auto":
        method = "scipy" if task.posterior.key is None else "lbfgs"
    if method == "lbfgs" and task.posterior.key is None:
        raise ValueError(
            'maximizer="lbfgs" needs a surrogate with gradients, such as an estimator of skuq. Use '
            '"auto", "scipy" or "direct".'
        )
    try:
        return _FINDERS[method](task, u, n_restarts, given)
    except _acquisition.NumpyOnlyError as error:
        warn_user(
            f"The objective does not take the backend's tensors ({error}), so there are no "
            "gradients and the acquisition is maximised by DIRECT, more slowly. Write it with "
            "operators and keras.ops."
        )
        return _run_direct(task, u, n_restarts, given)


def _climb_together(task, u, n_restarts, given):
    """Climb from the best candidates, all at once."""
    compiled, values = _compile(task, u)
    units = _Units.of(values)
    # So many restarts continue from a round on.
    survivors = {
        number: max(
            min(_Effort.least_survivors, math.ceil(share_of_few * n_restarts)),
            math.ceil(share * n_restarts),
        )
        for number, share, share_of_few in _Effort.survivors
    }
    # Climb only from the best of the screened candidates.
    starts = u[_rank(values)[:n_restarts]]
    if not len(starts):  # nothing is finite, which `_best_allowed` reports
        return u, values
    x, found = _climb(compiled, starts, units, _Effort.max_rounds, _Effort.ftol, survivors)
    top = _rank(found)[: _Effort.n_refined]
    # Gaps from the points of the best batches to the given starts, each the first of its batch:
    # (n * q, k, d).
    d = len(task.bounds)
    gaps = np.linalg.norm(x[top].reshape(-1, 1, d) - given[:, :d], axis=-1)
    if gaps.min(initial=math.inf) < _Effort.small_step * math.sqrt(d):
        exact = _acquisition.CompiledAcquisition(task, "float64")
        try:
            best, best_values = _climb(
                exact, x[top], units, _Effort.exact_max_rounds, _Effort.exact_ftol
            )
        except _acquisition.NumpyOnlyError:  # the objective takes tensors of single precision only
            return np.concatenate([x, u]), np.concatenate([found, values])
        # The other values are in single precision: their rounding must not beat a refined one.
        least = best_values[np.isfinite(best_values)].min(initial=math.inf)
        found, values = np.minimum(found, least), np.minimum(values, least)
        x, found = np.concatenate([best, x]), np.concatenate([best_values, found])
    return np.concatenate([x, u]), np.concatenate([found, values])


def _climb(compiled, starts, units, max_rounds, ftol, survivors=None):
    """Climb from all starts at once; return points and values."""

    def cost(u):
        values, gradients = compiled.values_and_gradients(u)
        return units.to_cost(values), -gradients / units.spread

    # No smaller gain than the precision of the values resolves.
    ftol = max(ftol, np.finfo(compiled.dtype).eps * abs(units.best) / units.spread)
    x, f = minimize_batch(cost, starts, max_rounds=max_rounds, ftol=ftol, survivors=survivors)
    return x, units.to_value(f)


def _compile(task, u):
    """Compile the acquisition in single precision, or in double where that is too coarse.

    Return it with its values (n,) at candidates u (n, q * d).
    """
    compiled = _acquisition.CompiledAcquisition(task)
    values = compiled(u)
    # Compare a few points with double precision.
    rows = np.linspace(0, len(u) - 1, _Effort.n_compared).astype(int)
    exact = _acquisition.acquisition_of(task)(u[rows])
    usable = np.isfinite(exact)
    largest = _Effort.tolerated_error * max(
        _spread(values), np.ptp(exact[usable]) if usable.any() else 0.0
    )
    # Values beyond the range of single precision are inf or NaN, and not near the exact ones.
    if not np.all(np.abs(exact - values[rows])[usable] <= largest):
        compiled = _acquisition.CompiledAcquisition(task, "float64")
        values = compiled(u)
    return compiled, values


def _climb_one_by_one(task, u, n_restarts, given):
    """Climb from one candidate after the other with SciPy's L-BFGS-B."""
    has_gradients = task.posterior.key is not None
    if has_gradients:
        u = u[:n_restarts]
        function, values = _compile(task, u)
    else:
        function = _acquisition.acquisition_of(task)
        values = function(u)
    units = _Units.of(values)
    starts = u[_rank(values)[: None if has_gradients else min(n_restarts, _Effort.n_climbed)]]
    found, kept, bounds = [u], [values], [(0.0, 1.0)] * u.shape[1]
    cost = _make_cost(function, units)
    with nullcontext() if has_gradients else one_thread_if_small(0):  # calls predict a few points
        for start in starts:
            result = optimize.minimize(cost, start, jac=True, bounds=bounds, method="L-BFGS-B")
            found.append(np.clip(result.x, 0.0, 1.0)[None])
            is_finite = result.fun < _COST_OF_NON_FINITE
            kept.append([units.to_value(result.fun) if is_finite else -math.inf])
    return np.concatenate(found), np.concatenate(kept)


def _make_cost(function, units):
    """Make the cost of one batch (q * d,) and its gradient, from an acquisition function."""

    def cost(u):
        if isinstance(function, _acquisition.CompiledAcquisition):
            values, gradients = function.values_and_gradients(u[None], rows=1)
            value, gradient = units.to_cost(values[0]), -gradients[0] / units.spread
        else:
            steps = np.where(u > 0.5, -_Effort.difference, _Effort.difference)
            # The point and its neighbour in each direction, in one call.
            costs = units.to_cost(function(np.concatenate([u[None], u + np.diag(steps)])))
            value, gradient = costs[0], (costs[1:] - costs[0]) / steps
        if np.isfinite(value) and np.isfinite(gradient).all():
            return value, gradient
        return _COST_OF_NON_FINITE, np.zeros_like(u)

    return cost


def _run_direct(task, u, n_restarts, given, *, eps=1e-4, maxfun=5000, maxiter=100):
    """Run DIRECT with the settings of NOMU's code; return all points it has evaluated.

    It takes no starts: of u only the number of columns counts, and `n_restarts` and `given` are
    ignored.
    """
    function = _acquisition.acquisition_of(task)
    found = []  # all evaluated points, since the best may be an excluded one

    def negative(point):
        value = function(point[None])[0]
        found.append((point.copy(), value))
        return -value if np.isfinite(value) else _COST_OF_NON_FINITE

    # Tolerances of 0: only the limits of evaluations and of iterations end the search.
    optimize.direct(
        negative,
        [(0.0, 1.0)] * u.shape[1],
        eps=eps,
        maxfun=maxfun,
        maxiter=maxiter,
        locally_biased=False,
        vol_tol=0.0,
        len_tol=0.0,
    )
    points, values = map(np.array, zip(*found))
    return points, values


_FINDERS = {"lbfgs": _climb_together, "scipy": _climb_one_by_one, "direct": _run_direct}


def _starts(rng, n_restarts, starts, task):
    """Draw candidates (.., q * d) in the unit box; given starts come first."""
    n_candidates, q, d = _Effort.candidates_per_restart * n_restarts, task.q, len(task.bounds)
    lower, upper = task.bounds.T
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
    def of(cls, values) -> Self:
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


def _best_allowed(u, values, task, exclude, min_distance):
    """Find the row of the best value that is not at an excluded point (k, d)."""
    order = _rank(values)
    if not order.size:
        raise ValueError(
            f"The acquisition is NaN or infinite at all of {len(u)} points tried: look at the "
            "surrogate's predictions and at the objective."
        )
    lower, upper = task.bounds.T
    taken = (exclude - lower) / (upper - lower)
    for i in order:
        # (q, k, d): no point of the batch may be near any excluded one.
        offsets = u[i].reshape(-1, 1, len(lower)) - taken
        if np.linalg.norm(offsets, axis=-1).min(initial=math.inf) >= min_distance:
            return i
    raise ValueError(
        f"All of {len(u)} points tried are nearer than min_distance={min_distance} to an excluded "
        "one. Lower min_distance or widen the bounds."
    )


def minimize_batch(
    function, x, *, max_rounds: int, survivors: dict[int, int] | None = None, ftol: float = 1e-9
) -> tuple[np.ndarray, np.ndarray]:
    """Find local minima over [0, 1]^n, from every row of `x` (B, n).

    Return the final points (B, n) and their values (B,).

    `function` maps x (b, n), for any b, to values (b,) and gradients (b, n). From a round in
    `survivors` on only so many starts continue, those with the lowest values; converged ones
    count among them. A start has converged if a step gains less than ``ftol * max(1, |f|)``, or
    if the largest entry of the projected gradient is below 1e-5. Ten pairs are kept, as in
    SciPy's L-BFGS-B. Values found are never above those of the starts; a start whose value is not
    finite stays where it is, with value inf.

    Notes
    -----
    The projected quasi-Newton method of Bertsekas (1982). Variables at a bound whose gradient
    points outwards are fixed. The others take the L-BFGS direction of the pairs restricted to
    them. Steps are clipped to the box and shortened until they satisfy Armijo's condition. Pairs
    without positive curvature are not used.
    """
    x = np.clip(np.asarray(x, dtype="float64"), 0.0, 1.0)
    f, g = function(x)
    state = _State(x, f, g, ftol)
    survivors = survivors or {}
    for number in range(1, max_rounds):
        if number in survivors:
            # Ranks by value among all starts, converged ones included.
            state.active &= np.argsort(np.argsort(state.f, kind="stable")) < survivors[number]
        rows = np.flatnonzero(state.active)
        if not rows.size:
            break
        # Starts are at different points of their line searches; one call evaluates them all.
        trial = state.trial(rows)
        f, g = function(trial)
        state.update(rows, trial, f, g, ftol)
    return state.x, state.f


class _State:
    """All starts: their points, remembered pairs and current line searches."""

    def __init__(self, x, f, g, ftol):
        size, n = x.shape
        self.x = x
        self.direction = np.zeros((size, n))
        self.length = np.ones(size)
        self.halvings = np.zeros(size, int)
        # Remembered pairs: s, differences of points, and y, differences of gradients.
        self.steps = np.zeros((size, _LineSearch.n_pairs, n))  # newest last
        self.changes = np.zeros((size, _LineSearch.n_pairs, n))
        finite = np.isfinite(f) & np.isfinite(g).all(axis=1)
        self.f, self.g = np.where(finite, f, np.inf), np.where(finite[:, None], g, 0.0)
        self.active = finite & (
            self._largest_projected_gradient(self.x, self.g) > _LineSearch.least_gradient
        )
        self._aim(np.flatnonzero(self.active), ftol)

    def trial(self, rows):
        """Get the points that the line searches evaluate next."""
        return np.clip(self.x[rows] + self.length[rows, None] * self.direction[rows], 0.0, 1.0)

    def update(self, rows, trial, f, g, ftol):
        """Accept the steps that gain enough, and shorten the others."""
        step = trial - self.x[rows]
        promised = np.sum(self.g[rows] * step, axis=1)
        finite = np.isfinite(f) & np.isfinite(g).all(axis=1)
        # Armijo's condition: f(x + p) <= f(x) + c g.p
        good = finite & (promised < 0) & (f <= self.f[rows] + _LineSearch.armijo * promised)
        missed, fall, change = rows[~good], promised[~good], f[~good] - self.f[rows[~good]]
        # Shorten these steps by a factor within [0.1, 0.5]: the parabola through f, its slope p
        # and the new value f' has its minimum at the share -p / (2 (f' - f - p)) of the step.
        with np.errstate(all="ignore"):
            ratio = -0.5 * fall / (change - fall)
        shortest, longest = _LineSearch.shortest_cut, _LineSearch.longest_cut
        ratio = np.where(np.isfinite(ratio), ratio, shortest)
        self.length[missed] *= np.clip(ratio, shortest, longest)
        self.halvings[missed] += 1
        spent = missed[self.halvings[missed] >= _LineSearch.max_halvings]
        # A start that gains nothing along its direction forgets its pairs and tries the gradient;
        # without pairs it has just tried that, and stops.
        forgetful = self.steps[spent].any(axis=(1, 2))
        self.active[spent[~forgetful]] = False
        self.steps[spent] = self.changes[spent] = 0.0
        self._aim(spent[forgetful], ftol)
        # Move the other rows to their new points, and stop those that have converged.
        rows, x, f, g = rows[good], trial[good], f[good], g[good]
        for memory, new in ((self.steps, x - self.x[rows]), (self.changes, g - self.g[rows])):
            # The newest pair replaces the oldest.
            memory[rows, :-1] = memory[rows, 1:]
            memory[rows, -1] = new
        gained = self.f[rows] - f
        self.x[rows], self.f[rows], self.g[rows] = x, f, g
        small = gained <= ftol * np.maximum(1.0, np.abs(f))
        going = ~small & (self._largest_projected_gradient(x, g) > _LineSearch.least_gradient)
        self.active[rows] = going
        self._aim(rows[going], ftol)

    def _aim(self, rows, ftol):
        """Choose new directions; a start whose slope predicts no relevant gain has converged."""
        if not rows.size:
            return
        x, g = self.x[rows], self.g[rows]
        # Variables at a bound whose gradient points outwards stay there: the others are free.
        free = ~(((x <= 0.0) & (g > 0.0)) | ((x >= 1.0) & (g < 0.0)))  # (b, n)
        g = np.where(free, g, 0.0)
        direction = -_inverse_hessian_times(
            g, self.steps[rows] * free[:, None], self.changes[rows] * free[:, None]
        )
        largest = np.abs(g).max(axis=1, keepdims=True)
        downhill = -g * (_LineSearch.first_step / np.maximum(largest, TINIEST))
        self.length[rows] = 1.0
        self.halvings[rows] = 0
        self.direction[rows] = direction
        # A step that is clipped to the box may lead uphill; NaN counts as uphill.
        self.direction[rows] = np.where(
            self._predict_change(rows)[:, None] < 0, direction, downhill
        )
        least = _LineSearch.predicted_share * ftol * np.maximum(1.0, np.abs(self.f[rows]))
        self.active[rows] = -self._predict_change(rows) > least

    def _predict_change(self, rows):
        """Predict the change of f (b,) by its slope along the step that is tried next."""
        return np.sum(self.g[rows] * (self.trial(rows) - self.x[rows]), axis=1)

    @staticmethod
    def _largest_projected_gradient(x, g):
        """Compute the largest entry (b,) of the projected gradient ``P(x - g) - x``."""
        return np.abs(np.clip(x - g, 0.0, 1.0) - x).max(axis=1)


def _inverse_hessian_times(g, steps, changes):
    """Run the two loops of L-BFGS for every row (Nocedal and Wright 2006, Algorithm 7.4).

    Pairs without positive curvature get weight 0. A row without pairs gets the length of a first
    step.
    """
    curvature = np.einsum("bmn,bmn->bm", steps, changes)  # s.y of each pair
    squares = np.einsum("bmn,bmn->bm", changes, changes)  # y.y
    lengths = np.einsum("bmn,bmn->bm", steps, steps)  # s.s
    valid = curvature > _LineSearch.curvature * np.sqrt(squares * lengths)
    # rho = 1 / s.y; a pair that is not used gets 0, so that both loops pass it by.
    rho = np.divide(1.0, curvature, out=np.zeros_like(curvature), where=valid)
    n_pairs = rho.shape[1]
    q, alpha = g.copy(), np.zeros_like(rho)
    for i in reversed(range(n_pairs)):  # from the newest pair to the oldest
        alpha[:, i] = rho[:, i] * np.einsum("bn,bn->b", steps[:, i], q)
        q -= alpha[:, i, None] * changes[:, i]
    # The initial inverse Hessian is s.y / y.y of the newest valid pair; without one, it gives a
    # first step its length.
    scale = _LineSearch.first_step / np.maximum(np.abs(g).max(axis=1), TINIEST)
    for i in range(n_pairs):  # newer pairs overwrite older ones
        newest = valid[:, i]
        scale[newest] = curvature[newest, i] / squares[newest, i]
    q *= scale[:, None]
    for i in range(n_pairs):
        beta = rho[:, i] * np.einsum("bn,bn->b", changes[:, i], q)
        q += (alpha[:, i] - beta)[:, None] * steps[:, i]
    return q
