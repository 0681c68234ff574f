"""Search space of the cells of NAS-Bench-201, and its published results."""

from __future__ import annotations

import csv
import itertools
import json
import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from numbers import Integral
from pathlib import Path
from typing import Any

import numpy as np

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
_POSITION_OF_BEST = {"loss": np.argmin, "accuracy": np.argmax}


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
        ``{decision name: operation}``, for example for `fixed_architecture` of `NESClassifier`.

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


def best_nas_bench_201(results: Any, score: str = "loss", *, dataset: str | None = None) -> dict:
    """Find the best architecture in results of NAS-Bench-201.

    A deep ensemble of it is "DeepEns (Optimal)" in Neural Ensemble Search. skuq does not contain
    the benchmark's results: they must be given.

    Parameters
    ----------
    results : dict, path or API object
        A dict ``{architecture string: number}``, the path of a JSON file with such an object, or
        of a CSV file with the column "architecture" and the one named by `score`. Or the
        benchmark's own API, `NASBench201API` or `NATStopology`, of which the validation results
        after 200 epochs are used, averaged over seeds.
    score : {"loss", "accuracy"}, default="loss"
        Meaning of the numbers: the lowest loss or the highest accuracy is the best. The paper uses
        the validation loss.
    dataset : str or None, default=None
        Data set of an API object: "cifar10-valid", "cifar100" or "ImageNet16-120".

    Returns
    -------
    dict
        Operation of each edge, as returned by `parse_nas_bench_201`. Of equally good architectures
        the first is returned.

    Raises
    ------
    ValueError
        If the results cannot be read, an architecture occurs twice, or a number is not finite.

    See Also
    --------
    NASBench201Space : The space of these architectures.

    Examples
    --------
    >>> from skuq.networks import best_nas_bench_201
    >>> none, skip = (
    ...     f"|{name}~0|+|{name}~0|{name}~1|+|{name}~0|{name}~1|{name}~2|"
    ...     for name in ("none", "skip_connect")
    ... )
    >>> best_nas_bench_201({none: 2.3, skip: 1.1})["edge_0_1"]
    'skip_connect'
    """
    if score not in _POSITION_OF_BEST:
        raise ValueError(f"`score` must be one of {sorted(_POSITION_OF_BEST)}. Got {score!r}.")
    pairs = list(_read_results(results, score, dataset))
    if not pairs:
        raise ValueError("`results` must hold at least one architecture. Got none.")
    architectures = [parse_nas_bench_201(text) for text, _ in pairs]
    # Results of several seeds would make the best of many runs look like the best architecture.
    text, count = Counter(text for text, _ in pairs).most_common(1)[0]
    if count > 1:
        raise ValueError(
            "`results` must hold each architecture once, for example with the mean of its seeds. "
            f"Got {text!r} {count} times."
        )
    try:
        values = np.array([float(value) for _, value in pairs])
    except (TypeError, ValueError) as error:
        raise ValueError(f"`results` must hold a number for each architecture: {error}.") from error
    if not np.isfinite(values).all():
        raise ValueError("`results` must hold a finite number for each architecture.")
    return architectures[int(_POSITION_OF_BEST[score](values))]


def _read_results(results, score, dataset) -> Iterable[tuple[str, Any]]:
    """Read pairs (architecture string, number) from any form of results."""
    if hasattr(results, "get_more_info"):  # the benchmark's API: ask it for every architecture
        if dataset is None:
            raise ValueError(
                'An API object needs `dataset`, for example "cifar10-valid". Got None.'
            )
        pairs = []
        for index in range(len(results)):
            info = results.get_more_info(index, dataset, hp="200", is_random=False)
            if f"valid-{score}" not in info:
                raise ValueError(
                    f"The benchmark has no validation results for `dataset={dataset!r}`. For "
                    'CIFAR-10 use "cifar10-valid".'
                )
            pairs.append((results.arch(index), info[f"valid-{score}"]))
        return pairs
    if dataset is not None:
        raise ValueError(
            "`dataset` can only be set if `results` is an API object, since other results are of "
            f"one data set. Got {dataset!r}."
        )
    if isinstance(results, Mapping):
        return results.items()
    suffix = Path(results).suffix if isinstance(results, str | os.PathLike) else None
    if suffix == ".json":
        stored = json.loads(Path(results).read_text(encoding="utf-8"))
        if isinstance(stored, dict):
            return stored.items()
    elif suffix == ".csv":
        with open(results, newline="", encoding="utf-8") as file:
            rows = csv.DictReader(file)
            if {"architecture", score} <= set(rows.fieldnames or ()):
                return [(row["architecture"], row[score]) for row in rows]
    raise ValueError(
        "`results` must be a dict {architecture string: number}, the path of a .json file with "
        f'one, or of a .csv file with the columns "architecture" and "{score}", or an API object '
        f"with `get_more_info`. Got {results!r}."
    )
