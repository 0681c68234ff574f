"""Mixtures that predict a transformed target, expressed in units of the target itself.

Notation: K members, n rows, m outputs (the last axis is absent where y was 1-D); y is the target,
and z the transformed target.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike

from skuq._checks import fill_masked
from skuq._registry import saved_as
from skuq.predictive._mixture import Mixture
from skuq.predictive._types import Factor, RandomSource, RowIndex


class Transform(Protocol):
    """A strictly increasing function of each output, with finite values."""

    def forward(self, y: np.ndarray) -> np.ndarray:
        """Compute z from y, both of shape (..), or (.., m) for several outputs."""

    def inverse(self, z: np.ndarray) -> np.ndarray:
        """Compute y from z."""

    def log_derivative(self, y: np.ndarray) -> np.ndarray:
        """Compute the log of the derivative of `forward` at y."""

    def output(self, k: int) -> Transform:
        """Select the transform of one of several outputs, for arrays (..)."""


@saved_as("predictive.TransformedMixture")
@dataclass(frozen=True, eq=False)
class TransformedMixture(Mixture):
    """Distribution of y, given a mixture that predicts an increasing function of y.

    With ``z ~ inner``, ``y = shift + factor * transform.inverse(z)``. Distribution function,
    quantiles, intervals, density and draws are exact. Means and variances are computed by
    quadrature over the members' quantile functions, with 81 or more points.

    Parameters
    ----------
    inner : Mixture
        Distribution of z.
    transform : object
        Object with the methods ``forward(y)``, ``inverse(z)``, ``log_derivative(y)`` (the log of
        the derivative of `forward`) and, for several outputs, ``output(k)``. It must be strictly
        increasing, and finite for finite arguments. If `inner` has an output axis, it is the last
        axis of these methods' arrays, and each output has its own function. Otherwise the methods
        take arrays of any shape.
    shift : ndarray that broadcasts to (n[, m]), default=0.0
        Summand, in units of y. It is set by `scaled` and rarely given.
    factor : ndarray that broadcasts to (n[, m]), default=1.0
        Positive factor. It is set by `scaled` and rarely given.

    See Also
    --------
    GaussianMixture, StudentTMixture, NestedGaussianMixture, QuantileMixture

    Notes
    -----
    Members' moments are computed within ten normal scores of their medians, which leaves out a
    probability of 1e-23. They are finite if the inverse transform grows linearly at its ends, as
    the transforms of `skuq.tables` do. With an inverse that grows exponentially, a Student's t has
    no moments, and `mean` and `variance` raise ValueError.

    Examples
    --------
    >>> import numpy as np
    >>> from types import SimpleNamespace
    >>> from skuq.predictive import GaussianMixture
    >>> logarithm = SimpleNamespace(
    ...     forward=np.log, inverse=np.exp, log_derivative=lambda y: -np.log(y)
    ... )
    >>> normal = GaussianMixture(np.zeros((1, 1)), np.ones((1, 1)))
    >>> lognormal = TransformedMixture(normal, logarithm)
    >>> lognormal.mean.round(4), lognormal.quantile(0.5)  # exp(1 / 2) and 1
    (array([1.6487]), array([1.]))
    """

    inner: Mixture
    transform: Transform
    shift: np.ndarray | float = 0.0
    factor: np.ndarray | float = 1.0

    def __post_init__(self) -> None:
        if not isinstance(self.inner, Mixture):
            raise TypeError(
                f"inner must be a Mixture, such as GaussianMixture. Got {self.inner!r}."
            )
        if not (np.asarray(self.factor) > 0).all():
            raise ValueError(f"factor must be positive. Got {self.factor}.")

    @property
    def weights(self) -> np.ndarray:
        """Weights of `inner`, of shape (K,)."""
        return self.inner.weights

    @property
    def _shape(self) -> tuple[int, ...]:
        return self.inner._shape

    def _forward(self, y: np.ndarray) -> np.ndarray:
        """Compute z from y, after shift and factor are undone."""
        return self.transform.forward((np.asarray(y, dtype=float) - self.shift) / self.factor)

    def _inverse(self, z: np.ndarray) -> np.ndarray:
        """Compute y from z, with shift and factor."""
        return self.shift + self.factor * self.transform.inverse(z)

    @cached_property
    def _moments(self) -> tuple[np.ndarray, np.ndarray]:
        """Members' means and variances, (K, n[, m]) each, before shift and factor."""
        return self.inner._moments_of(self.transform.inverse)

    @property
    def member_means(self) -> np.ndarray:
        """Means of the members, of shape (K, n[, m]), in units of y."""
        return self.shift + self.factor * self._moments[0]

    @property
    def member_variances(self) -> np.ndarray:
        """Variances of the members, of shape (K, n[, m]), in squared units of y."""
        return self.factor**2 * self._moments[1]

    def cdf(self, y: ArrayLike) -> np.ndarray:
        # Broadcast y to the output axis, which the transform needs, also if y is a number.
        y = np.broadcast_to(fill_masked(y), np.broadcast_shapes(np.shape(y), self._shape))
        return self.inner.cdf(self._forward(y))

    def log_prob(self, y: ArrayLike) -> np.ndarray:
        y = self._check_y(y)
        # Density of y = density of z times dz/dy.
        slope = self.transform.log_derivative((y - self.shift) / self.factor)
        slope = (slope - np.log(self.factor)).sum(axis=tuple(range(1, y.ndim)))  # (n,)
        return self.inner.log_prob(self._forward(y)) + slope

    def inverse_cdf(self, levels: np.ndarray) -> np.ndarray:
        return self._inverse(self.inner.inverse_cdf(levels))

    def sample(self, n_samples: int = 1, rng: RandomSource = None) -> np.ndarray:
        """Draw jointly from `inner` and transform, to shape (n[, m], n_samples)."""
        draws = np.moveaxis(self.inner.sample(n_samples, rng), -1, 0)  # (n_samples, n[, m])
        return np.moveaxis(self._inverse(draws), 0, -1)

    def scaled(self, factor: Factor) -> TransformedMixture:
        mean = self.mean
        # mean + factor * (y - mean) is again a shift and a factor of the same inner mixture.
        stretched = TransformedMixture(
            self.inner,
            self.transform,
            mean + factor * (self.shift - mean),
            factor * self.factor,
        )
        stretched.__dict__["_moments"] = self._moments  # do not depend on shift and factor
        return stretched

    def rows(self, rows: RowIndex) -> TransformedMixture:
        """Select rows by a slice or positions."""
        shift, factor = self._of_each_row
        return TransformedMixture(self.inner.rows(rows), self.transform, shift[rows], factor[rows])

    def output(self, k: int) -> TransformedMixture:
        """Select the marginal distribution of one of several outputs."""
        shift, factor = (values[:, k] for values in self._of_each_row)
        return TransformedMixture(self.inner.output(k), self.transform.output(k), shift, factor)

    @property
    def _of_each_row(self) -> tuple[np.ndarray, np.ndarray]:
        """Shift and factor of each row and output, (n[, m])."""
        return np.broadcast_to(self.shift, self._shape), np.broadcast_to(self.factor, self._shape)

    def _tfp_members(self) -> Any:
        raise NotImplementedError(
            "The transform is a function of NumPy arrays, which TensorFlow Probability cannot "
            "use. Transform the draws of `inner.to_tfp()`, or use the methods of "
            "TransformedMixture."
        )
