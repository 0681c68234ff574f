"""Combine a space of architectures with other training hyperparameters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from skuq._registry import saved_as
from skuq._space import Real, Space
from skuq.networks._search_space import Decisions, SearchSpace

#: Tuned on training parts of pendigits and letter; see docs/methods/nes.md.
TABLE_SETTINGS = {
    "optimizer": "adam",
    "schedule": "cosine",
    "reduce_lr_patience": None,
    "early_stopping_patience": None,
}


@saved_as("networks.WithTraining")
@dataclass(frozen=True)
class WithTraining:
    """Architectures of another space, with these training hyperparameters.

    Parameters
    ----------
    space : SearchSpace
        Space of the architectures; its own training hyperparameters are not used.
    hyperparameters : Space
        Fields of a training recipe that can be searched, with their defaults.
    settings : mapping
        Fields of a training recipe that are the same for all configurations.

    Examples
    --------
    >>> from skuq.networks import DenseSkipSpace, Real, Space, WithTraining
    >>> rate = Space((Real("learning_rate", 1e-3, 1e-2, log=True),))
    >>> space = WithTraining(DenseSkipSpace(3), rate, {"epochs": 50, "batch_size": 32})
    >>> space.recipe({"learning_rate": 0.005})
    {'epochs': 50, 'batch_size': 32, 'learning_rate': 0.005}
    """

    space: SearchSpace
    hyperparameters: Space
    settings: Mapping

    @property
    def takes_images(self):
        return getattr(self.space, "takes_images", None)

    def decisions(self, input_shape=None, n_outputs=None) -> Decisions:
        """List the space's architecture decisions and these hyperparameters."""
        architecture = self.space.decisions(input_shape, n_outputs).architecture
        return Decisions(architecture, self.hyperparameters)

    def build(self, configuration: Mapping, input_shape: tuple, n_outputs: int):
        """Build the Keras model of a configuration in the space."""
        return self.space.build(configuration, input_shape, n_outputs)

    def recipe(self, configuration: Mapping) -> dict:
        """Join the fixed settings with the configuration's hyperparameters."""
        return {**self.settings, **self.hyperparameters.restrict(configuration)}


def table_training(space: SearchSpace, n_rows: int) -> WithTraining:
    """Combine a space for tables with NES' training: one recipe for all architectures.

    The hyperparameters are those of hyper ensembles, learning rate and L2 regularisation (NES,
    appendix C.4). Batches have 128 rows, and down to 16 for small tables, for which an epoch
    would otherwise have only one or two steps.
    """
    hyperparameters = Space(
        (
            Real("learning_rate", 3e-4, 3e-2, log=True, default=3e-3),
            Real("l2", 1e-7, 1e-3, log=True, default=1e-5),
        )
    )
    batch_size = int(np.clip(n_rows // 32, 16, 128))
    return WithTraining(space, hyperparameters, {**TABLE_SETTINGS, "batch_size": batch_size})
