"""Trials that run in slots, and the records that they end with."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field
from typing import Any

from skuq.catalog._records import TrialRecord
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

    def record(self, result: Any, reason: str) -> TrialRecord:
        """Make the record of the trial, which failed if there is a `reason`."""
        return TrialRecord(
            self.number,
            self.configuration,
            self.seed,
            status="failed" if reason else "completed",
            score=float("nan") if reason else result.score,
            seconds=time.monotonic() - self.started,
            message=reason,
            result=result,
        )


class RunningTrials(dict[Future[Any], RunningTrial]):
    """The trials that run in entered slots, by their futures; the other slots are `free_slots`."""

    def __init__(self, slots: Slots, limits: Limits) -> None:
        super().__init__()
        self._slots = slots
        self._limits = limits
        self.free_slots = deque(range(slots.n_slots))

    def wait(self) -> Iterator[TrialRecord]:
        """Wait until a trial ends or is overdue; yield a record of each that has ended.

        Trials lost with their worker stay unfinished and leave no record.
        """
        first_deadline = min(trial.deadline for trial in self.values())
        timeout = None if first_deadline == math.inf else max(0, first_deadline - time.monotonic())
        finished, _ = wait(self, timeout, return_when=FIRST_COMPLETED)
        lost = None
        for future in sorted(finished, key=lambda future: self[future].number):
            trial = self.pop(future)
            try:
                record = trial.record(*self._outcome(trial.slot, future))
            except SlotsLostError as error:
                lost = error
                continue
            self.free_slots.append(trial.slot)
            yield record
        if lost is not None:
            raise lost
        yield from self._stop_overdue()

    def _stop_overdue(self) -> Iterator[TrialRecord]:
        now = time.monotonic()
        for future, trial in [item for item in self.items() if item[1].deadline <= now]:
            trial.deadline = math.inf  # a trial that cannot be stopped has to end itself
            if self._slots.stop(trial.slot):
                del self[future]
                self.free_slots.append(trial.slot)
                timeout = self._limits.trial_timeout
                yield trial.record(
                    None, f"TimeoutError: stopped after trial_timeout={timeout:g} s."
                )

    def _outcome(self, slot: int, future: Future[Any]) -> tuple[Any, str]:
        """Return the result of an evaluation, and the reason if it failed."""
        try:
            result = self._slots.result(slot, future)
        except SlotsLostError:
            raise
        except Exception as error:
            return None, f"{type(error).__name__}: {error}"
        if not math.isfinite(result.score):
            return None, f"The evaluation gave a score of {result.score}."
        return result, ""
