"""A fitted operator: it pairs inputs with query points, runs networks and restores units.

Notation: n inputs, q query points, m components, S draws; values are (S, n, q, m) inside, and in
the shape of the user's Y outside.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np

from skuq import training
from skuq._registry import saved_as
from skuq._reprs import record_repr
from skuq.catalog import Member
from skuq.fitted._conditioned import ConditionedDraws
from skuq.fitted._given_base import GivenBase
from skuq.fitted._operator_draws import OperatorDraws
from skuq.fitted._protocol import refuse_keras
from skuq.networks._plan import ARRAYS
from skuq.predictive import EpistemicNormal, GaussianMixture, Posterior
from skuq.predictive._posterior import quasi_random_normals
from skuq.tables import FunctionInputs, FunctionTargets


@saved_as("fitted.FittedOperator.Widths")
@dataclass(frozen=True, eq=False)
class Widths:
    """Widths of the two parts of a fitted operator's uncertainty: epistemic part and noise.

    Attributes
    ----------
    factor : ndarray of shape (1, m), or (q, m) where columns have scales of their own
        Factor of the distance of draws from their mean.
    noise : ndarray of the same shape
        Standard deviation of the noise, in units of Y.
    """

    factor: np.ndarray
    noise: np.ndarray


@saved_as("fitted.FittedOperator.IndexDraws")
@dataclass(frozen=True, eq=False)
class IndexDraws:
    """Draws of one network with an EpiNet: each has an index z of random numbers.

    Attributes
    ----------
    member : Member
    index : ndarray of shape (n_draws, n_index)
        The indices that predictions average over.
    """

    member: Member
    index: np.ndarray

    __repr__ = record_repr

    @property
    def members(self) -> tuple[Member, ...]:
        """The one network."""
        return (self.member,)

    def quasi_random(self, n: int, rng: np.random.Generator) -> np.ndarray:
        """Draw indices (n, n_index) that are spread more evenly than chance does it."""
        return quasi_random_normals(n, self.index.shape[1], rng)

    def independent(self, n: int, rng: np.random.Generator) -> np.ndarray:
        """Draw independent indices (n, n_index)."""
        return rng.standard_normal((n, self.index.shape[1]))

    def raw(self, rows: np.ndarray, index: np.ndarray) -> np.ndarray:
        """Predict raw outputs (S, n * q, n_raw) of standardised rows."""
        return training.predict_draws(self.member, rows, index)


@saved_as("fitted.FittedOperator.MemberDraws")
@dataclass(frozen=True, eq=False)
class MemberDraws:
    """Draws of an ensemble: each is a member, and its index the member's position.

    Attributes
    ----------
    members : tuple of Member
    """

    members: tuple[Member, ...]

    __repr__ = record_repr

    @property
    def index(self) -> np.ndarray:
        """Positions of all members, which predictions average over."""
        return np.arange(len(self.members))

    def quasi_random(self, n: int, rng: np.random.Generator) -> np.ndarray:
        """Return the positions of all members, once each, whatever `n`."""
        return self.index

    def independent(self, n: int, rng: np.random.Generator) -> np.ndarray:
        """Draw positions (n,) with replacement."""
        return rng.integers(len(self.members), size=n)

    def raw(self, rows: np.ndarray, index: np.ndarray) -> np.ndarray:
        """Predict raw outputs (S, n * q, n_raw) of standardised rows."""
        # Each member predicts once, however often it was drawn.
        drawn = {k: training.predict_draws(self.members[k], rows)[0] for k in np.unique(index)}
        return np.stack([drawn[k] for k in index])


@saved_as("fitted.FittedOperator")
@dataclass(frozen=True, eq=False)
class FittedOperator:
    """Trained networks of functions, and everything needed to predict with them.

    Methods take `query_points`, an array-like of shape (q, d_y) or (q,); by default those of
    the fit.

    Attributes
    ----------
    inputs : FunctionInputs
        Fitted.
    targets : FunctionTargets
        Fitted; holds the head of the networks.
    draws : IndexDraws, ConditionedDraws or MemberDraws
        The networks, and the indices of their draws.
    given : GivenBase or None
        A model whose predictions are the mean; the networks then only give their uncertainty.
    widths : Widths or None
        Factor of the epistemic part, and the noise. None means a factor of 1 and no noise.
    """

    inputs: FunctionInputs
    targets: FunctionTargets
    draws: IndexDraws | ConditionedDraws | MemberDraws
    given: GivenBase | None = None
    widths: Widths | None = None

    __repr__ = record_repr

    def values(
        self, X: np.ndarray, index: np.ndarray, query_points: Any = None
    ) -> tuple[np.ndarray, np.ndarray | None]:
        """Predict draws of given indices, in units of Y.

        Returns
        -------
        loc : ndarray of shape (S, n, q, m)
        scale : ndarray of shape (S, n, q, m) or None
            Standard deviations of a likelihood.
        """
        return self._values_around(self._given_mean(X, query_points), X, index, query_points)

    def _given_mean(self, X: np.ndarray, query_points: Any) -> np.ndarray | None:
        """Predict (n, q, m) with the given model; return None without one."""
        return None if self.given is None else self.given.mean(X, query_points)

    def _values_around(
        self, mean: np.ndarray | None, X: np.ndarray, index: np.ndarray, query_points: Any
    ) -> tuple[np.ndarray, np.ndarray | None]:
        """Compute `values`, around the predictions of the given model if there is one."""
        encode = self.inputs.transform if self.given is None else self.given.features
        rows = encode(X, query_points)
        loc, scale = self._predict_standardised(rows, index)
        if self.given is not None or self.widths is not None:
            # The centre is the mean over the fit's own indices, also for draws of other indices.
            fitted_index = self.draws.index
            fitted_loc = loc
            if not np.array_equal(index, fitted_index):
                fitted_loc, _ = self._predict_standardised(rows, fitted_index)
            centre = fitted_loc.mean(axis=0)
            loc = loc - centre
            if self.widths is not None:
                # Factors of the query points repeat, since rows list all of them for each input.
                factor = self.widths.factor
                loc = loc * np.tile(factor, (len(rows) // len(factor), 1))
            # The mean of the draws is the given model's prediction exactly.
            loc = loc if self.given is not None else loc + centre
        n_queries = len(self.inputs.points(query_points))
        shape = (len(loc), len(X), n_queries, self.targets.head.n_outputs)
        scale = None if scale is None else scale.reshape(shape)
        return self.targets.restore(loc.reshape(shape), scale, mean)

    def _predict_standardised(self, rows: np.ndarray, index: np.ndarray) -> tuple[Any, Any]:
        """Compute means and standard deviations (S, n * q, m) of standardised values."""
        return self.targets.head.values(ARRAYS, self.draws.raw(rows, index))

    def distribution(
        self, X: np.ndarray, query_points: Any = None
    ) -> EpistemicNormal | GaussianMixture:
        """Predict the distribution of each function's values, for validated X."""
        mean = self._given_mean(X, query_points)
        loc, scale = self._values_around(mean, X, self.draws.index, query_points)
        noise = None if self.widths is None else self.widths.noise
        return self.targets.distribution(loc, scale, centre=mean, noise=noise)

    def sample(
        self, X: np.ndarray, n_samples: int, rng: np.random.Generator, query_points: Any = None
    ) -> np.ndarray:
        """Draw (n[, q[, m]], n_samples): each draw is one function of inputs and query points.

        Noise is independent from value to value.
        """
        loc, scale = self.values(X, self.draws.independent(n_samples, rng), query_points)
        if scale is None and self.widths is not None:
            scale = self.widths.noise
        if scale is not None:
            loc = loc + scale * rng.standard_normal(loc.shape)
        loc = loc.reshape(n_samples, len(X), *self.output_shape(query_points))
        return np.moveaxis(loc, 0, -1)

    def output_shape(self, query_points: Any = None) -> tuple[int, ...]:
        """Return the shape of one function's values, as Y had it."""
        return self.targets.output_shape_at(len(self.inputs.points(query_points)))

    def posterior(
        self, n_draws: int, rng: np.random.Generator, query_points: Any = None
    ) -> Posterior:
        """Return draws of the function; an ensemble's are its members."""
        return self.posterior_of(self.draws.quasi_random(n_draws, rng), query_points)

    def posterior_of(self, index: np.ndarray, query_points: Any = None) -> Posterior:
        """Return the draws of given indices, which stay the same for all inputs.

        With a given model they run in NumPy only, as such a model can be of any kind.
        """
        shape = self.output_shape(query_points)
        if self.given is None:
            points = self.inputs.points(query_points)
            function, arguments = OperatorDraws.of(self, index, points, shape)
            return Posterior(
                function,
                arguments,
                key=function.key(arguments),
                n_draws=len(index),
                output_shape=shape,
            )

        predicted = functools.partial(_predicted_draws, self, query_points)
        return Posterior(predicted, (index,), key=None, n_draws=len(index), output_shape=shape)

    def to_keras(self, ddof: int = 0) -> Any:
        """Raise ValueError: functions at query points have no Keras model."""
        refuse_keras("operators predict functions at query points")


def _predicted_draws(
    fitted: FittedOperator, query_points: Any, xp: Any, arguments: Any, X: np.ndarray
) -> np.ndarray:
    """Predict the draws of the indices in `arguments`, in units of Y, (S, n[, q[, m]])."""
    loc, _ = fitted.values(X, arguments[0], query_points)
    return loc.reshape(*loc.shape[:2], *fitted.output_shape(query_points))
