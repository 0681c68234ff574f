"""Search space of fully connected networks with skip connections (AutoDEUQ III.A, Fig. 3)."""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Integral
from typing import Any

from skuq._params import Interval, Settings
from skuq._registry import saved_as
from skuq._space import Categorical, Space
from skuq.networks._search_space import Decisions, training_hyperparameters

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

    takes_images = False

    _parameter_constraints: dict[str, Any] = {
        "n_nodes": [Interval(Integral, 1, None, closed="left")],
        "max_batch_size": [Interval(Integral, 1, None, closed="left")],
    }

    def __init__(self, n_nodes: int = 5, max_batch_size: int = 256) -> None:
        self.n_nodes = n_nodes
        self.max_batch_size = max_batch_size

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
        skips = [Categorical(_skip(*edge), (0, 1)) for edge in self.skips()]
        return Decisions(Space((*nodes, *skips)), training_hyperparameters(self.max_batch_size))

    def build(self, configuration: Mapping, input_shape: tuple, n_outputs: int):
        """Build the Keras model of a configuration, with `n_outputs` linear outputs."""
        from skuq.backend import keras

        layers = keras.layers
        anchors = [keras.Input(shape=input_shape, name="input", dtype="float32")]
        for target in range(1, self.n_nodes + 2):
            last = anchors[-1]
            merged = [last]
            # All anchors before the predecessor, which is always connected.
            for source in range(target - 1):
                if configuration.get(_skip(source, target)):
                    # Without a bias, since the next layer has one.
                    project = layers.Dense(
                        last.shape[-1],
                        use_bias=False,
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
                    int(units), activation=activation, dtype="float32", name=f"node_{target}"
                )
                anchors.append(dense(last))
        return keras.Model(anchors[0], anchors[-1], name="dense_skip", dtype="float32")

    def recipe(self, configuration: Mapping) -> dict:
        """Select the configuration's training hyperparameters, by the recipe's names."""
        return self.decisions().hyperparameters.restrict(configuration)


def _skip(source: int, target: int) -> str:
    return f"skip_{source}_{target}"
