"""Checks of the functions by which users build networks."""

from __future__ import annotations

import inspect
import sys
import types
from collections.abc import Callable
from typing import Any

from skuq.exceptions import SearchSpaceError


def refuse_model(name: str, build: Any, arguments: str = "input_shape, n_outputs") -> None:
    """Raise SearchSpaceError if a parameter is a network, not a function that builds one."""
    keras = sys.modules.get("keras")  # if it is not loaded, nothing can be a model
    if keras is not None and isinstance(build, keras.Model):
        raise SearchSpaceError(
            f"{name} must be a function that builds a network. Got one network, a "
            f"{type(build).__name__}: every member and trial needs its own. Give "
            f"`build({arguments})`, which returns a new keras.Model at each call."
        )


def unpack_hypermodel(given: Any) -> Any:
    """Return the `build` of a Keras-Tuner `HyperModel` or tuner, and anything else as it is."""
    keras_tuner = sys.modules.get("keras_tuner")
    if keras_tuner is None:
        return given
    if isinstance(given, keras_tuner.Tuner):
        given = given.hypermodel
    if not isinstance(given, keras_tuner.HyperModel):
        return given
    if type(given).build is keras_tuner.HyperModel.build:  # a tuner's wrapper of a function
        return given.build
    # Use the method of the class, because Keras-Tuner wraps that of the object in a function of
    # any arguments.
    return types.MethodType(type(given).build, given)


def check_space_arguments(build: Callable[..., Any]) -> None:
    """Raise SearchSpaceError if a function does not take hp, input_shape and n_outputs."""
    try:
        signature = inspect.signature(build)
    except (TypeError, ValueError):  # some builtins have no signature
        return
    try:
        signature.bind("hp", "input_shape", "n_outputs")
    except TypeError as error:
        name = getattr(build, "__name__", type(build).__name__)
        raise SearchSpaceError(
            "`search_space` must be a function `build(hp, input_shape, n_outputs)`. Got "
            f"`{name}{signature}`. To change a `build(hp)` of Keras-Tuner: begin with "
            "keras.Input(input_shape), end with Dense(n_outputs) without an activation, and leave "
            "`compile` out. A second function, `training(hp)`, decides the learning rate and its "
            "like: `search_space=(build, training)`."
        ) from error
