"""What other people's estimators predict, also inside of pipelines and searches."""

from __future__ import annotations

import numpy as np
from sklearn.compose import TransformedTargetRegressor
from sklearn.frozen import FrozenEstimator
from sklearn.pipeline import Pipeline

__all__ = ["as_predicted", "classifies", "innermost", "predict_normal"]


def classifies(estimator) -> bool:
    """Whether a fitted estimator, or one that only behaves so, gives classes."""
    return hasattr(estimator, "classes_")


def predict_normal(estimator, X) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation, each (n[, m]), of a regressor's prediction.

    Raises
    ------
    TypeError
        If the estimator gives no standard deviation, or not in units of y.
    """
    if isinstance(estimator, TransformedTargetRegressor):
        raise TypeError(
            "The standard deviation of a TransformedTargetRegressor is not in units of y. Let the "
            "regressor inside standardise y itself; all of skuq do."
        )
    try:
        predicted = estimator.predict(X, return_std=True)
    except (TypeError, ValueError) as error:
        if "return_std" not in str(error):
            raise
        predicted = None
    if not isinstance(predicted, tuple) or len(predicted) != 2:
        raise TypeError(
            "A regressor must have `predict(X, return_std=True)` or `predict_distribution(X)`. "
            f"{estimator!r} does not say how sure it is."
        )
    mean, std = (np.asarray(values, dtype=float) for values in predicted)
    return mean, std


def as_predicted(y, mean) -> np.ndarray:
    """Targets with the output axis of the prediction: some drop one of length 1."""
    y, shape = np.asarray(y, dtype=float), np.shape(mean)
    fits = y.size == np.prod(shape) and y.shape[:1] == shape[:1]
    return y.reshape(shape) if fits else y


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
