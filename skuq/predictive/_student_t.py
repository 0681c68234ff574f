"""Mixtures of Student's t distributions, as ensembles of networks with t heads predict them.

Notation: K members, n rows, m outputs (the last axis is absent where y was 1-D).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import special

from skuq._checks import check_member_weights
from skuq._registry import saved_as
from skuq.predictive._mixture import Mixture, check_locations_and_scales
from skuq.predictive._types import FILLED_IN, Factor

_HALF_LOG_PI = 0.5 * np.log(np.pi)

# Double exponential quadrature (Takahasi and Mori 1974): the trapezoidal rule in u, where
# t = sinh(pi / 2 * sinh(u)). The slopes are dt / du, up to a factor.
_U = np.arange(-60, 61) / 10
_NODES = np.sinh(np.pi / 2 * np.sinh(_U))
_LOG_SLOPES = np.log(np.cosh(np.pi / 2 * np.sinh(_U)) * np.cosh(_U))


@saved_as("predictive.StudentTMixture")
@dataclass(frozen=True, eq=False)
class StudentTMixture(Mixture):
    """Mixture of K Student's t distributions for every row; rows share the weights.

    Given the member, outputs are independent; over members they are not.

    Parameters
    ----------
    loc, scale : ndarray of shape (K, n) or (K, n, m)
        Locations and scales of the members, in units of y; scale > 0. The standard deviation
        of a member is ``scale * sqrt(df / (df - 2))``.
    df : ndarray of the shape of `loc`
        Degrees of freedom, above 2, so that the variance is finite.
    weights : ndarray of shape (K,), optional
        Positive weights of the members, summing to 1; equal by default.

    Raises
    ------
    ValueError
        If shapes disagree, scales are not positive, degrees of freedom are not finite and above
        2, or weights do not sum to 1.

    See Also
    --------
    skuq.networks.StudentTHead : Head that predicts the parameters.

    Examples
    --------
    >>> import numpy as np
    >>> one = StudentTMixture(np.zeros((1, 1)), np.ones((1, 1)), np.full((1, 1), 4.0))
    >>> one.variance, one.interval(0.95).round(3)
    (array([2.]), array([[-2.776,  2.776]]))
    """

    loc: np.ndarray
    scale: np.ndarray
    df: np.ndarray
    weights: np.ndarray = FILLED_IN

    def __post_init__(self) -> None:
        loc, scale = check_locations_and_scales(self.loc, self.scale)
        df = np.asarray(self.df, dtype=float)
        if df.shape != loc.shape:
            raise ValueError(f"df must have the shape of loc, {loc.shape}. Got {df.shape}.")
        wrong = ~((df > 2) & np.isfinite(df))  # True also for NaN
        if wrong.any():
            raise ValueError(
                "df must be finite and above 2, so that the variance is finite. "
                f"Got {df[wrong][0]}."
            )
        weights = check_member_weights(self.weights, len(loc), positive=True, tolerance=1e-9)
        vars(self).update(loc=loc, scale=scale, df=df, weights=weights)

    @property
    def member_means(self) -> np.ndarray:
        """Means of the members, of shape (K, n[, m]), in units of y."""
        return self.loc

    @property
    def member_variances(self) -> np.ndarray:
        """Variances of the members, of shape (K, n[, m]), in squared units of y."""
        return self.scale**2 * (self.df / (self.df - 2))

    @property
    def _shape(self) -> tuple[int, ...]:
        return self.loc.shape[1:]

    @property
    def _parameters(self) -> tuple[np.ndarray, ...]:
        return self.loc, self.scale, self.df

    def _with(self, loc: np.ndarray, scale: np.ndarray, df: np.ndarray) -> StudentTMixture:
        return StudentTMixture(loc, scale, df, self.weights)

    def _stretch(self, mean: np.ndarray, factor: Factor) -> StudentTMixture:
        return self._with(mean + factor * (self.loc - mean), factor * self.scale, self.df)

    def _cdf(self, y: np.ndarray, loc: np.ndarray, scale: np.ndarray, df: np.ndarray) -> np.ndarray:
        return special.stdtr(df, (y - loc) / scale)

    def _log_density(
        self, y: np.ndarray, loc: np.ndarray, scale: np.ndarray, df: np.ndarray
    ) -> np.ndarray:
        # `poch` is the ratio of gamma functions; a difference of their logs would cancel.
        constant = np.log(special.poch(0.5 * df, 0.5)) - 0.5 * np.log(df) - _HALF_LOG_PI
        tail = 0.5 * (df + 1) * np.log1p(((y - loc) / scale) ** 2 / df)
        return constant - np.log(scale) - tail

    def _quantile(
        self, levels: np.ndarray, loc: np.ndarray, scale: np.ndarray, df: np.ndarray
    ) -> np.ndarray:
        return loc + scale * special.stdtrit(df, levels)

    def _at_scores(
        self, z: np.ndarray, loc: np.ndarray, scale: np.ndarray, df: np.ndarray
    ) -> np.ndarray:
        # Use the lower tail for both signs, since levels of the upper tail round to 1.
        return loc - scale * np.sign(z) * special.stdtrit(df, special.ndtr(-np.abs(z)))

    def _nodes(self, *arrays: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield weights and nodes of a quadrature over each member's distribution."""
        loc, scale, df = arrays
        # Integrate over the density: with few degrees of freedom the second moment lies far in
        # the tails, which double exponential nodes reach. Nodes at normal scores would not reach
        # far enough, and t quantiles are slow to compute.
        log_weights = (
            self._log_density(_NODES, np.zeros(()), np.ones(()), df[..., None]) + _LOG_SLOPES
        )
        weights = np.exp(log_weights)
        weights /= weights.sum(axis=-1, keepdims=True)
        for k, t in enumerate(_NODES):
            weight = weights[..., k]
            yield weight, loc + scale * np.where(weight > 0, t, 0.0)

    def _tfp_members(self) -> Any:
        from skuq.backend import tfd

        df, loc, scale = (np.moveaxis(a, 0, 1) for a in (self.df, self.loc, self.scale))
        return self._independent(tfd.StudentT(df, loc, scale))
