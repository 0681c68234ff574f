"""Mixtures of weighted members, whatever distribution each of them predicts.

Notation: K members, n rows, m outputs (the last axis is absent where y was 1-D).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike
from scipy import special
from scipy.optimize import elementwise

from skuq.predictive._continuous import Continuous
from skuq.predictive._types import Factor, RandomSource, RowIndex
from skuq.predictive._uncertainty import Uncertainty

# Normal scores at which functions of y are averaged, and their weights. The trapezoidal rule
# converges as fast as Gauss' for smooth functions, and faster where a slope jumps. Beyond 10
# lies a probability of 1e-23.
_STEP = 0.25
_SCORES = np.arange(-40, 41) * _STEP
_SCORE_WEIGHTS = np.exp(-0.5 * _SCORES**2)
_SCORE_WEIGHTS /= _SCORE_WEIGHTS.sum()

_CHUNK = 2**20  # members' numbers that are gathered at a time for roots


def epistemic_factor(weights: np.ndarray, ddof: int) -> float:
    """Factor of the variance of K members' means that gives it the divisor K - ddof."""
    if not ddof:
        return 1.0
    effective = float(1 / np.sum(weights**2))
    return effective / (effective - 1) if len(weights) > 1 else 0.0


def check_locations_and_scales(loc: np.ndarray, scale: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Check locations and positive scales of members, (K, n) or (K, n, m)."""
    loc, scale = np.asarray(loc, dtype=float), np.asarray(scale, dtype=float)
    if loc.ndim not in (2, 3) or scale.shape != loc.shape or not len(loc):
        raise ValueError(
            "loc and scale must both have shape (n_members, n_samples) or (n_members, "
            f"n_samples, n_outputs). Got {loc.shape} and {scale.shape}."
        )
    if not (scale > 0).all():
        raise ValueError(f"scale must be positive. The smallest is {scale.min()}.")
    return loc, scale


def find_roots(
    excess: Callable[..., np.ndarray],
    low: np.ndarray,
    high: np.ndarray,
    levels: np.ndarray,
    at: np.ndarray,
    tolerance: float = 1e-16,
) -> np.ndarray:
    """Find the zeros of an increasing function between ends, element by element.

    ``excess(y, levels, at)`` takes arrays (s,) for some of the elements at a time: each has a
    level and a position `at`. The tolerance is in units of half the bracket.
    """
    # In such units the root is of order 1 whatever y's is.
    centre, unit = 0.5 * (low + high), 0.5 * (high - low)

    def scaled(
        z: np.ndarray, level: np.ndarray, at: np.ndarray, centre: np.ndarray, unit: np.ndarray
    ) -> np.ndarray:
        return excess(centre + unit * z, level, at.astype(int))

    edge = np.ones_like(low)
    found = elementwise.find_root(
        scaled, (-edge, edge), args=(levels, at, centre, unit), tolerances={"xatol": tolerance}
    )
    # Where rounding leaves no change of sign the nearer end is the root.
    ends = np.where(found.f_bracket[0] > 0, low, high)
    return np.where(found.success, centre + unit * found.x, ends)


class Mixture(Continuous):
    """Mixture of K members' distributions for every row; rows share the weights.

    Given the member, outputs are independent; over members they are not.

    Attributes
    ----------
    weights : ndarray of shape (K,)
        Positive, summing to 1.

    See Also
    --------
    GaussianMixture, StudentTMixture, NestedGaussianMixture, QuantileMixture, TransformedMixture

    Notes
    -----
    A subclass is a frozen dataclass with `weights` that gives `member_means`,
    `member_variances`, `_shape`, `_parameters`, `_with`, `_stretch` and, as functions of one
    member's `_arrays`, `_cdf`, `_log_density`, `_quantile` and `_at_scores`.
    """

    # Parts that a subclass defines.

    @property
    def weights(self) -> np.ndarray:
        """Weights of the members, of shape (K,): positive, summing to 1."""
        raise NotImplementedError

    @property
    def member_means(self) -> np.ndarray:
        """Means of the members, of shape (K, n[, m]), in units of y."""
        raise NotImplementedError

    @property
    def member_variances(self) -> np.ndarray:
        """Variances of the members, of shape (K, n[, m]), in squared units of y."""
        raise NotImplementedError

    @property
    def _parameters(self) -> tuple[np.ndarray, ...]:
        """Arrays (K, .., n[, m]) that, with `_with`, make the record."""
        raise NotImplementedError

    # Functions of arrays: what they take depends on the subclass.

    #: A record of the same kind and weights, from new `_parameters`.
    _with: Callable[..., Any]

    #: One member's cdf at y, which broadcasts against (n[, m]), from its `_arrays`.
    _cdf: Callable[..., np.ndarray]

    #: One member's log density at y, output by output, from its `_arrays`.
    _log_density: Callable[..., np.ndarray]

    #: One member's quantiles at levels in (0, 1), which broadcast against (n[, m]).
    _quantile: Callable[..., np.ndarray]

    #: One member's quantile at the level that a standard normal has below z.
    _at_scores: Callable[..., np.ndarray]

    def _stretch(self, mean: np.ndarray, factor: Factor) -> Any:
        """Stretch about `mean` (n[, m]) by `factor`."""
        raise NotImplementedError

    @property
    def _arrays(self) -> tuple[np.ndarray, ...]:
        """Arrays (K, .., n[, m]), of which the functions above take one member's."""
        return self._parameters

    # Parts that follow from these.

    def _members(self) -> Iterator[tuple[np.ndarray, ...]]:
        return zip(*self._arrays)

    def _average(self, values: np.ndarray) -> np.ndarray:
        return np.tensordot(self.weights, values, axes=1)

    @property
    def mean(self) -> np.ndarray:
        """Shape (n,) or (n, m), units of y."""
        return self._average(self.member_means)

    @property
    def aleatoric_variance(self) -> np.ndarray:
        """Average variance of the members: noise, which more data would not reduce."""
        return self._average(self.member_variances)

    @property
    def epistemic_variance(self) -> np.ndarray:
        """Variance of the members' means with divisor K, so that one member gives 0."""
        # Centred before squaring: E[mu^2] - mean^2 cancels when the mean is large.
        means = self.member_means
        return self._average((means - self._average(means)) ** 2)

    def uncertainty(self, epistemic_ddof: int = 0) -> Uncertainty:
        """Mean and standard deviations by source.

        Parameters
        ----------
        epistemic_ddof : {0, 1}, default=0
            1 divides by K - 1 as AutoDEUQ's Eq. 4 does; with weights, K is their
            effective number 1 / sum(w^2). One member gives 0 either way.
        """
        factor = epistemic_factor(self.weights, epistemic_ddof)
        aleatoric, epistemic = self.aleatoric_variance, factor * self.epistemic_variance
        return Uncertainty(
            self.mean, np.sqrt(aleatoric), np.sqrt(epistemic), np.sqrt(aleatoric + epistemic)
        )

    def cdf(self, y: ArrayLike) -> np.ndarray:
        """P(Y <= y) for each row and output; y broadcasts against (n[, m])."""
        y = np.asarray(y, dtype=float)
        return sum(w * self._cdf(y, *own) for w, own in zip(self.weights, self._members()))

    def log_prob(self, y: ArrayLike) -> np.ndarray:
        """Log density of each row, of all outputs together. Shape (n,).

        Parameters
        ----------
        y : array-like of shape (n,) or (n, m)
        """
        y = self._check_y(y)
        densities = np.stack([self._log_density(y, *own) for own in self._members()])
        densities = densities.sum(axis=tuple(range(2, densities.ndim)))  # (K, n)
        return special.logsumexp(densities, axis=0, b=self.weights[:, None])

    def inverse_cdf(self, levels: np.ndarray) -> np.ndarray:
        levels = np.asarray(levels, dtype=float)
        levels = np.broadcast_to(levels, (len(levels), *self._shape))
        # Rows and outputs in one line, worked on by parts.
        size = math.prod(self._shape)
        arrays = [a.reshape(*a.shape[: a.ndim - len(self._shape)], size) for a in self._arrays]
        numbers = len(levels) * sum(math.prod(a.shape[:-1]) for a in arrays)
        step = max(_CHUNK // max(numbers, 1), 1)
        flat, found = levels.reshape(len(levels), size), np.empty((len(levels), size))
        for start in range(0, size, step):
            part = slice(start, start + step)
            found[:, part] = self._roots(flat[:, part], [a[..., part] for a in arrays])
        return found.reshape(levels.shape)

    def _roots(self, levels: np.ndarray, arrays: Sequence[np.ndarray]) -> np.ndarray:
        """Quantiles (q, r) at levels (q, r) of members' arrays (K, .., r)."""
        low, high = self._bracket(levels, arrays)
        if low is high:
            return low

        def excess(y: np.ndarray, level: np.ndarray, at: np.ndarray) -> np.ndarray:
            members = zip(*(np.take(a, at, axis=-1) for a in arrays))
            return sum(w * self._cdf(y, *own) for w, own in zip(self.weights, members)) - level

        at = np.broadcast_to(np.arange(low.shape[1]), low.shape)
        return find_roots(excess, low, high, levels, at)

    def _bracket(
        self, levels: np.ndarray, arrays: Sequence[np.ndarray]
    ) -> tuple[np.ndarray, np.ndarray]:
        """Bracket (q, r) of quantiles: the members' smallest and largest.

        The same array twice if it is the quantile itself. Arguments are those of `_roots`.
        """
        ends = (self._quantile(levels, *own) for own in zip(*arrays))
        low = high = next(ends)
        for end in ends:
            low, high = np.minimum(low, end), np.maximum(high, end)
        return low, high

    def scaled(self, factor: Factor) -> Self:
        """Stretch the mixture about its mean.

        Parameters
        ----------
        factor : float or ndarray of shape (m,)
            Factor of all standard deviations; positive.
        """
        return self._stretch(self.mean, factor)

    def rows(self, rows: RowIndex) -> Self:
        """Select rows by a slice or positions."""
        pick = (..., rows) if len(self._shape) == 1 else (..., rows, slice(None))
        return self._with(*(parameter[pick] for parameter in self._parameters))

    def output(self, k: int) -> Self:
        """Marginal of one of several outputs."""
        return self._with(*(parameter[..., k] for parameter in self._parameters))

    def sample(self, n_samples: int = 1, rng: RandomSource = None) -> np.ndarray:
        """Joint draws, of shape (n[, m], n_samples).

        Each draw takes one member and one level (of each output) for all rows, so that a
        draw is a function of the input and rows move together, as the members see it.
        """
        rng = np.random.default_rng(rng)
        member = rng.choice(len(self.weights), size=n_samples, p=self.weights)
        z = rng.standard_normal((n_samples, 1, *self._shape[1:]))
        draws = np.empty((n_samples, *self._shape))
        for k, own in enumerate(self._members()):
            draws[member == k] = self._at_scores(z[member == k], *own)
        return np.moveaxis(draws, 0, -1)

    def _moments_of(
        self, function: Callable[[np.ndarray], np.ndarray]
    ) -> tuple[np.ndarray, np.ndarray]:
        """Members' means and variances, (K, n[, m]), of an increasing function of arrays of y.

        Raise ValueError if they overflow.
        """
        means, variances = [], []
        for own in self._members():
            # From the median, which lies within a standard deviation of the mean: nothing
            # cancels.
            median = function(self._at_scores(np.zeros(self._shape), *own))
            first, second = np.zeros(self._shape), np.zeros(self._shape)
            with np.errstate(over="ignore", invalid="ignore"):  # seen below
                for weight, y in self._nodes(*own):
                    apart = function(y) - median
                    first += weight * apart
                    second += weight * apart**2
                means.append(median + first)
                variances.append(np.maximum(second - first**2, 0))
        if not (np.isfinite(means).all() and np.isfinite(variances).all()):
            raise ValueError(
                "The transform grows too fast far out for the members' tails: their means or "
                "variances overflow. Use a transform with straight ends, or members with "
                "lighter tails."
            )
        return np.stack(means), np.stack(variances)

    def _nodes(self, *arrays: np.ndarray) -> Iterator[tuple[Any, Any]]:
        """Weights and nodes y, (n[, m]) or numbers, of a quadrature rule for one member."""
        return ((w, self._at_scores(z, *arrays)) for z, w in zip(_SCORES, _SCORE_WEIGHTS))

    def to_tfp(self) -> Any:
        """The same mixture as a TensorFlow Probability distribution of n rows.

        Raises
        ------
        NotImplementedError
            If TensorFlow Probability has no such distribution.
        """
        members = self._tfp_members()  # batch (n, K)
        from skuq.backend import tfd

        return tfd.MixtureSameFamily(tfd.Categorical(probs=self.weights), members)

    def _tfp_members(self) -> Any:
        """The members as a distribution of batch shape (n, K), of event shape () or (m,)."""
        raise NotImplementedError(
            f"TensorFlow Probability has no counterpart of {type(self).__name__}. Use its own "
            "methods: cdf, log_prob, quantile, sample."
        )

    def _independent(self, distribution: Any) -> Any:
        """Join distributions of single outputs, batch (n, K, m), to one of all outputs."""
        if len(self._shape) == 1:
            return distribution
        from skuq.backend import tfd

        return tfd.Independent(distribution, reinterpreted_batch_ndims=1)
