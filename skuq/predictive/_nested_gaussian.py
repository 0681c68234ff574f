"""Mixtures of mixtures of normals, as ensembles of mixture density networks predict them.

Notation: K members, J components of each, n rows, m outputs (the last axis is absent where y
was 1-D).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import special

from skuq._checks import check_member_weights
from skuq._constants import LOG_SQRT_2PI
from skuq._registry import saved_as
from skuq.predictive._gaussian_mixture import GaussianMixture
from skuq.predictive._mixture import Mixture
from skuq.predictive._types import FILLED_IN, Factor, RandomSource


@saved_as("predictive.NestedGaussianMixture")
@dataclass(frozen=True, eq=False)
class NestedGaussianMixture(Mixture):
    """Mixture of K members for every row, each of which is a mixture of J normals.

    All rows share the members' weights, but not the probabilities of components. The spread of
    one member's components is aleatoric, possibly with several modes. The disagreement of the
    members' means is epistemic. Each output has its own mixture: given the member, outputs are
    independent.

    Parameters
    ----------
    loc, scale : ndarray of shape (K, J, n) or (K, J, n, m)
        Means and standard deviations of the components, in units of y; scale > 0.
    probabilities : ndarray of the shape of `loc`
        Non-negative probabilities of the components, which sum to 1 over J within 1e-6.
    weights : ndarray of shape (K,), optional
        Positive weights of the members, summing to 1; equal by default.

    Raises
    ------
    ValueError
        If shapes disagree, scales are not positive, or probabilities or weights do not sum
        to 1.

    See Also
    --------
    skuq.networks.GaussianMixtureHead : Head that predicts the parameters.

    References
    ----------
    Bishop (1994), "Mixture Density Networks".

    Examples
    --------
    >>> import numpy as np
    >>> shape = 1, 2, 1  # one member that knows two modes
    >>> loc = np.array([-1.0, 1.0]).reshape(shape)
    >>> fork = NestedGaussianMixture(loc, np.full(shape, 0.1), np.full(shape, 0.5))
    >>> fork.aleatoric_variance.round(2), fork.epistemic_variance
    (array([1.01]), array([0.]))
    """

    loc: np.ndarray
    scale: np.ndarray
    probabilities: np.ndarray
    weights: np.ndarray = FILLED_IN

    def __post_init__(self) -> None:
        names = "loc", "scale", "probabilities"
        loc, scale, probabilities = (np.asarray(getattr(self, name), float) for name in names)
        if (
            loc.ndim not in (3, 4)
            or not scale.shape == probabilities.shape == loc.shape
            or not (len(loc) and loc.shape[1])
        ):
            raise ValueError(
                "loc, scale and probabilities must all have shape (n_members, n_components, "
                "n_samples) or (n_members, n_components, n_samples, n_outputs). Got "
                f"{loc.shape}, {scale.shape} and {probabilities.shape}."
            )
        if not (scale > 0).all():
            raise ValueError(f"scale must be positive. The smallest is {scale.min()}.")
        sums = probabilities.sum(axis=1)
        if not ((probabilities >= 0).all() and (abs(sums - 1) <= 1e-6).all()):
            raise ValueError(
                "probabilities must be non-negative and sum to 1 over components. The smallest "
                f"is {probabilities.min()}; the sums lie between {sums.min()} and {sums.max()}."
            )
        weights = check_member_weights(self.weights, len(loc), positive=True, tolerance=1e-9)
        # The check allows 1e-6, but cdf and density should be exact.
        probabilities = probabilities / sums[:, None]
        vars(self).update(loc=loc, scale=scale, probabilities=probabilities, weights=weights)

    @property
    def member_means(self) -> np.ndarray:
        """Means of the members, of shape (K, n[, m]), in units of y."""
        return (self.probabilities * self.loc).sum(axis=1)

    @property
    def member_variances(self) -> np.ndarray:
        """Variances of the members, of shape (K, n[, m]), in squared units of y."""
        return self._combine_components(self.loc, self.scale**2)[1]

    def _combine_components(
        self, means: np.ndarray, variances: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Compute members' means and variances from those of components, (K, J, n[, m])."""
        mean = (self.probabilities * means).sum(axis=1)
        # Law of total variance over the components.
        distance = means - mean[:, None]
        return mean, (self.probabilities * (variances + distance**2)).sum(axis=1)

    @property
    def _shape(self) -> tuple[int, ...]:
        return self.loc.shape[2:]

    @property
    def _parameters(self) -> tuple[np.ndarray, ...]:
        return self.loc, self.scale, self.probabilities

    def _with(
        self, loc: np.ndarray, scale: np.ndarray, probabilities: np.ndarray
    ) -> NestedGaussianMixture:
        return NestedGaussianMixture(loc, scale, probabilities, self.weights)

    def _stretch(self, mean: np.ndarray, factor: Factor) -> NestedGaussianMixture:
        loc = mean + factor * (self.loc - mean)
        return self._with(loc, factor * self.scale, self.probabilities)

    def _cdf(
        self, y: np.ndarray, loc: np.ndarray, scale: np.ndarray, probabilities: np.ndarray
    ) -> np.ndarray:
        return sum(p * special.ndtr((y - mu) / s) for mu, s, p in zip(loc, scale, probabilities))

    def _log_density(
        self, y: np.ndarray, loc: np.ndarray, scale: np.ndarray, probabilities: np.ndarray
    ) -> np.ndarray:
        densities = -0.5 * ((y - loc) / scale) ** 2 - np.log(scale) - LOG_SQRT_2PI
        return special.logsumexp(densities, axis=0, b=probabilities)

    def _bracket(
        self, levels: np.ndarray, arrays: Sequence[np.ndarray]
    ) -> tuple[np.ndarray, np.ndarray]:
        """Bracket the quantiles of each row by those of its components."""
        # A mixture's quantile lies between the smallest and the largest quantile of those
        # components that have a positive probability.
        scores = special.ndtri(levels)
        low, high = np.full_like(scores, np.inf), np.full_like(scores, -np.inf)
        for parameters in zip(*arrays):
            for loc, scale, probability in zip(*parameters):
                end = loc + scale * scores
                low = np.where(probability > 0, np.minimum(low, end), low)
                high = np.where(probability > 0, np.maximum(high, end), high)
        return low, high

    def sample(self, n_samples: int = 1, rng: RandomSource = None) -> np.ndarray:
        """Draw jointly for all rows, to shape (n[, m], n_samples).

        Each draw takes one member and, for each output, one uniform number that chooses the
        component and one standard normal number, all shared by all rows. A draw is therefore a
        function of the input, which jumps only where it changes from one component to another.
        """
        rng = np.random.default_rng(rng)
        member = rng.choice(len(self.weights), size=n_samples, p=self.weights)
        # (n_samples, 1[, m]): all rows of a draw share them.
        uniform = rng.random((n_samples, 1, *self._shape[1:]))
        z = rng.standard_normal(uniform.shape)
        draws = np.empty((n_samples, *self._shape))
        for k, (loc, scale, probabilities) in enumerate(self._members()):
            chosen = member == k
            # A component is taken if the uniform number lies between `lower` and `upper`.
            edges, lower = np.cumsum(probabilities, axis=0), np.zeros(self._shape)
            edges /= edges[-1]  # exactly 1 from the last possible component on
            drawn = draws[chosen]
            for mu, s, upper in zip(loc, scale, edges):
                here = (uniform[chosen] >= lower) & (uniform[chosen] < upper)
                drawn = np.where(here, mu + s * z[chosen], drawn)
                lower = upper
            draws[chosen] = drawn
        return np.moveaxis(draws, 0, -1)

    def _moments_of(
        self, function: Callable[[np.ndarray], np.ndarray]
    ) -> tuple[np.ndarray, np.ndarray]:
        # Treat the K * J components as members of one Gaussian mixture, and combine afterwards.
        shape = self.loc.shape
        flat = shape[0] * shape[1], *shape[2:]
        components = GaussianMixture(self.loc.reshape(flat), self.scale.reshape(flat))
        moments = components._moments_of(function)
        return self._combine_components(*(moment.reshape(shape) for moment in moments))

    def _tfp_members(self) -> Any:
        from skuq.backend import tfd

        # (n, K, [m,] J)
        loc, scale, probabilities = (
            np.moveaxis(a, (0, 1), (1, -1)) for a in (self.loc, self.scale, self.probabilities)
        )
        outputs = tfd.MixtureSameFamily(
            tfd.Categorical(probs=probabilities), tfd.Normal(loc, scale)
        )
        return self._independent(outputs)
