"""Parts of a plan's operations: array namespaces and the state of one pass.

Notation: arrays are (.., n_samples, n_features), where .. is nothing or (n_members,).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from skuq.networks._activations import ACTIVATIONS, mish


class Namespace(NamedTuple):
    """Source of array functions and activations: NumPy, or Keras' operations.

    `cosine` takes turns, not radians: it is cos(2 pi x). `integers` makes whole numbers int32.
    """

    xp: Any
    activation: Callable[[str], Callable]
    cosine: Callable = lambda x: np.cos(2 * np.pi * x)
    integers: Callable = lambda x: x.astype("int32")


ARRAYS = Namespace(np, ACTIVATIONS.__getitem__)


@functools.cache
def tensors(xla: bool = False) -> Namespace:
    """Keras' operations and activations; loads the backend.

    Parameters
    ----------
    xla : bool, default=False
        For a program that XLA compiles. There, on a CPU, a cosine is a call for every number;
        a polynomial, which is right to the last digits of float32, takes a fifth of the time.
    """
    from skuq.backend import keras, ops

    def activation(name):
        if name == "silu":
            # TensorFlow's own has a gradient that it registers for good, and that keeps
            # every graph it was ever traced in.
            return lambda x: x * ops.sigmoid(x)
        if name == "mish" and xla:  # a plain graph would pass over memory once an operation
            return lambda x: mish(ops, x)
        return keras.activations.get(name)

    def cosine(x):
        if not xla or keras.backend.standardize_dtype(x.dtype) != "float32":
            return ops.cos(2 * np.pi * x)
        x = x - ops.round(x)
        square, y = x * x, 0.0
        for coefficient in _cosine_coefficients()[::-1]:
            y = y * square + np.float32(coefficient)
        return y

    return Namespace(ops, activation, cosine, lambda x: ops.cast(x, "int32"))


@functools.cache
def _cosine_coefficients() -> np.ndarray:
    """Coefficients of a polynomial in x**2 that is cos(2 pi x) to 1e-9 on [-0.5, 0.5]."""
    polynomial = np.polynomial.Chebyshev.interpolate(
        lambda square: np.cos(2 * np.pi * np.sqrt(square)), 7, domain=[0, 0.25]
    )
    return polynomial.convert(kind=np.polynomial.Polynomial).coef


@dataclass(frozen=True, eq=False)
class Run:
    """State of one pass through a plan, besides its weights and input.

    Attributes
    ----------
    namespace : Namespace
    training : bool
        Batch normalisation uses the batch's own statistics.
    is_real : array of shape (n_samples,), optional
        1 for rows that count in batch statistics, 0 for the filling of a last batch.
    dropout_mask : callable, optional
        ``(layer number, rate, shape) -> mask`` to multiply with, of mean 1; without it
        nothing is dropped.
    index : array of shape (.., n_draws, n_index), optional
        Epistemic indices, for networks of several predictions a row.
    """

    namespace: Namespace = ARRAYS
    training: bool = False
    is_real: Any = None
    dropout_mask: Callable | None = None
    index: Any = None


FORWARD = Run()  # prediction in NumPy


class Weight(NamedTuple):
    """A trainable variable: its shape, and its l1 and l2 penalty."""

    shape: tuple[int, ...]
    l1: float = 0.0
    l2: float = 0.0


class NoPlan(Exception):
    """Raised while reading a configuration that cannot be planned."""


def penalty(config):
    """(l1, l2) of a regulariser's configuration."""
    if config is None:
        return 0.0, 0.0
    values = config["config"]
    allowed = {"L1": ("l1",), "L2": ("l2",), "L1L2": ("l1", "l2")}.get(config["class_name"])
    if allowed is None:
        raise NoPlan
    return tuple(float(values.get(name, 0.0)) if name in allowed else 0.0 for name in ("l1", "l2"))


def check_activation(name):
    if name not in ACTIVATIONS:
        raise NoPlan
    return name


def row(vector):
    """A member's vector (.., n) so that it broadcasts over rows: (.., 1, n)."""
    return vector if len(vector.shape) == 1 else vector[..., None, :]


def joined(xp, values):
    """Values (.., n_samples, n_features) beside each other."""
    if len(values) == 1:
        return values[0]
    # A value that no weight has touched yet has no member axis.
    rank = max(len(value.shape) for value in values)
    lead = next(v.shape[: rank - 2] for v in values if len(v.shape) == rank)
    values = [v if len(v.shape) == rank else xp.broadcast_to(v, (*lead, *v.shape)) for v in values]
    return xp.concatenate(values, axis=-1)
