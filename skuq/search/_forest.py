"""Bayesian optimisation with a random forest: the "BO" of AgEBO."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.ensemble import RandomForestRegressor

from skuq._space import Space
from skuq.search._proposers import History, Running


class ForestSurrogate:
    """A random forest that predicts a standard deviation by the law of total variance.

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
        """Return mean and standard deviation, each (n,).

        The variance is the mean over trees of the variance within the leaf, plus the
        variance over trees of the leaf's mean.
        """
        x = np.asarray(x, dtype="float32")
        trees = [estimator.tree_ for estimator in self._forest.estimators_]
        leaves = np.stack([tree.apply(x) for tree in trees])  # (n_trees, n)
        means = np.stack([t.value[leaf, 0, 0] for t, leaf in zip(trees, leaves)])
        within = np.stack([t.impurity[leaf] for t, leaf in zip(trees, leaves)])
        # Impurities are differences of large numbers: that of a pure leaf may be -1e-17.
        variance = np.maximum(within, 0).mean(axis=0) + means.var(axis=0)
        return means.mean(axis=0), np.sqrt(variance)


@dataclass(frozen=True)
class ForestOptimizer:
    """Propose the candidate with the best confidence bound of a forest fitted to the scores.

    Scores are minimised, so the bound is ``mean - kappa * std`` and the smallest wins.
    Failed trials enter with the worst score seen, running trials with the best (the "constant
    liar" of AgEBO's published runs). This lie draws proposals towards running trials and does not
    spread them. With a large `kappa` a parallel search may stay among its running trials. Parallel
    workers get different points because each proposal draws its own candidates.

    Parameters
    ----------
    space : Space
    kappa : float, default=0.001
        Weight of the standard deviation; AgEBO's published runs use 0.001, its ablations
        1.96 and 19.6.
    n_initial : int, default=10
        Configurations are random until so many trials have a score; at least 1. The paper starts
        with as many random configurations as there are workers.
    n_candidates : int, default=10000
        Number of random configurations of which the best is proposed.
    max_score : float, default=1000
        Larger scores, those of diverged networks, are clipped to it.

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
        scores = [min(record.score, self.max_score) for record in scored]
        failed = [record for record in history if record.failed]
        configurations = [record.configuration for record in scored + failed]
        targets = scores + [max(scores)] * len(failed) + [min(scores)] * len(running)
        x = self.space.encode([*configurations, *running])
        surrogate = ForestSurrogate(seed=int(rng.integers(2**31 - 1))).fit(x, targets)
        candidates = self.space.sample_many(rng, self.n_candidates)
        mean, std = surrogate.predict(self.space.encode(candidates))
        return candidates[int(np.argmin(mean - self.kappa * std))]
