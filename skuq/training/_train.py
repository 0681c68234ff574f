"""Train one or several jobs on all cores.

The backend is loaded when training begins, not when this module is imported.
"""

from __future__ import annotations

import functools
import math
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from skuq import backend
from skuq.networks._member import Member
from skuq.tables._splits import TrainingData
from skuq.training._job import TrainingJob

_SAFETY = 0.9  # share of the time left that epochs are planned for
_BEGINNING = 0.25  # share of the time after which no further job begins
# A job that has fewer seconds trains as a plain graph: XLA halves a step, but takes three to seven
# times as long to compile, on usual machines 6 to 12 seconds.
_SHORT = 20.0
_LONG_EPOCH = 0.2  # share of the time left from which a second epoch is not timed
_CLOCK_TICK = 1e-6  # seconds; avoids division by zero for jobs of one epoch, which are not timed

#: Members, with an error in the place of each diverged one.
Members = list[Member | FloatingPointError]


class JointTraining:
    """Joint training of several jobs.

    Large stacks are divided into groups. As many groups run at the same time as there are cores.

    Parameters
    ----------
    jobs : sequence of (TrainingJob, TrainingData)
        Each job with the data that it trains on.
    """

    def __init__(self, jobs: Sequence[tuple[TrainingJob, TrainingData]]):
        self._groups = [_Group(group, data) for job, data in jobs for group in job.groups()]

    def advance(
        self,
        *,
        cancelled: Callable[[], bool] | None = None,
        report: Callable[[int, int], Any] | None = None,
        deadline: float = math.inf,
    ) -> None:
        """Train every job to its end.

        Parameters
        ----------
        cancelled, report, deadline :
            See `skuq.training.train`.
        """
        ended = threading.Event()  # set when a group fails or the caller is interrupted
        left = [group.job.recipe.epochs for group in self._groups]

        def report_of(k: int, n_epochs: int, n_left: int) -> None:
            if report is not None:  # with the epochs that all groups still have together
                left[k] = n_left
                report(n_epochs, sum(left))

        settings: Any = {
            "cancelled": lambda: ended.is_set() or (cancelled is not None and cancelled()),
            "deadline": deadline,
        }
        backend.run_in_threads(
            [
                functools.partial(group.train, report=functools.partial(report_of, k), **settings)
                for k, group in enumerate(self._groups)
            ],
            backend.n_programs_at_once() if len(self._groups) > 1 else 1,
            stop=ended.set,
        )

    @property
    def share(self) -> float:
        """Share of the training that is done; less than 1 if a deadline ended it."""
        return min(group.share for group in self._groups)

    def members(self) -> Members:
        """Return the members of all jobs, each at its network's best epoch."""
        return sum((group.members for group in self._groups), [])


@dataclass(eq=False, repr=False)
class _Group:
    """A group of a job's members."""

    job: TrainingJob
    data: TrainingData
    share: float = 0.0
    members: Members = field(default_factory=list)  # after the training

    def train(self, **settings: Any) -> None:
        from skuq.training._engine import TrainingRun  # loads TensorFlow

        run = TrainingRun(self.job, self.data)
        run.advance(**settings)
        # Only the small records are kept, and the run's arrays are freed before the next group.
        self.share, self.members = run.share, run.members()


def shorten(jobs: Sequence[TrainingJob], data: TrainingData, deadline: float) -> list[TrainingJob]:
    """Reduce the epochs of jobs to what can be trained until a deadline, at least one epoch.

    All jobs keep the same share of their epochs. Once a quarter of the time is gone, no further
    job is measured, and those before it are returned alone.
    """
    pairs = [(job, data) for job in jobs]
    needed, to_predict, jobs = seconds_needed(pairs, deadline, needs_all=False)
    share = share_in_time(needed, deadline - to_predict - time.monotonic())
    return [with_share_of_epochs(job, share) for job in jobs]


