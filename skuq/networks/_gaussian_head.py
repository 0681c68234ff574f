"""Heads with one normal distribution for each output, of predicted or of known scale.

Notation: m outputs. Raw numbers are (.., n_raw) and y is (.., m), in standardised units,
with any leading axes, which broadcast: rows, or members and rows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import special

from skuq import backend
from skuq._registry import saved_as
from skuq.networks._likelihood_head import LikelihoodHead, log_normal, softplus

_SQRT_HALF = math.sqrt(0.5)
_SQRT_2_OVER_PI = math.sqrt(2 / math.pi)


@saved_as("networks.GaussianHead")
@dataclass(frozen=True)
class GaussianHead(LikelihoodHead):
    """Mean and standard deviation of a normal, for each of several outputs.

    The network gives 2 m raw numbers for m outputs: the means, then as many numbers r
    with standard deviation ``softplus(r) + min_scale``.

    Parameters
    ----------
    n_outputs : int, default=1
        m, the number of columns of y.
    min_scale : float, default=1e-3
        Smallest standard deviation, in units of the standardised y. It keeps the
        likelihood bounded when a network fits its training rows exactly.
    score : {"log", "crps"}, default="log"
        Training loss: the negative log likelihood, or the continuous ranked probability score
        (CRPS). For rows that fit badly, the CRPS grows with the error, and the likelihood with
        the squared error divided by the variance.
    beta : float, default=0.0
        Exponent in [0, 1] for ``score="log"``: each output's loss is multiplied by
        ``scale**(2 * beta)``, without a gradient through this factor. 0 is the likelihood; with 1
        the mean learns as from the squared error. Values in between (the paper recommends 0.5)
        keep rows that fit well from dominating. `log_likelihood` and `validation_loss` do not
        depend on it.

    Raises
    ------
    ValueError
        If beta is outside [0, 1], or set with ``score="crps"``, or the score is unknown.

    References
    ----------
    Nix and Weigend (1994); Lakshminarayanan et al. (2017), section 2.4; AutoDEUQ, Eq. 1.
    Seitzer et al. (2022), "On the Pitfalls of Heteroscedastic Uncertainty Estimation with
    Probabilistic Neural Networks", Eq. 5 (beta). Gneiting and Raftery (2007), "Strictly Proper
    Scoring Rules, Prediction, and Estimation", Eq. 21 (CRPS); Grimit et al. (2006), "The
    Continuous Ranked Probability Score for Circular Variables and its Application to Mesoscale
    Forecast Ensemble Verification", Eq. 5 (CRPS of mixtures).

    Examples
    --------
    >>> import numpy as np
    >>> from skuq.networks import GaussianHead
    >>> mean, std = GaussianHead().distribution(np.array([[1.5, 0.0]]))
    >>> mean, std.round(3)
    (array([[1.5]]), array([[0.694]]))
    """

    n_outputs: int = 1
    min_scale: float = 1e-3
    beta: float = 0.0
    score: str = "log"

    def __post_init__(self):
        if not 0 <= self.beta <= 1:
            raise ValueError(f"beta must lie in [0, 1]. Got {self.beta}.")
        if self.score not in ("log", "crps"):
            raise ValueError(f'score must be "log" or "crps". Got {self.score!r}.')
        if self.beta and self.score != "log":
            raise ValueError(f'beta needs score="log". Got beta={self.beta} with score="crps".')

    @property
    def n_raw(self) -> int:
        """Number of raw outputs of the network."""
        return 2 * self.n_outputs

    def distribution(self, raw: Any, xp: Any = np) -> tuple[Any, Any]:
        """Compute means and standard deviations, each (.., n_outputs), from (.., n_raw)."""
        mean, r = xp.split(raw, 2, axis=-1)
        return mean, softplus(r, xp) + self.min_scale

    def moments(self, raw, xp=np):
        """Compute means and standard deviations, each (.., n_outputs), from (.., n_raw)."""
        return self.distribution(raw, xp)

    def pooled(self, raw) -> np.ndarray:
        """Compute raw numbers (.., n_raw) of the normal that matches the mixture of K networks.

        `raw` is (K, .., n_raw). The normal has the mean and the variance of the equal mixture.
        """
        mean, scale = self.distribution(np.asarray(raw, dtype="float64"))
        # Variance of the mixture = mean of the variances + variance of the means.
        std = np.sqrt(np.square(scale).mean(axis=0) + mean.var(axis=0))
        return self.raw_of(mean.mean(axis=0), std)

    def raw_of(self, mean, std) -> np.ndarray:
        """Compute raw numbers (.., n_raw) from means and standard deviations (.., n_outputs).

        It is the inverse of `distribution`.
        """
        # softplus(r) = std - min_scale, which rounding must not make 0 or negative.
        excess = np.maximum(std - self.min_scale, np.finfo(float).tiny)
        # Inverse of softplus in a form that never overflows.
        return np.concatenate([mean, excess + np.log(-np.expm1(-excess))], axis=-1)

    def log_densities(self, y, raw, xp=np):
        """Compute log densities (.., n_outputs) from y (.., n_outputs) and raw (.., n_raw)."""
        return log_normal(y, *self.distribution(raw, xp), xp)

    def loss(self, y, raw):
        """Compute each row's negative log likelihood (Eq. 1, with its constant) or CRPS.

        The result (..,) is the mean over outputs, weighted if `beta` is set. `y` (.., n_outputs)
        and `raw` (.., n_raw) are tensors.
        """
        if not self.beta:
            return self.validation_loss(y, raw)
        ops = backend.ops
        _, scale = self.distribution(raw, ops)
        # Each output's loss times scale^(2 beta), as a constant (Seitzer et al., Eq. 5).
        factor = ops.stop_gradient(ops.power(scale, 2 * self.beta))
        return -ops.mean(factor * self.log_densities(y, raw, ops), axis=-1)

    def validation_loss(self, y, raw):
        """Compute each row's negative log likelihood or CRPS, mean over outputs, without `beta`."""
        if self.score == "log":
            return super().validation_loss(y, raw)
        return backend.ops.mean(self._crps(y, raw, backend.ops), axis=-1)

    def scores(self, y, raw) -> np.ndarray:
        """Compute `validation_loss` (..,) in NumPy, from arrays. Searches minimise it."""
        return super().scores(y, raw) if self.score == "log" else self._crps(y, raw).mean(axis=-1)

    def _crps(self, y, raw, xp=np):
        """Compute the CRPS (.., n_outputs) of each output."""
        mean, scale = self.distribution(raw, xp)
        # CRPS = E|X - y| - E|X - X'| / 2, where X - X' has a standard deviation of sqrt(2) scale.
        return _mean_distance(y - mean, scale, xp) - scale / math.sqrt(math.pi)

    def mixture_loss(self, y, copies):
        """Compute `validation_loss` of the equal mixture of C copies.

        `y` is (.., n_outputs), and `copies` are (.., C, n_raw).
        """
        if self.score == "log":
            return super().mixture_loss(y, copies)
        ops = backend.ops
        mean, scale = self.distribution(copies, ops)  # (.., C, m)
        # E|X - y| is a mean over copies, and E|X - X'| one over pairs of copies (Grimit et al.,
        # Eq. 5).
        to_y = ops.mean(_mean_distance(y[..., None, :] - mean, scale, ops), axis=-2)
        n_copies, variance = copies.shape[-2], ops.square(scale)

        def to_copy(k):
            """Compute mean distances (.., C, m) from all copies to copy k; all pairs are large."""
            std = ops.sqrt(variance + variance[..., k, None, :])
            return _mean_distance(mean - mean[..., k, None, :], std, ops)

        between = sum(to_copy(k) for k in range(n_copies))
        return ops.mean(to_y - 0.5 * ops.mean(between, axis=-2) / n_copies, axis=-1)


