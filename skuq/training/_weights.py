"""A network's first weights, drawn from its own initializers with our seed.

Keras draws weights from a global generator while it builds a model. That would tie the
result to whatever else the process has drawn, in other threads too. So weights are drawn
again, each variable by a copy of its initializer with a seed of its own.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from skuq import backend
from skuq._warnings import warn_user
from skuq.catalog._records import Member
from skuq.networks._rebuild import rebuild

_SEED_STATE = "seed_generator_state"


def draw_variables(model: Any, seed: int) -> tuple[np.ndarray, list[np.ndarray]]:
    """Draw flat trainable weights of shape (n_weights,), and the non-trainable variables.

    The initializer of a variable `w` is its layer's attribute `w_initializer`, as in all
    of Keras' layers. Variables of frozen layers keep their values. So do others without
    an initializer, with a warning if they are not constant: then they depend on Keras'
    global seed.
    """
    rng = np.random.default_rng(seed)
    initializers = _initializers(model)
    values: dict[int, np.ndarray] = {}  # by identity: nested models may repeat a path
    for variable in model.variables:
        own_seed = int(rng.integers(1, 2**31 - 1))  # drawn always: the order is the seed
        value = variable.numpy()
        if variable.name == _SEED_STATE:  # of a random layer
            value = np.random.default_rng(own_seed).integers(2**31 - 1, size=value.shape)
            value = value.astype(variable.dtype)
        elif id(variable) in initializers:
            value = _draw(initializers[id(variable)], variable.shape, own_seed)
        elif variable.trainable and value.dtype.kind == "f" and np.ptp(value) > 0:
            warn_user(
                f"Variable {variable.path} has no initializer that its layer names "
                f"`{variable.name}_initializer`: its first value does not repeat.",
            )
        values[id(variable)] = np.asarray(value)
    parts = [values[id(v)].ravel() for v in model.trainable_variables]
    flat = np.concatenate(parts).astype("float32")
    return flat, [values[id(v)] for v in model.non_trainable_variables]


def holds_values(model: Any) -> bool:
    """Tell whether first values of some variables are those of the model, not drawn by a seed."""
    initializers = _initializers(model)
    return any(v.name != _SEED_STATE and id(v) not in initializers for v in model.variables)


def _draw(initializer: Any, shape: Any, seed: int) -> np.ndarray:
    config = initializer.get_config()
    if "seed" in config:
        initializer = type(initializer).from_config({**config, "seed": seed})
    value: np.ndarray = backend.ops.convert_to_numpy(initializer(tuple(shape), dtype="float32"))
    return value


def _initializers(model: Any) -> dict[int, Any]:
    """Find ``{id(variable): initializer}`` by Keras' naming: kernel, kernel_initializer."""
    found: dict[int, Any] = {}
    for layer in model._flatten_layers(include_self=False):
        if not layer.trainable:  # frozen: its values were learnt elsewhere
            continue
        for variable in layer._trainable_variables + layer._non_trainable_variables:
            stem = variable.name.removesuffix("_kernel") or variable.name
            # A depthwise convolution calls its kernel's initializer depthwise_initializer.
            for name in (variable.name, stem, stem.replace("kernel", "depthwise")):
                initializer = getattr(layer, f"{name}_initializer", None)
                if isinstance(initializer, backend.keras.initializers.Initializer):
                    found[id(variable)] = initializer
                    break
    return found


def keras_model(member: Member) -> Any:
    """Build a member's Keras model, with its weights."""
    model, weights = rebuild(member.network), np.asarray(member.weights)
    ends = np.cumsum([int(np.prod(v.shape)) for v in model.trainable_variables])[:-1]
    for variable, value in zip(model.trainable_variables, np.split(weights, ends)):
        variable.assign(value.reshape(variable.shape))
    for variable, value in zip(model.non_trainable_variables, member.state):
        variable.assign(value)
    return model
