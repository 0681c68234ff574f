"""From a network's raw outputs to the parameters of a distribution.

One formula serves training (on tensors, `keras.ops`) and prediction (on arrays, NumPy).

Notation: m outputs. Raw numbers are (.., n_raw) and y is (.., m), in standardised units,
with any leading axes, which broadcast: rows, or members and rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import special

from skuq._piecewise_quantiles import PiecewiseQuantiles, check_quantile_levels
from skuq._registry import saved_as

__all__ = [
    "CategoricalHead",
    "GaussianHead",
    "GaussianMixtureHead",
    "PackedHead",
    "QuantileHead",
    "SquaredErrorHead",
    "StudentTHead",
]

_HALF_LOG_2PI = 0.5 * np.log(2 * np.pi)
_LEVELS = tuple(k / 20 for k in range(1, 20))


def _softplus(r, xp):
    return xp.logaddexp(r, xp.zeros_like(r))


def _log_normal(y, mean, scale, xp):
    return -(xp.log(scale) + 0.5 * xp.square((y - mean) / scale) + _HALF_LOG_2PI)


def _logsumexp(values, xp):
    """Over components: (.., n_components, n_outputs) to (.., n_outputs)."""
    return (special if xp is np else xp).logsumexp(values, axis=-2)


def _constant(values, like, xp):
    """An array as xp's, of the precision of another."""
    return values if xp is np else xp.cast(values, like.dtype)


def _split_last(raw, parts, xp):
    """Raw numbers (.., n_raw) as (.., *parts); symbolic tensors do not know their rows yet."""
    leading = [-1 if size is None else size for size in xp.shape(raw)[:-1]]
    return xp.reshape(raw, (*leading, *parts))


class _LikelihoodHead:
    """A head that is trained on the likelihood: a subclass gives `log_densities`."""

    def log_densities(self, y, raw, xp=np):
        """Log density (.., n_outputs) of each output, from (.., n_outputs) and (.., n_raw)."""
        raise NotImplementedError

    def loss(self, y, raw):
        """Negative log likelihood of each row, mean over outputs.

        Tensors: y (.., n_outputs), raw (.., n_raw); returns (..,).
        """
        return self.validation_loss(y, raw)

    def validation_loss(self, y, raw):
        """Negative log likelihood of each row, mean over outputs, whatever `loss` is."""
        from skuq.backend import ops

        return -ops.mean(self.log_densities(y, raw, ops), axis=-1)

    def mixture_loss(self, y, copies):
        """`validation_loss` of an equal mixture: y (.., n_outputs), copies (.., C, n_raw)."""
        from skuq.backend import ops

        joint = ops.sum(self.log_densities(y[..., None, :], copies, ops), axis=-1)  # (.., C)
        log_likelihood = ops.logsumexp(joint, axis=-1) - np.log(copies.shape[-2])
        return -log_likelihood / self.n_outputs

    def log_likelihood(self, y, raw) -> np.ndarray:
        """Log density (..,) of all outputs together: arrays (.., n_outputs), (.., n_raw)."""
        return self.log_densities(y, raw).sum(axis=-1)


