"""Heads: what the raw outputs of a network mean, and the loss that trains them.

Notation: K members, n rows, m outputs (of classes, their probabilities); raw outputs are
(.., n_raw), and those of members (K, n, n_raw).

Notation of NOMU: f is the mean, r the raw uncertainty. A network gives m numbers f (none
where f is given), then m numbers r, or 2 m for bounds that are not symmetric: r upwards,
then r downwards. Definitions and equations are those of Heiss et al., "NOMU: Neural
Optimization-based Model Uncertainty", ICML 2022.
"""

import math
from typing import Any, Self

import numpy as np
from scipy import special

from skuq import backend
from skuq._formulas import LOG_SQRT_2PI, crps_normal, mean_distance
from skuq.files._registry import saved_record
from skuq.predictive import CategoricalMixture, GaussianMixture, Mixture, TransformedMixture
from skuq.predictive._calibration import UNCALIBRATED, Calibration, calibrate_normals


class Head:
    """Base of all heads. They are frozen dataclasses, since they key cached programs.

    Training needs `n_raw` and ``loss(y, raw)``. An ensemble also needs `means` and `mixture`, which
    `NormalsHead` derives from weighted normals, and the scores of `error`. Searches score networks
    by `scores` and `log_likelihood`, and mix those of a trial by ``pooled(raw)``.

    A loss with terms for artificial inputs, which have no targets, has ``row_loss(y, raw,
    settings)`` and ``artificial_loss(raw, settings)``.
    """

    #: Whether y are codes of classes.
    classifies: bool = False
    #: Whether the last raw numbers are those of the standard deviations of one normal.
    has_scales: bool = False
    #: Loss by which the selection "auto" compares ensembles; see `GreedySelection`.
    selection_loss: str = "mixture"
    #: Whether a batch's loss is the sum over its rows instead of their mean.
    sums_rows: bool = False
    #: Whether the loss takes the recipe's `loss_settings`, numbers (..) that differ between the
    #: members of a stack: ``loss(y, raw, settings)``.
    weighs_losses: bool = False
    #: Beginning of the names of the layers that get no gradient from artificial inputs.
    detached: str | None = None

    @property
    def n_raw(self) -> int:
        """Number of raw outputs of the network."""
        raise NotImplementedError

    def loss(self, y: Any, raw: Any) -> Any:
        """Compute the loss (..,) of each row, from tensors y (.., m) and raw (.., n_raw)."""
        raise NotImplementedError

    def validation_loss(self, y: Any, raw: Any) -> Any:
        """Compute the loss (..,) of each validation row, as `loss` by default."""
        return self.loss(y, raw)

    def log_likelihood(self, y: Any, raw: Any) -> np.ndarray:
        """Compute the joint log density (..,) of all outputs, from arrays y and raw."""
        raise NotImplementedError

    def scores(self, y: Any, raw: Any) -> np.ndarray:
        """Compute the negative log likelihood (..,) from arrays. Searches minimise it."""
        return -self.log_likelihood(y, raw)

    def means(self, raw: Any, xp: Any = np) -> Any:
        """Compute means (.., m) of the standardised y, or probabilities of classes."""
        raise NotImplementedError

    def without_noise(self) -> Self:
        """Return a head with the same means for all fits, which keys compiled draws."""
        return self

    def raw_of_means(self, values: np.ndarray) -> np.ndarray:
        """Compute raw numbers (.., n_raw) that add values (.., m) to the means, and nothing else.

        A network of numbers starts with such a part, the linear fit of its rows.
        """
        raise NotImplementedError

    def mixture(
        self, raw: np.ndarray, weights: np.ndarray, targets: Any, calibration: Calibration
    ) -> Any:
        """Mix what members predict, in units of y.

        Parameters
        ----------
        raw : ndarray of shape (K, n, n_raw)
        weights : ndarray of shape (K,)
            Positive weights of the members, summing to 1.
        targets : Targets
            Fitted scales of y: ``restore(loc, scale)`` converts to its units, and `is_1d` says
            whether the mixture has no axis of outputs. Where `is_transformed`, the mixture is one
            of the transformed y, behind the map of `scaling`.
        calibration : Calibration
            What to change, in units of the standardised y.
        """
        raise NotImplementedError

    def mean(
        self, raw: np.ndarray, weights: np.ndarray, calibration: Calibration = UNCALIBRATED
    ) -> np.ndarray:
        """Compute the mean (n, m) of the members' mixture, in units of the standardised y."""
        return np.tensordot(weights, self.means(raw), axes=1)

    def error(self, y: np.ndarray, mean: np.ndarray) -> np.ndarray:
        """Score means (n, m) alone by their squared error (n,), summed over outputs."""
        return np.square(y - mean, dtype="float64").sum(axis=1)

    def constant(self, y: np.ndarray, weight: np.ndarray) -> np.ndarray:
        """Compute the constant (m,) that predicts targets y (n, m) best, by `error`."""
        return np.average(y, axis=0, weights=weight)


