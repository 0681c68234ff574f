"""What a search calls for each configuration.

Importing this module loads no backend: a trainer is made in the caller's process and
often used only in its workers.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Mapping, Sequence

from skuq.catalog._records import Member
from skuq.exceptions import SearchSpaceError
from skuq.networks._plan import make_plan
from skuq.networks._search_space import SearchSpace
from skuq.tables._training_data import TrainingData
from skuq.training._checks import build_checked
from skuq.training._recipe import Recipe

__all__ = ["MemberTrainer"]


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
        validation rows.
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
        timeout: float | None = None,
    ):
        self.search_space = search_space
        self.data = data
        self.head = head
        self.epochs = epochs
        self.held_out = held_out
        self.timeout = timeout
        self._padded = None  # the data as tensors, made once a process
        self._cancelled = False

    needs_backend = True  # a worker process should import it before all else

    def cancel(self):
        """Let trainings that run in other threads end at their next slice."""
        self._cancelled = True

    def __getstate__(self):
        return {**self.__dict__, "_padded": None}

    def __call__(self, configuration: Mapping, seed: int) -> Member:
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
        from skuq.training._engine import pad, train_member

        with self._in_time() as cancelled:
            model, recipe = self.build(configuration), self.recipe(configuration)
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
        program, which takes long to compile.
        """
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
