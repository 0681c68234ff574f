"""Threads of NumPy's and SciPy's linear algebra."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Iterator
from typing import Any

import scipy.linalg  # noqa: F401  (SciPy has a library of its own, which must be loaded)
import threadpoolctl

_SMALL = 1500  # rows of a matrix


@functools.cache
def _linear_algebra() -> threadpoolctl.ThreadpoolController:
    return threadpoolctl.ThreadpoolController().select(user_api="blas")


class _Limit:
    """Limit of the process: the first of several threads sets it, and the last one lifts it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._n_users = 0
        self._limiter: Any = None

    def enter(self) -> None:
        with self._lock:
            if not self._n_users:
                self._limiter = _linear_algebra().limit(limits=1)
            self._n_users += 1

    def leave(self) -> None:
        with self._lock:
            self._n_users -= 1
            if not self._n_users:
                self._limiter.restore_original_limits()


_LIMIT = _Limit()


@contextlib.contextmanager
def one_thread_if_small(n_rows: float) -> Iterator[None]:
    """Run linear algebra on one thread within this context, if matrices are small.

    For small matrices threads mostly wait for each other. Where cores are busy, a factorisation
    of 1000 rows can take a hundred times as long with two threads as with one.
    """
    if n_rows > _SMALL:
        yield
        return
    _LIMIT.enter()
    try:
        yield
    finally:
        _LIMIT.leave()
