"""One step of a search: fit a surrogate to the results and propose points.

Notation: points (k, d) lie in the domain. Values are those of the objective, with the sign that
makes more better.
"""

from __future__ import annotations

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
from skuq.bayesopt._domain import Domain
from skuq.bayesopt._maximize import maximize_acquisition
from skuq.bayesopt._milp import maximize_readout
from skuq.bayesopt._results import Results
from skuq.bayesopt._surrogate import posterior_of

# Distances in unit coordinates, times the root of their number: below the first, points count as
# the same; below the second, a point is too near to a failed one.
_SAME, _FAILED = 1e-6, 0.05
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


def distance_threshold(t: float) -> float:
    """Compute delta_t of NOMU's dynamic c (appendix B.3.2) at a share t of the steps.

    In unit coordinates it falls from 0.0625, a quarter of a side over 8 points, to 0.01.
    """
    return 0.0625 * (0.01 / 0.0625) ** min(t, 1.0)


class Step:
    """A surrogate fitted to results, and its proposals.

    A seeded clone of `estimator` is fitted. `entropy` is the seed: together with the number of
    results it determines all random numbers.
    """

    def __init__(
        self,
        estimator: Any,
        domain: Domain,
        results: Results,
        acquisition: Acquisition,
        objective: SignedObjective,
        *,
        maximizer: str,
        n_restarts: int,
        n_draws: int,
        entropy: int,
    ):
        self.domain, self.results, self.acquisition = domain, results, acquisition
        self.objective, self.maximizer = objective, maximizer
        self.n_restarts, self.n_draws, self._entropy = n_restarts, n_draws, entropy
        self._number = len(results.X) + len(results.failed)
        start = time.perf_counter()
        self.model = seeded(estimator, trial_seed(entropy, self._number))
        self.model.fit(domain.encode(results.X), results.outputs)
        self.posterior = posterior_of(self.model, n_draws, self._seed("posterior"))
        self.seconds_fit = time.perf_counter() - start
        self._best = float(results.values.max())

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

        While a proposal is nearer than `threshold`, NOMU's dynamic c, to a known point in unit
        coordinates, beta is doubled for this proposal, up to 15 times.
        """
        known = self._known()
        for n_doublings in range(_MOST_DOUBLINGS + 1):
            raised = beta * 2**n_doublings
            x = self._maximize(q, raised)
            if threshold is None or self.domain.distance(x, known).min() > threshold:
                break
        x = self._repair(x, raised)
        return Proposal(x, float(self._value(x, raised)), raised, n_doublings)

    def propose_one_by_one(self, q: int, make_step, beta, threshold=None) -> Proposal:
        """Propose q points one after the other, for surrogates without joint draws, or for "milp".

        ``make_step(results)`` fits a step to further results: before each point, those before it
        get the surrogate's mean predictions as results.
        """
        proposal = self.propose(1, beta, threshold)
        if q == 1:
            return proposal
        output = self.posterior(self.domain.encode(proposal.x)).mean(axis=0)[0]
        value = float(self._objective_values(output[None])[0])
        step = make_step(self.results.with_result(proposal.x, output, value))
        rest = step.propose_one_by_one(q - 1, make_step, beta, threshold)
        self.seconds_fit += step.seconds_fit
        return replace(proposal, x=np.vstack([proposal.x, rest.x]))

    @property
    def takes_batches(self) -> bool:
        """Whether `propose` can find several points at once."""
        return self.posterior.joint and self.maximizer != "milp"

    def _maximize(self, q, beta) -> np.ndarray:
        if self.maximizer == "milp":
            return self._maximize_exactly(beta)
        if self._is_small:
            return self._choose_greedily(q, beta)
        best = np.argsort(-self.results.values, kind="stable")[:_N_STARTS]
        plain = self.objective.function is None and self.objective.sign > 0
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
            beta=beta,
            random_state=self._seed("maximize"),
        )
        x = self.domain.decode(x)
        return self._climb(x, beta) if q == 1 and self.domain.is_discrete else x

    def _maximize_exactly(self, beta):
        """Maximise by a mixed integer programme."""
        if not hasattr(self.model, "readout_weights"):
            raise ValueError(
                f'maximizer="milp" needs an estimator with `readout_weights`, as NOMURegressor has '
                f"it. Got {type(self.model).__name__}."
            )
        readout = self.model.readout_weights()
        x, _, optimal = maximize_readout(
            readout if self.objective.sign > 0 else readout.negated(),
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

    def _choose_greedily(self, q, beta):
        """Choose points of a small domain one after the other, each the best given the others."""
        points = self.domain.grid()
        chosen = np.empty((0, self.domain.n_columns))
        for _ in range(q):
            left = points[self._free(points, chosen)]
            chosen = np.vstack([chosen, left[np.argmax(self._values_with(chosen, left, beta))]])
        return chosen

    def _climb(self, x, beta):
        """Move to better neighbours, as rounding has moved x away from the maximum."""
        rng, value = self._rng("climb"), self._value(x, beta)
        none = x[:0]
        for _ in range(_MOST_MOVES):
            near = self.domain.neighbours(x[0], self.domain.n_columns, rng)
            near = near[self._free(near, none)]
            if not len(near):
                break
            values = self._values_with(none, near, beta)
            if not np.max(values) > value:
                break
            x, value = near[[np.argmax(values)]], np.max(values)
        return x

    def _repair(self, x, beta):
        """Replace each point that is known, has failed or occurs twice by the best other one."""
        x = x.copy()
        for j in range(len(x)):
            others = np.delete(x, j, axis=0)
            if not self._free(x[[j]], others)[0]:
                candidates = self._candidates(x[j])
                free = candidates[self._free(candidates, others)]
                if len(free):
                    x[j] = free[np.argmax(self._values_with(others, free, beta))]
                else:  # failures everywhere: take the point farthest from them
                    gap = self.domain.distance(candidates, np.vstack([self._known(), others]))
                    x[j] = candidates[np.argmax(gap)]
        return x

    def _candidates(self, x):
        """Sample points of the whole domain, and near x."""
        rng, n = self._rng("candidates"), self._affordable(_N_CANDIDATES)
        if self._is_small:
            return self.domain.grid()
        near = self.domain.neighbours(x, n // 2, rng)
        return np.concatenate([near, self.domain.sample(n - n // 2, rng)])

    def _free(self, X, others):
        """Which points may be proposed: (n,)."""
        root = math.sqrt(len(self.domain.encoded_bounds))
        taken = np.vstack([self._known(), others])
        free = self.domain.distance(X, taken) > _SAME * root
        if math.isinf(self.domain.n_points):  # points near a failure are likely to fail too
            free &= self.domain.distance(X, self.results.failed) > _FAILED * root
        return free

    def _known(self):
        return np.vstack([self.results.X, self.results.failed])

    def _value(self, x, beta):
        """Compute the acquisition of one batch (q, d)."""
        return self._values_with(x[:-1], x[-1:], beta)[0]

    def _values_with(self, chosen, X, beta):
        """Compute the acquisition of each of X (n, d) in a batch with the chosen points: (n,)."""
        values = self._draw(X)  # (n_draws, n)
        if len(chosen):
            fixed = self._draw(chosen)[:, None]  # (n_draws, 1, q - 1)
            fixed = np.broadcast_to(fixed, (*values.shape, len(chosen)))
            values = np.concatenate([fixed, values[..., None]], axis=-1)
        worth = self.acquisition(np, values, self._best, beta)
        return np.where(np.isfinite(worth), worth, -np.inf)

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
        return generator(self._entropy, purpose, self._number)

    def _seed(self, purpose):
        return int(self._rng(purpose).integers(1, 2**31 - 1))


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