class NormalsHead(Head):
    """Base of heads whose members predict weighted normals of the standardised y.

    A subclass defines `n_outputs`, `n_raw`, `distribution`, `means`, `raw_of_means` and either
    `loss` or `log_densities`.
    """

    n_outputs: int
    distribution: Any  # method (raw, xp=np) -> means and standard deviations, (.., n_outputs) each
    log_densities: Any  # method (y, raw, xp=np) -> (.., n_outputs)

    def normals(self, raw: Any, xp: Any = np) -> tuple[Any, Any, Any]:
        """Compute means, standard deviations and probabilities of the members' normals.

        Each is (K, J, n, m) for J normals of each member, from raw outputs (K, n, n_raw) that are
        arrays or tensors. Predictions are made of these, also where `log_densities`, which trains
        the members, is the density of something else. By default each member has one normal.
        """
        loc, scale = self.distribution(raw, xp)
        return loc[:, None], scale[:, None], xp.ones_like(loc[:, None])

    def mixture(
        self, raw: np.ndarray, weights: np.ndarray, targets: Any, calibration: Calibration
    ) -> Mixture:
        """Calibrate the members' normals, convert them to units of y, and mix them."""
        loc, scale, probability = calibrate_normals(self.normals(raw), weights, calibration.arrays)
        if not targets.is_transformed:  # otherwise in the end, by the map
            loc, scale = targets.restore(loc, scale)
        arrays = {"loc": loc, "scale": scale}
        if loc.shape[1] == 1:  # a single normal has no probabilities
            arrays = {name: array[:, 0] for name, array in arrays.items()}
        else:
            arrays["probabilities"] = probability
        if targets.is_1d:
            arrays = {name: array[..., 0] for name, array in arrays.items()}
        correlation: Any = calibration.correlation or None
        mixture = GaussianMixture(**arrays, weights=weights, correlation=correlation)
        if not targets.is_transformed:
            return mixture
        scaling = targets.scaling
        return TransformedMixture(mixture, scaling.output(0) if targets.is_1d else scaling)

    def levels(self, y: np.ndarray, raw: np.ndarray, weights: np.ndarray) -> np.ndarray:
        """Compute the distribution function (n, m) of the members' mixture at targets y (n, m)."""
        loc, scale, probability = self.normals(raw.astype("float64"))
        found = (probability * special.ndtr((y - loc) / scale)).sum(axis=1)
        return np.tensordot(weights, found, axes=1)

    def validation_loss(self, y, raw):
        """Compute each row's negative log likelihood (..,), mean over outputs, whatever `loss` is.

        `y` (.., n_outputs) and `raw` (.., n_raw) are tensors.
        """
        return -backend.ops.mean(self.log_densities(y, raw, backend.ops), axis=-1)

    loss = validation_loss

    def scores(self, y, raw) -> np.ndarray:
        """Compute the negative log likelihood (..,), mean over outputs, from arrays."""
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


@saved_record("networks.GaussianHead", eq=True)
class GaussianHead(NormalsHead):
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

    has_scales = True
    selection_loss = "nll"

    def __post_init__(self):
        if not 0 <= self.beta <= 1:
            raise ValueError(f"beta must lie in [0, 1]. Got {self.beta}.")
        if self.score not in ("log", "crps"):
            raise ValueError(f'score must be "log" or "crps". Got {self.score!r}.')
        if self.beta and self.score != "log":
            raise ValueError(f'beta needs score="log". Got beta={self.beta} with score="crps".')

    n_raw = property(lambda self: 2 * self.n_outputs, doc="Number of raw outputs of the network.")

    def distribution(self, raw: Any, xp: Any = np) -> tuple[Any, Any]:
        """Compute means and standard deviations, each (.., n_outputs), from (.., n_raw)."""
        mean, r = xp.split(raw, 2, axis=-1)
        return mean, softplus(r, xp) + self.min_scale

    moments = distribution

    def means(self, raw: Any, xp: Any = np) -> Any:
        """Return the means (.., n_outputs)."""
        return raw[..., : self.n_outputs]

    def raw_of_means(self, values: np.ndarray) -> np.ndarray:
        """Put values (.., n_outputs) where the means are."""
        return np.kron([1.0, 0.0], values)

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

    def widened(self, raw, variance) -> np.ndarray:
        """Compute raw numbers of the same means, with `variance` (.., n_outputs) added."""
        mean, std = self.distribution(raw)
        return self.raw_of(mean, np.sqrt(std**2 + variance))

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
        return crps_normal(y - mean, scale, xp)


