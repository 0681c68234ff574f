"""Threads: linear algebra, garbage collection, and what threads share."""

import contextlib
import contextvars
import functools
import gc
import os
import pkgutil
import random
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from types import ModuleType
from typing import Any

import scipy.linalg  # noqa: F401  (SciPy has a library of its own, which must be loaded)
import threadpoolctl

from skuq._messages import WAITING


def call_after_fork(function: Callable[[], None]) -> None:
    """Have a function called in every process that is forked from this one."""
    if hasattr(os, "register_at_fork"):  # not on Windows, which has no forks
        os.register_at_fork(after_in_child=function)


class SharedContext:
    """Context of the whole process: the first of several threads enters it, the last one leaves.

    Parameters
    ----------
    enter : callable
        Enters, and returns a function that leaves.
    """

    def __init__(self, enter: Callable[[], Callable[[], object]]) -> None:
        self._enter = enter
        self._forget_users()
        call_after_fork(self._forget_users)

    def _forget_users(self) -> None:
        """Forget the threads of the parent, which do not exist after a fork."""
        self._lock, self._n_users = threading.Lock(), 0

    @contextlib.contextmanager
    def __call__(self) -> Iterator[None]:
        with self._lock:
            if not self._n_users:
                self._leave = self._enter()
            self._n_users += 1
        try:
            yield
        finally:
            with self._lock:
                self._n_users = max(self._n_users - 1, 0)  # 0 if it was forked in the context
                if not self._n_users:
                    self._leave()


@functools.cache  # to find the libraries takes longer than a small matrix
def _linear_algebra() -> Any:
    return threadpoolctl.ThreadpoolController().select(user_api="blas")


_one_thread = SharedContext(lambda: _linear_algebra().limit(limits=1).restore_original_limits)

_SMALL = 1500  # rows of a matrix


def one_thread_if_small(n_rows: float) -> contextlib.AbstractContextManager[None]:
    """Run linear algebra on one thread within this context, if matrices are small.

    For small matrices threads mostly wait for each other. Where cores are busy, a factorisation
    of 1000 rows can take a hundred times as long with two threads as with one.
    """
    return contextlib.nullcontext() if n_rows > _SMALL else _one_thread()


@contextlib.contextmanager
def without_collection() -> Iterator[None]:
    """Pause the garbage collector, a quarter of a large import and half of a large tree's time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


_WAKE_SECONDS = 0.1  # a signal that another thread receives does not wake the main thread


def loaded(name: str) -> ModuleType | None:
    """Return a module if it is loaded; wait for it if another thread is importing it."""
    return pkgutil.resolve_name(name) if name in sys.modules else None


def check_mode(tensorflow: ModuleType) -> None:
    """Raise RuntimeError if TensorFlow is in its mode of version 1, which may be set any time."""
    # The mode of new threads: those that exist keep theirs, and a graph may be open in one. Neither
    # library has a public way to ask. These globals are there in TensorFlow 2.18 to 2.21, and those
    # of `keep_scopes` in Keras 3.7 to 3.15; the tests fail where they move.
    is_eager = sys.modules["tensorflow.python.eager.context"].default_execution_mode
    if not (is_eager and isinstance(tensorflow.TensorShape([1])[0], int)):
        raise RuntimeError(
            "skuq needs TensorFlow 2. Got TensorFlow in the mode of version 1: remove the call of "
            "tf.compat.v1.disable_v2_behavior, disable_eager_execution or disable_v2_tensorshape."
        )


def keep_scopes(function: Callable[[], None]) -> Callable[[], None]:
    """Wrap a function so that it runs in another thread with the scopes of this one.

    These are what Keras keeps for a thread (its counters of names, custom objects), and the
    device. The dtype policy is always float32, in which skuq's programs compute. Contexts that
    change how layers are built or called are left out: a prefix of names would change networks.
    """
    keras, tensorflow = loaded("keras"), loaded("tensorflow")
    if keras is None or tensorflow is None:  # nothing to keep
        return function
    own_scopes = sys.modules["keras.src.backend.common.global_state"].GLOBAL_STATE_TRACKER
    contexts = ("_scope", "_stack", "_ctx")
    kept = {k: value for k, value in vars(own_scopes).items() if not k.endswith(contexts)}
    kept["dtype_policy"] = keras.DTypePolicy("float32")
    device = sys.modules["tensorflow.python.eager.context"].context().device_name

    def run() -> None:
        own = vars(own_scopes)
        own.clear()  # another caller's
        own.update(kept)
        try:
            check_mode(tensorflow)
            with tensorflow.device(device) if device else contextlib.nullcontext():
                function()
        finally:
            own.clear()

    return run


_MOST_THREADS = 1000
# It starts a thread if none is idle, so that no work waits for other work. Threads stay: TensorFlow
# takes some 30 ms to compile the first program of a new one.
_pool = ThreadPoolExecutor(_MOST_THREADS, thread_name_prefix="skuq")


def _make_pool() -> None:
    """Make the pool anew, since the parent's threads do not exist after a fork."""
    global _pool
    _pool = ThreadPoolExecutor(_MOST_THREADS, thread_name_prefix="skuq")


call_after_fork(_make_pool)


