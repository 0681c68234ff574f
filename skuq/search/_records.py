"""Records of a search: trials and held-out rows, limits and options of a run, and its log."""

import logging
import math
import time
from collections import Counter, deque
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self

import numpy as np

from skuq._messages import Progress, warn_user
from skuq.exceptions import SearchFailedError, SlotsLostError
from skuq.files._registry import saved_record
from skuq.search._slots import Slots

#: Validation rows of a single split that calibrate classes, though epochs are chosen by them, too.
CALIBRATION_ROWS = 1_000


@saved_record("search.TrialRecord")
class TrialRecord:
    """One finished trial of a search.

    Attributes
    ----------
    trial_number : int
        Number of the trial from 0, in the order of proposal.
    configuration : dict
        ``{decision name: value}``.
    seed : int
        Seed of the trial.
    status : {"completed", "failed"}
    score : float
        Value that the search minimises. It is NaN if the trial failed.
    seconds : float
        Time from submission to result.
    message : str
        Reason of the failure; empty for a completed trial.
    result : Member, FoldedMember or None
        Value returned by the evaluation; None unless the trial completed.
    share : float
        Share of the full training: less than 1 if the trial was shortened because the search's time
        was running out.

    Examples
    --------
    >>> from skuq.search import TrialRecord
    >>> record = TrialRecord(3, {"units": 16}, score=0.4)
    >>> record.completed, record.failed
    (True, False)
    """

    trial_number: int
    configuration: dict[str, Any] = field(default_factory=dict)
    seed: int = 0
    status: str = "completed"
    score: float = float("nan")
    seconds: float = 0.0
    message: str = ""
    result: Any = None
    share: float = 1.0

    @property
    def completed(self) -> bool:
        """Whether the trial has a member."""
        return self.status == "completed"

    @property
    def failed(self) -> bool:
        """Whether the trial has neither a member nor a score."""
        return self.status == "failed"


@dataclass(frozen=True)
class TrialBudget:
    """Time of one trial.

    Attributes
    ----------
    seconds : float
        Time after which the training ends, however far it is.
    shorten : bool
        Plan the training with fewer epochs if all of them would take longer than `seconds`.
    """

    seconds: float = math.inf
    shorten: bool = True


@dataclass(frozen=True, eq=False)
class TrialOutcome:
    """Result of a trial with a budget, from which its record is made.

    Attributes
    ----------
    result : Member or FoldedMember
    score : float
        Value that the search minimises.
    share : float
        Share of the full training that was done.
    """

    result: Any
    score: float
    share: float = 1.0


@saved_record("search.HeldOut")
class HeldOut:
    """Held-out rows on which members are selected.

    With cross-validation these are all rows, since each has an out-of-fold prediction.

    Attributes
    ----------
    rows : ndarray of shape (n_valid,) or None
        Positions of the rows among those given to `fit`; None for separate validation data.
    y : ndarray of shape (n_valid, n_outputs)
        Standardised targets.
    weight : ndarray of shape (n_valid,)
        Sample weights with mean 1.
    shifted : tuple of HeldOut
        Further sets of rows, each from another distribution. Members' predictions on them follow
        those on the rows above, in this order.
    groups : ndarray of shape (n_valid,) or None
        Numbers that rows share which belong together: equal rows, or groups of the user.
    """

    rows: np.ndarray | None
    y: np.ndarray
    weight: np.ndarray
    shifted: tuple["HeldOut", ...] = ()
    groups: np.ndarray | None = None

    @property
    def sets(self) -> list[tuple[slice, np.ndarray, np.ndarray]]:
        """Position of predictions, y and weights, for these rows and for each shifted set."""
        parts, start = [], 0
        for part in (self, *self.shifted):
            parts.append((slice(start, start + len(part.y)), part.y, part.weight))
            start += len(part.y)
        return parts


# If all of the first trials fail, the cause is the search and not the trials.
_N_FIRST_TRIALS = 10

