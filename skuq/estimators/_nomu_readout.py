"""NOMU's trained networks as affine functions of ReLU units, for mixed integer programmes.

A network's plan needs only products, sums and concatenation. Here it runs on affine expressions of
the inputs and of the units so far, in place of arrays, and records every ReLU layer it meets.
"""

from __future__ import annotations

import types
from typing import Any

import numpy as np

from skuq.bayesopt._milp import ReluReadout
from skuq.networks._plan import Namespace, Run, make_plan


def read_readout(fitted) -> ReluReadout:
    """Read the weights of a `FittedNomu` of one output, in units of X and of y.

    Raises ValueError if a mixed integer programme cannot hold its bound.
    """
    _check(fitted)
    network, head, readout = fitted.network, fitted.network.head, fitted.readout
    x, y = fitted.inputs.scaling, fitted.targets.scaling
    trace = _Trace(len(x.mean_))
    inputs = (trace.inputs - x.mean_) * (1 / x.scale_)
    output = trace.run(network.member, inputs)
    raw = output[head.n_outputs * head.with_mean :]
    mean = output if network.mean_member is None else trace.run(network.mean_member, inputs)
    mean = mean[:1] * y.scale_ + y.mean_
    return ReluReadout(
        tuple(trace.hidden),
        trace.row(mean),
        trace.row(raw),
        float(readout.l_min),
        float(readout.l_max),
        float(readout.c * y.scale_[0]),
    )


def _check(fitted):
    readout, n_outputs, wrong = fitted.readout, fitted.targets.n_outputs, None
    if readout.kind != "linear":
        wrong = f'readout="linear" (Remark 3.2). Got {readout.kind!r}'
    elif readout.bounds != "symmetric":
        wrong = f'bounds="symmetric". Got {readout.bounds!r}'
    elif fitted.network.given is not None:
        wrong = "a prediction of its own: `pretrained` is some other model"
    elif fitted.inputs.encodes:
        wrong = "the columns of X as they are, and `preprocess` makes others of them"
    elif n_outputs != 1:
        wrong = f"one output. Got {n_outputs}"
    if wrong is not None:
        raise ValueError(f"A mixed integer programme needs {wrong}.")


class _Trace:
    """Record of the ReLU layers met so far; `hidden` is as in `ReluReadout`."""

    def __init__(self, n_inputs):
        self.hidden, self._n = [], n_inputs
        self.inputs = _Affine(np.eye(n_inputs), np.zeros(n_inputs))

    def run(self, member, inputs):
        """Run a member's network on expressions."""
        plan = make_plan(member.network)
        if plan is None:
            raise ValueError("A mixed integer programme needs a network of dense layers.")
        weights = plan.split(np.asarray(member.weights, dtype="float64"))
        state = [np.asarray(value, dtype="float64") for value in member.state]
        xp = types.SimpleNamespace(
            matmul=lambda x, kernel: x @ kernel, concatenate=_concatenate, sqrt=np.sqrt
        )
        try:
            return plan(weights, state, inputs, Run(Namespace(xp, self._activation)))[0]
        except (AttributeError, TypeError) as error:
            raise ValueError(
                "A mixed integer programme needs networks of dense layers with ReLUs. Some layer "
                f"is another: {error}."
            ) from error

    def row(self, expression):
        """Get the weights (n_all,) and the offset of an expression of one column."""
        return expression.padded(self._n)[:, 0], float(expression.bias[0])

    def _activation(self, name):
        if name == "linear":
            return lambda x: x
        if name != "relu":
            raise ValueError(
                'A mixed integer programme needs activation="relu" in all hidden layers. '
                f"Got {name!r}."
            )
        return self._relu

    def _relu(self, x):
        """Record a ReLU layer, unless it is known, and return its units as expressions."""
        first = len(self.inputs.bias)
        for kernel, bias in self.hidden:  # frozen copies of the mean's layers are the same units
            if np.array_equal(x.bias, bias) and np.array_equal(x.padded(len(kernel)), kernel):
                return self._units(first, len(bias))
            first += len(bias)
        self.hidden.append((x.padded(self._n), x.bias))
        self._n += len(x.bias)
        return self._units(first, len(x.bias))

    @staticmethod
    def _units(first, n):
        return _Affine(np.eye(first + n)[:, first:], np.zeros(n))


class _Affine:
    """Affine expression ``v @ kernel + bias``, in place of an array (n_samples, n_columns)."""

    __array_ufunc__ = None  # `array * expression` calls the expression's method

    def __init__(self, kernel, bias):
        self.kernel, self.bias = kernel, bias

    dtype = np.dtype("float64")

    @property
    def shape(self) -> tuple[Any, int]:
        return None, len(self.bias)

    def padded(self, n):
        """Pad the kernel with zeros to (n, n_columns), for the first n entries of v."""
        return np.pad(self.kernel, ((0, n - len(self.kernel)), (0, 0)))

    def __matmul__(self, matrix):
        return _Affine(self.kernel @ matrix, self.bias @ matrix)

    def __mul__(self, factor):
        return _Affine(self.kernel * factor, self.bias * factor)

    def __add__(self, other):
        if isinstance(other, _Affine):
            n = max(len(self.kernel), len(other.kernel))
            return _Affine(self.padded(n) + other.padded(n), self.bias + other.bias)
        return _Affine(self.kernel, self.bias + other)

    def __sub__(self, offset):
        return _Affine(self.kernel, self.bias - offset)

    def __getitem__(self, columns):
        return _Affine(self.kernel[:, columns], self.bias[columns])


def _concatenate(expressions, axis):
    n = max(len(expression.kernel) for expression in expressions)
    return _Affine(
        np.hstack([expression.padded(n) for expression in expressions]),
        np.concatenate([expression.bias for expression in expressions]),
    )
