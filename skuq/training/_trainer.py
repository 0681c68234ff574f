"""The functions that a search evaluates: train a configuration, refit a trial.

Importing this module loads no backend: a trainer is made in the caller's process and
often used only in its workers.
"""

from __future__ import annotations

import contextlib
import functools
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from skuq._seeds import trial_seed
from skuq.catalog._records import FoldedMember, Member, TrialRecord
from skuq.exceptions import SearchSpaceError
from skuq.networks._plan import make_plan
from skuq.networks._search_space import SearchSpace
from skuq.tables._training_data import TrainingData
from skuq.training._checks import build_checked
from skuq.training._folds import Fold, folded_member, train_folds
from skuq.training._job import TrainingJob
from skuq.training._recipe import Recipe, stack_conflict
from skuq.training._train import only_member, train


@dataclass(eq=False, repr=False)
class MemberTrainer:
    """``(configuration, seed) -> Member``; can be pickled and sent to a worker once.

    Parameters
    ----------
    search_space : SearchSpace
        Builds the network and decides the recipe.
    data : TrainingData
    head : object
        From raw outputs to a distribution: `n_raw` and ``loss(y, raw)``.
    epochs : int
        Largest number of epochs, unless the configuration decides it.
    held_out : ndarray of shape (n_held_out, ...), optional
        Standardised inputs that each member predicts once it is trained, instead of the
        validation rows. With `folds` they follow the rows of the folds, and are predicted by all
        networks of a member: its numbers are those of their mixture's moments.
    folds : sequence of pairs of ndarray, optional
        Rows of ``data.x`` to train on and to validate on. One network is trained for each pair,
        and together they are the `FoldedMember` of the configuration. Every row validates one of
        them; `data` has no validation rows of its own.
    timeout : float, optional
        Seconds one call may take, of `together` for all its members. Training looks at the
        clock about once a second; compilation does not.
    """

    search_space: SearchSpace
    data: TrainingData
    head: Any
    epochs: int
    held_out: np.ndarray | None = None
    folds: Sequence[Fold] | None = None
    timeout: float | None = None

    needs_backend = True  # a worker process should import it before all else
    _cancelled = False

    def cancel(self) -> None:
        """Let trainings that run in other threads end at their next slice."""
        self._cancelled = True

    def __call__(
        self, configuration: Mapping[str, Any], seed: int, **changes: Any
    ) -> Member | FoldedMember:
        """Build, train, predict the validation rows.

        Parameters
        ----------
        configuration : mapping
        seed : int
        **changes : dict
            Fields of the recipe that are not as the configuration decides them.

        Raises
        ------
        SearchSpaceError
            If the space gives no usable network or recipe.
        FloatingPointError
            If training diverged before its first epoch had ended.
        TimeoutError
            If it took longer than `timeout`.
        """
        with self._in_time() as cancelled:
            if self.folds is None:
                job = self.job(configuration, seed, **changes)
                return only_member(train(job, self.data, cancelled=cancelled))
            seeds = [trial_seed(seed, k) for k in range(len(self.folds))]
            make_job = self._job_maker(configuration, **changes)
            networks = train_folds(make_job, self.data, self.folds, seeds, cancelled=cancelled)
            return folded_member(networks, self.data, self.folds, self.head, self.held_out)

    def job(self, configuration: Mapping[str, Any], seed: int, **changes: Any) -> TrainingJob:
        """Make the job of a configuration's network on the training rows.

        Parameters
        ----------
        configuration, seed, **changes
            As in a call.
        """
        return self._job_maker(configuration, **changes)([seed], held_out=self.held_out)

    def _job_maker(
        self, configuration: Mapping[str, Any], **changes: Any
    ) -> Callable[..., TrainingJob]:
        """Make the function ``(seeds, **fields) -> TrainingJob`` of a configuration."""
        recipe = replace(self.recipe(configuration), **changes)
        model = self.build(configuration)
        return functools.partial(TrainingJob.of_model, model, self.head, recipe)

    def fit_together(self, configurations: Sequence[Mapping[str, Any]]) -> bool:
        """Whether these configurations of one architecture can be trained `together`.

        Networks that run through Keras could, but one after the other inside of one large
        program, which takes long to compile. Folds are trained in stacks already.
        """
        if self.folds is not None:
            return False
        plan = make_plan(self.build(configurations[0]).to_json())
        return plan is not None and not stack_conflict([self.recipe(c) for c in configurations])

    def together(
        self, configurations: Sequence[Mapping[str, Any]], seeds: Sequence[int]
    ) -> list[Member | FloatingPointError]:
        """Train members of one architecture as one stack.

        Returns
        -------
        list of Member or FloatingPointError
            An error stands for a member that diverged.

        Raises
        ------
        ValueError
            If the configurations differ in more than the members of a stack may.
        TimeoutError
            If the stack took longer than `timeout`.
        """
        with self._in_time() as cancelled:
            job = TrainingJob.of_model(
                self.build(configurations[0]),
                self.head,
                [self.recipe(configuration) for configuration in configurations],
                seeds,
                stacked=True,
                held_out=self.held_out,
            )
            return train(job, self.data, cancelled=cancelled)

    @contextlib.contextmanager
    def _in_time(self) -> Iterator[Callable[[], bool]]:
        """Give the function that training asks between slices whether it should end."""
        # The clock of this process, hence started here: a trainer is pickled.
        deadline = math.inf if self.timeout is None else time.monotonic() + self.timeout
        try:
            yield lambda: self._cancelled or time.monotonic() > deadline
        except InterruptedError:
            if self._cancelled or time.monotonic() <= deadline:
                raise
            raise TimeoutError(
                f"The trial took longer than trial_timeout={self.timeout:g} s."
            ) from None

    def recipe(self, configuration: Mapping[str, Any]) -> Recipe:
        """The training recipe of a configuration."""
        decided = self.search_space.recipe(configuration)
        unknown = sorted(set(decided) - set(Recipe.field_names()))
        if unknown:
            raise SearchSpaceError(
                f"The search space decides {unknown}, which a recipe does not have. "
                f"It may decide {Recipe.field_names()}."
            )
        return Recipe(**{"epochs": self.epochs, **decided})

    def build(self, configuration: Mapping[str, Any]) -> Any:
        """The network of a configuration, checked."""

        def build(input_shape: tuple[int, ...], n_raw: int) -> Any:
            return self.search_space.build(configuration, input_shape, n_raw)

        return build_checked(build, self.data.x.shape[1:], self.head.n_raw, "The search space")


