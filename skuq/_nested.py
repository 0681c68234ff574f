"""Estimators inside of pipelines and searches."""

from __future__ import annotations

from sklearn.frozen import FrozenEstimator
from sklearn.pipeline import Pipeline

__all__ = ["innermost"]


def innermost(estimator, X):
    """The estimator at the end of searches and pipelines, and what X is when it arrives.

    Frozen ones are opened. For what these do not pass on: `predict_distribution`, and of
    searches, and pipelines under metadata routing, ``predict(X, return_std=True)``.
    """
    estimator = getattr(estimator, "best_estimator_", estimator)
    if isinstance(estimator, FrozenEstimator):
        return innermost(estimator.estimator, X)
    if isinstance(estimator, Pipeline):
        X = estimator[:-1].transform(X) if len(estimator) > 1 else X
        return innermost(estimator[-1], X)
    return estimator, X
