"""Check, repair and rebuild the Keras models that users build and that are stored."""

import inspect
import itertools
import re
import types
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from skuq import backend
from skuq.exceptions import SearchSpaceError


def check_builder(
    name: str, build: Any, arguments: str = "input_shape, n_outputs", advice: str = ""
) -> None:
    """Raise SearchSpaceError if a parameter is a network, or a function of other arguments.

    `arguments` are those of the function, separated by commas. `advice` ends the message about
    other arguments.
    """
    keras = backend.loaded("keras")  # if it is not loaded, nothing can be a model
    is_class = isinstance(build, type)
    if keras is not None and issubclass(build if is_class else type(build), keras.Layer):
        kind = "network" if isinstance(build, keras.Model) else "layer"
        got = f"one {kind}, a {type(build).__name__}: every member and trial needs its own"
        got = f"the class {build.__name__}" if is_class else got
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


def build_of_shape(
    build: Callable[..., Any], input_shape: tuple[int, ...], n_outputs: int, source: str
) -> Any:
    """Build the Keras model of a user's function; raise SearchSpaceError if it has other shapes.

    `source` names the function in messages.
    """
    keras = backend.keras  # raises errors that one of `build` would hide
    check_builder(source, build)
    try:
        model = build(input_shape, n_outputs)
    except SearchSpaceError:  # it says already what is wrong
        raise
    except Exception as error:
        raise SearchSpaceError(
            f"{source} raised {type(error).__name__} while building: {error}"
        ) from error
    if not isinstance(model, keras.Model):
        raise SearchSpaceError(f"{source} must return a keras.Model. Got {type(model).__name__}.")
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
        ("output", outputs, (None, n_outputs)),
    ):
        if got != wanted:
            raise SearchSpaceError(
                f"{source} must return a model with one {name} of shape {wanted} "
                f"(the function gets `input_shape` and `n_outputs`). Got {got}."
            )
    return model


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
    keras_tuner = backend.loaded("keras_tuner")
    if keras_tuner is None:
        return given
    given = given.hypermodel if isinstance(given, keras_tuner.Tuner) else given
    if not isinstance(given, keras_tuner.HyperModel):
        return given
    if type(given).build is keras_tuner.HyperModel.build:  # a tuner's wrapper of a function
        return given.build
    # Use the method of the class, because Keras-Tuner wraps that of the object in a function of
    # any arguments.
    return types.MethodType(type(given).build, given)


_Shape = tuple[int, ...]


def wrong_sum(model: Any) -> str | None:
    """Say which sum of a model Keras computes wrongly, and what to do; None if there is none.

    `keras.ops.add` takes the second of two terms for a bias if all its axes but one have length 1,
    and this one is as long as the second or the last axis of the first term. Rows are an axis, too:
    a term of one number for each row looks like a bias if there are as many rows as units.
    """
    for name, shapes in _sums(model):
        first, *terms = shapes
        for term in terms:
            if n_rows := _rows_of_wrong_sums(first, term):
                both = _rows_of_wrong_sums(term, first)
                return (
                    f"{name!r} adds a tensor of shape {(None, *term)} to one of shape "
                    f"{(None, *first)}. With {' or '.join(map(str, n_rows))} rows Keras mistakes "
                    "it for a bias, and adds it along the wrong axis. "
                    + ("Write `a - (-b)` instead of `a + b`." if both else "Swap the two terms.")
                )
            # The next term is added to the sum so far, whose shape follows from broadcasting.
            pairs = itertools.zip_longest(first[::-1], term[::-1], fillvalue=1)
            first = tuple(b if a == 1 else a for a, b in pairs)[::-1]
    return None


def _sums(model: Any) -> Iterator[tuple[str, list[_Shape]]]:
    """Yield name and shapes of the terms of each sum, in models inside of the model as well.

    Shapes are without the axis of rows, and sizes that are known only in use are 0.
    """
    for part in backend.flatten_layers(model):
        by_depth = getattr(part, "_nodes_by_depth", {})  # only functional models have it
        for node in itertools.chain(*by_depth.values()):
            operation = node.operation
            if type(operation).__name__ not in ("Add", "Average"):
                continue
            shapes = [tuple(n or 0 for n in t.shape[1:]) for t in node.input_tensors]
            if isinstance(operation, backend.keras.Layer):  # it gives all terms the same rank
                rank = max(map(len, shapes))
                shapes = [(1,) * (rank - len(shape)) + shape for shape in shapes]
            yield operation.name, shapes


