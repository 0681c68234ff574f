"""How one process uses TensorFlow: in threads of its own, with cached programs, not after a fork.

Python runs signal handlers in the main thread only. An exception that one raises inside of
TensorFlow, as Ctrl-C does, is lost in a destructor, or leaves an import or a trace half done, and
the process unusable. TensorFlow's threads do not survive a fork: the child would wait for them for
ever.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import gc
import os
import pkgutil
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from types import ModuleType
from typing import Any

_WAKE_SECONDS = 0.1  # a signal that another thread receives does not wake the main thread


def keep_scopes(function: Callable[[], None]) -> Callable[[], None]:
    """Make a function run in another thread as in this one; `_keras` replaces this."""
    return function


class _Thread(threading.Thread):
    """A thread in which TensorFlow may run, with a copy of the context of its caller.

    `caller` is the frame that waits for it, at which warnings point.
    """

    def __init__(self, work: Callable[..., None], caller: Any, argument: Any):
        run = contextvars.copy_context().run
        super().__init__(target=run, args=(work, argument), name="skuq")
        self.caller = caller


def run_in_threads(
    tasks: Sequence[Callable[[], Any]],
    n_threads: int = 1,
    stop: Callable[[], Any] = lambda: None,
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
    if n_threads == 1 and isinstance(threading.current_thread(), _Thread):
        return [task() for task in tasks]
    left = iter(enumerate(tasks))  # shared by the threads
    results: list[Any] = [None] * len(tasks)
    errors: list[BaseException] = []

    # An interrupted `Thread.join` takes a thread for ended: count begins and ends instead.
    begun: list[None] = []
    ended: list[None] = []
    wake = threading.Lock()
    wake.acquire()

    def run_left() -> None:
        for k, task in left:
            if errors:
                return
            results[k] = task()

    def work(run: Callable[[], None]) -> None:
        begun.append(None)
        try:
            run()
        except BaseException as error:
            errors.append(error)
            stop()
        ended.append(None)
        with contextlib.suppress(RuntimeError):  # another thread has just released it
            wake.release()

    caller = sys._getframe(1)
    threads = [
        _Thread(work, caller, keep_scopes(run_left)) for _ in range(min(n_threads, len(tasks)))
    ]
    try:
        for thread in threads:
            thread.start()
        while len(ended) < len(threads):
            wake.acquire(timeout=_WAKE_SECONDS)
    except BaseException:
        errors.append(InterruptedError())  # no further function is started
        stop()
        while len(ended) < len(begun):
            wake.acquire(timeout=_WAKE_SECONDS)
        raise
    finally:
        for thread in filter(threading.Thread.is_alive, threads):
            thread.join(_WAKE_SECONDS)
    if errors:
        raise errors.pop(0)  # a reference left here would keep its frames alive
    return results


def in_thread(function: Callable[..., Any]) -> Callable[..., Any]:
    """Make a function run in a thread that no signal handler interrupts (decorator)."""

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        return run_in_threads([functools.partial(function, *args, **kwargs)])[0]

    return run


_import_lock = threading.RLock()  # two threads that import TensorFlow could see half of it


@in_thread
def import_locked(load: Callable[[str], Any], name: str) -> Any:
    """Call ``load(name)``, which imports a backend, in one thread at a time."""
    with _import_lock:
        return load(name)


def loaded(name: str) -> ModuleType | None:
    """Return a module if it is loaded; wait for it if another thread is importing it."""
    return pkgutil.resolve_name(name) if name in sys.modules else None


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
        self.max_size = max_size
        self._collects = collects
        self.n_made = 0
        self._n_dropped = 0
        self._values: OrderedDict[Hashable, Any] = OrderedDict()
        self._lock = threading.RLock()

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


def watch_forks() -> None:
    """Refuse TensorFlow in every process that is forked from now on."""
    if hasattr(os, "register_at_fork"):  # not on Windows, which has no forks
        os.register_at_fork(after_in_child=_refuse)


def _refuse() -> None:
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
