"""Threads of NumPy's and SciPy's linear algebra."""

from __future__ import annotations

import contextlib
import functools

import threadpoolctl

_SMALL = 1500  # rows of a matrix


@functools.cache
def _linear_algebra() -> threadpoolctl.ThreadpoolController:
    return threadpoolctl.ThreadpoolController().select(user_api="blas")


def one_thread_if_small(n_rows: int) -> contextlib.AbstractContextManager:
    """Return a context in which linear algebra runs on one thread if matrices are small.

    For small matrices threads mostly wait for each other. Where cores are busy, a factorisation
    of 1000 rows can take a hundred times as long with two threads as with one.
    """
    if n_rows > _SMALL:
        return contextlib.nullcontext()
    limits: contextlib.AbstractContextManager = _linear_algebra().limit(limits=1)
    return limits
