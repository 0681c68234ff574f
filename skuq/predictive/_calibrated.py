"""Mixtures of normals whose levels or intervals are calibrated.

Notation: n rows, m outputs (the last axis is absent where y was 1-D).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from skuq._checks import as_floats
from skuq.predictive._continuous import Continuous
from skuq.predictive._gaussian_mixture import GaussianMixture
from skuq.predictive._piecewise_linear import PiecewiseLinear
from skuq.predictive._types import RandomSource
from skuq.predictive._uncertainty import Uncertainty

_EDGE = 1e-12  # smallest distance of a level from 0 and 1, so that its quantile is finite
_CHUNK = 2**13  # rows whose moments are computed at a time


@dataclass(frozen=True, eq=False)
class _Calibrated(Continuous):
    """Base of calibrated mixtures, whose variance has the parts of the base in proportion."""

    base: GaussianMixture

    @property
    def mean(self) -> np.ndarray:
        """The point prediction, which calibration leaves as it is. Shape (n[, m])."""
        return self.base.mean

    @property
    def variance(self) -> np.ndarray:
        """Variance of the calibrated distribution about its own mean, in squared units of y."""
        return self.base.variance

    def _share(self, part: np.ndarray) -> np.ndarray:
        return part / self.base.variance * self.variance

    @property
    def aleatoric_variance(self) -> np.ndarray:
        """The base's share of noise in the variance."""
        return self._share(self.base.aleatoric_variance)

    @property
    def epistemic_variance(self) -> np.ndarray:
        """The base's share of disagreement in the variance."""
        return self._share(self.base.epistemic_variance)

    def uncertainty(self, ddof: int = 0) -> Uncertainty:
        """Compute the mean and standard deviations by source; see `GaussianMixture.uncertainty`."""
        parts = self.base.uncertainty(ddof)
        factor = np.sqrt(self.variance / self.base.variance)
        return Uncertainty(self.mean, *(factor * part for part in parts[1:]))


@dataclass(frozen=True, eq=False)
class RecalibratedMixture(_Calibrated):
    """Mixture with mapped levels: its cdf is R(cdf of the base).

    Parameters
    ----------
    base : GaussianMixture
        Distribution before the calibration.
    predicted, observed : ndarray of shape (n_knots,) or (n_knots, m)
        Knots of R and the values there, both strictly increasing from 0 to 1. Between knots R is
        linear.

    Notes
    -----
    `mean` is the point prediction of the base, not the mean of this distribution. `variance` is
    about this distribution's own mean. Each of several outputs has its own map, and the log density
    takes the outputs as independent.

    References
    ----------
    Kuleshov, Fenner and Ermon (2018), "Accurate Uncertainties for Deep Learning Using
    Calibrated Regression".

    Examples
    --------
    >>> normal = GaussianMixture(np.zeros((1, 1)), np.ones((1, 1)))
    >>> wider = RecalibratedMixture(normal, np.array([0, 0.1, 0.9, 1]), np.array([0, 0.3, 0.7, 1]))
    >>> wider.quantile([0.3, 0.7]).round(3)  # where the normal has 0.1 and 0.9
    array([[-1.282,  1.282]])
    """

    predicted: np.ndarray
    observed: np.ndarray

    @property
    def _map(self) -> PiecewiseLinear:
        """R, from predicted to observed levels."""
        return PiecewiseLinear(self.predicted, self.observed)

    def _base_levels(self, levels: np.ndarray) -> np.ndarray:
        return np.clip(self._map.inverse(levels), _EDGE, 1 - _EDGE)

    def cdf(self, y: ArrayLike) -> np.ndarray:
        """Compute P(Y <= y) for each row and output."""
        return self._map(self.base.cdf(y))

    @property
    def _shape(self) -> tuple[int, ...]:
        return self.base.loc.shape[1:]

    def inverse_cdf(self, levels: np.ndarray) -> np.ndarray:
        """Invert the cdf of each row and output, at levels that broadcast to (q, n[, m])."""
        levels = np.broadcast_to(levels, (len(levels), *self._shape))
        return self.base.inverse_cdf(self._base_levels(levels))

    def log_prob(self, y: ArrayLike) -> np.ndarray:
        """Compute the log density of each row, of all outputs together. Shape (n,)."""
        y = self._check_y(y)
        if y.ndim == 2:
            marginals = [self.output(k).log_prob(column) for k, column in enumerate(y.T)]
            return np.sum(marginals, axis=0)
        # d/dy R(F(y)) = R'(F(y)) f(y)
        return self.base.log_prob(y) + np.log(self._map.slope(self.base.cdf(y)))

    def output(self, k: int) -> RecalibratedMixture:
        """Select the marginal distribution of one of several outputs."""
        return RecalibratedMixture(self.base.output(k), self.predicted[:, k], self.observed[:, k])

    @property
    def variance(self) -> np.ndarray:
        """Variance of the calibrated distribution about its own mean, in squared units of y."""
        base = self.base
        parts = [
            self._variance(base.rows(slice(start, start + _CHUNK)))
            for start in range(0, base.loc.shape[1], _CHUNK)
        ]
        return np.concatenate(parts)

    def _variance(self, base: GaussianMixture) -> np.ndarray:
        """Compute the variance of some rows, from moments of the mixture between knots."""
        # Levels of the knots are the same for all rows: (n_knots, 1[, m]).
        predicted, observed = self.predicted[:, None], self.observed[:, None]
        # The knots of each row in units of y, (n_knots, n[, m]); the outermost are infinite.
        far = np.full((1, *base.mean.shape), np.inf)
        knots = np.concatenate(
            [-far, base.inverse_cdf(np.clip(predicted[1:-1], _EDGE, 1 - _EDGE)), far]
        )
        # Between knots the density is the base's times the slope of R, so that moments are sums
        # over cells.
        slopes = np.diff(observed, axis=0) / np.diff(predicted, axis=0)
        first, second = ((slopes * moment).sum(axis=0) for moment in _partial_moments(base, knots))
        return np.maximum(second - first**2, 0)

    def sample(self, n_samples: int = 1, rng: RandomSource = None) -> np.ndarray:
        """Draw jointly, of shape (n[, m], n_samples): map the draws of the base."""
        draws = np.moveaxis(self.base.sample(n_samples, rng), -1, 0)  # (n_samples, n[, m])
        # Draws of the base are uniform as levels, and R^-1 turns levels of this distribution into
        # the base's.
        levels = self._base_levels(np.stack([self.base.cdf(draw) for draw in draws]))
        return np.moveaxis(self.base.inverse_cdf(levels), 0, -1)


