"""Import Keras, TensorFlow and libraries built on them, without TensorFlow's messages.

While it loads, TensorFlow writes to file descriptor 2 from C++, whatever its log level. Import
`keras` and `ops` from `skuq.backend`, never from `keras` itself.
"""

import contextlib
import functools
import os
import sys
import tempfile
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from skuq.backend import _scopes
from skuq.backend._scopes import without_collection

if TYPE_CHECKING:  # see `__getattr__`
    import keras_tuner
    from tensorflow_probability import distributions as tfd

__all__ = ["flatten_layers", "keras", "keras_tuner", "ops", "quiet_stderr", "tfd", "wake_xla"]

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
        add = _tensorflow.function(lambda x: x + 1.0, jit_compile=True, autograph=False)
        add(_tensorflow.constant(1.0))


def flatten_layers(model: Any, include_self: bool = True) -> list[Any]:
    """List a model or layer and the layers inside of it, at any depth.

    The method is Keras' own. It is there from Keras 3.7, the oldest that skuq takes, to 3.15.
    """
    return list(model._flatten_layers(include_self=include_self))


def _check_backend(name: str) -> None:
    """Raise RuntimeError if Keras does not compute with TensorFlow."""
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
    import tensorflow as _tensorflow

    _scopes.check_mode(_tensorflow)
    # Several processes can share a GPU if its memory is allocated on demand.
    for _gpu in _tensorflow.config.list_physical_devices("GPU"):
        with contextlib.suppress(RuntimeError):  # already in use, with the user's settings
            _tensorflow.config.experimental.set_memory_growth(_gpu, True)
    _tensorflow.zeros(1)  # the first operation writes messages, too
    _scopes.watch_process()
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
