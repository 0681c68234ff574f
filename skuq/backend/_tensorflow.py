"""Wrap all direct uses of TensorFlow: gradients, compilation, conversion from and to tensors.

Another backend would need another module with these functions.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import joblib
import numpy as np

from skuq.backend._keras import wake_xla
from skuq.backend._scopes import check_fork

# isort: split
import tensorflow as tf  # after the quiet import of Keras


def value_and_gradient(function: Callable[..., Any], tree: Any) -> tuple[Any, Any, Any]:
    """Compute ``(value, auxiliary, gradient)`` of ``function(tree) -> (value, auxiliary)``."""
    with tf.GradientTape() as tape:
        tape.watch(tree)
        value, auxiliary = function(tree)
    gradient = tape.gradient(value, tree, unconnected_gradients=tf.UnconnectedGradients.ZERO)
    # Slices of a table hold a row once for each use: squares must be of their sum.
    return value, auxiliary, tf.nest.map_structure(tf.convert_to_tensor, gradient)


#: ``(array, number) -> array[number]``; unlike `keras.ops.take`, takes numbers >= 0 alone.
take = tf.gather


def gather_rows(table: Any, numbers: Any) -> Any:
    """Take rows of a table (n, columns), or of each member's own table (n_members, n, columns)."""
    return tf.gather(table, numbers, batch_dims=len(table.shape) - 2)


def split(array: Any, ends: Sequence[int], axis: int) -> Any:
    """Cut an axis at `ends` as `numpy.split`, with sizes that are constants of the graph.

    `keras.ops.split` computes the sizes in the graph, which is a tenth of a program's operations.
    """
    return tf.split(array, np.diff([0, *ends, array.shape[axis]]).tolist(), axis=axis)


def compile_program(
    program: Callable[..., Any], example: Sequence[Any], *, jit: bool
) -> Callable[..., Any]:
    """Compile a program for the shapes of `example`, by XLA if `jit`, otherwise to a plain graph.

    The program is traced only here. Calling it with other shapes is an error.
    """
    check_fork()
    if jit:
        wake_xla()
    traced = tf.function(program, jit_compile=jit, autograph=False)
    return traced.get_concrete_function(*example)


def compile_forward(
    forward: Callable[..., Any], n_weights: int, state: Sequence[Any], input_shape: Sequence[int]
) -> Callable[..., Any]:
    """Compile ``forward(weights, state, x)`` in float64 to a plain graph for any number of rows."""
    check_fork()
    signature = (
        tf.TensorSpec((n_weights,), "float64"),
        tuple(tf.TensorSpec(value.shape, value.dtype) for value in state),
        tf.TensorSpec((None, *input_shape), "float64"),
    )
    traced = tf.function(forward, input_signature=signature, autograph=False)
    return traced.get_concrete_function()


def n_programs_at_once() -> int:
    """Count the programs that should run at the same time: one for each core, or one on a GPU."""
    if tf.config.list_physical_devices("GPU"):
        return 1
    limit = os.environ.get("TF_NUM_INTRAOP_THREADS", "")  # set in worker processes
    n_cores: int = joblib.cpu_count()
    return min(n_cores, int(limit)) if limit.isdecimal() and int(limit) else n_cores


def to_tensors(tree: Any) -> Any:
    """Convert the arrays of a nested structure to tensors."""
    check_fork()
    return tf.nest.map_structure(tf.convert_to_tensor, tree)


def to_host(tree: Any) -> Any:
    """Convert the tensors of a nested structure to NumPy arrays."""
    return tf.nest.map_structure(np.asarray, tree)
