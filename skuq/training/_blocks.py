"""How a training program holds a network's weights: in a few flat blocks.

One vector of all weights makes the smallest graph, as an optimiser's update is one chain
of operations. But every step then copies it twice, into the layers' matrices and back
from their gradients, and the update runs over more memory than a core's cache holds. So a
large matrix is a block of its own, and all that is small shares one.
"""

from __future__ import annotations

import math

import numpy as np

from skuq._keras import ops

__all__ = ["Blocks"]

# An operation of a plain graph costs some microseconds each step, a loop of an XLA program
# next to nothing: there, smaller matrices are worth a block (benchmarks/engine.py).
_OWN_BLOCK = {False: 65_536, True: 4_096}


class Blocks:
    """The layout of one network's weights.

    Parameters
    ----------
    shapes : sequence of tuple of int
        Of the variables, in Keras' order.
    jit : bool
        Whether the program runs through XLA.
    """

    def __init__(self, shapes, jit: bool):
        self.shapes = [tuple(shape) for shape in shapes]
        self.sizes = [math.prod(shape) for shape in self.shapes]
        large = [k for k, size in enumerate(self.sizes) if size >= _OWN_BLOCK[jit]]
        small = [k for k in range(len(self.sizes)) if k not in large]
        # The variables of each block.
        self.members = ([small] if small else []) + [[k] for k in large]

    def pack(self, flat: np.ndarray) -> tuple[np.ndarray, ...]:
        """Blocks (.., n_block) of joined weights (.., n_weights) in Keras' order."""
        parts = np.split(flat, np.cumsum(self.sizes)[:-1], axis=-1)
        return tuple(
            np.concatenate([parts[k] for k in members], axis=-1) for members in self.members
        )

    def join(self, blocks) -> np.ndarray:
        """The inverse of `pack`, on arrays."""
        parts = [None] * len(self.sizes)
        for members, block in zip(self.members, blocks):
            ends = np.cumsum([self.sizes[k] for k in members])[:-1]
            for k, part in zip(members, np.split(np.asarray(block), ends, axis=-1)):
                parts[k] = part
        return np.concatenate(parts, axis=-1)

    def variables(self, blocks) -> list:
        """The variables (.., *shape) in Keras' order, from tensors."""
        parts = [None] * len(self.sizes)
        for members, block in zip(self.members, blocks):
            lead = tuple(block.shape[:-1])
            ends = np.cumsum([self.sizes[k] for k in members])[:-1].tolist()
            pieces = ops.split(block, ends, axis=-1) if ends else [block]
            for k, piece in zip(members, pieces):
                parts[k] = ops.reshape(piece, lead + self.shapes[k])
        return parts
