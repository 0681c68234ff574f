"""Mixtures of normals with another calibration of their levels.

Notation: n rows, m outputs (the last axis is absent where y was 1-D).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from skuq.predictive._continuous import Continuous
from skuq.predictive._gaussian_mixture import GaussianMixture
from skuq.predictive._types import RandomSource
from skuq.predictive._uncertainty import Uncertainty

_EDGE = 1e-12  # levels nearer to 0 and 1 than this have no finite quantile in double precision
_CHUNK = 2**13  # rows whose moments are computed at a time


@dataclass(frozen=True, eq=False)
class _Calibrated(Continuous):
    """Base of calibrated mixtures: the variance has the base's proportions of parts."""

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

    def uncertainty(self, epistemic_ddof: int = 0) -> Uncertainty:
        """Mean and standard deviations by source; see `GaussianMixture.uncertainty`."""
        parts = self.base.uncertainty(epistemic_ddof)
        factor = np.sqrt(self.variance / self.base.variance)
        return Uncertainty(self.mean, *(factor * part for part in parts[1:]))


@dataclass(frozen=True, eq=False)
class RecalibratedMixture(_Calibrated):
    """A mixture whose levels are mapped to observed ones: cdf = R(base cdf).

    Parameters
    ----------
    base : GaussianMixture
    predicted, observed : ndarray of shape (n_knots,) or (n_knots, m)
        R is linear between these points; strictly increasing, from 0 to 1.

    Notes
    -----
    The mean of this distribution is not `mean`, which stays the point prediction; its
    variance is about its own. Of several outputs each has its own map, and the log
    density takes them as independent.

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

    def _map(self, levels: np.ndarray, forward: bool) -> np.ndarray:
        """R or its inverse, output by output, of levels (.., n[, m])."""
        source, target = (self.predicted, self.observed)[:: 1 if forward else -1]
        if source.ndim == 1:
            return np.interp(levels, source, target)
        maps = [
            np.interp(levels[..., k], source[:, k], target[:, k]) for k in range(source.shape[1])
        ]
        return np.stack(maps, axis=-1)

    def _slope(self, levels: np.ndarray) -> np.ndarray:
        """Derivative of R at levels (n[, m])."""
        predicted, observed = (a.reshape(len(a), -1) for a in (self.predicted, self.observed))
        slopes = np.diff(observed, axis=0) / np.diff(predicted, axis=0)
        columns = [
            own[np.clip(np.searchsorted(knots, column) - 1, 0, len(own) - 1)]
            for own, knots, column in zip(slopes.T, predicted.T, levels.reshape(len(levels), -1).T)
        ]
        return np.stack(columns, axis=1).reshape(levels.shape)

    def _base_levels(self, levels: np.ndarray) -> np.ndarray:
        return np.clip(self._map(levels, forward=False), _EDGE, 1 - _EDGE)

    def cdf(self, y: ArrayLike) -> np.ndarray:
        """P(Y <= y) for each row and output."""
        return self._map(self.base.cdf(y), forward=True)

    @property
    def _shape(self) -> tuple[int, ...]:
        return self.base.loc.shape[1:]

    def inverse_cdf(self, levels: np.ndarray) -> np.ndarray:
        """Invert the cdf of each row and output, at levels that broadcast to (q, n[, m])."""
        levels = np.broadcast_to(levels, (len(levels), *self._shape))
        return self.base.inverse_cdf(self._base_levels(levels))

    def log_prob(self, y: ArrayLike) -> np.ndarray:
        """Log density of each row, of all outputs together. Shape (n,)."""
        y = np.asarray(y, dtype=float)
        slope = np.log(self._slope(self.base.cdf(y)))
        if slope.ndim == 1:
            return self.base.log_prob(y) + slope
        marginals = [self.base.output(k).log_prob(y[:, k]) for k in range(y.shape[1])]
        return np.sum(marginals, axis=0) + slope.sum(axis=1)

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
        """Variance of some rows, from moments of the mixture between its knots."""
        # A level (or one for each output) a knot, for all rows: (n_knots, 1[, m]).
        predicted, observed = self.predicted[:, None], self.observed[:, None]
        far = np.full((1, *base.mean.shape), np.inf)
        knots = np.concatenate(
            [-far, base.inverse_cdf(np.clip(predicted[1:-1], _EDGE, 1 - _EDGE)), far]
        )
        slopes = np.diff(observed, axis=0) / np.diff(predicted, axis=0)
        first, second = ((slopes * moment).sum(axis=0) for moment in _partial_moments(base, knots))
        return np.maximum(second - first**2, 0)

    def sample(self, n_samples: int = 1, rng: RandomSource = None) -> np.ndarray:
        """Joint draws, of shape (n[, m], n_samples): those of the base, mapped."""
        draws = np.moveaxis(self.base.sample(n_samples, rng), -1, 0)  # (n_samples, n[, m])
        levels = self._base_levels(np.stack([self.base.cdf(draw) for draw in draws]))
        return np.moveaxis(self.base.inverse_cdf(levels), 0, -1)


def _partial_moments(mixture: GaussianMixture, knots: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """First and second moments about the mean, (n_cells, n[, m]), of what lies between knots."""
    first = second = np.zeros((len(knots) - 1, *mixture.mean.shape))
    for weight, loc, scale in zip(mixture.weights, mixture.loc, mixture.scale):
        z = (knots - loc) / scale
        mass = np.diff(special.ndtr(z), axis=0)
        density = np.exp(-0.5 * z**2) / np.sqrt(2 * np.pi)
        slope = -np.diff(density, axis=0)  # E[Z; cell] of a standard normal Z
        square = mass - np.diff(np.where(np.isfinite(z), z, 0) * density, axis=0)
        off = loc - mixture.mean
        first = first + weight * (off * mass + scale * slope)
        second = second + weight * (off**2 * mass + 2 * off * scale * slope + scale**2 * square)
    return first, second


@dataclass(frozen=True, eq=False)
class ConformalMixture(_Calibrated):
    """A mixture with conformal intervals: the mean, and as many stds as held-out rows say.

    Intervals, quantiles and cdf are those of the standardised errors, the density and the
    samples those of the base.

    Parameters
    ----------
    base : GaussianMixture
        Mixture of calibrated scale.
    scores : ndarray of shape (n_scores,) or (n_scores, m)
        Sorted absolute errors of held-out rows, in units of their predicted std.
    reach : ndarray of the same shape
        Coverage that an interval of so many stds has, at least: increasing, below 1.
    new_weight : ndarray of shape (n,), optional
        Weight of each row beside that of a mean held-out row, under covariate shift; `reach` is for
        rows of weight 1.

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
            If there were too few rows to reach so far out.
        """
        levels = np.asarray(levels, dtype=float)
        levels = np.broadcast_to(levels, (len(levels), *self._shape))
        coverage = abs(2 * levels - 1)
        columns = []
        for (scores, reach), own in zip(self._columns, np.moveaxis(self._flat(coverage), -1, 0)):
            at = np.searchsorted(reach, own * self._spare(reach) - 1e-9)
            if at.max(initial=0) >= len(scores):
                reached = reach[-1] / np.max(self._spare(reach))
                raise ValueError(
                    f"The calibration rows reach a coverage of {reached:.4g}. Got "
                    f"{coverage.max():.4g}: calibrate on more rows (of each group), or take "
                    'method="isotonic".'
                )
            columns.append(scores[at])
        radius = np.stack(columns, axis=-1).reshape(levels.shape)
        return self.mean + np.sign(levels - 0.5) * self.std * radius

    def _flat(self, values: np.ndarray) -> np.ndarray:
        """Values (.., n[, m]) with the axis of outputs."""
        return values[..., None] if len(self._shape) == 1 else values

    @property
    def _columns(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """Scores and reach of each output."""
        scores, reach = (a.reshape(len(a), -1) for a in (self.scores, self.reach))
        return list(zip(scores.T, reach.T))

    def _spare(self, reach: np.ndarray) -> Any:
        """Total weight with each row (n,), over that with a row of weight 1."""
        if self.new_weight is None:
            return 1.0
        return 1 + (1 - reach[-1]) * (self.new_weight - 1)

    def cdf(self, y: ArrayLike) -> np.ndarray:
        """P(Y <= y) for each row and output, in steps."""
        z = (np.asarray(y, dtype=float) - self.mean) / self.std
        columns = []
        for (scores, reach), own in zip(self._columns, np.moveaxis(self._flat(z), -1, 0)):
            # Scores equal to y count on its own side of the mean: right-continuous.
            inside = np.where(
                own > 0, *(np.searchsorted(scores, abs(own), side) for side in ("right", "left"))
            )
            columns.append(np.concatenate([[0.0], reach])[inside] / self._spare(reach))
        return 0.5 + 0.5 * np.sign(z) * np.stack(columns, axis=-1).reshape(z.shape)

    def log_prob(self, y: ArrayLike) -> np.ndarray:
        """Log density of each row under the base. Shape (n,)."""
        return self.base.log_prob(y)

    def sample(self, n_samples: int = 1, rng: RandomSource = None) -> np.ndarray:
        """Joint draws of the base, of shape (n[, m], n_samples)."""
        return self.base.sample(n_samples, rng)
