"""Search space of the cells of NAS-Bench-201, and its names of architectures."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Integral

from skuq._params import Interval, Settings
from skuq._utils._records import saved_as
from skuq.networks._cells import (
    CELL_HYPERPARAMETERS,
    CellLayers,
    cell_recipe,
    check_image,
    image_outputs,
    image_stem,
)
from skuq.networks._space import Categorical, Decisions, Space

OPERATIONS = ("none", "skip_connect", "conv_1x1", "conv_3x3", "avg_pool_3x3")
EDGES = tuple(itertools.combinations(range(4), 2))


@saved_as("networks.NASBench201Space")
@dataclass(eq=False, repr=False)
class NASBench201Space(Settings):
    """Search space of NAS-Bench-201: 15 625 cells, with published results for each.

    A cell has four nodes: 0 is its input and 3 its output. Each pair of nodes has an
    edge with one of five operations, and a node is the sum of the edges into it. Three
    stages of `n_cells` cells have one, two and four times `channels`, and residual blocks
    between them halve the resolution.

    Parameters
    ----------
    channels : int, default=16
        Number of channels in the first stage.
    n_cells : int, default=5
        Number of cells in each stage.
    batch_size : int, default=100
        Batch size of the training recipe, as in `CellSpace`.

    Attributes
    ----------
    takes_images : bool
        True: rows are arrays of shape (height, width, channels).

    See Also
    --------
    CellSpace : The space of DARTS.
    parse_nas_bench_201 : Decisions of an architecture string.

    Notes
    -----
    Operations whose result no other node reads are left out, also from the number of weights.
    Networks are trained as in `CellSpace`. The benchmark itself trained for 200 epochs in batches
    of 256, with Nesterov's momentum, a learning rate of 0.1 and a weight decay of 5e-4.

    References
    ----------
    Dong and Yang, "NAS-Bench-201: Extending the Scope of Reproducible Neural Architecture
    Search", ICLR 2020. Zaidi et al., NeurIPS 2021, appendices B.1 and B.4.

    Examples
    --------
    >>> from skuq.networks import NASBench201Space
    >>> NASBench201Space().decisions().architecture.size
    15625
    """

    channels: int = 16
    n_cells: int = 5
    batch_size: int = 100

    takes_images = True

    _parameter_constraints = {
        "channels": [Interval(Integral, 1, None, closed="left")],
        "n_cells": [Interval(Integral, 1, None, closed="left")],
        "batch_size": [Interval(Integral, 1, None, closed="left")],
    }

    def decisions(self, input_shape=None, n_outputs=None) -> Decisions:
        """List architecture and training decisions; they do not depend on the data."""
        edges = (Categorical(edge_name(*edge), OPERATIONS, default="conv_3x3") for edge in EDGES)
        return Decisions(Space(tuple(edges)), CELL_HYPERPARAMETERS)

    def build(self, configuration: Mapping, input_shape: tuple, n_outputs: int):
        """Build the Keras model of a configuration, with `n_outputs` linear outputs."""
        check_image(input_shape)
        layers = CellLayers()
        inputs, x = image_stem(layers, input_shape, self.channels)
        for stage in range(3):
            if stage:
                # A residual block. Its shortcut halves the resolution by averages, and a 1 x 1
                # convolution adapts the channels.
                channels, name = 2 * x.shape[-1], f"block_{stage}"
                y = layers.conv_norm(x, channels, 3, f"{name}_first", strides=2)
                y = layers.conv_norm(y, channels, 3, f"{name}_second")
                x = layers.pool("AveragePooling2D", x, 2, 2, f"{name}_pool")
                x = layers.merge("Add", [layers.conv(x, channels, 1, name), y], f"{name}_sum")
            for i in range(self.n_cells):
                x = _add_cell(layers, configuration, x, f"cell_{stage}_{i}")
        # As in the benchmark, normalisation and ReLU follow the last stage.
        x = layers.relu(layers.norm(x, "last_norm"), "last")
        return image_outputs(layers, inputs, x, n_outputs, "nas_bench_201")

    def recipe(self, configuration: Mapping) -> dict:
        """Make the training recipe of a configuration, as in `CellSpace.recipe`."""
        return cell_recipe(configuration, self.batch_size)

    def mutate(self, configuration: Mapping, rng) -> dict:
        """Change the operation of one edge, drawn uniformly (NES, appendix B.4).

        Parameters
        ----------
        configuration : mapping
        rng : numpy.random.Generator

        Returns
        -------
        dict
        """
        return {**configuration, **self.decisions().architecture.mutate(configuration, rng)}


def edge_name(i, j) -> str:
    """Name the decision about the edge from node i to node j."""
    return f"edge_{i}_{j}"


def _add_cell(layers, configuration, x, name):
    """Add a cell of four nodes: each sums the operations on its incoming edges."""
    values = [x]
    for j in range(1, 4):
        ends = []
        for i, value in enumerate(values):
            edge = edge_name(i, j)
            operation, edge_of_cell = configuration[edge], f"{name}_{edge}"
            if operation == "skip_connect":
                ends.append(value)
            elif operation == "avg_pool_3x3":
                ends.append(layers.pool("AveragePooling2D", value, 3, 1, edge_of_cell))
            elif operation != "none":
                size = {"conv_1x1": 1, "conv_3x3": 3}[operation]
                ends.append(layers.conv_norm(value, value.shape[-1], size, edge_of_cell))
        if not ends:  # a node without edges is zero; Keras needs it to depend on the input
            ends = [layers("Rescaling", x, f"{name}_{j}", scale=0.0)]
        values.append(layers.merge("Add", ends, f"{name}_{j}"))
    return values[-1]


_EXAMPLE = "|nor_conv_3x3~0|+|none~0|skip_connect~1|+|none~0|nor_conv_1x1~1|avg_pool_3x3~2|"
_NODE = re.compile(r"\|(\w+~\d\|)+")
_EDGE = re.compile(r"(\w+)~(\d)")
#: From the benchmark's names of operations to those of `NASBench201Space`.
_OPERATIONS = {name.replace("conv", "nor_conv"): name for name in OPERATIONS}


def parse_nas_bench_201(text: str) -> dict[str, str]:
    """Convert an architecture string of NAS-Bench-201 to the decisions of `NASBench201Space`.

    Parameters
    ----------
    text : str
        Groups for the nodes 1, 2 and 3, joined by "+". Each edge of a group is an operation, "~",
        and the node that the edge reads.

    Returns
    -------
    dict
        ``{decision name: operation}``, for example for `fixed` of `NESClassifier`.

    Raises
    ------
    ValueError
        If the text is not such a string, an edge is missing or repeated, or an operation is
        unknown.

    Examples
    --------
    >>> from skuq.networks import parse_nas_bench_201
    >>> architecture = parse_nas_bench_201(
    ...     "|nor_conv_3x3~0|+|none~0|skip_connect~1|+|none~0|nor_conv_1x1~1|avg_pool_3x3~2|"
    ... )
    >>> architecture["edge_0_1"], architecture["edge_1_2"]
    ('conv_3x3', 'skip_connect')
    """
    # A group of edges for each node but the first, whose number is the group's position.
    nodes = text.strip().split("+") if isinstance(text, str) else []
    found = [
        ((int(i), j), operation)
        for j, node in enumerate(nodes, start=1)
        for operation, i in _EDGE.findall(node)
    ]
    # The second condition finds edges that are missing, repeated or backwards.
    well_formed = all(_NODE.fullmatch(node) for node in nodes)
    if not well_formed or sorted(edge for edge, _ in found) != sorted(EDGES):
        raise ValueError(
            "An architecture of NAS-Bench-201 must name each of its six edges once, as in "
            f"{_EXAMPLE!r}. Got {text!r}."
        )
    unknown = sorted({operation for _, operation in found} - set(_OPERATIONS))
    if unknown:
        raise ValueError(
            f"Operations of NAS-Bench-201 are {sorted(_OPERATIONS)}. Got {unknown} in {text!r}."
        )
    return {edge_name(*edge): _OPERATIONS[operation] for edge, operation in sorted(found)}
