"""Operations of the layers for tables in a plan, on arrays and on tensors.

The Keras layers of `_tabular_layers` run these too. `read` takes a layer's configuration and
the shapes that enter it, and gives the operation, its weights, how many variables do not
train, and the shape that leaves it.

Notation: x is (.., n, d), n rows of d features, where .. is nothing or (n_members,); weights
lead with the same axes, and where they do, x may have none.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from skuq.networks._plan_parts import NoPlan, Weight, check_activation, joined, penalty, row


def _columns(x, columns):
    """These columns of x, as a value for each run of neighbours among them.

    Slices: a gather along the last axis costs a scatter in its gradient.
    """
    parts, start = [], 0
    for i in range(1, len(columns) + 1):
        if i == len(columns) or columns[i] != columns[i - 1] + 1:
            parts.append(x[..., columns[start] : columns[i - 1] + 1])
            start = i
    return parts


def _others(columns, n):
    return tuple(sorted(set(range(n)) - set(columns)))


def _check_columns(columns, n):
    """A configuration's columns, all n by default."""
    columns = tuple(range(n)) if columns is None else tuple(int(column) for column in columns)
    if len(set(columns)) != len(columns) or not set(columns) <= set(range(n)) or not columns:
        raise NoPlan
    return columns


@dataclass(frozen=True)
class FeatureScale:
    """Every feature times a weight of its own."""

    @classmethod
    def read(cls, config, shapes):
        ((n,),) = shapes
        return cls(), [Weight((n,))], 0, (n,)

    def __call__(self, run, weights, state, x):
        return x * row(weights[0]), state


@dataclass(frozen=True)
class ParametricActivation:
    """``x + alpha * (f(x) - x)`` with an alpha of its own for every feature."""

    activation: str

    @classmethod
    def read(cls, config, shapes):
        ((n,),) = shapes
        return cls(check_activation(config["activation"])), [Weight((n,))], 0, (n,)

    def __call__(self, run, weights, state, x):
        y = run.namespace.activation(self.activation)(x)
        return x + row(weights[0]) * (y - x), state


@dataclass(frozen=True)
class NTKDense:
    """A dense layer whose product is divided by the root of the number of its inputs."""

    activation: str
    use_bias: bool
    factor: float

    @classmethod
    def read(cls, config, shapes):
        ((n,),) = shapes
        units = config["units"]
        weights = [Weight((n, units), *penalty(config["kernel_regularizer"]))]
        if config["use_bias"]:
            weights.append(Weight((units,), *penalty(config["bias_regularizer"])))
        activation = check_activation(config["activation"])
        return cls(activation, config["use_bias"], n**-0.5), weights, 0, (units,)

    def __call__(self, run, weights, state, x):
        y = run.namespace.xp.matmul(x, weights[0]) * self.factor
        if self.use_bias:
            y = y + row(weights[1])
        return run.namespace.activation(self.activation)(y), state


def _by_feature(xp, x):
    """(.., n, d) to (.., d, n, 1)."""
    return xp.swapaxes(x, -1, -2)[..., None]


def _per_feature(xp, encoded, kernel, bias):
    """A linear map of its own for each feature, (.., d, n, t) to (.., n, d * dim)."""
    y = xp.matmul(encoded, kernel) + bias[..., None, :]
    y = xp.swapaxes(y, -2, -3)
    return xp.reshape(y, (*y.shape[:-3], -1, y.shape[-2] * y.shape[-1]))


