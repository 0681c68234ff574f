"""Mixtures of normals: what an ensemble of networks with Gaussian heads predicts.

Notation: K members, n rows, m outputs (the last axis is absent where y was 1-D).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import special
from scipy.optimize import elementwise

from skuq.predictive._levels import check_levels, interval_levels
from skuq.predictive._uncertainty import Uncertainty

__all__ = ["GaussianMixture"]

_LOG_SQRT_2PI = 0.5 * np.log(2 * np.pi)


@dataclass(frozen=True, eq=False)
class GaussianMixture:
    """For every row a mixture of K normals; weights are shared by all rows.

    Given the member, outputs are independent; over members they are not.

    Parameters
    ----------
    loc, scale : ndarray of shape (K, n) or (K, n, m)
        Means and standard deviations of the members, in units of y; scale > 0.
    weights : ndarray of shape (K,), optional
        Positive, summing to 1; equal by default.

    Raises
    ------
    ValueError
        If shapes disagree, scales are not positive or weights do not sum to 1.

    References
    ----------
    Egele et al., "AutoDEUQ", Eq. 3; Lakshminarayanan et al. (2017), section 2.4.

    Examples
    --------
    >>> import numpy as np
    >>> two = GaussianMixture(loc=np.array([[0.0], [2.0]]), scale=np.ones((2, 1)))
    >>> two.mean, two.aleatoric_variance, two.epistemic_variance
    (array([1.]), array([1.]), array([1.]))
    """

    loc: np.ndarray
    scale: np.ndarray
    weights: np.ndarray | None = None

    def __post_init__(self):
        loc = np.asarray(self.loc, dtype=float)
        scale = np.asarray(self.scale, dtype=float)
        if loc.ndim not in (2, 3) or scale.shape != loc.shape or not len(loc):
            raise ValueError(
                "loc and scale must both have shape (n_members, n_samples) or (n_members, "
                f"n_samples, n_outputs). Got {loc.shape} and {scale.shape}."
            )
        if not (scale > 0).all():
            raise ValueError(f"scale must be positive. The smallest is {scale.min()}.")
        weights = self.weights
        weights = np.full(len(loc), 1 / len(loc)) if weights is None else np.asarray(weights, float)
        # Written so that NaN fails.
        sound = weights.shape == loc.shape[:1] and (weights > 0).all()
        if not (sound and abs(weights.sum() - 1) <= 1e-9):
            raise ValueError(
                f"weights must be {len(loc)} positive numbers that sum to 1. Got {weights}."
            )
        for name, value in (("loc", loc), ("scale", scale), ("weights", weights)):
            object.__setattr__(self, name, value)

    def _average(self, values):
        return np.tensordot(self.weights, values, axes=1)

    @property
    def mean(self) -> np.ndarray:
        """Shape (n,) or (n, m), units of y."""
        return self._average(self.loc)

    @property
    def aleatoric_variance(self) -> np.ndarray:
        """E[sigma^2]: what more data would not take away (Eq. 3)."""
        return self._average(self.scale**2)

    @property
    def epistemic_variance(self) -> np.ndarray:
        """V[mu], the mixture's own: with the divisor K, so one member gives 0."""
        # Centred before squaring: E[mu^2] - mean^2 cancels when the mean is large.
        return self._average((self.loc - self.mean) ** 2)

    @property
    def variance(self) -> np.ndarray:
        """Aleatoric and epistemic variance together, in squared units of y."""
        return self.aleatoric_variance + self.epistemic_variance

    @property
    def std(self) -> np.ndarray:
        """Square root of the variance, in units of y."""
        return np.sqrt(self.variance)

    def uncertainty(self, epistemic_ddof: int = 0) -> Uncertainty:
        """Mean and standard deviations by source.

        Parameters
        ----------
        epistemic_ddof : {0, 1}, default=0
            1 divides by K - 1 as the paper's Eq. 4 does; with weights, K is their
            effective number 1 / sum(w^2). One member gives 0 either way.
        """
        factor = 1.0
        if epistemic_ddof:
            effective = 1 / np.sum(self.weights**2)
            factor = effective / (effective - 1) if len(self.weights) > 1 else 0.0
        aleatoric, epistemic = self.aleatoric_variance, factor * self.epistemic_variance
        return Uncertainty(
            self.mean, np.sqrt(aleatoric), np.sqrt(epistemic), np.sqrt(aleatoric + epistemic)
        )

    def cdf(self, y) -> np.ndarray:
        """P(Y <= y) for each row and output; y broadcasts against (n[, m])."""
        return self._average(special.ndtr((np.asarray(y, float) - self.loc) / self.scale))

    def log_prob(self, y) -> np.ndarray:
        """Log density of each row, of all outputs together. Shape (n,).

        Parameters
        ----------
        y : array-like of shape (n,) or (n, m)
        """
        y = np.asarray(y, dtype=float)
        if y.shape != self.loc.shape[1:]:
            raise ValueError(f"y must have shape {self.loc.shape[1:]}. Got {y.shape}.")
        density = -0.5 * ((y - self.loc) / self.scale) ** 2 - np.log(self.scale) - _LOG_SQRT_2PI
        density = density.reshape(*density.shape[:2], -1).sum(axis=2)  # (K, n)
        return special.logsumexp(density, axis=0, b=self.weights[:, None])

    def quantile(self, probability) -> np.ndarray:
        """The mixture's own quantiles, by root finding on its cdf.

        Parameters
        ----------
        probability : float or array-like of shape (q,)
            Strictly between 0 and 1.

        Returns
        -------
        ndarray of shape (n[, m]) for a number, (n, q[, m]) for an array.

        Raises
        ------
        ValueError
            If a probability is outside (0, 1).
        """
        p = check_levels(probability)
        roots = self.inverse_cdf(p.reshape(-1, *[1] * (self.loc.ndim - 1)))  # (q, n[, m])
        order = np.argsort(p.ravel(), kind="stable")
        # Exactly monotone, where the finder's tolerance would leave a crossing of 1e-16.
        roots[order] = np.maximum.accumulate(roots[order], axis=0)
        return roots[0] if p.ndim == 0 else np.moveaxis(roots, 0, 1)

    def inverse_cdf(self, levels: np.ndarray) -> np.ndarray:
        """Where the cdf of each row and output is a level, one or its own.

        Parameters
        ----------
        levels : ndarray that broadcasts to (q, n[, m])
            Strictly between 0 and 1.

        Returns
        -------
        ndarray of shape (q, n[, m])
        """
        # Members last: one root for each (q, n[, m]), all found at once.
        ends = self.loc + self.scale * special.ndtri(levels)[:, None]  # (q, K, n[, m])
        # The mixture's quantile lies between the smallest and the largest of its members'.
        low, high = ends.min(axis=1), ends.max(axis=1)
        levels = np.broadcast_to(levels, low.shape)
        # Units of the rows' own spread: the root is then of order 1 whatever y's unit.
        centre, unit = 0.5 * (low + high), 0.5 * (high - low) + self.scale.max(axis=0)
        loc = (np.moveaxis(self.loc, 0, -1) - centre[..., None]) / unit[..., None]
        scale = np.moveaxis(self.scale, 0, -1) / unit[..., None]

        def excess(z, level, *members):
            k = len(self.weights)
            total = sum(
                w * special.ndtr((z - mu) / sigma)
                for w, mu, sigma in zip(self.weights, members[:k], members[k:])
            )
            return total - level

        members = [*np.moveaxis(loc, -1, 0), *np.moveaxis(scale, -1, 0)]
        edge = np.ones_like(low)
        found = elementwise.find_root(excess, (-edge, edge), args=(levels, *members))
        # Where scales are below the rounding of the locations there is no root to find, and
        # the ends are the same number or next to it.
        x = np.where(np.isfinite(found.x), found.x, 0.0)
        return np.clip(centre + unit * x, low, high)

    def scaled(self, factor) -> GaussianMixture:
        """The same mixture, stretched about its mean.

        Parameters
        ----------
        factor : float or ndarray of shape (m,)
            Of all standard deviations; positive.
        """
        mean = self.mean
        return GaussianMixture(mean + factor * (self.loc - mean), factor * self.scale, self.weights)

    def rows(self, rows) -> GaussianMixture:
        """The mixtures of some rows, by a slice or positions."""
        return GaussianMixture(self.loc[:, rows], self.scale[:, rows], self.weights)

    def output(self, k: int) -> GaussianMixture:
        """The marginal of one output, where there are several."""
        return GaussianMixture(self.loc[..., k], self.scale[..., k], self.weights)

    def interval(self, coverage: float = 0.9) -> np.ndarray:
        """Central interval, of shape (n, 2[, m]): equal probability outside either end."""
        return self.quantile(interval_levels(coverage))

    def sample(self, n_samples: int = 1, rng=None) -> np.ndarray:
        """Joint draws, of shape (n[, m], n_samples).

        Each draw takes one member and one standard normal for all rows, so that a draw
        is a function of the input and rows move together, as the members see it.
        """
        rng = np.random.default_rng(rng)
        member = rng.choice(len(self.weights), size=n_samples, p=self.weights)
        z = rng.standard_normal((n_samples, 1, *self.loc.shape[2:]))
        draws = self.loc[member] + self.scale[member] * z  # (n_samples, n[, m])
        return np.moveaxis(draws, 0, -1)

    def to_tfp(self):
        """The same mixture as a TensorFlow Probability distribution of n rows."""
        from skuq._tfp import tfd

        batch_last = np.moveaxis(self.loc, 0, 1), np.moveaxis(self.scale, 0, 1)  # (n, K[, m])
        normal = tfd.Normal(*batch_last)
        if self.loc.ndim == 3:
            normal = tfd.Independent(normal, reinterpreted_batch_ndims=1)
        return tfd.MixtureSameFamily(tfd.Categorical(probs=self.weights), normal)
