"""Parts of plans: activation functions, array namespaces, settings of one forward pass.

Activations have Keras' names. In training the same names mean Keras' own functions, and tests
compare the two. Here they are written with functions that are fast in NumPy: tanh, exp, maximum
and minimum, but not where or logaddexp.

Notation: arrays are (.., n_samples, n_features), where .. is nothing or (n_members,).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from scipy import special

FEW = 2048  # entries of an array for which fewer operations count more than fast ones
_SELU_SCALE, _SELU_ALPHA = 1.0507009873554805, 1.6732632423543772


def _elu(x, alpha=1.0):
    return np.maximum(x, 0) + alpha * np.expm1(np.minimum(x, 0))


def mish(xp, x):
    """Compute ``x * tanh(softplus(x))`` with a single exponential.

    With e = exp(x) and n = e (e + 2), tanh(log(1 + e)) = n / (n + 2). For x > 20 it rounds to 1.
    """
    e = xp.exp(xp.minimum(x, 20.0))
    n = e * (e + 2.0)
    return x * (n / (n + 2.0))


def _silu(x):
    """Compute ``x / (1 + exp(-x))``; for large arrays in a third of the time of SciPy's sigmoid."""
    if x.size < FEW:
        return x * special.expit(x)
    with np.errstate(over="ignore"):  # far below zero the result is -x / inf = 0
        y = np.exp(-x)
    y += 1
    return np.divide(x, y, out=y)


ACTIVATIONS = {
    "linear": lambda x: x,
    "relu": lambda x: np.maximum(x, 0),
    "leaky_relu": lambda x: np.maximum(x, 0.2 * x),
    "tanh": np.tanh,
    "sigmoid": special.expit,
    "hard_sigmoid": lambda x: np.minimum(np.maximum(x / 6 + 0.5, 0), 1),
    "elu": _elu,
    "selu": lambda x: _SELU_SCALE * _elu(x, _SELU_ALPHA),
    "gelu": lambda x: x * special.ndtr(x),
    "silu": _silu,
    "mish": lambda x: mish(np, x),
    "softplus": lambda x: np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x))),
    "softsign": lambda x: x / (1 + np.abs(x)),
    "exponential": np.exp,
}


def _gelu_slope(xp, x):
    # gelu(x) = x cdf(x), with the cdf and the density of a standard normal.
    cdf = special.ndtr(x) if xp is np else 0.5 * (1.0 + xp.erf(x / math.sqrt(2)))
    return cdf + x * xp.exp(-0.5 * x * x) / math.sqrt(2 * math.pi)


def _silu_slope(xp, x):
    sigmoid = special.expit(x) if xp is np else xp.sigmoid(x)
    return sigmoid * (1.0 + x * (1.0 - sigmoid))


#: Derivatives of smooth activations, as functions of a namespace of arrays and x.
SLOPES = {
    "tanh": lambda xp, x: 1.0 - xp.tanh(x) ** 2,
    "gelu": _gelu_slope,
    "silu": _silu_slope,
}


def _polynomial(function, degree, end):
    """Compute the coefficients of the polynomial that interpolates a function on [0, end]."""
    fitted = np.polynomial.Chebyshev.interpolate(function, degree, domain=[0, end])
    return fitted.convert(kind=np.polynomial.Polynomial).coef


# In x**2: cos(2 pi x) to 1e-9 on [-0.5, 0.5], and -sin(2 pi x) / x to 1e-15 on [-0.25, 0.25].
_COSINE = _polynomial(lambda square: np.cos(2 * np.pi * np.sqrt(square)), 7, 0.25)
_SINE = _polynomial(lambda square: -2 * np.pi * np.sinc(2 * np.sqrt(square)), 8, 0.0625).tolist()


def _cosine(x):
    """Compute cos(2 pi x) to 1e-15; for large arrays in a third of the time of NumPy's cosine."""
    if x.size < FEW:
        return np.cos(2 * np.pi * x)
    # The cosine has a period of one turn and is even: it equals -sin(2 pi t), t = |x| - 0.25.
    t = np.rint(x)
    np.subtract(x, t, out=t)
    np.abs(t, out=t)
    t -= 0.25
    square = t * t
    first, *others, last = _SINE
    y = last * square
    for coefficient in others[::-1]:  # Horner's rule
        y += coefficient
        y *= square
    y += first
    y *= t
    return y


class Namespace(NamedTuple):
    """Source of array functions and activations: NumPy, or Keras' operations.

    `cosine` takes turns instead of radians: it computes cos(2 pi x). `integers` converts whole
    numbers to int32.
    """

    xp: Any
    activation: Callable[[str], Callable]
    cosine: Callable = _cosine
    integers: Callable = lambda x: x.astype("int32")


ARRAYS = Namespace(np, ACTIVATIONS.__getitem__)