def seconds_needed(
    jobs: Sequence[tuple[TrainingJob, TrainingData]],
    deadline: float = math.inf,
    needs_all: bool = True,
) -> tuple[float, float, list[TrainingJob]]:
    """Estimate how long the jobs take to train together.

    One group of each job's members is compiled, and trains two epochs, or one if it is long. The
    last one is timed.

    Parameters
    ----------
    jobs : sequence of (TrainingJob, TrainingData)
    deadline : float, default=inf
        Time of ``time.monotonic()`` at which they have to end. Jobs with less than 20 seconds each
        train as plain graphs, unless XLA has compiled them before.
    needs_all : bool, default=True
        False leaves jobs out that would be measured after a quarter of the time.

    Returns
    -------
    seconds : float
        Estimated time of all jobs on all cores.
    seconds_to_predict : float
        Estimated time in which all members predict their held-out rows, one after the other.
    jobs : list of TrainingJob
        The same jobs, with the tier (graph or XLA) fixed to the measured one.
    """
    needed: list[float] = []  # seconds of each group
    to_predict = 0.0
    measured: list[TrainingJob] = []  # their tier is fixed
    ended = threading.Event()  # set when the caller is interrupted
    seconds = deadline - time.monotonic()

    def measure() -> None:
        from skuq.training._engine import TrainingRun

        nonlocal to_predict
        for job, data in jobs:
            left, groups = deadline - time.monotonic(), job.groups()
            if measured and not needs_all and left < (1 - _BEGINNING) * seconds:
                break
            run = TrainingRun(groups[0], data)
            is_short = left < _SHORT * len(jobs)
            if run.jit and job.jit is None and is_short and not run.is_compiled:
                run = TrainingRun(replace(groups[0], jit=False), data)
            run.compile()
            for _ in range(2):  # the first epoch is slower than others
                began = time.monotonic()
                run.advance(1, cancelled=ended.is_set)
                trained = time.monotonic()
                if trained - began > _LONG_EPOCH * (deadline - trained):
                    break
            run.members()
            needed.extend([(trained - began) * job.recipe.epochs] * len(groups))
            to_predict += (time.monotonic() - trained) * len(groups)
            measured.append(replace(job, jit=run.jit))

    backend.run_in_threads([measure], stop=ended.set)
    # Groups start in this order, each on the core that is free first.
    cores = [0.0] * min(backend.n_programs_at_once(), len(needed))
    for group in needed:
        cores[cores.index(min(cores))] += group
    return max(cores), to_predict, measured


def share_in_time(needed: float, seconds: float) -> float:
    """Compute the share of a training of `needed` seconds that fits into `seconds`, at most 1."""
    return min(1.0, _SAFETY * max(seconds, 0.0) / max(needed, _CLOCK_TICK))


def with_share_of_epochs(job: TrainingJob, share: float) -> TrainingJob:
    """Copy a job with this share of its epochs, at least one."""
    recipes = [replace(recipe, epochs=max(1, int(share * recipe.epochs))) for recipe in job.recipes]
    return replace(job, recipes=tuple(recipes))


def train(
    jobs: TrainingJob | Sequence[TrainingJob],
    data: TrainingData,
    *,
    cancelled: Callable[[], bool] | None = None,
    report: Callable[[int, int], Any] | None = None,
    deadline: float = math.inf,
) -> list[Member | FloatingPointError]:
    """Train the networks of one or several jobs, and return each one's kept epoch as a member.

    The members of a large stack train in groups, as many at the same time as there are cores.
    `TrainingRun` trains a job epoch by epoch instead.

    The semantics are those of ``model.fit`` with ``ReduceLROnPlateau``,
    ``EarlyStopping(restore_best_weights=True)`` and ``TerminateOnNaN``. Every member of a stack
    equals the one trained alone, up to rounding: it has its own first weights, order of rows,
    learning rate, plateaus and early stopping.

    Parameters
    ----------
    jobs : TrainingJob or sequence of TrainingJob
        Jobs on the same data.
    data : TrainingData
        Rows to train and to validate on. Without validation rows the training loss decides about
        plateaus, early stopping and the best epoch.
    cancelled : callable, optional
        Called about once a second; when it returns True, training ends with InterruptedError.
    report : callable, optional
        ``report(n_epochs, n_left)`` is called after each slice of a run, with the slice's number
        of epochs and the largest number of epochs that all networks together still have.
    deadline : float, default=inf
        Time of ``time.monotonic()`` after which no new slice begins. Training then ends with the
        epochs run so far, at least one.

    Returns
    -------
    list of Member or FloatingPointError
        One entry for each seed of each job: a FloatingPointError if no epoch of the member had a
        finite loss.

    Raises
    ------
    InterruptedError
        If `cancelled` returned True.

    Examples
    --------
    >>> import numpy as np
    >>> from skuq.backend import keras
    >>> from skuq.networks import GaussianHead
    >>> from skuq.tables import TrainingData
    >>> from skuq.training import Recipe, TrainingJob, train
    >>> x = np.linspace(-1, 1, 20)[:, None]
    >>> data = TrainingData.without_validation(x, x**2, np.ones(20))
    >>> dense = keras.layers.Dense
    >>> model = keras.Sequential([keras.Input((1,)), dense(8, "relu"), dense(2)])
    >>> job = TrainingJob.of_model(model, GaussianHead(), Recipe(epochs=4), seeds=[0])
    >>> (member,) = train(job, data)
    >>> member.n_epochs, member.n_weights
    (4, 34)
    """
    jobs = [jobs] if isinstance(jobs, TrainingJob) else jobs
    training = JointTraining([(job, data) for job in jobs])
    training.advance(cancelled=cancelled, report=report, deadline=deadline)
    return training.members()
