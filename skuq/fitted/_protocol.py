"""What every fitted model knows."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

__all__ = ["Fitted", "refuse_keras"]


class Fitted(Protocol):
    """A fitted model: what is pickled, saved and predicted with.

    Attributes
    ----------
    inputs : Inputs
        Validates X and turns it into numbers.
    """

    inputs: Any

    def distribution(self, X, **query) -> Any:
        """Predict the distribution of each row of validated X."""

    def sample(self, X, n_samples: int, rng: np.random.Generator, **query) -> np.ndarray:
        """Draw (n[, m], n_samples) jointly for all rows of validated X."""

    def output_shape(self, **query) -> tuple[int, ...]:
        """Shape of one row's prediction as the user has it."""

    def posterior(self, n_draws: int, rng: np.random.Generator, **query) -> Any:
        """Draws of the function with gradients, as a `skuq.predictive.Posterior`."""

    def to_keras(self, epistemic_ddof: int = 0) -> Any:
        """Build one Keras model of the whole, or raise ValueError with the reason."""


def refuse_keras(reason: str):
    """Raise the ValueError of models that cannot become one Keras model."""
    raise ValueError(
        f"`to_keras` gives the mixture's moments, and {reason}. `skuq.save` keeps the "
        "estimator as it is."
    )
