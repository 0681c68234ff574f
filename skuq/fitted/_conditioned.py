"""Random functions of a network's features, conditioned on data in closed form.

Notation: N rows of d features, n of which are conditioned on; p principal components; R random
features; m raw outputs; an index z of n_index numbers tells draws apart.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import linalg

from skuq._registry import saved_as
from skuq.catalog import Member
from skuq.predictive._posterior import normal_indices
from skuq.training._draws import predict_bases

MAX_ROWS = 2048  # conditioned on exactly; of more rows so many are drawn
_N_COMPONENTS = 32
_SMALLEST_SHARE = 1e-10  # of the variance: smaller components are rounding
_N_RANDOM = 512
_CHUNK_ENTRIES = 2**19  # numbers held at a time: 4 MB
_JITTER = 1e-6  # of the prior's variance: at the data a draw keeps a thousandth of its size
N_ARRAYS = 7  # of `ConditionedDraws.arrays`


@saved_as("fitted.FittedOperator.FeatureKernel")
@dataclass(frozen=True, eq=False)
class FeatureKernel:
    """Kernel of a network's features, and random functions that have it as their covariance.

    The kernel is Matern's with smoothness 5/2, of distances between principal components of the
    features.

    Attributes
    ----------
    shift : ndarray of shape (d,)
    components : ndarray of shape (d, p)
        Rows become ``(features - shift) @ components``; training rows then have a mean squared
        norm of 1, divided by the square of the length scale.
    frequencies : ndarray of shape (p, R)
    phases : ndarray of shape (R,)
    """

    shift: np.ndarray
    components: np.ndarray
    frequencies: np.ndarray
    phases: np.ndarray

    @classmethod
    def of(cls, features: np.ndarray, length: float, rng: np.random.Generator) -> FeatureKernel:
        """Learn shift and components from training rows, and draw random functions.

        `length` is in units of the root mean square distance of training rows from their mean.
        """
        shift = features.mean(axis=0)
        _, sizes, directions = np.linalg.svd(features - shift, full_matrices=False)
        share = sizes**2 / max((sizes**2).sum(), np.finfo(float).tiny)
        kept = directions[share > _SMALLEST_SHARE][:_N_COMPONENTS]
        norm = np.sqrt((sizes**2).sum() / len(features)) or 1.0
        # As many for all fits: programs of the draws then have equal shapes.
        components = np.zeros((features.shape[1], _N_COMPONENTS))
        components[:, : len(kept)] = kept.T / (norm * length)
        # The spectral density of Matern's kernel is a t distribution of five degrees of freedom.
        t = rng.standard_normal((_N_COMPONENTS, _N_RANDOM)) / np.sqrt(
            rng.chisquare(5, _N_RANDOM) / 5
        )
        return cls(shift, components, t, rng.uniform(0, 2 * np.pi, _N_RANDOM))

    @property
    def arrays(self) -> tuple[np.ndarray, ...]:
        """All of it, as arguments of the functions below."""
        return self.shift, self.components, self.frequencies, self.phases


def project(xp: Any, shift: Any, components: Any, features: Any) -> Any:
    """Compute principal components (N, p) of features (N, d)."""
    return xp.matmul(features - shift, components)


def random_features(xp: Any, frequencies: Any, phases: Any, z: Any) -> Any:
    """Compute random features (N, R), whose products approximate the kernel, of components."""
    n_random = phases.shape[0]
    return np.sqrt(2 / n_random) * xp.cos(xp.matmul(z, frequencies) + phases)


def kernel(xp: Any, a: Any, b: Any) -> Any:
    """Compute Matern's kernel (N, n) of components a (N, p) and b (n, p)."""
    squares = xp.sum(a * a, axis=-1)[:, None] + xp.sum(b * b, axis=-1) - 2 * xp.matmul(a, b.T)
    # Far below any distance that matters: the root has a gradient there.
    scaled = xp.sqrt(5 * xp.maximum(squares, 1e-24))
    return (1 + scaled + scaled * scaled / 3) * xp.exp(-scaled)