@dataclass(frozen=True)
class PeriodicEmbedding:
    """Cosines of each feature at trained frequencies, then a linear map of each feature's own.

    Either with trained phases, and the features themselves beside the result ("PBLD"), or
    cosines and sines, a ReLU after the linear map, and the features gone ("PLR").
    """

    columns: tuple[int, ...]
    others: tuple[int, ...]  # that pass through
    phases: bool
    width: int  # numbers a row before the linear maps

    @classmethod
    def read(cls, config, shapes):
        ((n,),) = shapes
        columns = _check_columns(config["columns"], n)
        phases = config["kind"] == "periodic"
        d, n_frequencies = len(columns), config["n_frequencies"]
        dim = config["dim"] - phases  # of which the feature itself is one
        if dim < 1:
            raise NoPlan
        weights = [Weight((d, n_frequencies))]
        if phases:
            weights.append(Weight((d, n_frequencies)))
        n_encoded = n_frequencies * (1 if phases else 2)
        weights += [Weight((d, n_encoded, dim)), Weight((d, dim))]
        others = _others(columns, n)
        n_out = d * dim + (n if phases else len(others))
        return cls(columns, others, phases, d * n_encoded), weights, 0, (n_out,)

    def __call__(self, run, weights, state, x):
        xp, cosine = run.namespace.xp, run.namespace.cosine
        frequencies, *phases, kernel, bias = weights
        features = _by_feature(xp, joined(xp, _columns(x, self.columns)))
        turns = features * frequencies[..., None, :]  # (.., d, n, n_frequencies)
        if self.phases:
            encoded = cosine(turns + phases[0][..., None, :] / (2 * math.pi))
            return joined(xp, [_per_feature(xp, encoded, kernel, bias), x]), state
        encoded = xp.concatenate([cosine(turns), cosine(turns - 0.25)], axis=-1)
        y = run.namespace.activation("relu")(_per_feature(xp, encoded, kernel, bias))
        return joined(xp, [y, *_columns(x, self.others)]), state


