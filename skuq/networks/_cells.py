"""Image networks stacked of cells: genotypes, layers, the spaces of DARTS and NAS-Bench-201.

A genotype describes cells as plain data. Neural Ensemble Search (Zaidi et al., NeurIPS 2021; here
NES) searches its members in this space.
"""

import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from numbers import Integral

from skuq import backend
from skuq._params import Interval, Settings, StrOptions, check_count, parameters
from skuq.files._registry import saved_record
from skuq.networks._space import Categorical, Decisions, Real, Space

KINDS = ("normal", "reduction")  # cells of a network
#: Operations of DARTS' search space, without "zero" (NES, appendix B.1).
DARTS_OPERATIONS = (
    "max_pool_3x3",
    "avg_pool_3x3",
    "skip_connect",
    "sep_conv_3x3",
    "sep_conv_5x5",
    "dil_conv_3x3",
    "dil_conv_5x5",
)
#: All operations of an edge: DARTS', and two more for AmoebaNet.
OPERATIONS = (*DARTS_OPERATIONS, "sep_conv_7x7", "conv_7x1_1x7")


@saved_record("networks.Cell", eq=True)
class Cell:
    """A small graph of operations; image networks are stacks of such cells.

    Parameters
    ----------
    nodes : tuple of ((str, int), (str, int))
        One entry for each intermediate node: its two edges, each an operation and the number of
        the node that it reads. Nodes 0 and 1 are the outputs of the cell before the previous one
        and of the previous cell, and intermediate nodes count from 2. A node is the sum of its
        two edges.
    concat : tuple of int
        Intermediate nodes whose concatenated channels are the cell's output.

    Raises
    ------
    ValueError
        If an operation is unknown, an edge does not read an earlier node, or `concat` names a
        node that does not exist.

    Examples
    --------
    >>> from skuq.networks._cells import Cell
    >>> cell = Cell(nodes=((("sep_conv_3x3", 0), ("skip_connect", 1)),), concat=(2,))
    >>> cell.nodes[0][1]
    ('skip_connect', 1)
    """

    nodes: tuple
    concat: tuple

    def __post_init__(self):
        nodes = tuple(tuple(tuple(edge) for edge in edges) for edges in self.nodes)
        vars(self).update(nodes=nodes, concat=tuple(self.concat))
        for k, edges in enumerate(nodes, start=2):
            if len(edges) != 2:
                raise ValueError(f"Node {k} of a cell must have two edges. Got {edges}.")
            for edge in edges:
                if len(edge) != 2 or edge[0] not in OPERATIONS:
                    raise ValueError(
                        f"An edge must be a pair of one of the operations {OPERATIONS} and a "
                        f"node. Got {edge} into node {k}."
                    )
                if not (isinstance(edge[1], Integral) and edge[1] in range(k)):
                    raise ValueError(f"Node {k} must read nodes in 0..{k - 1}. Got {edge}.")
        end = 2 + len(nodes)
        if not self.concat or len(set(self.concat)) < len(self.concat):
            raise ValueError(f"`concat` must name one or more distinct nodes. Got {self.concat}.")
        if not all(isinstance(node, Integral) and node in range(2, end) for node in self.concat):
            raise ValueError(f"`concat` must name nodes in 2..{end - 1}. Got {self.concat}.")


@saved_record("networks.Genotype", eq=True)
class Genotype:
    """The two cells of a network: one that keeps the resolution and one that halves it.

    Parameters
    ----------
    normal, reduction : Cell or mapping
        The cell that keeps the resolution, and the one that halves it; or their fields, as
        `dataclasses.asdict` returns them, which JSON can store.

    See Also
    --------
    CellSpace : Networks that stack cells, such as these as its `genotype`.

    Examples
    --------
    >>> from dataclasses import asdict
    >>> from skuq.networks import Genotype
    >>> from skuq.networks._cells import Cell
    >>> cell = Cell(nodes=((("sep_conv_3x3", 0), ("skip_connect", 1)),), concat=(2,))
    >>> genotype = Genotype(normal=cell, reduction=cell)
    >>> Genotype(**asdict(genotype)) == genotype
    True
    """

    normal: Cell
    reduction: Cell

    def __post_init__(self):
        for name in KINDS:
            cell = getattr(self, name)
            if isinstance(cell, Mapping):
                object.__setattr__(self, name, Cell(**cell))
            elif not isinstance(cell, Cell):
                raise ValueError(f"`{name}` must be a Cell. Got {cell!r}.")


