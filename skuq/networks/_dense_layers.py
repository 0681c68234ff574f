"""Dense layers as plain functions, and the derivatives of their outputs by all weights.

Notation: N rows, P weights.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from skuq.networks._plan_parts import ARRAYS, SLOPES, Namespace

_GRAM_ENTRIES = 2**20  # of a part of the tangent kernel that is computed at once
_LOG_FACTOR = (1.0, 0.01)  # mean and standard deviation of a factor's logarithm at first


@dataclass(frozen=True)
class Dense:
    """A dense layer, optionally with random weight factorisation.

    Parameters
    ----------
    n_inputs, n_units : int
    activation : str
    factorized : bool
        The kernel is ``g * v`` with one factor g for each output; both are trained. This changes
        the optimiser's steps, but not the functions that the layer can represent. At first log(g)
        is normal with mean 1 and standard deviation 0.01, as in the code of NEON's authors.

    References
    ----------
    S. Wang et al., "Random weight factorization improves the training of continuous neural
    representations", 2022.
    """

    n_inputs: int
    n_units: int
    activation: str = "linear"
    factorized: bool = False

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        """Shapes of kernel (or v), bias and, if there is one, g."""
        shapes: list[tuple[int, ...]] = [(self.n_inputs, self.n_units), (self.n_units,)]
        if self.factorized:
            shapes.append((self.n_units,))
        return shapes

    def draw(self, rng) -> list[np.ndarray]:
        """Draw first weights: Glorot's normal kernel, and biases of 0."""
        spread = math.sqrt(2 / (self.n_inputs + self.n_units))
        kernel, bias = rng.normal(0, spread, self.shapes[0]), np.zeros(self.n_units)
        if not self.factorized:
            return [kernel, bias]
        g = np.exp(rng.normal(*_LOG_FACTOR, self.n_units))
        # v = kernel / g, so that the product g v has Glorot's distribution.
        return [kernel / g, bias, g]

    def kernel(self, weights):
        """Compute the kernel (.., n_inputs, n_units)."""
        return weights[0] * weights[2][..., None, :] if self.factorized else weights[0]

    def __call__(self, space: Namespace, weights, x):
        """Apply the layer: (.., N, n_inputs) to (.., N, n_units)."""
        y = space.xp.matmul(x, self.kernel(weights)) + weights[1][..., None, :]
        return space.activation(self.activation)(y)

    def tangents(self, space: Namespace, weights, changes, x, d_x=None):
        """Apply the layer to x (N, n_inputs), and compute its derivatives along S directions.

        This is forward mode. `changes` are the derivatives of the weights, ``(S, *shape)`` each,
        and `d_x` (S, N, n_inputs) that of x; None if x does not depend on any weights. Returns
        (N, n_units) and (S, N, n_units).
        """
        xp, kernel, d_kernel = space.xp, self.kernel(weights), changes[0]
        if self.factorized:
            # The kernel is v g, and its derivative dv g + v dg.
            d_kernel = changes[0] * weights[2] + weights[0] * changes[2][:, None, :]
        before = xp.matmul(x, kernel) + weights[1]
        d_before = xp.matmul(x, d_kernel) + changes[1][:, None, :]
        if d_x is not None:
            d_before = d_before + xp.matmul(d_x, kernel)
        if self.activation == "linear":
            return before, d_before
        after = space.activation(self.activation)(before)
        return after, slope(space, self.activation, before) * d_before


