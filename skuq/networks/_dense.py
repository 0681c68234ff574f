"""Fully connected networks: the plain one of deep ensembles, and search spaces of dense layers.

`DenseSkipSpace` has skip connections (AutoDEUQ III.A, Fig. 3).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from numbers import Integral, Real
from typing import Any

import numpy as np

from skuq._params import Interval, Settings, StrOptions
from skuq._utils._records import saved_as
from skuq.networks._heads import GaussianHead
from skuq.networks._keras_models import check_units
from skuq.networks._plan_parts import ACTIVATIONS as KNOWN_ACTIVATIONS
from skuq.networks._space import Categorical, Decisions, Integer, Space, training_hyperparameters

_SCALE_L2 = 1e-2
_N_USUAL_COLUMNS = 20  # columns up to which kernels start as Glorot and Bengio proposed


@saved_as("networks.MLP")
@dataclass(eq=False, repr=False)
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
        "activation": [StrOptions({*KNOWN_ACTIVATIONS, "swish"})],
        "dropout": [Interval(Real, 0, 1, closed="left")],
        "scale_l2": [Interval(Real, 0, None, closed="left"), StrOptions({"auto"})],
    }

    def validate(self) -> None:
        """Raise ValueError if a parameter is invalid."""
        super().validate()
        check_units("hidden_units", self.hidden_units)

    def build(
        self, input_shape: tuple, head: Any, dropout: float | None = None, linear: Any = None
    ):
        """Build the Keras model for a head; `dropout` replaces the rate of the settings.

        `linear` is that of `build_mlp`.
        """
        # Only normals have a layer of standard deviations that can be penalised.
        has_scales, scale_l2 = isinstance(head, GaussianHead), self.scale_l2
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
            linear=linear,
        )


def dense_initializer(n_columns: int) -> Any:
    """Make the kernel's initializer for a dense layer that reads `n_columns` columns of X.

    Glorot's kernels give outputs that grow with the number of columns, until first predictions are
    far from y, and first standard deviations far too small. Above 20 columns, their variance is
    multiplied by ``20 / n_columns``.
    """
    from skuq.backend import keras

    if n_columns <= _N_USUAL_COLUMNS:
        return "glorot_uniform"
    scale = _N_USUAL_COLUMNS / n_columns
    return keras.initializers.VarianceScaling(scale, mode="fan_avg", distribution="uniform")


def build_mlp(
    input_shape: tuple,
    n_outputs: int,
    hidden_units: Sequence[int] = (50,),
    *,
    activation: str = "relu",
    dropout: float | None = None,
    scale_l2: float = 0.0,
    linear: tuple[np.ndarray, np.ndarray] | None = None,
):
    """Build a fully connected Keras model for inputs (n_features,), with linear outputs.

    Kernels start as Glorot and Bengio proposed. With more than 20 inputs those of the first layer
    are smaller, so that first outputs do not grow with them. `dropout` is the rate of a layer after
    each hidden layer. None adds no such layers; 0 adds them for a recipe to set their rate.
    `scale_l2` penalises the kernel of the second half of the outputs, from which a Gaussian head
    computes its standard deviations. `linear` is the kernel (n_features, n_outputs) and the bias
    (n_outputs,) of a frozen linear part, which is added to the outputs.
    """
    from skuq.backend import keras

    layers = keras.layers
    inputs = x = keras.Input(shape=input_shape, name="input", dtype="float32")
    for i, units in enumerate(hidden_units, start=1):
        # Only the first hidden layer reads the input.
        kernel = dense_initializer(x.shape[-1] if i == 1 else 0)
        x = layers.Dense(
            units, activation, kernel_initializer=kernel, dtype="float32", name=f"hidden_{i}"
        )(x)
        if dropout is not None:
            x = layers.Dropout(dropout, dtype="float32", name=f"dropout_{i}")(x)
    # Beside a linear part, the network starts from zero.
    start = "glorot_uniform" if linear is None else "zeros"
    dense = partial(layers.Dense, kernel_initializer=start, dtype="float32")
    if not scale_l2:
        outputs = dense(n_outputs, name="output")(x)
    else:
        # The second half gets a layer of its own, so that the penalty is on its kernel alone.
        half = n_outputs // 2
        mean = dense(half, name="mean")(x)
        penalty = keras.regularizers.L2(scale_l2)
        scale = dense(half, kernel_regularizer=penalty, name="scale")(x)
        outputs = layers.Concatenate(dtype="float32", name="output")([mean, scale])
    if linear is not None:
        outputs = add_linear(inputs, outputs, linear)
    return keras.Model(inputs, outputs, name="mlp", dtype="float32")


def add_linear(inputs: Any, outputs: Any, linear: tuple[np.ndarray, np.ndarray]) -> Any:
    """Add a frozen linear part, with this kernel and bias, to the outputs of a network."""
    from skuq.backend import keras

    part = keras.layers.Dense(outputs.shape[-1], name="linear", trainable=False, dtype="float32")
    total = keras.layers.Add(dtype="float32")([outputs, part(inputs)])
    part.set_weights(linear)
    return total


@saved_as("networks.WidthDepthSpace")
@dataclass(eq=False, repr=False)
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
        middle = self.widths[len(self.widths) // 2]
        architecture = (
            Categorical("width", tuple(self.widths), default=middle),
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


@saved_as("networks.DenseSpace")
@dataclass(eq=False, repr=False)
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
        from skuq.backend import keras

        layers = keras.layers
        anchors = [keras.Input(shape=input_shape, name="input", dtype="float32")]

        def kernel_of(x):
            """Choose the initializer of a layer that reads x, which can be the network's input."""
            return dense_initializer(x.shape[-1] if x is anchors[0] else 0)

        for target in range(1, self.n_nodes + 2):
            last = anchors[-1]
            merged = [last]
            # All anchors before the predecessor, which is always connected.
            for source in range(target - 1):
                if configuration.get(f"skip_{source}_{target}"):
                    # Without a bias, since the next layer has one.
                    project = layers.Dense(
                        last.shape[-1],
                        use_bias=False,
                        kernel_initializer=kernel_of(anchors[source]),
                        dtype="float32",
                        name=f"project_{source}_{target}",
                    )
                    merged.append(project(anchors[source]))
            # Sum without an activation; the node's own layer follows.
            if len(merged) > 1:
                last = layers.Add(name=f"add_{target}", dtype="float32")(merged)
            if target > self.n_nodes:
                anchors.append(layers.Dense(n_outputs, name="output", dtype="float32")(last))
            elif configuration[f"node_{target}"] == IDENTITY:
                anchors.append(last)
            else:
                units, activation = configuration[f"node_{target}"].split("-")
                dense = layers.Dense(
                    int(units),
                    activation,
                    kernel_initializer=kernel_of(last),
                    dtype="float32",
                    name=f"node_{target}",
                )
                anchors.append(dense(last))
        return keras.Model(anchors[0], anchors[-1], name="dense_skip", dtype="float32")

    recipe = WidthDepthSpace.recipe
