"""Activation functions on arrays, by Keras' names, with which a plan predicts in NumPy.

In training the same names mean Keras' own functions, and tests compare the two. They are written
with functions that are fast in NumPy: tanh, exp, maximum and minimum, but not where or logaddexp.
"""

from __future__ import annotations

import math

import numpy as np
from scipy import special

_SELU_SCALE, _SELU_ALPHA = 1.0507009873554805, 1.6732632423543772


def _elu(x, alpha=1.0):
    return np.maximum(x, 0) + alpha * np.expm1(np.minimum(x, 0))


def _softplus(x):
    return np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))


def mish(xp, x):
    """Compute ``x * tanh(softplus(x))`` with a single exponential.

    With e = exp(x) and n = e (e + 2), tanh(log(1 + e)) = n / (n + 2). For x > 20 it rounds to 1.
    """
    e = xp.exp(xp.minimum(x, 20.0))
    n = e * (e + 2.0)
    return x * (n / (n + 2.0))


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
    "silu": lambda x: x * special.expit(x),
    "mish": lambda x: mish(np, x),
    "softplus": _softplus,
    "softsign": lambda x: x / (1 + np.abs(x)),
    "exponential": np.exp,
}


def _gelu_slope(xp, x):
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