def _partial_moments(mixture: GaussianMixture, knots: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Integrate y - mean and its square over each cell between two knots (n_knots, n[, m]).

    The integrals are weighted by the mixture's density, and have shape (n_knots - 1, n[, m]).
    """
    first = second = np.zeros((len(knots) - 1, *mixture.mean.shape))
    for weight, loc, scale in zip(mixture.weights, mixture.loc, mixture.scale):
        z = (knots - loc) / scale
        # The integrals of 1, z and z**2 over each cell, for a standard normal z.
        mass = np.diff(special.ndtr(z), axis=0)
        density = np.exp(-0.5 * z**2) / np.sqrt(2 * np.pi)
        first_z = -np.diff(density, axis=0)
        second_z = mass - np.diff(np.where(np.isfinite(z), z, 0) * density, axis=0)
        # y - mean = offset + scale * z
        offset = loc - mixture.mean
        first = first + weight * (offset * mass + scale * first_z)
        second = second + weight * (
            offset**2 * mass + 2 * offset * scale * first_z + scale**2 * second_z
        )
    return first, second


@dataclass(frozen=True, eq=False)
class ConformalMixture(_Calibrated):
    """Mixture with conformal intervals, which are symmetric about the mean.

    Intervals, quantiles and cdf are those of the standardised errors of held-out rows. The density
    and the samples are those of the base.

    Parameters
    ----------
    base : GaussianMixture
        Mixture with calibrated standard deviations.
    scores : ndarray of shape (n_scores,) or (n_scores, m)
        Sorted absolute errors of held-out rows, in predicted standard deviations.
    reach : ndarray of the same shape
        Least coverage of intervals whose half width is the score: increasing, below 1.
    new_weight : ndarray of shape (n,), optional
        Weight of each row under covariate shift, relative to the average held-out row. `reach` is
        for rows of weight 1, the default.

    References
    ----------
    Lei, G'Sell, Rinaldo, Tibshirani and Wasserman (2018), "Distribution-Free Predictive
    Inference for Regression", section 5.2 (locally weighted). Tibshirani, Barber, Candès and
    Ramdas (2019), "Conformal Prediction Under Covariate Shift", Eq. 6 (weights).

    Examples
    --------
    >>> import numpy as np
    >>> from skuq.predictive import ConformalMixture, GaussianMixture
    >>> normal = GaussianMixture(np.zeros((1, 1)), np.ones((1, 1)))
    >>> errors = np.arange(1, 10) / 3  # of nine held-out rows, in standard deviations
    >>> conformal = ConformalMixture(normal, errors, np.arange(1, 10) / 10)
    >>> conformal.interval(0.8).round(2)
    array([[-2.67,  2.67]])
    """

    scores: np.ndarray
    reach: np.ndarray
    new_weight: np.ndarray | None = None

    @property
    def _shape(self) -> tuple[int, ...]:
        return self.base.mean.shape

    def inverse_cdf(self, levels: np.ndarray) -> np.ndarray:
        """Invert the cdf of each row and output, at levels that broadcast to (q, n[, m]).

        Raises
        ------
        ValueError
            If there were too few held-out rows for a level.
        """
        levels = np.asarray(levels, dtype=float)
        levels = np.broadcast_to(levels, (len(levels), *self._shape))
        # Intervals are symmetric about the mean: the quantile is one end of an interval.
        coverage = abs(2 * levels - 1)  # of the central interval that ends at the level
        columns = []
        for (scores, reach), wanted in zip(self._columns, np.moveaxis(self._flat(coverage), -1, 0)):
            # Smallest s with sum w_i [s_i <= s] >= coverage * total weight (Tibshirani et al.).
            at = np.searchsorted(reach, wanted * self._total_weight(reach) - 1e-9)
            if at.max(initial=0) >= len(scores):
                reached = reach[-1] / np.max(self._total_weight(reach))
                raise ValueError(
                    f"The calibration rows reach a coverage of {reached:.4g}. Got "
                    f"{coverage.max():.4g}: calibrate on more rows (of each group), or take "
                    'method="isotonic".'
                )
            columns.append(scores[at])
        # (q, n[, m]), in predicted standard deviations.
        radius = np.stack(columns, axis=-1).reshape(levels.shape)
        return self.mean + np.sign(levels - 0.5) * self.std * radius

    def _flat(self, values: np.ndarray) -> np.ndarray:
        """Give values (.., n[, m]) an axis of outputs, if they have none."""
        return values[..., None] if len(self._shape) == 1 else values

    @property
    def _columns(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """Scores and reach of each output."""
        scores, reach = (a.reshape(len(a), -1) for a in (self.scores, self.reach))
        return list(zip(scores.T, reach.T))

    def _total_weight(self, reach: np.ndarray) -> Any:
        """Compute the total weight with each row (n,), relative to that with a row of weight 1."""
        if self.new_weight is None:
            return 1.0
        # With W the weight of the calibration rows, reach[-1] = W / (W + 1), and a row of weight w
        # has the ratio (W + w) / (W + 1).
        return 1 + (1 - reach[-1]) * (self.new_weight - 1)

    def cdf(self, y: ArrayLike) -> np.ndarray:
        """Compute P(Y <= y) for each row and output, in steps."""
        z = (as_floats(y) - self.mean) / self.std
        columns = []
        for (scores, reach), z_of_output in zip(self._columns, np.moveaxis(self._flat(z), -1, 0)):
            # Scores equal to y count on its own side of the mean: right-continuous.
            inside = np.where(
                z_of_output > 0,
                *(np.searchsorted(scores, abs(z_of_output), side) for side in ("right", "left")),
            )
            # The coverage of the interval that ends at y, which is 0 if it has no score inside.
            columns.append(np.concatenate([[0.0], reach])[inside] / self._total_weight(reach))
        return 0.5 + 0.5 * np.sign(z) * np.stack(columns, axis=-1).reshape(z.shape)

    def log_prob(self, y: ArrayLike) -> np.ndarray:
        """Compute the log density of each row under the base. Shape (n,)."""
        return self.base.log_prob(y)

    def output(self, k: int) -> ConformalMixture:
        """Select the marginal distribution of one of several outputs."""
        return ConformalMixture(
            self.base.output(k), self.scores[:, k], self.reach[:, k], self.new_weight
        )

    def sample(self, n_samples: int = 1, rng: RandomSource = None) -> np.ndarray:
        """Draw jointly from the base, of shape (n[, m], n_samples)."""
        return self.base.sample(n_samples, rng)
