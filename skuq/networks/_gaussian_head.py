"""Heads of one normal for each output: with a scale of its own, or with known noise.

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
        (CRPS). A badly fitted row counts by its error in the CRPS, and by its squared error
        over the variance in the likelihood.
    beta : float, default=0.0
        With ``score="log"``, weighs each output's loss by ``scale**(2 * beta)``, without a
        gradient through this factor; in [0, 1]. 0 is the likelihood; with 1 the mean learns as
        from the squared error. In between (the paper recommends 0.5) rows that fit well do not
        drown the others. `log_likelihood` and `validation_loss` remain those of the normal.

    Raises
    ------
    ValueError
        If beta is outside [0, 1], or set with ``score="crps"``, or there is no such score.

    References
    ----------
    Nix and Weigend (1994); Lakshminarayanan et al. (2017), section 2.4; AutoDEUQ, Eq. 1.
    Seitzer et al. (2022), "On the Pitfalls of Heteroscedastic Uncertainty Estimation with
    Probabilistic Neural Networks", Eq. 5 (beta). Gneiting and Raftery (2007), "Strictly Proper
    Scoring Rules, Prediction, and Estimation", Eq. 21 (CRPS); Grimit et al. (2006), "The
    Continuous Ranked Probability Score for Circular Variables and its Application to Mesoscale
    Forecast Ensemble Verification", Eq. 5 (CRPS of mixtures).
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
            raise ValueError(f'beta is for score="log". Got beta={self.beta}.')

    @property
    def n_raw(self) -> int:
        """Numbers the network has to give."""
        return 2 * self.n_outputs

    def distribution(self, raw: Any, xp: Any = np) -> tuple[Any, Any]:
        """Means and standard deviations, each (.., n_outputs), from (.., n_raw)."""
        mean, r = raw[..., : self.n_outputs], raw[..., self.n_outputs :]
        return mean, softplus(r, xp) + self.min_scale

    def moments(self, raw, xp=np):
        """Means and standard deviations, each (.., n_outputs), from (.., n_raw)."""
        return self.distribution(raw, xp)

    def pooled(self, raw) -> np.ndarray:
        """Raw numbers (.., n_raw) of the normal with the moments of an equal mixture (K, ..)."""
        mean, scale = self.distribution(np.asarray(raw, dtype="float64"))
        std = np.sqrt(np.square(scale).mean(axis=0) + mean.var(axis=0))
        excess = np.maximum(std - self.min_scale, np.finfo(float).tiny)
        # Inverse of softplus in a form that never overflows.
        return np.concatenate([mean.mean(axis=0), excess + np.log(-np.expm1(-excess))], axis=-1)

    def log_densities(self, y, raw, xp=np):
        """Log density (.., n_outputs) of each output, from (.., n_outputs) and (.., n_raw)."""
        return log_normal(y, *self.distribution(raw, xp), xp)

    def loss(self, y, raw):
        """Negative log likelihood (Eq. 1, with its constant) or CRPS of each row.

        The mean over outputs, which `beta` weighs. Tensors: y (.., n_outputs), raw (.., n_raw);
        returns (..,).
        """
        if not self.beta:
            return self.validation_loss(y, raw)
        ops = backend.ops
        _, scale = self.distribution(raw, ops)
        factor = ops.stop_gradient(ops.power(scale, 2 * self.beta))
        return -ops.mean(factor * self.log_densities(y, raw, ops), axis=-1)

    def validation_loss(self, y, raw):
        """Negative log likelihood or CRPS of each row, mean over outputs; `beta` is not used."""
        if self.score == "log":
            return super().validation_loss(y, raw)
        return backend.ops.mean(self._crps(y, raw, backend.ops), axis=-1)

    def scores(self, y, raw) -> np.ndarray:
        """`validation_loss` (..,) in NumPy, from arrays: searches minimise it."""
        return super().scores(y, raw) if self.score == "log" else self._crps(y, raw).mean(axis=-1)

    def _crps(self, y, raw, xp=np):
        """CRPS (.., n_outputs) of each output."""
        mean, scale = self.distribution(raw, xp)
        return _mean_distance(y - mean, scale, xp) - scale / math.sqrt(math.pi)

    def mixture_loss(self, y, copies):
        """`validation_loss` of an equal mixture: y (.., n_outputs), copies (.., C, n_raw)."""
        if self.score == "log":
            return super().mixture_loss(y, copies)
        ops = backend.ops
        mean, scale = self.distribution(copies, ops)  # (.., C, m)
        to_y = ops.mean(_mean_distance(y[..., None, :] - mean, scale, ops), axis=-2)
        n_copies, variance = copies.shape[-2], ops.square(scale)

        def to_copy(k):  # all pairs at once would be large
            std = ops.sqrt(variance + variance[..., k, None, :])
            return _mean_distance(mean - mean[..., k, None, :], std, ops)

        between = sum(to_copy(k) for k in range(n_copies))
        return ops.mean(to_y - 0.5 * ops.mean(between, axis=-2) / n_copies, axis=-1)


def _mean_distance(mean, std, xp):
    """Compute E|X| of normals X."""
    z, erf = mean / std, special.erf if xp is np else xp.erf
    return std * (z * erf(_SQRT_HALF * z) + _SQRT_2_OVER_PI * xp.exp(-0.5 * xp.square(z)))


@saved_as("networks.SquaredErrorHead")
@dataclass(frozen=True)
class SquaredErrorHead:
    """A mean for each of several outputs, with noise that is known or estimated separately.

    Parameters
    ----------
    n_outputs : int, default=1
    scale : tuple of float, optional
        Standard deviation of the noise of each output, in units of the standardised y;
        needed for `distribution`, not for training.

    References
    ----------
    Heiss et al., "NOMU", Remark B.1.
    """

    n_outputs: int = 1
    scale: tuple[float, ...] | None = None

    @property
    def n_raw(self) -> int:
        """Numbers the network has to give."""
        return self.n_outputs

    def distribution(self, raw: Any, xp: Any = np) -> tuple[Any, Any]:
        """Means and standard deviations, each (.., n_outputs), from (.., n_raw)."""
        return raw, xp.zeros_like(raw) + np.asarray(self.scale)

    def moments(self, raw, xp=np):
        """Means and standard deviations, each (.., n_outputs), from (.., n_raw)."""
        return self.distribution(raw, xp)

    def loss(self, y, raw):
        """Squared error of each row, mean over outputs: tensors (.., n_outputs) to (..,)."""
        return backend.ops.mean(backend.ops.square(y - raw), axis=-1)

    def mixture_loss(self, y, copies):
        """`loss` of the copies' average: y (.., n_outputs), copies (.., C, n_raw)."""
        return self.loss(y, backend.ops.mean(copies, axis=-2))
