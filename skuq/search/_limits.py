"""Limits of a search in time and failures, and options of its run."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from skuq.catalog._records import TrialRecord
from skuq.exceptions import SearchFailedError

# If all of the first trials fail, the cause is the search and not the trials.
_N_FIRST_TRIALS = 10

# A trial may be shortened if less time is left than _TIGHT_FACTOR times that of the longest trial.
_TIGHT_FACTOR = 3.0
_MIN_SHARE = 0.5  # of the trials' median time; no trial starts with less time left
# Trials of a smaller share of the full training say little of its time: compilation is most of
# theirs, which does not grow with the share.
_LEAST_SHARE = 0.25
_MIN_SECONDS = 0.01  # for a trial while none has succeeded, even if no time is left


@dataclass(frozen=True)
class Limits:
    """Limits of time and of failures.

    Parameters
    ----------
    max_time : float, optional
        Seconds after which the search ends. Trials that still run are abandoned, if at least one
        trial has succeeded. Trials that take a budget are shortened to end before.
    trial_timeout : float, optional
        Maximum seconds of one trial.
    raise_on_failures : bool, default=True
        End the search if all of the first ten trials have failed. False runs every trial.
    needs_success : bool, default=True
        False ends a search at `max_time` even if no trial has succeeded.
    grace : float, default=20
        Seconds from `trial_timeout` until a trial's worker is killed. A training ends by itself at
        its next slice, but not while it compiles or imports the backend.
    first_trials : float, optional
        Seconds of the search, if more than `max_time`, that a single slot may use until two trials
        have succeeded. A search that has only a part of a fit's time leaves the rest for repeats
        of its trials. Two different networks are better than one that is trained twice.

    Examples
    --------
    >>> from skuq.search import Limits, RunOptions
    >>> RunOptions(n_jobs=2, limits=Limits(max_time=600, trial_timeout=60)).limits.max_time
    600
    """

    max_time: float | None = None
    trial_timeout: float | None = None
    raise_on_failures: bool = True
    needs_success: bool = True
    grace: float = 20.0
    first_trials: float | None = None

    def seconds_left(self, started: float, n_completed: int | None = None) -> float:
        """Return the seconds that are left, counted from `started`, a time of the monotonic clock.

        They are the rest of `max_time`, or of `first_trials` while `n_completed` is below 2.
        """
        if self.max_time is None:
            return math.inf
        seconds = self.max_time
        if self.first_trials is not None and n_completed is not None and n_completed < 2:
            seconds = max(seconds, self.first_trials)
        return started + seconds - time.monotonic()

    def time_of_next_trial(
        self, history: Sequence[TrialRecord], started: float, n_slots: int = 1, n_known: int = 0
    ) -> tuple[float, bool]:
        """Return the seconds that the next trial may take, and whether it may have to be shortened.

        The seconds are 0 if no trial should start: no time is left, or less than half of the
        median time of a full training. If all trials were cut very short, as by an earlier and
        shorter fit, the next one needs more time than they had. Of the trials in the history, the
        first `n_known` are of earlier fits. Until this fit has completed one of its own, any time
        is enough: otherwise a search in short fits would end with its first trial.
        """
        completed = [record for record in history if record.completed]
        left = self.seconds_left(started, len(completed) if n_slots == 1 else None)
        # The time of a shortened trial, extrapolated to a full training.
        durations = [r.seconds / r.share for r in completed if r.share >= _LEAST_SHARE]
        starts_again = (
            n_known > 0 and not any(record.completed for record in history[n_known:]) and left > 0
        )
        if completed and not durations:
            is_enough = starts_again or left > max(r.seconds for r in completed)
            return (left if is_enough else 0.0), left < math.inf
        if not durations:
            least = _MIN_SECONDS if self.needs_success else 0.0
            return max(left, least), left < math.inf
        is_tight = left <= _TIGHT_FACTOR * max(durations)
        is_enough = left > _MIN_SHARE * float(np.median(durations))
        return (left if is_enough or starts_again else 0.0), is_tight

    def check_failures(
        self, history: Sequence[TrialRecord], n_trials: int, n_known: int = 0
    ) -> None:
        """Raise SearchFailedError if all of the first trials have failed.

        The first `n_known` trials are of an earlier search. The causes of their failures may have
        been removed, so they do not count as long as there are trials left to run.

        Raises
        ------
        SearchFailedError
            If all of the first trials have failed. The message has the most frequent reasons.
        """
        if not self.raise_on_failures:
            return
        new = history[n_known:]
        n_failed = sum(record.failed for record in new)
        enough = len(new) >= min(n_trials - n_known, _N_FIRST_TRIALS)
        if not enough or any(record.completed for record in history):
            return
        failed = [record for record in history if record.failed]
        reasons = Counter(record.message for record in failed).most_common(3)
        listed = "\n".join(f"  {count} x {message}" for message, count in reasons)
        advice = "Check the search space and the data"
        if reasons and reasons[0][0].startswith("TimeoutError"):
            advice = "Give trials more time by `trial_timeout`, or make them smaller"
        n_old = len(failed) - n_failed
        old = f"\n{n_old} of them are from an earlier fit: delete their files to run them again."
        raise SearchFailedError(
            f"All {len(history)} trials so far failed, most often with:\n{listed}\n"
            f"{advice} (the exception's `records` hold every trial)." + (old if n_old else ""),
            history,
        )


@dataclass(frozen=True)
class RunOptions:
    """Options of how a search runs and what it reports. Results of trials do not depend on them.

    Parameters
    ----------
    n_jobs : int, optional
        Number of parallel trials, as in `open_slots`.
    limits : Limits
        Limits of time and failures. By default a search ends only if its first ten trials fail.
    verbose : int or None, default=0
        Whether to show a progress bar: 1 always, 0 never, None on a terminal after 20 seconds.
    name : str, default="search"
        Name of the search in its progress and in warnings.
    score_name : str, default="score"
        Name of the score in the progress.
    is_open : bool, default=False
        Whether the search has as many trials as fit into its time. Its number of trials, which is
        then only a bound, is not shown.

    Examples
    --------
    >>> from skuq.search import RunOptions
    >>> options = RunOptions(n_jobs=2, verbose=1)
    >>> options.limits.max_time is None  # no limit
    True
    """

    n_jobs: int | None = None
    limits: Limits = field(default_factory=Limits)
    verbose: int | None = 0
    name: str = "search"
    score_name: str = "score"
    is_open: bool = False
