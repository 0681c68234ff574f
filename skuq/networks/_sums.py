"""Find sums in Keras models that Keras computes wrongly for some numbers of rows."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

from skuq import backend

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
            first = _shape_of_sum(first, term)
    return None


def _sums(model: Any) -> Iterator[tuple[str, list[_Shape]]]:
    """Yield name and shapes of the terms of each sum, in models inside of the model as well.

    Shapes are without the axis of rows, and sizes that are known only in use are 0.
    """
    for part in model._flatten_layers():
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


def _shape_of_sum(one: _Shape, other: _Shape) -> _Shape:
    """Compute the shape of a sum, by the rules of broadcasting."""
    pairs = itertools.zip_longest(reversed(one), reversed(other), fillvalue=1)
    return tuple(b if a == 1 else a for a, b in pairs)[::-1]


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
