"""Distributions of networks that predict parameters: normals and mixtures of them.

Notation: K members, J components of each, n rows, m outputs (the last axis is absent where y
was 1-D).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from skuq._checks import check_member_weights, check_probabilities
from skuq._formulas import LOG_SQRT_2PI
from skuq.files._registry import saved_as
from skuq.predictive._distributions import FILLED_IN, Mixture, Uncertainty, check_parameters

_TINY = 1e-300  # squared length of no direction

# Nodes (normal scores) and weights of the quadrature rule for expectations of functions of y. The
# trapezoidal rule converges as fast as Gauss' rule for smooth functions, and faster for functions
# with kinks. The probability beyond +-10 is 1e-23.
_SCORES = np.arange(-40, 41) * 0.25
_SCORE_WEIGHTS = np.exp(-0.5 * _SCORES**2)
_SCORE_WEIGHTS /= _SCORE_WEIGHTS.sum()


class NormalMembers(Mixture):
    """Mixture whose members are made of normals, with errors that all of them share.

    A subclass has the arrays `loc` and `scale`, first, and the fields `spread` and
    `shared_scale`.
    """

    loc: np.ndarray
    scale: np.ndarray
    spread: np.ndarray | None
    shared_scale: np.ndarray | None

    def _check_shared(self) -> None:
        """Check the arrays of what members share, and store them as floats."""
        if self.spread is not None:
            spread = np.asarray(self.spread, dtype=float)
            if spread.shape[1:] != self._shape or not len(spread):
                raise ValueError(
                    f"spread must have shape (r, {', '.join(map(str, self._shape))}). Got "
                    f"{spread.shape}."
                )
            vars(self)["spread"] = spread
        if self.shared_scale is not None:
            shared = np.asarray(self.shared_scale, dtype=float)
            sound = shared.shape == self.scale.shape
            if not (sound and (shared >= 0).all() and (shared < self.scale).all()):
                raise ValueError(
                    f"shared_scale must have the shape {self.scale.shape} of `scale`, and numbers "
                    "from 0 to below `scale`."
                )
            vars(self)["shared_scale"] = shared

    def widened(self, spread: np.ndarray) -> Self:
        """Return the mixture with this spread, given as (r, n, m) also where y was 1-D."""
        spread = spread.reshape(len(spread), *self._shape)
        return replace(self, spread=spread)  # type: ignore[type-var]  # subclasses are dataclasses

    def _member_average(self, values: np.ndarray) -> np.ndarray:
        """Average an array of the shape of `scale` over the normals of each member, (K, n[, m])."""
        return values

    @property
    def member_means(self) -> np.ndarray:
        """Means of the members, of shape (K, n[, m]), in units of y."""
        return self._member_average(self.loc)

    @property
    def member_shared(self) -> np.ndarray:
        """Variances (K, n[, m]) of the means of each member by `shared_scale`."""
        if self.shared_scale is None:
            return np.zeros((len(self.weights), *[1] * len(self._shape)))
        return np.square(self._member_average(self.shared_scale))

    @property
    def shared_variance(self) -> float | np.ndarray:  # type: ignore[override]
        """Variance of the function that all members share, in squared units of y."""
        spread = 0.0 if self.spread is None else (self.spread**2).sum(axis=0)
        return spread if self.shared_scale is None else spread + self._average(self.member_shared)

    @property
    def _weighted_distances(self) -> np.ndarray:
        """Distances (K, n[, m]) of members from their mean, whose squares sum to the variance."""
        distances: np.ndarray = self.member_means - self.mean
        return np.sqrt(self.weights.reshape(-1, *[1] * (distances.ndim - 1))) * distances

    @property
    def _directions(self) -> np.ndarray:
        """Directions (K, n[, m]) of length 1, in which the members differ from their mean.

        Where members agree, and where there is only one, all have the same error.
        """
        directions = self._weighted_distances
        length = (directions**2).sum(axis=0)
        alike = np.sqrt(self.weights).reshape(-1, *[1] * (directions.ndim - 1))
        return np.where(length > _TINY, directions / np.sqrt(np.maximum(length, _TINY)), alike)

    @property
    def functions(self) -> np.ndarray | None:
        """Arrays (r, n[, m]) whose squares sum to the epistemic variance, as errors of a model."""
        apart, shared = self._weighted_distances, self.shared_functions
        return apart if shared is None else np.concatenate([apart, shared])

    @property
    def shared_functions(self) -> np.ndarray | None:
        """Arrays (r, n[, m]) whose squares sum to `shared_variance`, as `spread` has them."""
        if self.shared_scale is None:
            return self.spread
        own = np.sqrt(self._average(self.member_shared)) * self._directions
        return own if self.spread is None else np.concatenate([own, self.spread])

    def without_shared(self) -> Self:
        """Return the mixture of the noise alone: members share no errors."""
        scale = self.scale
        if self.shared_scale is not None:
            scale = np.sqrt(scale**2 - self.shared_scale**2)
        return replace(self, scale=scale, spread=None, shared_scale=None)  # type: ignore[type-var]

    @property
    def _arrays(self) -> tuple[np.ndarray, ...]:
        """Arrays of the members, whose normals have the spread that they share."""
        loc, scale, *others = super()._arrays
        if self.spread is not None:
            scale = np.sqrt(scale**2 + (self.spread**2).sum(axis=0))
        return loc, scale, *others

    def _map_arrays(self, change: Callable[[np.ndarray, str], np.ndarray]) -> Self:
        if self.spread is None and self.shared_scale is None:
            return super()._map_arrays(change)
        # A changed scale alone would be checked against what is shared of the former one.
        alone: Any = replace(self, spread=None, shared_scale=None)  # type: ignore[type-var]
        shared = {
            name: change(array, "scale")
            for name in ("spread", "shared_scale")
            if (array := getattr(self, name)) is not None
        }
        return replace(alone._map_arrays(change), **shared)

    def _draw(self, n_samples: int, seed: int, rng: np.random.Generator) -> np.ndarray:
        if self.spread is None and self.shared_scale is None:
            return super()._draw(n_samples, seed, rng)
        noise = self.without_shared()
        if self.shared_scale is None:
            draws = noise._draw(n_samples, seed, rng)
        else:
            # A draw moves each normal by a multiple of what it shares, smooth over the rows.
            multiples = _combine(self._directions, n_samples, [seed, 2])
            members, draws = self._draw_members(n_samples, seed), np.empty_like(multiples)
            for k, (parameters, shared) in enumerate(zip(zip(*noise._arrays), self.shared_scale)):
                chosen = members == k
                shape = chosen.sum(), *self._shape
                draws[chosen] = self._draw_noisy(shape, rng, *parameters, shared, multiples[chosen])
        return draws if self.spread is None else draws + _combine(self.spread, n_samples, [seed, 1])


def _combine(arrays: np.ndarray, n_samples: int, seed: list[int]) -> np.ndarray:
    """Draw sums (T, n[, m]) of arrays (r, n[, m]), each times a standard normal number.

    The numbers of a draw are shared by all rows, also by those of other distributions.
    """
    shape = n_samples, len(arrays), *arrays.shape[2:]
    numbers = np.random.default_rng(seed).standard_normal(shape)
    return np.einsum("tr,rn->tn" if numbers.ndim == 2 else "trm,rnm->tnm", numbers, arrays)


@saved_as("predictive.GaussianMixture")
@dataclass(frozen=True, eq=False)
class GaussianMixture(NormalMembers):
    """Mixture of K normals for every row; rows share the weights.

    Given the member, outputs are independent; over members they are not.

    Parameters
    ----------
    loc, scale : ndarray of shape (K, n) or (K, n, m)
        Means and standard deviations of the members, in units of y; scale > 0.
    weights : ndarray of shape (K,), optional
        Positive weights of the members, summing to 1; equal by default.
    spread : ndarray of shape (r, n) or (r, n, m), optional
        Uncertainty of the function that all members share, in units of y: they are off by the sum
        of the r arrays, each times a standard normal number that all rows share (each output has
        its own). It is epistemic. None, the default, means that there is none.
    shared_scale : ndarray of the shape of `scale`, optional
        Part of `scale` that is epistemic, too: from 0 to below `scale`, in units of y. The squares
        of both differ by the variance of the noise. Members are off by this part together, in
        directions in which they also differ from each other. None, the default, means 0.

    Raises
    ------
    ValueError
        If shapes disagree, scales are not positive, weights do not sum to 1, or `shared_scale` is
        not below `scale`.

    References
    ----------
    Egele et al., "AutoDEUQ", Eq. 3; Lakshminarayanan et al. (2017), section 2.4.

    Examples
    --------
    >>> import numpy as np
    >>> two = GaussianMixture(loc=np.array([[0.0], [2.0]]), scale=np.ones((2, 1)))
    >>> two.mean, two.aleatoric_variance, two.epistemic_variance
    (array([1.]), array([1.]), array([1.]))
    """

    loc: np.ndarray
    scale: np.ndarray
    weights: np.ndarray = FILLED_IN
    spread: np.ndarray | None = None
    shared_scale: np.ndarray | None = None

    _array_kinds = {"loc": "location", "scale": "scale"}
    _tfp_class = "Normal"

    def __post_init__(self) -> None:
        loc, scale = check_parameters("n_members", loc=self.loc, scale=self.scale)
        weights = check_member_weights(self.weights, len(loc), positive=True, tolerance=1e-9)
        vars(self).update(loc=loc, scale=scale, weights=weights)
        self._check_shared()

    @property
    def member_variances(self) -> np.ndarray:
        """Variances of the members' noise, of shape (K, n[, m]), in squared units of y."""
        return self.scale**2 - self.member_shared

    def _cdf(self, y: np.ndarray, loc: np.ndarray, scale: np.ndarray) -> np.ndarray:
        return special.ndtr((y - loc) / scale)

    def _log_density(self, y: np.ndarray, loc: np.ndarray, scale: np.ndarray) -> np.ndarray:
        return -0.5 * ((y - loc) / scale) ** 2 - np.log(scale) - LOG_SQRT_2PI

    def _bracket(
        self, levels: np.ndarray, arrays: Sequence[np.ndarray]
    ) -> tuple[np.ndarray, np.ndarray]:
        scores = special.ndtri(levels)
        ends = (loc + scale * scores for loc, scale in zip(*arrays))
        low = high = next(ends)
        for end in ends:
            low, high = np.minimum(low, end), np.maximum(high, end)
        return low, high

    def _draw_noisy(
        self, shape: tuple[int, ...], rng: np.random.Generator, *arrays: np.ndarray
    ) -> np.ndarray:
        loc, scale, *shared = arrays
        draws = loc + scale * rng.standard_normal(shape)
        return draws + shared[0] * shared[1] if shared else draws

    def _moments_of(
        self, function: Callable[[np.ndarray], np.ndarray]
    ) -> tuple[np.ndarray, np.ndarray]:
        means, variances = [], []
        for loc, scale in zip(*self._arrays):
            # Moments about the median, which lies within a standard deviation of the mean, avoid
            # cancellation.
            median = function(loc)
            first, second = np.zeros(self._shape), np.zeros(self._shape)
            with np.errstate(over="ignore", invalid="ignore"):  # checked below
                for z, weight in zip(_SCORES, _SCORE_WEIGHTS):
                    distance = function(loc + scale * z) - median
                    first += weight * distance
                    second += weight * distance**2
                means.append(median + first)
                variances.append(np.maximum(second - first**2, 0))
        if not (np.isfinite(means).all() and np.isfinite(variances).all()):
            raise ValueError(
                "The members' means or variances overflow, because the inverse transform grows too "
                "fast for the tails of their distributions. Use a transform with linear ends."
            )
        return np.stack(means), np.stack(variances)

    def _tfp_members(self) -> Any:
        from skuq.backend import tfd

        return tfd.Normal(*(np.moveaxis(array, 0, 1) for array in self._arrays))