@saved_record("networks.SquaredErrorHead", eq=True)
class SquaredErrorHead(NormalsHead):
    """Head with a mean for each output; the noise is known or estimated separately.

    Parameters
    ----------
    n_outputs : int, default=1
        m, the number of columns of y.
    scale : tuple of float, optional
        Standard deviation of the noise of each output, in units of the standardised y;
        0 as long as it is not known.

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

    selection_loss = "mse"

    n_raw = property(lambda self: self.n_outputs, doc="Number of raw outputs of the network.")

    def distribution(self, raw: Any, xp: Any = np) -> tuple[Any, Any]:
        """Compute means and standard deviations, each (.., n_outputs), from (.., n_raw)."""
        return raw, xp.zeros_like(raw) + np.asarray(self.scale or 0.0)

    moments = distribution

    def means(self, raw: Any, xp: Any = np) -> Any:
        """Return the means, which are the raw numbers."""
        return raw

    def raw_of_means(self, values: np.ndarray) -> np.ndarray:
        """Return the means, which are the raw numbers."""
        return values

    def without_noise(self) -> Self:
        """Return the head without the noise, which is learnt."""
        return type(self)(self.n_outputs)

    def loss(self, y, raw):
        """Compute each row's squared error (..,), mean over outputs, from tensors (.., m)."""
        return backend.ops.mean(backend.ops.square(y - raw), axis=-1)

    validation_loss = loss


