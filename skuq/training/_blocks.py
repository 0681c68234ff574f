"""How a training program holds a network's weights: in a few blocks.

One vector of all weights makes the smallest graph, as an optimiser's update is one chain
of operations. But every step then copies it twice, into the layers' matrices and back
from their gradients, and the update runs over more memory than a core's cache holds. So a
large matrix is a block of its own, in its own shape, and all that is small shares a vector.
(In its own shape: else XLA finds row and column of each gradient's entry by division.)
"""

from __future__ import annotations

import math

import numpy as np

from skuq.backend import ops

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
        """Blocks (.., *block shape) of joined weights (.., n_weights) in Keras' order."""
        parts = np.split(flat, np.cumsum(self.sizes)[:-1], axis=-1)
        lead = flat.shape[:-1]
        return tuple(
            parts[members[0]].reshape(*lead, *self.shapes[members[0]])
            if self._is_own(members)
            else np.concatenate([parts[k] for k in members], axis=-1)
            for members in self.members
        )

    def _is_own(self, members):
        return len(members) == 1 and len(self.shapes[members[0]]) > 1

    def spread(self, numbers: np.ndarray) -> tuple[np.ndarray, ...]:
        """One number a variable (.., n_variables), so that it broadcasts over each block."""
        lead = numbers.shape[:-1]
        return tuple(
            numbers[..., members[0]].reshape(*lead, *[1] * len(self.shapes[members[0]]))
            if self._is_own(members)
            else np.repeat(numbers[..., members], [self.sizes[k] for k in members], axis=-1)
            for members in self.members
        )

    def join(self, blocks) -> np.ndarray:
        """The inverse of `pack`, on arrays."""
        parts = [None] * len(self.sizes)
        for members, block in zip(self.members, blocks):
            ends = np.cumsum([self.sizes[k] for k in members])[:-1]
            block = np.asarray(block)
            if self._is_own(members):
                lead = block.shape[: block.ndim - len(self.shapes[members[0]])]
                block = block.reshape(*lead, -1)
            for k, part in zip(members, np.split(block, ends, axis=-1)):
                parts[k] = part
        return np.concatenate(parts, axis=-1)

    def variables(self, blocks) -> list:
        """The variables (.., *shape) in Keras' order, from tensors."""
        parts = [None] * len(self.sizes)
        for members, block in zip(self.members, blocks):
            if self._is_own(members):
                parts[members[0]] = block
                continue
            lead = tuple(block.shape[:-1])
            ends = np.cumsum([self.sizes[k] for k in members])[:-1].tolist()
            pieces = ops.split(block, ends, axis=-1) if ends else [block]
            for k, piece in zip(members, pieces):
                parts[k] = ops.reshape(piece, lead + self.shapes[k])
        return parts