def conditioned_draws(xp: Any, arrays: Any, mean: Any, features: Any, index: Any) -> Any:
    """Compute draws (S, N, m) of indices (S, n_index), from the means (N, m) and features (N, d).

    `arrays` are those of `ConditionedDraws`.
    """
    shift, components, frequencies, phases, weights, rows, coefficients = arrays
    m = mean.shape[-1]
    z = project(xp, shift, components, features)
    from_data = xp.matmul(kernel(xp, z, rows), coefficients)
    functions = xp.matmul(random_features(xp, frequencies, phases, z), weights) - from_data[:, m:]
    n_index = index.shape[-1]
    functions = xp.moveaxis(xp.reshape(functions, (-1, n_index, m)), 1, 0)
    draws = xp.matmul(index, xp.reshape(functions, (n_index, -1)))
    return mean + from_data[:, :m] + xp.reshape(draws, (index.shape[0], -1, m))


@saved_as("fitted.FittedOperator.ConditionedDraws")
@dataclass(frozen=True, eq=False)
class ConditionedDraws:
    """Draws of base networks and a random prior that is conditioned on data in closed form.

    A draw is the mean of the networks, plus their kernel interpolation of what they leave of the
    data, plus ``sum_i z_i (f_i(x) - k(x, X) (K + lambda)^-1 f_i(X))`` with random functions f_i
    of covariance k (pathwise conditioning).

    Attributes
    ----------
    members : tuple of Member
        Base networks.
    index : ndarray of shape (n_draws, n_index)
        The indices that predictions average over.
    features : FeatureKernel
    weights : ndarray of shape (R, n_index * m)
        Weights of the random features in the functions f_i.
    rows : ndarray of shape (n, p)
        Components of the rows that are conditioned on.
    coefficients : ndarray of shape (n, m + n_index * m)
        Coefficients of the kernel in the interpolation, then in what is taken off the functions.

    References
    ----------
    J. Wilson et al., "Pathwise conditioning of Gaussian processes", 2021.
    """

    members: tuple[Member, ...]
    index: np.ndarray
    features: FeatureKernel
    weights: np.ndarray
    rows: np.ndarray
    coefficients: np.ndarray

    @property
    def arrays(self) -> tuple[np.ndarray, ...]:
        """All that `conditioned_draws` takes of it."""
        return *self.features.arrays, self.weights, self.rows, self.coefficients

    def spread(self, n: int, rng: np.random.Generator) -> np.ndarray:
        """Draw indices (n, n_index) that are spread more evenly than chance does it."""
        return normal_indices(n, self.index.shape[1], rng)

    def independent(self, n: int, rng: np.random.Generator) -> np.ndarray:
        """Draw independent indices (n, n_index)."""
        return rng.standard_normal((n, self.index.shape[1]))

    def raw(self, rows: np.ndarray, index: np.ndarray) -> np.ndarray:
        """Predict raw outputs (S, n * q, m) of standardised rows."""
        widest = max(len(self.rows), len(self.weights), len(index) * 2)
        step = max(16, _CHUNK_ENTRIES // widest)
        parts = []
        for start in range(0, len(rows), step):
            mean, features = predict_bases(self.members, rows[start : start + step])
            parts.append(conditioned_draws(np, self.arrays, mean.mean(axis=0), features, index))
        return np.concatenate(parts, axis=1)


class Conditioning:
    """Exact conditioning of random functions on training rows.

    Parameters
    ----------
    features : FeatureKernel
    rows : ndarray of shape (n, d)
        Features of the rows.
    """

    def __init__(self, features: FeatureKernel, rows: np.ndarray) -> None:
        self.features = features
        self.rows = project(np, features.shift, features.components, rows)
        self.gram = kernel(np, self.rows, self.rows)

    def solve(self, noise: float, targets: np.ndarray) -> np.ndarray:
        """Compute coefficients (n, k) of the kernel for targets (n, k).

        `noise` is the variance of the noise, in units of the prior's.
        """
        factor = linalg.cho_factor(self._noisy(noise), lower=True, overwrite_a=True)
        return linalg.cho_solve(factor, targets)

    def left_out(self, noise: float, groups: np.ndarray) -> np.ndarray:
        """Variances (n,) of rows, in units of the prior's, given the rows of other groups."""
        inverse = linalg.inv(self._noisy(noise), overwrite_a=True)
        variance = np.empty(len(groups))
        for group in np.unique(groups):
            own = np.flatnonzero(groups == group)
            block = linalg.inv(inverse[np.ix_(own, own)])
            variance[own] = np.diag(block) - noise - _JITTER
        return np.clip(variance, _JITTER, 1.0)

    def _noisy(self, noise: float) -> np.ndarray:
        return self.gram + (noise + _JITTER) * np.eye(len(self.gram))