@saved_record("networks.GaussianMixtureHead", eq=True)
class GaussianMixtureHead(NormalsHead):
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
    >>> from skuq.networks._heads import GaussianMixtureHead
    >>> head = GaussianMixtureHead(n_components=2)
    >>> mean, variance = head.moments(np.zeros((1, head.n_raw)))
    >>> head.n_raw, mean.round(3), variance.round(3)
    (6, array([[0.]]), array([[0.968]]))
    """

    n_outputs: int = 1
    n_components: int = 3
    min_scale: float = 1e-3
    weighs_losses: bool = False

    n_raw = property(
        lambda self: 3 * self.n_components * self.n_outputs,
        doc="Number of raw outputs of the network.",
    )

    def distribution(self, raw: Any, xp: Any = np) -> tuple[Any, Any, Any]:
        """Compute means, standard deviations and log probabilities of the components.

        Each is (.., n_components, n_outputs), from (.., n_raw). `GaussianMixture` has the
        axis of components before the rows, and probabilities instead of their logs.
        """
        # Pooled raw numbers have the components of several networks.
        j, m = raw.shape[-1] // (3 * self.n_outputs), self.n_outputs
        # Symbolic tensors do not know their number of rows.
        shape = [*(-1 if size is None else size for size in xp.shape(raw)[:-1]), j, m]
        logits, mean, r = (xp.reshape(part, shape) for part in xp.split(raw, 3, axis=-1))
        offsets = -_normal_scores(j) if xp is np else xp.cast(-_normal_scores(j), raw.dtype)
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

    def widened(self, raw, variance) -> np.ndarray:
        """Add `variance` (.., n_outputs) to that of each component, as `GaussianHead.widened`."""
        loc, scale, log_probability = self.distribution(raw)
        scale = np.sqrt(scale**2 + np.asarray(variance)[..., None, :])
        return self.raw_of(loc, scale, log_probability)

    def normals(self, raw: Any, xp: Any = np) -> tuple[Any, Any, Any]:
        """Return the components of each member."""
        loc, scale, log_probability = self.distribution(raw, xp)  # (K, n, J, m)
        loc, scale = xp.moveaxis(loc, 2, 1), xp.moveaxis(scale, 2, 1)
        return loc, scale, xp.moveaxis(xp.exp(log_probability), 2, 1)

    def means(self, raw: Any, xp: Any = np) -> Any:
        """Compute the means (.., n_outputs) of the mixtures."""
        loc, _, log_probability = self.distribution(raw, xp)
        return xp.sum(xp.exp(log_probability) * loc, axis=-2)

    def raw_of_means(self, values: np.ndarray) -> np.ndarray:
        """Put values (.., n_outputs) where the means of all components are."""
        return np.kron(np.repeat([0.0, 1.0, 0.0], self.n_components), values)

    def moments(self, raw, xp=np, components=None):
        """Compute means and standard deviations, each (.., n_outputs), from (.., n_raw)."""
        loc, scale, log_probability = components or self.distribution(raw, xp)
        probability = xp.exp(log_probability)
        mean = xp.sum(probability * loc, axis=-2)
        # Law of total variance over the components.
        variance = probability * (scale**2 + (loc - mean[..., None, :]) ** 2)
        return mean, xp.sqrt(xp.sum(variance, axis=-2))

    def log_densities(self, y, raw, xp=np, components=None):
        """Compute log densities (.., n_outputs) from y (.., n_outputs) and raw (.., n_raw)."""
        loc, scale, log_probability = components or self.distribution(raw, xp)
        return _logsumexp(log_probability + log_normal(y[..., None, :], loc, scale, xp), xp)

    def loss(self, y, raw, settings=None):
        """Compute each row's loss (..,), mean over outputs, from tensors."""
        ops = backend.ops
        # Once for all terms: the gradient of the components is then computed once, too.
        components = self.distribution(raw, ops)
        log_density = self.log_densities(y, raw, ops, components)
        std = ops.stop_gradient(self.moments(raw, ops, components)[1])
        both = ops.mean(self._crps(y, *components) - std * log_density, axis=-1)
        if not self.weighs_losses:
            return both
        likelihood = -ops.mean(log_density, axis=-1)
        return settings["crps"] * both + (1 - settings["crps"]) * likelihood

    def validation_loss(self, y, raw):
        """Compute each row's CRPS (..,), mean over outputs, from tensors."""
        return backend.ops.mean(self._crps(y, *self.distribution(raw, backend.ops)), axis=-1)

    def _crps(self, y, loc, scale, log_probability):
        """Compute the CRPS (.., n_outputs) of each output, from tensors (Grimit et al., Eq. 5)."""
        xp = backend.ops
        probability, n = xp.exp(log_probability), loc.shape[-2]
        # E|X - y| is a mean over components, and half of E|X - X'| one over pairs of components:
        # those of a component with itself, then with the next one, the second next, and so on. All
        # pairs at once are large.
        total = probability * mean_distance(y[..., None, :] - loc, scale, xp)
        total = total - xp.square(probability) * scale / math.sqrt(math.pi)
        for step in range(1, n // 2 + 1):
            next_loc, next_scale, next_probability = (
                xp.roll(part, step, axis=-2) for part in (loc, scale, probability)
            )
            std = xp.sqrt(xp.square(scale) + xp.square(next_scale))
            pairs = probability * next_probability * mean_distance(loc - next_loc, std, xp)
            # Half way round every pair comes twice.
            total = total - (0.5 if 2 * step == n else 1.0) * pairs
        return xp.sum(total, axis=-2)


def _normal_scores(j):
    """Return the quantiles (J, 1) of the standard normal at (j + 1/2) / J."""
    return special.ndtri((np.arange(j) + 0.5) / j)[:, None]


def _logsumexp(values, xp):
    """Compute log-sum-exp over components: (.., n_components, n_outputs) to (.., n_outputs)."""
    # Keras 3.7 takes no number as the axis of a symbolic tensor.
    return (special if xp is np else xp).logsumexp(values, axis=(-2,))


_LEAST_PROBABILITY = 1e-300  # of which a logarithm is taken


@saved_record("networks.CategoricalHead", eq=True)
class CategoricalHead(Head):
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

    classifies = True

    n_raw = property(lambda self: self.n_classes, doc="Number of raw outputs of the network.")

    def probabilities(self, raw: Any, xp: Any = np, calibration: Calibration = UNCALIBRATED) -> Any:
        """Compute class probabilities (.., n_classes) from raw numbers of that shape.

        Every member is calibrated alike, and so is their average.
        """
        raw = raw if calibration.temperature == 1 else raw / calibration.temperature
        proba = (special if xp is np else xp).softmax(raw, axis=-1)
        if not calibration.constant:
            return proba
        constant = np.array(calibration.constant)
        return proba * (1 - constant.sum()) + constant

    means = probabilities

    def mean(
        self, raw: np.ndarray, weights: np.ndarray, calibration: Calibration = UNCALIBRATED
    ) -> np.ndarray:
        """Compute the average probabilities (n, n_classes) of the members."""
        return np.tensordot(weights, self.probabilities(raw, calibration=calibration), axes=1)

    def mixture(
        self, raw: np.ndarray, weights: np.ndarray, targets: Any, calibration: Calibration
    ) -> CategoricalMixture:
        """Mix the members' probabilities."""
        return CategoricalMixture(self.probabilities(raw, calibration=calibration), weights)

    def error(self, y: np.ndarray, mean: np.ndarray) -> np.ndarray:
        """Compute minus the log probability (n,) of the rows' classes."""
        codes = y[:, :1].astype(int)
        chosen = np.take_along_axis(np.broadcast_to(mean, (len(y), self.n_classes)), codes, axis=1)
        return -np.log(np.maximum(chosen[:, 0], _LEAST_PROBABILITY))

    def constant(self, y: np.ndarray, weight: np.ndarray) -> np.ndarray:
        """Compute the shares (n_classes,) of the classes."""
        share = np.bincount(y[:, 0].astype(int), weight, minlength=self.n_classes)
        return share / share.sum()

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

    def log_likelihood(self, y, raw) -> np.ndarray:
        """Compute log probabilities (..,) of codes (.., 1), from raw numbers (.., n_classes)."""
        codes = np.broadcast_to(np.asarray(y).astype(int), (*raw.shape[:-1], 1))
        chosen = np.take_along_axis(raw, codes, axis=-1)[..., 0]
        return chosen - special.logsumexp(raw, axis=-1)


#: Beginning of the names of the layers of f.
MEAN_LAYERS = "mean_"


@saved_record("networks.NomuHead", eq=True)
class NomuHead(Head):
    """NOMU's loss (Definition 3.3), and the meaning of a network's raw numbers.

    Parameters
    ----------
    n_outputs : int, default=1
        m; losses are sums over outputs.
    with_mean : bool, default=True
        Whether the network gives f, and term (a) is part of the loss.
    n_sides : {0, 1, 2}, default=1
        2 for upper and lower bounds with an r of their own (appendix C.2), 0 for a network
        that gives f only.
    stable : bool, default=True
        Terms (b) and (c) in the form of Eq. 53-55, whose gradients are bounded.
    detached : str or None
        Layers by whose names (b) and (c) leave the weights alone (footnote 5); None lets
        their gradients reach f.
    """

    n_outputs: int = 1
    with_mean: bool = True
    n_sides: int = 1
    stable: bool = True
    detached: str | None = MEAN_LAYERS

    sums_rows = True

    n_raw = property(
        lambda self: self.n_outputs * (self.with_mean + self.n_sides),
        doc="Number of raw outputs of the network.",
    )

    def split(self, raw: Any) -> tuple[Any, Any]:
        """Split raw numbers into f (.., m) and r (.., n_sides * m); a given f has no columns."""
        n_means = self.n_outputs * self.with_mean
        return raw[..., :n_means], raw[..., n_means:]

    def loss(self, y, raw):
        """Compute the paper's term (a), the squared error of f, for each row: (.., m) to (..,)."""
        ops = backend.ops
        if not self.with_mean:
            return ops.zeros_like(raw[..., 0])
        return ops.sum(ops.square(y - self.split(raw)[0]), axis=-1)

    def row_loss(self, y, raw, settings):
        """Compute the paper's term (b), pi_sqr * r**2, of each row (..,).

        It keeps the raw uncertainty r small at the rows; `settings` holds its weight `pi_sqr`. With
        two sides it is that of Definition C.1, the squared distances of both bounds to y. Where the
        mean f is not part of the network, y must be the error of f, y - f.
        """
        ops = backend.ops
        mean, r = self.split(raw)
        if self.n_sides == 2:  # f + r_up - y, and y - (f - r_down)
            error = mean - y if self.with_mean else -y
            r = r + ops.concatenate([error, -error], axis=-1)
        rho = ops.square(r)
        if self.stable:  # Eq. 54; written so that neither branch overflows
            rho = ops.where(ops.abs(r) > 1, 2 * ops.abs(r) - 1, ops.square(ops.clip(r, -1, 1)))
        return settings["pi_sqr"] * ops.sum(rho, axis=-1)

    def artificial_loss(self, raw, settings):
        """Compute the paper's term (c), pi_exp * exp(-c_exp * r), of each artificial input (..,).

        It raises the raw uncertainty r there; `settings` holds the weight `pi_exp` and `c_exp`.
        """
        ops = backend.ops
        _, r = self.split(raw)
        scaled = settings["c_exp"][..., None] * r
        if self.stable:  # Eq. 55, plus 1 for negative r, so that it is continuous at 0
            term = ops.exp(-ops.maximum(scaled, 0.0)) - ops.minimum(scaled, 0.0)
        else:
            term = ops.exp(-scaled)
        return settings["pi_exp"] * ops.sum(term, axis=-1)
