"""Compiled things shared by everything in this process, with a bound."""

from __future__ import annotations

import gc
import threading
from collections import OrderedDict

__all__ = ["BoundedCache"]


# A dropped program hangs in cycles of references, and Python collects those too seldom: a
# graph is a few objects on its side and megabytes on the backend's.
_DROPPED_PER_COLLECTION = 8


class BoundedCache:
    """``get(key, make)``: the value of `key`, made at most once while it is kept.

    The least recently used value goes when there are more than `max_size`. `n_made`
    counts how often something had to be made.
    """

    def __init__(self, max_size: int):
        self.max_size = max_size
        self.n_made = 0
        self._n_dropped = 0
        self._values = OrderedDict()
        self._lock = threading.RLock()

    def get(self, key, make):
        # Making under the lock: Keras' own naming scopes are not safe to build in twice.
        with self._lock:
            if key not in self._values:
                self._values[key] = make()
                self.n_made += 1
            self._values.move_to_end(key)
            while len(self._values) > self.max_size:
                self._values.popitem(last=False)
                self._n_dropped += 1
                if self._n_dropped % _DROPPED_PER_COLLECTION == 0:
                    gc.collect()
            return self._values[key]