def _rows_of_wrong_sums(first: _Shape, term: _Shape) -> list[int]:
    """List the numbers of rows for which Keras adds this term as a bias along a wrong axis.

    Both shapes are without the axis of rows.
    """
    lengths_of_bias = {first[0], first[-1]} - {0, 1} if first else set()
    axes = [k for k, size in enumerate(term) if size != 1]
    if not axes:  # one number for each row: as many rows as a bias has numbers are taken for one
        return sorted(lengths_of_bias)
    axis, size = axes[0], term[axes[0]]
    if len(axes) > 1 or size not in lengths_of_bias:
        return []
    # With a single row all other axes of the term have length 1. Keras adds it along the last axis
    # of the first term if that is as long, otherwise along the first: a term (3, 1) is added to
    # (3, 5) as it should be, but to (3, 3) along the wrong axis.
    axis_of_bias = len(term) - 1 if size == first[-1] else len(term) - len(first)
    return [] if axis == axis_of_bias else [1]


# Names under which users have registered classes and functions of their own with Keras.
_REGISTERED = re.compile(r'"registered_name": "((?!skuq>)[^">]+>[^"]+)"')


def rebuild(network: str):
    """Rebuild a Keras model from its JSON. It may have layers of this package."""
    from skuq.networks import _tabular_layers  # noqa: F401  # registers the layers with Keras

    model = backend.keras.models.model_from_json(network)
    freeze_inner_layers(model)
    return model


def freeze_inner_layers(model) -> None:
    """Freeze the layers that frozen layers have built for themselves, such as attention's.

    Keras does not, if a layer is made with ``trainable=False``.
    """
    for layer in backend.flatten_layers(model, include_self=False):
        if not layer.trainable:
            for inner in backend.flatten_layers(layer, include_self=False):
                inner.trainable = False


def forget_compilation(model) -> None:
    """Keep losses, metrics and optimisers, which are not used here, out of the configuration."""
    for part in backend.flatten_layers(model):
        if isinstance(part, backend.keras.Model):
            part.compiled = False


def own_classes(network: str) -> tuple:
    """List the user's classes and functions in a model's JSON, as they are registered now.

    Caches of models and programs need them in their keys, as a notebook can define a class again.
    """
    names = sorted(set(_REGISTERED.findall(network)))
    return tuple(backend.keras.saving.get_registered_object(name) for name in names)


def registered_in_main() -> dict:
    """Find the classes and functions of ``__main__`` that are registered with Keras, by name."""
    keras = backend.loaded("keras")  # without it, nothing can be registered
    registered = {} if keras is None else keras.saving.get_custom_objects()
    return {
        name: custom
        for name, custom in registered.items()
        if getattr(custom, "__module__", None) == "__main__" and ">" in name
    }


def register_again(registered: dict) -> None:
    """Register what another process has found with `registered_in_main`."""
    for name, custom in registered.items():
        # Keras joins package and name by ">" when it registers a class.
        package, _, own_name = name.partition(">")
        backend.keras.saving.register_keras_serializable(package, own_name)(custom)


def frozen_variables(layer) -> list[str]:
    """List the frozen variables of a layer that is not frozen itself."""
    return [v.name for v in layer._trainable_variables if layer.trainable and not v.trainable]


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
    # An adapted Normalization keeps statistics that are in neither weights nor configuration.
    normalization = backend.keras.layers.Normalization
    adapts = any(isinstance(layer, normalization) for layer in backend.flatten_layers(model))
    if not adapts and not own_classes(network):  # Keras' other layers keep nothing else
        return
    for variables in ("trainable_variables", "non_trainable_variables"):
        for own, other in zip(getattr(model, variables), getattr(copied, variables), strict=True):
            other.assign(own)
    x = np.random.default_rng(0).uniform(size=(4, *model.input_shape[1:])).astype("float32")
    raw, again = (np.asarray(one(x, training=False)) for one in (model, copied))
    if not np.allclose(raw, again, rtol=1e-3, atol=1e-5, equal_nan=True):
        raise ValueError(
            "with the same weights the copy computes other values, because some layer keeps more "
            "than its weights and what `get_config` returns. Give a Normalization layer `mean` "
            "and `variance` instead of calling `adapt`"
        )
