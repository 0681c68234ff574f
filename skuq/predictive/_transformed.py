"""Distributions of a target of which a mixture predicts an increasing function.

Notation: K members, n rows, m outputs (the last axis is absent where y was 1-D); y is the target,
and z the transformed target.
"""

import copy
import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike

from skuq._params import read_only_copy
from skuq.files._registry import saved_as
from skuq.predictive._distributions import Factor, Mixture, RowIndex
from skuq.predictive._normals import GaussianMixture, mixture_cdf

_EDGES = np.linspace(-8, 8, 33)  # of the cells of integrals, in standard deviations of a normal
_MOST_NODES = 2**20  # at a time
_NO_VARIANCE = 1e-300  # below which a spread counts as none


@saved_as("predictive.TransformedMixture")
@dataclass(frozen=True, eq=False, repr=False)
class TransformedMixture(Mixture):
    """Distribution of y, given a mixture that predicts an increasing function of y.

    With ``z ~ inner``, ``y = shift + factor * transform.inverse(z)``. Distribution function,
    quantiles, intervals, density and draws are exact. Means and variances are computed by
    quadrature over the members' quantile functions, with 81 points.

    Parameters
    ----------
    inner : GaussianMixture
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
    GaussianMixture

    Notes
    -----
    Members' moments are computed within ten normal scores of their medians, which leaves out a
    probability of 1e-23. They are finite if the inverse transform grows linearly at its ends, as
    the transforms of `skuq.tables` do. If they overflow, `mean` and `variance` raise ValueError.

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

    inner: GaussianMixture
    transform: Any
    shift: Any = 0.0
    factor: Any = 1.0

    def __post_init__(self) -> None:
        if not isinstance(self.inner, GaussianMixture):
            raise TypeError(f"inner must be a GaussianMixture. Got {self.inner!r}.")
        if not (np.asarray(self.factor) > 0).all():
            raise ValueError(f"factor must be positive. Got {self.factor}.")
        # Shift and factor of each row and output.
        shift, factor = (
            read_only_copy(np.broadcast_to(a, self._shape)) for a in (self.shift, self.factor)
        )
        vars(self).update(weights=self.inner.weights, shift=shift, factor=factor)

    @property
    def correlation(self) -> np.ndarray | None:  # type: ignore[override]
        """Correlation (m, m) of the outputs' normal scores, which is that of `inner`."""
        return self.inner.correlation

    def with_correlation(self, correlation: ArrayLike | None) -> Self:
        """Correlate the outputs, as `inner` has them; see `GaussianMixture`."""
        changed = copy.copy(self)  # keeps the moments, which take time
        vars(changed)["inner"] = self.inner.with_correlation(correlation)
        return changed

    @property
    def _shape(self) -> tuple[int, ...]:
        return self.inner._shape

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
        return self.factor**2 * (self._moments[1] - self._shared)

    @cached_property
    def _shared(self) -> float | np.ndarray:
        """Variances (K, n[, m]) that members have by their common spread, before the factor."""
        if self.inner.spread is None:
            return 0.0
        alone = replace(self.inner, spread=None)._moments_of(self.transform.inverse)[1]
        return np.maximum(self._moments[1] - alone, 0)

    @property
    def shared_variance(self) -> float | np.ndarray:  # type: ignore[override]
        """Variance of the function that all members share, in squared units of y."""
        shared = self._shared
        return self.factor**2 * self._average(shared) if isinstance(shared, np.ndarray) else 0.0

    @property
    def spread(self) -> np.ndarray | None:
        """Arrays (r, n[, m]) whose squares sum to the variance that members share."""
        inner = self.inner.spread
        if inner is None:
            return None
        return inner * np.sqrt(
            self.shared_variance / np.maximum((inner**2).sum(axis=0), _NO_VARIANCE)
        )

    def _cdf_at(self, y: np.ndarray) -> np.ndarray:
        return self.inner._cdf_at(self.transform.forward((y - self.shift) / self.factor))

    def _log_prob_at(self, y: np.ndarray) -> np.ndarray:
        # Density of y = density of z times dz/dy.
        y = (y - self.shift) / self.factor
        slope = self.transform.log_derivative(y) - np.log(self.factor)
        slope = slope.sum(axis=tuple(range(1, y.ndim)))  # (n,)
        return self.inner._log_prob_at(self.transform.forward(y)) + slope

    def _crps_at(self, y: np.ndarray) -> np.ndarray:
        # Integral of (F - 1{y <= x})^2 over z, by Gauss' rule in cells that are small in comparison
        # with each normal near it.
        loc, scale, _ = self.inner.normals
        size = max(1, _MOST_NODES // (loc[:, :1].size * len(_EDGES)))
        if len(y) > size:
            parts = [slice(k, k + size) for k in range(0, len(y), size)]
            return np.concatenate([self.rows(part)._crps_at(y[part]) for part in parts])
        observed = self.transform.forward((y - self.shift) / self.factor)
        places = [loc + edge * scale for edge in _EDGES]
        edges = np.sort(np.concatenate([*places, observed[None]]), axis=0)  # (cells + 1, n[, m])
        middle, half = 0.5 * (edges[1:] + edges[:-1]), 0.5 * np.diff(edges, axis=0)
        total = np.zeros(y.shape)
        for node in (-math.sqrt(1 / 3), math.sqrt(1 / 3)):
            z = middle + node * half
            excess = mixture_cdf(z, self.weights, self.inner._arrays) - (z >= observed)
            slope = np.exp(-self.transform.log_derivative(self.transform.inverse(z)))
            total += (half * excess**2 * slope).sum(axis=0)
        return self.factor * total

    def _inverse_cdf_at(self, levels: np.ndarray) -> np.ndarray:
        return self.shift + self.factor * self.transform.inverse(self.inner._inverse_cdf_at(levels))

    def _draw(self, n_samples: int, seed: int, rng: np.random.Generator) -> np.ndarray:
        z = self.inner._draw(n_samples, seed, rng)
        return self.shift + self.factor * self.transform.inverse(z)

    def scaled(self, factor: Factor) -> Self:
        mean = self.mean
        # mean + factor * (y - mean) is again a shift and a factor of the same inner mixture.
        stretched = type(self)(
            self.inner, self.transform, mean + factor * (self.shift - mean), factor * self.factor
        )
        stretched.__dict__["_moments"] = self._moments  # do not depend on shift and factor
        return stretched

    def rows(self, rows: RowIndex) -> Self:
        """Select rows by a slice or positions."""
        inner = self.inner.rows(rows)
        return type(self)(inner, self.transform, self.shift[rows], self.factor[rows])

    def output(self, k: int) -> Self:
        """Select the marginal distribution of one of several outputs."""
        shift, factor = self.shift[:, k], self.factor[:, k]
        return type(self)(self.inner.output(k), self.transform.output(k), shift, factor)
