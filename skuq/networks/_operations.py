"""Operations that plans are made of, on arrays and on tensors."""

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

#: Names that Keras has for them.
ACTIVATION_NAMES = {*ACTIVATIONS, "swish"}


def _gelu_slope(xp, x):
    # gelu(x) = x cdf(x), with the cdf and the density of a standard normal.
    cdf = special.ndtr(x) if xp is np else 0.5 * (1.0 + xp.erf(x / math.sqrt(2)))
    return cdf + x * xp.exp(-0.5 * x * x) / math.sqrt(2 * math.pi)


def _silu_slope(xp, x):
    sigmoid = special.expit(x) if xp is np else xp.sigmoid(x)
    return sigmoid * (1.0 + x * (1.0 - sigmoid))


#: Derivatives of smooth activations, as functions of a namespace of arrays and x.
SLOPES = {"tanh": lambda xp, x: 1.0 - xp.tanh(x) ** 2, "gelu": _gelu_slope, "silu": _silu_slope}


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
        square, y = x * x, np.float32(_COSINE[-1])
        for coefficient in _COSINE[-2::-1]:  # Horner's rule
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
    parts = np.split(flat, np.cumsum([math.prod(shape) for shape in shapes])[:-1], axis=-1)
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
        return LayerSpec(cls(check_activation(config["activation"])), [Weight((n,))], shape=(n,))

    def __call__(self, run, weights, state, x):
        xp, alpha = run.namespace.xp, row(run.namespace.xp, weights[0])
        if self.activation == "silu" and xp is np and x.size >= FEW:
            # x + alpha (x sigmoid(x) - x) with few passes over memory.
            with np.errstate(over="ignore"):  # large x stay as they are
                y = np.exp(x)
            y += 1
            y = alpha / y
            return x * np.subtract(1, y, out=y), state
        if self.activation == "silu":  # in a form whose gradient takes few passes, too
            return x * (1 - alpha * run.namespace.activation("sigmoid")(-x)), state
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
        y = xp.matmul(x, weights[0] if xp is np or self.factor == 1 else weights[0] * self.factor)
        if xp is np and self.factor != 1:
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
    """Reshape rows (.., n, d) to (.., d, 1, n): with rows last, loops over them are fast."""
    return xp.swapaxes(x, -1, -2)[..., None, :]


def _linear_by_feature(xp, encoded, kernel, bias):
    """Apply a linear map to each feature: (.., d, t, n) to (.., n, d * dim).

    `kernel` is (.., d, t, dim), and `bias` (.., d, dim).
    """
    # Not `swapaxes`: XLA would multiply by the transpose of a matrix, which takes 7 times as long.
    kernel = xp.concatenate([kernel[..., None, :, k] for k in range(bias.shape[-1])], axis=-2)
    y = xp.matmul(kernel, encoded)  # (.., d, dim, n)
    y += bias[..., None]
    y = xp.reshape(y, (*y.shape[:-3], y.shape[-3] * y.shape[-2], -1))
    return xp.swapaxes(y, -1, -2)


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
        waves = Weight((d, n_frequencies))  # frequencies, and phases
        weights = [waves, waves, Weight((d, n_frequencies, dim)), Weight((d, dim))]
        return LayerSpec(cls(columns, width=d * n_frequencies), weights, shape=(d * dim + n,))

    def __call__(self, run, weights, state, x):
        xp = run.namespace.xp
        frequencies, phases, kernel, bias = weights
        features = _by_feature(xp, concatenate_features(xp, _slices(x, self.columns)))
        # cos(2 pi w x + b), (.., d, n_frequencies, n); gradients of a product are products, too.
        lines = [frequencies[..., None], phases[..., None] / (2 * math.pi)]
        points = [features, xp.ones_like(features)]
        turns = xp.matmul(xp.concatenate(lines, axis=-1), xp.concatenate(points, axis=-2))
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
        # The state holds the edges.
        return LayerSpec(cls(columns, others, width=d * n_bins), weights, (n_out,), n_state=1)

    def __call__(self, run, weights, state, x):
        xp = run.namespace.xp
        features = _by_feature(xp, concatenate_features(xp, _slices(x, self.columns)))
        # The share of each bin that lies below x, (.., d, n_bins, n): in [0, 1], except below the
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
        low = xp.where(first, -_UNBOUNDED, 0.0)[..., None]
        high = xp.where(last, _UNBOUNDED, 1.0)[..., None]
        share = (features - edges[..., :-1, None]) * inverse[..., None]
        embedded = _linear_by_feature(xp, xp.minimum(xp.maximum(share, low), high), *weights)
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