@saved_as("networks.GaussianHead")
@dataclass(frozen=True)
class GaussianHead(_LikelihoodHead):
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
        In [0, 1]: each output's loss counts ``scale**(2 * beta)`` times, a factor that has
        no gradient of its own. 0 is the likelihood; with 1 the mean learns as it does from
        the squared error. In between (the paper recommends 0.5) rows that fit well do not
        drown the others. `log_likelihood` and `validation_loss` are those of the normal.

    Raises
    ------
    ValueError
        If beta is outside [0, 1].

    References
    ----------
    Nix and Weigend (1994); Lakshminarayanan et al. (2017), section 2.4; AutoDEUQ, Eq. 1.
    Seitzer et al. (2022), "On the Pitfalls of Heteroscedastic Uncertainty Estimation with
    Probabilistic Neural Networks", Eq. 5 (beta).
    """

    n_outputs: int = 1
    min_scale: float = 1e-3
    beta: float = 0.0

    def __post_init__(self):
        if not 0 <= self.beta <= 1:
            raise ValueError(f"beta must lie in [0, 1]. Got {self.beta}.")

    @property
    def n_raw(self) -> int:
        """Numbers the network has to give."""
        return 2 * self.n_outputs

    def distribution(self, raw, xp=np):
        """Means and standard deviations, each (.., n_outputs), from (.., n_raw)."""
        mean, r = raw[..., : self.n_outputs], raw[..., self.n_outputs :]
        return mean, _softplus(r, xp) + self.min_scale

    def moments(self, raw, xp=np):
        """Means and standard deviations, each (.., n_outputs), from (.., n_raw)."""
        return self.distribution(raw, xp)

    def pooled(self, raw) -> np.ndarray:
        """Raw numbers (.., n_raw) of the normal with the moments of an equal mixture (K, ..)."""
        mean, scale = self.distribution(np.asarray(raw, dtype="float64"))
        std = np.sqrt(np.square(scale).mean(axis=0) + mean.var(axis=0))
        excess = np.maximum(std - self.min_scale, np.finfo(float).tiny)
        # The inverse of softplus, as it overflows for no number.
        return np.concatenate([mean.mean(axis=0), excess + np.log(-np.expm1(-excess))], axis=-1)

    def log_densities(self, y, raw, xp=np):
        """Log density (.., n_outputs) of each output, from (.., n_outputs) and (.., n_raw)."""
        return _log_normal(y, *self.distribution(raw, xp), xp)

    def loss(self, y, raw):
        """Negative log likelihood (Eq. 1, with its constant) of each row, mean over outputs.

        Tensors: y (.., n_outputs), raw (.., n_raw); returns (..,). With `beta` each output
        counts as much as that says.
        """
        if not self.beta:
            return self.validation_loss(y, raw)
        from skuq.backend import ops

        _, scale = self.distribution(raw, ops)
        factor = ops.stop_gradient(ops.power(scale, 2 * self.beta))
        return -ops.mean(factor * self.log_densities(y, raw, ops), axis=-1)


@saved_as("networks.StudentTHead")
@dataclass(frozen=True)
class StudentTHead(_LikelihoodHead):
    """Location, scale and degrees of freedom of Student's t, for each of several outputs.

    The network gives 3 m raw numbers for m outputs: the locations, then m numbers r with
    scale ``softplus(r) + min_scale``, then m numbers with ``min_df + softplus(r)`` degrees
    of freedom. Outliers pull it less than they pull a normal.

    Parameters
    ----------
    n_outputs : int, default=1
        m, the number of columns of y.
    min_scale : float, default=1e-3
        Smallest scale, in units of the standardised y; see `GaussianHead`.
    min_df : float, default=2.1
        Fewest degrees of freedom; above 2, so that there is a variance, at most 21 times
        the squared scale.

    Raises
    ------
    ValueError
        If min_df is not above 2.

    References
    ----------
    Lange, Little and Taylor (1989), "Robust Statistical Modeling Using the t Distribution".
    """

    n_outputs: int = 1
    min_scale: float = 1e-3
    min_df: float = 2.1

    def __post_init__(self):
        if not self.min_df > 2:
            raise ValueError(
                f"min_df must be above 2, or the variance is not finite. Got {self.min_df}."
            )

    @property
    def n_raw(self) -> int:
        """Numbers the network has to give."""
        return 3 * self.n_outputs

    def distribution(self, raw, xp=np):
        """Locations, scales and degrees of freedom, each (.., n_outputs), from (.., n_raw)."""
        m = self.n_outputs
        loc, r, d = raw[..., :m], raw[..., m : 2 * m], raw[..., 2 * m :]
        return loc, _softplus(r, xp) + self.min_scale, _softplus(d, xp) + self.min_df

    def moments(self, raw, xp=np):
        """Means and standard deviations, each (.., n_outputs), from (.., n_raw)."""
        loc, scale, df = self.distribution(raw, xp)
        return loc, scale * xp.sqrt(df / (df - 2))

    def log_densities(self, y, raw, xp=np):
        """Log density (.., n_outputs) of each output, from (.., n_outputs) and (.., n_raw)."""
        loc, scale, df = self.distribution(raw, xp)
        tail = 0.5 * (df + 1) * xp.log1p(xp.square((y - loc) / scale) / df)
        return _log_t_constant(df, xp) - xp.log(scale) - tail


def _log_t_constant(df, xp):
    """Log of the density of Student's t at 0: of ``gamma(x + 1/2) / gamma(x)`` and roots.

    The ratio of gamma functions is shifted to x + 4, where Stirling's series, in which the
    large terms of both have cancelled, is accurate to 1e-9 for df > 2: single precision
    would lose the difference of two log gamma functions. No backend need have one.
    """
    x = 0.5 * df
    shifted = x + 4
    inverse = 1 / xp.square(shifted)
    # Tricomi and Erdelyi (1951): log(gamma(x + 1/2) / gamma(x)) - log(x) / 2 by powers of 1 / x.
    series = 1 / 192 - inverse * (1 / 640 - inverse * (17 / 14336 - inverse * 31 / 18432))
    ratio = (-1 / 8 + inverse * series) / shifted + 0.5 * xp.log1p(4 / x)
    for k in range(4):  # gamma(x + 1/2) / gamma(x) is that of x + 1, times x / (x + 1/2)
        ratio = ratio - xp.log1p(0.5 / (x + k))
    return ratio - _HALF_LOG_2PI


@saved_as("networks.GaussianMixtureHead")
@dataclass(frozen=True)
class GaussianMixtureHead(_LikelihoodHead):
    """A mixture of normals for each of several outputs: a mixture density network.

    The network gives 3 J m raw numbers for J components and m outputs: J m logits of the
    components' probabilities, as many numbers for their means and as many r with standard
    deviation ``softplus(r) + min_scale``; of each kind m numbers for the first component,
    then m for the second. Outputs have their own mixtures and are independent.

    Parameters
    ----------
    n_outputs : int, default=1
        m, the number of columns of y.
    n_components : int, default=3
        J.
    min_scale : float, default=1e-3
        Smallest standard deviation, in units of the standardised y; see `GaussianHead`.

    Raises
    ------
    ValueError
        If n_components is below 1.

    Notes
    -----
    Means are raw numbers plus normal scores: at raw numbers of 0 the components lie evenly
    over a standardised y. Components that start alike learn alike.

    References
    ----------
    Bishop (1994), "Mixture Density Networks".
    """

    n_outputs: int = 1
    n_components: int = 3
    min_scale: float = 1e-3

    def __post_init__(self):
        if self.n_components < 1:
            raise ValueError(f"n_components must be at least 1. Got {self.n_components}.")

    @property
    def n_raw(self) -> int:
        """Numbers the network has to give."""
        return 3 * self.n_components * self.n_outputs

    def distribution(self, raw, xp=np):
        """Means, standard deviations and log probabilities of components.

        Each (.., n_components, n_outputs), from (.., n_raw); `NestedGaussianMixture` has the
        components before the rows, and probabilities.
        """
        j, m = self.n_components, self.n_outputs
        parts = _split_last(raw, (3, j, m), xp)
        logits, mean, r = parts[..., 0, :, :], parts[..., 1, :, :], parts[..., 2, :, :]
        offsets = special.ndtri((np.arange(j) + 0.5) / j)[:, None]  # (J, 1)
        mean = mean + _constant(offsets, raw, xp)
        log_probability = logits - _logsumexp(logits, xp)[..., None, :]
        return mean, _softplus(r, xp) + self.min_scale, log_probability

    def moments(self, raw, xp=np):
        """Means and standard deviations, each (.., n_outputs), from (.., n_raw)."""
        loc, scale, log_probability = self.distribution(raw, xp)
        probability = xp.exp(log_probability)
        mean = xp.sum(probability * loc, axis=-2)
        variance = probability * (scale**2 + (loc - mean[..., None, :]) ** 2)
        return mean, xp.sqrt(xp.sum(variance, axis=-2))

    def log_densities(self, y, raw, xp=np):
        """Log density (.., n_outputs) of each output, from (.., n_outputs) and (.., n_raw)."""
        loc, scale, log_probability = self.distribution(raw, xp)
        return _logsumexp(log_probability + _log_normal(y[..., None, :], loc, scale, xp), xp)


@saved_as("networks.QuantileHead")
@dataclass(frozen=True)
class QuantileHead:
    """Quantiles at given levels, which never cross, for each of several outputs.

    The network gives q m raw numbers for q levels and m outputs: m for the middle level,
    then m for each gap between neighbouring levels, from the lowest: ``softplus(r) / log(2)
    + min_scale`` times the gap that a standard normal has there. Raw numbers of 0 thus give
    the quantiles of a standard normal.

    Parameters
    ----------
    n_outputs : int, default=1
        m, the number of columns of y.
    levels : tuple of float, default=(0.05, 0.1, .., 0.95)
        At least two, strictly increasing inside (0, 1).
    min_scale : float, default=1e-3
        Quantiles are at least as far apart as those of a normal with about this standard
        deviation, in units of the standardised y. It bounds the density that
        `log_likelihood` reads from them.

    Raises
    ------
    ValueError
        If levels are not as described.

    References
    ----------
    Koenker and Bassett (1978), "Regression Quantiles". Gaps: Park et al. (2022), "Learning
    Quantile Functions without Quantile Crossing for Distribution-free Time Series
    Forecasting".
    """

    n_outputs: int = 1
    levels: tuple[float, ...] = _LEVELS
    min_scale: float = 1e-3

    def __post_init__(self):
        levels = check_quantile_levels(self.levels)
        object.__setattr__(self, "levels", tuple(levels.tolist()))  # hashable

    @property
    def n_raw(self) -> int:
        """Numbers the network has to give."""
        return len(self.levels) * self.n_outputs

    def quantiles(self, raw, xp=np):
        """Quantiles (.., n_levels, n_outputs), non-decreasing, from (.., n_raw)."""
        q, middle = len(self.levels), len(self.levels) // 2
        parts = _split_last(raw, (q, self.n_outputs), xp)
        centre, r = parts[..., :1, :], parts[..., 1:, :]
        normal = np.diff(special.ndtri(self.levels))[:, None]  # (q - 1, 1)
        factors = _softplus(r, xp) / np.log(2) + self.min_scale
        gaps = factors * _constant(normal, raw, xp)
        # Sums outwards from the middle: each is exactly at least the one before.
        below = xp.cumsum(xp.flip(gaps[..., :middle, :], axis=-2), axis=-2)
        above = xp.cumsum(gaps[..., middle:, :], axis=-2)
        sides = [centre - xp.flip(below, axis=-2), centre, centre + above]
        return xp.concatenate(sides, axis=-2)

    def _distribution(self, raw):
        """Distributions of shape (.., n_outputs) that have the quantiles."""
        values = np.moveaxis(self.quantiles(np.asarray(raw, dtype=float)), -2, 0)
        return PiecewiseQuantiles.from_values(np.asarray(self.levels), values)

    def moments(self, raw) -> tuple[np.ndarray, np.ndarray]:
        """Means and standard deviations, arrays (.., n_outputs) from (.., n_raw).

        Of the distribution that `skuq.predictive.QuantileMixture` makes of the quantiles.
        """
        distribution = self._distribution(raw)
        return distribution.mean, np.sqrt(distribution.variance)

    def loss(self, y, raw):
        """Pinball loss of each row, mean over levels and outputs.

        Tensors: y (.., n_outputs), raw (.., n_raw); returns (..,). Twice this is about the
        continuous ranked probability score.
        """
        from skuq.backend import ops

        return self._pinball(y, self.quantiles(raw, ops))

    def mixture_loss(self, y, copies):
        """`loss` of the copies' average quantiles: y (.., n_outputs), copies (.., C, n_raw)."""
        from skuq.backend import ops

        return self._pinball(y, ops.mean(self.quantiles(copies, ops), axis=-3))

    def _pinball(self, y, quantiles):
        from skuq.backend import ops

        error = y[..., None, :] - quantiles
        levels = ops.cast(np.asarray(self.levels)[:, None], error.dtype)
        return ops.mean(ops.maximum(levels * error, (levels - 1) * error), axis=(-2, -1))

    def log_likelihood(self, y, raw) -> np.ndarray:
        """Log density (..,) of all outputs together: arrays (.., n_outputs), (.., n_raw).

        Of the distribution that `skuq.predictive.QuantileMixture` makes of the quantiles.
        """
        return self._distribution(raw).log_density(np.asarray(y, dtype=float)).sum(axis=-1)


