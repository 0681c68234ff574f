"""Head for networks that contain several members.

Notation: m outputs. Raw numbers are (.., n_raw) and y is (.., m), in standardised units,
with any leading axes, which broadcast: rows, or members and rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import special

from skuq import backend
from skuq._registry import saved_as
from skuq.networks._head_protocol import MixableHead
from skuq.networks._likelihood_head import split_last


@saved_as("networks.PackedHead")
@dataclass(frozen=True)
class PackedHead:
    """Several copies of a head, for a network that contains several members.

    The raw numbers of the first copy come first, then those of the second, and so on.

    Parameters
    ----------
    head : Head
        Head of one copy; it must have a `mixture_loss`.
    n_copies : int
        Number of copies, at least 1.

    Raises
    ------
    ValueError
        If n_copies is below 1.

    Notes
    -----
    The copies learn separately: the training loss is the mean of the copies' losses, not the loss
    of their mixture. Predictions are those of the mixture, which `log_likelihood`, `moments` and
    `validation_loss` describe. Therefore training can continue after single copies begin to
    overfit.

    References
    ----------
    Wen, Tran and Ba (2020), "BatchEnsemble". Gorishniy et al. (2024), "TabM: Advancing
    Tabular Deep Learning with Parameter-Efficient Ensembling", section 3.

    Examples
    --------
    >>> import numpy as np
    >>> from skuq.networks import GaussianHead, PackedHead
    >>> packed = PackedHead(GaussianHead(), n_copies=2)
    >>> packed.unpack(np.array([[1.0, 2.0, 3.0, 4.0]]))[:, 0]
    array([[1., 2.],
           [3., 4.]])
    """

    head: MixableHead
    n_copies: int

    def __post_init__(self):
        if self.n_copies < 1:
            raise ValueError(f"n_copies must be at least 1. Got {self.n_copies}.")

    @property
    def n_raw(self) -> int:
        """Number of raw outputs of the network."""
        return self.n_copies * self.head.n_raw

    def _copies(self, raw, xp):
        """Reshape raw numbers (.., n_raw) to (.., n_copies, head.n_raw)."""
        return split_last(raw, (self.n_copies, self.head.n_raw), xp)

    def unpack(self, raw) -> np.ndarray:
        """Rearrange raw numbers so that each copy is a member of its own.

        Parameters
        ----------
        raw : ndarray of shape (n, n_raw) or (K, n, n_raw)

        Returns
        -------
        ndarray of shape (n_copies, n, head.n_raw) or (K * n_copies, n, head.n_raw)
            The copies of the first member come first.
        """
        copies = self._copies(raw, np)
        if raw.ndim < 3:
            return np.moveaxis(copies, -2, 0)
        copies = np.moveaxis(copies, -2, 1)  # (K, n_copies, .., head.n_raw)
        return copies.reshape(-1, *copies.shape[2:])

    def moments(self, raw) -> tuple[np.ndarray, np.ndarray]:
        """Compute means and standard deviations of the copies' mixture, arrays (.., n_outputs)."""
        head: Any = self.head  # all heads for regression have moments
        means, stds = head.moments(self._copies(raw, np))  # (.., n_copies, n_outputs)
        # Law of total variance over equally probable copies.
        return means.mean(axis=-2), np.sqrt((stds**2).mean(axis=-2) + means.var(axis=-2))

    def loss(self, y, raw):
        """Compute each row's mean of the copies' losses (..,), from tensors y and raw."""
        ops = backend.ops
        return ops.mean(self.head.loss(y[..., None, :], self._copies(raw, ops)), axis=-1)

    def validation_loss(self, y, raw):
        """Compute each row's loss under the copies' mixture, from tensors as in `loss`."""
        return self.head.mixture_loss(y, self._copies(raw, backend.ops))

    def log_likelihood(self, y, raw) -> np.ndarray:
        """Compute the joint log density (..,) of all outputs under the copies' mixture."""
        head: Any = self.head  # all but `SquaredErrorHead` have a likelihood
        densities = head.log_likelihood(np.asarray(y)[..., None, :], self._copies(raw, np))
        return special.logsumexp(densities, axis=-1) - np.log(self.n_copies)