@functools.cache
def tensors(xla: bool = False) -> Namespace:
    """Make the namespace of Keras' operations and activations; this loads the backend.

    Parameters
    ----------
    xla : bool, default=False
        Whether XLA compiles the program. XLA on a CPU calls a library function for every cosine.
        The polynomial used instead is accurate to float32 and takes a fifth of the time.
    """
    from skuq.backend import keras, ops

    def activation(name):
        if name == "silu":
            # TensorFlow's own silu registers a gradient function that is never freed and keeps
            # every graph that it was traced in.
            return lambda x: x * ops.sigmoid(x)
        if name == "mish" and xla:  # XLA fuses its operations; a plain graph would not
            return lambda x: mish(ops, x)
        return keras.activations.get(name)

    def cosine(x):
        if not xla or keras.backend.standardize_dtype(x.dtype) != "float32":
            return ops.cos(2 * np.pi * x)
        x = x - ops.round(x)  # to [-0.5, 0.5]: the cosine has a period of one turn
        square, y = x * x, 0.0
        for coefficient in _COSINE[::-1]:  # Horner's rule
            y = y * square + np.float32(coefficient)
        return y

    return Namespace(ops, activation, cosine, lambda x: ops.cast(x, "int32"))


@dataclass(frozen=True, eq=False)
class Run:
    """Settings of one forward pass, other than weights and input.

    Attributes
    ----------
    namespace : Namespace
        NumPy or Keras' operations.
    training : bool
        Whether batch normalisation uses the batch's own statistics.
    is_real : array of shape (n_samples,), optional
        1 for rows that count in batch statistics, 0 for padding.
    dropout_mask : callable, optional
        ``(layer number, rate, shape) -> mask`` makes a mask of mean 1 to multiply with. Without
        it no units are dropped.
    index : array of shape (.., n_draws, n_index), optional
        Epistemic indices, for networks with several predictions a row.
    prior : array of shape (.., n_samples, n_raw), optional
        Outputs of a frozen prior network, where they are known already.
    """

    namespace: Namespace = ARRAYS
    training: bool = False
    is_real: Any = None
    dropout_mask: Callable | None = None
    index: Any = None
    prior: Any = None


FORWARD = Run()  # settings of a prediction in NumPy


class Weight(NamedTuple):
    """A trainable variable: its shape, and the factors of its l1 and l2 penalties."""

    shape: tuple[int, ...]
    l1: float = 0.0
    l2: float = 0.0


class LayerSpec(NamedTuple):
    """Specification of one layer of a plan, read from the layer's configuration.

    Attributes
    ----------
    operation : callable
        ``(run, weights, state, *inputs) -> (output, new state)``
    weights : list of Weight
        The layer's trainable variables, in Keras' order.
    shape : tuple of int
        Shape of the output, for one row.
    n_state : int, default=0
        Number of non-trainable variables.
    """

    operation: Any
    weights: list[Weight]
    shape: tuple[int, ...]
    n_state: int = 0


class NoPlan(Exception):
    """Error that is raised for configurations that cannot be planned."""


def penalty(config):
    """Read (l1, l2) from a regulariser's configuration."""
    if config is None:
        return 0.0, 0.0
    values = config["config"]
    allowed = {"L1": ("l1",), "L2": ("l2",), "L1L2": ("l1", "l2")}.get(config["class_name"])
    if allowed is None:
        raise NoPlan
    return tuple(float(values.get(name, 0.0)) if name in allowed else 0.0 for name in ("l1", "l2"))


def check_activation(name):
    """Return the name of an activation that plans have, or raise NoPlan."""
    if name not in ACTIVATIONS:
        raise NoPlan
    return name


def split_weights(flat: np.ndarray, shapes: Sequence[tuple[int, ...]]) -> list[np.ndarray]:
    """Split flat weights (.., n_weights) into views of the variables (.., *shape)."""
    ends = np.cumsum([math.prod(shape) for shape in shapes])[:-1]
    parts = np.split(flat, ends, axis=-1)
    return [part.reshape(flat.shape[:-1] + tuple(shape)) for part, shape in zip(parts, shapes)]


def row(xp, vector):
    """Reshape vectors (.., n) to (.., 1, n), so that they broadcast over rows."""
    return vector if len(vector.shape) == 1 else xp.expand_dims(vector, -2)


def concatenate_features(xp, values):
    """Concatenate values (.., n_samples, n_features) along their features."""
    if len(values) == 1:
        return values[0]
    # Values that were computed without weights have no member axis yet.
    rank = max(len(value.shape) for value in values)
    lead = next(v.shape[: rank - 2] for v in values if len(v.shape) == rank)
    values = [v if len(v.shape) == rank else xp.broadcast_to(v, (*lead, *v.shape)) for v in values]
    return xp.concatenate(values, axis=-1)
