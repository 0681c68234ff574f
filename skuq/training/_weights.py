"""Draw a network's first weights from its own initializers, with a given seed.

Keras draws weights from a global generator while it builds a model. The result would depend on
everything else that the process has drawn, in other threads too. Therefore weights are drawn
again here, each variable by a copy of its initializer with a seed of its own.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
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
    of Keras' layers. Frozen variables are drawn again if all of them still have the values with
    which Keras started them, such as those of random features; if some were trained or set, all
    keep their values. Variables without an initializer keep theirs, too, with a warning if they are
    trained and not constant, because all members then start from them.
    """
    rng = np.random.default_rng(seed)
    starts = _starts(model, with_frozen=True)
    values: dict[int, np.ndarray] = {}  # by identity: nested models may repeat a path
    for variable in model.variables:
        # Drawn for every variable, so that a seed depends only on the variable's position.
        own_seed = int(rng.integers(1, 2**31 - 1))
        value = variable.numpy()
        if variable.name == _SEED_STATE:  # the generator of a random layer
            value = np.random.default_rng(own_seed).integers(2**31 - 1, size=value.shape)
            value = value.astype(variable.dtype)
        elif id(variable) in starts:
            value = starts[id(variable)].draw(variable, own_seed)
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
    starts = _starts(model)
    return any(v.name != _SEED_STATE and id(v) not in starts for v in model.variables)


def kept_values(model: Any) -> list[tuple[str, np.ndarray]]:
    """List names and values of variables that are neither trained nor drawn again nor constant."""
    starts = _starts(model, with_frozen=True)
    kept = [v for v in model.variables if not v.trainable and id(v) not in starts]
    named = [(v.name, v.numpy()) for v in kept if v.name != _SEED_STATE]
    return [
        (name, value)
        for name, value in named
        if value.dtype.kind == "f" and value.size and (value.size == 1 or np.ptp(value) > 0)
    ]


@dataclass(frozen=True)
class _Start:
    """The initializer of a variable, and whether the variable is the bias of an LSTM.

    The quarter of this bias that belongs to the forget gate starts as ones, as in Keras.
    """

    initializer: Any
    is_bias_of_lstm: bool = False

    @property
    def is_random(self) -> bool:
        """Whether the initializer is random, without a seed that the user has given."""
        return bool(self.initializer.get_config().get("seed", 0) is None)

    def draw(self, variable: Any, seed: int | None = None) -> np.ndarray:
        """Draw a value for a variable, with this seed or as Keras has drawn it at first."""
        initializer, config = self.initializer, self.initializer.get_config()
        if seed is not None and "seed" in config:
            initializer = type(initializer).from_config({**config, "seed": seed})

        def drawn(*shape: int) -> np.ndarray:
            numbers = initializer(shape, dtype=variable.dtype)
            return np.asarray(backend.ops.convert_to_numpy(numbers))

        if not self.is_bias_of_lstm:
            return drawn(*variable.shape)
        n_units = variable.shape[0] // 4  # of the gates for input, forgetting, cell and output
        ones = np.ones(n_units, variable.dtype)
        return np.concatenate([drawn(n_units), ones, drawn(2 * n_units)])


def _starts(model: Any, *, with_frozen: bool = False) -> dict[int, _Start]:
    """Map ``id(variable)`` to its start, if its layer names an initializer for it.

    Frozen layers and variables are left out. With `with_frozen` random ones among them are
    included, but only if all that is frozen still has the values with which Keras started it.
    Otherwise it has been trained or set, and is to keep its values.
    """
    found: dict[int, _Start] = {}
    frozen: dict[int, _Start] = {}
    for layer in model._flatten_layers(include_self=False):
        for variable in layer._trainable_variables + layer._non_trainable_variables:
            start = _start_of(variable, layer)
            if start is None:
                continue
            # The state of a layer, such as moving averages, is never trainable itself.
            is_state = any(variable is other for other in layer._non_trainable_variables)
            if layer.trainable and (variable.trainable or is_state):
                found[id(variable)] = start
            elif not np.array_equal(start.draw(variable), variable.numpy()):
                with_frozen = False
            elif start.is_random:
                frozen[id(variable)] = start
    return found | frozen if with_frozen else found


def _start_of(variable: Any, layer: Any) -> _Start | None:
    """Find the initializer of a layer's variable by its name; None if it has another name."""
    stem = variable.name.removesuffix("_kernel") or variable.name
    # A depthwise convolution calls its kernel's initializer depthwise_initializer.
    for name in (variable.name, stem, stem.replace("kernel", "depthwise")):
        initializer = getattr(layer, f"{name}_initializer", None)
        if isinstance(initializer, backend.keras.initializers.Initializer):
            is_bias_of_lstm = name == "bias" and getattr(layer, "unit_forget_bias", False)
            return _Start(_with_axes(initializer, layer), is_bias_of_lstm)
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


def keras_model(member: Member) -> Any:
    """Build a member's Keras model, and set its weights."""
    model, weights = rebuild(member.network), np.asarray(member.weights)
    ends = np.cumsum([int(np.prod(v.shape)) for v in model.trainable_variables])[:-1]
    for variable, value in zip(model.trainable_variables, np.split(weights, ends)):
        variable.assign(value.reshape(variable.shape))
    for variable, value in zip(model.non_trainable_variables, member.state):
        variable.assign(value)
    return model
