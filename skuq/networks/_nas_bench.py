"""Search space of the cells of NAS-Bench-201."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from numbers import Integral
from typing import Any

from skuq._params import Interval, Settings
from skuq._registry import saved_as
from skuq._space import Categorical, Space
from skuq.networks._cell_layers import CellLayers, check_image, image_outputs, image_stem
from skuq.networks._cells import cell_hyperparameters, cell_recipe
from skuq.networks._search_space import Decisions

OPERATIONS = ("none", "skip_connect", "conv_1x1", "conv_3x3", "avg_pool_3x3")
EDGES = tuple(itertools.combinations(range(4), 2))


@saved_as("networks.NASBench201Space")
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
    best_nas_bench_201 : The best architecture in published results.
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

    takes_images = True

    _parameter_constraints: dict[str, Any] = {
        "channels": [Interval(Integral, 1, None, closed="left")],
        "n_cells": [Interval(Integral, 1, None, closed="left")],
        "batch_size": [Interval(Integral, 1, None, closed="left")],
    }

    def __init__(self, channels: int = 16, n_cells: int = 5, batch_size: int = 100) -> None:
        self.channels = channels
        self.n_cells = n_cells
        self.batch_size = batch_size

    def decisions(self, input_shape=None, n_outputs=None) -> Decisions:
        """List architecture and training decisions; they do not depend on the data."""
        edges = (Categorical(edge_name(*edge), OPERATIONS, default="conv_3x3") for edge in EDGES)
        return Decisions(Space(tuple(edges)), cell_hyperparameters())

    def build(self, configuration: Mapping, input_shape: tuple, n_outputs: int):
        """Build the Keras model of a configuration, with `n_outputs` linear outputs."""
        check_image(input_shape)
        layers = CellLayers()
        inputs, x = image_stem(layers, input_shape, self.channels)
        for stage in range(3):
            if stage:
                x = _residual_block(layers, x, 2 * x.shape[-1], f"block_{stage}")
            for i in range(self.n_cells):
                x = _add_cell(layers, configuration, x, f"cell_{stage}_{i}")
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
        ends = [
            _operate(layers, configuration[edge_name(i, j)], values[i], f"{name}_{edge_name(i, j)}")
            for i in range(j)
            if configuration[edge_name(i, j)] != "none"
        ]
        if not ends:  # a node without edges is zero; Keras needs it to depend on the input
            ends = [layers("Rescaling", x, f"{name}_{j}", scale=0.0)]
        values.append(layers.add(ends, f"{name}_{j}"))
    return values[-1]


def _operate(layers, operation, x, name):
    if operation == "skip_connect":
        return x
    if operation == "avg_pool_3x3":
        return layers.pool("AveragePooling2D", x, 3, 1, name)
    return layers.conv_norm(x, x.shape[-1], {"conv_1x1": 1, "conv_3x3": 3}[operation], name)


def _residual_block(layers, x, channels, name):
    y = layers.conv_norm(x, channels, 3, f"{name}_first", strides=2)
    y = layers.conv_norm(y, channels, 3, f"{name}_second")
    # The shortcut halves the resolution by averages, and a 1 x 1 convolution adapts the channels.
    x = layers.conv(layers.pool("AveragePooling2D", x, 2, 2, f"{name}_pool"), channels, 1, name)
    return layers.add([x, y], f"{name}_sum")
