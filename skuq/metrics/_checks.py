"""Check the arguments of scores, and compute weighted means over rows.

Notation of the package: n rows, m outputs (the last axis is absent if y is 1-D), K members of an
ensemble, C classes.
"""

from __future__ import annotations

import numpy as np
from sklearn.utils import check_consistent_length

from skuq._utils._checks import (
    as_floats,
    check_member_weights,
    check_probabilities,
    check_weights,
)

# Tolerance for sums of probabilities, which are often given in single or half precision.
_SUM_TOLERANCE = 1e-3


def check_arrays(*, finite=True, **arrays) -> list[np.ndarray]:
    """Check that arrays have one length and at least one row, and return them as floats.

    One named `std` must be positive.
    """
    arrays = {name: as_floats(values, name) for name, values in arrays.items()}
    for name, values in arrays.items():
        if values.ndim == 0 or not values.size:
            raise ValueError(f"`{name}` must have at least one row. Got shape {values.shape}.")
        if finite and not np.isfinite(values).all():
            raise ValueError(f"`{name}` must be finite. Got NaN or infinity.")
        if not finite and np.isnan(values).any():
            raise ValueError(f"`{name}` must be numbers. Got NaN.")
    check_consistent_length(*arrays.values())
    if "std" in arrays:
        check_positive("std", arrays["std"])
    return list(arrays.values())


def check_same_shape(*, finite=True, one_output=False, **arrays) -> list[np.ndarray]:
    """Check that arrays have one shape, (n,) or (n, m).

    With `one_output` the shape must be (n,).
    """
    checked = check_arrays(finite=finite, **arrays)
    first, *others = arrays
    shape = checked[0].shape
    if len(shape) > 2:
        raise ValueError(
            f"`{first}` must have shape (n_samples,) or (n_samples, n_outputs). Got {shape}."
        )
    for name, values in zip(others, checked[1:]):
        if values.shape != shape:
            raise ValueError(
                f"`{name}` must have the shape of {first}, {shape}. Got {values.shape}."
            )
    if one_output and len(shape) > 1:
        raise ValueError(f"`{first}` must have shape (n_samples,). Got {shape}.")
    return checked


def check_intervals(lower, upper, **y_true) -> list[np.ndarray]:
    """Check targets (if given) and ends of intervals, all of one shape, which may be infinite."""
    arrays = {**y_true, "lower": lower, "upper": upper}
    *y, lower, upper = check_same_shape(finite=False, **arrays)
    wrong = np.flatnonzero((lower > upper).reshape(len(lower), -1).any(axis=1))
    if len(wrong):
        raise ValueError(
            f"`lower` must not exceed `upper`. It does in {len(wrong)} rows, first in "
            f"row {wrong[0]}: {lower[wrong[0]]} and {upper[wrong[0]]}."
        )
    return [*y, lower, upper]


def check_positive(name: str, values: np.ndarray) -> None:
    """Raise ValueError unless all values are positive."""
    if not (values > 0).all():
        raise ValueError(f"`{name}` must be positive. The smallest is {values.min()}.")


def check_inside_unit(name: str, value) -> None:
    """Raise ValueError unless a number lies strictly between 0 and 1."""
    if not 0 < value < 1:
        raise ValueError(f"`{name}` must lie strictly in (0, 1). Got {value}.")


def check_choice(name: str, value, choices) -> None:
    """Raise ValueError unless a value is one of the choices."""
    if value not in choices:
        raise ValueError(f"`{name}` must be one of {list(choices)}. Got {value!r}.")


def average(values: np.ndarray, sample_weight) -> np.ndarray:
    """Average over rows with weights, separately for each output."""
    weight = check_weights(sample_weight, values)
    used = weight > 0  # rows of weight 0 can be infinite
    return np.average(values[used], axis=0, weights=weight[used])


def check_members(y_true, loc, scale, weights):
    """Check y (n[, m]), loc and scale (K, n[, m]) and weights (K,); drop members of weight 0."""
    (y,) = check_same_shape(y_true=y_true)
    loc, scale = check_arrays(loc=loc, scale=scale)
    for name, values in (("loc", loc), ("scale", scale)):
        if values.shape[1:] != y.shape:
            raise ValueError(
                f"`{name}` must have shape (n_members, *y_true.shape), here (n_members, "
                f"{', '.join(map(str, y.shape))}). Got {values.shape}."
            )
    check_positive("scale", scale)
    weights = check_member_weights(weights, len(loc))
    used = weights > 0
    return (y, loc, scale, weights) if used.all() else (y, loc[used], scale[used], weights[used])


def check_proba(proba, *, name: str = "proba", members: bool = False) -> np.ndarray:
    """Check class probabilities (n, C), or (K, n, C) of members."""
    (proba,) = check_arrays(**{name: proba})
    axes = ("n_members", "n_samples", "n_classes") if members else ("n_samples", "n_classes")
    if proba.ndim != len(axes):
        raise ValueError(f"`{name}` must have shape ({', '.join(axes)}). Got {proba.shape}.")
    check_probabilities(f"Each row of `{name}`", proba, -1, tolerance=_SUM_TOLERANCE)
    return proba
