"""Heads: the meaning of a network's raw outputs, and the loss that trains them.

Mixtures of normals are in `_mixture_heads.py`.

A head defines the number of raw outputs and the distribution that they describe. Each formula
serves training (on tensors, `keras.ops`) and prediction (on arrays, NumPy).

Notation: m outputs. Raw numbers are (.., n_raw) and y is (.., m), in standardised units,
with any leading axes, which broadcast: rows, or members and rows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from scipy import special

from skuq import backend
from skuq._utils._formulas import LOG_SQRT_2PI, mean_distance
from skuq._utils._records import saved_as


class Head(Protocol):
    """Common interface of all heads. They are frozen dataclasses, since they key cached programs.

    Notes
    -----
    Some heads have further members, and each use needs some of them:

    - `validation_loss` replaces `loss` on validation rows. If `sums_rows` is true, a batch's loss
      is the sum over its rows instead of their mean.
    - Searches score networks by ``scores(y, raw)`` and ``log_likelihood(y, raw)``, from arrays,
      and mix K networks by ``pooled(raw)``, from (K, ..). ``moments(raw, xp=numpy)`` computes
      means and standard deviations (.., m).
    - Heads whose `weighs_losses` is true take the recipe's `loss_settings`, numbers (..) that
      differ between the members of a stack: ``loss(y, raw, settings)``.
    - Losses with terms for artificial inputs, which have no targets: ``row_loss(y, raw,
      settings)`` and ``artificial_loss(raw, settings)``, and the prefix `detached` of the layers
      that get no gradient from these terms (or None).
    """

    @property
    def n_raw(self) -> int:
        """Number of raw outputs of the network."""
        ...

    def loss(self, y: Any, raw: Any) -> Any:
        """Compute the loss (..,) of each row, from tensors y (.., m) and raw (.., n_raw)."""
        ...


class LikelihoodHead:
    """Base class of heads for regression that are trained on a likelihood.

    A subclass defines `n_outputs`, `log_densities`, `distribution` and `moments`.
    """

    n_outputs: int
    log_densities: Any  # method (y, raw, xp=np) -> (.., n_outputs)

    def validation_loss(self, y, raw):
        """Compute each row's negative log likelihood (..,), mean over outputs, whatever `loss` is.

        `y` (.., n_outputs) and `raw` (.., n_raw) are tensors.
        """
        return -backend.ops.mean(self.log_densities(y, raw, backend.ops), axis=-1)

    loss = validation_loss

    def scores(self, y, raw) -> np.ndarray:
        """Compute the negative log likelihood (..,) from arrays. Searches minimise it."""
        return -self.log_densities(y, raw).mean(axis=-1)

    def log_likelihood(self, y, raw) -> np.ndarray:
        """Compute the joint log density (..,) of all outputs, from arrays y and raw."""
        return self.log_densities(y, raw).sum(axis=-1)


def softplus(r, xp):
    """Compute ``log(1 + exp(r))`` without overflow."""
    return xp.logaddexp(r, xp.zeros_like(r))


def inverse_softplus(value) -> np.ndarray:
    """Compute r with ``log(1 + exp(r)) = value``; rounding may have made the value 0."""
    value = np.maximum(value, np.finfo(float).tiny)
    # In a form that never overflows.
    return value + np.log(-np.expm1(-value))


def log_normal(y, mean, scale, xp):
    """Compute the log density of a normal, element by element."""
    return -(xp.log(scale) + 0.5 * xp.square((y - mean) / scale) + LOG_SQRT_2PI)


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
    beta : float, default=0.0
        Exponent in [0, 1] for ``score="log"``: each output's loss is multiplied by
        ``scale**(2 * beta)``, without a gradient through this factor. 0 is the likelihood; with 1
        the mean learns as from the squared error. Values in between (the paper recommends 0.5)
        keep rows that fit well from dominating. `log_likelihood` and `validation_loss` do not
        depend on it.
    score : {"log", "crps"}, default="log"
        Training loss: the negative log likelihood, or the continuous ranked probability score
        (CRPS). For rows that fit badly, the CRPS grows with the error, and the likelihood with
        the squared error divided by the variance.

    Raises
    ------
    ValueError
        If beta is outside [0, 1], or set with ``score="crps"``, or the score is unknown.

    References
    ----------
    Nix and Weigend (1994); Lakshminarayanan et al. (2017), section 2.4; AutoDEUQ, Eq. 1.
    Seitzer et al. (2022), "On the Pitfalls of Heteroscedastic Uncertainty Estimation with
    Probabilistic Neural Networks", Eq. 5 (beta). Gneiting and Raftery (2007), "Strictly Proper
    Scoring Rules, Prediction, and Estimation", Eq. 21 (CRPS); Grimit et al. (2006), "The
    Continuous Ranked Probability Score for Circular Variables and its Application to Mesoscale
    Forecast Ensemble Verification", Eq. 5 (CRPS of mixtures).

    Examples
    --------
    >>> import numpy as np
    >>> from skuq.networks import GaussianHead
    >>> mean, std = GaussianHead().distribution(np.array([[1.5, 0.0]]))
    >>> mean, std.round(3)
    (array([[1.5]]), array([[0.694]]))
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
            raise ValueError(f'beta needs score="log". Got beta={self.beta} with score="crps".')

    @property
    def n_raw(self) -> int:
        """Number of raw outputs of the network."""
        return 2 * self.n_outputs

    def distribution(self, raw: Any, xp: Any = np) -> tuple[Any, Any]:
        """Compute means and standard deviations, each (.., n_outputs), from (.., n_raw)."""
        mean, r = xp.split(raw, 2, axis=-1)
        return mean, softplus(r, xp) + self.min_scale

    moments = distribution

    def pooled(self, raw) -> np.ndarray:
        """Compute raw numbers (.., n_raw) of the normal that matches the mixture of K networks.

        `raw` is (K, .., n_raw). The normal has the mean and the variance of the equal mixture.
        """
        mean, scale = self.distribution(np.asarray(raw, dtype="float64"))
        # Variance of the mixture = mean of the variances + variance of the means.
        std = np.sqrt(np.square(scale).mean(axis=0) + mean.var(axis=0))
        return self.raw_of(mean.mean(axis=0), std)

    def raw_of(self, mean, std) -> np.ndarray:
        """Compute raw numbers (.., n_raw) from means and standard deviations (.., n_outputs).

        It is the inverse of `distribution`.
        """
        return np.concatenate([mean, inverse_softplus(std - self.min_scale)], axis=-1)

    def widened(self, raw, variance, shift=0.0) -> np.ndarray:
        """Compute raw numbers of means plus `shift`, and of variances plus `variance`.

        Both are numbers or arrays (.., n_outputs).
        """
        mean, std = self.distribution(raw)
        return self.raw_of(mean + shift, np.sqrt(std**2 + variance))

    def log_densities(self, y, raw, xp=np):
        """Compute log densities (.., n_outputs) from y (.., n_outputs) and raw (.., n_raw)."""
        return log_normal(y, *self.distribution(raw, xp), xp)

    def loss(self, y, raw):
        """Compute each row's negative log likelihood (Eq. 1, with its constant) or CRPS.

        The result (..,) is the mean over outputs, weighted if `beta` is set. `y` (.., n_outputs)
        and `raw` (.., n_raw) are tensors.
        """
        if not self.beta:
            return self.validation_loss(y, raw)
        ops = backend.ops
        _, scale = self.distribution(raw, ops)
        # Each output's loss times scale^(2 beta), as a constant (Seitzer et al., Eq. 5).
        factor = ops.stop_gradient(ops.power(scale, 2 * self.beta))
        return -ops.mean(factor * self.log_densities(y, raw, ops), axis=-1)

    def validation_loss(self, y, raw):
        """Compute each row's negative log likelihood or CRPS, mean over outputs, without `beta`."""
        if self.score == "log":
            return super().validation_loss(y, raw)
        return backend.ops.mean(self._crps(y, raw, backend.ops), axis=-1)

    def scores(self, y, raw) -> np.ndarray:
        """Compute `validation_loss` (..,) in NumPy, from arrays. Searches minimise it."""
        return super().scores(y, raw) if self.score == "log" else self._crps(y, raw).mean(axis=-1)

    def _crps(self, y, raw, xp=np):
        """Compute the CRPS (.., n_outputs) of each output."""
        mean, scale = self.distribution(raw, xp)
        # CRPS = E|X - y| - E|X - X'| / 2, where X - X' has a standard deviation of sqrt(2) scale.
        return mean_distance(y - mean, scale, xp) - scale / math.sqrt(math.pi)