def run_in_threads(
    tasks: Sequence[Callable[[], Any]], n_threads: int = 1, stop: Callable[[], Any] = lambda: None
) -> list[Any]:
    """Call functions in threads that no signal handler interrupts, and return their results.

    The caller waits. An exception that a handler raises meanwhile, such as KeyboardInterrupt, is
    raised when the functions have returned, and a second one at once.

    Parameters
    ----------
    tasks : sequence of callable
    n_threads : int, default=1
        Number of functions that run at the same time.
    stop : callable, optional
        Called after the first exception. No further function is started then.
    """
    if n_threads == 1 and threading.current_thread().name.startswith("skuq"):
        return [task() for task in tasks]
    left = iter(enumerate(tasks))  # shared by the threads
    results: list[Any] = [None] * len(tasks)
    errors: list[BaseException] = []
    # An interrupt may come at any line here, so the threads count what they begin and end.
    begun: list[None] = []
    ended: list[None] = []

    def run_left() -> None:
        for k, task in left:
            if errors:
                return
            results[k] = task()

    def work(run: Callable[[], None]) -> None:
        begun.append(None)
        WAITING.set(caller)
        try:
            run()
        except BaseException as error:
            errors.append(error)
            stop()
        finally:
            ended.append(None)

    caller = sys._getframe(1)
    try:
        futures = [
            _pool.submit(contextvars.copy_context().run, work, keep_scopes(run_left))
            for _ in range(min(n_threads, len(tasks)))
        ]
        while wait(futures, _WAKE_SECONDS).not_done:
            pass
    except BaseException:
        errors.append(InterruptedError())  # no further function is started
        stop()
        while len(ended) < len(begun):
            time.sleep(_WAKE_SECONDS)
        raise
    if errors:
        raise errors.pop(0)  # a reference left here would keep its frames alive
    return results


#: Context that restores Python's global generator, from which Keras and Keras-Tuner draw default
#: seeds. The numbers that other threads of the caller draw meanwhile are drawn again afterwards.
keep_random_state = SharedContext(lambda: functools.partial(random.setstate, random.getstate()))


def in_thread(function: Callable[..., Any]) -> Callable[..., Any]:
    """Make a function run in a thread that no signal handler interrupts (decorator).

    Python's global generator of random numbers stays as it is.
    """

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        with keep_random_state():
            return run_in_threads([functools.partial(function, *args, **kwargs)])[0]

    return run


_import_lock = threading.RLock()  # two threads that import TensorFlow could see half of it


@in_thread
def import_locked(load: Callable[[str], Any], name: str) -> Any:
    """Call ``load(name)``, which imports a backend, in one thread at a time."""
    with _import_lock:
        return load(name)


# Dropped programs are part of reference cycles, which Python collects too seldom: a graph is only
# a few objects in Python, but megabytes in the backend.
_DROPPED_PER_COLLECTION = 8


class BoundedCache:
    """Keep the `max_size` most recently used values.

    ``get(key, make)`` returns the value of `key`, and calls ``make()`` if there is none.
    `n_made` counts these calls.

    Parameters
    ----------
    max_size : int
        Maximum number of values.
    collects : bool, default=True
        Run the garbage collector after every few values dropped, which takes some tenths of a
        second. Compiled programs need it.
    """

    def __init__(self, max_size: int, *, collects: bool = True) -> None:
        self.max_size, self._collects = max_size, collects
        self.n_made, self._n_dropped = 0, 0
        self._values: OrderedDict[Hashable, Any] = OrderedDict()
        self._lock = threading.RLock()

    def __contains__(self, key: Hashable) -> bool:
        return key in self._values

    def get(self, key: Hashable, make: Callable[[], Any]) -> Any:
        """Return the value of `key`; make it by ``make()`` if there is none."""
        with self._lock:
            if key in self._values:
                self._values.move_to_end(key)
                return self._values[key]
        return self._make(key, make)

    @in_thread
    def _make(self, key: Hashable, make: Callable[[], Any]) -> Any:
        # Call `make` under the lock, because Keras' naming scopes are not thread-safe.
        with self._lock:
            if key not in self._values:  # another thread may have made it since
                self._values[key] = make()
                self.n_made += 1
            self._values.move_to_end(key)
            while len(self._values) > self.max_size:
                self._values.popitem(last=False)
                self._n_dropped += 1
                if self._collects and self._n_dropped % _DROPPED_PER_COLLECTION == 0:
                    gc.collect()
            return self._values[key]


_is_forked = False


def refuse_tensorflow() -> None:
    """Make this process one in which TensorFlow is refused."""
    global _is_forked
    _is_forked = True
    # The package keeps names that were used; without them it looks them up again, and refuses.
    package = sys.modules[__name__.rpartition(".")[0]]
    for name in package.__all__:
        vars(package).pop(name, None)


def check_fork() -> None:
    """Raise RuntimeError if TensorFlow would wait for ever."""
    if _is_forked:
        raise RuntimeError(
            "This process was forked after TensorFlow had been used, which would now wait for "
            "ever. Train in processes that start from scratch: those of joblib's backend 'loky' "
            "(its default), or of multiprocessing.get_context('spawn'). Fitted estimators predict "
            "here, unless their networks have convolutions or layers of your own."
        )
