"""A trained model of functions whose predictions stay as they are.

Notation: n inputs, q query points, m components, as in `_functions`.
"""

from __future__ import annotations

import functools

import numpy as np
from sklearn.exceptions import NotFittedError
from sklearn.utils.validation import check_is_fitted

from skuq._registry import saved_as
from skuq.estimators._functions import scale_of_features

__all__ = ["GivenBase"]


@saved_as("estimators.NEONRegressor.GivenBase")
class GivenBase:
    """Predictions and features of a given model.

    Parameters
    ----------
    model : keras.Model or fitted regressor
    scaling : FunctionScaling
        Fitted.
    n_components : int
    """

    def __init__(self, model, scaling, n_components):
        self.model, self.scaling, self.n_components = model, scaling, n_components
        self._queries = None
        shapes = [tuple(tensor.shape) for tensor in getattr(model, "inputs", None) or ()]
        self.is_operator = len(shapes) == 2
        n = scaling.inputs_.x_.n_features_in_, scaling.queries_.x_.n_features_in_
        wanted = [(None, k) for k in n]
        if shapes and shapes not in (wanted, wanted[:1]):
            raise ValueError(
                "A Keras model as `pretrained` must have inputs u and y of shapes "
                f"{wanted}, or u alone. Got {shapes}."
            )
        if not hasattr(model, "predict_on_batch") and hasattr(model, "fit"):
            try:
                check_is_fitted(model)
            except NotFittedError as error:
                raise NotFittedError(
                    "`pretrained` is not fitted. What clones an estimator, as cross-validation and "
                    "searches do, loses what it has learnt: wrap it in "
                    "sklearn.frozen.FrozenEstimator."
                ) from error

    def fit(self, X, queries) -> np.ndarray:
        """Rows of features (n * q, n_features), which decide their scale."""
        self._queries = queries
        self._mean, self._scale = 0.0, 1.0
        shown = self._shown(X, queries)
        if shown is not None:
            self._mean, self._scale = scale_of_features(shown)
        return self.rows(X, queries)

    def rows(self, X, queries) -> np.ndarray:
        """Features of every input with every query: the model's last hidden layer, u and y."""
        rows, shown = self.scaling.rows(X, queries), self._shown(X, queries)
        if shown is None:
            return rows
        return np.concatenate([(shown - self._mean) / self._scale, rows], axis=1)

    def mean(self, X, queries) -> np.ndarray:
        """Predictions (n, q, m), in units of Y and bit by bit those of the model."""
        if self.is_operator:
            mean = self.model.predict(self._pairs(X, queries), verbose=0)
        else:
            if not np.array_equal(queries, self._queries):
                raise ValueError(
                    "`pretrained` predicts at the query points of Y only: it is no Keras model "
                    "with inputs u and y. Leave `query_points` out."
                )
            options = {"verbose": 0} if hasattr(self.model, "predict_on_batch") else {}
            mean = self.model.predict(X, **options)
        mean = np.asarray(mean, dtype="float64")
        shape = (len(X), len(queries), self.n_components)
        if mean.size != np.prod(shape) or not np.isfinite(mean).all():
            raise ValueError(
                "`pretrained` must predict finite numbers for "
                f"{shape[0]} inputs, {shape[1]} query points and {shape[2]} components. "
                f"Got shape {mean.shape}{'' if np.isfinite(mean).all() else ' with NaN or inf'}."
            )
        return mean.reshape(shape)

    @functools.cached_property
    def _showing(self):
        """The model up to what enters its last layer of weights; None if it has none."""
        from skuq.backend import keras
        from skuq.networks._nomu import entering

        seen = [tensor for tensor in entering(self.model.outputs[0]) if len(tensor.shape) == 2]
        return keras.Model(self.model.inputs, seen) if seen else None

    def __getstate__(self):
        return {name: value for name, value in vars(self).items() if name != "_showing"}

    def _pairs(self, X, queries):
        return [np.repeat(X, len(queries), axis=0), np.tile(queries, (len(X), 1))]

    def _shown(self, X, queries):
        """What enters the last layer of weights, (n * q, n_hidden); None if that is not seen."""
        if not self.is_operator or self._showing is None:
            return None
        parts = self._showing.predict(self._pairs(X, queries), verbose=0)
        return np.concatenate(parts if isinstance(parts, list) else [parts], axis=1)
