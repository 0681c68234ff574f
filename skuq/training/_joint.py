"""Several jobs trained together on all cores, to their end or stage by stage."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import replace
from typing import Any

from skuq import backend, training
from skuq.catalog._records import Member
from skuq.tables._training_data import TrainingData
from skuq.training._job import TrainingJob

_SAFETY = 0.9  # share of the time left that epochs are planned for
_CLOCK_TICK = 1e-6  # seconds; a job of one epoch has no second one to be timed

#: Members, or the errors that stand for diverged ones.
Members = list[Member | FloatingPointError]


class JointTraining:
    """Jobs, each with its data, that are trained together up to any share of their epochs.

    Large stacks are divided into groups. As many groups run at the same time as there are cores.

    Parameters
    ----------
    jobs : sequence of (TrainingJob, TrainingData)
    """

    def __init__(self, jobs: Sequence[tuple[TrainingJob, TrainingData]]):
        groups = [[(group, data) for group in job.groups()] for job, data in jobs]
        self._sizes = [len(own) for own in groups]
        self._groups = [_Group(*group) for own in groups for group in own]

    def advance(
        self,
        share: float = 1.0,
        *,
        cancelled: Callable[[], bool] | None = None,
        report: Callable[[int, int], Any] | None = None,
        deadline: float = math.inf,
    ) -> None:
        """Train up to this share of each job's epochs, at least one; 1 ends the training.

        Parameters
        ----------
        share : float, default=1.0
        cancelled, report, deadline :
            As in `skuq.training.train`.

        Raises
        ------
        InterruptedError
            If `cancelled` returned True.
        """
        if len(self._groups) == 1:
            self._groups[0].advance(share, cancelled=cancelled, report=report, deadline=deadline)
            return
        ended = threading.Event()

        def group_cancelled() -> bool:
            return ended.is_set() or (cancelled is not None and cancelled())

        settings: Any = {"cancelled": group_cancelled, "report": report, "deadline": deadline}
        n_threads = min(backend.n_programs_at_once(), len(self._groups))
        with ThreadPoolExecutor(n_threads) as pool:
            try:
                runs = [pool.submit(group.advance, share, **settings) for group in self._groups]
                done, _ = wait(runs, return_when=FIRST_EXCEPTION)
                for run in done:
                    run.result()  # raises what ended it
            except BaseException:  # an interrupt too: groups end at their next slice
                ended.set()
                raise

    @property
    def share(self) -> float:
        """Share of the training that is done; less than 1 if a deadline ended it."""
        return min(group.share for group in self._groups)

    def members(self) -> list[Members]:
        """Return the members of each job: the best epoch of each network so far."""
        groups = iter(self._groups)
        return [
            [member for _ in range(size) for member in next(groups).members()]
            for size in self._sizes
        ]


class _Group:
    """A group of a job's members, and its run once it has begun."""

    def __init__(self, job: TrainingJob, data: TrainingData):
        self._job, self._data = job, data
        self.share = 0.0
        self._run: Any = None
        self._members: Members | None = None

    def advance(self, share: float, **settings: Any) -> None:
        if self._run is None:
            self._run = training.TrainingRun(self._job, self._data)  # loads the backend
        until = max(1, round(share * self._job.recipe.epochs))
        self._run.advance(max(0, until - self._run.n_epochs), **settings)
        self.share = self._run.share
        if share == 1:
            # Records are small: the arrays of the run are freed before the next group's begins.
            self._members, self._run = self._run.members(), None

    def members(self) -> Members:
        members: Members = self._run.members() if self._members is None else self._members
        return members


def shorten(
    jobs: Sequence[TrainingJob], data: TrainingData, seconds: float
) -> tuple[list[TrainingJob], float]:
    """Give jobs no more epochs than can be trained in so many seconds, but at least one.

    Two epochs of a group of each job's members are trained before, which compiles and shows how
    long an epoch takes. All jobs keep the same share of their epochs.

    Returns
    -------
    jobs : list of TrainingJob
    deadline : float
        Time of ``time.monotonic()`` at which the seconds, counted from the return, are over.
    """
    pairs = [(job, data) for job in jobs]
    needed, jobs = seconds_needed(pairs)
    share = share_in_time(needed, seconds)
    return [with_share_of_epochs(job, share) for job in jobs], time.monotonic() + seconds


def seconds_needed(
    jobs: Sequence[tuple[TrainingJob, TrainingData]],
) -> tuple[float, list[TrainingJob]]:
    """Measure how long the jobs take to train together.

    Two epochs of a group of each job's members are trained, which compiles and shows how long an
    epoch takes.

    Returns
    -------
    seconds : float
    jobs : list of TrainingJob
        The same, compiled as they were measured.
    """
    needed: list[float] = []  # seconds of each group
    measured = []
    for job, data in jobs:
        groups = job.groups()
        run = training.TrainingRun(groups[0], data)
        run.advance(1)  # compiles
        started = time.monotonic()
        run.advance(1)
        needed += [(time.monotonic() - started) * job.recipe.epochs] * len(groups)
        measured.append(replace(job, jit=run.jit))
    cores = [0.0] * min(backend.n_programs_at_once(), len(needed))
    for group in needed:  # they start in this order, each on the first free core
        cores[cores.index(min(cores))] += group
    return max(cores), measured


def share_in_time(needed: float, seconds: float) -> float:
    """Return the share of a training that takes `needed` seconds to fit into others."""
    return min(1.0, _SAFETY * max(seconds, 0.0) / max(needed, _CLOCK_TICK))


def with_share_of_epochs(job: TrainingJob, share: float) -> TrainingJob:
    """Copy a job with this share of its epochs, at least one."""
    recipes = [replace(own, epochs=max(1, int(share * own.epochs))) for own in job.recipes]
    return replace(job, recipes=tuple(recipes))
