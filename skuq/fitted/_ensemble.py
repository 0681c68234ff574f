"""Fitted ensemble of networks: encode and scale X, run the networks, apply the head, and mix."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from skuq._registry import saved_as
from skuq._reprs import record_repr
from skuq._seeds import generator
from skuq.catalog import Member
from skuq.fitted._keras_model import ensemble_to_keras
from skuq.fitted._posterior import member_posterior
from skuq.predictive import Posterior
from skuq.tables import ImageInputs, TableInputs
from skuq.tables._targets import Targets
from skuq.training import predict_members


@saved_as("fitted.DropoutPasses")
@dataclass(frozen=True)
class DropoutPasses:
    """Dropout masks of MC dropout, in which a pass drops the same units for all rows.

    A pass is therefore one function, and its prediction of a row does not depend on other rows.

    Attributes
    ----------
    n_passes : int
        Number of passes.
    entropy : int
        Origin of the random numbers of the fit, which determines the masks.
    """

    n_passes: int
    entropy: int

    def __call__(self, number: int, rate: float, shape: tuple[int, ...]) -> np.ndarray:
        """Draw the mask of one dropout layer for all passes (n_passes, 1, units), with mean 1."""
        rng = generator(self.entropy, "passes", number)
        # One mask for all rows of a pass; kept units are scaled as in training.
        kept = rng.random((self.n_passes, 1, shape[-1])) >= rate
        return kept / (1 - rate)


@saved_as("fitted.FittedEnsemble")
@dataclass(frozen=True, eq=False)
class FittedEnsemble:
    """Trained networks, and everything needed to predict with them.

    Attributes
    ----------
    inputs : Inputs
        Fitted encoder and scaler of X.
    targets : Targets
        Fitted scaler of y, with the head of the networks.
    members : tuple of Member
        The networks.
    weights : ndarray of shape (n_members,)
        Weights of the mixture, summing to 1.
    passes : DropoutPasses or None
        Masks of MC dropout, with which a single member predicts once for each pass.
    """

    inputs: TableInputs | ImageInputs
    targets: Targets
    members: tuple[Member, ...]
    weights: np.ndarray
    passes: DropoutPasses | None = None

    __repr__ = record_repr

    def raw(self, x: np.ndarray) -> np.ndarray:
        """Predict raw outputs (K, n, n_raw) for standardised inputs."""
        if self.passes is None:
            return predict_members(self.members, x)
        # The passes of the only member take the place of members.
        n_draws = self.passes.n_passes
        return predict_members(self.members, x, dropout_mask=self.passes, n_draws=n_draws)[0]

    @property
    def raw_weights(self) -> np.ndarray:
        """Weights (K,) of the raw outputs in the mixture."""
        if self.passes is None:
            return self.weights
        return np.full(self.passes.n_passes, 1 / self.passes.n_passes)

    def distribution(self, X: Any) -> Any:
        """Predict the distribution of each row of validated X."""
        x = self.inputs.transform(self.inputs.encode(X))
        return self.targets.distribution(self.raw(x), self.raw_weights)

    def sample(self, X: Any, n_samples: int, rng: np.random.Generator) -> np.ndarray:
        """Draw (n[, m], n_samples); all rows of a draw share one member and one noise variable."""
        return self.distribution(X).sample(n_samples, rng)

    def output_shape(self) -> tuple[int, ...]:
        """Return the shape of one row's prediction: () or (m,), as y had it."""
        return self.targets.output_shape

    def posterior(self, n_draws: int, rng: np.random.Generator) -> Posterior:
        """Return the members' means as draws of the function; see `member_posterior`."""
        return member_posterior(self, n_draws)

    def to_keras(self, ddof: int = 0) -> Any:
        """Build one Keras model of the whole ensemble; see `ensemble_to_keras`."""
        return ensemble_to_keras(self, ddof)

    def member(self, k: int) -> FittedEnsemble:
        """Return the ensemble that has only member k."""
        return replace(self, members=(self.members[k],), weights=np.ones(1))
