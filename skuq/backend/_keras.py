"""Import Keras, TensorFlow and libraries built on them, without TensorFlow's messages.

While it loads, TensorFlow writes to file descriptor 2 from C++, whatever its log level. Import
`keras` and `ops` from `skuq.backend`, never from `keras` itself. All direct uses of TensorFlow are
here: gradients, compilation, conversion from and to tensors.
"""

import contextlib
import functools
import os
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import joblib
import numpy as np

from skuq._messages import warn_user
from skuq.backend import _compile_cache, _scopes
from skuq.backend._scopes import check_fork, without_collection

if TYPE_CHECKING:  # see `__getattr__`
    import keras_tuner
    from tensorflow_probability import distributions as tfd

__all__ = ["keras", "keras_tuner", "ops", "tfd"]  # of those that are imported here

os.environ.setdefault("KERAS_BACKEND", "tensorflow")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
# joblib sets its workers' share of the cores only in OpenMP's variable. Without these lines, each
# worker would start as many threads as there are cores.
if os.environ.get("OMP_NUM_THREADS", "").isdigit():
    for _pool in ("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS"):
        os.environ.setdefault(_pool, os.environ["OMP_NUM_THREADS"])


# If the user has loaded TensorFlow, it logs at its own level.
_is_loud = "tensorflow" in sys.modules
_stderr_lock = threading.RLock()  # two threads would restore each other's descriptor


@contextlib.contextmanager
def quiet_stderr() -> Iterator[None]:
    """Hold back output to file descriptor 2, and write it if the block raises an error."""
    stderr = sys.__stderr__
    try:
        descriptor = -1 if stderr is None else stderr.fileno()
        os.fstat(descriptor)
    except (AttributeError, OSError, ValueError):  # not a real stream
        stderr = None
    if stderr is None:  # nothing to redirect
        yield
        return
    with _stderr_lock, tempfile.TemporaryFile() as held:
        saved = os.dup(descriptor)
        try:
            stderr.flush()
            os.dup2(held.fileno(), descriptor)
            yield
        except BaseException:
            os.dup2(saved, descriptor)
            held.seek(0)
            stderr.write(held.read().decode(errors="replace"))
            raise
        finally:
            os.dup2(saved, descriptor)
            os.close(saved)


@functools.cache
def wake_xla() -> None:
    """Run XLA's first compilation without its messages, which ignore the log level."""
    with quiet_stderr():
        tf.function(lambda x: x + 1.0, jit_compile=True, autograph=False)(tf.constant(1.0))


def flatten_layers(model: Any, include_self: bool = True) -> list[Any]:
    """List a model or layer and the layers inside of it, at any depth.

    The method is Keras' own. It is there from Keras 3.7, the oldest that skuq takes, to 3.15.
    """
    return list(model._flatten_layers(include_self=include_self))


def _check_backend(name: str) -> None:
    if name != "tensorflow":
        raise RuntimeError(
            f"skuq needs Keras with the backend 'tensorflow'. Got {name!r}: set "
            "KERAS_BACKEND=tensorflow in the environment before Keras is imported."
        )


if "keras" not in sys.modules:  # otherwise the variable may have changed since
    _check_backend(os.environ["KERAS_BACKEND"])
with quiet_stderr(), without_collection():
    import keras
    from keras import ops

    _check_backend(keras.backend.backend())
    import tensorflow as tf

    _scopes.check_mode(tf)
    _cache_problem = _compile_cache.set_flags(tf, is_own=not _is_loud)
    # Several processes can share a GPU if its memory is allocated on demand.
    for _gpu in tf.config.list_physical_devices("GPU"):
        with contextlib.suppress(RuntimeError):  # already in use, with the user's settings
            tf.config.experimental.set_memory_growth(_gpu, True)
    tf.zeros(1)  # the first operation writes messages, too
    _scopes.call_after_fork(_scopes.refuse_tensorflow)
    keras.config.set_dtype_policy("float32")  # of this thread; others get it from `keep_scopes`
    if _is_loud:
        wake_xla()


def __getattr__(name: str) -> Any:
    """Import a library built on Keras or TensorFlow when it is first used: each takes seconds.

    This file has loaded Keras before. That matters to TensorFlow Probability: it needs `tf-keras`,
    the old Keras, and would otherwise make that the Keras of the process.
    """
    if name == "keras_tuner":
        import keras_tuner

        return keras_tuner
    if name == "tfd":
        from tensorflow_probability import distributions

        return distributions
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


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
    program: Callable[..., Any], example: Sequence[Any], *, jit: bool, key: Any = None
) -> Callable[..., Any]:
    """Compile a program for the shapes of `example`, by XLA if `jit`, otherwise to a plain graph.

    The program is traced only here. Calling it with other shapes is an error. Where programs are
    kept it is called once, and later processes load it by `key`, on which it depends.
    """
    check_fork()
    if _cache_problem:
        warn_user(_cache_problem)
    if jit:
        wake_xla()
    make = functools.partial(tf.function, program, jit_compile=jit, autograph=False)
    # At the user's level TensorFlow would write, falsely, that the processor is another one.
    quiet = quiet_stderr if _is_loud else contextlib.nullcontext
    return _compile_cache.keep_program(make, example, key, quiet)


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
    return tf.function(forward, input_signature=signature, autograph=False).get_concrete_function()


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
