"""One step of a search: a surrogate fitted to the results, and the points it proposes.

Notation: points (k, d) lie in the domain. Values are those of the objective, negated when
minimising, so that larger is better. The incumbent is the value that new points have to exceed.

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

import math
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, replace

import numpy as np
from scipy.spatial.distance import cdist

from skuq._messages import warn_user
from skuq._random import generator
from skuq.bayesopt._acquisition import AcquisitionTask
from skuq.bayesopt._maximize import maximize_acquisition
from skuq.bayesopt._results import SMALL_DOMAIN, Domain, Results
from skuq.bayesopt._surrogate import Fits, SearchSettings, Surrogate, derived_seed


class _Limits:
    """Distances and numbers of points of a step.

    Distances are in unit coordinates of D columns, in units of sqrt(D).
    """

    same_point: float = 1e-6  # points that are nearer count as one
    # Least distance between points of a batch and pending ones: the maximiser is no more exact.
    min_gap: float = 1e-3
    failure_gap: float = 0.05  # from proposals to failed points
    # Up to this distance from a failed point, proposals are nearer to a usable result. It is less
    # than the distance of two categories, so that a failure does not end all search in its
    # category.
    failure_reach: float = 0.25
    large_batch: int = 20  # points; for more there is a warning
    n_candidates: int = 2000  # random points, of which the best replaces one that is not available
    n_widths: int = 20_000  # points over which NOMU's code averages the width of the bounds
    # Limits of drawn numbers, in total (512 MB) and in one call, and least number of points.
    entries: int = 2**26
    entries_at_once: int = 2**22
    least_points: int = 16
    n_starts: int = 3  # best known points among the starts, as in the NEON paper's code
    max_doublings: int = 15  # of beta, for NOMU's dynamic c
    # NOMU's dynamic c (Eq. 56): the nearest a proposal may be to a known point without doubling
    # beta, at the first step (a quarter of a side, of length 2, over 8 points) and at the last one.
    first_threshold: float = 1 / 16
    fall_of_threshold: float = 0.16  # to 0.01 at the last step
    max_moves: int = 50  # of one climb over a grid
    # Moves off faces: distance of near points in unit coordinates, in units of sqrt(D); number of
    # near results at which a search counts as converging; length of a move as a share of the side;
    # and the share within which a proposal is on a face. DIRECT stops this near to it in up to
    # about six dimensions.
    near: float = 0.1
    n_near: int = 3
    move: float = 0.02
    on_face: float = 1e-3


@dataclass(frozen=True)
class SignedObjective:
    """An objective that is to be maximised: the user's, times -1 when minimising.

    Objectives of one sign and search compare equal, so that the steps of a search share compiled
    programs as long as it keeps its functions. Other searches with the function compile their own:
    a program keeps what the function read when it was compiled, such as global variables and
    attributes.
    """

    function: Callable | None = field(compare=False)  # it may have no hash
    sign: int = 1
    search: Hashable = None

    def __call__(self, outputs):
        values = outputs if self.function is None else self.function(outputs)
        return values if self.sign > 0 else -values


@dataclass(frozen=True, eq=False)
class Proposal:
    """Proposed points (q, d) and how they were found.

    `value` is their acquisition, of the first point if they were found one by one; `beta` is the
    weight of the deviation after `n_doublings`, None for acquisitions without it; `seconds_fit`
    went into fits to predictions.
    """

    x: np.ndarray
    value: float
    beta: float | None
    n_doublings: int = 0
    seconds_fit: float = 0.0


class Step:
    """Propose points by a surrogate that is fitted to `results`.

    `pending` (p, d) are points whose results are expected: proposals keep away from them, and
    each joint draw takes its own values there for known.
    """

    def __init__(
        self, surrogate: Surrogate, settings: SearchSettings, results: Results, pending: np.ndarray
    ):
        self.surrogate, self.results, self.pending = surrogate, results, pending
        self._settings, self.domain = settings, settings.domain
        self.acquisition, self.maximizer = settings.acquisition, settings.maximizer
        # Random numbers depend on the number of results, whatever was proposed before.
        self._entropy = derived_seed(settings.entropy, "step", results.n_told, 0)
        self.posterior = surrogate.posterior
        self._known = np.vstack([results.X, results.failed])  # all evaluated points (k, d)
        self.objective = SignedObjective(settings.objective, settings.sign, settings.search)
        # Distances grow with the square root of the number of encoded columns.
        self._root = math.sqrt(len(self.domain.encoded_bounds))
        # Smallest distance of points without results; on a grid neighbours are far enough.
        is_infinite = math.isinf(self.domain.n_points)
        self._min_gap = (_Limits.min_gap if is_infinite else _Limits.same_point) * self._root
        # Whether the domain can be searched exhaustively.
        self._is_small = self.domain.n_points <= self._limit_n_points(SMALL_DOMAIN)
        # The best value of the results; with noise that of each draw, (n_draws,).
        self._incumbent = float(results.values.max())
        if settings.noisy:
            draws = self._draw(results.X)
            # Draws that are not joint say nothing about the largest of several points.
            self._incumbent = draws.max(1) if self.posterior.joint else float(draws.mean(0).max())

    def best_known(self) -> tuple[np.ndarray, float]:
        """Find the known point (d,) of the best mean of the draws, and it in the user's sign."""
        x = self.results.X[np.argmax(self._draw(self.results.X).mean(axis=0))]
        return x.copy(), self._settings.sign * float(self._draw(x[None]).mean())

    def beta_of_width(self, mean_width: float) -> float:
        """Find beta such that ``2 * beta * mean(std) = mean_width`` (NOMU, appendix B.3.2)."""
        rng = generator(self._entropy, "width")
        X = self.domain.sample(self._limit_n_points(_Limits.n_widths), rng)
        unit, values = self.acquisition.at(1.0), self._draw(X)
        # With beta 1 the bound exceeds the mean by the deviation, by whichever measure.
        std = float(np.mean(unit(np, values, 0.0) - values.mean(axis=0)))
        if not (np.isfinite(std) and std > 0):
            raise ValueError(
                f"`mean_width` needs a surrogate that is unsure somewhere: its mean standard "
                f"deviation is {std}."
            )
        return mean_width / (2 * std)

    def propose(self, q: int, beta: float | None, fits: Fits, n_before: int) -> Proposal:
        """Propose q points that maximise the acquisition, with this `beta` or that of the settings.

        With joint draws all points are found at once. Otherwise they are found one after the
        other, and `fits` fits the surrogate to its predictions; `n_before` preceded all models.

        Raises
        ------
        ValueError
            If q points cannot be proposed at once.
        """
        if self.posterior.joint and q > self.posterior.n_draws:
            raise ValueError(
                f"`q` must not be larger than the number of draws, {self.posterior.n_draws}: each "
                "draw counts for the point that is best in it, so that some points would count "
                f"for none. Got {q}."
            )
        if q > _Limits.large_batch:
            warn_user(
                f"q={q} points at once are hard to optimise jointly: above {_Limits.large_batch} "
                "consider several batches."
            )
        settings, threshold = self._settings, None
        if beta is None:
            beta = self.acquisition.beta_at(len(self.results.X))
        if getattr(self.acquisition, "dynamic_c", False):
            share = min((self.results.n_told - n_before) / settings.n_steps, 1.0)
            threshold = _Limits.first_threshold * _Limits.fall_of_threshold**share
        if self.posterior.joint:
            return self._propose_at_once(q, beta, threshold)
        # Without joint draws, pending points count as results, with their predicted values.
        step = self._with_predictions(self.pending, fits) if len(self.pending) else self
        proposals: list[Proposal] = []
        while len(proposals) < q:
            if proposals:
                step = step._with_predictions(proposals[-1].x, fits)
            seconds = 0.0 if step is self else step.surrogate.seconds
            proposal = step._propose_at_once(1, beta, threshold)
            proposals.append(replace(proposal, seconds_fit=seconds))
        return replace(
            proposals[0],
            x=np.vstack([proposal.x for proposal in proposals]),
            seconds_fit=sum(proposal.seconds_fit for proposal in proposals),
        )

    def _propose_at_once(self, q, beta, threshold) -> Proposal:
        """Propose q points at once; double beta while they are nearer than a threshold."""
        known = np.vstack([self._known, self.pending])
        # NOMU's dynamic c (appendix B.3.2): explore more as long as the proposal is nearly known.
        for n_doublings in range(_Limits.max_doublings + 1):
            raised = None if beta is None else beta * 2**n_doublings
            acquisition = self.acquisition.at(raised)
            x = self._maximize(q, acquisition)
            if threshold is None or self.domain.distance(x, known).min() > threshold:
                break
        # Move a point off a face of the box, if all points near it lie on that face too. A search
        # that proposes one point at a time does so at every other proposal only: the points between
        # go on along the face, where the maximum may be. Predictions at pending points count.
        if len(x) > 1 or (self.results.n_told + len(self._fantasies())) % 2 == 0:
            others = np.vstack([self.results.failed, self.pending])
            rows, moved = moves_off_faces(self.domain, x, self.results.X, others)
            if len(rows):
                best = np.argmax(self._values_with(self._fantasies(), moved, acquisition))
                x = x.copy()
                x[rows[best]] = moved[best]
        x = self._repair(x, acquisition)
        values = self._draw(x)[:, None]  # (n_draws, 1, q)
        level = self._level(self._fantasies(), acquisition)
        value = float(acquisition(np, values, self._incumbent, level)[0])
        return Proposal(x, value, raised, n_doublings)

    def _with_predictions(self, X, fits: Fits) -> "Step":
        """Make the step that takes the mean predictions at points (k, d) for their results.

        Its surrogate is fitted to the results and these predictions ("kriging believer"), and
        the points are pending.
        """
        outputs = self.posterior(self.domain.encode(X)).mean(axis=0)
        values = np.asarray(self.objective(outputs), dtype="float64")
        known = self.results
        results = replace(
            known,
            X=np.vstack([known.X, X]),
            outputs=np.concatenate([known.outputs, outputs]),
            values=np.append(known.values, values),
        )
        # The last fit stays that to the results of evaluations only.
        surrogate = fits.surrogate(self._settings, results, keep=False)
        pending = np.unique(np.vstack([self.pending, X]), axis=0)  # X may be pending already
        return Step(surrogate, self._settings, results, pending)

    def _maximize(self, q, acquisition, others=None) -> np.ndarray:
        """Find q points (q, d) of the largest acquisition, given pending points and `others`."""
        given = self._fantasies(others)
        if self._is_small:  # points one after the other, each the best given those before
            points = self.domain.grid()
            chosen = np.empty((0, self.domain.n_columns))
            for _ in range(q):
                left = points[self._is_available(points, np.vstack([given, chosen]))]
                if not len(left):  # only a noisy function is asked for more than the domain has
                    left = points
                values = self._values_with(np.vstack([given, chosen]), left, acquisition)
                chosen = np.vstack([chosen, left[np.argmax(values)]])
            return chosen
        # The acquisition is often high near the best known points: searches start there, too.
        best = np.argsort(-self.results.values, kind="stable")[: _Limits.n_starts]
        # Without an objective the draws are the values: searches share one compiled program.
        objective = None if self.objective == SignedObjective(None) else self.objective
        bounds, value = self.domain.encoded_bounds, self._incumbent
        task = AcquisitionTask(self.posterior, acquisition, objective, bounds, value, q)
        x, _ = maximize_acquisition(
            task,
            method=self.maximizer.method,
            n_restarts=self.maximizer.n_restarts,
            starts=self.domain.encode(self.results.X[best]),
            pending=self.domain.encode(given),
            min_distance=self._min_gap / 2,  # in the box [0, 1]^D, not [-1, 1]^D
            random_state=derived_seed(self._entropy, "maximize"),
        )
        x = self.domain.decode(x)
        for j in range(0 if self.domain.is_continuous.all() else q):
            others = np.vstack([given, np.delete(x, j, axis=0)])
            x[j] = self._climb(x[j], self.results.X[best], acquisition, others)
        return x

    def _fantasies(self, others=None):
        """List points whose values each draw takes for known; none without joint draws."""
        if not self.posterior.joint:
            return self.pending[:0]
        return self.pending if others is None else np.vstack([self.pending, others])

    def _climb(self, x, known, acquisition, given):
        """Move x (d,) to better neighbours, as rounding has moved it away from the maximum.

        It climbs from x and from the best known points (k, d), whose neighbours may be better than
        the rounded maximum. Without an available point x is kept.
        """
        rng, best = generator(self._entropy, "climb"), (-np.inf, x)
        for start in (x, *known):
            # A start that is not available may still have neighbours that are.
            point, value = start, -np.inf
            if self._is_available(start[None], given)[0]:
                value = self._values_with(given, start[None], acquisition)[0]
            for _ in range(_Limits.max_moves):
                # Steepest ascent over the neighbours, as long as a neighbour is better.
                near = self.domain.neighbours(point, self.domain.n_columns, rng)
                near = near[self._is_available(near, given)]
                if not len(near):
                    break
                values = self._values_with(given, near, acquisition)
                if not np.max(values) > value:
                    break
                point, value = near[np.argmax(values)], np.max(values)
            if value > best[0]:
                best = value, point
        return best[1]

    def _repair(self, x, acquisition):
        """Replace points of a batch (q, d) that are not available; see `_is_available`.

        A maximiser may find a point twice: where all draws agree about the best point, copies of
        it maximise the acquisition of a batch. A copy is replaced by the best point given the
        others. If that is not available either, the best of a sample replaces it.
        """
        x = x.copy()
        for j in range(len(x)):
            others = np.delete(x, j, axis=0)
            if self._is_available(x[[j]], others)[0]:
                continue
            # The best point given the others may in turn be a known one.
            if len(others) and not self._is_small:
                x[j] = self._maximize(1, acquisition, others)[0]
                if self._is_available(x[[j]], others)[0]:
                    continue
            # Points near x and points of the whole domain, or all points of a small one.
            rng = generator(self._entropy, "candidates")
            n = self._limit_n_points(_Limits.n_candidates)
            candidates = (
                self.domain.grid()
                if self._is_small
                else np.concatenate(
                    [self.domain.neighbours(x[j], n // 2, rng), self.domain.sample(n - n // 2, rng)]
                )
            )
            free = candidates[self._is_available(candidates, others)]
            if len(free):
                values = self._values_with(self._fantasies(others), free, acquisition)
                x[j] = free[np.argmax(values)]
            elif math.isinf(self.domain.n_points):  # failures everywhere: stay away from them
                taken = np.vstack([self._known, self.pending, others])
                x[j] = candidates[np.argmax(self.domain.distance(candidates, taken))]
        return x

    def _is_available(self, X, others):
        """Tell which points (n, d) may be proposed given others (k, d): (n,)."""
        # A noisy function may be evaluated again where it is known.
        known = self.results.failed if self._settings.noisy else self._known
        free = self.domain.distance(X, known) > _Limits.same_point * self._root
        free &= self.domain.distance(X, np.vstack([self.pending, others])) > self._min_gap
        if math.isinf(self.domain.n_points) and len(self.results.failed):
            # A point near a failure is likely to fail, too, unless a usable result is nearer.
            from_failures = self.domain.distance(X, self.results.failed)
            free &= from_failures > _Limits.failure_gap * self._root
            is_far = from_failures > _Limits.failure_reach * self._root
            free &= is_far | (from_failures > self.domain.distance(X, self.results.X))
        return free

    def _values_with(self, given, X, acquisition):
        """Compute the acquisition of each point of X (n, d) with given points (k, d): (n,)."""
        worth = acquisition(np, self._draw(X), self._incumbent, self._level(given, acquisition))
        return np.where(np.isfinite(worth), worth, -np.inf)

    def _level(self, given, acquisition):
        """Compute the level (n_draws,) that given points (k, d) reach; None without points."""
        return acquisition.pending_level(self._draw(given)) if len(given) else None

    def _draw(self, X):
        """Draw the objective at points X (n, d): (n_draws, n)."""
        encoded, outputs = self.domain.encode(X), math.prod(self.posterior.output_shape)
        rows = max(1, _Limits.entries_at_once // (self.posterior.n_draws * outputs))
        parts = [
            np.asarray(self.objective(self.posterior(encoded[k : k + rows])), dtype="float64")
            for k in range(0, len(encoded), rows)
        ]
        return np.concatenate(parts, axis=-1)

    def _limit_n_points(self, n):
        """Limit a number of points to what the size of their draws allows."""
        outputs = self.posterior.n_draws * math.prod(self.posterior.output_shape)
        return max(_Limits.least_points, min(n, _Limits.entries // outputs))


def moves_off_faces(
    domain: Domain, batch: np.ndarray, results: np.ndarray, others: np.ndarray
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

    Returns
    -------
    rows : ndarray of int of shape (m,)
        Number of the proposal that each move is for.
    moved : ndarray of shape (m, d)
        The proposal moved inwards along one continuous column.
    """
    rows, moved = [], []
    reach = _Limits.near * math.sqrt(len(domain.encoded_bounds))
    points = np.vstack([results, others, batch])
    is_near = cdist(domain.unit(batch), domain.unit(points)) <= reach
    for row, x in enumerate(batch):
        if is_near[row, : len(results)].sum() < _Limits.n_near:
            continue
        for column in np.flatnonzero(domain.is_continuous):
            low, high = domain.bounds[column]
            face, inwards = (low, high - low) if 2 * x[column] < low + high else (high, low - high)
            shares = (points[is_near[row], column] - face) / inwards
            if (x[column] - face) / inwards > _Limits.on_face or shares.max() > _Limits.move / 2:
                continue
            inside = x.copy()
            inside[column] = face + _Limits.move * inwards
            rows.append(row)
            moved.append(inside)
    return np.array(rows, dtype=int), np.array(moved).reshape(-1, domain.n_columns)