# A trial may be shortened if less time is left than _TIGHT_FACTOR times that of the longest trial.
_TIGHT_FACTOR = 3.0
_FIRST_TRIALS = 2  # side by side, while it is not known how long one takes
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
    grace : float, default=20
        Seconds from `trial_timeout` until a trial's worker is killed. A training ends by itself at
        its next slice, but not while it compiles or imports the backend.

    Examples
    --------
    >>> from skuq.search import Limits, RunOptions
    >>> RunOptions(n_jobs=2, limits=Limits(max_time=600, trial_timeout=60)).limits.max_time
    600
    """

    max_time: float | None = None
    trial_timeout: float | None = None
    raise_on_failures: bool = True
    grace: float = 20.0

    def seconds_left(self, started: float) -> float:
        """Return the seconds that are left; `started` is a time of the monotonic clock."""
        return math.inf if self.max_time is None else started + self.max_time - time.monotonic()

    def time_of_next_trials(
        self, history: Sequence[TrialRecord], started: float, n_known: int = 0, most: int = 1
    ) -> tuple[float, bool, int]:
        """Return the seconds of the next trials, whether these may be too few, and their number.

        The seconds are 0 if no trial should start: no time is left, or less than half of the
        median time of a full training. If all trials were cut very short, as by an earlier and
        shorter fit, the next one needs more time than they had. Of the trials in the history, the
        first `n_known` are of earlier fits. Until this fit has completed one of its own, any time
        is enough: otherwise a search in short fits would end with its first trial.

        At most `most` trials share the seconds, as many as these are enough for. Two do as long as
        no trial has been timed.
        """
        completed = [record for record in history if record.completed]
        left = self.seconds_left(started)
        # The time of a shortened trial, extrapolated to a full training.
        durations = [r.seconds / r.share for r in completed if r.share >= _LEAST_SHARE]
        starts_again = (
            n_known > 0 and not any(record.completed for record in history[n_known:]) and left > 0
        )
        if completed and not durations:
            is_enough = starts_again or left > max(r.seconds for r in completed)
            return (left if is_enough else 0.0), left < math.inf, 1
        if not durations:
            n_trials = most if left == math.inf else min(most, _FIRST_TRIALS)
            return max(left, _MIN_SECONDS), left < math.inf, n_trials
        usual = max(_MIN_SECONDS, float(np.median(durations)))
        n_trials = most if left == math.inf else int(np.clip(left / usual, 1, most))
        is_tight = left <= _TIGHT_FACTOR * n_trials * max(durations)
        is_enough = left > _MIN_SHARE * usual
        return (left if is_enough or starts_again else 0.0), is_tight, n_trials

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
        enough = len(history) - n_known >= min(n_trials - n_known, _N_FIRST_TRIALS)
        if not enough or any(record.completed for record in history):
            return
        reasons = Counter(record.message for record in history).most_common(3)
        listed = "\n".join(f"  {count} x {message}" for message, count in reasons)
        advice = "Check the search space and the data"
        if reasons and reasons[0][0].startswith("TimeoutError"):
            advice = "Give trials more time by `trial_timeout`, or make them smaller"
        old = f"\n{n_known} of them are from an earlier fit: delete their files to run them again."
        raise SearchFailedError(
            f"All {len(history)} trials so far failed, most often with:\n{listed}\n"
            f"{advice} (the exception's `records` hold every trial)." + (old if n_known else ""),
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
        Place for finished trials, for example a `skuq.search.CatalogFolder`. `records` are the
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
        self.interrupted, self.started = False, time.monotonic()
        self._n_trials, self.n_known = n_trials, len(self.history)
        self._shown_total = None if options.is_open else n_trials
        self.alone: dict[int, RunningTrial] = {}  # trials that have lost their pack, by number
        self._store, self._options = store, options
        if self.history:
            _logger.info("continuing with %d stored trials", len(self.history))

    def __enter__(self) -> Self:
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

    def take(self, size: int) -> list[int]:
        """Take the numbers of the next missing trials, of those that share no pack only one."""
        taken = [self.missing.popleft()]
        while self.missing and len(taken) < size:
            if self.alone.keys() & {taken[0], self.missing[0]}:
                break
            taken.append(self.missing.popleft())
        return taken

    def run_alone(self, trials: list["RunningTrial"]) -> None:
        """Let trials of a pack that is lost run next, each alone."""
        self.alone.update({trial.number: trial for trial in trials})
        self.missing.extendleft(trial.number for trial in reversed(trials))

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
        # A search without a single network would be useless, however late it is.
        if not any(record.completed for record in self.history):
            return math.inf
        return self._options.limits.seconds_left(self.started)

    def _add(self, record: TrialRecord) -> None:
        # After an interrupt, which can come at any moment, a record can be added twice.
        if self.history and self.history[-1] is record:
            return
        if self._store is not None:
            self._store.add(record)
        self.history.append(record)


class RunningTrial(NamedTuple):
    """A trial that has been proposed."""

    number: int
    configuration: dict[str, Any]
    seed: int


@dataclass
class Pack:
    """Trials that run side by side in a slot; `deadline` and `started` are monotonic times."""

    trials: list[RunningTrial]
    slot: int
    deadline: float
    started: float = field(default_factory=lambda: time.monotonic())

    def records(self, outcomes: Sequence[Any]) -> list[TrialRecord]:
        """Make the trials' records from the results of their evaluation, or errors.

        The time of the pack is divided as the training of its networks was.
        """
        trained = [getattr(getattr(o, "result", o), "seconds", None) or 0.0 for o in outcomes]
        shares = [t / sum(trained) if min(trained) > 0 else 1 / len(trained) for t in trained]
        seconds = time.monotonic() - self.started
        return [
            self._record(trial, outcome, share * seconds)
            for trial, outcome, share in zip(self.trials, outcomes, shares)
        ]

    @staticmethod
    def _record(trial: RunningTrial, outcome: Any, seconds: float) -> TrialRecord:
        if isinstance(outcome, Exception):
            message = f"{type(outcome).__name__}: {outcome}"
        # NaN compares false with every number, and would break sorting and selection.
        elif math.isfinite(outcome.score):
            fields = {"score": outcome.score, "result": outcome}
            fields = vars(outcome) if isinstance(outcome, TrialOutcome) else fields
            return TrialRecord(*trial, seconds=seconds, **fields)
        else:
            message = f"The evaluation returned a score of {outcome.score}."
        return TrialRecord(*trial, status="failed", seconds=seconds, message=message)


class RunningPacks(dict[Future[Any], Pack]):
    """The packs that run in slots, by their futures; `free_slots` are the other slots."""

    def __init__(self, slots: Slots, limits: Limits) -> None:
        super().__init__()
        self._slots, self._limits = slots, limits
        self.free_slots = deque(range(slots.n_slots))

    @property
    def trials(self) -> list[RunningTrial]:
        """All trials that run."""
        return [trial for pack in self.values() for trial in pack.trials]

    def wait(self, log: TrialLog) -> None:
        """Wait until a pack ends or is overdue, or the log's time is over.

        The log gets a record of each trial that has ended. Trials lost with their slots stay
        unfinished and leave no record. The trials of a pack that is lost by an error run again,
        each alone: the others are not to be lost with one of them.
        """
        first_deadline = min(pack.deadline for pack in self.values())
        seconds = min(log.seconds_left(), first_deadline - time.monotonic())
        timeout = None if seconds == math.inf else max(0, seconds)
        finished, _ = wait(self, timeout, return_when=FIRST_COMPLETED)
        lost = None
        # By number, so that equal results are recorded in the same order.
        for future in sorted(finished, key=lambda future: self[future].trials[0].number):
            pack = self.pop(future)
            try:
                result = self._slots.result(pack.slot, future)
                outcomes = result if len(pack.trials) > 1 else [result]
            except SlotsLostError as error:
                lost = error
                continue
            except Exception as error:
                outcomes = [error]
            self._end(pack, outcomes, log)
        if lost is not None:
            raise lost
        # Stop packs whose deadline has passed.
        now = time.monotonic()
        for future, pack in [item for item in self.items() if item[1].deadline <= now]:
            pack.deadline = math.inf  # what cannot be stopped must end by itself
            if self._slots.stop(pack.slot):
                del self[future]
                reason = f"stopped after trial_timeout={self._limits.trial_timeout:g} s."
                self._end(pack, [TimeoutError(reason)], log)

    def _end(self, pack: Pack, outcomes: Sequence[Any], log: TrialLog) -> None:
        """Free a pack's slot; log its results, or let its trials run alone after a single error."""
        self.free_slots.append(pack.slot)
        if len(outcomes) == len(pack.trials):
            log.finished.extend(pack.records(outcomes))
        else:
            log.run_alone(pack.trials)
