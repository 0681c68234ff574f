"""Training, the public functions. Importing this module loads no backend; calling it does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from skuq import training
from skuq.catalog._records import Member
from skuq.networks._head_protocol import Head
from skuq.tables._training_data import TrainingData
from skuq.training._job import Split, TrainingJob, TrainingState
from skuq.training._recipe import Recipe
from skuq.training._templates import FirstValues

__all__ = ["only_member", "train", "train_epochs", "train_member", "train_stack"]


def train(
    job: TrainingJob,
    data: TrainingData,
    *,
    cancelled: Callable[[], bool] | None = None,
    report: Callable[[int], Any] | None = None,
) -> list[Member | FloatingPointError]:
    """Train the networks of a job; each one's best epoch becomes a member.

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
        ``report(n_epochs)`` after each slice of a run, with the slice's number of epochs.

    Returns
    -------
    list of Member or FloatingPointError
        One for each seed. An error stands for a member none of whose epochs had a finite loss.

    Raises
    ------
    InterruptedError
        If `cancelled` returned True.
    """
    run = training.TrainingRun(job, data)  # loads the backend
    run.advance(cancelled=cancelled, report=report)
    members: list[Member | FloatingPointError] = run.members()
    return members


def train_epochs(
    job: TrainingJob,
    data: TrainingData,
    n_epochs: int,
    *,
    cancelled: Callable[[], bool] | None = None,
    report: Callable[[int], Any] | None = None,
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
    initial: FirstValues | None = None,
    permutation: Callable[[int], Any] | None = None,
    jit: bool | None = None,
    cancelled: Callable[[], bool] | None = None,
    held_out: np.ndarray | None = None,
    artificial: Callable[..., Any] | None = None,
    report: Callable[[int], Any] | None = None,
) -> Member:
    """Train one network from scratch: `train` of a job made of a model.

    Parameters
    ----------
    model : keras.Model or EpistemicNetwork
        A template; it is neither changed nor are its weights used.
    head : object
        Hashable, with `n_raw` and ``loss(y, raw)``. One whose loss has terms for inputs
        without targets also has ``row_loss(y, raw, settings)``, ``artificial_loss(raw,
        settings)`` and `detached`, the beginning of the names of those layers whose weights
        these two do not move (or None). Where its `sums_rows` is true, a batch's loss is the
        sum over its rows, not their mean.
    recipe : Recipe
    data : TrainingData
        Without validation rows the training loss is watched in their place.
    seed : int
        Decides first weights, batches and dropout.
    initial : tuple of (ndarray, list of ndarray), optional
        First weights (flat) and state, instead of drawing them.
    permutation : callable, optional
        ``permutation(n_train)`` gives each epoch's order of the rows, instead of a
        shuffle that `seed` decides.
    jit : bool, optional
        Compile through XLA or not; by default what is expected to end sooner.
    cancelled : callable, optional
        Asked between slices; when it says True, training ends with InterruptedError.
    held_out : ndarray of shape (n_held_out, ...), optional
        Inputs that the trained network predicts for the record, instead of `data.x_valid`.
    artificial : callable, optional
        ``artificial(n, rng) -> (n, ...)``: standardised inputs without targets, drawn for
        every step where the recipe's `n_artificial` is not 0.
    report : callable, optional
        ``report(n_epochs)`` after each slice of a run: how many epochs it had.

    Raises
    ------
    FloatingPointError
        If no epoch had a finite loss.
    """
    job = TrainingJob.of_model(
        model,
        head,
        recipe,
        [seed],
        start=None if initial is None else [initial],
        permutations=None if permutation is None else [permutation],
        jit=jit,
        held_out=held_out,
        artificial=artificial,
    )
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
    splits: Sequence[Split] | None = None,
    initial: Sequence[FirstValues] | None = None,
    permutations: Sequence[Callable[[int], Any]] | None = None,
    jit: bool | None = None,
    cancelled: Callable[[], bool] | None = None,
    held_out: np.ndarray | None = None,
    artificial: Callable[..., Any] | None = None,
    report: Callable[[int], Any] | None = None,
) -> list[Member | FloatingPointError]:
    """Train K networks of one architecture as one program: `train` of a job made of a model.

    Every member becomes what `train_member` would have made of it, up to rounding: it
    has its own first weights, order of rows, learning rate, plateaus and early stopping.

    Parameters
    ----------
    model, head, data :
        As in `train_member`.
    recipes : Recipe or sequence of K
        They may differ in learning_rate, reduce_lr_patience, reduce_lr_factor,
        early_stopping_patience, clip_norm, l2, weight_decay, dropout, loss_settings and
        rate_factors_of_layers.
    seeds : sequence of K int
    splits : sequence of K pairs of (train rows, validation rows or None), optional
        Rows of ``data.x`` that each member trains and validates on, instead of all of
        them and ``data.x_valid`` (which None keeps). All members have equally many. Rows
        may repeat, as in a bootstrap sample.
    initial, permutations : sequence of K, optional
        For each member as in `train_member`.
    jit, cancelled, held_out :
        As in `train_member`; `held_out` is not for members with validation rows of their own.
    artificial : callable, optional
        As in `train_member`; each member draws by its own seed.
    report : callable, optional
        As in `train_member`.

    Returns
    -------
    list of K Member or FloatingPointError
        An error stands for a member none of whose epochs had a finite loss.

    Raises
    ------
    ValueError
        If recipes differ in what a stack shares, or counts disagree.
    """
    job = TrainingJob.of_model(
        model,
        head,
        recipes,
        seeds,
        stacked=True,
        splits=splits,
        start=initial,
        permutations=permutations,
        jit=jit,
        held_out=held_out,
        artificial=artificial,
    )
    return train(job, data, cancelled=cancelled, report=report)
