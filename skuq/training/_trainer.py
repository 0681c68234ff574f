"""What a search calls for each configuration.

Importing this module loads no backend: a trainer is made in the caller's process and
often used only in its workers.
"""

from __future__ import annotations

import contextlib
import copy
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from skuq._seeds import trial_seed
from skuq.catalog._records import FoldedMember, Member, TrialRecord
from skuq.exceptions import SearchSpaceError
from skuq.networks._plan import make_plan
from skuq.networks._search_space import SearchSpace
from skuq.tables._training_data import TrainingData
from skuq.training._checks import build_checked
from skuq.training._recipe import Recipe

__all__ = ["MemberRefitter", "MemberTrainer"]

_LARGEST_STACK = 16  # folds side by side
_LIKE_WEIGHTS = 0.1  # of the folds of a stack, whose losses are not each divided by their weight


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

    def __init__(
        self,
        search_space: SearchSpace,
        data: TrainingData,
        head,
        epochs: int,
        held_out=None,
        folds: Sequence[tuple[np.ndarray, np.ndarray]] | None = None,
        timeout: float | None = None,
    ):
        self.search_space = search_space
        self.data = data
        self.head = head
        self.epochs = epochs
        self.held_out = held_out
        self.folds = folds
        self.timeout = timeout
        self._padded = None  # the data as tensors, made once a process
        self._cancelled = False

    needs_backend = True  # a worker process should import it before all else

    def cancel(self):
        """Let trainings that run in other threads end at their next slice."""
        self._cancelled = True

    def __getstate__(self):
        return {**self.__dict__, "_padded": None}

    def __call__(self, configuration: Mapping, seed: int) -> Member | FoldedMember:
        """Build, train, predict the validation rows.

        Raises
        ------
        SearchSpaceError
            If the space gives no usable network or recipe.
        FloatingPointError
            If training diverged before its first epoch had ended.
        TimeoutError
            If it took longer than `timeout`.
        """
        return self.train(configuration, seed)

    def train(self, configuration: Mapping, seed: int, **changes) -> Member | FoldedMember:
        """The same with other fields of the recipe."""
        from skuq.training._engine import pad, train_member

        with self._in_time() as cancelled:
            model = self.build(configuration)
            recipe = replace(self.recipe(configuration), **changes)
            if self.folds is not None:
                return self._train_folds(model, recipe, seed, cancelled)
            if self._padded is None:
                self._padded = pad(self.data)
            return train_member(
                model,
                self.head,
                recipe,
                self.data,
                seed,
                padded=self._padded,
                cancelled=cancelled,
                held_out=self.held_out,
            )

    def _train_folds(self, model, recipe, seed, cancelled):
        from skuq.training._predict import predict_members

        seeds = [trial_seed(seed, k) for k in range(len(self.folds))]
        train = self._one_by_one
        if make_plan(model.to_json()) is not None and self._folds_are_alike:
            train = self._side_by_side
        networks = train(model, recipe, seeds, cancelled)
        for network in networks:
            if isinstance(network, FloatingPointError):
                raise network
        raw = np.empty((len(self.data.x), self.head.n_raw), dtype="float32")
        for network, (_, valid) in zip(networks, self.folds):
            raw[valid] = network.held_out[: len(valid)]
        likelihood = self.head.log_likelihood(self.data.y.astype("float64"), raw.astype("float64"))
        score = -np.average(likelihood, weights=self.data.weight.astype("float64"))
        score = float(score / self.data.y.shape[1])
        if self.held_out is not None:
            apart = self.head.pooled(predict_members(networks, self.held_out, once=True))
            raw = np.concatenate([raw, apart.astype("float32")])
        return FoldedMember(tuple(n.with_held_out(None) for n in networks), raw, score)

    @property
    def _folds_are_alike(self):
        """Whether sizes and weights of folds differ so little that a stack trains them alike."""
        sizes = [[len(rows) for rows in fold] for fold in self.folds]
        weights = [self.data.weight[train].mean(dtype=float) for train, _ in self.folds]
        return (np.ptp(sizes, axis=0) <= 1).all() and np.ptp(weights) <= _LIKE_WEIGHTS

    def _side_by_side(self, model, recipe, seeds, cancelled):
        from skuq.training._engine import train_stack

        # Smaller folds are filled up with a row of no weight.
        data, n = self.data.with_empty_row(), len(self.data.x)
        largest = np.max([[len(rows) for rows in fold] for fold in self.folds], axis=0)
        splits = [
            tuple(
                np.pad(rows, (0, size - len(rows)), constant_values=n)
                for rows, size in zip(fold, largest)
            )
            for fold in self.folds
        ]
        networks = []
        for part in np.array_split(np.arange(len(seeds)), -(-len(seeds) // _LARGEST_STACK)):
            networks += train_stack(
                model,
                self.head,
                recipe,
                data,
                [seeds[k] for k in part],
                splits=[splits[k] for k in part],
                cancelled=cancelled,
            )
        return networks

    def _one_by_one(self, model, recipe, seeds, cancelled):
        from skuq.training._engine import train_member

        return [
            train_member(
                model, self.head, recipe, self.data.divided(*fold), seed, cancelled=cancelled
            )
            for fold, seed in zip(self.folds, seeds)
        ]

    @contextlib.contextmanager
    def _in_time(self):
        """Gives what training asks between slices: whether to end, by the clock or `cancel`."""
        # The clock of this process, hence not kept: a trainer is pickled.
        deadline = math.inf if self.timeout is None else time.monotonic() + self.timeout
        try:
            yield lambda: self._cancelled or time.monotonic() > deadline
        except InterruptedError:
            if self._cancelled or time.monotonic() <= deadline:
                raise
            raise TimeoutError(
                f"The trial took longer than trial_timeout={self.timeout:g} s."
            ) from None

    def fit_together(self, configurations: Sequence[Mapping]) -> bool:
        """Whether these configurations of one architecture can be trained `together`.

        Networks that run through Keras could, but one after the other inside of one large
        program, which takes long to compile. Folds are side by side already.
        """
        if self.folds is not None:
            return False
        from skuq.training._engine import why_not_together

        plan = make_plan(self.build(configurations[0]).to_json())
        return plan is not None and not why_not_together([self.recipe(c) for c in configurations])

    def together(self, configurations: Sequence[Mapping], seeds: Sequence[int]) -> list:
        """Members of one architecture, trained as one stack.

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
        from skuq.training._engine import train_stack

        with self._in_time() as cancelled:
            return train_stack(
                self.build(configurations[0]),
                self.head,
                [self.recipe(configuration) for configuration in configurations],
                self.data,
                seeds,
                cancelled=cancelled,
                held_out=self.held_out,
            )

    def recipe(self, configuration: Mapping) -> Recipe:
        """The training recipe of a configuration."""
        decided = self.search_space.recipe(configuration)
        unknown = sorted(set(decided) - set(Recipe.field_names()))
        if unknown:
            raise SearchSpaceError(
                f"The search space decides {unknown}, which a recipe does not have. "
                f"It may decide {Recipe.field_names()}."
            )
        return Recipe(**{"epochs": self.epochs, **decided})

    def build(self, configuration: Mapping):
        """The network of a configuration, checked."""

        def build(input_shape, n_raw):
            return self.search_space.build(configuration, input_shape, n_raw)

        return build_checked(build, self.data.x.shape[1:], self.head.n_raw, "The search space")


class MemberRefitter:
    """``({"trial": k}, seed) -> Member``: the network of a finished trial, anew on all rows.

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
        self._trainer = copy.copy(trainer)
        self._trainer.data = trainer.data.all_rows()
        self._trainer.folds = self._trainer.held_out = None
        self._trainer._cancelled = False  # as a search that was cut short leaves it

    def cancel(self):
        """As of a `MemberTrainer`."""
        self._trainer.cancel()

    def __call__(self, asked: Mapping, seed: int) -> Member:
        """Train as long and as fast as was best in the search.

        There is nothing to stop by: epochs are as many as the trial's network had at its best, and
        learning rates those that its plateaus had led to, or the folds' averages of both. Schedules
        are run through in these epochs.

        Raises
        ------
        FloatingPointError
            If training diverged.
        TimeoutError
            If it took longer than the trainer's `timeout`.
        """
        record = self._trials[asked["trial"]]
        return self._trainer.train(
            record.configuration,
            record.seed,
            epochs=1 + record.result.best_epoch,
            epoch_rates=_rates(record.result),
            reduce_lr_patience=None,
            early_stopping_patience=None,
            keep="last",
        )


def _rates(member):
    """Factors of the learning rate until the best epoch; of folds their geometric mean."""
    rates = [network.history["learning_rate"] for network in member.networks]
    epochs = np.arange(1 + member.best_epoch)
    logs = [np.log(np.take(own, epochs, mode="clip") / own[0]) for own in rates]
    return np.exp(np.mean(logs, axis=0)).tolist()
