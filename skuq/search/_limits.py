"""When a search ends before its budget is spent."""

from __future__ import annotations

import math
import time
from collections import Counter
from dataclasses import dataclass, field

from skuq.exceptions import SearchFailedError

__all__ = ["Limits"]

# A search whose first trials all fail has something wrong with it, not with them.
_HOPELESS = 10
# Over its time limit, a training ends itself at its next slice. A worker that has not by then,
# since it is compiling or importing the backend, is ended so many seconds later.
_GRACE = 20.0


@dataclass(frozen=True)
class Limits:
    """Of time and failures; the clock starts when this is made.

    Parameters
    ----------
    max_time : float, optional
        Seconds; the first trial that finishes after them is the last one.
    trial_timeout : float, optional
        Seconds of one trial.
    max_failures : int, optional
        Most failed trials. None ends a search only if all of the first ten failed.
    gives_up : bool, default=True
        False tries every trial, however many fail.
    """

    max_time: float | None = None
    trial_timeout: float | None = None
    max_failures: int | None = None
    gives_up: bool = True
    _start: float = field(default_factory=time.monotonic)

    def out_of_time(self, history) -> bool:
        """Whether to end with what there is: something, and it has taken its time."""
        over = self.max_time is not None and time.monotonic() - self._start > self.max_time
        return over and any(record.completed for record in history)

    def deadline(self) -> float:
        """When a trial that starts now is to be stopped, by the monotonic clock."""
        if self.trial_timeout is None:
            return math.inf
        return time.monotonic() + self.trial_timeout + _GRACE

    def check_failures(self, history, n_trials: int, n_known: int = 0):
        """Raise once there is no hope.

        The first `n_known` trials are of an earlier search: what failed then may work by now, so
        that their failures end no search that has trials left.

        Raises
        ------
        SearchFailedError
            With the most frequent reasons.
        """
        if not self.gives_up:
            return
        fresh = history[n_known:]
        n_failed = sum(not record.completed for record in fresh)
        enough = len(fresh) >= min(n_trials - n_known, _HOPELESS)
        if self.max_failures is not None and n_failed > self.max_failures:
            what = f"{n_failed} of {len(fresh)} trials failed, max_failures={self.max_failures}"
        elif enough and not any(record.completed for record in history):
            what = f"All {len(history)} trials so far failed"
        else:
            return
        failed = [record for record in history if not record.completed]
        reasons = Counter(record.message for record in failed).most_common(3)
        listed = "\n".join(f"  {count} x {message}" for message, count in reasons)
        n_old = len(failed) - n_failed
        old = f"\n{n_old} of them are of an earlier fit: delete their files to run them again."
        raise SearchFailedError(
            f"{what}, most often with:\n{listed}\n"
            "Check the search space and the data (the exception's `records` hold every trial)."
            + (old if n_old else ""),
            history,
        )
