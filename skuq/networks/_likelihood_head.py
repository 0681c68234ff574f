"""Base class of heads that are trained on a likelihood, and formulas shared by heads.

Each formula serves training (on tensors, `keras.ops`) and prediction (on arrays, NumPy).

Notation: m outputs. Raw numbers are (.., n_raw) and y is (.., m), in standardised units,
with any leading axes, which broadcast: rows, or members and rows.
"""

from __future__ import annotations

import numpy as np

from skuq import backend
from skuq._constants import LOG_SQRT_2PI


class LikelihoodHead:
    """Base class of heads that are trained on a likelihood.

    A subclass defines `n_outputs` and `log_densities`.
    """

    n_outputs: int

    def log_densities(self, y, raw, xp=np):
        """Compute log densities (.., n_outputs) from y (.., n_outputs) and raw (.., n_raw)."""
        raise NotImplementedError

    def loss(self, y, raw):
        """Compute each row's negative log likelihood (..,), mean over outputs.

        `y` (.., n_outputs) and `raw` (.., n_raw) are tensors.
        """
        return self.validation_loss(y, raw)

    def validation_loss(self, y, raw):
        """Compute each row's negative log likelihood, mean over outputs, whatever `loss` is."""
        return -backend.ops.mean(self.log_densities(y, raw, backend.ops), axis=-1)

    def mixture_loss(self, y, copies):
        """Compute `validation_loss` of the equal mixture of C copies.

        `y` is (.., n_outputs), and `copies` are (.., C, n_raw).
        """
        ops = backend.ops
        # Given the copy, outputs are independent: sum them before averaging densities over copies.
        joint = ops.sum(self.log_densities(y[..., None, :], copies, ops), axis=-1)  # (.., C)
        log_likelihood = ops.logsumexp(joint, axis=-1) - np.log(copies.shape[-2])
        return -log_likelihood / self.n_outputs

    def scores(self, y, raw) -> np.ndarray:
        """Compute `validation_loss` (..,) in NumPy, from arrays. Searches minimise it."""
        return -self.log_densities(y, raw).mean(axis=-1)

    def log_likelihood(self, y, raw) -> np.ndarray:
        """Compute the joint log density (..,) of all outputs, from arrays y and raw."""
        return self.log_densities(y, raw).sum(axis=-1)


def softplus(r, xp):
    """Compute ``log(1 + exp(r))`` without overflow."""
    return xp.logaddexp(r, xp.zeros_like(r))


def log_normal(y, mean, scale, xp):
    """Compute the log density of a normal, element by element."""
    return -(xp.log(scale) + 0.5 * xp.square((y - mean) / scale) + LOG_SQRT_2PI)


def cast_like(values, like, xp):
    """Convert an array to the kind (array or tensor) and the precision of another."""
    return values if xp is np else xp.cast(values, like.dtype)


def split_last(raw, parts, xp):
    """Reshape raw numbers (.., n_raw) to (.., *parts)."""
    # Symbolic tensors do not know their number of rows.
    leading = [-1 if size is None else size for size in xp.shape(raw)[:-1]]
    return xp.reshape(raw, (*leading, *parts))
