"""Find sums in Keras models that Keras computes wrongly for some numbers of rows."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from skuq import backend


def wrong_sum(model: Any) -> str | None:
    """Say which sum of a model Keras computes wrongly, and what to do; None if there is none.

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
                    return (
                        f"{operation.name!r} adds a term of shape {term} to one of shape {first}, "
                        f"of each row. In batches of {' or '.join(map(str, n_rows))} rows Keras "
                        "takes it for a bias. Make the smaller term the first one of the sum."
                    )
                first = max(first, term, key=math.prod)
    return None


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
