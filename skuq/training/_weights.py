"""A network's first weights, drawn from its own initializers with our seed.

Keras draws weights from a global generator while it builds a model. That would tie the
result to whatever else the process has drawn, in other threads too; so weights are drawn
again, each variable by a copy of its initializer with a seed of its own.
"""

from __future__ import annotations

import numpy as np

from skuq._keras import keras

__all__ = ["draw_variables"]


def draw_variables(model: keras.Model, seed: int) -> tuple[np.ndarray, list[np.ndarray]]:
    """Flat trainable weights of shape (n_weights,), and the non-trainable variables.

    Variables whose layer names no initializer for them keep the value Keras gave.
    """
    rng = np.random.default_rng(seed)
    initializers = _initializers(model)
    values = {}
    for variable in model.variables:
        own_seed = int(rng.integers(1, 2**31 - 1))  # drawn always: the order is the seed
        value = variable.numpy()
        if value.dtype.kind in "ui":  # the state of a random layer
            value = rng.integers(0, 2**31 - 1, size=value.shape).astype(value.dtype)
        elif variable.path in initializers:
            value = _draw(initializers[variable.path], variable.shape, own_seed)
        values[variable.path] = np.asarray(value)
    flat = [values[v.path].ravel() for v in model.trainable_variables]
    flat = np.concatenate(flat).astype("float32") if flat else np.zeros(0, "float32")
    return flat, [values[v.path] for v in model.non_trainable_variables]


def _draw(initializer, shape, seed):
    config = initializer.get_config()
    if "seed" in config:
        initializer = type(initializer).from_config({**config, "seed": seed})
    return keras.ops.convert_to_numpy(initializer(tuple(shape), dtype="float32"))


def _initializers(model):
    """``{variable path: initializer}``, by Keras' naming: kernel, kernel_initializer."""
    found = {}
    for layer in model._flatten_layers(include_self=False):
        for variable in layer._trainable_variables + layer._non_trainable_variables:
            stem = variable.name.removesuffix("_kernel") or variable.name
            for name in (variable.name, stem):
                initializer = getattr(layer, f"{name}_initializer", None)
                if isinstance(initializer, keras.initializers.Initializer):
                    found[variable.path] = initializer
                    break
    return found
