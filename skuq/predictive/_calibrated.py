"""Normals and mixtures whose levels, intervals or widths on both sides are calibrated.

Notation: n rows, m outputs (the last axis is absent where y was 1-D), q knots; s1 and s2 are the
standard deviations below and above the mode. The probability below the mode is s1 / (s1 + s2).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np
from scipy import special

from skuq._utils._records import saved_as
from skuq.predictive._mixture import FILLED_IN, Continuous, Parametric, Uncertainty
from skuq.predictive._parametric import NestedGaussianMixture, check_location_and_stds


def by_output(function: Callable[..., Any], values: np.ndarray, *knots: np.ndarray) -> Any:
    """Compute ``function(values, *knots)`` separately for each output.

    Values are (.., n) and knots (q,), or values (.., n, m) and knots (q, m).
    """
    if knots[0].ndim == 1:
        return function(values, *knots)
    outputs = range(values.shape[-1])
    columns = [function(values[..., k], *(part[:, k] for part in knots)) for k in outputs]
    return np.stack(columns, axis=-1)


def interp_slope(values: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Compute the slope of ``numpy.interp``, whose outer pieces extend beyond their knots here."""
    slopes = np.diff(y) / np.diff(x)
    piece = np.clip(np.searchsorted(x, values) - 1, 0, len(slopes) - 1)
    return np.asarray(slopes[piece])


_EDGE = 1e-12  # smallest distance of a level from 0 and 1, so that its quantile is finite
_CHUNK = 2**13  # rows whose moments are computed at a time


@dataclass(frozen=True, eq=False)
class Calibrated(Continuous):
    """Base of calibrated distributions: the point prediction is that of a base distribution.

    The variance has the parts of the base in proportion. A subclass that changes the variance
    overrides `variance` and, if it knows the factor of the parts, `_scale_part`.
    """

    base: Any

    #: Fields (k, m) with a column for each output, if there are several.
    _of_outputs: ClassVar[tuple[str, ...]]

    @property
    def _shape(self) -> tuple[int, ...]:
        return self.base._shape

    @property
    def mean(self) -> np.ndarray:
        """The point prediction, which calibration leaves as it is. Shape (n[, m])."""
        return self.base.mean

    @property
    def variance(self) -> np.ndarray:
        """Variance of the calibrated distribution about its own mean, in squared units of y."""
        return self.base.variance

    def _scale_part(self, part: np.ndarray) -> np.ndarray:
        """Compute a part of the variance from that of the base."""
        return part / self.base.variance * self.variance

    @property
    def aleatoric_variance(self) -> np.ndarray:
        """The base's share of noise in the variance."""
        return self._scale_part(self.base.aleatoric_variance)

    @property
    def epistemic_variance(self) -> np.ndarray:
        """The base's share of disagreement in the variance."""
        return self._scale_part(self.base.epistemic_variance)

    @property
    def _std_factor(self) -> np.ndarray:
        """Factor of the base's standard deviations."""
        return np.sqrt(self.variance / self.base.variance)

    def uncertainty(self, ddof: int = 0) -> Uncertainty:
        """Compute the mean and standard deviations by source; see `GaussianMixture.uncertainty`."""
        parts, factor = self.base.uncertainty(ddof), self._std_factor
        return Uncertainty(self.mean, *(factor * part for part in parts[1:]))

    def output(self, k: int) -> Self:
        """Select the marginal distribution of one of several outputs."""
        base = self.base.output(k)  # first, as it raises a clear error if there is one output
        columns = {name: getattr(self, name)[:, k] for name in self._of_outputs}
        return replace(self, base=base, **columns)

    def _draw(self, n_samples: int, seed: int, rng: np.random.Generator) -> np.ndarray:
        # As levels of the base its draws are uniform, and so become levels of this distribution.
        draws = self.base._draw(n_samples, seed, rng)
        levels = np.stack([self.base._cdf_at(draw) for draw in draws])
        return self._inverse_cdf_at(np.clip(levels, _EDGE, 1 - _EDGE))


