"""Rebuild Keras models from their stored configurations."""

from __future__ import annotations

import re
import sys

import numpy as np

from skuq import backend, networks

# Names under which users have registered classes and functions of their own with Keras.
_REGISTERED = re.compile(r'"registered_name": "((?!skuq>)[^">]+>[^"]+)"')


def rebuild(network: str):
    """Rebuild a Keras model from its JSON. It may have layers of this package."""
    # Accessing a layer loads the module in which the layers are registered with Keras.
    networks.Repeat  # noqa: B018
    model = backend.keras.models.model_from_json(network)
    freeze_inner_layers(model)
    return model


def freeze_inner_layers(model) -> None:
    """Freeze the layers that frozen layers have built for themselves, such as attention's.

    Keras does not, if a layer is made with ``trainable=False``.
    """
    for layer in model._flatten_layers(include_self=False):
        if not layer.trainable:
            for inner in layer._flatten_layers(include_self=False):
                inner.trainable = False


def own_classes(network: str) -> tuple:
    """List the user's classes and functions in a model's JSON, as they are registered now.

    Caches of models and programs need them in their keys, as a notebook can define a class again.
    """
    names = sorted(set(_REGISTERED.findall(network)))
    return tuple(backend.keras.saving.get_registered_object(name) for name in names)


def registered_in_main() -> dict:
    """Find the classes and functions of ``__main__`` that are registered with Keras, by name."""
    keras = sys.modules.get("keras")  # without it, nothing can be registered
    registered = {} if keras is None else keras.saving.get_custom_objects()
    return {
        name: custom
        for name, custom in registered.items()
        if getattr(custom, "__module__", None) == "__main__" and ">" in name
    }


def register_again(registered: dict) -> None:
    """Register what another process has found with `registered_in_main`."""
    for name, custom in registered.items():
        package, _, own_name = name.partition(">")
        backend.keras.saving.register_keras_serializable(package, own_name)(custom)


def frozen_variables(layer) -> list[str]:
    """List the frozen variables of a layer that is not frozen itself."""
    is_frozen = not layer.trainable
    return [] if is_frozen else [v.name for v in layer._trainable_variables if not v.trainable]


def check_rebuild(model) -> None:
    """Raise ValueError if a model cannot be rebuilt, or its copy computes other values.

    The message says why, and what to do.
    """
    network = model.to_json()
    try:
        copied = rebuild(network)
    except Exception as error:
        raise ValueError(f"{type(error).__name__}: {error}. Use Keras' own layers") from error
    for variables in ("trainable_variables", "non_trainable_variables"):
        original, other = ([v.shape for v in getattr(one, variables)] for one in (model, copied))
        if original != other:
            raise ValueError(
                "its configuration does not hold which variables are frozen. Freeze whole layers"
            )
    normalization = backend.keras.layers.Normalization
    adapts = any(isinstance(layer, normalization) for layer in model._flatten_layers())
    if not adapts and not own_classes(network):  # Keras' other layers keep nothing else
        return
    for variables in ("trainable_variables", "non_trainable_variables"):
        for original, other in zip(
            getattr(model, variables), getattr(copied, variables), strict=True
        ):
            other.assign(original)
    x = np.random.default_rng(0).uniform(size=(4, *model.input_shape[1:])).astype("float32")
    raw, again = (np.asarray(one(x, training=False)) for one in (model, copied))
    if not np.allclose(raw, again, rtol=1e-3, atol=1e-5, equal_nan=True):
        raise ValueError(
            "with the same weights the copy computes other values, because some layer keeps more "
            "than its weights and what `get_config` returns. Give a Normalization layer `mean` "
            "and `variance` instead of calling `adapt`"
        )
