"""Checks of the functions by which users build networks."""

from __future__ import annotations

import inspect
import sys
import types
from typing import Any

import numpy as np

from skuq.exceptions import SearchSpaceError


def check_builder(
    name: str, build: Any, arguments: str = "input_shape, n_outputs", advice: str = ""
) -> None:
    """Raise SearchSpaceError if a parameter is a network, or a function of other arguments.

    `arguments` are those of the function, separated by commas. `advice` ends the message about
    other arguments.
    """
    keras = sys.modules.get("keras")  # if it is not loaded, nothing can be a model
    if keras is not None:
        if isinstance(build, type) and issubclass(build, keras.Layer):
            got = f"the class {build.__name__}"
        elif isinstance(build, keras.Layer):
            kind = "network" if isinstance(build, keras.Model) else "layer"
            got = f"one {kind}, a {type(build).__name__}: every member and trial needs its own"
        else:
            got = ""
        if got:
            raise SearchSpaceError(
                f"{name} must be a function that builds a network. Got {got}. Give "
                f"`build({arguments})`, which returns a new keras.Model at each call."
            )
    try:
        signature = inspect.signature(build)
    except (TypeError, ValueError):  # some builtins have no signature
        return
    try:
        signature.bind(*arguments.split(", "))
    except TypeError as error:
        given = getattr(build, "__name__", type(build).__name__)
        raise SearchSpaceError(
            f"{name} must be a function `build({arguments})`. Got `{given}{signature}`.{advice}"
        ) from error


def check_units(name: str, given: Any) -> list[int]:
    """Check a parameter with the number of units of each hidden layer."""
    try:
        units = np.atleast_1d(given)
        usable = units.ndim == 1 and units.dtype.kind in "iu" and (units >= 1).all()
    except ValueError:  # nested sequences of different lengths
        usable = False
    if not usable or not len(units):
        raise ValueError(
            f"`{name}` must be positive integers, one for each hidden layer. Got {given!r}."
        )
    return [int(n) for n in units]


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
