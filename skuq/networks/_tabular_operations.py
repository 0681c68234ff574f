"""Dense layers and operations of a plan for tables, on arrays and on tensors.

The Keras layers of `_tabular_layers` run them, too. `read` makes the `LayerSpec` of a layer from
its configuration and the shapes of its inputs.

Notation: x is (.., n, d), n rows of d features, where .. is nothing or (n_members,). Weights have
the same leading axes. If they have a member axis, x can be without it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from skuq.networks._plan_parts import (
    FEW,
    LayerSpec,
    NoPlan,
    Weight,
    check_activation,
    concatenate_features,
    penalty,
    row,
)


def _slices(x, columns):
    """Take columns of x, as a list of slices with one for each run of adjacent columns.

    Slices are used because the gradient of a gather along the last axis is an expensive scatter.
    """
    parts, start = [], 0
    for i in range(1, len(columns) + 1):
        if i == len(columns) or columns[i] != columns[i - 1] + 1:
            parts.append(x[..., columns[start] : columns[i - 1] + 1])
            start = i
    return parts


def _check_columns(columns, n):
    """Check a configuration's columns, by default all n, or raise NoPlan."""
    columns = tuple(range(n)) if columns is None else tuple(int(column) for column in columns)
    if len(set(columns)) != len(columns) or not set(columns) <= set(range(n)) or not columns:
        raise NoPlan
    return columns


@dataclass(frozen=True)
class FeatureScale:
    """Multiply every feature by a weight of its own."""

    @classmethod
    def read(cls, config, shapes):
        ((n,),) = shapes
        return LayerSpec(cls(), [Weight((n,))], shape=(n,))

    def __call__(self, run, weights, state, x):
        return x * row(run.namespace.xp, weights[0]), state


def unclip(xp, x):
    """Undo the smooth clip of `RobustScaling` up to 10, beyond which the result hardly grows."""
    return x / xp.sqrt(xp.maximum(1 - (x / 3) ** 2, 1 / (1 + (10 / 3) ** 2)))


@dataclass(frozen=True)
class Unclip:
    """Operation `unclip`, without weights."""

    @classmethod
    def read(cls, config, shapes):
        ((n,),) = shapes
        return LayerSpec(cls(), [], shape=(n,))

    def __call__(self, run, weights, state, x):
        return unclip(run.namespace.xp, x), state


@dataclass(frozen=True)
class ParametricActivation:
    """Compute ``x + alpha * (f(x) - x)`` with one alpha for each feature."""

    activation: str

    @classmethod
    def read(cls, config, shapes):
        ((n,),) = shapes
        operation = cls(check_activation(config["activation"]))
        return LayerSpec(operation, [Weight((n,))], shape=(n,))

    def __call__(self, run, weights, state, x):
        xp, alpha = run.namespace.xp, row(run.namespace.xp, weights[0])
        if self.activation == "silu" and xp is np and x.size >= FEW:
            # x + alpha (x sigmoid(x) - x) with few passes over memory.
            with np.errstate(over="ignore"):  # large x stay as they are
                y = np.exp(x)
            y += 1
            y = alpha / y
            return x * np.subtract(1, y, out=y), state
        y = run.namespace.activation(self.activation)(x)
        return x + alpha * (y - x), state


@dataclass(frozen=True)
class DenseOperation:
    """Dense layer ``f(factor * x @ kernel + bias)``."""

    activation: str
    use_bias: bool
    factor: float = 1

    @classmethod
    def read(cls, config, shapes):
        ((n,),) = shapes
        for name in ("kernel_constraint", "bias_constraint"):
            if config.get(name) is not None:
                raise NoPlan
        units = config["units"]
        weights = [Weight((n, units), *penalty(config["kernel_regularizer"]))]
        if config["use_bias"]:
            weights.append(Weight((units,), *penalty(config["bias_regularizer"])))
        operation = cls(check_activation(config["activation"]), config["use_bias"])
        return LayerSpec(operation, weights, shape=(units,))

    def __call__(self, run, weights, state, x):
        xp = run.namespace.xp
        # Assignments with an operator change arrays in place; tensors get new values.
        y = xp.matmul(x, weights[0])
        if self.factor != 1:
            y *= self.factor
        if self.use_bias:
            y += row(xp, weights[1])
        return run.namespace.activation(self.activation)(y), state


