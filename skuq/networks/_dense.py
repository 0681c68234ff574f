"""Fully connected networks: the plain one of deep ensembles, and search spaces of dense layers.

`DenseSpace` has skip connections (AutoDEUQ III.A, Fig. 3).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from numbers import Integral, Real
from typing import Any

import numpy as np

from skuq import backend
from skuq._params import Interval, Settings, StrOptions, check_count, parameters
from skuq.networks._keras_models import check_units
from skuq.networks._operations import ACTIVATION_NAMES, ARRAYS, SLOPES, Namespace
from skuq.networks._space import Categorical, Decisions, Integer, Space, training_hyperparameters

_SCALE_L2 = 1e-2


@parameters("networks.MLP", kw_only=False)
class MLP(Settings):
    """Settings of a plain fully connected network, for the parameter `network` of ensembles.

    Parameters
    ----------
    hidden_units : int or sequence of int, default=(50,)
        Number of units of each hidden layer.
    activation : str, default="relu"
        Activation of the hidden layers, by its Keras name.
    dropout : float, default=0.0
        Share of hidden units dropped in training; predictions drop none. Hyper deep ensembles and
        MC dropout set their own rates, and refuse this one.
    scale_l2 : float or "auto", default="auto"
        L2 penalty on the last layer of the standard deviations. "auto" is 0.01 for losses that
        train means and standard deviations of normals; networks for small data are far too
        confident without it. Other losses have no such layer, and refuse a number.

    Examples
    --------
    >>> from skuq import DeepEnsembleRegressor
    >>> from skuq.networks import MLP
    >>> DeepEnsembleRegressor(network=MLP(hidden_units=(100, 100), activation="silu"))
    DeepEnsembleRegressor(network=MLP(activation='silu', hidden_units=(100, 100)))
    >>> DeepEnsembleRegressor().set_params(network__hidden_units=20)
    DeepEnsembleRegressor(network=MLP(hidden_units=20))
    """

    hidden_units: Any = (50,)
    activation: Any = "relu"
    dropout: Any = 0.0
    scale_l2: Any = "auto"

    _parameter_constraints = {
        "hidden_units": ["array-like", Interval(Integral, 1, None, closed="left")],
        "activation": [StrOptions(ACTIVATION_NAMES)],
        "dropout": [Interval(Real, 0, 1, closed="left")],
        "scale_l2": [Interval(Real, 0, None, closed="left"), StrOptions({"auto"})],
    }

    def validate(self) -> None:
        """Raise ValueError if a parameter is invalid."""
        super().validate()
        check_units("hidden_units", self.hidden_units)

    def build(self, input_shape: tuple, head: Any, dropout: float | None = None):
        """Build the Keras model for a head; `dropout` replaces the rate of the settings."""
        # Only normals have a layer of standard deviations that can be penalised.
        has_scales, scale_l2 = head.has_scales, self.scale_l2
        if isinstance(scale_l2, str):
            scale_l2 = _SCALE_L2 if has_scales else 0.0
        elif not has_scales:
            raise ValueError(
                '`scale_l2` needs a loss that trains standard deviations of normals: "nll", '
                f'"beta-nll" or "crps". Got MLP(scale_l2={scale_l2!r}): leave it out.'
            )
        return build_mlp(
            input_shape,
            head.n_raw,
            check_units("hidden_units", self.hidden_units),
            activation=self.activation,
            dropout=(self.dropout or None) if dropout is None else dropout,
            scale_l2=float(scale_l2),
        )


def build_mlp(
    input_shape: tuple,
    n_outputs: int,
    hidden_units: Sequence[int] = (50,),
    *,
    activation: str = "relu",
    dropout: float | None = None,
    scale_l2: float = 0.0,
):
    """Build a fully connected Keras model for inputs (n_features,), with linear outputs.

    Kernels start as Glorot and Bengio proposed, which is Keras' default. `dropout` is the rate of a
    layer after each hidden layer. None adds no such layers; 0 adds them for a recipe to set their
    rate. `scale_l2` penalises the kernel of the second half of the outputs, from which a Gaussian
    head computes its standard deviations.
    """
    layers = backend.keras.layers
    inputs = x = backend.keras.Input(shape=input_shape, name="input", dtype="float32")
    for i, units in enumerate(hidden_units, start=1):
        x = layers.Dense(units, activation, dtype="float32", name=f"hidden_{i}")(x)
        if dropout is not None:
            x = layers.Dropout(dropout, dtype="float32", name=f"dropout_{i}")(x)
    dense = partial(layers.Dense, dtype="float32")
    if not scale_l2:
        outputs = dense(n_outputs, name="output")(x)
    else:
        # The second half gets a layer of its own, so that the penalty is on its kernel alone.
        half = n_outputs // 2
        mean = dense(half, name="mean")(x)
        penalty = backend.keras.regularizers.L2(scale_l2)
        scale = dense(half, kernel_regularizer=penalty, name="scale")(x)
        outputs = layers.Concatenate(dtype="float32", name="output")([mean, scale])
    return backend.keras.Model(inputs, outputs, name="mlp", dtype="float32")


@parameters("networks.WidthDepthSpace", kw_only=False)
class WidthDepthSpace(Settings):
    """Search space of fully connected ReLU networks with equally wide layers: two decisions.

    Parameters
    ----------
    widths : tuple of int, default=(16, 32, 64, 128, 256)
        Choices of the width of the hidden layers.
    max_depth : int, default=5
        Largest number of hidden layers; the smallest is one.
    max_batch_size : int, default=256
        Largest batch size, if training is searched, too.

    References
    ----------
    Zaidi et al., "Neural Ensemble Search", appendix C.4, where width and depth of a fixed
    cell are varied; `CellSpace.width_depth` is the same for images.

    Examples
    --------
    >>> from skuq.networks._dense import WidthDepthSpace
    >>> WidthDepthSpace(widths=(16, 64), max_depth=3).decisions().architecture.size
    6
    """

    widths: Sequence[int] = (16, 32, 64, 128, 256)
    max_depth: int = 5
    max_batch_size: int = 256

    takes_images = False

    _parameter_constraints = {
        "widths": [tuple, list],
        "max_depth": [Interval(Integral, 1, None, closed="left")],
        "max_batch_size": [Interval(Integral, 1, None, closed="left")],
    }

    def decisions(self, input_shape=None, n_outputs=None) -> Decisions:
        """List width and depth, and the training hyperparameters of AutoDEUQ."""
        # The default is a network of medium size.
        widths = tuple(check_count("widths", width) for width in self.widths)
        architecture = (
            Categorical("width", widths, *widths[len(widths) // 2 :][:1]),
            Integer("depth", 1, self.max_depth, default=min(2, self.max_depth)),
        )
        return Decisions(Space(architecture), training_hyperparameters(self.max_batch_size))

    def build(self, configuration: Mapping, input_shape: tuple, n_outputs: int):
        """Build the Keras model of a configuration, with `n_outputs` linear outputs."""
        units = [int(configuration["width"])] * int(configuration["depth"])
        return build_mlp(input_shape, n_outputs, units)

    def recipe(self, configuration: Mapping) -> dict:
        """Select the configuration's training hyperparameters, by the recipe's names."""
        return self.decisions().hyperparameters.restrict(configuration)


WIDTHS = tuple(range(16, 257, 16))
ACTIVATIONS = (
    "elu",
    "gelu",
    "hard_sigmoid",
    "linear",
    "relu",
    "selu",
    "sigmoid",
    "softplus",
    "softsign",
    "swish",
    "tanh",
)
IDENTITY = "identity"
LAYER_TYPES = (IDENTITY, *(f"{w}-{a}" for w in WIDTHS for a in ACTIVATIONS))
_MAX_SKIPS = 3  # most skip connections that end at one node


@parameters("networks.DenseSpace", kw_only=False)
class DenseSpace(Settings):
    """Search space of the AutoDEUQ paper: a directed graph of layers, and training settings.

    Anchors are the input (0), the variable nodes (1..n_nodes) and the output (n_nodes + 1). Every
    node is one of 177 layer types: identity, or a dense layer of 16, 32, .., 256 units with one
    of 11 activations. Every anchor from the second on can also be connected to up to three
    anchors before its predecessor. Each such skip connection is one yes/no decision. It projects
    linearly to the predecessor's width and is added, with no activation after the addition.

    Parameters
    ----------
    n_nodes : int, default=5
        Number of variable nodes: 3 give 9 architecture decisions, 5 give 17, 10 give 37. The
        paper's benchmark has 5, its one-dimensional example 3.
    max_batch_size : int, default=256
        Largest batch size of the search, as in the paper's benchmark; its example has 32. A batch
        size larger than the data means full batches.

    References
    ----------
    Egele et al., "AutoDEUQ: Automated Deep Ensemble with Uncertainty Quantification",
    section III.A.

    Examples
    --------
    >>> from skuq.networks import DenseSpace
    >>> [len(DenseSpace(n).decisions().architecture) for n in (3, 5, 10)]
    [9, 17, 37]
    """

    n_nodes: int = 5
    max_batch_size: int = 256

    takes_images = False

    _parameter_constraints = {
        "n_nodes": [Interval(Integral, 1, None, closed="left")],
        "max_batch_size": [Interval(Integral, 1, None, closed="left")],
    }

    def skips(self) -> list[tuple[int, int]]:
        """List the (source, target) anchors of all possible skip connections, by target.

        Anchor 0 is the input. A node's predecessor is always connected, and no skip connection.
        """
        return [
            (source, target)
            for target in range(2, self.n_nodes + 2)
            for source in range(max(0, target - 1 - _MAX_SKIPS), target - 1)
        ]

    def decisions(self, input_shape=None, n_outputs=None) -> Decisions:
        """List architecture and training decisions; they do not depend on the data."""
        nodes = [
            Categorical(f"node_{k}", LAYER_TYPES, default="64-relu")
            for k in range(1, self.n_nodes + 1)
        ]
        skips = [Categorical(f"skip_{source}_{target}", (0, 1)) for source, target in self.skips()]
        return Decisions(Space((*nodes, *skips)), training_hyperparameters(self.max_batch_size))

    def build(self, configuration: Mapping, input_shape: tuple, n_outputs: int):
        """Build the Keras model of a configuration, with `n_outputs` linear outputs."""
        layers, dense = backend.keras.layers, partial(backend.keras.layers.Dense, dtype="float32")
        anchors = [backend.keras.Input(shape=input_shape, name="input", dtype="float32")]
        for target in range(1, self.n_nodes + 2):
            last = anchors[-1]
            merged = [last]
            # All anchors before the predecessor, which is always connected.
            for source in range(target - 1):
                if configuration.get(f"skip_{source}_{target}"):
                    # Without a bias, since the next layer has one.
                    name = f"project_{source}_{target}"
                    project = dense(last.shape[-1], use_bias=False, name=name)
                    merged.append(project(anchors[source]))
            # Sum without an activation; the node's own layer follows.
            if len(merged) > 1:
                last = layers.Add(name=f"add_{target}", dtype="float32")(merged)
            if target > self.n_nodes:
                anchors.append(dense(n_outputs, name="output")(last))
            elif configuration[f"node_{target}"] == IDENTITY:
                anchors.append(last)
            else:
                units, activation = configuration[f"node_{target}"].split("-")
                anchors.append(dense(int(units), activation, name=f"node_{target}")(last))
        return backend.keras.Model(anchors[0], anchors[-1], name="dense_skip", dtype="float32")

    recipe = WidthDepthSpace.recipe


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

    def rows(self, numbers: np.ndarray) -> "Derivatives":
        """Take the derivatives at some of the rows."""
        blocks = tuple((left[numbers], right[:, numbers]) for left, right in self.blocks)
        return Derivatives(self.raw[numbers], blocks)

    def gram(self, other: "Derivatives | None" = None) -> np.ndarray:
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