def mixture_crps(y, loc, scale, probability):
    """Compute the CRPS (.., m) of mixtures of J normals (.., J, m) (Grimit et al., Eq. 5)."""
    n_components, xp = loc.shape[-2], backend.ops
    # E|X - y| is a mean over components, and half of E|X - X'| one over pairs of components: those
    # of a component with itself, then with the next one, the second next, and so on. All pairs at
    # once are large.
    total = probability * mean_distance(y[..., None, :] - loc, scale, xp)
    total = total - xp.square(probability) * scale / math.sqrt(math.pi)
    for step in range(1, n_components // 2 + 1):
        next_loc, next_scale, next_probability = (
            xp.roll(part, step, axis=-2) for part in (loc, scale, probability)
        )
        std = xp.sqrt(xp.square(scale) + xp.square(next_scale))
        pairs = probability * next_probability * mean_distance(loc - next_loc, std, xp)
        # Half way round every pair comes twice.
        total = total - (0.5 if 2 * step == n_components else 1.0) * pairs
    return xp.sum(total, axis=-2)


@saved_as("networks.SquaredErrorHead")
@dataclass(frozen=True)
class SquaredErrorHead:
    """Head with a mean for each output; the noise is known or estimated separately.

    Parameters
    ----------
    n_outputs : int, default=1
        m, the number of columns of y.
    scale : tuple of float, optional
        Standard deviation of the noise of each output, in units of the standardised y;
        needed for `distribution`, but not for training.

    References
    ----------
    Heiss et al., "NOMU", Remark B.1.

    Examples
    --------
    >>> import numpy as np
    >>> from skuq.networks._heads import SquaredErrorHead
    >>> SquaredErrorHead(scale=(0.5,)).distribution(np.array([[2.0]]))
    (array([[2.]]), array([[0.5]]))
    """

    n_outputs: int = 1
    scale: tuple[float, ...] | None = None

    @property
    def n_raw(self) -> int:
        """Number of raw outputs of the network."""
        return self.n_outputs

    def distribution(self, raw: Any, xp: Any = np) -> tuple[Any, Any]:
        """Compute means and standard deviations, each (.., n_outputs), from (.., n_raw)."""
        return raw, xp.zeros_like(raw) + np.asarray(self.scale)

    moments = distribution

    def loss(self, y, raw):
        """Compute each row's squared error (..,), mean over outputs, from tensors (.., m)."""
        return backend.ops.mean(backend.ops.square(y - raw), axis=-1)


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
    >>> from skuq.networks._heads import CategoricalHead
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
