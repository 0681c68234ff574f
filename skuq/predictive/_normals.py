"""Normals, and mixtures of members that predict one or several of them.

Notation: K members, J normals of each, n rows, m outputs (the last axis is absent where y was 1-D).
In two-piece normals, s1 and s2 are the standard deviations below and above the mode. The
probability below the mode is s1 / (s1 + s2).
"""

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike
from scipy import special
from scipy.optimize import elementwise

from skuq._formulas import LOG_SQRT_2PI, mean_distance
from skuq._params import check_member_weights, check_probabilities, read_only_copy
from skuq.files._registry import saved_as
from skuq.predictive import _distributions
from skuq.predictive._distributions import (
    FILLED_IN,
    Continuous,
    Mixture,
    Uncertainty,
    normal_levels,
)

_CHUNK = 2**20  # parameters of members that the root finder handles at a time

# Nodes (normal scores) and weights of the quadrature rule for expectations of functions of y. The
# trapezoidal rule converges as fast as Gauss' rule for smooth functions, and faster for functions
# with kinks. The probability beyond +-10 is 1e-23.
_SCORES = np.arange(-40, 41) * 0.25
_SCORE_WEIGHTS = np.exp(-0.5 * _SCORES**2)
_SCORE_WEIGHTS /= _SCORE_WEIGHTS.sum()


