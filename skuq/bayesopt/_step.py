"""One step of a search: surrogates fitted to the results, and the points they propose.

Notation: points (k, d) lie in the domain. Values are those of the objective, with the sign that
makes more better; with constraints they are merits (see `_constraints`).
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from sklearn.base import clone

from skuq._seeds import generator, trial_seed
from skuq._warnings import warn_user
from skuq.bayesopt._acquisition import Acquisition
from skuq.bayesopt._constraints import (
    Constraints,
    MeritObjective,
    joined,
    merit_units,
    merits,
)
from skuq.bayesopt._domain import Domain
from skuq.bayesopt._maximize import maximize_acquisition
from skuq.bayesopt._milp import maximize_readout
from skuq.bayesopt._results import Results
from skuq.bayesopt._surrogate import posterior_of
from skuq.predictive import Posterior

# Distances in unit coordinates, times the root of their number. Below the first, points count as
# the same. Points of a batch, and pending ones, keep the second from each other: single precision
# and the tolerances of the maximiser tell no nearer ones apart. Below the third, a point is too
# near to a failed one.
_SAME, _APART, _FAILED = 1e-6, 1e-3, 0.05
_SMALL_DOMAIN = 4096  # points of a domain that is searched exhaustively
_N_CANDIDATES, _N_WIDTHS = 2000, 20_000  # the latter is the paper's
_ENTRIES, _ENTRIES_AT_ONCE = 2**26, 2**22  # numbers that are drawn: in total, and in one call
_N_STARTS = 3  # best known points among the starts, as in the NEON paper's code
_MOST_DOUBLINGS = 15
_MOST_MOVES = 50
_MILP_SECONDS = 60.0


@dataclass(frozen=True)
class SignedObjective:
    """An objective that is to be maximised: the user's, times -1 when minimising.

    Equal objectives compare equal, so that steps share compiled programs.
    """

    function: Callable | None
    sign: int = 1

    def __call__(self, outputs):
        values = outputs if self.function is None else self.function(outputs)
        return values if self.sign > 0 else -values


@dataclass(frozen=True, eq=False)
class Proposal:
    """Proposed points (q, d), their acquisition, and the beta that found them."""

    x: np.ndarray
    value: float
    beta: float
    n_doublings: int = 0


@dataclass(frozen=True, eq=False)
class Surrogates:
    """Fitted surrogates of the outputs and of the measured constraints, and their posteriors."""

    model: Any
    posterior: Posterior
    constraint_models: dict[str, Any]
    constraint_posteriors: dict[str, Posterior]
    seconds: float

    @property
    def posteriors(self) -> list[Posterior]:
        """All posteriors, that of the outputs first."""
        return [self.posterior, *self.constraint_posteriors.values()]


def distance_threshold(t: float) -> float:
    """Compute delta_t of NOMU's dynamic c (appendix B.3.2) at a share t of the steps.

    In unit coordinates it falls from 0.0625, a quarter of a side over 8 points, to 0.01.
    """
    return 0.0625 * (0.01 / 0.0625) ** min(t, 1.0)


def fit_surrogates(
    estimator: Any,
    constraints: Constraints,
    domain: Domain,
    results: Results,
    n_draws: int,
    entropy: int,
    previous: Surrogates | None = None,
) -> Surrogates:
    """Fit seeded clones to the results; `entropy` is their seed.

    Estimators with ``warm_start=True`` go on from a copy of their `previous` fit.
    """
    start = time.perf_counter()
    X = domain.encode(results.X)

    def fitted(estimator, y, before, seed):
        model = before
        if before is None or not estimator.get_params().get("warm_start", False):
            model = seeded(estimator, seed)
        else:  # what was fitted before stays as it is
            model = copy.deepcopy(before)
        return model.fit(X, y)

    before = None if previous is None else previous.model
    model = fitted(estimator, results.outputs, before, trial_seed(entropy, 0))
    posterior = posterior_of(model, n_draws, _seed_of(entropy, "posterior", 0))
    models, posteriors = {}, {}
    for j, (name, own) in enumerate(constraints.estimators.items(), start=1):
        column = results.constraints[:, constraints.names.index(name)]
        before = None if previous is None else previous.constraint_models[name]
        models[name] = fitted(own, column, before, trial_seed(entropy, j))
        posteriors[name] = posterior_of(models[name], n_draws, _seed_of(entropy, "posterior", j))
    return Surrogates(model, posterior, models, posteriors, time.perf_counter() - start)


class Step:
    """Fitted surrogates of results, and the proposals that follow.

    `pending` (p, d) are points whose results are expected: proposals keep away from them, and
    each draw has its own values there. `entropy` is the seed of all random numbers. With
    `is_noisy`, new points must exceed what the draws have at known ones, not the largest result.
    """

    def __init__(
        self,
        surrogates: Surrogates,
        domain: Domain,
        results: Results,
        pending: np.ndarray,
        acquisition: Acquisition,
        objective: SignedObjective,
        constraints: Constraints,
        *,
        maximizer: str,
        n_restarts: int,
        is_noisy: bool,
        entropy: int,
    ):
        self.surrogates, self.domain, self.results = surrogates, domain, results
        self.pending, self.acquisition, self.constraints = pending, acquisition, constraints
        self.maximizer, self.n_restarts = maximizer, n_restarts
        self.is_noisy, self._entropy = is_noisy, entropy
        self.model, self.seconds_fit = surrogates.model, surrogates.seconds
        self.posterior = surrogates.posterior
        self.objective: SignedObjective | MeritObjective = objective
        self._signed, self._values = objective, results.values
        if len(constraints):
            units = merit_units(results.values, results.constraints)
            self._values = merits(results.values, results.constraints, units)
            self.posterior = joined(surrogates.posteriors, units)
            self.objective = MeritObjective(
                objective, surrogates.posterior.output_shape, tuple(constraints.functions.values())
            )
        self._best = self._best_known()

    def _best_known(self):
        """Find the best value: that of the results, or of each draw at known points."""
        if not self.is_noisy:
            return float(self._values.max())
        draws = self._draw(self.results.X)
        # Draws that are not joint say nothing about the largest of several points.
        return draws.max(axis=1) if self.posterior.joint else float(draws.mean(axis=0).max())

    def expected_values(self, X, merits=True) -> np.ndarray:
        """Compute the mean of the draws' merits, or of their values, at points (n, d): (n,)."""
        if merits:
            return self._draw(X).mean(axis=0)
        draws = self.surrogates.posterior(self.domain.encode(X))
        return np.asarray(self._signed(draws), dtype="float64").mean(axis=0)

    def beta_of_width(self, mean_width: float) -> float:
        """Find beta such that bounds have this average width, 2 beta mean(std) (appendix B.3.2)."""
        X = self.domain.sample(self._affordable(_N_WIDTHS), self._rng("width"))
        unit = replace(self.acquisition, name="ucb", beta=1.0)
        values = self._draw(X)
        std = float(np.mean(unit(np, values, 0.0) - values.mean(axis=0)))
        if not (np.isfinite(std) and std > 0):
            raise ValueError(
                f"`mean_width` needs a surrogate that is unsure somewhere: its mean standard "
                f"deviation is {std}."
            )
        return mean_width / (2 * std)

    def propose(self, q: int, beta: float, threshold: float | None = None) -> Proposal:
        """Propose the q points that maximise the acquisition.

        While a proposal is nearer than `threshold`, NOMU's dynamic c, to a known or pending point
        in unit coordinates, beta is doubled for this proposal, up to 15 times.
        """
        known = np.vstack([self._known(), self.pending])
        for n_doublings in range(_MOST_DOUBLINGS + 1):
            raised = beta * 2**n_doublings
            x = self._maximize(q, raised)
            if threshold is None or self.domain.distance(x, known).min() > threshold:
                break
        x = self._repair(x, raised)
        return Proposal(x, float(self._value(x, raised)), raised, n_doublings)

    def propose_one_by_one(self, q: int, make_step, beta, threshold=None) -> Proposal:
        """Propose q points one after the other, for surrogates without joint draws, or for "milp".

        ``make_step(results, pending)`` fits a step to further results: before each point, those
        before it get the surrogate's mean predictions as results.
        """
        proposal = self.propose(1, beta, threshold)
        if q == 1:
            return proposal
        step = self.believing(proposal.x, make_step)
        rest = step.propose_one_by_one(q - 1, make_step, beta, threshold)
        self.seconds_fit += step.seconds_fit
        return replace(proposal, x=np.vstack([proposal.x, rest.x]))

    def believing(self, X, make_step) -> Step:
        """Make a step that takes the mean predictions at points (k, d) for their results."""
        encoded, own = self.domain.encode(X), self.surrogates.constraint_posteriors
        outputs = self.surrogates.posterior(encoded).mean(axis=0)
        measured = {name: posterior(encoded).mean(axis=0) for name, posterior in own.items()}
        values = np.asarray(self._signed(outputs), dtype="float64")
        constraints = self.constraints.of_outputs(outputs, measured)
        believed = self.results.with_results(X, outputs, values, constraints)
        pending = np.vstack([self.pending, X])
        return make_step(believed, np.unique(pending, axis=0))

    @property
    def takes_batches(self) -> bool:
        """Whether `propose` can find several points at once, and know pending ones."""
        return self.posterior.joint and self.maximizer != "milp"

    def _maximize(self, q, beta, beside=None) -> np.ndarray:
        """Maximise over q points, given pending ones and further points `beside` them."""
        if self.maximizer == "milp":
            return self._maximize_exactly(beta)
        given = self._fantasies(beside)
        if self._is_small:
            return self._choose_greedily(q, beta, given)
        best = np.argsort(-self._values, kind="stable")[:_N_STARTS]
        signed = self._signed
        plain = signed.function is None and signed.sign > 0 and not len(self.constraints)
        x, _ = maximize_acquisition(
            self.posterior,
            self.acquisition,
            None if plain else self.objective,
            self.domain.encoded_bounds,
            self._best,
            q=q,
            method=self.maximizer,
            n_restarts=self.n_restarts,
            starts=self.domain.encode(self.results.X[best]),
            pending=self.domain.encode(given),
            min_distance=self._apart / 2,  # of the box scaled to [0, 1]
            beta=beta,
            random_state=self._seed("maximize"),
        )
        x = self.domain.decode(x)
        for j in range(q if self.domain.is_discrete else 0):
            others = np.vstack([given, np.delete(x, j, axis=0)])
            x[j] = self._climb(x[j], self.results.X[best], beta, others)
        return x

    def _fantasies(self, beside=None):
        """Points whose values each draw takes for known; none without joint draws."""
        beside = self.pending[:0] if beside is None else beside
        return np.vstack([self.pending, beside]) if self.takes_batches else self.pending[:0]

    def _maximize_exactly(self, beta):
        """Maximise by a mixed integer programme."""
        if not hasattr(self.model, "readout_weights"):
            raise ValueError(
                f'maximizer="milp" needs an estimator with `readout_weights`, as NOMURegressor has '
                f"it. Got {type(self.model).__name__}."
            )
        readout = self.model.readout_weights()
        x, _, optimal = maximize_readout(
            readout if self._signed.sign > 0 else readout.negated(),
            self.domain.encoded_bounds,
            0.0 if self.acquisition.name == "mean" else beta,
            self.domain.encoded_integer,
            _MILP_SECONDS,
            one_hot=self.domain.groups,
            exclude=self.domain.encode(self._known()) if self.domain.is_binary else None,
        )
        if not optimal:
            warn_user(
                f"The mixed integer programme has not ended in {_MILP_SECONDS:g} s: the proposal "
                "is the best point found, perhaps not the best there is. Smaller networks help.",
            )
        return self.domain.decode(x[None])

    def _choose_greedily(self, q, beta, given):
        """Choose points of a small domain one after the other, each the best given the others."""
        points = self.domain.grid()
        chosen = np.empty((0, self.domain.n_columns))
        for _ in range(q):
            left = points[self._free(points, np.vstack([given, chosen]))]
            if not len(left):  # failures everywhere: `_repair` finds the farthest point
                return np.vstack([chosen, points[: q - len(chosen)]])
            values = self._values_with(np.vstack([given, chosen]), left, beta)
            chosen = np.vstack([chosen, left[np.argmax(values)]])
        return chosen

    def _climb(self, x, known, beta, given):
        """Move to better neighbours, as rounding has moved x (d,) away from the maximum.

        It climbs from x and from the best known points (k, d), whose neighbours may be better than
        what the maximum of the relaxed box is rounded to. Without a free point x is kept.
        """
        rng, best = self._rng("climb"), (-np.inf, x)
        for start in (x, *known):
            point, value = start, -np.inf
            if self._free(start[None], given)[0]:
                value = self._values_with(given, start[None], beta)[0]
            for _ in range(_MOST_MOVES):
                near = self.domain.neighbours(point, self.domain.n_columns, rng)
                near = near[self._free(near, given)]
                if not len(near):
                    break
                values = self._values_with(given, near, beta)
                if not np.max(values) > value:
                    break
                point, value = near[np.argmax(values)], np.max(values)
            if value > best[0]:
                best = value, point
        return best[1]

    def _repair(self, x, beta):
        """Replace each point that is known, has failed or is too near to another of the batch.

        A maximiser may find a point twice: where all draws agree about the best point, copies of
        it maximise the acquisition of a batch. The copy is replaced by the best point given the
        others. Points that are still not free are replaced by the best of a sample.
        """
        x = x.copy()
        for j in range(len(x)):
            others = np.delete(x, j, axis=0)
            if self._free(x[[j]], others)[0]:
                continue
            if len(others) and not self._is_small:
                x[j] = self._maximize(1, beta, others)[0]
                if self._free(x[[j]], others)[0]:
                    continue
            candidates = self._candidates(x[j])
            free = candidates[self._free(candidates, others)]
            if len(free):
                x[j] = free[np.argmax(self._values_with(self._fantasies(others), free, beta))]
            else:  # failures everywhere: take the point farthest from them
                taken = np.vstack([self._known(), self.pending, others])
                x[j] = candidates[np.argmax(self.domain.distance(candidates, taken))]
        return x

    def _candidates(self, x):
        """Sample points of the whole domain, and near x."""
        rng, n = self._rng("candidates"), self._affordable(_N_CANDIDATES)
        if self._is_small:
            return self.domain.grid()
        near = self.domain.neighbours(x, n // 2, rng)
        return np.concatenate([near, self.domain.sample(n - n // 2, rng)])

    def _free(self, X, others):
        """Which points may be proposed beside others: (n,)."""
        # A noisy function may be evaluated again where it is known.
        known = self.results.failed if self.is_noisy else self._known()
        free = self.domain.distance(X, known) > _SAME * self._root
        free &= self.domain.distance(X, np.vstack([self.pending, others])) > self._apart
        if math.isinf(self.domain.n_points):  # points near a failure are likely to fail too
            free &= self.domain.distance(X, self.results.failed) > _FAILED * self._root
        return free

    @property
    def _root(self):
        return math.sqrt(len(self.domain.encoded_bounds))

    @property
    def _apart(self):
        """Distance of points that have no results yet; neighbours on a grid are far enough."""
        return (_APART if math.isinf(self.domain.n_points) else _SAME) * self._root

    def _known(self):
        return np.vstack([self.results.X, self.results.failed])

    def _value(self, x, beta):
        """Compute the acquisition of one batch (q, d)."""
        values, pending = self._draw(x)[:, None], self._level(self._fantasies(), beta)
        return self.acquisition(np, values, self._best, beta, pending)[0]

    def _values_with(self, given, X, beta):
        """Compute the acquisition of each of X (n, d) beside given points, of known value: (n,)."""
        level = self._level(given, beta)
        worth = self.acquisition(np, self._draw(X), self._best, beta, level)
        return np.where(np.isfinite(worth), worth, -np.inf)

    def _level(self, given, beta):
        """Compute what given points (k, d) reach in each draw; None without points."""
        return self.acquisition.pending_level(self._draw(given), beta) if len(given) else None

    def _draw(self, X):
        """Draw the objective at points X (n, d): (n_draws, n)."""
        encoded, outputs = self.domain.encode(X), math.prod(self.posterior.output_shape)
        rows = max(1, _ENTRIES_AT_ONCE // (self.posterior.n_draws * outputs))
        parts = [
            self._objective_values(self.posterior(encoded[start : start + rows]))
            for start in range(0, len(encoded), rows)
        ]
        return np.concatenate(parts, axis=-1)

    def _objective_values(self, outputs):
        return np.asarray(self.objective(outputs), dtype="float64")

    @property
    def _is_small(self):
        """Whether the domain can be searched exhaustively."""
        return self.domain.n_points <= self._affordable(_SMALL_DOMAIN)

    def _affordable(self, n):
        """Limit a number of points to what the size of their draws allows."""
        outputs = self.posterior.n_draws * math.prod(self.posterior.output_shape)
        return max(16, min(n, _ENTRIES // outputs))

    def _rng(self, purpose):
        return generator(self._entropy, purpose)

    def _seed(self, purpose):
        return _seed_of(self._entropy, purpose)


def _seed_of(entropy, *purpose):
    return int(generator(entropy, *purpose).integers(1, 2**31 - 1))


def seeded(estimator, seed):
    """Clone an estimator and seed its `random_state` and those of all its parts."""
    model = clone(estimator)
    # A clone copies functions, but compiled programs are found by the same function object.
    own = estimator.get_params(deep=True)
    kept = {n: v for n, v in own.items() if callable(v) and not hasattr(v, "get_params")}
    model.set_params(**kept)
    names = sorted(model.get_params(deep=True))
    own = [name for name in names if name == "random_state" or name.endswith("__random_state")]
    seeds = np.random.default_rng(seed).integers(1, 2**31 - 1, size=len(own))
    return model.set_params(**{name: int(value) for name, value in zip(own, seeds)})