@saved_as("networks.SquaredErrorHead")
@dataclass(frozen=True)
class SquaredErrorHead:
    """A mean for each of several outputs, with noise that is known or estimated apart.

    Parameters
    ----------
    n_outputs : int, default=1
    scale : tuple of float, optional
        Standard deviation of the noise of each output, in units of the standardised y;
        needed for `distribution`, not for training.

    References
    ----------
    Heiss et al., "NOMU", Remark B.1.
    """

    n_outputs: int = 1
    scale: tuple[float, ...] | None = None

    @property
    def n_raw(self) -> int:
        """Numbers the network has to give."""
        return self.n_outputs

    def distribution(self, raw, xp=np):
        """Means and standard deviations, each (.., n_outputs), from (.., n_raw)."""
        return raw, xp.zeros_like(raw) + np.asarray(self.scale)

    def moments(self, raw, xp=np):
        """Means and standard deviations, each (.., n_outputs), from (.., n_raw)."""
        return self.distribution(raw, xp)

    def loss(self, y, raw):
        """Squared error of each row, mean over outputs: tensors (.., n_outputs) to (..,)."""
        from skuq.backend import ops

        return ops.mean(ops.square(y - raw), axis=-1)

    def mixture_loss(self, y, copies):
        """`loss` of the copies' average: y (.., n_outputs), copies (.., C, n_raw)."""
        from skuq.backend import ops

        return self.loss(y, ops.mean(copies, axis=-2))


