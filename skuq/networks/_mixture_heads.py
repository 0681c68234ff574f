"""Heads of several distributions: mixtures of normals, and the copies inside one network.

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
    cast_like,
    inverse_softplus,
    log_normal,
    mixture_crps,
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
    score : {"log", "crps", "weighted"}, default="log"
        Training loss: the negative log likelihood, or its sum with the CRPS, both in units of y.
        In the sum the negative log likelihood is multiplied by the mixture's standard deviation,
        without a gradient through this factor, as in the beta-NLL of `GaussianHead`. "weighted" is
        an average of both losses, in which the setting "crps" is the weight of the second: members
        of one stack can then learn by different losses.
    validation : {"log", "crps"}, default="log"
        Score of validation rows, for early stopping: the negative log likelihood or the CRPS. The
        first is lowest long before the mean is best, because networks grow too sure first; the
        CRPS lets them train on. Searches compare networks by the likelihood in any case.

    Raises
    ------
    ValueError
        If n_components is below 1, or a score is unknown.

    Notes
    -----
    Means are raw numbers plus normal scores, so that raw numbers of 0 spread the components
    evenly over a standardised y. Components that start equal would stay equal.

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
    score: str = "log"
    validation: str = "log"

    def __post_init__(self):
        if self.n_components < 1:
            raise ValueError(f"n_components must be at least 1. Got {self.n_components}.")
        for name, known in (
            ("score", ("log", "crps", "weighted")),
            ("validation", ("log", "crps")),
        ):
            if getattr(self, name) not in known:
                raise ValueError(f"{name} must be one of {known}. Got {getattr(self, name)!r}.")

    @property
    def weighs_losses(self) -> bool:
        """Whether the weights of its losses are settings of each member."""
        return self.score == "weighted"

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
        parts = split_last(raw, (3, j, m), xp)
        logits, mean, r = parts[..., 0, :, :], parts[..., 1, :, :], parts[..., 2, :, :]
        offsets = _normal_scores(j)
        # Keras' `add`, which + is for symbolic tensors, takes a column of as many entries as there
        # are members for a bias of the members' axis. Its `subtract` always broadcasts.
        mean = mean - cast_like(-offsets, raw, xp)
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
        """Compute each row's loss (..,), mean over outputs, from tensors; see `score`."""
        ops = backend.ops
        log_density = self.log_densities(y, raw, ops)
        likelihood = -ops.mean(log_density, axis=-1)
        if self.score == "log":
            return likelihood
        _, std = self.moments(raw, ops)
        crps = self._crps(y, raw, ops)
        both = ops.mean(crps - ops.stop_gradient(std) * log_density, axis=-1)
        if self.score == "crps":
            return both
        return settings["crps"] * both + (1 - settings["crps"]) * likelihood

    def validation_loss(self, y, raw):
        """Compute each row's negative log likelihood or CRPS, mean over outputs."""
        if self.validation == "log":
            return super().validation_loss(y, raw)
        return backend.ops.mean(self._crps(y, raw, backend.ops), axis=-1)

    def _crps(self, y, raw, xp=np):
        """Compute the CRPS (.., n_outputs) of each output."""
        loc, scale, log_probability = self.distribution(raw, xp)
        return mixture_crps(y, loc, scale, xp.exp(log_probability), xp)

    def mixture_loss(self, y, copies):
        """Compute `validation_loss` of the equal mixture of C copies.

        `y` is (.., n_outputs), and `copies` are (.., C, n_raw).
        """
        if self.validation == "log":
            return super().mixture_loss(y, copies)
        ops = backend.ops
        # Components of all copies, (.., C * n_components, n_outputs), are one mixture.
        size = copies.shape[-2] * self.n_components, self.n_outputs
        loc, scale, log_probability = (
            ops.reshape(part, (*ops.shape(part)[:-3], *size))
            for part in self.distribution(copies, ops)
        )
        share = ops.exp(log_probability) / copies.shape[-2]
        return ops.mean(mixture_crps(y, loc, scale, share, ops), axis=-1)


def _normal_scores(j):
    """Return the quantiles (J, 1) of the standard normal at (j + 1/2) / J."""
    return special.ndtri((np.arange(j) + 0.5) / j)[:, None]


def _logsumexp(values, xp):
    """Compute log-sum-exp over components: (.., n_components, n_outputs) to (.., n_outputs)."""
    # Keras 3.7 takes no number as the axis of a symbolic tensor.
    return (special if xp is np else xp).logsumexp(values, axis=(-2,))


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
    >>> from skuq.networks import GaussianHead
    >>> from skuq.networks._mixture_heads import PackedHead
    >>> packed = PackedHead(GaussianHead(), n_copies=2)
    >>> packed.unpack(np.array([[1.0, 2.0, 3.0, 4.0]]))[:, 0]
    array([[1., 2.],
           [3., 4.]])
    """

    head: Any  # a `Head` with `mixture_loss`
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
        means, stds = self.head.moments(self._copies(raw, np))  # (.., n_copies, n_outputs)
        # Law of total variance over equally probable copies.
        return means.mean(axis=-2), np.sqrt((stds**2).mean(axis=-2) + means.var(axis=-2))

    @property
    def weighs_losses(self) -> bool:
        """Whether the weights of a copy's losses are settings of each member."""
        return getattr(self.head, "weighs_losses", False)

    def loss(self, y, raw, settings=None):
        """Compute each row's mean of the copies' losses (..,), from tensors y and raw."""
        ops, args = backend.ops, ()
        if self.weighs_losses:
            args = ({name: value[..., None] for name, value in settings.items()},)
        return ops.mean(self.head.loss(y[..., None, :], self._copies(raw, ops), *args), axis=-1)

    def validation_loss(self, y, raw):
        """Compute each row's loss under the copies' mixture, from tensors as in `loss`."""
        return self.head.mixture_loss(y, self._copies(raw, backend.ops))

    def log_likelihood(self, y, raw) -> np.ndarray:
        """Compute the joint log density (..,) of all outputs under the copies' mixture."""
        densities = self.head.log_likelihood(np.asarray(y)[..., None, :], self._copies(raw, np))
        return special.logsumexp(densities, axis=-1) - np.log(self.n_copies)
