"""Public functions for training. They load the backend when called, not when imported."""

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
    """Train the networks of a job, and return each network's best epoch as a member.

    The members of a large stack train in groups, as many at the same time as there are cores.

    The semantics are those of ``model.fit`` with ``ReduceLROnPlateau``,
    ``EarlyStopping(restore_best_weights=True)`` and ``TerminateOnNaN``. Every member of a stack
    equals the one trained alone, up to rounding: it has its own first weights, order of rows,
    learning rate, plateaus and early stopping.

    Parameters
    ----------
    job : TrainingJob
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
        One entry for each seed: a FloatingPointError if no epoch of the member had a finite loss.

    Raises
    ------
    InterruptedError
        If `cancelled` returned True.

    Examples
    --------
    >>> import numpy as np
    >>> from skuq.networks import GaussianHead, build_mlp
    >>> from skuq.tables import TrainingData
    >>> from skuq.training import Recipe, TrainingJob, train
    >>> x = np.linspace(-1, 1, 20)[:, None]
    >>> data = TrainingData.without_validation(x, x**2, np.ones(20))
    >>> model = build_mlp((1,), 2, hidden_units=(8,))
    >>> job = TrainingJob.of_model(model, GaussianHead(), Recipe(epochs=4), seeds=[0])
    >>> (member,) = train(job, data)
    >>> member.n_epochs, member.n_weights
    (4, 34)
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
    """Train several jobs on the same data, with one group of members at a time on each core.

    Parameters
    ----------
    jobs : sequence of TrainingJob
    data, cancelled, report, deadline :
        See `train`.

    Returns
    -------
    list of lists
        The result of `train` for each job.
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
    """Train the networks of a job for some epochs, and return the state of the paused run.

    ``train(dataclasses.replace(job, start=state), data)`` continues the run, and returns exactly
    the members of an uninterrupted one.

    Parameters
    ----------
    job : TrainingJob
    data : TrainingData
    n_epochs : int
        Number of epochs, in addition to those of a paused run that the job starts from. Training
        ends earlier after the recipe's `epochs`, or when all members have stopped.
    cancelled, report : callable, optional
        See `train`.

    Examples
    --------
    >>> import dataclasses
    >>> import numpy as np
    >>> from skuq.networks import GaussianHead, build_mlp
    >>> from skuq.tables import TrainingData
    >>> from skuq.training import Recipe, TrainingJob, train, train_epochs
    >>> x = np.linspace(-1, 1, 20)[:, None]
    >>> data = TrainingData.without_validation(x, x**2, np.ones(20))
    >>> model = build_mlp((1,), 2, hidden_units=(8,))
    >>> job = TrainingJob.of_model(model, GaussianHead(), Recipe(epochs=4), [0])
    >>> paused = train_epochs(job, data, 1)
    >>> (member,) = train(dataclasses.replace(job, start=paused), data)
    >>> member.n_epochs
    4
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
    """Train one network from scratch: make a job of a model, and `train` it.

    Parameters
    ----------
    model : keras.Model or EpistemicNetwork
        Template. It is not changed, and its weights are not used.
    head, recipe, seed :
        See `TrainingJob`; here for one member.
    data, cancelled, report :
        See `train`.
    **fields : dict
        Other fields of the `TrainingJob`. Fields with one entry for each member have one entry.

    Raises
    ------
    FloatingPointError
        If no epoch had a finite loss.

    Examples
    --------
    >>> import numpy as np
    >>> from skuq.networks import GaussianHead, build_mlp
    >>> from skuq.tables import TrainingData
    >>> from skuq.training import Recipe, train_member
    >>> x = np.linspace(-1, 1, 20)[:, None]
    >>> data = TrainingData.without_validation(x, x**2, np.ones(20))
    >>> model = build_mlp((1,), 2, hidden_units=(8,))
    >>> train_member(model, GaussianHead(), Recipe(epochs=4), data, seed=0).n_epochs
    4
    """
    job = TrainingJob.of_model(model, head, recipe, [seed], **fields)
    return only_member(train(job, data, cancelled=cancelled, report=report))


def only_member(members: list[Member | FloatingPointError]) -> Member:
    """Return the only member of a job, or raise its error."""
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
    """Train K networks of one architecture as one program (a stack).

    Every member equals the result of `train_member`, up to rounding: it has its own first
    weights, order of rows, learning rate, plateaus and early stopping.

    Parameters
    ----------
    model : keras.Model or EpistemicNetwork
        Template. It is not changed, and its weights are not used.
    head, recipes, seeds :
        See `TrainingJob`.
    data, cancelled, report :
        See `train`.
    **fields : dict
        Other fields of the `TrainingJob`.

    Returns
    -------
    list of K Member or FloatingPointError
        A FloatingPointError if no epoch of the member had a finite loss.

    Raises
    ------
    ValueError
        If recipes differ in what a stack shares, or counts disagree.

    Examples
    --------
    >>> import numpy as np
    >>> from skuq.networks import GaussianHead, build_mlp
    >>> from skuq.tables import TrainingData
    >>> from skuq.training import Recipe, train_stack
    >>> x = np.linspace(-1, 1, 20)[:, None]
    >>> data = TrainingData.without_validation(x, x**2, np.ones(20))
    >>> model = build_mlp((1,), 2, hidden_units=(8,))
    >>> members = train_stack(model, GaussianHead(), Recipe(epochs=4), data, seeds=[0, 1, 2])
    >>> len(members)
    3
    """
    job = TrainingJob.of_model(model, head, recipes, seeds, stacked=True, **fields)
    return train(job, data, cancelled=cancelled, report=report)
