"""The engine's only TensorFlow: gradients, compilation, and the way to and from tensors.

Another backend is another module with these functions.
"""

from __future__ import annotations

import numpy as np
import tensorflow as tf

__all__ = ["compile_forward", "compile_program", "to_host", "to_tensors", "value_and_gradient"]


def value_and_gradient(function, weights):
    """``(value, auxiliary, gradient)`` of ``function(weights) -> (value, auxiliary)``."""
    with tf.GradientTape() as tape:
        tape.watch(weights)
        value, auxiliary = function(weights)
    return value, auxiliary, tape.gradient(value, weights)


def compile_program(program, example, *, jit: bool):
    """A graph of the arguments' shapes: through XLA if `jit`, else a plain graph.

    Traced here, once; a call with other shapes is an error, never a second trace.
    """
    traced = tf.function(program, jit_compile=jit, autograph=False)
    return traced.get_concrete_function(*example)


def compile_forward(forward, n_weights, state, input_shape):
    """A plain graph of ``forward(weights, state, x)`` in float64 for any number of rows."""
    signature = (
        tf.TensorSpec((n_weights,), "float64"),
        tuple(tf.TensorSpec(value.shape, value.dtype) for value in state),
        tf.TensorSpec((None, *input_shape), "float64"),
    )
    traced = tf.function(forward, input_signature=signature, autograph=False)
    return traced.get_concrete_function()


def to_tensors(tree):
    """Tensors in the place of arrays."""
    return tf.nest.map_structure(tf.convert_to_tensor, tree)


def to_host(tree):
    """NumPy arrays in the place of tensors."""
    return tf.nest.map_structure(np.asarray, tree)
