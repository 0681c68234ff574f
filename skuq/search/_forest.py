"""Bayesian optimisation with a random forest: the "BO" of AgEBO."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from sklearn.ensemble import RandomForestRegressor

from skuq._space import Space

__all__ = ["ForestOptimizer", "ForestSurrogate"]


class ForestSurrogate:
    """A random forest with the standard deviation of the law of total variance.

    Parameters
    ----------
    n_estimators : int, default=10
        Trees; 10 in AgEBO's published runs.
    min_samples_leaf : int, default=1
    seed : int, default=0
    """

    def __init__(self, n_estimators=10, min_samples_leaf=1, seed=0):
        self._forest = RandomForestRegressor(
            n_estimators=n_estimators, min_samples_leaf=min_samples_leaf, random_state=seed
        )

    def fit(self, x, y):
        """x (n, n_columns), y (n,)."""
        self._forest.fit(x, y)
        return self

    def predict(self, x):
        """Mean and standard deviation, each (n,).

        The variance is the mean over trees of the variance within the leaf, plus the
        variance over trees of the leaf's mean.
        """
        x = np.asarray(x, dtype="float32")
        trees = [estimator.tree_ for estimator in self._forest.estimators_]
        leaves = np.stack([tree.apply(x) for tree in trees])  # (n_trees, n)
        means = np.stack([t.value[leaf, 0, 0] for t, leaf in zip(trees, leaves)])
        within = np.stack([t.impurity[leaf] for t, leaf in zip(trees, leaves)])
        # Impurities are differences of large numbers: a pure leaf may be at -1e-17.
        variance = np.maximum(within, 0).mean(axis=0) + means.var(axis=0)
        return means.mean(axis=0), np.sqrt(variance)


@dataclass(frozen=True)
class ForestOptimizer:
    """The candidate of the best confidence bound under a forest of the scores.

    Scores are minimised, so the bound is ``mean - kappa * std`` and the smallest wins.
    Running trials enter as if they had already given the best score seen (the constant
    liar), which keeps parallel workers from asking for the same point. Failed trials
    enter with the worst score seen.

    Parameters
    ----------
    space : Space
    kappa : float, default=0.001
        Weight of the standard deviation; AgEBO's published runs use 0.001, its ablations
        1.96 and 19.6.
    n_initial : int, default=10
        Random configurations before there is a model.
    n_candidates : int, default=10000
        Random configurations the best is taken from.
    max_score : float, default=1000
        Larger scores, those of diverged networks, count as this one.

    References
    ----------
    Egele et al., "AutoDEUQ", section II and Algorithm 1, lines 14-16.
    """

    space: Space
    kappa: float = 0.001
    n_initial: int = 10
    n_candidates: int = 10_000
    max_score: float = 1e3

    def ask(self, history, running, rng):
        completed = [record for record in history if record.completed]
        if len(completed) < self.n_initial or not len(self.space):
            return self.space.sample(rng)
        scores = [min(record.score, self.max_score) for record in completed]
        failed = [record for record in history if not record.completed]
        configurations = [record.configuration for record in completed + failed]
        targets = scores + [max(scores)] * len(failed) + [min(scores)] * len(running)
        x = self.space.encode([*configurations, *running])
        surrogate = ForestSurrogate(seed=int(rng.integers(2**31 - 1))).fit(x, targets)
        candidates = self.space.sample_many(rng, self.n_candidates)
        mean, std = surrogate.predict(self.space.encode(candidates))
        return candidates[int(np.argmin(mean - self.kappa * std))]