@saved_as("predictive.GaussianMixture")
@dataclass(frozen=True, eq=False, repr=False)
class GaussianMixture(Mixture):
    """Mixture of K members for every row, each a normal or a mixture of J normals.

    All rows share the members' weights, but not the probabilities of normals. The spread of one
    member's normals is aleatoric, possibly with several modes. The disagreement of the members'
    means is epistemic. Given the member, outputs are independent, unless `correlation` is given.

    Parameters
    ----------
    loc, scale : ndarray of shape (K, n) or (K, n, m), or with an axis of J normals after the first
        Means and standard deviations of the normals, in units of y; scale > 0.
    weights : ndarray of shape (K,), optional
        Positive weights of the members, summing to 1; equal by default.
    probabilities : ndarray of shape (K, J, n) or (K, J, n, m), optional
        Non-negative probabilities of a member's normals, which sum to 1 over J within 1e-6. `loc`
        and `scale` then have the same shape. None, the default, means one normal for each member.
    spread : ndarray of shape (r, n) or (r, n, m), optional
        Uncertainty of the function that all members share, in units of y: they are off by the sum
        of the r arrays, each times a standard normal number that all rows share (each output has
        its own). It is epistemic. None, the default, means that there is none.
    correlation : ndarray of shape (m, m), optional
        Positive definite correlation matrix of the outputs' normal scores, given the member: a
        Gaussian copula, which leaves the distribution of each output as it is. None, the default,
        means independent outputs.

    Raises
    ------
    ValueError
        If shapes disagree, scales are not positive, probabilities or weights do not sum to 1, or
        `correlation` is no such matrix.

    References
    ----------
    Egele et al., "AutoDEUQ", Eq. 3; Lakshminarayanan et al. (2017), section 2.4; Bishop (1994),
    "Mixture Density Networks".

    Examples
    --------
    >>> import numpy as np
    >>> two = GaussianMixture(loc=np.array([[0.0], [2.0]]), scale=np.ones((2, 1)))
    >>> two.mean, two.aleatoric_variance, two.epistemic_variance
    (array([1.]), array([1.]), array([1.]))

    One member that knows two modes:

    >>> loc = np.array([-1.0, 1.0]).reshape(1, 2, 1)
    >>> half = np.full(loc.shape, 0.5)
    >>> fork = GaussianMixture(loc, np.full(loc.shape, 0.1), probabilities=half)
    >>> fork.aleatoric_variance.round(2), fork.epistemic_variance
    (array([1.01]), array([0.]))
    """

    loc: np.ndarray
    scale: np.ndarray
    weights: np.ndarray = FILLED_IN
    probabilities: np.ndarray | None = None
    spread: np.ndarray | None = None
    correlation: np.ndarray | None = None

    def __post_init__(self) -> None:
        leading = ("n_members", "n_components")[: self._leading_axes]
        given = {name: getattr(self, name) for name in self._array_kinds}
        arrays = dict(zip(given, _distributions.check_parameters(*leading, **given)))
        if self.probabilities is not None:
            probabilities = arrays["probabilities"]
            sums = check_probabilities("probabilities of components", probabilities, axis=1)
            # The check allows 1e-6, but cdf and density should be exact.
            arrays["probabilities"] = read_only_copy(probabilities / sums[:, None])
        n_members = len(arrays["loc"])
        weights = check_member_weights(self.weights, n_members, positive=True, tolerance=1e-9)
        vars(self).update(arrays, weights=weights)
        self._check_correlation()
        if self.spread is not None:
            spread = read_only_copy(self.spread)
            if spread.shape[1:] != self._shape or not len(spread):
                raise ValueError(
                    f"spread must have shape (r, {', '.join(map(str, self._shape))}). Got "
                    f"{spread.shape}."
                )
            vars(self)["spread"] = spread

    @property
    def is_normal(self) -> bool:
        """Whether there is one member, which predicts one normal."""
        return len(self.weights) == 1 and self.probabilities is None

    @property
    def _array_kinds(self) -> dict[str, str]:  # type: ignore[override]
        kinds = {"loc": "location", "scale": "scale"}
        return kinds if self.probabilities is None else {**kinds, "probabilities": "shape"}

    @property
    def _leading_axes(self) -> int:  # type: ignore[override]
        return 1 if self.probabilities is None else 2  # members, and their normals

    def widened(self, spread: np.ndarray) -> Self:
        """Return the mixture with this spread, given as (r, n, m) also where y was 1-D."""
        spread = spread.reshape(len(spread), *self._shape)
        return replace(self, spread=spread)

    @property
    def normals(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Means, standard deviations and weights of all normals, whatever their member.

        The first two are (N, n[, m]); weights are (N,), or (N, n[, m]) with several for a member.
        """
        loc, scale, *probabilities = self._arrays
        if not probabilities:
            return loc, scale, self.weights
        weights = (self.weights * probabilities[0].T).T
        loc, scale, weights = (a.reshape(-1, *a.shape[2:]) for a in (loc, scale, weights))
        return loc, scale, weights

    def _member_average(self, values: np.ndarray) -> np.ndarray:
        """Average an array of the shape of `scale` over the normals of each member, (K, n[, m])."""
        if self.probabilities is None:
            return values
        return (self.probabilities * values).sum(axis=1)

    def _combine_normals(
        self, means: np.ndarray, variances: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Compute members' means and variances from those of their normals."""
        if self.probabilities is None:
            return means, variances
        mean = self._member_average(means)
        # Law of total variance over the normals.
        return mean, self._member_average(variances + (means - mean[:, None]) ** 2)

    @property
    def member_means(self) -> np.ndarray:
        """Means of the members, of shape (K, n[, m]), in units of y."""
        return self._member_average(self.loc)

    @property
    def member_variances(self) -> np.ndarray:
        """Variances of the members' noise, of shape (K, n[, m]), in squared units of y."""
        return self._combine_normals(self.loc, self.scale**2)[1]

    @property
    def shared_variance(self) -> float | np.ndarray:  # type: ignore[override]
        """Variance of the function that all members share, in squared units of y."""
        return 0.0 if self.spread is None else (self.spread**2).sum(axis=0)

    @property
    def functions(self) -> np.ndarray | None:
        """Arrays (r, n[, m]) whose squares sum to the epistemic variance, as errors of a model."""
        distances: np.ndarray = self.member_means - self.mean
        apart = np.sqrt(self.weights.reshape(-1, *[1] * (distances.ndim - 1))) * distances
        return apart if self.spread is None else np.concatenate([apart, self.spread])

    @property
    def _arrays(self) -> tuple[np.ndarray, ...]:
        """Arrays (K, .., n[, m]) of the members, whose normals have the spread that they share."""
        loc, scale, *others = (getattr(self, name) for name in self._array_kinds)
        if self.spread is not None:
            scale = np.sqrt(scale**2 + (self.spread**2).sum(axis=0))
        return loc, scale, *others

    def _map_arrays(self, change: Callable[[np.ndarray, str], np.ndarray]) -> Self:
        if self.spread is None:
            return super()._map_arrays(change)
        # The spread of all rows does not have the shape of some rows, so it is put back last.
        alone: Any = replace(self, spread=None)
        return replace(alone._map_arrays(change), spread=change(self.spread, "scale"))

    def _draw(self, n_samples: int, seed: int, rng: np.random.Generator) -> np.ndarray:
        noise = replace(self, spread=None)
        # All rows of a draw have the same member.
        members = np.random.default_rng(seed).choice(len(self.weights), n_samples, p=self.weights)
        draws = np.empty((n_samples, *self._shape))
        for k, parameters in enumerate(zip(*noise._arrays)):
            chosen = members == k
            shape = chosen.sum(), *self._shape
            if self.correlation is None:
                draws[chosen] = _draw_noisy(shape, rng, parameters)
            elif chosen.any():
                alone = {name: a[None] for name, a in zip(self._array_kinds, parameters)}
                levels = normal_levels(self._correlated(rng.standard_normal(shape)))
                draws[chosen] = GaussianMixture(**alone)._inverse_cdf_at(levels)
        if self.spread is None:
            return draws
        shape = n_samples, len(self.spread), *self._shape[1:]
        numbers = np.random.default_rng([seed, 1]).standard_normal(shape)
        return draws + _combine(self._correlated(numbers), self.spread)

    def _cdf_at(self, y: np.ndarray) -> np.ndarray:
        # Rounding can make weights sum to more than 1.
        return np.minimum(mixture_cdf(y, self.weights, self._arrays), 1.0)

    def _log_prob_at(self, y: np.ndarray) -> np.ndarray:
        # Sum over outputs, with what their correlation adds, then mix over members.
        densities = [
            _log_density(y, *parameters).sum(axis=tuple(range(1, y.ndim)))
            + self._log_copula(_normal_scores(y, *parameters))
            for parameters in zip(*self._arrays)
        ]
        return special.logsumexp(densities, axis=0, b=self.weights[:, None])

    def _crps_at(self, y: np.ndarray) -> np.ndarray:
        # sum_k w_k E|X_k - y| - 1/2 sum_kl w_k w_l E|X_k - X_l| (Grimit et al. 2006, Eq. 5).
        (loc, scale, weights), losses = self.normals, np.zeros_like(y)
        for k, weight in enumerate(weights):
            losses += weight * mean_distance(y - loc[k], scale[k])
            # Each pair counts twice, as (k, other) and (other, k), which cancels the factor 1/2.
            for other in range(k):
                std = np.hypot(scale[k], scale[other])
                losses -= weight * weights[other] * mean_distance(loc[k] - loc[other], std)
            losses -= weight**2 * scale[k] / math.sqrt(math.pi)  # the pair (k, k)
        return losses

    def _inverse_cdf_at(self, levels: np.ndarray) -> np.ndarray:
        # Flatten rows and outputs to one axis, and work on parts of it that bound the memory.
        size = math.prod(self._shape)
        arrays = [a.reshape(*a.shape[: a.ndim - len(self._shape)], size) for a in self._arrays]
        numbers = len(levels) * sum(math.prod(a.shape[:-1]) for a in arrays)
        step = max(_CHUNK // max(numbers, 1), 1)
        flat, found = levels.reshape(len(levels), size), np.empty((len(levels), size))
        for start in range(0, size, step):
            part = slice(start, start + step)
            found[:, part] = _roots(flat[:, part], self.weights, [a[..., part] for a in arrays])
        return found.reshape(levels.shape)

    def _moments_of(
        self, function: Callable[[np.ndarray], np.ndarray]
    ) -> tuple[np.ndarray, np.ndarray]:
        """Compute members' means and variances, (K, n[, m]), of an increasing function of y.

        Raise ValueError if they overflow.
        """
        # All normals of all members, one after the other.
        flat = (math.prod(self.loc.shape[: self._leading_axes]), *self._shape)
        loc, scale = (array.reshape(flat) for array in self._arrays[:2])
        means, variances = [], []
        for mu, sigma in zip(loc, scale):
            # Moments about the median, which lies within a standard deviation of the mean, avoid
            # cancellation.
            median = function(mu)
            first, second = np.zeros(self._shape), np.zeros(self._shape)
            with np.errstate(over="ignore", under="ignore", invalid="ignore"):  # checked below
                for z, weight in zip(_SCORES, _SCORE_WEIGHTS):
                    distance = function(mu + sigma * z) - median
                    first += weight * distance
                    second += weight * distance**2
                means.append(median + first)
                variances.append(np.maximum(second - first**2, 0))
        if not (np.isfinite(means).all() and np.isfinite(variances).all()):
            raise ValueError(
                "The members' means or variances overflow, because the inverse transform grows too "
                "fast for the tails of their distributions. Use a transform with linear ends."
            )
        moments = (np.stack(part).reshape(self.loc.shape) for part in (means, variances))
        return self._combine_normals(*moments)

    def to_tfp(self) -> Any:
        """Convert to a TensorFlow Probability distribution with a batch of n rows.

        The rows of a batch are independent: its draws take a member for each row, whereas `sample`
        takes one for all rows.
        """
        from skuq.backend import tfd

        if self.correlation is not None:
            return super().to_tfp()  # says that there is no counterpart
        if self.probabilities is None:
            members = tfd.Normal(*(np.moveaxis(array, 0, 1) for array in self._arrays))
        else:  # (n, K, [m,] J)
            loc, scale, probabilities = (np.moveaxis(a, (0, 1), (1, -1)) for a in self._arrays)
            normals = tfd.Normal(loc, scale)
            members = tfd.MixtureSameFamily(tfd.Categorical(probs=probabilities), normals)
        if len(self._shape) == 2:  # outputs are independent given the member
            members = tfd.Independent(members, reinterpreted_batch_ndims=1)
        return tfd.MixtureSameFamily(tfd.Categorical(probs=self.weights), members)


# Functions of one member's arrays: means and standard deviations (n[, m]) or, with probabilities of
# its normals, all three (J, n[, m]).


def _cdf(y: np.ndarray, loc: np.ndarray, scale: np.ndarray, probabilities: Any = None) -> Any:
    """Compute one member's distribution function at y, which broadcasts against (n[, m])."""
    if probabilities is None:
        return special.ndtr((y - loc) / scale)
    return sum(p * special.ndtr((y - mu) / s) for mu, s, p in zip(loc, scale, probabilities))


def _log_density(
    y: np.ndarray, loc: np.ndarray, scale: np.ndarray, probabilities: Any = None
) -> np.ndarray:
    """Compute one member's log density at y (n[, m]), for each output."""
    densities = -0.5 * ((y - loc) / scale) ** 2 - np.log(scale) - LOG_SQRT_2PI
    if probabilities is None:
        return densities
    return special.logsumexp(densities, axis=0, b=probabilities)


def _normal_scores(
    y: np.ndarray, loc: np.ndarray, scale: np.ndarray, probabilities: Any = None
) -> np.ndarray:
    """Compute the standard normal quantiles of one member's distribution function at y (n[, m])."""
    scores = (y - loc) / scale
    if probabilities is None:
        return np.asarray(scores)
    # The score of the smaller tail, whose probability has all its digits.
    below, above = (
        special.logsumexp(special.log_ndtr(side), axis=0, b=probabilities)
        for side in (scores, -scores)
    )
    return np.where(below < above, special.ndtri_exp(below), -special.ndtri_exp(above))


def _draw_noisy(
    shape: tuple[int, ...], rng: np.random.Generator, parameters: Sequence[np.ndarray]
) -> np.ndarray:
    """Draw (n_draws, n[, m]) of one member, with noise of each row and output."""
    loc, scale, *probabilities = parameters
    if not probabilities:
        return loc + scale * rng.standard_normal(shape)
    uniform, z = rng.random(shape), rng.standard_normal(shape)
    edges = np.cumsum(probabilities[0], axis=0)
    edges /= edges[-1]  # exactly 1 from the last possible component on
    component = np.zeros(shape, dtype=int)
    for edge in edges[:-1]:
        component += uniform >= edge
    # The parameters of each draw's normal.
    loc, scale = (np.take_along_axis(a[None], component[:, None], 1)[:, 0] for a in (loc, scale))
    return loc + scale * z


def mixture_cdf(y: Any, weights: np.ndarray, arrays: Sequence[np.ndarray]) -> Any:
    """Compute the distribution function of a mixture from its members' arrays."""
    parts = (_cdf(y, *parameters) for parameters in zip(*arrays))
    return sum(w * part for w, part in zip(weights, parts))


def _roots(levels: np.ndarray, weights: np.ndarray, arrays: Sequence[np.ndarray]) -> np.ndarray:
    """Compute a mixture's quantiles (q, r) at levels (q, r), from arrays (K, .., r)."""
    low, high = _bracket(levels, arrays)
    if low is high:
        return low

    # Scale the bracket to [-1, 1], so that tolerances do not depend on the units of y.
    centre, unit = 0.5 * (low + high), 0.5 * (high - low)
    edge = np.ones_like(low)

    def excess(z: Any, level: Any, at: Any, centre: Any, unit: Any) -> Any:
        """Compute the cdf at some of the elements, minus their level."""
        chosen = [np.take(a, at.astype(int), axis=-1) for a in arrays]
        return mixture_cdf(centre + unit * z, weights, chosen) - level

    at = np.broadcast_to(np.arange(low.shape[1]), low.shape)
    found = elementwise.find_root(
        excess, (-edge, edge), args=(levels, at, centre, unit), tolerances={"xatol": 1e-16}
    )
    # If rounding leaves no change of sign in the bracket, its nearer end is the root.
    ends = np.where(found.f_bracket[0] > 0, low, high)
    return np.where(found.success, centre + unit * found.x, ends)


def _bracket(levels: np.ndarray, arrays: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Bracket a mixture's quantiles (q, r) by those of its normals that are possible.

    With one normal both ends are the same array, the quantile itself.
    """
    scores, lows, highs = special.ndtri(levels), [], []
    for loc, scale, *probabilities in zip(*arrays):
        if not probabilities:
            lows.append(loc + scale * scores)
            highs.append(lows[-1])
            continue
        for mu, s, probability in zip(loc, scale, *probabilities):
            end = mu + s * scores
            lows.append(np.where(probability > 0, end, np.inf))
            highs.append(np.where(probability > 0, end, -np.inf))
    return functools.reduce(np.minimum, lows), functools.reduce(np.maximum, highs)


def _combine(numbers: np.ndarray, arrays: np.ndarray) -> np.ndarray:
    """Sum arrays (r, n[, m]), each times its number (T, r[, m]) in a draw, to (T, n[, m])."""
    return np.einsum("tr,rn->tn" if numbers.ndim == 2 else "trm,rnm->tnm", numbers, arrays)


def shift(distribution: Mixture, distance: np.ndarray) -> Any:
    """Move the distributions of a mixture by distances (n[, m]), in units of y."""
    return distribution._map_arrays(
        lambda array, kind: array + distance if kind == "location" else array
    )


def check_location_and_stds(**arrays: ArrayLike) -> list[np.ndarray]:
    """Check a location and standard deviations, all of one shape (n,) or (n, m).

    The location comes first; the others must be non-negative and finite.
    """
    checked = _distributions.check_parameters(**arrays)
    for name, part in list(zip(arrays, checked))[1:]:
        wrong = ~((part >= 0) & np.isfinite(part))  # True also for NaN
        if wrong.any():
            raise ValueError(f"{name} must be finite and at least 0. Got {part[wrong][0]}.")
    return checked


@saved_as("predictive.EpistemicNormal")
@dataclass(frozen=True, eq=False, init=False, repr=False)
class EpistemicNormal(GaussianMixture):
    """Normal distribution for every row, with known aleatoric and epistemic variance.

    It is a `GaussianMixture` of one member with the scale ``sqrt(aleatoric**2 + epistemic**2)``.
    Either part can be 0, both keep their digits as given, and outputs can share the errors of a
    draw.

    Parameters
    ----------
    mean : ndarray of shape (n,) or (n, m)
        Means, in units of y.
    aleatoric, epistemic : ndarray of shape (n,) or (n, m)
        Standard deviations of the noise and of the model, in units of y. Either can be 0, but
        not both.
    functions : ndarray of shape (r, n) or (r, n, m), optional
        Errors of the model, in units of y, whose squares sum to ``epistemic**2``: a draw is off by
        their sum, each times a standard normal number that rows and outputs share. None, the
        default, draws one multiple of `epistemic` for all rows, and another one for each output.
    correlation : ndarray of shape (m, m), optional
        As in `GaussianMixture`, of the noise and of the multiples. None, the default, means
        independent outputs.

    Raises
    ------
    ValueError
        If shapes disagree, a part is negative or not finite, both are 0, or `correlation` is no
        correlation matrix.

    See Also
    --------
    GaussianMixture : Distribution whose parts of the variance come from an ensemble's members.
    TwoPieceNormal : Distribution of different width below and above the point prediction.

    References
    ----------
    Heiss et al., "NOMU", Eq. 59 (both parts) and section 2 (the model's part).

    Examples
    --------
    >>> import numpy as np
    >>> normal = EpistemicNormal(mean=np.zeros(1), aleatoric=np.ones(1), epistemic=np.ones(1))
    >>> normal.variance, normal.epistemic_variance
    (array([2.]), array([1.]))
    """

    aleatoric: np.ndarray = FILLED_IN
    epistemic: np.ndarray = FILLED_IN
    functions: np.ndarray | None = None

    def __init__(
        self,
        mean: ArrayLike,
        aleatoric: ArrayLike,
        epistemic: ArrayLike,
        functions: np.ndarray | None = None,
        correlation: np.ndarray | None = None,
    ) -> None:
        loc, noise, model = check_location_and_stds(
            mean=mean, aleatoric=aleatoric, epistemic=epistemic
        )
        with np.errstate(over="ignore"):
            total = np.hypot(noise, model)
        if not ((total > 0) & np.isfinite(total)).all():
            raise ValueError(
                "aleatoric and epistemic must not both be 0, and their root sum of squares must "
                f"be finite. It lies between {total.min()} and {total.max()}."
            )
        functions = None if functions is None else read_only_copy(functions)
        if functions is not None and functions.shape[1:] != model.shape:
            raise ValueError(
                f"functions must have shape (r, {', '.join(map(str, model.shape))}). Got "
                f"{functions.shape}."
            )
        super().__init__(loc[None], total[None], correlation=correlation)
        vars(self).update(aleatoric=noise, epistemic=model, functions=functions)

    @property
    def mean(self) -> np.ndarray:
        """Means, of shape (n,) or (n, m), in units of y."""
        return self.loc[0].copy()

    @property
    def aleatoric_variance(self) -> np.ndarray:
        """Variance of the noise, as given, in squared units of y."""
        return self.aleatoric**2

    @property
    def epistemic_variance(self) -> np.ndarray:
        """Variance of the model, as given, in squared units of y."""
        return self.epistemic**2

    @property
    def sides(self) -> list[np.ndarray]:
        """Standard deviation of the model, the same on both sides."""
        return [self.epistemic]

    @property
    def std(self) -> np.ndarray:
        """Square root of the variance, in units of y."""
        # The root of the variance would lose scales whose square underflows.
        return self.scale[0].copy()

    def uncertainty(self, ddof: int = 0) -> Uncertainty:
        """Return the mean and the standard deviations by source.

        Parameters
        ----------
        ddof : {0, 1}, default=0
            Ignored, since a single model has no divisor to correct.
        """
        return Uncertainty(self.mean, self.aleatoric.copy(), self.epistemic.copy(), self.std)

    def _map_arrays(self, change: Callable[[np.ndarray, str], np.ndarray]) -> Self:
        # The scale follows from both parts. A stretch is about the mean, which keeps every bit.
        mean = change(self.mean, "shape")
        parts = self.aleatoric, self.epistemic, self.functions
        changed: Any = (p if p is None else change(p, "scale") for p in parts)
        noise, model, functions = changed
        return type(self)(mean, noise, model, functions, self.correlation)

    def _draw(self, n_samples: int, seed: int, rng: np.random.Generator) -> np.ndarray:
        shape = n_samples, *self.mean.shape
        if self.functions is None:
            numbers = np.random.default_rng(seed).standard_normal((n_samples, 1, *shape[2:]))
            error = self.epistemic * self._correlated(numbers)
        else:  # outputs share the numbers, as values of one function do
            values = self.functions.reshape(len(self.functions), -1)
            numbers = np.random.default_rng([seed, 1]).standard_normal((n_samples, len(values)))
            error = _combine(numbers, values).reshape(shape)
        noise = self._correlated(rng.standard_normal(shape))
        return self.mean + error + self.aleatoric * noise


_SQRT_2_OVER_PI = np.sqrt(2 / np.pi)


@saved_as("predictive.TwoPieceNormal")
@dataclass(frozen=True, eq=False, repr=False)
class TwoPieceNormal(Continuous):
    """Two-piece normal distribution for every row, with its mode at the point prediction.

    The density is proportional to ``exp(-(y - mode)**2 / (2 s1**2))`` below the mode and to
    the same with s2 above it, continuous at the mode.

    Parameters
    ----------
    mode : ndarray of shape (n,) or (n, m)
        Point prediction, in units of y.
    lower, upper : ndarray of shape (n,) or (n, m)
        Standard deviations of the model below and above the mode, in units of y.
    aleatoric : ndarray of shape (n,) or (n, m), optional
        Standard deviation of symmetric noise, in units of y; 0 by default.
        ``s1 = sqrt(lower**2 + aleatoric**2)``, and s2 accordingly; both must be positive.
    correlation : ndarray of shape (m, m), optional
        As in `EpistemicNormal`. None, the default, means independent outputs.

    Raises
    ------
    ValueError
        If shapes disagree, a part is negative or not finite, s1 or s2 is 0, or `correlation` is no
        correlation matrix.

    See Also
    --------
    EpistemicNormal : Distribution of the same width below and above.

    Notes
    -----
    `mean` is the point prediction, which is the mode. The mean of this distribution is `expected`,
    and the variance, (1 - 2 / pi) (s2 - s1)^2 + s1 s2, is taken about it.

    The sum of a two-piece normal and noise is not a two-piece normal. Adding the variance of the
    noise to that of each side is a convention, which is exact if lower and upper are equal. With
    it, s1 s2 and therefore the variance are at least ``aleatoric**2``. The rest is the epistemic
    variance, so that the two parts are non-negative and sum to the variance.

    References
    ----------
    Wallis (2014), "The two-piece normal, binormal, or double Gaussian distribution: its
    origin and rediscoveries", Statistical Science 29(1). Heiss et al., "NOMU", appendix C.2
    (asymmetric bounds).

    Examples
    --------
    >>> import numpy as np
    >>> skewed = TwoPieceNormal(mode=np.zeros(1), lower=np.ones(1), upper=np.full(1, 3.0))
    >>> skewed.cdf(0.0), skewed.expected.round(3), skewed.interval(0.9).upper.round(2)
    (array([0.25]), array([1.596]), array([5.5]))
    """

    mode: np.ndarray
    lower: np.ndarray
    upper: np.ndarray
    aleatoric: np.ndarray = FILLED_IN
    correlation: np.ndarray | None = None

    _array_kinds = {"mode": "location", "lower": "scale", "upper": "scale", "aleatoric": "scale"}

    def __post_init__(self) -> None:
        aleatoric = np.zeros(np.shape(self.mode)) if self.aleatoric is None else self.aleatoric
        mode, lower, upper, aleatoric = check_location_and_stds(
            mode=self.mode, lower=self.lower, upper=self.upper, aleatoric=aleatoric
        )
        vars(self).update(mode=mode, lower=lower, upper=upper, aleatoric=aleatoric)
        self._check_correlation()
        for name, side in zip(("lower", "upper"), self._sides):
            if not ((side > 0) & np.isfinite(side)).all():
                raise ValueError(
                    f"{name} must be positive where aleatoric is 0, and their root sum of squares "
                    f"must be finite. It lies between {side.min()} and {side.max()}."
                )

    @property
    def sides(self) -> list[np.ndarray]:
        """Standard deviations of the model above and below the mode."""
        return [self.upper, self.lower]

    @property
    def _sides(self) -> tuple[np.ndarray, np.ndarray]:
        """s1 and s2, each of shape (n[, m])."""
        with np.errstate(over="ignore"):
            return np.hypot(self.lower, self.aleatoric), np.hypot(self.upper, self.aleatoric)

    @property
    def _skew(self) -> np.ndarray:
        """Compute s2 - s1 without cancellation if the noise is large."""
        # s2 - s1 = (s2^2 - s1^2) / (s1 + s2), and s2^2 - s1^2 = upper^2 - lower^2.
        s1, s2 = self._sides
        return (self.upper - self.lower) * ((self.upper + self.lower) / (s1 + s2))

    @property
    def mean(self) -> np.ndarray:
        """Point prediction, of shape (n[, m]). It is the mode, not the mean of the distribution."""
        return self.mode.copy()

    @property
    def expected(self) -> np.ndarray:
        """Mean of this distribution, of shape (n[, m]), in units of y."""
        return self.mode + _SQRT_2_OVER_PI * self._skew

    @property
    def aleatoric_variance(self) -> np.ndarray:
        """Variance of the noise, as given, in squared units of y."""
        return self.aleatoric**2

    @property
    def epistemic_variance(self) -> np.ndarray:
        """Variance in excess of the noise's, in squared units of y."""
        # It is (1 - 2 / pi) (s2 - s1)^2 + s1 s2 - a^2. Rewrite s1 s2 - a^2 as
        # (s1 - a) s2 + a (s2 - a), with s1 - a = lower^2 / (s1 + a) and s2 - a accordingly:
        # without subtractions, rounding cannot make it negative.
        s1, s2 = self._sides
        a = self.aleatoric
        below = self.lower * (self.lower / (s1 + a))
        above = self.upper * (self.upper / (s2 + a))
        return (1 - 2 / np.pi) * self._skew**2 + below * s2 + a * above

    def uncertainty(self, ddof: int = 0) -> Uncertainty:
        """Return the point prediction and the standard deviations by source.

        Parameters
        ----------
        ddof : {0, 1}, default=0
            Ignored, since a single model has no divisor to correct.
        """
        noise, model = self.aleatoric.copy(), np.sqrt(self.epistemic_variance)
        return Uncertainty(self.mean, noise, model, self.std)

    def _cdf_at(self, y: np.ndarray) -> np.ndarray:
        s1, s2 = self._sides
        z = y - self.mode
        # Each side is a normal of its own scale, with its half of the mass scaled to
        # s1 / (s1 + s2) below the mode and s2 / (s1 + s2) above it.
        below = 2 * s1 / (s1 + s2) * special.ndtr(z / s1)
        above = 1 - 2 * s2 / (s1 + s2) * special.ndtr(-z / s2)
        return np.where(z < 0, below, above)

    def _log_prob_at(self, y: np.ndarray) -> np.ndarray:
        s1, s2 = self._sides
        z = (y - self.mode) / np.where(y < self.mode, s1, s2)
        density = np.log(_SQRT_2_OVER_PI) - np.log(s1 + s2) - 0.5 * z**2
        density = np.asarray(density.sum(axis=tuple(range(1, y.ndim))))
        # Normal score of the level, from the probability of the side's tail, which has all digits.
        tail = np.log(2 * np.where(z < 0, s1, s2) / (s1 + s2)) + special.log_ndtr(-abs(z))
        score = special.ndtri_exp(tail)
        return density + self._log_copula(np.where(z < 0, score, -score))

    def _crps_at(self, y: np.ndarray) -> np.ndarray:
        # Integral of (F - 1{y <= x})^2, whose two sides are squares of scaled normal cdfs.
        s1, s2 = self._sides
        z, near = abs(y - self.mode), np.where(y < self.mode, s1, s2)
        mass, score = 2 * near / (s1 + s2), z / near
        beyond = np.exp(-0.5 * score**2 - LOG_SQRT_2PI) - score * special.ndtr(-score)
        sides = 4 * (s1 * (s1 / (s1 + s2)) ** 2 + s2 * (s2 / (s1 + s2)) ** 2)
        centre = np.exp(-LOG_SQRT_2PI)
        within = (centre - 0.5 / np.sqrt(np.pi)) * sides
        return np.asarray(z - 2 * mass * near * (centre - beyond) + within)

    def _inverse_cdf_at(self, levels: np.ndarray) -> np.ndarray:
        s1, s2 = self._sides
        # Levels are clipped at the mode, where the standard normal's level is 1/2 and its
        # quantile 0: one of the two terms is always 0.
        below = special.ndtri(np.minimum(levels * ((s1 + s2) / (2 * s1)), 0.5))
        above = special.ndtri(np.minimum((1 - levels) * ((s1 + s2) / (2 * s2)), 0.5))
        return self.mode + s1 * below - s2 * above

    def _draw(self, n_samples: int, seed: int, rng: np.random.Generator) -> np.ndarray:
        shape = n_samples, *self.mode.shape
        model = np.random.default_rng(seed).standard_normal((n_samples, 1, *shape[2:]))
        # Normal scores that rows share as far as their variance is epistemic. With equal sides
        # this is the draw of an `EpistemicNormal`.
        shared, own = (
            np.sqrt(part / self.variance)
            for part in (self.epistemic_variance, self.aleatoric_variance)
        )
        noise = self._correlated(rng.standard_normal(shape))
        return self._inverse_cdf_at(normal_levels(shared * self._correlated(model) + own * noise))

    def to_tfp(self) -> Any:
        """Convert to a TensorFlow Probability distribution with a batch of n independent rows."""
        from skuq.backend import tfd

        if self.correlation is not None:
            return super().to_tfp()  # says that there is no counterpart
        s1, s2 = self._sides
        # TFP has scale / skewness below the mode and scale * skewness above it.
        pieces = tfd.TwoPieceNormal(self.mode, np.sqrt(s1) * np.sqrt(s2), np.sqrt(s2 / s1))
        if self.mode.ndim == 2:
            return tfd.Independent(pieces, reinterpreted_batch_ndims=1)
        return pieces
