"""Mixtures of normals, as ensembles of networks with Gaussian heads predict them.

Notation: K members, n rows, m outputs (the last axis is absent where y was 1-D).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import special

from skuq._checks import check_member_weights
from skuq._constants import LOG_SQRT_2PI
from skuq._registry import saved_as
from skuq.predictive._mixture import Mixture, check_locations_and_scales
from skuq.predictive._types import FILLED_IN, Factor


@saved_as("predictive.GaussianMixture")
@dataclass(frozen=True, eq=False)
class GaussianMixture(Mixture):
    """Mixture of K normals for every row; rows share the weights.

    Given the member, outputs are independent; over members they are not.

    Parameters
    ----------
    loc, scale : ndarray of shape (K, n) or (K, n, m)
        Means and standard deviations of the members, in units of y; scale > 0.
    weights : ndarray of shape (K,), optional
        Positive weights of the members, summing to 1; equal by default.

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
    weights: np.ndarray = FILLED_IN

    def __post_init__(self) -> None:
        loc, scale = check_locations_and_scales(self.loc, self.scale)
        weights = check_member_weights(self.weights, len(loc), positive=True, tolerance=1e-9)
        vars(self).update(loc=loc, scale=scale, weights=weights)

    @property
    def member_means(self) -> np.ndarray:
        """Means of the members, of shape (K, n[, m]), in units of y."""
        return self.loc

    @property
    def member_variances(self) -> np.ndarray:
        """Variances of the members, of shape (K, n[, m]), in squared units of y."""
        return self.scale**2

    @property
    def _shape(self) -> tuple[int, ...]:
        return self.loc.shape[1:]

    @property
    def _parameters(self) -> tuple[np.ndarray, ...]:
        return self.loc, self.scale

    def _with(self, loc: np.ndarray, scale: np.ndarray) -> GaussianMixture:
        return GaussianMixture(loc, scale, self.weights)

    def _stretch(self, mean: np.ndarray, factor: Factor) -> GaussianMixture:
        return self._with(mean + factor * (self.loc - mean), factor * self.scale)

    def _cdf(self, y: np.ndarray, loc: np.ndarray, scale: np.ndarray) -> np.ndarray:
        return special.ndtr((y - loc) / scale)

    def _log_density(self, y: np.ndarray, loc: np.ndarray, scale: np.ndarray) -> np.ndarray:
        return -0.5 * ((y - loc) / scale) ** 2 - np.log(scale) - LOG_SQRT_2PI

    def _quantile(self, levels: np.ndarray, loc: np.ndarray, scale: np.ndarray) -> np.ndarray:
        return loc + scale * special.ndtri(levels)

    def _at_scores(self, z: np.ndarray, loc: np.ndarray, scale: np.ndarray) -> np.ndarray:
        return loc + scale * z

    def _tfp_members(self) -> Any:
        from skuq.backend import tfd

        # (n, K[, m])
        return self._independent(
            tfd.Normal(np.moveaxis(self.loc, 0, 1), np.moveaxis(self.scale, 0, 1))
        )
