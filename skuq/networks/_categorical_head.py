"""Head of class probabilities."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import special

from skuq import backend
from skuq._registry import saved_as


@saved_as("networks.CategoricalHead")
@dataclass(frozen=True)
class CategoricalHead:
    """Class probabilities from one raw number, the logit, for each class.

    Parameters
    ----------
    n_classes : int
    """

    n_classes: int

    @property
    def n_raw(self) -> int:
        """Numbers the network has to give."""
        return self.n_classes

    def probabilities(self, raw: Any, xp: Any = np) -> Any:
        """Numbers (.., n_classes) that sum to 1, from raw numbers of that shape."""
        return (special if xp is np else xp).softmax(raw, axis=-1)

    def pooled(self, raw) -> np.ndarray:
        """Raw numbers (.., n_classes) of the average probabilities of an equal mixture (K, ..)."""
        return special.logsumexp(special.log_softmax(raw, axis=-1), axis=0) - np.log(len(raw))

    def loss(self, y, raw):
        """Cross-entropy of each row, in nats: codes (.., 1) and raw tensors to (..,)."""
        ops = backend.ops
        codes = ops.cast(y[..., 0], "int32")
        chosen = ops.sum(ops.one_hot(codes, self.n_classes) * raw, axis=-1)
        return ops.logsumexp(raw, axis=-1) - chosen

    def mixture_loss(self, y, copies):
        """`loss` of the copies' average probabilities: y (.., 1), copies (.., C, n_raw)."""
        losses = self.loss(y[..., None, :], copies)  # (.., C)
        return np.log(copies.shape[-2]) - backend.ops.logsumexp(-losses, axis=-1)

    def scores(self, y, raw) -> np.ndarray:
        """`loss` (..,) in NumPy, from arrays: searches minimise it."""
        return -self.log_likelihood(y, raw)

    def log_likelihood(self, y, raw) -> np.ndarray:
        """Log probability (..,) of codes (.., 1), from arrays of raw numbers (.., n_classes)."""
        codes = np.broadcast_to(np.asarray(y).astype(int), (*raw.shape[:-1], 1))
        chosen = np.take_along_axis(raw, codes, axis=-1)[..., 0]
        return chosen - special.logsumexp(raw, axis=-1)
