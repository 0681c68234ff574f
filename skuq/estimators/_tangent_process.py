"""Gaussian processes of networks that are linearised in their weights.

A random normal change of the weights changes a linearised network by a draw from a Gaussian process
whose kernel is the tangent kernel J J^T (Jacot et al. 2018). Conditioning on data is closed form,
and its result is again a change of the weights.

Notation: n values, one for each row and raw output; P weights; S targets or draws; m values at
inducing rows.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy import linalg

from skuq.networks._dense_layers import Derivatives

#: Added to the kernel's diagonal, whose mean is 1; rounding makes eigenvalues of -1e-12. With 1e-7
#: the mean missed data without noise by 2e-5 of their spread, too much for the end of a search.
JITTER = 1e-10


class ExactProcess:
    """Process that is conditioned on all values; its time grows with n^3.

    Parameters
    ----------
    derivatives : Derivatives
        Derivatives J at the data. The kernel is J J^T / unit, with a mean diagonal of 1.
    """

    def __init__(self, derivatives: Derivatives):
        self._derivatives = derivatives
        self.unit = derivatives.diagonal().mean() or 1.0
        self._gram = derivatives.gram() / self.unit

    def condition(
        self, targets: np.ndarray, noise: np.ndarray | float, importance: np.ndarray | float = 1.0
    ) -> np.ndarray:
        """Find the smallest changes of the weights (S, P) that give the targets (S, n) up to noise.

        `noise` is the variance of all values, or of each, in units of the kernel. A value of
        `importance` 2 counts as two equal ones, each with this noise.
        """
        noisy = self._gram.copy()
        noisy[np.diag_indices_from(noisy)] += (noise + JITTER) / importance
        solution = linalg.cho_solve(linalg.cho_factor(noisy, lower=True), targets.T)
        # J^T alpha / unit: the posterior mean of the change of the weights, (S, P).
        return self._derivatives.back(solution.T) / self.unit

    def predict_left_out(
        self,
        targets: np.ndarray,
        left_out: np.ndarray,
        noises: Sequence[float | np.ndarray],
        importance: np.ndarray,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Predict targets (T, n) of the values `left_out` from those of all others.

        Returns the means (n_noises, T, n_left_out) and variances (n_noises, n_left_out) for each
        noise, noise included; one is a variance, or those of all values (n,). `importance` (n,) is
        as in `condition`, of the other values.
        """
        others = ~left_out
        of_values = [np.broadcast_to(noise, len(left_out)) for noise in noises]
        cross, diagonal = self._gram[np.ix_(left_out, others)], np.diag(self._gram)[left_out]
        # One factorisation serves targets and cross-covariances: (n_others, T + n_left_out).
        right = np.concatenate([targets[:, others].T, cross.T], axis=1)
        means, variances = [], []
        for noise in of_values:
            gram = self._gram[np.ix_(others, others)]
            gram[np.diag_indices_from(gram)] += (noise[others] + JITTER) / importance[others]
            solution = linalg.cho_solve(linalg.cho_factor(gram, lower=True), right)
            # Mean k A^-1 y and variance k** - k A^-1 k^T, with A the noisy kernel of the others.
            means.append((cross @ solution[:, : len(targets)]).T)
            variances.append(diagonal - np.einsum("ij,ji->i", cross, solution[:, len(targets) :]))
        # Rounding can make the variance of a value that others determine slightly negative.
        total = np.maximum(variances, 0) + np.array(of_values)[:, left_out] + JITTER
        return np.array(means), total


class SparseProcess:
    """Process that is conditioned on all values through inducing rows (FITC).

    Changes of the weights are restricted to the span of the derivatives at the inducing rows. What
    the kernel has beyond that counts as independent noise of each value. The time grows with n m^2.

    Parameters
    ----------
    derivatives : Derivatives
        See `ExactProcess`.
    inducing : ndarray of int
        Numbers of the inducing rows.

    References
    ----------
    Snelson and Ghahramani (2006), "Sparse Gaussian processes using pseudo-inputs".
    """

    def __init__(self, derivatives: Derivatives, inducing: np.ndarray):
        self._inducing = derivatives.rows(inducing)
        diagonal = derivatives.diagonal()
        self.unit = diagonal.mean() or 1.0
        gram = self._inducing.gram() / self.unit
        gram[np.diag_indices_from(gram)] += JITTER
        self._root = linalg.cholesky(gram, lower=True)
        cross = self._inducing.gram(derivatives) / self.unit
        # In these coordinates (m, n) the inner products of the span are those of vectors.
        self._span = linalg.solve_triangular(self._root, cross, lower=True)
        # FITC keeps the exact diagonal: what the span lacks of it is noise of each value.
        self._beyond = np.maximum(diagonal / self.unit - (self._span**2).sum(axis=0), 0)

    def condition(
        self, targets: np.ndarray, noise: np.ndarray | float, importance: np.ndarray | float = 1.0
    ) -> np.ndarray:
        """Find the changes of the weights (S, P); see `ExactProcess.condition`."""
        # Solve (I + span D^-1 span^T) a = span D^-1 targets, with D the diagonal of variances.
        weighted = self._span / ((noise + JITTER) / importance + self._beyond)
        inner = weighted @ self._span.T
        inner[np.diag_indices_from(inner)] += 1.0
        solution = linalg.cho_solve(linalg.cho_factor(inner, lower=True), weighted @ targets.T)
        # From coordinates in the span back to coefficients (m, S) of the inducing derivatives.
        alpha = linalg.solve_triangular(self._root, solution, lower=True, trans="T")
        return self._inducing.back(alpha.T) / self.unit
