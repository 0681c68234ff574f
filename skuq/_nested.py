"""Predictions of estimators of other libraries, also inside of pipelines and searches."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.compose import TransformedTargetRegressor
from sklearn.frozen import FrozenEstimator
from sklearn.pipeline import Pipeline

from skuq._checks import as_floats, class_codes


def classifies(estimator: Any) -> bool:
    """Whether a fitted estimator is a classifier."""
    return hasattr(estimator, "classes_")


class NoUncertaintyError(TypeError):
    """A regressor does not say how sure it is of its predictions."""


def predict_normal(estimator: Any, X: Any) -> tuple[np.ndarray, np.ndarray]:
    """Predict mean and standard deviation, each (n[, m]), with a regressor.

    Raise NoUncertaintyError if the estimator gives no standard deviation, and TypeError if it is
    not in units of y.
    """
    if isinstance(estimator, TransformedTargetRegressor):
        predict_normal(estimator.regressor_, X)  # raises if there is no standard deviation anyway
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
        raise NoUncertaintyError(
            "A regressor must have `predict(X, return_std=True)` or `predict_distribution(X)`. "
            f"{estimator!r} does not say how sure it is."
        )
    mean, std = (np.asarray(values, dtype=float) for values in predicted)
    return mean, std


def reshape_like_prediction(y: Any, mean: Any) -> np.ndarray:
    """Reshape targets to the prediction's shape: some estimators drop an axis of length 1."""
    targets = as_floats(y)
    shape = np.shape(mean)
    fits = targets.size == np.prod(shape) and targets.shape[:1] == shape[:1]
    return targets.reshape(shape) if fits else targets


def last_estimator(estimator: Any) -> Any:
    """Find the estimator that predicts at the end of pipelines, searches and frozen estimators."""
    if hasattr(estimator, "best_estimator_"):
        return last_estimator(estimator.best_estimator_)
    if isinstance(estimator, FrozenEstimator):
        return last_estimator(estimator.estimator)
    if isinstance(estimator, Pipeline):
        return last_estimator(estimator.steps[-1][1])
    return estimator


def unwrap_estimator(estimator: Any, X: Any) -> tuple[Any, Any]:
    """Find the estimator inside searches, pipelines and frozen estimators, and its input X.

    Needed for what those do not delegate: `predict_distribution`, and ``predict(X,
    return_std=True)`` of searches, and of pipelines under metadata routing.
    """
    if hasattr(estimator, "best_estimator_"):
        return unwrap_estimator(estimator.best_estimator_, X)
    if isinstance(estimator, FrozenEstimator):
        return unwrap_estimator(estimator.estimator, X)
    if isinstance(estimator, Pipeline):
        X = estimator[:-1].transform(X) if len(estimator) > 1 else X
        return unwrap_estimator(estimator[-1], X)
    return estimator, X


def class_probabilities(model, X, classes: np.ndarray) -> np.ndarray:
    """Predict probabilities (n, C) in the order of `classes`; 0 for those the model has not seen.

    Raise ValueError if the model's predictions are not probabilities.
    """
    proba = np.asarray(model.predict_proba(X), dtype=float)
    known = class_codes(model.classes_, classes)
    sums = proba.sum(axis=-1)
    # Written so that NaN fails.
    sound = proba.shape[1:] == known.shape and (proba >= 0).all() and (abs(sums - 1) < 1e-3).all()
    if not sound:
        raise ValueError(
            f"predict_proba of {model!r} must give non-negative numbers of shape "
            f"(n_samples, {len(known)}), with sums of 1. Got shape {proba.shape}, numbers from "
            f"{proba.min(initial=np.inf)} to {proba.max(initial=-np.inf)}."
        )
    if (abs(sums - 1) > 1e-9).any():  # probabilities in single precision
        proba = proba / sums[:, None]
    every = np.zeros((len(proba), len(classes)))
    every[:, known] = proba
    return every
