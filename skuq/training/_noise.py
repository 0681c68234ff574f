"""Random numbers inside a training program: a hash of key, step, layer and position.

Keras' and TensorFlow's generators keep a state or give other numbers through XLA than as a
graph, and none draws for many members with a key each. A counter run through an integer hash
does. Every number depends on the member's key, the step, the layer and its position alone, not
on what else runs. It is good enough for dropout and not meant for cryptography.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from skuq.backend import ops


def uniform(key: Any, step: Any, stream: int, shape: tuple[int, ...]) -> Any:
    """Draw numbers in [0, 1), multiples of 2**-24, for layer number `stream` of a step.

    `key` has shape () or (n_members,), and `shape` is ``(n_samples, n_units)``, after the member
    axis.
    """
    own = _mix(ops.cast(step, "uint32") + np.uint32(1))
    own = _mix(ops.bitwise_xor(key, own) + np.uint32(2654435769 * (stream + 1) % 2**32))
    index = np.arange(np.prod(shape), dtype="uint32").reshape(shape)
    # The index is hashed before it meets the key: else two keys that differ in a few
    # bits would give the same numbers in another order.
    index = ops.convert_to_tensor(_mix_array(index))
    bits = _mix(ops.bitwise_xor(index, own[..., None, None] if len(own.shape) else own))
    return ops.cast(ops.right_shift(bits, np.uint32(8)), "float32") * np.float32(2.0**-24)


def normal(key: Any, step: Any, stream: int, shape: tuple[int, ...]) -> Any:
    """Draw standard normal numbers, by Box and Muller from two `uniform` ones each."""
    radius = ops.sqrt(-2.0 * ops.log(1.0 - uniform(key, step, 2 * stream, shape)))
    return radius * ops.cos(np.float32(2 * np.pi) * uniform(key, step, 2 * stream + 1, shape))


def _mix(x: Any) -> Any:
    """Hash by C. Wellons' lowbias32: every bit of the result depends on every bit of x."""
    x = ops.bitwise_xor(x, ops.right_shift(x, np.uint32(16))) * np.uint32(0x7FEB352D)
    x = ops.bitwise_xor(x, ops.right_shift(x, np.uint32(15))) * np.uint32(0x846CA68B)
    return ops.bitwise_xor(x, ops.right_shift(x, np.uint32(16)))


def _mix_array(x: Any) -> Any:
    """Mix the bits of a NumPy array as `_mix` does: its integers wrap around, too."""
    x = (x ^ (x >> np.uint32(16))) * np.uint32(0x7FEB352D)
    x = (x ^ (x >> np.uint32(15))) * np.uint32(0x846CA68B)
    return x ^ (x >> np.uint32(16))