NODES = (2, 3, 4, 5)  # intermediate nodes of DARTS' cells; 0 and 1 are the inputs

_DARTS_NORMAL = (
    (("sep_conv_3x3", 0), ("sep_conv_3x3", 1)),
    (("sep_conv_3x3", 0), ("sep_conv_3x3", 1)),
    (("sep_conv_3x3", 1), ("skip_connect", 0)),
    (("skip_connect", 0), ("dil_conv_3x3", 2)),
)
_DARTS_REDUCTION = (
    (("max_pool_3x3", 0), ("max_pool_3x3", 1)),
    (("skip_connect", 2), ("max_pool_3x3", 1)),
    (("max_pool_3x3", 0), ("skip_connect", 2)),
    (("skip_connect", 2), ("max_pool_3x3", 1)),
)
#: DARTS' second-order cells (Liu et al., ICLR 2019; `DARTS_V2` in its code).
DARTS = Genotype(Cell(_DARTS_NORMAL, NODES), Cell(_DARTS_REDUCTION, NODES))
_AMOEBANET_NORMAL = (
    (("avg_pool_3x3", 0), ("max_pool_3x3", 1)),
    (("sep_conv_3x3", 0), ("sep_conv_5x5", 2)),
    (("sep_conv_3x3", 0), ("avg_pool_3x3", 3)),
    (("sep_conv_3x3", 1), ("skip_connect", 1)),
    (("skip_connect", 0), ("avg_pool_3x3", 1)),
)
_AMOEBANET_REDUCTION = (
    (("avg_pool_3x3", 0), ("sep_conv_3x3", 1)),
    (("max_pool_3x3", 0), ("sep_conv_7x7", 2)),
    (("sep_conv_7x7", 0), ("avg_pool_3x3", 1)),
    (("max_pool_3x3", 0), ("max_pool_3x3", 1)),
    (("conv_7x1_1x7", 0), ("sep_conv_3x3", 5)),
)
#: AmoebaNet-A (Real et al., AAAI 2019), as defined in DARTS' code.
AMOEBANET = Genotype(Cell(_AMOEBANET_NORMAL, (4, 5, 6)), Cell(_AMOEBANET_REDUCTION, (3, 4, 6)))
#: The published cells by name.
GENOTYPES = {"darts": DARTS, "amoebanet": AMOEBANET}