@dataclass(frozen=True, eq=False)
class RecalibratedMixture(Calibrated):
    """Mixture with mapped levels: its cdf is R(cdf of the base).

    Parameters
    ----------
    base : GaussianMixture or NestedGaussianMixture
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
    >>> from skuq.predictive import GaussianMixture
    >>> normal = GaussianMixture(np.zeros((1, 1)), np.ones((1, 1)))
    >>> wider = RecalibratedMixture(normal, np.array([0, 0.1, 0.9, 1]), np.array([0, 0.3, 0.7, 1]))
    >>> wider.quantile([0.3, 0.7]).round(3)  # where the normal has 0.1 and 0.9
    array([[-1.282,  1.282]])
    """

    predicted: np.ndarray
    observed: np.ndarray

    _of_outputs = ("predicted", "observed")

    def _cdf_at(self, y: np.ndarray) -> np.ndarray:
        return np.asarray(by_output(np.interp, self.base._cdf_at(y), self.predicted, self.observed))

    def _inverse_cdf_at(self, levels: np.ndarray) -> np.ndarray:
        of_base = by_output(np.interp, levels, self.observed, self.predicted)
        return np.asarray(self.base._inverse_cdf_at(np.clip(of_base, _EDGE, 1 - _EDGE)))

    def _log_prob_at(self, y: np.ndarray) -> np.ndarray:
        if y.ndim == 2:
            marginals = [self.output(k)._log_prob_at(column) for k, column in enumerate(y.T)]
            return np.sum(marginals, axis=0)
        # d/dy R(F(y)) = R'(F(y)) f(y)
        slope = interp_slope(self.base._cdf_at(y), self.predicted, self.observed)
        return np.asarray(self.base._log_prob_at(y) + np.log(slope))

    @property
    def variance(self) -> np.ndarray:
        """Variance of the calibrated distribution about its own mean, in squared units of y."""
        # Levels of the knots are the same for all rows: (n_knots, 1[, m]).
        predicted, observed = self.predicted[:, None], self.observed[:, None]
        inner = np.clip(predicted[1:-1], _EDGE, 1 - _EDGE)
        slopes = np.diff(observed, axis=0) / np.diff(predicted, axis=0)
        parts = []
        for start in range(0, self._shape[0], _CHUNK):
            base = self.base.rows(slice(start, start + _CHUNK))
            # The knots of each row in units of y, (n_knots, n[, m]); the outermost are infinite.
            far = np.full((1, *base.mean.shape), np.inf)
            knots = np.concatenate([-far, base.inverse_cdf(inner), far])
            # Integrals of y - mean and of its square over each cell between two knots, weighted by
            # the base's density: (n_knots - 1, n[, m]).
            first = second = np.zeros((len(knots) - 1, *base.mean.shape))
            weights, (loc, scale) = base.weights, base._arrays[:2]
            if isinstance(base, NestedGaussianMixture):
                weights = weights.reshape(-1, *[1] * (loc.ndim - 1)) * base.probabilities
                # Members and components as one axis; the probabilities of components differ by row.
                weights, loc, scale = (a.reshape(-1, *a.shape[2:]) for a in (weights, loc, scale))
            for weight, own_loc, own_scale in zip(weights, loc, scale):
                z = (knots - own_loc) / own_scale
                # The integrals of 1, z and z**2 over each cell, for a standard normal z.
                mass = np.diff(special.ndtr(z), axis=0)
                density = np.exp(-0.5 * z**2) / np.sqrt(2 * np.pi)
                first_z = -np.diff(density, axis=0)
                second_z = mass - np.diff(np.where(np.isfinite(z), z, 0) * density, axis=0)
                # y - mean = offset + scale * z
                offset = own_loc - base.mean
                first = first + weight * (offset * mass + own_scale * first_z)
                second = second + weight * (
                    offset**2 * mass + 2 * offset * own_scale * first_z + own_scale**2 * second_z
                )
            # Between knots the density is the base's times the slope of R, so that moments are
            # sums over cells.
            first, second = ((slopes * moment).sum(axis=0) for moment in (first, second))
            parts.append(np.maximum(second - first**2, 0))
        return np.concatenate(parts)


