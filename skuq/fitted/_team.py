"""A team of fitted classifiers of any kind."""

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
    """Classifiers whose votes are averaged.

    Attributes
    ----------
    estimators : tuple of classifier
    classes : ndarray of shape (n_classes,)
    voting : {"soft", "hard"}
        Whether they vote with probabilities or with labels.
    weights : ndarray of shape (n_estimators,) or None
        Weights of the votes, positive and summing to 1. None is equal ones.
    """

    estimators: tuple[Any, ...]
    classes: np.ndarray
    voting: str
    weights: Any = None

    __repr__ = record_repr

    @property
    def inputs(self) -> ForeignInputs:
        """X is handed on as it is."""
        return ForeignInputs()

    def votes(self, X: Any) -> np.ndarray:
        """Predict codes (S, n), or with soft voting probabilities (S, n, C), of each classifier."""
        return np.stack([predict_votes(m, X, self.voting, self.classes) for m in self.estimators])

    def distribution(self, X: Any) -> CategoricalMixture:
        """Predict the distribution of each row's class."""
        votes = self.votes(X)
        proba = votes if self.voting == "soft" else np.eye(len(self.classes))[votes]
        return CategoricalMixture(proba, self.weights)

    def sample(self, X: Any, n_samples: int, rng: np.random.Generator) -> np.ndarray:
        """Draw codes (n, n_samples)."""
        return self.distribution(X).sample(n_samples, rng)

    def to_keras(self, epistemic_ddof: int = 0) -> Any:
        """Refuse: the classifiers may be anything."""
        refuse_keras("the classifiers of a team may be anything")


def predict_votes(model: Any, X: Any, voting: str, classes: np.ndarray) -> np.ndarray:
    """Predict codes (n,), or with soft voting probabilities (n, C), of one classifier."""
    if voting == "hard":
        return class_codes(model.predict(X), classes)
    return class_probabilities(model, X, classes)
