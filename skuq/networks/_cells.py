"""Image networks stacked of cells: the space of DARTS.

Neural Ensemble Search (Zaidi et al., NeurIPS 2021; here NES) looks there for its members.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass

from skuq._checks import check_count
from skuq._registry import saved_as
from skuq._space import Categorical, Real, Space
from skuq.networks._cell_layers import build_cell_network
from skuq.networks._genotypes import DARTS, DARTS_OPERATIONS, GENOTYPES, Cell, Genotype
from skuq.networks._search_space import Decisions

KINDS = ("normal", "reduction")
_SIZES = ("channels", "n_cells")
NODES = (2, 3, 4, 5)  # intermediate ones; 0 and 1 are the cell's inputs


def cell_hyperparameters() -> Space:
    """Learning rate and l2 around those of DARTS, which are the defaults."""
    return Space(
        (
            Real("learning_rate", 0.0025, 0.25, log=True, default=0.025),
            # PyTorch's weight decay 3e-4 is the gradient of 1.5e-4 * sum(w**2).
            Real("l2", 5e-6, 4.5e-3, log=True, default=1.5e-4),
        )
    )


def cell_recipe(configuration: Mapping, batch_size: int) -> dict:
    """DARTS' training (NES B.3); how many epochs is left to whoever trains."""
    hyperparameters = cell_hyperparameters().default()
    decided = {name: configuration[name] for name in hyperparameters if name in configuration}
    return {
        **hyperparameters,
        **decided,
        "optimizer": "sgd",
        "momentum": 0.9,
        "batch_size": batch_size,
        "schedule": "cosine",
        "final_lr_factor": 1e-4,  # DARTS goes down to zero
        "clip_norm": 5.0,
        "reduce_lr_patience": None,
        "early_stopping_patience": None,
        "keep": "last",
    }


@saved_as("networks.CellSpace")
@dataclass(frozen=True)
class CellSpace:
    """The cells of DARTS: about 10^18 pairs of a normal and a reduction cell.

    Each cell has four intermediate nodes, each the sum of two edges from different
    earlier nodes, and each edge one of seven operations. How cells are stacked is told
    at `build_cell_network`. The default of all decisions together is DARTS' own result.

    Parameters
    ----------
    channels : int or tuple of int, default=16
        Channels of the operations in the first cells. Several are a decision, ``"channels"``.
    n_cells : int or tuple of int, default=8
        Cells stacked. Several are a decision, ``"n_cells"``.
    genotype : None, Genotype, "darts" or "amoebanet", default=None
        Cells given once and for all; by default they are what is decided.
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

    channels: int | tuple[int, ...] = 16
    n_cells: int | tuple[int, ...] = 8
    genotype: Genotype | str | None = None
    batch_size: int = 100

    takes_images = True

    def __post_init__(self):
        for name in ("channels", "n_cells"):
            value = getattr(self, name)
            if isinstance(value, list | tuple):
                object.__setattr__(self, name, tuple(value))
            for one in value if isinstance(value, list | tuple) else (value,):
                check_count(name, one)
        check_count("batch_size", self.batch_size)
        if isinstance(self.genotype, str):
            object.__setattr__(self, "genotype", GENOTYPES.get(self.genotype, self.genotype))
        if not isinstance(self.genotype, Genotype | None):
            raise ValueError(
                f"`genotype` must be None, a Genotype or one of {sorted(GENOTYPES)}. "
                f"Got {self.genotype!r}."
            )

    @classmethod
    def width_depth(cls) -> CellSpace:
        """DARTS' cells in networks of five widths and three depths (NES C.4)."""
        return cls(channels=(12, 14, 16, 18, 20), n_cells=(5, 8, 11), genotype=DARTS)

    def decisions(self, input_shape=None, n_outputs=None) -> Decisions:
        """Architecture and training decisions; they do not depend on the data."""
        cells = Space() if self.genotype else _CELLS
        sizes = [
            # The middle one is the default: 16 channels and 8 cells of NES C.4.
            Categorical(name, choices, default=choices[len(choices) // 2])
            for name in ("channels", "n_cells")
            if isinstance(choices := getattr(self, name), tuple)
        ]
        return Decisions(cells + Space(tuple(sizes)), cell_hyperparameters())

    def cells(self, configuration: Mapping) -> Genotype:
        """The two cells that a configuration describes."""
        if isinstance(self.genotype, Genotype):
            return self.genotype
        return Genotype(*(_cell_of(configuration, kind) for kind in KINDS))

    def build(self, configuration: Mapping, input_shape: tuple, n_outputs: int):
        """The Keras model of one decision vector, with `n_outputs` linear outputs."""
        return build_cell_network(
            self.cells(configuration),
            input_shape,
            n_outputs,
            channels=self._size("channels", configuration),
            n_cells=self._size("n_cells", configuration),
        )

    def _size(self, name, configuration):
        size = getattr(self, name)
        return configuration[name] if isinstance(size, tuple) else size

    def recipe(self, configuration: Mapping) -> dict:
        """DARTS' training with the configuration's learning rate and l2, if it has them.

        Stochastic gradient descent with momentum, the rate falling along half a cosine,
        gradients clipped, the last weights kept. The number of epochs is left open.
        """
        return cell_recipe(configuration, self.batch_size)

    def mutate(self, configuration: Mapping, rng) -> dict:
        """A child of a configuration by NES' mutations (B.4).

        One of the two cells is drawn, then with a third each: nothing changes; one edge
        gets a different operation; or one edge reads a different node and keeps its
        operation. A size that is a decision (which the paper does not have together with
        free cells) is as likely to be drawn as a cell, and gets another value. Everything
        else is copied, hyperparameters too.

        Parameters
        ----------
        configuration : mapping
        rng : numpy.random.Generator

        Returns
        -------
        dict
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
    """Another value of one of the decisions of `space`."""
    return {**configuration, **space.mutate(configuration, rng)}


def _mutate_input(configuration, kind, rng):
    # Node 2 reads both nodes there are.
    k = NODES[1 + rng.integers(len(NODES) - 1)]
    edges, inputs = _edges(configuration, kind, k), _inputs(configuration, kind, k)
    others = [node for node in range(k) if node not in inputs]
    edge = rng.integers(2)
    edges[edge] = edges[edge][0], others[rng.integers(len(others))]
    return {**configuration, **_node_decisions(kind, k, edges)}


def _inputs(configuration, kind, k) -> list[int]:
    return [int(node) for node in configuration[f"{kind}_{k}_inputs"].split("-")]


def _edges(configuration, kind, k) -> list[tuple[str, int]]:
    operations = (configuration[f"{kind}_{k}_op_{edge}"] for edge in "ab")
    return list(zip(operations, _inputs(configuration, kind, k)))


def _node_decisions(kind, k, edges) -> dict:
    """The decisions that give node k its two edges."""
    (op_a, low), (op_b, high) = sorted(edges, key=lambda edge: edge[1])
    prefix = f"{kind}_{k}"
    return {f"{prefix}_inputs": f"{low}-{high}", f"{prefix}_op_a": op_a, f"{prefix}_op_b": op_b}


def _cell_of(configuration, kind) -> Cell:
    return Cell(tuple(_edges(configuration, kind, k) for k in NODES), NODES)


def _cell_decisions() -> Space:
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
