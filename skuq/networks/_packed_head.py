"""Head for networks that are several members at once.

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
    """Several copies of a head: a network that is several members at once.

    Raw numbers of the first copy come first, then those of the second.

    Parameters
    ----------
    head : Head
        Any other head with a `mixture_loss`.
    n_copies : int
        At least 1.

    Raises
    ------
    ValueError
        If n_copies is below 1.

    Notes
    -----
    Each copy learns for itself: the loss is the mean of the copies' losses, not the loss of
    their mixture. Users get the mixture, and `log_likelihood`, `moments` and
    `validation_loss` describe it: training may go on when single copies begin to overfit.

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
        """Numbers the network has to give."""
        return self.n_copies * self.head.n_raw

    def _copies(self, raw, xp):
        """Raw numbers (.., n_copies, head.n_raw) from (.., n_raw)."""
        return split_last(raw, (self.n_copies, self.head.n_raw), xp)

    def unpack(self, raw) -> np.ndarray:
        """Raw numbers with each copy as a member of its own.

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
        """Means and standard deviations of the copies' mixture, arrays (.., n_outputs)."""
        head: Any = self.head  # heads of numbers have moments
        means, stds = head.moments(self._copies(raw, np))  # (.., n_copies, n_outputs)
        return means.mean(axis=-2), np.sqrt((stds**2).mean(axis=-2) + means.var(axis=-2))

    def loss(self, y, raw):
        """Mean of the copies' losses of each row: tensors (.., n_outputs), (.., n_raw) to (..,)."""
        ops = backend.ops
        return ops.mean(self.head.loss(y[..., None, :], self._copies(raw, ops)), axis=-1)

    def validation_loss(self, y, raw):
        """Loss of each row under the copies' mixture; tensors as in `loss`."""
        return self.head.mixture_loss(y, self._copies(raw, backend.ops))

    def log_likelihood(self, y, raw) -> np.ndarray:
        """Log density (..,) of the copies' mixture, of all outputs together: arrays."""
        head: Any = self.head  # all but `SquaredErrorHead` have a likelihood
        densities = head.log_likelihood(np.asarray(y)[..., None, :], self._copies(raw, np))
        return special.logsumexp(densities, axis=-1) - np.log(self.n_copies)
