"""Interface of fitted models."""

from __future__ import annotations

from typing import Any, NoReturn, Protocol

import numpy as np
from sklearn.exceptions import NotFittedError
from sklearn.utils.validation import check_is_fitted

from skuq.tables import ForeignInputs
from skuq.tables._inputs import Inputs


class Fitted(Protocol):
    """A fitted model, which predicts, and is pickled and saved."""

    @property
    def inputs(self) -> Inputs | ForeignInputs:
        """Object that validates X and, except for foreign estimators, encodes it as numbers."""

    def distribution(self, X: Any, **query: Any) -> Any:
        """Predict the distribution of each row of validated X."""

    def sample(self, X: Any, n_samples: int, rng: np.random.Generator, **query: Any) -> np.ndarray:
        """Draw (n[, m], n_samples) jointly for all rows of validated X."""

    def output_shape(self, **query: Any) -> tuple[int, ...]:
        """Return the shape of one row's prediction, as y had it."""

    def posterior(self, n_draws: int, rng: np.random.Generator, **query: Any) -> Any:
        """Draw functions, with gradients if possible, as a `skuq.predictive.Posterior`."""

    def to_keras(self, ddof: int = 0) -> Any:
        """Convert to one Keras model, or raise ValueError with the reason."""


def refuse_keras(reason: str) -> NoReturn:
    """Raise ValueError for models that cannot become one Keras model."""
    raise ValueError(
        f"`to_keras` computes the mixture's moments, and {reason}. Use `skuq.save` to store the "
        "estimator."
    )


def check_pretrained(model: Any) -> None:
    """Raise NotFittedError if a given model can be fitted and is not."""
    try:
        if hasattr(model, "fit"):  # objects that only predict need no fit
            check_is_fitted(model)
    except NotFittedError as error:
        raise NotFittedError(
            "`pretrained` is not fitted. Cloning, as in cross-validation and searches, discards "
            "what it has learnt: wrap it in sklearn.frozen.FrozenEstimator."
        ) from error
