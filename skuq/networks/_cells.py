"""Search space of image networks stacked of cells: that of DARTS.

Neural Ensemble Search (Zaidi et al., NeurIPS 2021; here NES) searches its members in it.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from numbers import Integral
from typing import Any

from skuq._checks import check_count
from skuq._params import Interval, Settings, StrOptions
from skuq._registry import saved_as
from skuq._space import Categorical, Real, Space
from skuq.networks._cell_layers import build_cell_network
from skuq.networks._genotypes import DARTS, DARTS_OPERATIONS, GENOTYPES, Cell, Genotype
from skuq.networks._search_space import Decisions

KINDS = ("normal", "reduction")
_SIZES = ("channels", "n_cells")
NODES = (2, 3, 4, 5)  # intermediate nodes; 0 and 1 are the cell's inputs


def cell_hyperparameters() -> Space:
    """Make the space of learning rate and l2, with DARTS' values as defaults."""
    return Space(
        (
            Real("learning_rate", 0.0025, 0.25, log=True, default=0.025),
            # PyTorch's weight decay 3e-4 is the gradient of 1.5e-4 * sum(w**2).
            Real("l2", 5e-6, 4.5e-3, log=True, default=1.5e-4),
        )
    )


def cell_recipe(configuration: Mapping, batch_size: int) -> dict:
    """Make the recipe of DARTS' training (NES, appendix B.3), without a number of epochs.

    The last epoch's weights are kept. The learning rate ends at 1e-4 of the first one, where that
    of DARTS ends at 0: a recipe needs a positive factor.
    """
    hyperparameters = cell_hyperparameters().default()
    chosen = {name: configuration[name] for name in hyperparameters if name in configuration}
    return {
        **hyperparameters,
        **chosen,
        "optimizer": "sgd",
        "momentum": 0.9,
        "batch_size": batch_size,
        "schedule": "cosine",
        "final_lr_factor": 1e-4,
        "clip_norm": 5.0,
        "reduce_lr_patience": None,
        "early_stopping_patience": None,
        "keep": "last",
    }


