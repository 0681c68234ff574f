"""What one process may do with TensorFlow: its cached programs, and the refusal after a fork.

TensorFlow's threads do not survive a fork: the child would wait for them for ever.
"""

from __future__ import annotations

import gc
import os
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any

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
        # Call `make` under the lock, because Keras' naming scopes are not thread-safe.
        with self._lock:
            if key not in self._values:
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