class MemberRefitter:
    """``({"trial": k}, seed) -> Member``: refit the network of a finished trial on all rows.

    Parameters
    ----------
    trainer : MemberTrainer
        Of the search.
    trials : sequence of TrialRecord
        Those that may be asked for, by trial number.
    """

    needs_backend = True

    def __init__(self, trainer: MemberTrainer, trials: Sequence[TrialRecord]):
        self._trials = {record.trial_number: record for record in trials}
        self._trainer = replace(trainer, data=trainer.data.all_rows(), held_out=None, folds=None)

    def cancel(self) -> None:
        """Let trainings that run in other threads end at their next slice."""
        self._trainer.cancel()

    def __call__(self, asked: Mapping[str, int], seed: int) -> Member:
        """Train for as many epochs, and at the same rates, as were best in the search.

        A refit has no rows to stop by. Its epochs are as many as the trial's network had at its
        best, and its learning rates those that its plateaus had led to, or the folds' averages of
        both. Schedules are run through in these epochs.

        Raises
        ------
        FloatingPointError
            If training diverged.
        TimeoutError
            If it took longer than the trainer's `timeout`.
        """
        record = self._trials[asked["trial"]]
        member: Any = self._trainer(
            record.configuration,
            record.seed,
            epochs=1 + record.result.best_epoch,
            epoch_rates=_rates(record.result),
            reduce_lr_patience=None,
            early_stopping_patience=None,
            keep="last",
        )
        refitted: Member = member
        return refitted


def _rates(member: Member | FoldedMember) -> list[float]:
    """Factors of the learning rate until the best epoch; of folds their geometric mean."""
    rates = [network.history["learning_rate"] for network in member.networks]
    epochs = np.arange(1 + member.best_epoch)
    logs = [np.log(np.take(own, epochs, mode="clip") / own[0]) for own in rates]
    factors: list[float] = np.exp(np.mean(logs, axis=0)).tolist()
    return factors
