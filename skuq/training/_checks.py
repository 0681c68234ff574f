"""Check before training that a network can be trained and stored."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from skuq import backend
from skuq._warnings import warn_user
from skuq.exceptions import SearchSpaceError
from skuq.networks._builders import check_builder
from skuq.networks._plan import make_plan
from skuq.networks._rebuild import check_rebuild
from skuq.training._weights import fixed_variables


def build_checked(
    build: Callable[..., Any], input_shape: tuple[int, ...], n_raw: int, source: str
) -> Any:
    """Build the Keras model of a user's function, and check it.

    Parameters
    ----------
    build : callable
        ``build(input_shape, n_outputs) -> keras.Model``.
    source : str
        Name of the function's origin, with which error messages begin ("The search space").

    Raises
    ------
    SearchSpaceError
        If the function raises an error, or its model cannot be trained.
    """
    backend.check_fork()  # an error of `build` would hide it
    check_builder(source, build)
    try:
        model = build(input_shape, n_raw)
    except SearchSpaceError:  # it says already what is wrong
        raise
    except Exception as error:
        raise SearchSpaceError(
            f"{source} raised {type(error).__name__} while building: {error}"
        ) from error
    if not isinstance(model, backend.keras.Model):
        raise SearchSpaceError(f"{source} must return a keras.Model. Got {type(model).__name__}.")
    _check_shapes(model, input_shape, n_raw, source)
    if not model.trainable_variables:
        raise SearchSpaceError(f"{source} returned a model without trainable weights.")
    _check_layers(model, source)
    _check_rebuilt(model, source)
    _warn_of_random_values(model, lambda: build(input_shape, n_raw))
    return model


def _check_shapes(model: Any, input_shape: tuple[int, ...], n_raw: int, source: str) -> None:
    """Raise SearchSpaceError unless a model has one input and one output of these shapes."""
    try:
        if not model.built:
            model.build((None, *input_shape))
        inputs, outputs = model.input_shape, model.output_shape
    except Exception as error:
        raise SearchSpaceError(
            f"{source} must return a Sequential or functional model. Got a "
            f"{type(model).__name__} whose shapes are unknown ({type(error).__name__}: {error})."
        ) from error
    for name, got, wanted in (
        ("input", inputs, (None, *input_shape)),
        ("output", outputs, (None, n_raw)),
    ):
        if got != wanted:
            raise SearchSpaceError(
                f"{source} must return a model with one {name} of shape {wanted} "
                f"(the function gets `input_shape` and `n_outputs`). Got {got}."
            )


def _check_layers(model: Any, source: str) -> None:
    """Raise SearchSpaceError if layers do not compute float32, or have constraints."""
    layers = list(model._flatten_layers())
    types = {str(v.dtype) for v in model.trainable_variables}
    types |= {layer.compute_dtype for layer in layers}
    if types != {"float32"}:
        raise SearchSpaceError(
            f"{source} must return a model that holds and computes float32. "
            f"Got {sorted(types)}. Unset a global dtype policy, if there is one."
        )
    for layer in layers:
        for name in vars(layer):
            if name.endswith("_constraint") and getattr(layer, name) is not None:
                raise SearchSpaceError(
                    f"Layer {layer.name!r} has a {name}, and training programs apply no "
                    "constraints. Remove it, or use a regularizer."
                )


def _check_sums(model: Any, source: str) -> None:
    """Raise SearchSpaceError for an Add layer that adds one number to each row's many.

    With as many rows as numbers, Keras takes these for a bias, one for each column.
    """
    for layer in model._flatten_layers():
        if not isinstance(layer, backend.keras.layers.Add) or not layer._inbound_nodes:
            continue
        # Sizes that are known only in use count as 0.
        sizes = {math.prod(n or 0 for n in tensor.shape[1:]) for tensor in layer.input}
        if 1 in sizes and len(sizes) > 1:
            raise SearchSpaceError(
                f"{source} returned a model whose layer {layer.name!r} adds one number to "
                f"{max(sizes)}, which Keras does wrongly for batches of {max(sizes)} rows. Repeat "
                "the number, for example by a Dense layer of that many units."
            )


def _warn_of_random_values(model: Any, build_again: Callable[[], Any]) -> None:
    """Warn if variables that keep the values of the model have other values in another model."""
    kept = fixed_variables(model)
    if all(np.ptp(variable.numpy()) == 0 for variable in kept):
        return
    others = fixed_variables(build_again())
    for variable, other in zip(kept, others):
        if not np.array_equal(variable.numpy(), other.numpy(), equal_nan=True):
            warn_user(
                f"Variable {variable.path} is not trained, or has no initializer that its layer "
                f"names `{variable.name}_initializer`. Its value depends on Keras' global seed: "
                "results do not repeat, unless you call keras.utils.set_random_seed or set the "
                "value in your function."
            )
            return


def _check_rebuilt(model: Any, source: str) -> None:
    """Raise SearchSpaceError if a model cannot be rebuilt from its configuration.

    A member is stored as this configuration, and its model is rebuilt to predict.
    """
    if make_plan(model.to_json()) is not None:
        return
    _check_sums(model, source)
    try:
        check_rebuild(model)
    except Exception as error:
        raise SearchSpaceError(
            f"{source} returned a model that cannot be rebuilt from its configuration "
            f"({type(error).__name__}: {error}). Use Keras' own layers."
        ) from error
