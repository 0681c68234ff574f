"""Describe cells of image networks as plain data, and define the published ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Integral

from skuq._registry import saved_as

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


@saved_as("networks.Cell")
@dataclass(frozen=True)
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
    >>> from skuq.networks import Cell
    >>> cell = Cell(nodes=((("sep_conv_3x3", 0), ("skip_connect", 1)),), concat=(2,))
    >>> cell.to_dict()
    {'nodes': [[['sep_conv_3x3', 0], ['skip_connect', 1]]], 'concat': [2]}
    """

    nodes: tuple
    concat: tuple

    def __post_init__(self):
        nodes = tuple(tuple(tuple(edge) for edge in edges) for edges in self.nodes)
        object.__setattr__(self, "nodes", nodes)
        object.__setattr__(self, "concat", tuple(self.concat))
        for k, edges in enumerate(nodes, start=2):
            if len(edges) != 2:
                raise ValueError(f"Node {k} of a cell must have two edges. Got {edges}.")
            for edge in edges:
                self._check_edge(k, edge)
        end = 2 + len(nodes)
        if not self.concat or len(set(self.concat)) < len(self.concat):
            raise ValueError(f"`concat` must name one or more distinct nodes. Got {self.concat}.")
        if not all(_is_in(node, 2, end) for node in self.concat):
            raise ValueError(f"`concat` must name nodes in 2..{end - 1}. Got {self.concat}.")

    @staticmethod
    def _check_edge(k, edge):
        if len(edge) != 2 or edge[0] not in OPERATIONS:
            raise ValueError(
                f"An edge must be a pair of one of the operations {OPERATIONS} and a node. "
                f"Got {edge} into node {k}."
            )
        if not _is_in(edge[1], 0, k):
            raise ValueError(f"Node {k} must read nodes in 0..{k - 1}. Got {edge}.")

    def to_dict(self) -> dict:
        """Convert the cell to JSON types."""
        nodes = [[list(edge) for edge in edges] for edges in self.nodes]
        return {"nodes": nodes, "concat": list(self.concat)}

    @classmethod
    def from_dict(cls, stored: Mapping) -> Cell:
        """Make the cell from the result of `to_dict`."""
        return cls(stored["nodes"], stored["concat"])


@saved_as("networks.Genotype")
@dataclass(frozen=True)
class Genotype:
    """The two cells of a network: one that keeps the resolution and one that halves it.

    Parameters
    ----------
    normal, reduction : Cell
        The cell that keeps the resolution, and the one that halves it.

    See Also
    --------
    build_cell_network : Build the network that stacks these cells.

    Examples
    --------
    >>> from skuq.networks import Cell, Genotype
    >>> cell = Cell(nodes=((("sep_conv_3x3", 0), ("skip_connect", 1)),), concat=(2,))
    >>> genotype = Genotype(normal=cell, reduction=cell)
    >>> Genotype.from_dict(genotype.to_dict()) == genotype
    True
    """

    normal: Cell
    reduction: Cell

    def __post_init__(self):
        for name in ("normal", "reduction"):
            if not isinstance(getattr(self, name), Cell):
                raise ValueError(f"`{name}` must be a Cell. Got {getattr(self, name)!r}.")

    def to_dict(self) -> dict:
        """Convert the genotype to JSON types."""
        return {"normal": self.normal.to_dict(), "reduction": self.reduction.to_dict()}

    @classmethod
    def from_dict(cls, stored: Mapping) -> Genotype:
        """Make the genotype from the result of `to_dict`."""
        return cls(Cell.from_dict(stored["normal"]), Cell.from_dict(stored["reduction"]))


def _is_in(node, start, end) -> bool:
    return isinstance(node, Integral) and start <= node < end


#: DARTS' second-order cells (Liu et al., ICLR 2019; `DARTS_V2` in its code).
DARTS = Genotype(
    normal=Cell(
        nodes=(
            (("sep_conv_3x3", 0), ("sep_conv_3x3", 1)),
            (("sep_conv_3x3", 0), ("sep_conv_3x3", 1)),
            (("sep_conv_3x3", 1), ("skip_connect", 0)),
            (("skip_connect", 0), ("dil_conv_3x3", 2)),
        ),
        concat=(2, 3, 4, 5),
    ),
    reduction=Cell(
        nodes=(
            (("max_pool_3x3", 0), ("max_pool_3x3", 1)),
            (("skip_connect", 2), ("max_pool_3x3", 1)),
            (("max_pool_3x3", 0), ("skip_connect", 2)),
            (("skip_connect", 2), ("max_pool_3x3", 1)),
        ),
        concat=(2, 3, 4, 5),
    ),
)

#: AmoebaNet-A (Real et al., AAAI 2019), as defined in DARTS' code.
AMOEBANET = Genotype(
    normal=Cell(
        nodes=(
            (("avg_pool_3x3", 0), ("max_pool_3x3", 1)),
            (("sep_conv_3x3", 0), ("sep_conv_5x5", 2)),
            (("sep_conv_3x3", 0), ("avg_pool_3x3", 3)),
            (("sep_conv_3x3", 1), ("skip_connect", 1)),
            (("skip_connect", 0), ("avg_pool_3x3", 1)),
        ),
        concat=(4, 5, 6),
    ),
    reduction=Cell(
        nodes=(
            (("avg_pool_3x3", 0), ("sep_conv_3x3", 1)),
            (("max_pool_3x3", 0), ("sep_conv_7x7", 2)),
            (("sep_conv_7x7", 0), ("avg_pool_3x3", 1)),
            (("max_pool_3x3", 0), ("max_pool_3x3", 1)),
            (("conv_7x1_1x7", 0), ("sep_conv_3x3", 5)),
        ),
        concat=(3, 4, 6),
    ),
)

#: The published cells by name.
GENOTYPES = {"darts": DARTS, "amoebanet": AMOEBANET}
