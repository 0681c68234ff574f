"""The asynchronous search: a free slot gets the next proposal as soon as results are known."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass
from typing import Any

from skuq._seeds import generator, trial_seed
from skuq.catalog._records import TrialRecord
from skuq.exceptions import SearchFailedError, SlotsLostError
from skuq.search._limits import RunOptions
from skuq.search._proposers import Proposer
from skuq.search._slots import Slots, open_slots
from skuq.search._trial_log import Store, TrialLog, known_records

__all__ = ["run_search", "run_trials"]


def run_trials(
    evaluate: Callable[..., Any],
    proposer: Proposer,
    n_trials: int,
    entropy: int,
    *,
    store: Store | None = None,
    options: RunOptions | None = None,
) -> list[TrialRecord]:
    """Open as many slots as the options ask for, and run a search in them.

    Parameters
    ----------
    evaluate : callable
        ``evaluate(configuration, seed) -> result``, see `open_slots`.
    proposer, n_trials, entropy, store, options
        As in `run_search`.

    Returns
    -------
    list of TrialRecord
        As `run_search` returns.
    """
    options = options or RunOptions()
    n_missing = max(1, n_trials - len(known_records(store, n_trials)))
    with open_slots(evaluate, options.n_jobs, n_missing) as slots:
        return run_search(proposer, slots, n_trials, entropy, store=store, options=options)


def run_search(
    proposer: Proposer,
    slots: Slots,
    n_trials: int,
    entropy: int,
    *,
    store: Store | None = None,
    options: RunOptions | None = None,
) -> list[TrialRecord]:
    """Evaluate `n_trials` configurations, except those that the store already has.

    Parameters
    ----------
    proposer : Proposer
    slots : object
        From `open_slots`, entered.
    n_trials : int
    entropy : int
        Decides the proposals' generators and the trials' seeds, by trial number.
    store : Store, optional
        Its trials are not evaluated again. Each trial that finishes is added to it before the
        next is proposed.
    options : RunOptions, optional
        Limits, progress bar and name. `n_jobs` is not used: the slots are open.

    Returns
    -------
    list of TrialRecord
        In the order in which the trials finished, those of the store first. After a keyboard
        interrupt, or if the slots are lost, those that had finished, with a warning.

    Raises
    ------
    SearchFailedError
        If no trial succeeded, all of the first ten failed, more than the limits allow failed, or
        the proposer raised.
    """
    options = options or RunOptions()
    log = TrialLog(n_trials, store, options)
    trials = _Trials(slots, log.missing, options)
    with log:
        try:
            while trials.unfinished and not log.is_out_of_time():
                trials.start(proposer, log.history, entropy)
                log.finished.extend(trials.wait())
                log.store_finished()
                log.check_failures()
        except (KeyboardInterrupt, SlotsLostError) as error:
            log.end_early(error)
    log.check_failures()
    if hasattr(proposer, "tell"):
        proposer.tell(log.history)
    return log.history


@dataclass
class _Trial:
    """A running trial; `deadline` and `submitted` are times of the monotonic clock."""

    number: int
    configuration: dict[str, Any]
    seed: int
    slot: int
    deadline: float
    submitted: float

    def record(self, result: Any, reason: str) -> TrialRecord:
        return TrialRecord(
            self.number,
            self.configuration,
            self.seed,
            status="failed" if reason else "completed",
            score=float("nan") if reason else result.score,
            seconds=time.monotonic() - self.submitted,
            message=reason,
            result=result,
        )


class _Trials:
    """Trials that wait for a slot, and those that run in one."""

    def __init__(self, slots: Slots, numbers: list[int], options: RunOptions) -> None:
        self._slots = slots
        self._limits = options.limits
        self._waiting = deque(numbers)
        self._free = deque(range(slots.n_slots))
        self._running: dict[Future[Any], _Trial] = {}

    @property
    def unfinished(self) -> bool:
        return bool(self._waiting or self._running)

    def start(self, proposer: Proposer, history: list[TrialRecord], entropy: int) -> None:
        """Propose and submit a trial for every free slot."""
        while self._free and self._waiting:
            slot, number = self._free.popleft(), self._waiting.popleft()
            running = [trial.configuration for trial in self._running.values()]
            configuration = _propose(proposer, number, history, running, entropy)
            seed = trial_seed(entropy, number)
            trial = _Trial(
                number, configuration, seed, slot, self._limits.deadline(), time.monotonic()
            )
            self._running[self._slots.submit(slot, configuration, seed)] = trial

    def wait(self) -> Iterator[TrialRecord]:
        """Wait until a trial ends or is overdue; yield a record of each that has ended.

        Trials lost with their worker stay unfinished and leave no record.
        """
        first_deadline = min(trial.deadline for trial in self._running.values())
        timeout = None if first_deadline == math.inf else max(0, first_deadline - time.monotonic())
        finished, _ = wait(self._running, timeout, return_when=FIRST_COMPLETED)
        lost = None
        for future in sorted(finished, key=lambda future: self._running[future].number):
            trial = self._running.pop(future)
            try:
                record = trial.record(*self._outcome(trial.slot, future))
            except SlotsLostError as error:
                lost = error
                continue
            self._free.append(trial.slot)
            yield record
        if lost is not None:
            raise lost
        yield from self._stop_overdue()

    def _stop_overdue(self) -> Iterator[TrialRecord]:
        now = time.monotonic()
        overdue = [future for future, trial in self._running.items() if trial.deadline <= now]
        for future in overdue:
            trial = self._running[future]
            trial.deadline = math.inf  # a trial that cannot be stopped has to end itself
            if self._slots.stop(trial.slot):
                del self._running[future]
                self._free.append(trial.slot)
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


def _propose(
    proposer: Proposer,
    number: int,
    history: list[TrialRecord],
    running: list[dict[str, Any]],
    entropy: int,
) -> dict[str, Any]:
    try:
        return proposer.ask(history, running, generator(entropy, "ask", number))
    except Exception as error:
        raise SearchFailedError(
            f"The search could not propose trial {number}: {error}\n"
            f"{len(history)} trials had finished (the exception's `records`).",
            history,
        ) from error