@saved_as("predictive.NestedGaussianMixture")
@dataclass(frozen=True, eq=False)
class NestedGaussianMixture(NormalMembers):
    """Mixture of K members for every row, each of which is a mixture of J normals.

    All rows share the members' weights, but not the probabilities of components. The spread of
    one member's components is aleatoric, possibly with several modes. The disagreement of the
    members' means is epistemic. Each output has its own mixture: given the member, outputs are
    independent.

    Parameters
    ----------
    loc, scale : ndarray of shape (K, J, n) or (K, J, n, m)
        Means and standard deviations of the components, in units of y; scale > 0.
    probabilities : ndarray of the shape of `loc`
        Non-negative probabilities of the components, which sum to 1 over J within 1e-6.
    weights : ndarray of shape (K,), optional
        Positive weights of the members, summing to 1; equal by default.
    spread : ndarray of shape (r, n) or (r, n, m), optional
        Uncertainty of the function that all members share; see `GaussianMixture`.
    shared_scale : ndarray of the shape of `scale`, optional
        Part of `scale` that is epistemic; see `GaussianMixture`. The mean of a member moves by the
        average of its components.

    Raises
    ------
    ValueError
        If shapes disagree, scales are not positive, probabilities or weights do not sum to 1, or
        `shared_scale` is not below `scale`.

    See Also
    --------
    skuq.networks._head_normals.GaussianMixtureHead : Head that predicts the parameters.

    References
    ----------
    Bishop (1994), "Mixture Density Networks".

    Examples
    --------
    >>> import numpy as np
    >>> shape = 1, 2, 1  # one member that knows two modes
    >>> loc = np.array([-1.0, 1.0]).reshape(shape)
    >>> fork = NestedGaussianMixture(loc, np.full(shape, 0.1), np.full(shape, 0.5))
    >>> fork.aleatoric_variance.round(2), fork.epistemic_variance
    (array([1.01]), array([0.]))
    """

    loc: np.ndarray
    scale: np.ndarray
    probabilities: np.ndarray
    weights: np.ndarray = FILLED_IN
    spread: np.ndarray | None = None
    shared_scale: np.ndarray | None = None

    _array_kinds = {"loc": "location", "scale": "scale", "probabilities": "shape"}
    _leading_axes = 2  # members and components

    def __post_init__(self) -> None:
        names = "loc", "scale", "probabilities"
        loc, scale, probabilities = check_parameters(
            "n_members", "n_components", **{name: getattr(self, name) for name in names}
        )
        sums = check_probabilities("probabilities of components", probabilities, axis=1)
        weights = check_member_weights(self.weights, len(loc), positive=True, tolerance=1e-9)
        # The check allows 1e-6, but cdf and density should be exact.
        probabilities = probabilities / sums[:, None]
        vars(self).update(loc=loc, scale=scale, probabilities=probabilities, weights=weights)
        self._check_shared()

    @property
    def member_variances(self) -> np.ndarray:
        """Variances of the members' noise, of shape (K, n[, m]), in squared units of y."""
        return self._combine_components(self.loc, self.scale**2)[1] - self.member_shared

    def _member_average(self, values: np.ndarray) -> np.ndarray:
        return (self.probabilities * values).sum(axis=1)

    def _combine_components(
        self, means: np.ndarray, variances: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Compute members' means and variances from those of components, (K, J, n[, m])."""
        mean = self._member_average(means)
        # Law of total variance over the components.
        return mean, self._member_average(variances + (means - mean[:, None]) ** 2)

    def _cdf(
        self, y: np.ndarray, loc: np.ndarray, scale: np.ndarray, probabilities: np.ndarray
    ) -> np.ndarray:
        return sum(p * special.ndtr((y - mu) / s) for mu, s, p in zip(loc, scale, probabilities))

    def _log_density(
        self, y: np.ndarray, loc: np.ndarray, scale: np.ndarray, probabilities: np.ndarray
    ) -> np.ndarray:
        densities = -0.5 * ((y - loc) / scale) ** 2 - np.log(scale) - LOG_SQRT_2PI
        return special.logsumexp(densities, axis=0, b=probabilities)

    def _bracket(
        self, levels: np.ndarray, arrays: Sequence[np.ndarray]
    ) -> tuple[np.ndarray, np.ndarray]:
        """Bracket the quantiles of each row by those of its components."""
        # A mixture's quantile lies between the smallest and the largest quantile of those
        # components that have a positive probability.
        scores = special.ndtri(levels)
        low, high = np.full_like(scores, np.inf), np.full_like(scores, -np.inf)
        for parameters in zip(*arrays):
            for loc, scale, probability in zip(*parameters):
                end = loc + scale * scores
                low = np.where(probability > 0, np.minimum(low, end), low)
                high = np.where(probability > 0, np.maximum(high, end), high)
        return low, high

    def _draw_noisy(
        self, shape: tuple[int, ...], rng: np.random.Generator, *arrays: np.ndarray
    ) -> np.ndarray:
        loc, scale, probabilities, *shared = arrays
        uniform, z = rng.random(shape), rng.standard_normal(shape)
        edges = np.cumsum(probabilities, axis=0)
        edges /= edges[-1]  # exactly 1 from the last possible component on
        component = np.zeros(shape, dtype=int)
        for edge in edges[:-1]:
            component += uniform >= edge
        # The component's parameters of each draw, row and output.
        mu, s, *moves = (
            np.take_along_axis(a[None], component[:, None], 1)[:, 0]
            for a in (loc, scale, *shared[:1])
        )
        return mu + s * z + moves[0] * shared[1] if shared else mu + s * z

    def _moments_of(
        self, function: Callable[[np.ndarray], np.ndarray]
    ) -> tuple[np.ndarray, np.ndarray]:
        # Treat the K * J components as members of one Gaussian mixture, and combine afterwards.
        shape, (loc, scale, _) = self.loc.shape, self._arrays
        flat = shape[0] * shape[1], *shape[2:]
        components = GaussianMixture(loc.reshape(flat), scale.reshape(flat))
        moments = components._moments_of(function)
        return self._combine_components(*(moment.reshape(shape) for moment in moments))

    def _tfp_members(self) -> Any:
        from skuq.backend import tfd

        # (n, K, [m,] J)
        loc, scale, probabilities = (np.moveaxis(a, (0, 1), (1, -1)) for a in self._arrays)
        return tfd.MixtureSameFamily(tfd.Categorical(probs=probabilities), tfd.Normal(loc, scale))


def shift(distribution: Mixture, distance: np.ndarray) -> Any:
    """Move the distributions of a mixture by distances (n[, m]), in units of y."""
    return distribution._map_arrays(
        lambda array, kind: array + distance if kind == "location" else array
    )


def check_location_and_stds(**arrays: ArrayLike) -> list[np.ndarray]:
    """Check a location and standard deviations, all of one shape (n,) or (n, m).

    The location comes first; the others must be non-negative and finite.
    """
    checked = check_parameters(**arrays)
    for name, part in list(zip(arrays, checked))[1:]:
        wrong = ~((part >= 0) & np.isfinite(part))  # True also for NaN
        if wrong.any():
            raise ValueError(f"{name} must be finite and at least 0. Got {part[wrong][0]}.")
    return checked


@saved_as("predictive.EpistemicNormal")
@dataclass(frozen=True, eq=False, init=False)
class EpistemicNormal(GaussianMixture):
    """Normal distribution for every row, with known aleatoric and epistemic variance.

    It is a `GaussianMixture` of one member with the scale
    ``sqrt(aleatoric**2 + epistemic**2)``. Its variance has the two given parts, whereas the
    variance of other mixtures of one member is aleatoric only. Outputs are independent.

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

    Raises
    ------
    ValueError
        If shapes disagree, a part is negative or not finite, or both are 0.

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
        if functions is not None and np.shape(functions)[1:] != model.shape:
            raise ValueError(
                f"functions must have shape (r, {', '.join(map(str, model.shape))}). Got "
                f"{np.shape(functions)}."
            )
        super().__init__(loc[None], total[None])
        vars(self).update(aleatoric=noise, epistemic=model, functions=functions)

    @property
    def mean(self) -> np.ndarray:
        """Means, of shape (n,) or (n, m), in units of y."""
        return self.loc[0]

    @property
    def aleatoric_variance(self) -> np.ndarray:
        """Variance of the noise, as given, in squared units of y."""
        return self.aleatoric**2

    @property
    def epistemic_variance(self) -> np.ndarray:
        """Variance of the model, as given, in squared units of y."""
        return self.epistemic**2

    @property
    def std(self) -> np.ndarray:
        """Square root of the variance, in units of y."""
        return self.scale[0]  # the root of the variance would lose scales whose square underflows

    def uncertainty(self, ddof: int = 0) -> Uncertainty:
        """Return the mean and the standard deviations by source.

        Parameters
        ----------
        ddof : {0, 1}, default=0
            Ignored, since a single model has no divisor to correct.
        """
        return Uncertainty(self.mean, self.aleatoric, self.epistemic, self.std)

    def _map_arrays(self, change: Callable[[np.ndarray, str], np.ndarray]) -> EpistemicNormal:
        # The scale follows from both parts. A stretch is about the mean, which keeps every bit.
        mean = change(self.mean, "shape")
        parts = self.aleatoric, self.epistemic, self.functions
        changed: list[Any] = [p if p is None else change(p, "scale") for p in parts]
        return EpistemicNormal(mean, *changed)

    def _draw(self, n_samples: int, seed: int, rng: np.random.Generator) -> np.ndarray:
        shape = n_samples, *self.mean.shape
        if self.functions is None:
            numbers = np.random.default_rng(seed).standard_normal((n_samples, 1, *shape[2:]))
            error = self.epistemic * numbers
        else:  # outputs share the numbers, as values of one function do
            values = self.functions.reshape(len(self.functions), -1)
            error = _combine(values, n_samples, [seed, 1]).reshape(shape)
        return self.mean + error + self.aleatoric * rng.standard_normal(shape)
