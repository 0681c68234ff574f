"""From a network's raw outputs to the parameters of a distribution.

One formula serves training (on tensors, `keras.ops`) and prediction (on arrays, NumPy).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import special

__all__ = ["CategoricalHead", "GaussianHead", "SquaredErrorHead"]

_HALF_LOG_2PI = 0.5 * np.log(2 * np.pi)


@dataclass(frozen=True)
class GaussianHead:
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

    References
    ----------
    Nix and Weigend (1994); Lakshminarayanan et al. (2017), section 2.4; AutoDEUQ, Eq. 1.
    """

    n_outputs: int = 1
    min_scale: float = 1e-3

    @property
    def n_raw(self) -> int:
        """Numbers the network has to give."""
        return 2 * self.n_outputs

    def distribution(self, raw, xp=np):
        """Means and standard deviations, each (.., n_outputs), from (.., n_raw)."""
        mean, r = raw[..., : self.n_outputs], raw[..., self.n_outputs :]
        return mean, xp.logaddexp(r, xp.zeros_like(r)) + self.min_scale

    def loss(self, y, raw):
        """Negative log likelihood (Eq. 1, with its constant) of each row, mean over outputs.

        Tensors: y (.., n_outputs), raw (.., n_raw); returns (..,).
        """
        from skuq._keras import ops

        mean, scale = self.distribution(raw, ops)
        nll = ops.log(scale) + 0.5 * ops.square((y - mean) / scale) + _HALF_LOG_2PI
        return ops.mean(nll, axis=-1)

    def log_likelihood(self, y, raw) -> np.ndarray:
        """Log density (..,) of all outputs together: arrays (.., n_outputs), (.., n_raw)."""
        mean, scale = self.distribution(raw)
        return -(np.log(scale) + 0.5 * ((y - mean) / scale) ** 2 + _HALF_LOG_2PI).sum(axis=-1)


@dataclass(frozen=True)
class SquaredErrorHead:
    """A mean for each of several outputs, with noise that is known or estimated apart.

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

    def distribution(self, raw):
        """Means and standard deviations, each (.., n_outputs), from (.., n_raw)."""
        return raw, np.broadcast_to(np.asarray(self.scale), raw.shape)

    def loss(self, y, raw):
        """Squared error of each row, mean over outputs: tensors (.., n_outputs) to (..,)."""
        from skuq._keras import ops

        return ops.mean(ops.square(y - raw), axis=-1)


@dataclass(frozen=True)
class CategoricalHead:
    """Class probabilities, from one raw number (logit) a class.

    Parameters
    ----------
    n_classes : int
    """

    n_classes: int

    @property
    def n_raw(self) -> int:
        """Numbers the network has to give."""
        return self.n_classes

    def probabilities(self, raw) -> np.ndarray:
        """Arrays (.., n_classes) that sum to 1, from arrays of raw numbers."""
        return special.softmax(raw, axis=-1)

    def loss(self, y, raw):
        """Cross-entropy of each row, in nats: codes (.., 1) and raw tensors to (..,)."""
        from skuq._keras import ops

        codes = ops.cast(y[..., 0], "int32")
        chosen = ops.sum(ops.one_hot(codes, self.n_classes) * raw, axis=-1)
        return ops.logsumexp(raw, axis=-1) - chosen

    def log_likelihood(self, y, raw) -> np.ndarray:
        """Log probability (..,) of codes (.., 1), from arrays of raw numbers (.., n_classes)."""
        codes = np.broadcast_to(np.asarray(y).astype(int), (*raw.shape[:-1], 1))
        chosen = np.take_along_axis(raw, codes, axis=-1)[..., 0]
        return chosen - special.logsumexp(raw, axis=-1)
