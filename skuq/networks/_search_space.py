"""Protocol of search spaces, and AutoDEUQ's training hyperparameters.

This module needs only NumPy: proposing a configuration needs no Keras, but building it does.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Protocol, runtime_checkable

from skuq._registry import saved_as
from skuq._space import Categorical, Integer, Real, Space

__all__ = [
    "OPTIMIZERS",
    "Categorical",
    "Decisions",
    "Integer",
    "Real",
    "SearchSpace",
    "Space",
    "training_hyperparameters",
]

#: The paper's seven optimisers (AutoDEUQ III.A), by Keras' names.
OPTIMIZERS = ("sgd", "rmsprop", "adagrad", "adam", "adadelta", "adamax", "nadam")


@saved_as("networks.Decisions")
class Decisions(NamedTuple):
    """Decisions of a joint search: about the architecture, and about its training."""

    architecture: Space
    hyperparameters: Space


@runtime_checkable
class SearchSpace(Protocol):
    """An object that lists decisions, and builds and trains networks by them."""

    def decisions(self, input_shape: tuple, n_outputs: int) -> Decisions:
        """List the decisions, if possible without building a Keras model."""

    def build(self, configuration: Mapping, input_shape: tuple, n_outputs: int):
        """Build the Keras model from `input_shape` to `n_outputs` raw numbers."""

    def recipe(self, configuration: Mapping) -> dict:
        """Return the fields of a training recipe that the configuration sets."""


def training_hyperparameters(max_batch_size: int = 256) -> Space:
    """Make the space of training hyperparameters of AutoDEUQ (section III.A).

    Parameters
    ----------
    max_batch_size : int, default=256
        Largest batch size: 256 in the paper's benchmark, 32 in its toy example.

    Returns
    -------
    Space
        Learning rate (log-uniform in 1e-4..1e-1), batch size (log-uniform in
        1..max_batch_size), one of seven optimisers, and the patience of the learning rate's
        reduction (10..20 epochs) and of early stopping (20..30 epochs).

    Examples
    --------
    >>> from skuq.networks import training_hyperparameters
    >>> training_hyperparameters().names
    ['learning_rate', 'batch_size', 'optimizer', 'reduce_lr_patience', 'early_stopping_patience']
    """
    return Space(
        (
            Real("learning_rate", 1e-4, 1e-1, log=True, default=1e-3),
            Integer("batch_size", 1, max_batch_size, log=True, default=min(32, max_batch_size)),
            Categorical("optimizer", OPTIMIZERS, default="adam"),
            Integer("reduce_lr_patience", 10, 20, default=15),
            Integer("early_stopping_patience", 20, 30, default=25),
        )
    )