class CellLayers:
    """Functions that apply Keras layers to a value, with given names and in float32.

    A model's JSON then depends only on its architecture, and names no class outside Keras.
    """

    def __init__(self):
        self._layers = backend.keras.layers
        self._rectified = {}  # id of a value -> the value, and its ReLU

    def __call__(self, layer: str, x, name: str, **arguments):
        """Apply the Keras layer of class `layer` to a value."""
        if "2D" in layer:  # Keras' default is a setting of the user's
            arguments["data_format"] = "channels_last"
        return getattr(self._layers, layer)(name=name, dtype="float32", **arguments)(x)

    def conv(self, x, channels, name, *, size=3, strides=1):
        arguments = {"kernel_size": size, "strides": strides, "padding": "same"}
        return self("Conv2D", x, name, filters=channels, use_bias=False, **arguments)

    def separable(self, x, size, name, strides=1, dilation=1):
        arguments = {"kernel_size": size, "strides": strides, "dilation_rate": dilation}
        arguments |= {"filters": x.shape[-1], "padding": "same", "use_bias": False}
        return self("SeparableConv2D", x, name, **arguments)

    def norm(self, x, name, *, momentum=0.9, epsilon=1e-5):
        # Defaults of PyTorch, which both papers use. Its momentum of 0.1 is 0.9 in Keras.
        return self("BatchNormalization", x, name, momentum=momentum, epsilon=epsilon)

    def relu(self, x, name):
        """Apply a ReLU, computed once for all operations that begin with the same value."""
        if id(x) not in self._rectified:
            # Keep x itself, too, so that its id is not given to another value.
            self._rectified[id(x)] = x, self("ReLU", x, f"{name}_relu")
        return self._rectified[id(x)][1]

    def conv_norm(self, x, channels, name, *, size=3, strides=1):
        """Apply ReLU, convolution and batch normalisation, the order in all cells."""
        x = self.conv(self.relu(x, name), channels, f"{name}_conv", size=size, strides=strides)
        return self.norm(x, f"{name}_norm")

    def pool(self, kind, x, strides, name, *, size=3):
        # With "same" padding, Keras averages over real pixels only.
        return self(kind, x, name, pool_size=size, strides=strides, padding="same")

    def merge(self, layer, values, name):
        """Join values by an "Add" or "Concatenate" layer, which a single value does not need."""
        return values[0] if len(values) == 1 else self(layer, values, name)

    def factorized_reduction(self, x, channels, name):
        """Halve the resolution: even pixels give half of the channels, odd pixels the rest."""
        x = self.relu(x, name)
        even = self.conv(x, channels // 2, f"{name}_even_conv", size=1, strides=2)
        odd_height, odd_width = x.shape[1] % 2, x.shape[2] % 2
        if odd_height or odd_width:  # add a pixel, so that both halves have the same size
            x = self("ZeroPadding2D", x, f"{name}_pad", padding=((0, odd_height), (0, odd_width)))
        # Without the first row and column, strides of 2 meet the odd pixels.
        x = self("Cropping2D", x, f"{name}_shift", cropping=((1, 0), (1, 0)))
        odd = self.conv(x, channels - channels // 2, f"{name}_odd_conv", size=1, strides=2)
        return self.norm(self.merge("Concatenate", [even, odd], f"{name}_concat"), f"{name}_norm")


def _separable(size, layers, x, strides, name):
    for part, step in (("first", strides), ("second", 1)):
        part_name = f"{name}_{part}"
        # DARTS applies separable convolutions twice; only the first one may have strides.
        x = layers.separable(layers.relu(x, part_name), size, f"{part_name}_conv", step)
        x = layers.norm(x, f"{part_name}_norm")
    return x


def _dilated_convolution(size, layers, x, strides, name):
    x = layers.separable(layers.relu(x, name), size, f"{name}_conv", dilation=2)
    if strides > 1:  # Keras allows no strides with a dilation: drop pixels after it instead
        x = layers.pool("MaxPooling2D", x, strides, f"{name}_strides", size=1)
    return layers.norm(x, f"{name}_norm")


def _row_column(layers, x, strides, name, *, length=7):
    x, channels = layers.relu(x, name), x.shape[-1]
    x = layers.conv(x, channels, f"{name}_row", size=(1, length), strides=(1, strides))
    x = layers.conv(x, channels, f"{name}_column", size=(length, 1), strides=(strides, 1))
    return layers.norm(x, f"{name}_norm")


_APPLY: dict[str, Callable] = {
    "max_pool_3x3": lambda layers, *to: layers.pool("MaxPooling2D", *to),
    "avg_pool_3x3": lambda layers, *to: layers.pool("AveragePooling2D", *to),
    "skip_connect": lambda layers, x, strides, name: (
        x if strides == 1 else layers.factorized_reduction(x, x.shape[-1], name)
    ),
    **{f"sep_conv_{size}x{size}": partial(_separable, size) for size in (3, 5, 7)},
    **{f"dil_conv_{size}x{size}": partial(_dilated_convolution, size) for size in (3, 5)},
    "conv_7x1_1x7": _row_column,
    # Of NAS-Bench-201.
    "conv_1x1": lambda layers, x, strides, name: layers.conv_norm(x, x.shape[-1], name, size=1),
    "conv_3x3": lambda layers, x, strides, name: layers.conv_norm(x, x.shape[-1], name, size=3),
}


_STEM_MULTIPLIER = 3  # channels of the stem, in units of those of the first cells


def image_stem(layers, input_shape, channels):
    """Make the input of an image network, and its stem: convolution and normalisation."""
    if len(input_shape) != 3 or not all(isinstance(n, Integral) and n > 0 for n in input_shape):
        raise ValueError(
            "Networks of cells need images: `input_shape` must be (height, width, channels). "
            f"Got {tuple(input_shape)}."
        )
    inputs = backend.keras.Input(shape=input_shape, name="input", dtype="float32")
    return inputs, layers.norm(layers.conv(inputs, channels, "stem_conv"), "stem_norm")


def image_outputs(layers, inputs, x, n_outputs, name):
    """Add the mean over pixels and the dense output layer, and make the model."""
    x = layers("GlobalAveragePooling2D", x, "mean")
    outputs = layers("Dense", x, "output", units=n_outputs)
    return backend.keras.Model(inputs, outputs, name=name, dtype="float32")


_SIZES = ("channels", "n_cells")
#: Learning rate and l2, with DARTS' values as defaults.
CELL_HYPERPARAMETERS = Space(
    (
        Real("learning_rate", 0.0025, 0.25, log=True, default=0.025),
        # PyTorch's weight decay 3e-4 is the gradient of 1.5e-4 * sum(w**2).
        Real("l2", 5e-6, 4.5e-3, log=True, default=1.5e-4),
    )
)


class _ImageSpace(Settings):
    """Base of search spaces of image networks, which all train as DARTS' do."""

    takes_images = True
    batch_size: int

    def recipe(self, configuration: Mapping) -> dict:
        """Make the recipe of DARTS' training, with the configuration's learning rate and l2.

        It is stochastic gradient descent with momentum, with a rate that falls along half a
        cosine and clipped gradients, and keeps the last weights (NES, appendix B.3). The learning
        rate ends at 1e-4 of the first one, where that of DARTS ends at 0: a recipe needs a positive
        factor. The number of epochs is not set.
        """
        defaults = CELL_HYPERPARAMETERS.default()
        return {
            **{name: configuration.get(name, value) for name, value in defaults.items()},
            "optimizer": "sgd",
            "momentum": 0.9,
            "batch_size": self.batch_size,
            "schedule": "cosine",
            "final_lr_factor": 1e-4,
            "clip_norm": 5.0,
            "reduce_lr_patience": None,
            "early_stopping_patience": None,
            "keep": "last",
        }


@parameters("networks.CellSpace", kw_only=False)
class CellSpace(_ImageSpace):
    """Search space of DARTS: about 10^18 pairs of a normal and a reduction cell.

    Each cell has four intermediate nodes. A node is the sum of two edges from different earlier
    nodes, and each edge has one of seven operations. `build` documents how cells are
    stacked. The default configuration is the architecture that DARTS found.

    Parameters
    ----------
    channels : int or tuple of int, default=16
        Channels of the operations in the first cells. A tuple adds the decision ``"channels"``.
    n_cells : int or tuple of int, default=8
        Number of stacked cells. A tuple adds the decision ``"n_cells"``.
    genotype : None, Genotype, "darts" or "amoebanet", default=None
        Fixed cells. With None the cells are decisions.
    batch_size : int, default=100
        Batch size of the training recipe.

    Attributes
    ----------
    takes_images : bool
        True: rows are arrays of shape (height, width, channels).

    See Also
    --------
    NASBench201Space : A smaller space.

    References
    ----------
    Zaidi et al., "Neural Ensemble Search for Uncertainty Estimation and Dataset Shift",
    NeurIPS 2021, appendices B.1, B.3, B.4 and C.4.

    Examples
    --------
    >>> from math import prod
    >>> from skuq.networks import CellSpace
    >>> architecture = CellSpace().decisions().architecture
    >>> f"{prod(decision.size for decision in architecture.decisions):.2e}"
    '1.08e+18'
    """

    channels: int | Sequence[int] = 16
    n_cells: int | Sequence[int] = 8
    genotype: Genotype | str | None = None
    batch_size: int = 100

    _parameter_constraints = {
        "channels": [Interval(Integral, 1, None, closed="left"), tuple, list],
        "n_cells": [Interval(Integral, 1, None, closed="left"), tuple, list],
        "genotype": [Genotype, StrOptions(set(GENOTYPES)), None],
        "batch_size": [Interval(Integral, 1, None, closed="left")],
    }

    def validate(self) -> None:
        super().validate()
        for name in _SIZES:
            value = getattr(self, name)
            for one in value if isinstance(value, list | tuple) else ():
                check_count(name, one)

    @classmethod
    def width_depth(cls) -> "CellSpace":
        """Make the space of DARTS' cells in five widths and three depths (NES, appendix C.4)."""
        return cls(channels=(12, 14, 16, 18, 20), n_cells=(5, 8, 11), genotype=DARTS)

    def decisions(self, input_shape=None, n_outputs=None) -> Decisions:
        """List architecture and training decisions; they do not depend on the data."""
        cells = Space() if self.genotype else _CELLS
        sizes = [
            # The middle choice is the default: 16 channels and 8 cells in NES C.4.
            Categorical(name, tuple(choices), *choices[len(choices) // 2 :][:1])
            for name in _SIZES
            if isinstance(choices := getattr(self, name), tuple | list)
        ]
        return Decisions(cells + Space(tuple(sizes)), CELL_HYPERPARAMETERS)

    def cells(self, configuration: Mapping) -> Genotype:
        """Make the two cells that a configuration describes."""
        if self.genotype is not None:
            given = self.genotype
            return GENOTYPES[given] if isinstance(given, str) else given
        return Genotype(
            *(Cell(tuple(_edges(configuration, kind, k) for k in NODES), NODES) for kind in KINDS)
        )

    def build(self, configuration: Mapping, input_shape: tuple, n_outputs: int):
        """Build the Keras model of a configuration, with `n_outputs` linear outputs.

        The layers are a 3x3 convolution with batch normalisation (the stem), `n_cells` cells, the
        mean over all pixels, and a dense layer. Cells ``n_cells // 3`` and ``2 * n_cells // 3`` are
        reduction cells, with half the resolution and twice the channels. The first cell is always
        a normal one, so that a network of one cell has no reduction, and one of two cells has one.
        """
        genotype = self.cells(configuration)
        # Sizes with several values are decisions.
        channels, n_cells = (configuration.get(name, getattr(self, name)) for name in _SIZES)
        layers = CellLayers()
        inputs, stem = image_stem(layers, input_shape, _STEM_MULTIPLIER * channels)
        before, last = stem, stem  # outputs of the two previous cells, which a cell reads
        halved = False  # whether `last` has half the resolution of `before`
        # A network of one or two cells keeps its first cell normal.
        reductions = {n_cells // 3, 2 * n_cells // 3} - {0}
        for i in range(n_cells):
            name, reduces = f"cell_{i}", i in reductions
            cell = genotype.reduction if reduces else genotype.normal
            channels = channels * 2 if reduces else channels
            # Both inputs of a cell get its number of channels and the resolution of `last`.
            if halved:
                first = layers.factorized_reduction(before, channels, f"{name}_0")
            else:
                first = layers.conv_norm(before, channels, f"{name}_0", size=1)
            values = [first, layers.conv_norm(last, channels, f"{name}_1", size=1)]
            for k, edges in enumerate(cell.nodes, start=2):
                ends = []
                for edge, (operation, source) in zip("ab", edges):
                    # In a reduction cell the operations on its two inputs have strides of 2.
                    strides = 2 if reduces and source < 2 else 1
                    ends.append(
                        _APPLY[operation](layers, values[source], strides, f"{name}_{k}{edge}")
                    )
                values.append(layers.merge("Add", ends, f"{name}_{k}"))
            output = layers.merge("Concatenate", [values[k] for k in cell.concat], f"{name}_concat")
            before, last, halved = last, output, reduces
        return image_outputs(layers, inputs, last, n_outputs, "cells")

    def mutate(self, configuration: Mapping, rng) -> dict:
        """Mutate a configuration as in NES (appendix B.4).

        One of the two cells is drawn. With a probability of one third each, nothing changes, one
        edge gets a different operation, or one edge reads another node, which the other edge does
        not read, and keeps its operation. Sizes that are decisions are each as likely to be drawn
        as a cell, and then get another value; the paper does not search both. Everything else,
        hyperparameters included, is copied.

        Parameters
        ----------
        configuration : mapping
            The parent.
        rng : numpy.random.Generator

        Returns
        -------
        dict
            The child.
        """
        sizes = Space(tuple(d for d in self.decisions().architecture.decisions if d.name in _SIZES))
        n_cells = 0 if self.genotype else len(KINDS)
        drawn = rng.integers(n_cells + len(sizes)) if n_cells + len(sizes) else 0
        if drawn >= n_cells:
            return {**configuration, **sizes.mutate(configuration, rng)}
        kind, which = KINDS[drawn], rng.integers(3)
        if which == 0:
            return dict(configuration)
        if which == 1:
            return {**configuration, **_OPERATIONS[kind].mutate(configuration, rng)}
        # One edge reads another node. Node 2 cannot change: it reads both of the earlier nodes.
        k = NODES[1 + rng.integers(len(NODES) - 1)]
        edges = _edges(configuration, kind, k)
        others = [node for node in range(k) if node not in {node for _, node in edges}]
        edge = rng.integers(2)
        edges[edge] = edges[edge][0], others[rng.integers(len(others))]
        return {**configuration, **_node_decisions(kind, k, edges)}


def _edges(configuration, kind, k) -> list[tuple[str, int]]:
    """Return the two edges of node k: their operations, and the nodes that they read."""
    operations = (configuration[f"{kind}_{k}_op_{edge}"] for edge in "ab")
    return list(zip(operations, map(int, configuration[f"{kind}_{k}_inputs"].split("-"))))


def _node_decisions(kind, k, edges) -> dict:
    # Edges in the order of their nodes, so that equal cells have equal decisions.
    (op_a, low), (op_b, high) = sorted(edges, key=lambda edge: edge[1])
    prefix = f"{kind}_{k}"
    return {f"{prefix}_inputs": f"{low}-{high}", f"{prefix}_op_a": op_a, f"{prefix}_op_b": op_b}


# Decisions about both cells, with DARTS' own cells as defaults.
_CELLS = Space(
    tuple(
        Categorical(
            name,
            # Pairs of earlier nodes, or operations.
            tuple(f"{i}-{j}" for i, j in itertools.combinations(range(k), 2))
            if name.endswith("inputs")
            else DARTS_OPERATIONS,
            default=default,
        )
        for kind, cell in zip(KINDS, (DARTS.normal, DARTS.reduction))
        for k, edges in zip(NODES, cell.nodes)
        for name, default in _node_decisions(kind, k, edges).items()
    )
)
_OPERATIONS = {
    kind: Space(tuple(d for d in _CELLS.decisions if d.name.startswith(kind) and "_op_" in d.name))
    for kind in KINDS
}


# NAS-Bench-201

NAS_BENCH_OPERATIONS = ("none", "skip_connect", "conv_1x1", "conv_3x3", "avg_pool_3x3")
NAS_BENCH_NODES = range(4)
NAS_BENCH_EDGES = tuple(itertools.combinations(NAS_BENCH_NODES, 2))


@parameters("networks.NASBench201Space", kw_only=False)
class NASBench201Space(_ImageSpace):
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

    _parameter_constraints = dict.fromkeys(
        ("channels", "n_cells", "batch_size"), [Interval(Integral, 1, None, closed="left")]
    )

    def decisions(self, input_shape=None, n_outputs=None) -> Decisions:
        """List architecture and training decisions; they do not depend on the data."""
        edges = (
            Categorical(f"edge_{i}_{j}", NAS_BENCH_OPERATIONS, default="conv_3x3")
            for i, j in NAS_BENCH_EDGES
        )
        return Decisions(Space(tuple(edges)), CELL_HYPERPARAMETERS)

    def build(self, configuration: Mapping, input_shape: tuple, n_outputs: int):
        """Build the Keras model of a configuration, with `n_outputs` linear outputs."""
        layers = CellLayers()
        inputs, x = image_stem(layers, input_shape, self.channels)
        for stage in range(3):
            if stage:
                # A residual block. Its shortcut halves the resolution by averages, and a 1 x 1
                # convolution adapts the channels.
                channels, name = 2 * x.shape[-1], f"block_{stage}"
                y = layers.conv_norm(x, channels, f"{name}_first", strides=2)
                y = layers.conv_norm(y, channels, f"{name}_second")
                x = layers.pool("AveragePooling2D", x, 2, f"{name}_pool", size=2)
                x = layers.merge("Add", [layers.conv(x, channels, name, size=1), y], f"{name}_sum")
            for i in range(self.n_cells):
                x = _add_nas_bench_cell(layers, configuration, x, f"cell_{stage}_{i}")
        # NAS-Bench-201 has a normalisation and a ReLU after the last stage, too.
        x = layers.relu(layers.norm(x, "last_norm"), "last")
        return image_outputs(layers, inputs, x, n_outputs, "nas_bench_201")

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


def _add_nas_bench_cell(layers, configuration, x, name):
    """Add a cell of four nodes: each sums the operations on its incoming edges."""
    values = [x]
    for j in NAS_BENCH_NODES[1:]:
        ends = []
        for i, value in enumerate(values):
            edge = f"edge_{i}_{j}"
            if (operation := configuration[edge]) != "none":
                ends.append(_APPLY[operation](layers, value, 1, f"{name}_{edge}"))
        if not ends:  # a node without edges is zero; Keras needs it to depend on the input
            ends = [layers("Rescaling", x, f"{name}_{j}", scale=0.0)]
        values.append(layers.merge("Add", ends, f"{name}_{j}"))
    return values[-1]


_EXAMPLE = "|nor_conv_3x3~0|+|none~0|skip_connect~1|+|none~0|nor_conv_1x1~1|avg_pool_3x3~2|"
_NODE = re.compile(r"\|(\w+~\d\|)+")
_EDGE = re.compile(r"(\w+)~(\d)")
#: From the benchmark's names of operations to those of `NASBench201Space`.
_NAS_BENCH_NAMES = {name.replace("conv", "nor_conv"): name for name in NAS_BENCH_OPERATIONS}


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
    if not well_formed or sorted(edge for edge, _ in found) != sorted(NAS_BENCH_EDGES):
        raise ValueError(
            "An architecture of NAS-Bench-201 must name each of its six edges once, as in "
            f"{_EXAMPLE!r}. Got {text!r}."
        )
    unknown = sorted({operation for _, operation in found} - set(_NAS_BENCH_NAMES))
    if unknown:
        raise ValueError(
            f"Operations of NAS-Bench-201 are {sorted(_NAS_BENCH_NAMES)}. "
            f"Got {unknown} in {text!r}."
        )
    return {f"edge_{i}_{j}": _NAS_BENCH_NAMES[operation] for (i, j), operation in sorted(found)}
