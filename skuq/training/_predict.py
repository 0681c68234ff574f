"""Predictions of trained networks, in float64 from their float32 weights.

In float64 the prediction of a row does not depend on the other rows (to 1e-12), which
scikit-learn's contract asks for and float32 kernels do not give. A planned network
predicts in NumPy, with no backend loaded and nothing to compile; any other through Keras.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from skuq import backend
from skuq.backend import BoundedCache
from skuq.catalog._records import Member
from skuq.networks._plan import Run, make_plan, without_names
from skuq.networks._rebuild import rebuild
from skuq.training._keras_network import numbers_per_row

_CHUNK_ENTRIES = 2**15  # numbers of one layer held at a time: 256 kB, which a core's cache holds
_KERAS_CHUNK_ENTRIES = 2**26  # numbers of all layers: 256 MB in float32
# By member: its variables in float64.
_parts: WeakKeyDictionary[Member, tuple[list[Any], list[Any]]] = WeakKeyDictionary()
_forwards = BoundedCache(max_size=64)


def predict_members(
    members: Sequence[Member],
    x: np.ndarray,
    *,
    dropout_mask: Callable[..., Any] | None = None,
    n_draws: int = 1,
    once: bool = False,
) -> np.ndarray:
    """Predict raw outputs of shape (n_members, n_samples, n_raw).

    Parameters
    ----------
    members : sequence of Member
    x : ndarray of shape (n_samples, ...)
        Standardised inputs.
    dropout_mask : callable, optional
        As in `skuq.networks._plan.Run`: the masks of dropout layers. They may have a leading
        axis of `n_draws`; then so have a member's predictions.
    once : bool, default=False
        Whether a member predicts only now. If so, nothing is kept or compiled for later, and
        networks without a plan compute in float32.
    """
    x = np.asarray(x, dtype="float64")
    run = Run(dropout_mask=dropout_mask)
    return np.stack([_predict(member, x, run, n_draws, once) for member in members])


def _predict(member: Member, x: np.ndarray, run: Run, n_draws: int, once: bool) -> Any:
    plan = make_plan(member.network)
    if plan is None:
        return _predict_keras(member, x, once)
    parts = _parts.get(member)
    if parts is None:
        weights = plan.split(np.asarray(member.weights, dtype="float64"))
        parts = weights, [_cast(value, "float64") for value in member.state]
        if not once:
            _parts[member] = parts
    rows = max(16, _CHUNK_ENTRIES // n_draws // plan.width)
    if len(x) <= rows:
        return plan(*parts, x, run)[0]
    return np.concatenate(
        [plan(*parts, x[i : i + rows], run)[0] for i in range(0, len(x), rows)], axis=-2
    )


def _predict_keras(member: Member, x: np.ndarray, once: bool) -> np.ndarray:
    """Predict through a float64 twin of the Keras model, compiled.

    A single prediction is not worth that: the float32 model does it in a third of the time. Its
    last digits depend on the other rows of a pass.
    """
    backend.check_fork()  # a program of the parent may be kept
    dtype = "float32" if once else "float64"
    weights = np.asarray(member.weights, dtype=dtype)
    state = tuple(_cast(value, dtype) for value in member.state)
    network = without_names(member.network)
    make = functools.partial(_keras_forward, member.network, dtype)
    model, forward = _forwards.get((network, dtype), make)
    if not once:
        forward = _forwards.get(
            (network, "compiled"),
            lambda: backend.compile_forward(forward, weights.size, state, model.input_shape[1:]),
        )
    # Keras keeps what every layer gave until the last one is done.
    rows = max(1, _KERAS_CHUNK_ENTRIES // sum(numbers_per_row(model)))
    parts = [
        np.asarray(forward(weights, state, x[start : start + rows].astype(dtype)))
        for start in range(0, max(1, len(x)), rows)
    ]
    return np.concatenate(parts).astype("float64")


def _keras_forward(network: str, dtype: str) -> tuple[Any, Callable[..., Any]]:
    """Rebuild a Keras model with a floating type, and make it a function of its weights."""
    ops = backend.ops
    config = json.loads(network)
    if dtype != "float32":
        config = _with_dtype(config, "float32", dtype)
    model = rebuild(json.dumps(config))
    shapes = [tuple(variable.shape) for variable in model.trainable_variables]
    ends = np.cumsum([math.prod(shape) for shape in shapes])[:-1].tolist()

    def forward(weights: Any, state: Any, x: Any) -> Any:
        parts = ops.split(ops.convert_to_tensor(weights), ends)
        parts = [ops.reshape(part, shape) for part, shape in zip(parts, shapes)]
        x = ops.convert_to_tensor(x)
        return model.stateless_call(parts, list(state), x, training=False)[0]

    return model, forward


def _cast(value: Any, dtype: str) -> np.ndarray:
    array = np.asarray(value)
    return array.astype(dtype) if array.dtype.kind == "f" else array


def _with_dtype(config: Any, old: str, new: str) -> Any:
    """Exchange one floating type for another in a Keras configuration."""
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
