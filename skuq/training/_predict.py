"""A trained network's raw outputs, in float64 from its float32 weights.

In float64 the numbers of a row do not depend on the rows beside it (to 1e-12), which
scikit-learn's contract asks for and float32 kernels do not give.
"""

from __future__ import annotations

import json
import math

import numpy as np

from skuq._keras import keras, ops
from skuq.training._cache import BoundedCache
from skuq.training._tensorflow import compile_forward

__all__ = ["predict_raw"]

_CHUNK_ENTRIES = 2**22  # activations of one layer held at a time, about 32 MB
_models = BoundedCache(max_size=64)
_compiled = BoundedCache(max_size=64)


def predict_raw(network: str, weights, state, x, *, compiled: bool = True) -> np.ndarray:
    """Raw outputs of shape (n_samples, n_raw).

    Parameters
    ----------
    network : str
        The Keras model's configuration, as JSON.
    weights : ndarray of shape (n_weights,)
    state : sequence of ndarray
        Non-trainable variables.
    x : ndarray of shape (n_samples, ...)
        Standardised inputs.
    compiled : bool, default=True
        False where a network predicts only once: tracing would cost more than it saves.
    """
    model, forward = _models.get(network, lambda: _forward(network))
    weights = np.asarray(weights, dtype="float64")
    state = tuple(_as_float64(value) for value in state)
    x = np.asarray(x, dtype="float64")
    if compiled:
        forward = _compiled.get(
            network, lambda: compile_forward(forward, weights.size, state, model.input_shape[1:])
        )
    widest = max((math.prod(v.shape[-1:]) for v in model.variables), default=1)
    rows = max(1, _CHUNK_ENTRIES // max(widest, math.prod(x.shape[1:])))
    parts = [
        np.asarray(forward(weights, state, x[start : start + rows]))
        for start in range(0, len(x), rows)
    ]
    return np.concatenate(parts)


def _forward(network):
    config = _with_dtype(json.loads(network), "float32", "float64")
    model = keras.models.model_from_json(json.dumps(config))
    shapes = [tuple(variable.shape) for variable in model.trainable_variables]
    ends = np.cumsum([math.prod(shape) for shape in shapes])[:-1].tolist()

    def forward(weights, state, x):
        parts = ops.split(ops.convert_to_tensor(weights), ends)
        parts = [ops.reshape(part, shape) for part, shape in zip(parts, shapes)]
        x = ops.convert_to_tensor(x)
        return model.stateless_call(parts, list(state), x, training=False)[0]

    return model, forward


def _as_float64(value):
    value = np.asarray(value)
    return value.astype("float64") if value.dtype.kind == "f" else value


def _with_dtype(config, old, new):
    """A Keras configuration with one floating type exchanged for another."""
    if isinstance(config, list):
        return [_with_dtype(item, old, new) for item in config]
    if not isinstance(config, dict):
        return config
    if config.get("class_name") == "DTypePolicy" and config["config"].get("name") == old:
        return {**config, "config": {**config["config"], "name": new}}
    return {
        key: new if key == "dtype" and value == old else _with_dtype(value, old, new)
        for key, value in config.items()
    }
