"""Head with a mixture of normals for each output: a mixture density network.

Notation: m outputs. Raw numbers are (.., n_raw) and y is (.., m), in standardised units,
with any leading axes, which broadcast: rows, or members and rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import special

from skuq._registry import saved_as
from skuq.networks._likelihood_head import (
    LikelihoodHead,
    cast_like,
    log_normal,
    softplus,
    split_last,
)


@saved_as("networks.GaussianMixtureHead")
@dataclass(frozen=True)
class GaussianMixtureHead(LikelihoodHead):
    """A mixture of normals for each of several outputs: a mixture density network.

    The network has 3 J m raw outputs for J components and m outputs: J m logits of the
    components' probabilities, then J m numbers for their means, then J m numbers r for their
    standard deviations ``softplus(r) + min_scale``. Each kind has m numbers for the first
    component, then m for the second, and so on. Each output has its own mixture, independent of
    the others.

    Parameters
    ----------
    n_outputs : int, default=1
        m, the number of columns of y.
    n_components : int, default=3
        J, the number of normals for each output.
    min_scale : float, default=1e-3
        Smallest standard deviation, in units of the standardised y; see `GaussianHead`.

    Raises
    ------
    ValueError
        If n_components is below 1.

    Notes
    -----
    Means are raw numbers plus normal scores, so that raw numbers of 0 spread the components
    evenly over a standardised y. Components that start equal would stay equal.

    References
    ----------
    Bishop (1994), "Mixture Density Networks".

    Examples
    --------
    >>> import numpy as np
    >>> from skuq.networks import GaussianMixtureHead
    >>> head = GaussianMixtureHead(n_components=2)
    >>> mean, variance = head.moments(np.zeros((1, head.n_raw)))
    >>> head.n_raw, mean.round(3), variance.round(3)
    (6, array([[0.]]), array([[0.968]]))
    """

    n_outputs: int = 1
    n_components: int = 3
    min_scale: float = 1e-3

    def __post_init__(self):
        if self.n_components < 1:
            raise ValueError(f"n_components must be at least 1. Got {self.n_components}.")

    @property
    def n_raw(self) -> int:
        """Number of raw outputs of the network."""
        return 3 * self.n_components * self.n_outputs

    def distribution(self, raw: Any, xp: Any = np) -> tuple[Any, Any, Any]:
        """Compute means, standard deviations and log probabilities of the components.

        Each is (.., n_components, n_outputs), from (.., n_raw). `NestedGaussianMixture` has the
        axis of components before the rows, and probabilities instead of their logs.
        """
        j, m = self.n_components, self.n_outputs
        parts = split_last(raw, (3, j, m), xp)
        logits, mean, r = parts[..., 0, :, :], parts[..., 1, :, :], parts[..., 2, :, :]
        # Offsets of the means: quantiles of the standard normal at (j + 1/2) / J.
        offsets = special.ndtri((np.arange(j) + 0.5) / j)[:, None]  # (J, 1)
        # Keras' `add`, which + is for symbolic tensors, takes a column of as many entries as there
        # are members for a bias of the members' axis. Its `subtract` always broadcasts.
        mean = mean - cast_like(-offsets, raw, xp)
        log_probability = logits - _logsumexp(logits, xp)[..., None, :]
        return mean, softplus(r, xp) + self.min_scale, log_probability

    def moments(self, raw, xp=np):
        """Compute means and standard deviations, each (.., n_outputs), from (.., n_raw)."""
        loc, scale, log_probability = self.distribution(raw, xp)
        probability = xp.exp(log_probability)
        mean = xp.sum(probability * loc, axis=-2)
        # Law of total variance over the components.
        variance = probability * (scale**2 + (loc - mean[..., None, :]) ** 2)
        return mean, xp.sqrt(xp.sum(variance, axis=-2))

    def log_densities(self, y, raw, xp=np):
        """Compute log densities (.., n_outputs) from y (.., n_outputs) and raw (.., n_raw)."""
        loc, scale, log_probability = self.distribution(raw, xp)
        return _logsumexp(log_probability + log_normal(y[..., None, :], loc, scale, xp), xp)


def _logsumexp(values, xp):
    """Compute log-sum-exp over components: (.., n_components, n_outputs) to (.., n_outputs)."""
    # Keras 3.7 takes no number as the axis of a symbolic tensor.
    return (special if xp is np else xp).logsumexp(values, axis=(-2,))
