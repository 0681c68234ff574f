"""The environment of a computation: random numbers, threads, and versions of libraries.

Every random generator is a pure function of the fit's entropy and of its purpose, so that neither
the order of dispatch nor the number of workers changes a draw.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib.metadata
import os
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import scipy.linalg  # noqa: F401  (SciPy has a library of its own, which must be loaded)
import sklearn
import threadpoolctl
from sklearn.utils import check_random_state

_MAX_SEED = 2**31 - 1


def draw_entropy(random_state: Any) -> int:
    """Draw one integer >= 1 that determines all random numbers of a fit.

    An integer `random_state` always gives the same entropy, None a new one. A RandomState is
    advanced by one draw, as by scikit-learn's estimators.
    """
    return int(check_random_state(random_state).randint(1, _MAX_SEED))


def generator(entropy: int, *purpose: str | int) -> np.random.Generator:
    """Make the generator of a purpose, e.g. ``generator(e, "ask", 12)``."""
    return np.random.default_rng(_sequence(entropy, purpose))


def random_generator(random_state: Any) -> np.random.Generator:
    """Convert a scikit-learn random state to a NumPy generator."""
    return np.random.default_rng(check_random_state(random_state).randint(_MAX_SEED))


def trial_seed(entropy: int, number: int, purpose: str = "trial") -> int:
    """Make the seed >= 1 of the weights and batches of one trial, or of its "repeat"."""
    state = _sequence(entropy, (purpose, number)).generate_state(1)[0]
    # NumPy's seeds begin at 0, and Keras-Tuner reads 0 as no seed.
    return int(state) % (_MAX_SEED - 1) + 1


def _sequence(entropy: int, purpose: tuple[str | int, ...]) -> np.random.SeedSequence:
    # Words become numbers by their bytes: `hash` would change from process to process.
    words = [
        int.from_bytes(part.encode(), "little") if isinstance(part, str) else int(part)
        for part in purpose
    ]
    return np.random.SeedSequence([int(entropy), *words])


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


_SMALL = 1500  # rows of a matrix
_one_thread = SharedContext(lambda: _linear_algebra().limit(limits=1).restore_original_limits)


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


def show_versions() -> None:
    """Print versions for a report of a fault: what scikit-learn's function prints, and skuq's own.

    TensorFlow is not imported for that.

    Examples
    --------
    >>> import skuq
    >>> skuq.show_versions()  # doctest: +ELLIPSIS
    <BLANKLINE>
    System:
    ...
    """
    sklearn.show_versions()
    print("\nskuq:")
    for name in ("skuq", "tensorflow", "keras", "keras-tuner", "tensorflow-probability", "skops"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            print(f"  {name}: {importlib.metadata.version(name)}")
