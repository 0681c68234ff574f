"""Training, the public functions. Importing this module loads no backend; calling it does."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from skuq import training
from skuq.catalog._records import Member
from skuq.networks._head_protocol import Head
from skuq.tables._training_data import TrainingData
from skuq.training._job import TrainingJob, TrainingState
from skuq.training._joint import JointTraining
from skuq.training._recipe import Recipe


def train(
    job: TrainingJob,
    data: TrainingData,
    *,
    cancelled: Callable[[], bool] | None = None,
    report: Callable[[int, int], Any] | None = None,
    deadline: float = math.inf,
) -> list[Member | FloatingPointError]:
    """Train the networks of a job; each one's best epoch becomes a member.

    The members of a large stack train in groups, as many at the same time as there are cores.

    The semantics are those of ``model.fit`` with ``ReduceLROnPlateau``,
    ``EarlyStopping(restore_best_weights=True)`` and ``TerminateOnNaN``. Every member of a stack
    becomes what it would have become alone, up to rounding: it has its own first weights, order
    of rows, learning rate, plateaus and early stopping.

    Parameters
    ----------
    job : TrainingJob
    data : TrainingData
        Without validation rows the training loss is watched in their place.
    cancelled : callable, optional
        Asked about once a second; when it returns True, training ends with InterruptedError.
    report : callable, optional
        ``report(n_epochs, n_left)`` after each slice of a run, with the number of epochs of the
        slice, and of those that the run still has at most.
    deadline : float, default=inf
        Time of ``time.monotonic()`` after which no new slice begins; members are then those of
        the epochs that there were, at least one.

    Returns
    -------
    list of Member or FloatingPointError
        One for each seed. An error stands for a member none of whose epochs had a finite loss.

    Raises
    ------
    InterruptedError
        If `cancelled` returned True.
    """
    (members,) = train_all([job], data, cancelled=cancelled, report=report, deadline=deadline)
    return members


def train_all(
    jobs: Sequence[TrainingJob],
    data: TrainingData,
    *,
    cancelled: Callable[[], bool] | None = None,
    report: Callable[[int, int], Any] | None = None,
    deadline: float = math.inf,
) -> list[list[Member | FloatingPointError]]:
    """Train several jobs on the same data, as many groups at the same time as there are cores.

    Parameters
    ----------
    jobs : sequence of TrainingJob
    data, cancelled, report, deadline :
        As in `train`.

    Returns
    -------
    list of lists
        What `train` returns, for each job.
    """
    training = JointTraining([(job, data) for job in jobs])
    training.advance(cancelled=cancelled, report=report, deadline=deadline)
    return training.members()


def train_epochs(
    job: TrainingJob,
    data: TrainingData,
    n_epochs: int,
    *,
    cancelled: Callable[[], bool] | None = None,
    report: Callable[[int, int], Any] | None = None,
) -> TrainingState:
    """Train the networks of a job for some epochs, and pause.

    ``train(dataclasses.replace(job, start=state), data)`` continues to exactly the members of an
    uninterrupted run.

    Parameters
    ----------
    job : TrainingJob
    data : TrainingData
    n_epochs : int
        Number of epochs from the job's start, which may be a paused run itself. The run ends
        earlier after the recipe's `epochs`, or when no member goes on.
    cancelled, report : callable, optional
        As in `train`.
    """
    run = training.TrainingRun(job, data)
    run.advance(n_epochs, cancelled=cancelled, report=report)
    state: TrainingState = run.state()
    return state


def train_member(
    model: Any,
    head: Head,
    recipe: Recipe,
    data: TrainingData,
    seed: int,
    *,
    cancelled: Callable[[], bool] | None = None,
    report: Callable[[int, int], Any] | None = None,
    **fields: Any,
) -> Member:
    """Train one network from scratch: `train` of a job made of a model.

    Parameters
    ----------
    model : keras.Model or EpistemicNetwork
        A template; it is neither changed nor are its weights used.
    head, recipe, seed :
        As in `TrainingJob`, for one member.
    data, cancelled, report :
        As in `train`.
    **fields : dict
        Other fields of the `TrainingJob`; those of each member hold one entry.

    Raises
    ------
    FloatingPointError
        If no epoch had a finite loss.
    """
    job = TrainingJob.of_model(model, head, recipe, [seed], **fields)
    return only_member(train(job, data, cancelled=cancelled, report=report))


def only_member(members: list[Member | FloatingPointError]) -> Member:
    """Give the only member of a job, or raise its error."""
    (member,) = members
    if isinstance(member, FloatingPointError):
        raise member
    return member


def train_stack(
    model: Any,
    head: Head,
    recipes: Recipe | Sequence[Recipe],
    data: TrainingData,
    seeds: Sequence[int],
    *,
    cancelled: Callable[[], bool] | None = None,
    report: Callable[[int, int], Any] | None = None,
    **fields: Any,
) -> list[Member | FloatingPointError]:
    """Train K networks of one architecture as one program: `train` of a job made of a model.

    Every member becomes what `train_member` would have made of it, up to rounding: it
    has its own first weights, order of rows, learning rate, plateaus and early stopping.

    Parameters
    ----------
    model : keras.Model or EpistemicNetwork
        A template; it is neither changed nor are its weights used.
    head, recipes, seeds :
        As in `TrainingJob`.
    data, cancelled, report :
        As in `train`.
    **fields : dict
        Other fields of the `TrainingJob`.

    Returns
    -------
    list of K Member or FloatingPointError
        An error stands for a member none of whose epochs had a finite loss.

    Raises
    ------
    ValueError
        If recipes differ in what a stack shares, or counts disagree.
    """
    job = TrainingJob.of_model(model, head, recipes, seeds, stacked=True, **fields)
    return train(job, data, cancelled=cancelled, report=report)