@dataclass(frozen=True, eq=False)
class ConformalMixture(Calibrated):
    """Mixture with conformal intervals, which are symmetric about the mean.

    Intervals, quantiles and cdf are those of the standardised errors of held-out rows. The density
    and the samples are those of the base.

    Parameters
    ----------
    base : GaussianMixture or NestedGaussianMixture
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

    _of_outputs = ("scores", "reach")

    def _inverse_cdf_at(self, levels: np.ndarray) -> np.ndarray:
        # Intervals are symmetric about the mean: the quantile is one end of an interval.
        coverage = abs(2 * levels - 1)  # of the central interval that ends at the level

        def radius(wanted: np.ndarray, scores: np.ndarray, reach: np.ndarray) -> np.ndarray:
            # Smallest s with sum w_i [s_i <= s] >= coverage * total weight (Tibshirani et al.).
            at = np.searchsorted(reach, wanted * self._total_weight(reach) - 1e-9)
            beyond = (at >= len(scores)).any(axis=0)  # (n,)
            if beyond.any():
                reached = reach[-1] / np.max(self._total_weight(reach))
                # Without weights all rows fail together.
                where = f" for {beyond.sum()} of {len(beyond)} rows, unlike the calibration rows"
                where = "" if self.new_weight is None else where
                raise ValueError(
                    f"The calibration rows reach a coverage of {reached:.4g}{where}. Got "
                    f"{coverage.max():.4g}: calibrate on more rows (of each group), or take "
                    'method="isotonic".'
                )
            return np.asarray(scores[at])

        radii = by_output(radius, coverage, self.scores, self.reach)  # in predicted stds
        return np.asarray(self.mean + np.sign(levels - 0.5) * self.std * radii)

    def _total_weight(self, reach: np.ndarray) -> Any:
        """Compute the total weight with each row (n,), relative to that with a row of weight 1."""
        if self.new_weight is None:
            return 1.0
        # With W the weight of the calibration rows, reach[-1] = W / (W + 1), and a row of weight w
        # has the ratio (W + w) / (W + 1).
        return 1 + (1 - reach[-1]) * (self.new_weight - 1)

    def _cdf_at(self, y: np.ndarray) -> np.ndarray:
        z = (y - self.mean) / self.std

        def covered(z: np.ndarray, scores: np.ndarray, reach: np.ndarray) -> np.ndarray:
            # Scores equal to y count on its own side of the mean: right-continuous.
            counts = (np.searchsorted(scores, abs(z), side) for side in ("right", "left"))
            inside = np.where(z > 0, *counts)
            # The coverage of the interval that ends at y, which is 0 if it has no score inside.
            return np.asarray(np.concatenate([[0.0], reach])[inside] / self._total_weight(reach))

        # No score reaches a coverage of 1, but infinity is beyond every y.
        coverage = np.where(np.isinf(z), 1.0, by_output(covered, z, self.scores, self.reach))
        return np.asarray(0.5 + 0.5 * np.sign(z) * coverage)

    def _log_prob_at(self, y: np.ndarray) -> np.ndarray:
        return np.asarray(self.base._log_prob_at(y))

    def _draw(self, n_samples: int, seed: int, rng: np.random.Generator) -> np.ndarray:
        return np.asarray(self.base._draw(n_samples, seed, rng))


_SQRT_2_OVER_PI = np.sqrt(2 / np.pi)


@saved_as("predictive.TwoPieceNormal")
@dataclass(frozen=True, eq=False)
class TwoPieceNormal(Parametric):
    """Two-piece normal distribution for every row, with its mode at the point prediction.

    The density is proportional to ``exp(-(y - mode)**2 / (2 s1**2))`` below the mode and to
    the same with s2 above it, continuous at the mode. Outputs are independent.

    Parameters
    ----------
    mode : ndarray of shape (n,) or (n, m)
        Point prediction, in units of y.
    lower, upper : ndarray of shape (n,) or (n, m)
        Standard deviations of the model below and above the mode, in units of y.
    aleatoric : ndarray of shape (n,) or (n, m), optional
        Standard deviation of symmetric noise, in units of y; 0 by default.
        ``s1 = sqrt(lower**2 + aleatoric**2)``, and s2 accordingly; both must be positive.

    Raises
    ------
    ValueError
        If shapes disagree, a part is negative or not finite, or s1 or s2 is 0.

    See Also
    --------
    EpistemicNormal : Distribution of the same width below and above.

    Notes
    -----
    `mean` is the point prediction, which is the mode. The mean of this distribution is `expected`,
    and the variance, (1 - 2 / pi) (s2 - s1)^2 + s1 s2, is taken about it.

    The sum of a two-piece normal and noise is not a two-piece normal. Adding the variance of the
    noise to that of each side is a convention, which is exact if lower and upper are equal. With
    it, s1 s2 and therefore the variance are at least ``aleatoric**2``. The rest is the epistemic
    variance, so that the two parts are non-negative and sum to the variance.

    References
    ----------
    Wallis (2014), "The two-piece normal, binormal, or double Gaussian distribution: its
    origin and rediscoveries", Statistical Science 29(1). Heiss et al., "NOMU", appendix C.2
    (asymmetric bounds).

    Examples
    --------
    >>> import numpy as np
    >>> skewed = TwoPieceNormal(mode=np.zeros(1), lower=np.ones(1), upper=np.full(1, 3.0))
    >>> skewed.cdf(0.0), skewed.expected.round(3), skewed.interval(0.9).round(2)
    (array([0.25]), array([1.596]), array([[-1.28,  5.5 ]]))
    """

    mode: np.ndarray
    lower: np.ndarray
    upper: np.ndarray
    aleatoric: np.ndarray = FILLED_IN

    _array_kinds = {"mode": "location", "lower": "scale", "upper": "scale", "aleatoric": "scale"}

    def __post_init__(self) -> None:
        aleatoric = np.zeros(np.shape(self.mode)) if self.aleatoric is None else self.aleatoric
        mode, lower, upper, aleatoric = check_location_and_stds(
            mode=self.mode, lower=self.lower, upper=self.upper, aleatoric=aleatoric
        )
        vars(self).update(mode=mode, lower=lower, upper=upper, aleatoric=aleatoric)
        for name, side in zip(("lower", "upper"), self._sides):
            if not ((side > 0) & np.isfinite(side)).all():
                raise ValueError(
                    f"{name} must be positive where aleatoric is 0, and their root sum of squares "
                    f"must be finite. It lies between {side.min()} and {side.max()}."
                )

    @property
    def _sides(self) -> tuple[np.ndarray, np.ndarray]:
        """s1 and s2, each of shape (n[, m])."""
        with np.errstate(over="ignore"):
            return np.hypot(self.lower, self.aleatoric), np.hypot(self.upper, self.aleatoric)

    @property
    def _skew(self) -> np.ndarray:
        """Compute s2 - s1 without cancellation if the noise is large."""
        # s2 - s1 = (s2^2 - s1^2) / (s1 + s2), and s2^2 - s1^2 = upper^2 - lower^2.
        s1, s2 = self._sides
        return (self.upper - self.lower) * ((self.upper + self.lower) / (s1 + s2))

    @property
    def mean(self) -> np.ndarray:
        """Point prediction, of shape (n[, m]). It is the mode, not the mean of the distribution."""
        return self.mode

    @property
    def expected(self) -> np.ndarray:
        """Mean of this distribution, of shape (n[, m]), in units of y."""
        return self.mode + _SQRT_2_OVER_PI * self._skew

    @property
    def aleatoric_variance(self) -> np.ndarray:
        """Variance of the noise, as given, in squared units of y."""
        return self.aleatoric**2

    @property
    def epistemic_variance(self) -> np.ndarray:
        """Variance in excess of the noise's, in squared units of y."""
        # It is (1 - 2 / pi) (s2 - s1)^2 + s1 s2 - a^2. Rewrite s1 s2 - a^2 as
        # (s1 - a) s2 + a (s2 - a), with s1 - a = lower^2 / (s1 + a) and s2 - a accordingly:
        # without subtractions, rounding cannot make it negative.
        s1, s2 = self._sides
        a = self.aleatoric
        below = self.lower * (self.lower / (s1 + a))
        above = self.upper * (self.upper / (s2 + a))
        return (1 - 2 / np.pi) * self._skew**2 + below * s2 + a * above

    def uncertainty(self, ddof: int = 0) -> Uncertainty:
        """Return the point prediction and the standard deviations by source.

        Parameters
        ----------
        ddof : {0, 1}, default=0
            Ignored, since a single model has no divisor to correct.
        """
        return Uncertainty(self.mean, self.aleatoric, np.sqrt(self.epistemic_variance), self.std)

    def _cdf_at(self, y: np.ndarray) -> np.ndarray:
        s1, s2 = self._sides
        z = y - self.mode
        # Each side is a normal of its own scale, with its half of the mass scaled to
        # s1 / (s1 + s2) below the mode and s2 / (s1 + s2) above it.
        below = 2 * s1 / (s1 + s2) * special.ndtr(z / s1)
        above = 1 - 2 * s2 / (s1 + s2) * special.ndtr(-z / s2)
        return np.where(z < 0, below, above)

    def _log_prob_at(self, y: np.ndarray) -> np.ndarray:
        s1, s2 = self._sides
        z = (y - self.mode) / np.where(y < self.mode, s1, s2)
        density = np.log(_SQRT_2_OVER_PI) - np.log(s1 + s2) - 0.5 * z**2
        return np.asarray(density.sum(axis=tuple(range(1, y.ndim))))

    def _inverse_cdf_at(self, levels: np.ndarray) -> np.ndarray:
        s1, s2 = self._sides
        # Levels are clipped at the mode, where the standard normal's level is 1/2 and its
        # quantile 0: one of the two terms is always 0.
        below = special.ndtri(np.minimum(levels * ((s1 + s2) / (2 * s1)), 0.5))
        above = special.ndtri(np.minimum((1 - levels) * ((s1 + s2) / (2 * s2)), 0.5))
        return self.mode + s1 * below - s2 * above

    def _draw(self, n_samples: int, seed: int, rng: np.random.Generator) -> np.ndarray:
        shape = n_samples, *self.mode.shape
        model = np.random.default_rng(seed).standard_normal((n_samples, 1, *shape[2:]))
        # Normal scores that rows share as far as their variance is epistemic. With equal sides
        # this is the draw of an `EpistemicNormal`.
        shared, own = (
            np.sqrt(part / self.variance)
            for part in (self.epistemic_variance, self.aleatoric_variance)
        )
        levels = special.ndtr(shared * model + own * rng.standard_normal(shape))
        tiny = np.finfo(float).tiny  # levels of 0 and 1 have no finite quantiles
        return self._inverse_cdf_at(np.clip(levels, tiny, 1 - np.finfo(float).epsneg))

    def to_tfp(self) -> Any:
        """Convert to a TensorFlow Probability distribution with a batch of n independent rows."""
        from skuq.backend import tfd

        s1, s2 = self._sides
        # TFP has scale / skewness below the mode and scale * skewness above it.
        pieces = tfd.TwoPieceNormal(self.mode, np.sqrt(s1) * np.sqrt(s2), np.sqrt(s2 / s1))
        if self.mode.ndim == 2:
            return tfd.Independent(pieces, reinterpreted_batch_ndims=1)
        return pieces
