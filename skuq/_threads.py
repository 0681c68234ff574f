"""Threads: linear algebra, garbage collection, and what threads share."""

from __future__ import annotations

import contextlib
import functools
import gc
import os
import threading
from collections.abc import Callable, Iterator
from typing import Any

import scipy.linalg  # noqa: F401  (SciPy has a library of its own, which must be loaded)
import threadpoolctl


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
        if hasattr(os, "register_at_fork"):  # not on Windows, which has no forks
            os.register_at_fork(after_in_child=self._forget_users)

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


@contextlib.contextmanager
def one_thread_if_small(n_rows: float) -> Iterator[None]:
    """Run linear algebra on one thread within this context, if matrices are small.

    For small matrices threads mostly wait for each other. Where cores are busy, a factorisation
    of 1000 rows can take a hundred times as long with two threads as with one.
    """
    with contextlib.nullcontext() if n_rows > _SMALL else _one_thread():
        yield


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
