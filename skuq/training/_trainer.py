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
from skuq.catalog._records import (
    FoldedMember,
    Member,
    TrialBudget,
    TrialOutcome,
    TrialRecord,
)
from skuq.exceptions import SearchSpaceError
from skuq.networks._plan import make_plan
from skuq.networks._search_space import SearchSpace
from skuq.tables._training_data import TrainingData
from skuq.training._checks import build_checked
from skuq.training._folds import Fold, fold_jobs, folded_member, mean_score
from skuq.training._job import TrainingJob
from skuq.training._joint import (
    JointTraining,
    seconds_needed,
    share_in_time,
    with_share_of_epochs,
)
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
        Number of epochs of a configuration that does not decide it.
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
    max_epochs : int, optional
        Maximum number of epochs, also of a configuration that decides it.
    objective : callable, optional
        ``objective(member) -> float``, which the search minimises instead of `member.score`.
    """

    search_space: SearchSpace
    data: TrainingData
    head: Any
    epochs: int
    held_out: np.ndarray | None = None
    folds: Sequence[Fold] | None = None
    timeout: float | None = None
    max_epochs: int | None = None
    objective: Callable[[Any], float] | None = None

    needs_backend = True  # a worker process should import it before all else
    takes_budget = True
    _cancelled = False

    def cancel(self) -> None:
        """Let trainings that run in other threads end at their next slice."""
        self._cancelled = True

    def __call__(
        self,
        configuration: Mapping[str, Any],
        seed: int,
        budget: TrialBudget | None = None,
        **changes: Any,
    ) -> Any:
        """Build, train, predict the validation rows.

        Parameters
        ----------
        configuration : mapping
        seed : int
        budget : TrialBudget, optional
            Stages at which the trial may be discarded, and its time.
        **changes : dict
            Fields of the recipe that are not as the configuration decides them.

        Returns
        -------
        Member, FoldedMember or TrialOutcome
            The last if there is a budget.

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
            if budget is not None:
                return self._within(budget, configuration, seed, cancelled)
            training = JointTraining(self._jobs(configuration, seed, **changes))
            training.advance(cancelled=cancelled)
            return self._result(training)

    def _within(
        self,
        budget: TrialBudget,
        configuration: Mapping[str, Any],
        seed: int,
        cancelled: Callable[[], bool],
    ) -> TrialOutcome:
        """Train stage by stage, as far and as long as the budget allows."""
        started, jobs = time.monotonic(), self._jobs(configuration, seed)
        share, deadline, scores = 1.0, started + budget.seconds, []
        if budget.shorten and budget.seconds < math.inf:
            needed, measured = seconds_needed(jobs)
            share = share_in_time(needed, deadline - time.monotonic())
            data = [own for _, own in jobs]
            shortened = [with_share_of_epochs(job, share) for job in measured]
            jobs = list(zip(shortened, data))
            # At least one epoch is trained, however little time there is.
            share = float(shortened[0].recipe.epochs / measured[0].recipe.epochs)
        training = JointTraining(jobs)
        # Scores of a shortened training are not those of others after the same share.
        for stage, largest in budget.stages if share == 1 else ():
            training.advance(stage, cancelled=cancelled, deadline=deadline)
            if time.monotonic() > deadline:
                break
            so_far = self._result(training, with_moments=False)
            scores.append(self._score(so_far))
            if not scores[-1] <= largest:
                return TrialOutcome(None, self._objective(so_far), tuple(scores), stage)
        training.advance(cancelled=cancelled, deadline=deadline)
        result = self._result(training)
        return TrialOutcome(result, self._objective(result), tuple(scores), share * training.share)

    def _jobs(
        self, configuration: Mapping[str, Any], seed: int, **changes: Any
    ) -> list[tuple[TrainingJob, TrainingData]]:
        """Make the jobs of a trial, each with its data: one, or those of the folds."""
        make_job = self._job_maker(configuration, **changes)
        if self.folds is None:
            return [(make_job([seed], held_out=self.held_out), self.data)]
        seeds = [trial_seed(seed, k) for k in range(len(self.folds))]
        return fold_jobs(make_job, self.data, self.folds, seeds)

    def _result(
        self, training: JointTraining, *, with_moments: bool = True
    ) -> Member | FoldedMember:
        """Make the record of what is trained so far, or raise the error of a diverged network."""
        networks = [only_member([member]) for of_job in training.members() for member in of_job]
        if self.folds is None:
            return networks[0]
        return folded_member(
            networks, self.data, self.folds, self.head, self.held_out, with_moments
        )

    def _objective(self, result: Member | FoldedMember) -> float:
        """Compute what the search minimises, of a trial that has ended or is discarded."""
        score = self._score(result)
        if self.objective is None:
            return score
        if isinstance(result, Member) and score != result.score:
            # The score that all trials share, instead of this network's own loss.
            result = FoldedMember((result,), result.held_out, score)
        return float(self.objective(result))

    def _score(self, result: Member | FoldedMember) -> float:
        """Score a trial by the same loss as every other, whatever it was trained on."""
        n_valid, one_loss = len(self.data.x_valid), not hasattr(self.search_space, "head")
        if isinstance(result, FoldedMember) or not n_valid or one_loss:
            return result.score
        raw = np.asarray(result.held_out)[:n_valid]
        return mean_score(self.head, self.data.y_valid, raw, self.data.weight_valid)

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
        return functools.partial(TrainingJob.of_model, model, self._head(configuration), recipe)

    def _head(self, configuration: Mapping[str, Any]) -> Any:
        """The head that a configuration trains with."""
        decide = getattr(self.search_space, "head", None)
        return self.head if decide is None else decide(configuration, self.head)

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
                self._head(configurations[0]),
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
        epochs = decided.get("epochs", self.epochs)
        if self.max_epochs is not None:
            epochs = min(epochs, self.max_epochs)
        return Recipe(**{**decided, "epochs": epochs})

    def build(self, configuration: Mapping[str, Any]) -> Any:
        """The network of a configuration, checked."""

        def build(input_shape: tuple[int, ...], n_raw: int) -> Any:
            return self.search_space.build(configuration, input_shape, n_raw)

        return build_checked(build, self.data.x.shape[1:], self.head.n_raw, "The search space")


class MemberRepeater:
    """``({"trial": k, "round": r}, seed, budget) -> TrialOutcome``: train a trial once more.

    Parameters
    ----------
    trainer : MemberTrainer
        Of the search.
    trials : sequence of TrialRecord
        Those that may be asked for, by trial number.
    folds : sequence of sequence of pairs of ndarray, optional
        Folds of each round; without them only seeds differ.
    """

    needs_backend = True
    takes_budget = True

    def __init__(
        self,
        trainer: MemberTrainer,
        trials: Sequence[TrialRecord],
        folds: Sequence[Sequence[Fold]] | None = None,
    ):
        self._trials = {record.trial_number: record for record in trials}
        trainer = replace(trainer, objective=None)  # not the search's own, which may be cancelled
        self._trainers = [trainer]
        if folds is not None:
            self._trainers = [replace(trainer, folds=own) for own in folds]

    def cancel(self) -> None:
        """Let trainings that run in other threads end at their next slice."""
        for trainer in self._trainers:
            trainer.cancel()

    def __call__(self, asked: Mapping[str, int], seed: int, budget: TrialBudget) -> TrialOutcome:
        """Train the configuration of a trial with another seed, under the folds of the round."""
        trainer = self._trainers[asked["round"] % len(self._trainers)]
        configuration = self._trials[asked["trial"]].configuration
        outcome: TrialOutcome = trainer(configuration, seed, budget)
        return outcome


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
