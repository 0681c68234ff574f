"""Layout of a network's weights inside a training program: a few blocks.

One vector of all weights makes the smallest graph, as an optimiser's update is one chain
of operations. But every step then copies it twice, into the layers' matrices and back
from their gradients, and the update runs over more memory than a core's cache holds. So a
large matrix is a block of its own, and all small variables share a vector. A matrix keeps its
own shape: in a flat vector, XLA finds row and column of each gradient's entry by division.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from skuq.backend import BACKEND, ops

# Smallest matrix with a block of its own, by `jit`. An operation of a plain graph costs some
# microseconds each step, and a loop of an XLA program almost nothing, so that smaller matrices
# are worth a block there (benchmarks/engine.py).
_LARGE = {False: 65_536, True: 4_096}


class Blocks:
    """Layout of one network's weights, from its variables' shapes in Keras' order.

    `jit` says whether the program runs through XLA.
    """

    def __init__(self, shapes: Sequence[tuple[int, ...]], jit: bool):
        self.shapes = [tuple(shape) for shape in shapes]
        self.sizes = [math.prod(shape) for shape in self.shapes]
        large = [k for k, size in enumerate(self.sizes) if size >= _LARGE[jit]]
        small = [k for k in range(len(self.sizes)) if k not in large]
        # The numbers of the variables in each block. The block of all small ones comes first.
        self.variables_of_blocks = ([small] if small else []) + [[k] for k in large]

    def pack(self, flat: np.ndarray) -> tuple[np.ndarray, ...]:
        """Cut weights (.., n_weights) in Keras' order into blocks (.., *block shape)."""
        parts = np.split(flat, np.cumsum(self.sizes)[:-1], axis=-1)
        lead = flat.shape[:-1]
        return tuple(
            parts[numbers[0]].reshape(*lead, *self.shapes[numbers[0]])
            if self._is_single(numbers)
            else np.concatenate([parts[k] for k in numbers], axis=-1)
            for numbers in self.variables_of_blocks
        )

    def _is_single(self, numbers: list[int]) -> bool:
        """Tell whether a block is one variable in its own shape."""
        return len(numbers) == 1 and len(self.shapes[numbers[0]]) > 1

    def spread(self, values: np.ndarray) -> tuple[np.ndarray, ...]:
        """Reshape one value for each variable (.., n_variables) to broadcast over the blocks."""
        lead = values.shape[:-1]
        return tuple(
            values[..., numbers[0]].reshape(*lead, *[1] * len(self.shapes[numbers[0]]))
            if self._is_single(numbers)
            else np.repeat(values[..., numbers], [self.sizes[k] for k in numbers], axis=-1)
            for numbers in self.variables_of_blocks
        )

    def join(self, blocks: Sequence[np.ndarray]) -> np.ndarray:
        """Concatenate blocks (.., *block shape) to weights (.., n_weights): undo `pack`."""
        parts: list[Any] = [None] * len(self.sizes)
        for numbers, block in zip(self.variables_of_blocks, blocks):
            ends = np.cumsum([self.sizes[k] for k in numbers])[:-1]
            block = np.asarray(block)
            if self._is_single(numbers):
                lead = block.shape[: block.ndim - len(self.shapes[numbers[0]])]
                block = block.reshape(*lead, -1)
            for k, part in zip(numbers, np.split(block, ends, axis=-1)):
                parts[k] = part
        return np.concatenate(parts, axis=-1)

    def variables(self, blocks: Any) -> list[Any]:
        """Cut blocks of tensors into the variables (.., *shape) in Keras' order."""
        parts: list[Any] = [None] * len(self.sizes)
        for numbers, block in zip(self.variables_of_blocks, blocks):
            if self._is_single(numbers):
                parts[numbers[0]] = block
                continue
            # Variables of a shared vector: cut it, and give each piece its own shape.
            lead = tuple(block.shape[:-1])
            ends = np.cumsum([self.sizes[k] for k in numbers])[:-1].tolist()
            pieces = BACKEND.split(block, ends, axis=-1) if ends else [block]
            for k, piece in zip(numbers, pieces):
                parts[k] = ops.reshape(piece, lead + self.shapes[k])
        return parts