@saved_as("networks.CellSpace")
class CellSpace(Settings):
    """Search space of DARTS: about 10^18 pairs of a normal and a reduction cell.

    Each cell has four intermediate nodes. A node is the sum of two edges from different earlier
    nodes, and each edge has one of seven operations. `build_cell_network` documents how cells are
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

    takes_images = True

    _parameter_constraints: dict[str, Any] = {
        "channels": [Interval(Integral, 1, None, closed="left"), tuple, list],
        "n_cells": [Interval(Integral, 1, None, closed="left"), tuple, list],
        "genotype": [Genotype, StrOptions(set(GENOTYPES)), None],
        "batch_size": [Interval(Integral, 1, None, closed="left")],
    }

    def __init__(
        self,
        channels: int | Sequence[int] = 16,
        n_cells: int | Sequence[int] = 8,
        genotype: Genotype | str | None = None,
        batch_size: int = 100,
    ) -> None:
        self.channels = channels
        self.n_cells = n_cells
        self.genotype = genotype
        self.batch_size = batch_size

    def validate(self) -> None:
        super().validate()
        for name in _SIZES:
            value = getattr(self, name)
            for one in value if isinstance(value, list | tuple) else ():
                check_count(name, one)

    @classmethod
    def width_depth(cls) -> CellSpace:
        """Make the space of DARTS' cells in five widths and three depths (NES, appendix C.4)."""
        return cls(channels=(12, 14, 16, 18, 20), n_cells=(5, 8, 11), genotype=DARTS)

    def decisions(self, input_shape=None, n_outputs=None) -> Decisions:
        """List architecture and training decisions; they do not depend on the data."""
        cells = Space() if self.genotype else _CELLS
        sizes = [
            # The middle choice is the default: 16 channels and 8 cells in NES C.4.
            Categorical(name, tuple(choices), default=choices[len(choices) // 2])
            for name in ("channels", "n_cells")
            if isinstance(choices := getattr(self, name), tuple | list)
        ]
        return Decisions(cells + Space(tuple(sizes)), cell_hyperparameters())

    def cells(self, configuration: Mapping) -> Genotype:
        """Make the two cells that a configuration describes."""
        if self.genotype is not None:
            given = self.genotype
            return GENOTYPES[given] if isinstance(given, str) else given
        return Genotype(*(_cell_of(configuration, kind) for kind in KINDS))

    def build(self, configuration: Mapping, input_shape: tuple, n_outputs: int):
        """Build the Keras model of a configuration, with `n_outputs` linear outputs."""
        return build_cell_network(
            self.cells(configuration),
            input_shape,
            n_outputs,
            channels=self._size("channels", configuration),
            n_cells=self._size("n_cells", configuration),
        )

    def _size(self, name, configuration):
        size = getattr(self, name)
        return configuration[name] if isinstance(size, tuple | list) else size

    def recipe(self, configuration: Mapping) -> dict:
        """Make the recipe of DARTS' training, with the configuration's learning rate and l2.

        It is stochastic gradient descent with momentum, with a rate that falls along half a
        cosine and clipped gradients, and keeps the last weights. The number of epochs is not set.
        """
        return cell_recipe(configuration, self.batch_size)

    def mutate(self, configuration: Mapping, rng) -> dict:
        """Mutate a configuration as in NES (appendix B.4).

        One of the two cells is drawn. With a probability of one third each, nothing changes, one
        edge gets a different operation, or one edge reads a different node and keeps its
        operation. If sizes are decisions, each is as likely to be drawn as a cell, and then gets
        another value; the paper does not search both. Everything else, hyperparameters included,
        is copied.

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
            return _mutate(configuration, sizes, rng)
        kind = KINDS[drawn]
        which = rng.integers(3)
        if which == 0:
            return dict(configuration)
        if which == 1:
            return _mutate(configuration, _OPERATIONS[kind], rng)
        return _mutate_input(configuration, kind, rng)


def _mutate(configuration, space, rng):
    """Change the value of one of the decisions of `space`."""
    return {**configuration, **space.mutate(configuration, rng)}


def _mutate_input(configuration, kind, rng):
    """Let one edge of a cell read another node."""
    # Node 2 cannot change: it reads both of the earlier nodes.
    k = NODES[1 + rng.integers(len(NODES) - 1)]
    edges, inputs = _edges(configuration, kind, k), _inputs(configuration, kind, k)
    others = [node for node in range(k) if node not in inputs]
    edge = rng.integers(2)
    edges[edge] = edges[edge][0], others[rng.integers(len(others))]
    return {**configuration, **_node_decisions(kind, k, edges)}


def _inputs(configuration, kind, k) -> list[int]:
    """Return the numbers of the two nodes that node k reads."""
    return [int(node) for node in configuration[f"{kind}_{k}_inputs"].split("-")]


def _edges(configuration, kind, k) -> list[tuple[str, int]]:
    """Return the two edges of node k: their operations, and the nodes that they read."""
    operations = (configuration[f"{kind}_{k}_op_{edge}"] for edge in "ab")
    return list(zip(operations, _inputs(configuration, kind, k)))


def _node_decisions(kind, k, edges) -> dict:
    """Make the decisions that describe the two edges of node k."""
    (op_a, low), (op_b, high) = sorted(edges, key=lambda edge: edge[1])
    prefix = f"{kind}_{k}"
    return {f"{prefix}_inputs": f"{low}-{high}", f"{prefix}_op_a": op_a, f"{prefix}_op_b": op_b}


def _cell_of(configuration, kind) -> Cell:
    return Cell(tuple(_edges(configuration, kind, k) for k in NODES), NODES)


def _cell_decisions() -> Space:
    """List the decisions about both cells, with DARTS' own cells as defaults."""
    decisions = []
    for kind, cell in zip(KINDS, (DARTS.normal, DARTS.reduction)):
        for k, edges in zip(NODES, cell.nodes):
            pairs = [f"{i}-{j}" for i, j in itertools.combinations(range(k), 2)]
            for name, default in _node_decisions(kind, k, edges).items():
                choices = tuple(pairs) if name.endswith("inputs") else DARTS_OPERATIONS
                decisions.append(Categorical(name, choices, default=default))
    return Space(tuple(decisions))


_CELLS = _cell_decisions()
_OPERATIONS = {
    kind: Space(tuple(d for d in _CELLS.decisions if d.name.startswith(kind) and "_op_" in d.name))
    for kind in KINDS
}
