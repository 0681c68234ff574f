"""Combine a space of architectures with other training hyperparameters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from skuq._params import HasMethods, Settings
from skuq._registry import saved_as
from skuq._space import Real, Space
from skuq.networks._search_space import Decisions, SearchSpace

# NES' training of networks for tables: learning rate and L2 regularisation are searched, as in
# hyper ensembles (NES, appendix C.4). Tuned on training parts of pendigits and letter; see
# docs/methods/nes.md.
_TABLE_HYPERPARAMETERS = Space(
    (
        Real("learning_rate", 3e-4, 3e-2, log=True, default=3e-3),
        Real("l2", 1e-7, 1e-3, log=True, default=1e-5),
    )
)
_TABLE_SETTINGS = {
    "optimizer": "adam",
    "schedule": "cosine",
    "reduce_lr_patience": None,
    "early_stopping_patience": None,
}


@saved_as("networks.WithTraining")
class WithTraining(Settings):
    """Architectures of another space, with these training hyperparameters.

    Without them it is the training that `NESClassifier` and `NESRegressor` use for tables: one
    recipe for all architectures, with a cosine schedule.

    Parameters
    ----------
    space : SearchSpace
        Space of the architectures; its own training hyperparameters are not used.
    hyperparameters : Space or None, default=None
        Fields of a training recipe that can be searched, with their defaults. None is NES'
        learning rate and L2 regularisation.
    settings : mapping or None, default=None
        Fields of a training recipe that are the same for all configurations. None is NES' recipe.
        Its batches have 128 rows, and down to 16 for small tables, for which an epoch would
        otherwise have only one or two steps.

    Examples
    --------
    >>> from skuq.networks import DenseSpace, Real, Space, WithTraining
    >>> rate = Space((Real("learning_rate", 1e-3, 1e-2, log=True),))
    >>> space = WithTraining(DenseSpace(3), rate, {"epochs": 50, "batch_size": 32})
    >>> space.recipe({"learning_rate": 0.005})
    {'epochs': 50, 'batch_size': 32, 'learning_rate': 0.005}
    """

    _parameter_constraints: dict[str, Any] = {
        "space": [HasMethods(["decisions", "build", "recipe"])],
        "hyperparameters": [Space, None],
        "settings": [Mapping, None],
    }

    def __init__(
        self,
        space: SearchSpace,
        hyperparameters: Space | None = None,
        settings: Mapping | None = None,
    ) -> None:
        self.space = space
        self.hyperparameters = hyperparameters
        self.settings = settings

    def validate(self) -> None:
        super().validate()
        if isinstance(self.space, Settings):
            self.space.validate()

    def bind(self, n_rows: int) -> WithTraining:
        """Return the space for a table of `n_rows` rows, on which the size of batches depends."""
        settings = self.settings
        if settings is None:
            batch_size = int(np.clip(n_rows // 32, 16, 128))
            settings = {**_TABLE_SETTINGS, "batch_size": batch_size}
        return WithTraining(self.space, self._searched, settings)

    @property
    def _searched(self):
        """Training decisions that are searched."""
        return _TABLE_HYPERPARAMETERS if self.hyperparameters is None else self.hyperparameters

    @property
    def takes_images(self):
        return getattr(self.space, "takes_images", None)

    def decisions(self, input_shape=None, n_outputs=None) -> Decisions:
        """List the space's architecture decisions and these hyperparameters."""
        architecture = self.space.decisions(input_shape, n_outputs).architecture
        return Decisions(architecture, self._searched)

    def build(self, configuration: Mapping, input_shape: tuple, n_outputs: int):
        """Build the Keras model of a configuration in the space."""
        return self.space.build(configuration, input_shape, n_outputs)

    def recipe(self, configuration: Mapping) -> dict:
        """Join the fixed settings with the configuration's hyperparameters."""
        settings = _TABLE_SETTINGS if self.settings is None else self.settings
        return {**settings, **self._searched.restrict(configuration)}
