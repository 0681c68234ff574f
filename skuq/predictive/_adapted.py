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

from skuq._constants import LOG_SQRT_2PI
from skuq.predictive._continuous import Continuous
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

    Beyond 6 they grow by 1 with each standard deviation of the row.
    """
    level = base.cdf(y)
    scores = special.ndtri(np.clip(level, _EDGE, 1 - _EDGE))
    outside = np.sign(level - 0.5) * ((level < _EDGE) | (level > 1 - _EDGE))
    if outside.any():
        low, high = base.inverse_cdf(_as_levels([_EDGE, 1 - _EDGE], y.ndim))
        with np.errstate(over="ignore"):  # an infinite score is further out than any other
            beyond = np.maximum(np.where(outside > 0, y - high, low - y) / base.std, 0)
        scores = scores + np.where(outside == 0, 0.0, np.copysign(beyond, outside))
    return scores


def at_scores(base: Any, scores: np.ndarray) -> np.ndarray:
    """Compute the y at normal scores (q, n[, m]): the inverse of `normal_scores`."""
    inside = np.clip(scores, -_LARGEST_SCORE, _LARGEST_SCORE)
    found: np.ndarray = base.inverse_cdf(special.ndtr(inside))
    beyond = scores - inside
    return found + base.std * beyond if beyond.any() else found


def _as_levels(levels: ArrayLike, n_axes: int) -> np.ndarray:
    return np.reshape(levels, (-1, *[1] * n_axes))


def increasing(nominal: np.ndarray, tracked: np.ndarray) -> np.ndarray:
    """Raise scores (q[, m]) where they grow by less than 0.05 times the nominal ones."""
    least = _STEEPEST * nominal.reshape(-1, *[1] * (tracked.ndim - 1))
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
    def _maps(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """Knots (z, r) of each output's map, with a further one far beyond either end."""
        middle = len(self.nominal) // 2
        maps = []
        for tracked in self.tracked.reshape(len(self.nominal), -1).T:
            z, r = self.nominal - self.nominal[middle], tracked - tracked[middle]
            slopes = [max(r[end] / z[end], _STEEPEST) for end in (0, -1)]
            far = 1e3
            knots = np.concatenate(
                [[self.nominal[0] - far], self.nominal, [self.nominal[-1] + far]]
            )
            values = np.concatenate(
                [[tracked[0] - far * slopes[0]], tracked, [tracked[-1] + far * slopes[1]]]
            )
            maps.append((knots, values))
        return maps

    def _map(self, scores: np.ndarray, *, inverse: bool = False) -> np.ndarray:
        """r or its inverse, output by output, of scores (.., n[, m])."""
        maps = [pair[::-1] if inverse else pair for pair in self._maps]
        if len(self._shape) == 1:
            return np.interp(scores, *maps[0])
        columns = [np.interp(scores[..., k], *pair) for k, pair in enumerate(maps)]
        return np.stack(columns, axis=-1)

    def _slope(self, nominal: np.ndarray) -> np.ndarray:
        """Derivative of r at nominal scores (n[, m])."""
        columns = []
        for (z, r), own in zip(self._maps, nominal.reshape(len(nominal), -1).T):
            slopes = np.diff(r) / np.diff(z)
            columns.append(slopes[np.clip(np.searchsorted(z, own) - 1, 0, len(slopes) - 1)])
        return np.stack(columns, axis=1).reshape(nominal.shape)

    @property
    def mean(self) -> np.ndarray:
        """The point prediction, which calibration leaves as it is. Shape (n[, m])."""
        mean: np.ndarray = self.base.mean
        return mean

    @property
    def _variance_factor(self) -> np.ndarray:
        """Second moment () or (m,) of the mapped scores of a standard normal."""
        moments = [_NODE_WEIGHTS @ np.interp(_NODES, *pair) ** 2 for pair in self._maps]
        return np.asarray(moments if len(self._shape) > 1 else moments[0])

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

    def uncertainty(self, epistemic_ddof: int = 0) -> Uncertainty:
        """Mean and standard deviations by source; see `GaussianMixture.uncertainty`."""
        parts = self.base.uncertainty(epistemic_ddof)
        return Uncertainty(
            self.mean, *(np.sqrt(self._variance_factor) * part for part in parts[1:])
        )

    def cdf(self, y: ArrayLike) -> np.ndarray:
        """P(Y <= y) for each row and output; y broadcasts against (n[, m])."""
        y = np.asarray(y, dtype=float)
        y = np.broadcast_to(y, np.broadcast_shapes(y.shape, self._shape))
        levels: np.ndarray = special.ndtr(self._map(normal_scores(self.base, y), inverse=True))
        return levels

    def inverse_cdf(self, levels: np.ndarray) -> np.ndarray:
        """Invert the cdf of each row and output, at levels that broadcast to (q, n[, m])."""
        levels = np.broadcast_to(levels, (len(levels), *self._shape))
        return at_scores(self.base, self._map(special.ndtri(levels)))

    def log_prob(self, y: ArrayLike) -> np.ndarray:
        """Log density of each row, of all outputs together. Shape (n,)."""
        y = self._check_y(y)
        scores = normal_scores(self.base, y)
        nominal = self._map(scores, inverse=True)
        # d(score)/dy is f(y) / phi(score) of the base, and 1 / std beyond the largest score.
        densities = [self.base] if y.ndim == 1 else map(self.base.output, range(y.shape[1]))
        columns = y.reshape(len(y), -1).T
        log_f = np.stack([d.log_prob(own) for d, own in zip(densities, columns)], axis=1)
        rise = log_f.reshape(y.shape) + 0.5 * scores**2 + LOG_SQRT_2PI
        rise = np.where(abs(scores) < _LARGEST_SCORE, rise, -np.log(self.base.std))
        density = -0.5 * nominal**2 - LOG_SQRT_2PI - np.log(self._slope(nominal)) + rise
        return density if y.ndim == 1 else density.sum(axis=1)

    def sample(self, n_samples: int = 1, rng: RandomSource = None) -> np.ndarray:
        """Joint draws, of shape (n[, m], n_samples): those of the base, mapped."""
        draws = np.moveaxis(self.base.sample(n_samples, rng), -1, 0)  # (n_samples, n[, m])
        scores = np.stack([normal_scores(self.base, draw) for draw in draws])
        return np.moveaxis(at_scores(self.base, self._map(scores)), 0, -1)
