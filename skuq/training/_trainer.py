"""What a search calls for each configuration.

Importing this module loads no backend: a trainer is made in the caller's process and
often used only in its workers.
"""

from __future__ import annotations

from collections.abc import Mapping

from skuq.catalog._records import Member
from skuq.exceptions import SearchSpaceError
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
    """

    def __init__(self, search_space: SearchSpace, data: TrainingData, head, epochs: int):
        self.search_space = search_space
        self.data = data
        self.head = head
        self.epochs = epochs
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
        """
        from skuq.training._engine import pad, train_member

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
            cancelled=lambda: self._cancelled,
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
