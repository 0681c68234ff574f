"""Bayesian optimisation with a random forest as surrogate: the "BO" of AgEBO."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.ensemble import RandomForestRegressor

from skuq._space import Space
from skuq.search._proposers import History, Running


class ForestSurrogate:
    """A random forest that predicts means and standard deviations.

    Parameters
    ----------
    n_estimators : int, default=10
        Number of trees; 10 in AgEBO's published runs.
    min_samples_leaf : int, default=1
        Minimum number of samples in a leaf.
    seed : int, default=0
        Seed of the forest.
    """

    def __init__(self, n_estimators: int = 10, min_samples_leaf: int = 1, seed: int = 0) -> None:
        self._forest = RandomForestRegressor(
            n_estimators=n_estimators, min_samples_leaf=min_samples_leaf, random_state=seed
        )

    def fit(self, x: ArrayLike, y: ArrayLike) -> Self:
        """Fit to x (n, n_columns) and y (n,)."""
        self._forest.fit(x, y)
        return self

    def predict(self, x: ArrayLike) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Predict mean and standard deviation, each (n,).

        By the law of total variance, the variance is the mean over trees of the variance within
        the leaf, plus the variance over trees of the leaf's mean.
        """
        x = np.asarray(x, dtype="float32")
        trees = [estimator.tree_ for estimator in self._forest.estimators_]
        leaves = np.stack([tree.apply(x) for tree in trees])  # (n_trees, n)
        means = np.stack([t.value[leaf, 0, 0] for t, leaf in zip(trees, leaves)])  # (n_trees, n)
        # With squared error, a leaf's impurity is the variance of its targets. Rounding can make
        # that of a pure leaf negative, about -1e-17.
        within = np.stack([t.impurity[leaf] for t, leaf in zip(trees, leaves)])
        variance = np.maximum(within, 0).mean(axis=0) + means.var(axis=0)
        return means.mean(axis=0), np.sqrt(variance)


@dataclass(frozen=True)
class ForestOptimizer:
    """Propose the candidate with the best confidence bound of a forest fitted to the scores.

    Scores are minimised, so that the bound is ``mean - kappa * std``, and the candidate with the
    smallest bound is proposed. Failed trials count with the worst score seen so far, and running
    trials with the best (the "constant liar" of AgEBO's published runs). With the best score as
    lie, proposals are drawn towards running trials instead of being spread. With a large `kappa` a
    parallel search can stay close to its running trials. Parallel workers get different points
    because each proposal draws its own candidates.

    Parameters
    ----------
    space : Space
        Decisions to propose.
    kappa : float, default=0.001
        Weight of the standard deviation; AgEBO's published runs use 0.001, its ablations
        1.96 and 19.6.
    n_initial : int, default=10
        Number of trials with a score, at least 1, until which configurations are random. The
        paper starts with one random configuration for each worker.
    n_candidates : int, default=10000
        Number of random configurations of which the best is proposed.
    max_score : float, default=1000
        Larger scores, such as those of diverged networks, are clipped to this value, or to ten
        times the best score where that is larger: an objective may be in any unit.

    References
    ----------
    Egele et al., "AutoDEUQ", section II and Algorithm 1, lines 14-16.
    """

    space: Space
    kappa: float = 0.001
    n_initial: int = 10
    n_candidates: int = 10_000
    max_score: float = 1e3

    def ask(self, history: History, running: Running, rng: np.random.Generator) -> dict[str, Any]:
        scored = [record for record in history if not record.failed]
        if len(scored) < self.n_initial or not len(self.space):
            return self.space.sample(rng)
        scores = [record.score for record in scored]
        largest = max(self.max_score, 10 * min(scores))
        scores = [min(score, largest) for score in scores]
        failed = [record for record in history if record.failed]
        configurations = [record.configuration for record in scored + failed]
        # The constant liar: failed trials get the worst score, running ones the best.
        targets = scores + [max(scores)] * len(failed) + [min(scores)] * len(running)
        x = self.space.encode([*configurations, *running])
        surrogate = ForestSurrogate(seed=int(rng.integers(2**31 - 1))).fit(x, targets)
        # The acquisition is minimised over random candidates.
        candidates = self.space.sample_many(rng, self.n_candidates)
        mean, std = surrogate.predict(self.space.encode(candidates))
        return candidates[int(np.argmin(mean - self.kappa * std))]
