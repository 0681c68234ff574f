"""What every fitted model knows."""

from __future__ import annotations

from typing import Any, NoReturn, Protocol

import numpy as np
from sklearn.exceptions import NotFittedError
from sklearn.utils.validation import check_is_fitted

from skuq.tables import ForeignInputs
from skuq.tables._inputs import Inputs


class Fitted(Protocol):
    """A fitted model: what is pickled, saved and predicted with."""

    @property
    def inputs(self) -> Inputs | ForeignInputs:
        """Validates X and, unless that is for others to do, turns it into numbers."""

    def distribution(self, X: Any, **query: Any) -> Any:
        """Predict the distribution of each row of validated X."""

    def sample(self, X: Any, n_samples: int, rng: np.random.Generator, **query: Any) -> np.ndarray:
        """Draw (n[, m], n_samples) jointly for all rows of validated X."""

    def output_shape(self, **query: Any) -> tuple[int, ...]:
        """Shape of one row's prediction as the user has it."""

    def posterior(self, n_draws: int, rng: np.random.Generator, **query: Any) -> Any:
        """Draws of the function with gradients, as a `skuq.predictive.Posterior`."""

    def to_keras(self, epistemic_ddof: int = 0) -> Any:
        """Build one Keras model of the whole, or raise ValueError with the reason."""


def refuse_keras(reason: str) -> NoReturn:
    """Raise the ValueError of models that cannot become one Keras model."""
    raise ValueError(
        f"`to_keras` gives the mixture's moments, and {reason}. `skuq.save` keeps the "
        "estimator as it is."
    )


def check_pretrained(model: Any) -> None:
    """Raise NotFittedError if a given model can be fitted, and is not."""
    try:
        if hasattr(model, "fit"):  # an object that can only predict needs no fit
            check_is_fitted(model)
    except NotFittedError as error:
        raise NotFittedError(
            "`pretrained` is not fitted. What clones an estimator, as cross-validation and "
            "searches do, loses what it has learnt: wrap it in sklearn.frozen.FrozenEstimator."
        ) from error
