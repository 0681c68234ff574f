"""Fitted team of classifiers of any kind."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from skuq._checks import class_codes
from skuq._nested import class_probabilities
from skuq._registry import saved_as
from skuq._reprs import record_repr
from skuq.fitted._protocol import refuse_keras
from skuq.predictive import CategoricalMixture
from skuq.tables import ForeignInputs


@saved_as("fitted.FittedTeam")
@dataclass(frozen=True, eq=False)
class FittedTeam:
    """Fitted classifiers whose votes are averaged.

    Attributes
    ----------
    estimators : tuple of classifier
        The members.
    classes : ndarray of shape (n_classes,)
        Labels of the classes.
    voting : {"soft", "hard"}
        Average the members' probabilities ("soft") or count their labels ("hard").
    weights : ndarray of shape (n_estimators,) or None
        Positive weights of the votes, summing to 1. None means equal weights.
    """

    estimators: tuple[Any, ...]
    classes: np.ndarray
    voting: str
    weights: Any = None

    __repr__ = record_repr

    @property
    def inputs(self) -> ForeignInputs:
        """Inputs that pass X to the classifiers unchanged."""
        return ForeignInputs()

    def votes(self, X: Any) -> np.ndarray:
        """Predict with each classifier: codes (S, n), or probabilities (S, n, C) if soft."""
        return np.stack([predict_votes(m, X, self.voting, self.classes) for m in self.estimators])

    def distribution(self, X: Any) -> CategoricalMixture:
        """Predict the distribution of each row's class."""
        votes = self.votes(X)
        # A hard vote is a probability of 1.
        proba = votes if self.voting == "soft" else np.eye(len(self.classes))[votes]
        return CategoricalMixture(proba, self.weights)

    def sample(self, X: Any, n_samples: int, rng: np.random.Generator) -> np.ndarray:
        """Draw class codes (n, n_samples)."""
        return self.distribution(X).sample(n_samples, rng)

    def to_keras(self, ddof: int = 0) -> Any:
        """Raise ValueError, since the classifiers need not be networks."""
        refuse_keras("the classifiers of a team need not be networks")


def predict_votes(model: Any, X: Any, voting: str, classes: np.ndarray) -> np.ndarray:
    """Predict with one classifier: codes (n,), or probabilities (n, C) if voting is soft."""
    if voting == "hard":
        return class_codes(model.predict(X), classes)
    return class_probabilities(model, X, classes)
