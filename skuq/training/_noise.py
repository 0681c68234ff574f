"""Draw random numbers inside a training program, by hashing key, step, layer and position.

The generators of Keras and TensorFlow keep a state, or draw other numbers through XLA than as a
graph, and none draws for many members with one key each. A counter-based generator does: it
hashes a counter, so that every number depends only on the member's key, the step, the layer and
the position. It is good enough for dropout, and not meant for cryptography.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from skuq.backend import ops


def uniform(key: Any, step: Any, stream: int, shape: tuple[int, ...]) -> Any:
    """Draw uniform numbers in [0, 1), multiples of 2**-24, for layer number `stream` of a step.

    `key` has shape () or (n_members,), and `shape` is ``(n_samples, n_units)``. The result has
    the shape of `key` followed by `shape`.
    """
    hashed = _mix(ops.cast(step, "uint32") + np.uint32(1))
    hashed = _mix(ops.bitwise_xor(key, hashed) + np.uint32(2654435769 * (stream + 1) % 2**32))
    index = np.arange(np.prod(shape), dtype="uint32").reshape(shape)
    # The position is hashed before it is combined with the key. Otherwise two keys that differ in
    # a few bits would give the same numbers in another order.
    index = ops.convert_to_tensor(_mix_array(index))
    bits = _mix(ops.bitwise_xor(index, hashed[..., None, None] if len(hashed.shape) else hashed))
    return ops.cast(ops.right_shift(bits, np.uint32(8)), "float32") * np.float32(2.0**-24)


def normal(key: Any, step: Any, stream: int, shape: tuple[int, ...]) -> Any:
    """Draw standard normal numbers: Box-Muller, from two uniform numbers each."""
    radius = ops.sqrt(-2.0 * ops.log(1.0 - uniform(key, step, 2 * stream, shape)))
    return radius * ops.cos(np.float32(2 * np.pi) * uniform(key, step, 2 * stream + 1, shape))


def _mix(x: Any) -> Any:
    """Hash with lowbias32 (C. Wellons): every bit of the result depends on every bit of x."""
    x = ops.bitwise_xor(x, ops.right_shift(x, np.uint32(16))) * np.uint32(0x7FEB352D)
    x = ops.bitwise_xor(x, ops.right_shift(x, np.uint32(15))) * np.uint32(0x846CA68B)
    return ops.bitwise_xor(x, ops.right_shift(x, np.uint32(16)))


def _mix_array(x: Any) -> Any:
    """Hash a NumPy array of uint32, whose products wrap around as in `_mix`."""
    x = (x ^ (x >> np.uint32(16))) * np.uint32(0x7FEB352D)
    x = (x ^ (x >> np.uint32(15))) * np.uint32(0x846CA68B)
    return x ^ (x >> np.uint32(16))
