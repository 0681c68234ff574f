"""Trials of a search: manage those that run in slots; store and report those that end."""

from __future__ import annotations

import logging
import math
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field
from typing import Any

from skuq._utils._messages import Progress, warn_user
from skuq.catalog._records import TrialOutcome, TrialRecord
from skuq.exceptions import SlotsLostError
from skuq.search._limits import Limits, RunOptions
from skuq.search._process_slots import Slots

_logger = logging.getLogger("skuq")


class TrialLog:
    """History of one search: the trials of the store, followed by those that finish.

    It is a context manager that shows progress. An interrupt ends the search early, with a
    warning; it is raised again if no trial has succeeded.

    Parameters
    ----------
    n_trials : int
        Number of trials of the search, including those of the store.
    store : object or None
        Place for finished trials, for example a `skuq.catalog.CatalogFolder`. `records` are the
        trials of earlier searches, in the order in which they finished, and ``add(record)`` stores
        a trial, which is safe when it returns.
    options : RunOptions

    Attributes
    ----------
    history : list of TrialRecord
        Finished and stored trials.
    missing : deque of int
        Numbers of the trials that the store did not have.
    finished : deque of TrialRecord
        Finished trials that are not stored yet.
    interrupted : bool
        Whether the search ended before it was over, by an interrupt or with its slots.
    n_known : int
        Number of trials that the store had.
    started : float
        Time of the monotonic clock at which the search began.
    """

    def __init__(self, n_trials: int, store: Any, options: RunOptions) -> None:
        stored = [] if store is None else store.records
        self.history = [record for record in stored if record.trial_number < n_trials]
        known = {record.trial_number for record in self.history}
        self.missing = deque(number for number in range(n_trials) if number not in known)
        self.finished: deque[TrialRecord] = deque()
        self.interrupted = False
        self._n_trials = n_trials
        self._shown_total = None if options.is_open else n_trials
        self.n_known = len(self.history)
        self._store = store
        self._options = options
        self.started = time.monotonic()
        if self.history:
            _logger.info("continuing with %d stored trials", len(self.history))

    def __enter__(self) -> TrialLog:
        limits = self._options.limits
        self._progress = Progress(
            self._options.name,
            "trial",
            self._shown_total,
            verbose=self._options.verbose,
            initial=self.n_known,
            seconds_left=lambda: limits.seconds_left(self.started),
        )
        self._progress.__enter__()
        return self

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> bool:
        self._progress.__exit__()
        # Both end the search early and keep what has finished; other errors are raised.
        interrupted = isinstance(error, KeyboardInterrupt | SlotsLostError)
        if interrupted:
            self.interrupted = True
            for record in self.finished:
                self._add(record)
            if not any(record.completed for record in self.history):
                return False
            # A lost cluster has a message, a keyboard interrupt has none.
            reason = f": {error}" if str(error) else "."
            of = "" if self._shown_total is None else f" of {self._shown_total}"
            warn_user(
                f"{self._options.name.capitalize()} interrupted: continuing with "
                f"{len(self.history)}{of} trials{reason}"
            )
        if error is None or interrupted:
            self._options.limits.check_failures(self.history, self._n_trials, self.n_known)
        return interrupted

    def store_finished(self) -> None:
        """Store and report every finished trial.

        Raises SearchFailedError if too many have failed.
        """
        while self.finished:
            # Removed only when it is safe: an interrupt in between stores it again.
            record = self.finished[0]
            self._add(record)
            self.finished.popleft()
            # Show the progress of the search.
            scores = [r.score for r in self.history if r.completed]
            best = f"{min(scores):.3f}" if scores else "-"
            shown: dict[str, Any] = {
                f"best {self._options.score_name}": best,
                "failed": sum(r.failed for r in self.history),
            }
            if record.failed:
                # Not a warning: in a wide space some networks diverge, and the catalog records it.
                message = f"trial {record.trial_number} failed: {record.message}"
            else:
                message = f"trial {record.trial_number}: score {record.score:.4f}"
            self._progress.step(message=message, **shown)
        self._options.limits.check_failures(self.history, self._n_trials, self.n_known)

    def seconds_left(self) -> float:
        """Return the time that the search has left; infinite until a trial has succeeded."""
        limits, n_completed = self._options.limits, sum(r.completed for r in self.history)
        # A search without a single network would be useless, however late it is.
        if limits.needs_success and not n_completed:
            return math.inf
        return limits.seconds_left(self.started, n_completed)

    def _add(self, record: TrialRecord) -> None:
        """Add a record to the store and to the history."""
        # After an interrupt, which can come at any moment, a record can be added twice.
        if self.history and self.history[-1] is record:
            return
        if self._store is not None:
            self._store.add(record)
        self.history.append(record)


@dataclass
class RunningTrial:
    """A trial in its slot; `deadline` and `started` are times of the monotonic clock."""

    number: int
    configuration: dict[str, Any]
    seed: int
    slot: int
    deadline: float
    started: float = field(default_factory=time.monotonic)

    def record(self, result: Any) -> TrialRecord:
        """Make the trial's record from the result of its evaluation."""
        # NaN compares false with every number, and would break sorting and selection.
        if not math.isfinite(result.score):
            reason = f"The evaluation returned a score of {result.score}."
            return self.ended_as("failed", message=reason)
        if not isinstance(result, TrialOutcome):
            return self.ended_as("completed", score=result.score, result=result)
        return self.ended_as("completed", **vars(result))

    def ended_as(self, status: str, **fields: Any) -> TrialRecord:
        """Make the trial's record with this status."""
        seconds = time.monotonic() - self.started
        identity = self.number, self.configuration, self.seed
        return TrialRecord(*identity, status=status, seconds=seconds, **fields)


class RunningTrials(dict[Future[Any], RunningTrial]):
    """The trials that run in slots, by their futures; `free_slots` are the other slots."""

    def __init__(self, slots: Slots, limits: Limits) -> None:
        super().__init__()
        self._slots = slots
        self._limits = limits
        self.free_slots = deque(range(slots.n_slots))

    def wait(self, seconds: float = math.inf) -> Iterator[TrialRecord]:
        """Wait until a trial ends or is overdue, for at most `seconds`.

        Yields a record of each trial that has ended. Trials lost with their slots stay unfinished
        and leave no record.
        """
        first_deadline = min(trial.deadline for trial in self.values())
        seconds = min(seconds, first_deadline - time.monotonic())
        timeout = None if seconds == math.inf else max(0, seconds)
        finished, _ = wait(self, timeout, return_when=FIRST_COMPLETED)
        lost = None
        # By number, so that equal results are recorded in the same order.
        for future in sorted(finished, key=lambda future: self[future].number):
            trial = self.pop(future)
            try:
                record = trial.record(self._slots.result(trial.slot, future))
            except SlotsLostError as error:
                lost = error
                continue
            except Exception as error:
                record = trial.ended_as("failed", message=f"{type(error).__name__}: {error}")
            self.free_slots.append(trial.slot)
            yield record
        if lost is not None:
            raise lost
        # Stop trials whose deadline has passed.
        now = time.monotonic()
        for future, trial in [item for item in self.items() if item[1].deadline <= now]:
            trial.deadline = math.inf  # a trial that cannot be stopped must end by itself
            if self._slots.stop(trial.slot):
                del self[future]
                self.free_slots.append(trial.slot)
                timeout = self._limits.trial_timeout
                reason = f"TimeoutError: stopped after trial_timeout={timeout:g} s."
                yield trial.ended_as("failed", message=reason)
