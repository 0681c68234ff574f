"""Head of mixtures of normals.

Notation as in `skuq/networks/_heads.py`: m outputs, raw numbers (.., n_raw) and y (.., m).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import special

from skuq import backend
from skuq._utils._records import saved_as
from skuq.networks._heads import (
    LikelihoodHead,
    inverse_softplus,
    log_normal,
    mixture_crps,
    softplus,
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
    weighs_losses : bool, default=False
        The training loss is the sum of the CRPS and the negative log likelihood, both in units of
        y: the second is multiplied by the mixture's standard deviation, without a gradient through
        this factor, as in the beta-NLL of `GaussianHead`. True averages this sum and the negative
        log likelihood, and the setting "crps" is the weight of the sum: members of one stack can
        then learn by different losses.

    Raises
    ------
    ValueError
        If n_components is below 1.

    Notes
    -----
    Means are raw numbers plus normal scores, so that raw numbers of 0 spread the components
    evenly over a standardised y. Components that start equal would stay equal.

    The loss of validation rows is the CRPS. The likelihood is best long before the mean is,
    because networks grow too sure first. Searches compare networks by the likelihood.

    References
    ----------
    Bishop (1994), "Mixture Density Networks". Grimit et al. (2006), Eq. 5 (CRPS); Seitzer et al.
    (2022), Eq. 5 (weights); see `GaussianHead`.

    Examples
    --------
    >>> import numpy as np
    >>> from skuq.networks._mixture_heads import GaussianMixtureHead
    >>> head = GaussianMixtureHead(n_components=2)
    >>> mean, variance = head.moments(np.zeros((1, head.n_raw)))
    >>> head.n_raw, mean.round(3), variance.round(3)
    (6, array([[0.]]), array([[0.968]]))
    """

    n_outputs: int = 1
    n_components: int = 3
    min_scale: float = 1e-3
    weighs_losses: bool = False

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
        # Pooled raw numbers have the components of several networks.
        j, m = raw.shape[-1] // (3 * self.n_outputs), self.n_outputs
        # Symbolic tensors do not know their number of rows.
        leading = [-1 if size is None else size for size in xp.shape(raw)[:-1]]
        parts = xp.reshape(raw, (*leading, 3, j, m))
        logits, mean, r = parts[..., 0, :, :], parts[..., 1, :, :], parts[..., 2, :, :]
        offsets = -_normal_scores(j)
        offsets = offsets if xp is np else xp.cast(offsets, raw.dtype)
        # Keras' `add`, which + is for symbolic tensors, takes a column of as many entries as there
        # are members for a bias of the members' axis. Its `subtract` always broadcasts.
        mean = mean - offsets
        log_probability = logits - _logsumexp(logits, xp)[..., None, :]
        return mean, softplus(r, xp) + self.min_scale, log_probability

    def raw_of(self, loc, scale, log_probability) -> np.ndarray:
        """Compute raw numbers (.., 3 J m) of components (.., J, m): inverse of `distribution`."""
        means = loc - _normal_scores(loc.shape[-2])
        parts = [log_probability, means, inverse_softplus(scale - self.min_scale)]
        return np.concatenate([part.reshape(*part.shape[:-2], -1) for part in parts], axis=-1)

    def pooled(self, raw) -> np.ndarray:
        """Compute raw numbers (.., K n_raw) of the equal mixture of K networks (K, .., n_raw)."""
        networks = [self.distribution(one) for one in np.asarray(raw, dtype="float64")]
        # Equal shares need no factor: probabilities are normalised.
        return self.raw_of(*(np.concatenate(parts, axis=-2) for parts in zip(*networks)))

    def widened(self, raw, variance, shift=0.0) -> np.ndarray:
        """Shift each component and add to its variance, as `GaussianHead.widened`."""
        loc, scale, log_probability = self.distribution(raw)
        variance, shift = (
            np.asarray(part)[..., None, :]
            for part in np.broadcast_arrays(variance, shift, loc[..., 0, :])[:2]
        )
        return self.raw_of(loc + shift, np.sqrt(scale**2 + variance), log_probability)

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

    def loss(self, y, raw, settings=None):
        """Compute each row's loss (..,), mean over outputs, from tensors."""
        ops = backend.ops
        log_density = self.log_densities(y, raw, ops)
        _, std = self.moments(raw, ops)
        crps = self._crps(y, raw)
        both = ops.mean(crps - ops.stop_gradient(std) * log_density, axis=-1)
        if not self.weighs_losses:
            return both
        likelihood = -ops.mean(log_density, axis=-1)
        return settings["crps"] * both + (1 - settings["crps"]) * likelihood

    def validation_loss(self, y, raw):
        """Compute each row's CRPS (..,), mean over outputs, from tensors."""
        return backend.ops.mean(self._crps(y, raw), axis=-1)

    def _crps(self, y, raw):
        """Compute the CRPS (.., n_outputs) of each output, from tensors."""
        ops = backend.ops
        loc, scale, log_probability = self.distribution(raw, ops)
        return mixture_crps(y, loc, scale, ops.exp(log_probability))


def _normal_scores(j):
    """Return the quantiles (J, 1) of the standard normal at (j + 1/2) / J."""
    return special.ndtri((np.arange(j) + 0.5) / j)[:, None]


def _logsumexp(values, xp):
    """Compute log-sum-exp over components: (.., n_components, n_outputs) to (.., n_outputs)."""
    # Keras 3.7 takes no number as the axis of a symbolic tensor.
    return (special if xp is np else xp).logsumexp(values, axis=(-2,))
