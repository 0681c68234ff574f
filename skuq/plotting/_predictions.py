"""Checked predictions of an estimator or in arrays, the data of displays."""

from __future__ import annotations

import numpy as np

from skuq._checks import as_floats
from skuq._nested import (
    classifies,
    last_estimator,
    predict_normal,
    reshape_like_prediction,
    unwrap_estimator,
)
from skuq.metrics import pit_values
from skuq.metrics._checks import check_same_shape


def check_rows(**arrays) -> list[np.ndarray]:
    """Check finite arrays of the same shape (n_samples,); one named `std` must be positive.

    Columns (n_samples, 1), which regressors predict if y was one, become arrays (n_samples,).
    """
    floats = {name: as_floats(values) for name, values in arrays.items()}
    checked = check_same_shape(
        **{name: v[:, 0] if v.shape[1:] == (1,) else v for name, v in floats.items()}
    )
    if checked[0].ndim > 1:
        raise ValueError(
            f"`{next(iter(arrays))}` must have shape (n_samples,): a display shows one output. "
            f"Got {checked[0].shape}."
        )
    return checked


def normal_of(estimator, X) -> tuple[np.ndarray, np.ndarray]:
    """Predict mean and standard deviation; raise TypeError if the estimator gives none."""
    estimator, X = unwrap_estimator(estimator, X)
    if classifies(estimator):
        raise TypeError(f"A regressor is needed. Got the classifier {estimator!r}.")
    return predict_normal(estimator, X)


def pit_of_estimator(estimator, X, y) -> np.ndarray:
    """Compute the probability integral transform of `y` by the predictive distribution.

    An estimator without `predict_distribution` is taken to predict normals.
    """
    estimator, X = unwrap_estimator(estimator, X)
    if hasattr(estimator, "predict_distribution") and not classifies(estimator):
        distribution = estimator.predict_distribution(X)
        if hasattr(distribution, "cdf"):
            y, _ = check_same_shape(
                y=reshape_like_prediction(y, distribution.mean), mean=distribution.mean
            )
            # Rounding may put a weighted sum of probabilities above 1.
            return np.minimum(distribution.cdf(y), 1.0)
    mean, std = normal_of(estimator, X)
    return pit_values(reshape_like_prediction(y, mean), mean, std)


def member_predictions(estimator, X) -> np.ndarray:
    """Return the members' means or probabilities of shape (n_members, n_samples, ..)."""
    estimator, X = unwrap_estimator(estimator, X)
    distribution = getattr(estimator, "predict_distribution", lambda X: None)(X)
    for name in ("member_means", "proba"):
        if hasattr(distribution, name):
            return getattr(distribution, name)
    raise TypeError(
        "The estimator must have `predict_distribution(X)` that gives a mixture of members. "
        f"Got {estimator!r}; use `from_predictions` with arrays instead."
    )


def catalog_of(estimator):
    """Return the catalog of an estimator's search, also inside a pipeline or `GridSearchCV`."""
    inside = last_estimator(estimator)
    if not hasattr(inside, "catalog_"):
        raise TypeError(
            "The estimator must be fitted and have a `catalog_`, for example "
            f"AutoDEUQRegressor. Got {estimator!r}."
        )
    return inside.catalog_


def check_pit(pit) -> np.ndarray:
    """Check one or more numbers in [0, 1], and return them as a 1-d array."""
    values = np.asarray(pit, dtype=float).ravel()
    if not len(values) or not ((values >= 0) & (values <= 1)).all():
        raise ValueError(f"`pit` must be one or more numbers in [0, 1]. Got {pit!r}.")
    return values
