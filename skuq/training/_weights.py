"""Draw a network's first weights from its own initializers, with a given seed.

Keras draws weights from a global generator while it builds a model. The result would depend on
everything else that the process has drawn, in other threads too. Therefore weights are drawn
again here, each variable by a copy of its initializer with a seed of its own.
"""

from __future__ import annotations

import re
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
    of Keras' layers. Variables of frozen layers keep their values, unless all of these are what
    their initializers have drawn without a seed of the user's. Other variables without an
    initializer keep theirs, too, with a warning if they are trained and not constant, because all
    members then start from them.
    """
    rng = np.random.default_rng(seed)
    initializers = _initializers(model, with_frozen=True)
    values: dict[int, np.ndarray] = {}  # by identity: nested models may repeat a path
    for variable in model.variables:
        # Drawn for every variable, so that a seed depends only on the variable's position.
        own_seed = int(rng.integers(1, 2**31 - 1))
        value = variable.numpy()
        if variable.name == _SEED_STATE:  # the generator of a random layer
            value = np.random.default_rng(own_seed).integers(2**31 - 1, size=value.shape)
            value = value.astype(variable.dtype)
        elif id(variable) in initializers:
            value = _draw(initializers[id(variable)], variable.shape, own_seed)
        elif variable.trainable and value.dtype.kind == "f" and np.ptp(value) > 0:
            warn_user(
                f"Variable {variable.path} has no initializer that its layer names "
                f"`{variable.name}_initializer`: all members start from the same value. Give the "
                "layer such an attribute.",
            )
        values[id(variable)] = np.asarray(value)
    parts = [values[id(v)].ravel() for v in model.trainable_variables]
    flat = np.concatenate(parts).astype("float32")
    return flat, [values[id(v)] for v in model.non_trainable_variables]


def has_fixed_values(model: Any) -> bool:
    """Tell whether some variables may start from the model's own values instead of drawn ones."""
    initializers = _initializers(model)
    return any(v.name != _SEED_STATE and id(v) not in initializers for v in model.variables)


def kept_values(model: Any) -> list[tuple[str, np.ndarray]]:
    """List names and values of variables that are neither trained nor drawn again nor constant."""
    initializers = _initializers(model, with_frozen=True)
    kept = [v for v in model.variables if not v.trainable and id(v) not in initializers]
    named = [(v.name, v.numpy()) for v in kept if v.name != _SEED_STATE]
    return [
        (name, value)
        for name, value in named
        if value.dtype.kind == "f" and value.size and (value.size == 1 or np.ptp(value) > 0)
    ]


def _draw(initializer: Any, shape: Any, seed: int) -> np.ndarray:
    """Draw a value from a copy of an initializer with this seed."""
    config = initializer.get_config()
    if "seed" in config:
        initializer = type(initializer).from_config({**config, "seed": seed})
    value: np.ndarray = backend.ops.convert_to_numpy(initializer(tuple(shape), dtype="float32"))
    return value


def _initializers(model: Any, *, with_frozen: bool = False) -> dict[int, Any]:
    """Map ``id(variable)`` to its initializer, by Keras' naming: kernel, kernel_initializer.

    Frozen layers and variables are left out. With `with_frozen` they are included if each of them
    that has a random initializer still holds the values that this has drawn. If one does not, it
    has been trained or set, and then all are to keep their values.
    """
    found: dict[int, Any] = {}
    frozen: dict[int, Any] = {}
    all_drawn = True
    for layer in model._flatten_layers(include_self=False):
        for variable in layer._trainable_variables + layer._non_trainable_variables:
            initializer = _initializer_of(variable, layer)
            # The state of a layer, such as moving averages, is never trainable itself.
            is_state = any(variable is other for other in layer._non_trainable_variables)
            if initializer is not None and layer.trainable and (variable.trainable or is_state):
                found[id(variable)] = initializer
            elif initializer is not None and initializer.get_config().get("seed", 0) is None:
                frozen[id(variable)] = initializer
                all_drawn = all_drawn and _holds_draw(initializer, variable)
    return found | frozen if with_frozen and all_drawn else found


def _initializer_of(variable: Any, layer: Any) -> Any:
    """Find the initializer of a layer's variable by its name; None if it has another name."""
    stem = variable.name.removesuffix("_kernel") or variable.name
    # A depthwise convolution calls its kernel's initializer depthwise_initializer.
    for name in (variable.name, stem, stem.replace("kernel", "depthwise")):
        initializer = getattr(layer, f"{name}_initializer", None)
        if isinstance(initializer, backend.keras.initializers.Initializer):
            return _with_axes(initializer, layer)
    return None


def _with_axes(initializer: Any, layer: Any) -> Any:
    """Give an EinsumDense layer's initializer the axes of its kernel, by which Keras scales it."""
    config = initializer.get_config()
    lacks_axes = config.get("input_axes", 0) is None  # only some initializers have them
    if not isinstance(layer, backend.keras.layers.EinsumDense) or not lacks_axes:
        return initializer
    _, kernel, output = re.split(",|->", layer.equation.replace(" ", ""))
    config["input_axes"] = [k for k, axis in enumerate(kernel) if axis not in output]
    config["output_axes"] = [k for k, axis in enumerate(kernel) if axis in output]
    scaled = type(initializer).from_config(config)
    scaled.seed = initializer.seed
    return scaled


def _holds_draw(initializer: Any, variable: Any) -> bool:
    """Tell whether a variable holds what its initializer has drawn."""
    drawn = initializer(tuple(variable.shape), dtype=variable.dtype)  # as at the first call
    return np.array_equal(backend.ops.convert_to_numpy(drawn), variable.numpy())


def keras_model(member: Member) -> Any:
    """Build a member's Keras model, and set its weights."""
    model, weights = rebuild(member.network), np.asarray(member.weights)
    ends = np.cumsum([int(np.prod(v.shape)) for v in model.trainable_variables])[:-1]
    for variable, value in zip(model.trainable_variables, np.split(weights, ends)):
        variable.assign(value.reshape(variable.shape))
    for variable, value in zip(model.non_trainable_variables, member.state):
        variable.assign(value)
    return model
