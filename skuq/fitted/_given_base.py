"""A given trained model whose predictions are kept exactly.

Notation: n inputs, q query points, m components, as in `skuq.tables._functions`.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from sklearn.preprocessing import StandardScaler

from skuq import backend
from skuq._registry import saved_as
from skuq.fitted._protocol import check_pretrained
from skuq.networks._nomu import inputs_of_last_layers
from skuq.tables import FunctionInputs


@saved_as("fitted.FittedOperator.GivenBase")
class GivenBase:
    """Predictions of a given model, and the features that it gives to an EpiNet.

    Parameters
    ----------
    model : keras.Model or fitted regressor
    inputs : FunctionInputs
        Fitted.
    n_components : int

    Attributes
    ----------
    is_operator : bool
        Whether the model has inputs u and y, so that it predicts at any query points.
    mean_, scale_ :
        Mean and scale of the model's last hidden layer, fitted by `fit`.
    """

    mean_: Any
    scale_: float

    def __init__(self, model: Any, inputs: FunctionInputs, n_components: int) -> None:
        self.model, self.inputs, self.n_components = model, inputs, n_components
        shapes = [tuple(tensor.shape) for tensor in getattr(model, "inputs", None) or ()]
        self.is_operator = len(shapes) == 2
        wanted = [(None, len(s.scale_)) for s in (inputs.scaling, inputs.query_scaling)]
        if shapes and shapes not in (wanted, wanted[:1]):
            raise ValueError(
                "A Keras model as `pretrained` must have inputs u and y of shapes "
                f"{wanted}, or u alone. Got {shapes}."
            )
        if not hasattr(model, "predict_on_batch"):
            check_pretrained(model)

    def fit(self, X: np.ndarray) -> GivenBase:
        """Learn the scale of the last hidden layer, at the query points of the inputs."""
        self.mean_, self.scale_ = 0.0, 1.0
        hidden = self._last_hidden(X, self.inputs.points())
        if hidden is not None:
            # Each column has a mean, but all share one scale: a single feature may hardly vary.
            self.mean_ = StandardScaler(with_std=False).fit(hidden).mean_
            self.scale_ = np.sqrt(np.var(hidden, axis=0).mean()) or 1.0
        return self

    def take_scales(self, other: GivenBase) -> GivenBase:
        """Take the scale of an earlier fit, in place of learning that of the last hidden layer."""
        self.mean_, self.scale_ = other.mean_, other.scale_
        return self

    def features(self, X: np.ndarray, query_points: Any = None) -> np.ndarray:
        """Compute features (n * q, n_features) of all pairs: last hidden layer, u and y."""
        points = self.inputs.points(query_points)
        rows, hidden = self.inputs.transform(X, query_points), self._last_hidden(X, points)
        if hidden is None:
            return rows
        return np.concatenate([(hidden - self.mean_) / self.scale_, rows], axis=1)

    def mean(self, X: np.ndarray, query_points: Any = None) -> np.ndarray:
        """Compute the model's predictions (n, q, m) in units of Y."""
        points = self.inputs.points(query_points)
        if self.is_operator:
            mean = self.model.predict(_pairs(X, points), verbose=0)
        else:
            # Only models with an input for query points predict at others than those of Y.
            if not np.array_equal(points, self.inputs.query_points):
                raise ValueError(
                    "`pretrained` predicts at the query points of Y only: it is no Keras model "
                    "with inputs u and y. Leave `query_points` out."
                )
            options = {"verbose": 0} if hasattr(self.model, "predict_on_batch") else {}
            mean = self.model.predict(X, **options)
        mean = np.asarray(mean, dtype="float64")
        shape = (len(X), len(points), self.n_components)
        if mean.size != np.prod(shape) or not np.isfinite(mean).all():
            raise ValueError(
                "`pretrained` must predict finite numbers for "
                f"{shape[0]} inputs, {shape[1]} query points and {shape[2]} components. "
                f"Got shape {mean.shape}{'' if np.isfinite(mean).all() else ' with NaN or inf'}."
            )
        return mean.reshape(shape)

    def _last_hidden(self, X: np.ndarray, points: np.ndarray) -> np.ndarray | None:
        """Compute the inputs (n * q, n_hidden) of the last layer of weights, or None.

        None means that the model does not show them.
        """
        if not self.is_operator or self._hidden_model is None:
            return None
        parts = self._hidden_model.predict(_pairs(X, points), verbose=0)
        return np.concatenate(parts if isinstance(parts, list) else [parts], axis=1)

    @functools.cached_property
    def _hidden_model(self) -> Any:
        """The model up to the inputs of its last layer of weights; None if it has none."""
        seen = [
            tensor
            for tensor in inputs_of_last_layers(self.model.outputs[0])
            if len(tensor.shape) == 2
        ]
        return backend.keras.Model(self.model.inputs, seen) if seen else None

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_hidden_model"}


def _pairs(X: np.ndarray, points: np.ndarray) -> list[np.ndarray]:
    """Pair every input with every query point, as the two inputs u and y of a Keras model."""
    return [np.repeat(X, len(points), axis=0), np.tile(points, (len(X), 1))]
