"""Normals with another width on each side of the point prediction.

Notation: n rows, m outputs (the last axis is absent where y was 1-D); s1 and s2 are the standard
deviations below and above the mode. The probability below the mode is s1 / (s1 + s2).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import special

from skuq.files._registry import saved_as
from skuq.predictive._distributions import FILLED_IN, Continuous, Uncertainty
from skuq.predictive._normals import check_location_and_stds

_SQRT_2_OVER_PI = np.sqrt(2 / np.pi)


@saved_as("predictive.TwoPieceNormal")
@dataclass(frozen=True, eq=False)
class TwoPieceNormal(Continuous):
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
    def sides(self) -> list[np.ndarray]:
        """Standard deviations of the model above and below the mode."""
        return [self.upper, self.lower]

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
        return self.mode.copy()

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
        noise, model = self.aleatoric.copy(), np.sqrt(self.epistemic_variance)
        return Uncertainty(self.mean, noise, model, self.std)

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