@saved_as("networks.CategoricalHead")
@dataclass(frozen=True)
class CategoricalHead:
    """Class probabilities, from one raw number (logit) a class.

    Parameters
    ----------
    n_classes : int
    """

    n_classes: int

    @property
    def n_raw(self) -> int:
        """Numbers the network has to give."""
        return self.n_classes

    def probabilities(self, raw, xp=np):
        """Numbers (.., n_classes) that sum to 1, from raw numbers of that shape."""
        return (special if xp is np else xp).softmax(raw, axis=-1)

    def pooled(self, raw) -> np.ndarray:
        """Raw numbers (.., n_classes) of the average probabilities of an equal mixture (K, ..)."""
        return special.logsumexp(special.log_softmax(raw, axis=-1), axis=0) - np.log(len(raw))

    def loss(self, y, raw):
        """Cross-entropy of each row, in nats: codes (.., 1) and raw tensors to (..,)."""
        from skuq.backend import ops

        codes = ops.cast(y[..., 0], "int32")
        chosen = ops.sum(ops.one_hot(codes, self.n_classes) * raw, axis=-1)
        return ops.logsumexp(raw, axis=-1) - chosen

    def mixture_loss(self, y, copies):
        """`loss` of the copies' average probabilities: y (.., 1), copies (.., C, n_raw)."""
        from skuq.backend import ops

        losses = self.loss(y[..., None, :], copies)  # (.., C)
        return np.log(copies.shape[-2]) - ops.logsumexp(-losses, axis=-1)

    def log_likelihood(self, y, raw) -> np.ndarray:
        """Log probability (..,) of codes (.., 1), from arrays of raw numbers (.., n_classes)."""
        codes = np.broadcast_to(np.asarray(y).astype(int), (*raw.shape[:-1], 1))
        chosen = np.take_along_axis(raw, codes, axis=-1)[..., 0]
        return chosen - special.logsumexp(raw, axis=-1)


