"""Check before training that a network can be trained and stored."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from skuq import backend
from skuq._warnings import warn_user
from skuq.exceptions import SearchSpaceError
from skuq.networks._builders import check_builder
from skuq.networks._plan import make_plan
from skuq.networks._rebuild import check_rebuild
from skuq.training._weights import kept_values


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
    _check_sums(model, source)
    _check_rebuilt(model, source)
    _warn_of_random_values(model, lambda: build(input_shape, n_raw), source)
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
    """Raise SearchSpaceError for a sum that Keras computes wrongly for some numbers of rows.

    `keras.ops.add` takes the second of two terms for a bias if all its axes but one have length 1,
    and this one is as long as the second or the last axis of the first term. Rows are an axis, too:
    a term of one number for each row looks like a bias if there are as many rows as units.
    """
    for operation in _operations(model):
        if type(operation).__name__ not in ("Add", "Average"):
            continue
        for node in operation._inbound_nodes:
            # Without the axis of rows. Sizes that are known only in use count as 0.
            first, *terms = [tuple(n or 0 for n in t.shape[1:]) for t in node.input_tensors]
            if isinstance(operation, backend.keras.Layer):  # it gives all terms the same rank
                rank = max(map(len, (first, *terms)))
                first, *terms = [(1,) * (rank - len(t)) + t for t in (first, *terms)]
            for term in terms:
                if n_rows := _rows_of_wrong_sums(first, term):
                    raise SearchSpaceError(
                        f"{source} returned a model in which {operation.name!r} adds a term of "
                        f"shape {term} to one of shape {first}, of each row. In batches of "
                        f"{' or '.join(map(str, n_rows))} rows Keras takes it for a bias. Make the "
                        "smaller term the first one of the sum."
                    )
                first = max(first, term, key=math.prod)


def _rows_of_wrong_sums(first: tuple[int, ...], term: tuple[int, ...]) -> list[int]:
    """List the numbers of rows for which Keras adds this term as a bias along a wrong axis.

    Both shapes are without the axis of rows.
    """
    ends = {first[0], first[-1]} - {0, 1} if first else set()
    axes = [k for k, size in enumerate(term) if size != 1]
    if not axes:  # the axis of the bias would be that of the rows
        return sorted(ends)
    (axis, *others), size = axes, term[axes[0]]
    if others or size not in ends:
        return []
    # In a batch of one row only this axis is left. Keras adds it along the last axis of the first
    # term if the lengths agree, otherwise along the second, which is the first one here.
    wanted = len(term) - 1 if size == first[-1] else len(term) - len(first)
    return [] if axis == wanted else [1]


def _operations(model: Any) -> Iterator[Any]:
    """Yield layers and other operations of a model, also those of models inside of it."""
    for layer in model._flatten_layers():
        yield from getattr(layer, "operations", [layer])


def _warn_of_random_values(model: Any, build_again: Callable[[], Any], source: str) -> None:
    """Warn if values that stay as they are have other values in another model."""
    kept = kept_values(model)
    if not kept:
        return
    try:
        others = kept_values(build_again())
    except Exception:  # the function cannot be called twice
        return
    for (name, value), (_, other) in zip(kept, others):
        if not np.array_equal(value, other, equal_nan=True):
            # The same text for every trial of a search, so that it is shown once.
            warn_user(
                f"{source} makes networks with random values, of variables {name!r}, that are not "
                "trained and cannot be drawn again. Results repeat only if you call "
                "keras.utils.set_random_seed before each fit, or set the values in your function."
            )
            return


def _check_rebuilt(model: Any, source: str) -> None:
    """Raise SearchSpaceError if a model cannot be rebuilt from its configuration.

    A member is stored as this configuration, and its model is rebuilt to predict.
    """
    if make_plan(model.to_json()) is not None:
        return
    try:
        check_rebuild(model)
    except Exception as error:
        raise SearchSpaceError(
            f"{source} returned a model that cannot be rebuilt from its configuration "
            f"({type(error).__name__}: {error}). Use Keras' own layers."
        ) from error
