"""Distributions with mapped normal scores, for calibration by a stream of truths.

The normal score of y is the standard normal quantile at the value of the distribution's cdf at y.
Notation: n rows, m outputs (the last axis is absent if y was 1-D), q knots.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from skuq._checks import as_floats
from skuq._constants import LOG_SQRT_2PI
from skuq.predictive._continuous import Continuous
from skuq.predictive._piecewise_linear import PiecewiseLinear
from skuq.predictive._types import RandomSource
from skuq.predictive._uncertainty import Uncertainty

# Scores beyond this are measured in standard deviations, since levels near 0 and 1 are rounded.
_LARGEST_SCORE = 6.0
_EDGE = special.ndtr(-_LARGEST_SCORE)
_STEEPEST = 0.05  # smallest slope of a map of scores, so that the density is finite
# Nodes of the trapezoidal rule for moments of a function of a standard normal.
_NODES = np.linspace(-10, 10, 401)
_NODE_WEIGHTS = np.exp(-0.5 * _NODES**2) / np.exp(-0.5 * _NODES**2).sum()


def normal_scores(base: Any, y: np.ndarray) -> np.ndarray:
    """Compute the normal scores (n[, m]) of y under a distribution.

    Scores beyond -6 and 6 are extrapolated: they grow by 1 with each standard deviation of the
    row's distribution.
    """
    level = base.cdf(y)
    scores = special.ndtri(np.clip(level, _EDGE, 1 - _EDGE))
    # The side of y, 1 or -1, where its level is too close to 1 or 0 to be inverted; 0 elsewhere.
    side = np.sign(level - 0.5) * ((level < _EDGE) | (level > 1 - _EDGE))
    if side.any():
        # From the quantiles at +-6 on, scores grow in units of the row's standard deviation: the
        # map from y to scores stays continuous and can be inverted.
        low, high = base.inverse_cdf(_as_column([_EDGE, 1 - _EDGE], y.ndim))
        with np.errstate(over="ignore"):  # a score may be infinite
            distance = np.maximum(np.where(side > 0, y - high, low - y) / base.std, 0)
        scores = scores + np.where(side == 0, 0.0, np.copysign(distance, side))
    return scores


def at_scores(base: Any, scores: np.ndarray) -> np.ndarray:
    """Compute the y at normal scores (q, n[, m]): the inverse of `normal_scores`."""
    inside = np.clip(scores, -_LARGEST_SCORE, _LARGEST_SCORE)
    found: np.ndarray = base.inverse_cdf(special.ndtr(inside))
    beyond = scores - inside
    return found + base.std * beyond if beyond.any() else found


def _as_column(values: ArrayLike, n_axes: int) -> np.ndarray:
    """Append axes of length 1 to values (q,)."""
    return np.reshape(values, (-1, *[1] * n_axes))


def increasing(nominal: np.ndarray, tracked: np.ndarray) -> np.ndarray:
    """Raise scores (q[, m]) where they grow by less than 0.05 times the nominal ones."""
    least = _STEEPEST * _as_column(nominal, tracked.ndim - 1)
    # The scores minus the line of the least slope must not fall from one level to the next.
    return least + np.maximum.accumulate(tracked - least, axis=0)


@dataclass(frozen=True, eq=False)
class AdaptedDistribution(Continuous):
    """Distribution with normal scores mapped to those observed for truths.

    The quantile of level p is the y at which the base distribution has the score r(z), where z is
    the standard normal quantile at p. The map r corrects a bias (r(0) is not 0), a wrong width (the
    slope of r is not 1) and skewness.

    Parameters
    ----------
    base : distribution
        It must have mean, variance parts, cdf, inverse_cdf, log_prob and sample.
    nominal : ndarray of shape (q,)
        Scores z at the knots of r; increasing.
    tracked : ndarray of shape (q,) or (q, m)
        Scores r(z). Between knots r is linear; beyond them it continues with the mean slope from
        the middle.

    Notes
    -----
    `mean` is the point prediction of the base, not the mean of this distribution. `variance` is the
    mean squared distance from the point prediction, so that a bias increases it. It is exact for
    normals; for others it is the variance of the base times the factor of a normal. Each of several
    outputs has its own map, and the log density takes the outputs as independent.

    Examples
    --------
    >>> import numpy as np
    >>> from skuq.predictive import GaussianMixture
    >>> normal = GaussianMixture(np.zeros((1, 1)), np.ones((1, 1)))
    >>> z = np.array([-1.0, 0.0, 1.0])
    >>> wider = AdaptedDistribution(normal, z, 1 + 2 * z)
    >>> wider.interval(0.9).round(2)  # 1 ± 2 * 1.645
    array([[-2.29,  4.29]])
    """

    base: Any
    nominal: np.ndarray
    tracked: np.ndarray

    @property
    def _shape(self) -> tuple[int, ...]:
        shape: tuple[int, ...] = self.base.mean.shape
        return shape

    @property
    def _map(self) -> PiecewiseLinear:
        """The map r from nominal to tracked scores, with a further knot far beyond either end."""
        nominal, tracked = _as_column(self.nominal, self.tracked.ndim - 1), self.tracked
        ends, middle, far = [0, -1], len(nominal) // 2, 1e3
        # Mean slopes (2[, m]) from the middle to either end.
        slopes = (tracked[ends] - tracked[middle]) / (nominal[ends] - nominal[middle])
        low, high = np.maximum(slopes, _STEEPEST)[:, None]
        x = np.concatenate([nominal[:1] - far, nominal, nominal[-1:] + far])
        y = np.concatenate([tracked[:1] - far * low, tracked, tracked[-1:] + far * high])
        return PiecewiseLinear(np.broadcast_to(x, y.shape), y)

    @property
    def mean(self) -> np.ndarray:
        """The point prediction, which calibration leaves as it is. Shape (n[, m])."""
        mean: np.ndarray = self.base.mean
        return mean

    @property
    def _variance_factor(self) -> np.ndarray:
        """Second moment () or (m,) of the mapped scores of a standard normal."""
        shape = self.tracked.shape[1:]
        nodes = np.broadcast_to(_as_column(_NODES, len(shape)), (len(_NODES), *shape))
        # E[r(Z)^2] and not the variance of r(Z): a bias, r(0) not 0, counts.
        return np.asarray(_NODE_WEIGHTS @ self._map(nodes) ** 2)

    @property
    def variance(self) -> np.ndarray:
        """Mean squared distance from the point prediction, in squared units of y."""
        return self._variance_factor * self.base.variance

    @property
    def aleatoric_variance(self) -> np.ndarray:
        """The base's share of noise in the variance."""
        return self._variance_factor * self.base.aleatoric_variance

    @property
    def epistemic_variance(self) -> np.ndarray:
        """The base's share of disagreement in the variance."""
        return self._variance_factor * self.base.epistemic_variance

    def uncertainty(self, ddof: int = 0) -> Uncertainty:
        """Compute the mean and standard deviations by source; see `GaussianMixture.uncertainty`."""
        parts = self.base.uncertainty(ddof)
        return Uncertainty(
            self.mean, *(np.sqrt(self._variance_factor) * part for part in parts[1:])
        )

    def cdf(self, y: ArrayLike) -> np.ndarray:
        """Compute P(Y <= y) for each row and output; y broadcasts against (n[, m])."""
        y = as_floats(y)
        y = np.broadcast_to(y, np.broadcast_shapes(y.shape, self._shape))
        # P(Y <= y) = Phi(r^-1(s)), where s is the score of y under the base.
        levels: np.ndarray = special.ndtr(self._map.inverse(normal_scores(self.base, y)))
        return levels

    def inverse_cdf(self, levels: np.ndarray) -> np.ndarray:
        """Invert the cdf of each row and output, at levels that broadcast to (q, n[, m])."""
        levels = np.broadcast_to(levels, (len(levels), *self._shape))
        return at_scores(self.base, self._map(special.ndtri(levels)))

    def log_prob(self, y: ArrayLike) -> np.ndarray:
        """Compute the log density of each row, of all outputs together. Shape (n,)."""
        y = self._check_y(y)
        scores = normal_scores(self.base, y)
        nominal = self._map.inverse(scores)
        # d(score)/dy is f(y) / phi(score) of the base, and 1 / std beyond the largest score.
        densities = [self.base] if y.ndim == 1 else map(self.base.output, range(y.shape[1]))
        columns = y.reshape(len(y), -1).T
        log_f = np.stack([d.log_prob(column) for d, column in zip(densities, columns)], axis=1)
        rise = log_f.reshape(y.shape) + 0.5 * scores**2 + LOG_SQRT_2PI
        rise = np.where(abs(scores) < _LARGEST_SCORE, rise, -np.log(self.base.std))
        # Change of variables from z to y: log phi(z) - log r'(z) + log ds/dy, with z = r^-1(s).
        density = -0.5 * nominal**2 - LOG_SQRT_2PI - np.log(self._map.slope(nominal)) + rise
        return density if y.ndim == 1 else density.sum(axis=1)

    def sample(self, n_samples: int = 1, rng: RandomSource = None) -> np.ndarray:
        """Draw jointly, of shape (n[, m], n_samples): map the draws of the base."""
        draws = np.moveaxis(self.base.sample(n_samples, rng), -1, 0)  # (n_samples, n[, m])
        # A draw of the base has a standard normal score z, (n_samples, n[, m]); the draw returned
        # is the base's quantile at r(z).
        scores = np.stack([normal_scores(self.base, draw) for draw in draws])
        return np.moveaxis(at_scores(self.base, self._map(scores)), 0, -1)
