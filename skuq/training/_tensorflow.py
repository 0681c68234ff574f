"""The engine's only TensorFlow: gradients, compilation, and the way to and from tensors.

Another backend is another module with these functions.
"""

from __future__ import annotations

import functools

import numpy as np
import tensorflow as tf

from skuq._keras import quiet_stderr
from skuq.training._program import Backend

__all__ = ["BACKEND", "compile_forward", "compile_program", "to_host", "to_tensors"]


def _value_and_gradient(function, tree):
    """``(value, auxiliary, gradient)`` of ``function(tree) -> (value, auxiliary)``."""
    with tf.GradientTape() as tape:
        tape.watch(tree)
        value, auxiliary = function(tree)
    gradient = tape.gradient(value, tree, unconnected_gradients=tf.UnconnectedGradients.ZERO)
    return value, auxiliary, gradient


def _gather(table, numbers):
    """Rows of a table; `keras.ops.take` would look for negative numbers first."""
    return tf.gather(table, numbers)


BACKEND = Backend(_value_and_gradient, _gather)


def compile_program(program, example, *, jit: bool):
    """A graph of the arguments' shapes: through XLA if `jit`, else a plain graph.

    Traced here, once; a call with other shapes is an error, never a second trace.
    """
    if jit:
        _wake_xla()
    traced = tf.function(program, jit_compile=jit, autograph=False)
    return traced.get_concrete_function(*example)


@functools.cache
def _wake_xla():
    """XLA's first compilation logs to descriptor 2, whatever the log level."""
    with quiet_stderr():
        tf.function(lambda x: x + 1.0, jit_compile=True, autograph=False)(tf.constant(1.0))


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