@saved_as("networks.PackedHead")
@dataclass(frozen=True)
class PackedHead:
    """Several copies of a head: a network that is several members at once.

    Raw numbers of the first copy come first, then those of the second.

    Parameters
    ----------
    head : object
        Any of the others here.
    n_copies : int
        At least 1.

    Raises
    ------
    ValueError
        If n_copies is below 1.

    Notes
    -----
    Each copy learns for itself: the loss is the mean of the copies' losses, not the loss of
    their mixture. What a user gets is the mixture, of which `log_likelihood`, `moments` and
    `validation_loss` are: training may well go on when single copies begin to overfit.

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

    head: object
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
        return _split_last(raw, (self.n_copies, self.head.n_raw), xp)

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
        means, stds = self.head.moments(self._copies(raw, np))  # (.., n_copies, n_outputs)
        return means.mean(axis=-2), np.sqrt((stds**2).mean(axis=-2) + means.var(axis=-2))

    def loss(self, y, raw):
        """Mean of the copies' losses of each row: tensors (.., n_outputs), (.., n_raw) to (..,)."""
        from skuq.backend import ops

        return ops.mean(self.head.loss(y[..., None, :], self._copies(raw, ops)), axis=-1)

    def validation_loss(self, y, raw):
        """Loss of each row of what the copies say together: tensors, as `loss` takes them."""
        from skuq.backend import ops

        return self.head.mixture_loss(y, self._copies(raw, ops))

    def log_likelihood(self, y, raw) -> np.ndarray:
        """Log density (..,) of the copies' mixture, all outputs together: of arrays."""
        densities = self.head.log_likelihood(np.asarray(y)[..., None, :], self._copies(raw, np))
        return special.logsumexp(densities, axis=-1) - np.log(self.n_copies)
