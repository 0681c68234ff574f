"""A time limit for what runs in slices."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator

__all__ = ["time_limit"]


@contextlib.contextmanager
def time_limit(
    timeout: float | None, cancelled: Callable[[], bool]
) -> Iterator[Callable[[], bool]]:
    """Give the function that training asks between slices whether it should end.

    Parameters
    ----------
    timeout : float or None
        Seconds from now.
    cancelled : callable
        Another reason to end.

    Raises
    ------
    TimeoutError
        Instead of InterruptedError where time was the reason.
    """
    # The clock of this process, hence started here: a trainer is pickled.
    deadline = math.inf if timeout is None else time.monotonic() + timeout
    try:
        yield lambda: cancelled() or time.monotonic() > deadline
    except InterruptedError:
        if cancelled() or time.monotonic() <= deadline:
            raise
        raise TimeoutError(f"The trial took longer than trial_timeout={timeout:g} s.") from None
