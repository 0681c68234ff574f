"""Manage trials that run in slots, and make their records when they end."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field
from typing import Any

from skuq.catalog._records import TrialOutcome, TrialRecord
from skuq.exceptions import SlotsLostError
from skuq.search._limits import Limits
from skuq.search._slots import Slots


@dataclass
class RunningTrial:
    """A trial in its slot; `deadline` and `started` are times of the monotonic clock."""

    number: int
    configuration: dict[str, Any]
    seed: int
    slot: int
    deadline: float
    started: float = field(default_factory=time.monotonic)

    @property
    def arguments(self) -> tuple[dict[str, Any], int]:
        """Arguments of the evaluation."""
        return self.configuration, self.seed

    def failure(self, reason: str) -> TrialRecord:
        """Make the trial's record for a failure."""
        return self._record("failed", message=reason)

    def record(self, result: Any) -> TrialRecord:
        """Make the trial's record from the result of its evaluation."""
        if not math.isfinite(result.score):
            return self.failure(f"The evaluation returned a score of {result.score}.")
        if not isinstance(result, TrialOutcome):
            return self._record("completed", score=result.score, result=result)
        status = "discarded" if result.result is None else "completed"
        return self._record(status, **vars(result))

    def _record(self, status: str, **fields: Any) -> TrialRecord:
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
        for future in sorted(finished, key=lambda future: self[future].number):
            trial = self.pop(future)
            try:
                record = trial.record(self._slots.result(trial.slot, future))
            except SlotsLostError as error:
                lost = error
                continue
            except Exception as error:
                record = trial.failure(f"{type(error).__name__}: {error}")
            self.free_slots.append(trial.slot)
            yield record
        if lost is not None:
            raise lost
        yield from self._stop_overdue()

    def _stop_overdue(self) -> Iterator[TrialRecord]:
        """Stop trials whose deadline has passed, and yield their records."""
        now = time.monotonic()
        for future, trial in [item for item in self.items() if item[1].deadline <= now]:
            trial.deadline = math.inf  # a trial that cannot be stopped must end by itself
            if self._slots.stop(trial.slot):
                del self[future]
                self.free_slots.append(trial.slot)
                timeout = self._limits.trial_timeout
                yield trial.failure(f"TimeoutError: stopped after trial_timeout={timeout:g} s.")