@dataclass(frozen=True)
class PiecewiseLinearEmbedding:
    """Piecewise linear encoding by each feature's bins, then a linear map of its own.

    Bins of width 0 stand for none, so features may have fewer than others.
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
        others = _others(columns, n)
        n_out = d * config["dim"] + len(others)
        return cls(columns, others, d * n_bins), weights, 1, (n_out,)

    def __call__(self, run, weights, state, x):
        xp = run.namespace.xp
        features = _by_feature(xp, joined(xp, _columns(x, self.columns)))
        encoded = self.encode(xp, features, state[0])
        return joined(xp, [_per_feature(xp, encoded, *weights), *_columns(x, self.others)]), state

    @staticmethod
    def encode(xp, x, edges):
        """(.., d, n, 1) and edges (.., d, n_bins + 1) to (.., d, n, n_bins), in [0, 1] but ..

        .. below the first edge and above the last, where the outermost bins go on.
        """
        width = edges[..., 1:] - edges[..., :-1]
        is_bin = width > 0
        inverse = xp.where(is_bin, 1.0 / xp.where(is_bin, width, 1.0), 0.0)
        # Who has no bin before it is the first, who has none behind it the last. Bins that stand
        # for none give 0 whatever their bounds.
        nothing = is_bin[..., :1] & ~is_bin[..., :1]
        first = ~xp.concatenate([nothing, is_bin[..., :-1]], axis=-1)
        last = ~xp.concatenate([is_bin[..., 1:], nothing], axis=-1)
        low = xp.where(first, -_FAR, 0.0)
        high = xp.where(last, _FAR, 1.0)
        inverse, low, high = (value[..., None, :] for value in (inverse, low, high))
        share = (x - edges[..., None, :-1]) * inverse
        return xp.minimum(xp.maximum(share, low), high)


_FAR = 1e30  # no bound for a share


def read_numeric_embedding(config, shapes):
    """The operation of a `NumericEmbedding` layer."""
    kind = {
        "periodic": PeriodicEmbedding,
        "plr": PeriodicEmbedding,
        "piecewise-linear": PiecewiseLinearEmbedding,
    }[config["kind"]]
    return kind.read(config, shapes)


@dataclass(frozen=True)
class CategoryEmbedding:
    """Trained vectors in the place of whole numbers; the other columns come first."""

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
        others = _others(columns, n)
        weights = [Weight(shape) for shape in zip(n_codes, dims)]
        return cls(columns, others, n_codes), weights, 0, (len(others) + sum(dims),)

    def __call__(self, run, weights, state, x):
        parts = _columns(x, self.others)
        for column, n_codes, table in zip(self.columns, self.n_codes, weights):
            parts.append(self._vectors(run, x[..., column], n_codes, table))
        return joined(run.namespace.xp, parts), state

    @staticmethod
    def _vectors(run, codes, n_codes, table):
        """Rows (.., n, dim) of a table (.., n_codes, dim) for codes (.., n)."""
        xp, dim = run.namespace.xp, table.shape[-1]
        codes = xp.round(codes)
        known = (codes >= 0) & (codes < n_codes)
        codes = run.namespace.integers(xp.where(known, codes, 0.0))
        if len(table.shape) == 2:
            return xp.take(table, codes, axis=0)
        # Members' tables below each other.
        n_members = table.shape[0]
        offsets = run.namespace.integers(xp.arange(n_members) * n_codes)
        codes = codes + offsets[:, None]  # (n_members, n)
        return xp.take(xp.reshape(table, (n_members * n_codes, dim)), codes, axis=0)


@dataclass(frozen=True)
class Repeat:
    """All features, again and again: what copies of a network start from."""

    n_copies: int

    @classmethod
    def read(cls, config, shapes):
        ((n,),) = shapes
        return cls(config["n_copies"]), [], 0, (config["n_copies"] * n,)

    def __call__(self, run, weights, state, x):
        return run.namespace.xp.concatenate([x] * self.n_copies, axis=-1), state


@dataclass(frozen=True)
class EnsembleDense:
    """Dense layers of several copies, whose features stand beside each other.

    Either with one kernel between factors of each copy's own before and behind it, or with a
    kernel for each copy.
    """

    activation: str
    n_copies: int
    shared: bool
    adapters: bool
    use_bias: bool
    factor: float

    @classmethod
    def read(cls, config, shapes):
        ((n,),) = shapes
        k, units, shared = config["n_copies"], config["units"], config["shared"]
        if n % k:
            raise NoPlan
        d = n // k
        weights = [Weight((d, units) if shared else (k, d, units))]
        adapters = shared and config["adapters"]
        if adapters:
            weights += [Weight((k, d)), Weight((k, units))]
        if config["use_bias"]:
            weights.append(Weight((k, units)))
        activation, factor = check_activation(config["activation"]), d**-0.5 if config["ntk"] else 1
        operation = cls(activation, k, shared, adapters, config["use_bias"], factor)
        return operation, weights, 0, (k * units,)

    def __call__(self, run, weights, state, x):
        xp = run.namespace.xp
        kernel, *others = weights
        d, units = kernel.shape[-2:]
        x = xp.reshape(x, (*x.shape[:-2], -1, self.n_copies, d))  # (.., n, n_copies, d)
        if not self.shared:
            y = xp.swapaxes(xp.matmul(xp.swapaxes(x, -2, -3), kernel), -2, -3)
        else:
            if self.adapters:
                x = x * others[0][..., None, :, :]
            # One product for all copies.
            y = xp.matmul(xp.reshape(x, (*x.shape[:-3], -1, d)), kernel)
            y = xp.reshape(y, (*y.shape[:-2], -1, self.n_copies, units))
            if self.adapters:
                y = y * others[1][..., None, :, :]
        if self.factor != 1:
            y = y * self.factor
        if self.use_bias:
            y = y + others[-1][..., None, :, :]
        y = run.namespace.activation(self.activation)(y)
        return xp.reshape(y, (*y.shape[:-3], -1, self.n_copies * units)), state


TABULAR_READERS = {
    f"skuq>{name}": lambda reader, config, shapes, read=read: read(config, shapes)
    for name, read in {
        "CategoryEmbedding": CategoryEmbedding.read,
        "EnsembleDense": EnsembleDense.read,
        "FeatureScale": FeatureScale.read,
        "NTKDense": NTKDense.read,
        "NumericEmbedding": read_numeric_embedding,
        "ParametricActivation": ParametricActivation.read,
        "Repeat": Repeat.read,
    }.items()
}