def read_ntk_dense(config, shapes):
    """Read an `NTKDense` layer, whose factor is 1 / sqrt(number of inputs)."""
    ((n,),) = shapes
    units = config["units"]
    operation = DenseOperation("linear", use_bias=True, factor=n**-0.5)
    return LayerSpec(operation, [Weight((n, units)), Weight((units,))], shape=(units,))


def _by_feature(xp, x):
    """Reshape rows (.., n, d) to (.., d, n, 1)."""
    return xp.swapaxes(x, -1, -2)[..., None]


def _linear_by_feature(xp, encoded, kernel, bias):
    """Apply a linear map to each feature: (.., d, n, t) to (.., n, d * dim).

    `kernel` is (.., d, t, dim), and `bias` (.., d, dim).
    """
    y = xp.matmul(encoded, kernel)  # (.., d, n, dim)
    y += bias[..., None, :]
    y = xp.swapaxes(y, -2, -3)  # (.., n, d, dim)
    return xp.reshape(y, (*y.shape[:-3], -1, y.shape[-2] * y.shape[-1]))


@dataclass(frozen=True)
class PeriodicEmbedding:
    """Apply cosines with trained frequencies and phases, then a linear map, to each feature.

    All features follow after the result: PBLD of Holzmueller et al. (2024).
    """

    columns: tuple[int, ...]
    width: int  # numbers in a row before the linear maps

    @classmethod
    def read(cls, config, shapes):
        ((n,),) = shapes
        columns = _check_columns(config["columns"], n)
        d, n_frequencies = len(columns), config["n_frequencies"]
        dim = config["dim"] - 1  # which counts the feature itself
        if dim < 1:
            raise NoPlan
        waves = Weight((d, n_frequencies))  # frequencies, and phases
        weights = [waves, waves, Weight((d, n_frequencies, dim)), Weight((d, dim))]
        operation = cls(columns, width=d * n_frequencies)
        return LayerSpec(operation, weights, shape=(d * dim + n,))

    def __call__(self, run, weights, state, x):
        xp = run.namespace.xp
        frequencies, phases, kernel, bias = weights
        features = _by_feature(xp, concatenate_features(xp, _slices(x, self.columns)))
        # cos(2 pi w x + b), (.., d, n, n_frequencies)
        turns = features * frequencies[..., None, :]
        turns += phases[..., None, :] / (2 * math.pi)
        embedded = _linear_by_feature(xp, run.namespace.cosine(turns), kernel, bias)
        return concatenate_features(xp, [embedded, x]), state