@dataclass(frozen=True, eq=False)
class Derivatives:
    """Raw outputs of N rows, and their derivatives J (N n_raw, P) by all P weights.

    J is kept in factors, which are far smaller. Its rows are in the order of ``raw.ravel()``.

    Attributes
    ----------
    raw : ndarray of shape (N, n_raw)
    blocks : tuple of (ndarray of shape (N, a), ndarray of shape (n_raw, N, b))
        For each variable, in the network's order, two factors: row (n, c) of its columns of J is
        the outer product of ``left[n]`` and ``right[c, n]``.
    """

    raw: np.ndarray
    blocks: tuple[tuple[np.ndarray, np.ndarray], ...]

    @property
    def n_weights(self) -> int:
        """Number of weights, P."""
        return sum(left.shape[1] * right.shape[2] for left, right in self.blocks)

    def rows(self, numbers: np.ndarray) -> Derivatives:
        """Take the derivatives at some of the rows."""
        blocks = tuple((left[numbers], right[:, numbers]) for left, right in self.blocks)
        return Derivatives(self.raw[numbers], blocks)

    def gram(self, other: Derivatives | None = None) -> np.ndarray:
        """Compute the tangent kernel J J'^T (N n_raw, N' n_raw), by default of J with itself."""
        other = self if other is None else other
        (n, n_raw), n_others = self.raw.shape, len(other.raw)
        gram = np.empty((self.raw.size, other.raw.size))
        # Parts of the kernel that fit into the processor's cache take half the time of the whole.
        n_rows = max(1, _GRAM_ENTRIES // max(1, self.raw.size * n_raw))
        for start in range(0, n_others, n_rows):
            part = other.rows(np.arange(start, min(start + n_rows, n_others)))
            total = np.zeros((n_raw, n, n_raw, len(part.raw)))
            for (left, right), (left_2, right_2) in zip(self.blocks, part.blocks):
                # The inner product of two outer products is the product of two inner products.
                flat, flat_2 = (block.reshape(-1, block.shape[2]) for block in (right, right_2))
                inner = (flat @ flat_2.T).reshape(total.shape)
                inner *= (left @ left_2.T)[:, None, :]
                total += inner
            # From (c, n, c', n') to rows and columns in the order of ``raw.ravel()``.
            columns = slice(start * n_raw, start * n_raw + part.raw.size)
            gram[:, columns] = total.transpose(1, 0, 3, 2).reshape(n * n_raw, -1)
        return gram

    def diagonal(self) -> np.ndarray:
        """Compute the diagonal (N n_raw,) of J J^T."""
        parts = ((left**2).sum(axis=1) * (right**2).sum(axis=2) for left, right in self.blocks)
        return np.sum(list(parts), axis=0).T.ravel()

    def along(self, directions: np.ndarray) -> np.ndarray:
        """Compute directions (S, P) times J^T: changes (S, N n_raw) of the raw outputs."""
        changes, start = 0.0, 0
        for left, right in self.blocks:
            a, b = left.shape[1], right.shape[2]
            # The changes of this variable, (S, a, b).
            change = directions[:, start : start + a * b].reshape(-1, a, b)
            start += a * b
            changes = changes + np.einsum("snb,cnb->snc", left @ change, right, optimize=True)
        return np.asarray(changes).reshape(len(directions), -1)

    def back(self, values: np.ndarray) -> np.ndarray:
        """Compute values (S, N n_raw) times J: gradients (S, P)."""
        weights = values.reshape(len(values), *self.raw.shape)
        parts = [
            (left.T @ np.einsum("snc,cnb->snb", weights, right, optimize=True)).reshape(
                len(values), -1
            )
            for left, right in self.blocks
        ]
        return np.concatenate(parts, axis=1)


def slope(space: Namespace, activation: str, x):
    """Compute the derivative of an activation.

    It is exact where `SLOPES` has a formula. Otherwise it is a central difference in double
    precision.
    """
    if activation in SLOPES:
        return SLOPES[activation](space.xp, x)
    function, step = space.activation(activation), 1e-5
    if space.xp is np:
        return (function(x + step) - function(x - step)) / (2 * step)
    # In single precision, differences over a step of 1e-5 would drown in rounding.
    double = space.xp.cast(x, "float64")
    difference = (function(double + step) - function(double - step)) / (2 * step)
    return space.xp.cast(difference, x.dtype)


@dataclass(eq=False)
class AppliedDense:
    """A dense layer applied to its input, in NumPy.

    Attributes
    ----------
    layer : Dense
    weights : list of ndarray
    value : ndarray of shape (N, n_inputs)
    before, output : ndarray of shape (N, n_units)
        Input and output of the activation.
    """

    layer: Dense
    weights: list[np.ndarray]
    value: np.ndarray

    def __post_init__(self) -> None:
        self.before = self.value @ self.layer.kernel(self.weights) + self.weights[1]
        self.output = ARRAYS.activation(self.layer.activation)(self.before)

    def backward(self, d: np.ndarray) -> tuple[np.ndarray, list[tuple[np.ndarray, np.ndarray]]]:
        """Compute derivatives by the layer's input and by its weights.

        Parameters
        ----------
        d : ndarray of shape (n_raw, N, n_units)
            Derivatives of the network's raw outputs by the output of the layer.

        Returns
        -------
        d : ndarray of shape (n_raw, N, n_inputs)
        blocks : list
            The two factors of each variable, as `Derivatives` has them. The last variable is
            first.
        """
        layer, weights, value = self.layer, self.weights, self.value
        if layer.activation != "linear":
            d = d * slope(ARRAYS, layer.activation, self.before)
        ones = np.ones((len(value), 1))
        # Kernel: value times d, and times g if it is g v. Bias: 1 times d.
        blocks = [(ones, d), (value, d * weights[2] if layer.factorized else d)]
        if layer.factorized:
            # g multiplies value @ v.
            blocks.insert(0, (ones, (value @ weights[0]) * d))
        return d @ layer.kernel(weights).T, blocks


def chain_derivatives(
    layers: Sequence[Dense], weights: Sequence[np.ndarray], x: np.ndarray
) -> Derivatives:
    """Compute the outputs of layers applied to x one after the other, and their derivatives."""
    remaining, applied, value = iter(weights), [], x
    for layer in layers:
        applied.append(AppliedDense(layer, [next(remaining) for _ in layer.shapes], value))
        value = applied[-1].output
    # The derivatives of each raw output by all of them, for each row: (n_raw, N, n_raw).
    d = np.repeat(np.eye(value.shape[1])[:, None, :], len(x), axis=1)
    blocks: list[Any] = []
    for part in reversed(applied):
        d, blocks_of_layer = part.backward(d)
        blocks += blocks_of_layer
    # Blocks were collected from the last variable to the first.
    return Derivatives(value, tuple(blocks[::-1]))
