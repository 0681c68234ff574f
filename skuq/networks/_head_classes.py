"""Head of class probabilities."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import special

from skuq import backend
from skuq.files._registry import saved_as


@saved_as("networks.CategoricalHead")
@dataclass(frozen=True)
class CategoricalHead:
    """Class probabilities from one raw number, the logit, for each class.

    Parameters
    ----------
    n_classes : int
        Number of classes.

    Examples
    --------
    >>> import numpy as np
    >>> from skuq.networks._head_base import CategoricalHead
    >>> CategoricalHead(3).probabilities(np.log([[1.0, 1.0, 2.0]]))
    array([[0.25, 0.25, 0.5 ]])
    """

    n_classes: int

    @property
    def n_raw(self) -> int:
        """Number of raw outputs of the network."""
        return self.n_classes

    def probabilities(self, raw: Any, xp: Any = np) -> Any:
        """Compute class probabilities (.., n_classes) from raw numbers of that shape."""
        return (special if xp is np else xp).softmax(raw, axis=-1)

    def pooled(self, raw) -> np.ndarray:
        """Compute raw numbers (.., n_classes) of the averaged probabilities of K networks.

        `raw` is (K, .., n_classes).
        """
        # Log of the mean probability, which softmax maps back to it.
        return special.logsumexp(special.log_softmax(raw, axis=-1), axis=0) - np.log(len(raw))

    def loss(self, y, raw):
        """Compute the cross-entropy (..,) of each row in nats, from tensors.

        `y` holds class codes (.., 1), and `raw` is (.., n_classes).
        """
        ops = backend.ops
        codes = ops.cast(y[..., 0], "int32")
        chosen = ops.sum(ops.one_hot(codes, self.n_classes, dtype=raw.dtype) * raw, axis=-1)
        return ops.logsumexp(raw, axis=-1) - chosen

    def scores(self, y, raw) -> np.ndarray:
        """Compute the loss (..,) in NumPy, from arrays. Searches minimise it."""
        return -self.log_likelihood(y, raw)

    def log_likelihood(self, y, raw) -> np.ndarray:
        """Compute log probabilities (..,) of codes (.., 1), from raw numbers (.., n_classes)."""
        codes = np.broadcast_to(np.asarray(y).astype(int), (*raw.shape[:-1], 1))
        chosen = np.take_along_axis(raw, codes, axis=-1)[..., 0]
        return chosen - special.logsumexp(raw, axis=-1)