@dataclass(frozen=True)
class PiecewiseLinearEmbedding:
    """Encode each feature piecewise linearly by its bins, and apply a linear map.

    Bins of width 0 do not count, so that features can have different numbers of bins.
    """

    columns: tuple[int, ...]
    others: tuple[int, ...]
    width: int

    @classmethod
    def read(cls, config, shapes):
        ((n,),) = shapes
        columns, edges = _check_columns(config["columns"], n), config["edges"]
        d, n_bins = len(columns), len(edges[0]) - 1
        if len(edges) != d or n_bins < 1:
            raise NoPlan
        weights = [Weight((d, n_bins, config["dim"])), Weight((d, config["dim"]))]
        others = tuple(sorted(set(range(n)) - set(columns)))
        n_out = d * config["dim"] + len(others)
        operation = cls(columns, others, width=d * n_bins)
        return LayerSpec(operation, weights, shape=(n_out,), n_state=1)  # the edges

    def __call__(self, run, weights, state, x):
        xp = run.namespace.xp
        features = _by_feature(xp, concatenate_features(xp, _slices(x, self.columns)))
        # The share of each bin that lies below x, (.., d, n, n_bins): in [0, 1], except below the
        # first edge and above the last, where the outermost bins are extrapolated.
        edges = state[0]  # (.., d, n_bins + 1)
        width = edges[..., 1:] - edges[..., :-1]
        is_bin = width > 0
        inverse = xp.where(is_bin, 1.0 / xp.where(is_bin, width, 1.0), 0.0)
        # The shares of the first and of the last bin are not clipped on the outer side. Bins of
        # width 0, with which a feature of fewer bins is padded at its end, have a share of 0.
        none = is_bin[..., :1] & ~is_bin[..., :1]  # False, as an array or a tensor
        first = ~xp.concatenate([none, is_bin[..., :-1]], axis=-1)  # no bin before
        last = ~xp.concatenate([is_bin[..., 1:], none], axis=-1)  # no bin after
        low = xp.where(first, -_UNBOUNDED, 0.0)
        high = xp.where(last, _UNBOUNDED, 1.0)
        inverse, low, high = (value[..., None, :] for value in (inverse, low, high))
        share = (features - edges[..., None, :-1]) * inverse
        encoded = xp.minimum(xp.maximum(share, low), high)
        embedded = _linear_by_feature(xp, encoded, *weights)
        return concatenate_features(xp, [embedded, *_slices(x, self.others)]), state


_UNBOUNDED = 1e30  # a bound that no share reaches


def read_numeric_embedding(config, shapes):
    """Read the operation of a `NumericEmbedding` layer."""
    is_periodic = config["kind"] == "periodic"
    return (PeriodicEmbedding if is_periodic else PiecewiseLinearEmbedding).read(config, shapes)


@dataclass(frozen=True)
class CategoryEmbedding:
    """Replace codes by trained vectors, which follow after the other columns."""

    columns: tuple[int, ...]
    others: tuple[int, ...]
    n_codes: tuple[int, ...]

    @classmethod
    def read(cls, config, shapes):
        ((n,),) = shapes
        columns = _check_columns(config["columns"], n)
        n_codes, dims = tuple(config["n_codes"]), tuple(config["dims"])
        if not len(columns) == len(n_codes) == len(dims):
            raise NoPlan
        others = tuple(sorted(set(range(n)) - set(columns)))
        weights = [Weight(shape) for shape in zip(n_codes, dims)]
        n_out = len(others) + sum(dims)
        return LayerSpec(cls(columns, others, n_codes), weights, shape=(n_out,))

    def __call__(self, run, weights, state, x):
        xp, parts = run.namespace.xp, _slices(x, self.others)
        for column, n_codes, table in zip(self.columns, self.n_codes, weights):
            # Codes that the table (.., n_codes, dim) does not have count as 0, the code of
            # unknown categories.
            codes = xp.round(x[..., column])
            known = (codes >= 0) & (codes < n_codes)
            codes = run.namespace.integers(xp.where(known, codes, 0.0))
            if len(table.shape) == 3:
                # Stack the members' tables to one of (n_members * n_codes, dim), and shift the
                # codes, which become (n_members, n).
                n_members, _, dim = table.shape
                codes = codes + run.namespace.integers(xp.arange(n_members) * n_codes)[:, None]
                table = xp.reshape(table, (n_members * n_codes, dim))
            parts.append(xp.take(table, codes, axis=0))
        return concatenate_features(xp, parts), state


#: The `read` of each layer of `_tabular_layers`, by the name under which Keras registers it.
TABULAR_READERS = {
    "skuq>CategoryEmbedding": CategoryEmbedding.read,
    "skuq>FeatureScale": FeatureScale.read,
    "skuq>NTKDense": read_ntk_dense,
    "skuq>NumericEmbedding": read_numeric_embedding,
    "skuq>ParametricActivation": ParametricActivation.read,
    "skuq>Unclip": Unclip.read,
}