def _mean_distance(mean, std, xp):
    """Compute E|X| of normals X with these means and standard deviations."""
    z, erf = mean / std, special.erf if xp is np else xp.erf
    return std * (z * erf(_SQRT_HALF * z) + _SQRT_2_OVER_PI * xp.exp(-0.5 * xp.square(z)))


@saved_as("networks.SquaredErrorHead")
@dataclass(frozen=True)
class SquaredErrorHead:
    """Head with a mean for each output; the noise is known or estimated separately.

    Parameters
    ----------
    n_outputs : int, default=1
        m, the number of columns of y.
    scale : tuple of float, optional
        Standard deviation of the noise of each output, in units of the standardised y;
        needed for `distribution`, but not for training.

    References
    ----------
    Heiss et al., "NOMU", Remark B.1.

    Examples
    --------
    >>> import numpy as np
    >>> from skuq.networks import SquaredErrorHead
    >>> SquaredErrorHead(scale=(0.5,)).distribution(np.array([[2.0]]))
    (array([[2.]]), array([[0.5]]))
    """

    n_outputs: int = 1
    scale: tuple[float, ...] | None = None

    @property
    def n_raw(self) -> int:
        """Number of raw outputs of the network."""
        return self.n_outputs

    def distribution(self, raw: Any, xp: Any = np) -> tuple[Any, Any]:
        """Compute means and standard deviations, each (.., n_outputs), from (.., n_raw)."""
        return raw, xp.zeros_like(raw) + np.asarray(self.scale)

    def moments(self, raw, xp=np):
        """Compute means and standard deviations, each (.., n_outputs), from (.., n_raw)."""
        return self.distribution(raw, xp)

    def loss(self, y, raw):
        """Compute each row's squared error (..,), mean over outputs, from tensors (.., m)."""
        return backend.ops.mean(backend.ops.square(y - raw), axis=-1)

    def mixture_loss(self, y, copies):
        """Compute the loss of the copies' average: y (.., n_outputs), copies (.., C, n_raw)."""
        return self.loss(y, backend.ops.mean(copies, axis=-2))
