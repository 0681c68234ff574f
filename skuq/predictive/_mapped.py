"""Distributions made of others: of a transformed target, of groups of rows, of mapped scores.

The normal score of y is the standard normal quantile at the value of the distribution's cdf at y.

Notation: K members, n rows, m outputs (the last axis is absent where y was 1-D), q knots; y is
the target, and z the transformed target.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from skuq._utils._formulas import LOG_SQRT_2PI
from skuq._utils._records import saved_as
from skuq.predictive._calibrated import Calibrated, by_output, interp_slope
from skuq.predictive._mixture import Continuous, Factor, Mixture, RowIndex, Uncertainty


@saved_as("predictive.TransformedMixture")
@dataclass(frozen=True, eq=False)
class TransformedMixture(Mixture):
    """Distribution of y, given a mixture that predicts an increasing function of y.

    With ``z ~ inner``, ``y = shift + factor * transform.inverse(z)``. Distribution function,
    quantiles, intervals, density and draws are exact. Means and variances are computed by
    quadrature over the members' quantile functions, with 81 points.

    Parameters
    ----------
    inner : Mixture
        Distribution of z.
    transform : object
        Object with the methods ``forward(y)``, ``inverse(z)``, ``log_derivative(y)`` (the log of
        the derivative of `forward`) and, for several outputs, ``output(k)``. It must be strictly
        increasing, and finite for finite arguments. If `inner` has an output axis, it is the last
        axis of these methods' arrays, and each output has its own function. Otherwise the methods
        take arrays of any shape.
    shift : ndarray that broadcasts to (n[, m]), default=0.0
        Summand, in units of y. It is set by `scaled` and rarely given.
    factor : ndarray that broadcasts to (n[, m]), default=1.0
        Positive factor. It is set by `scaled` and rarely given.

    See Also
    --------
    GaussianMixture, NestedGaussianMixture

    Notes
    -----
    Members' moments are computed within ten normal scores of their medians, which leaves out a
    probability of 1e-23. They are finite if the inverse transform grows linearly at its ends, as
    the transforms of `skuq.tables` do. If they overflow, `mean` and `variance` raise ValueError.

    Examples
    --------
    >>> import numpy as np
    >>> from types import SimpleNamespace
    >>> from skuq.predictive import GaussianMixture
    >>> logarithm = SimpleNamespace(
    ...     forward=np.log, inverse=np.exp, log_derivative=lambda y: -np.log(y)
    ... )
    >>> normal = GaussianMixture(np.zeros((1, 1)), np.ones((1, 1)))
    >>> lognormal = TransformedMixture(normal, logarithm)
    >>> lognormal.mean.round(4), lognormal.quantile(0.5)  # exp(1 / 2) and 1
    (array([1.6487]), array([1.]))
    """

    inner: Mixture
    transform: Any
    shift: Any = 0.0
    factor: Any = 1.0

    def __post_init__(self) -> None:
        if not isinstance(self.inner, Mixture):
            raise TypeError(
                f"inner must be a Mixture, such as GaussianMixture. Got {self.inner!r}."
            )
        if not (np.asarray(self.factor) > 0).all():
            raise ValueError(f"factor must be positive. Got {self.factor}.")
        # Shift and factor of each row and output.
        shift, factor = (np.broadcast_to(a, self._shape) for a in (self.shift, self.factor))
        vars(self).update(weights=self.inner.weights, shift=shift, factor=factor)

    @property
    def _shape(self) -> tuple[int, ...]:
        return self.inner._shape

    @cached_property
    def _moments(self) -> tuple[np.ndarray, np.ndarray]:
        """Members' means and variances, (K, n[, m]) each, before shift and factor."""
        return self.inner._moments_of(self.transform.inverse)

    @property
    def member_means(self) -> np.ndarray:
        """Means of the members, of shape (K, n[, m]), in units of y."""
        return self.shift + self.factor * self._moments[0]

    @property
    def member_variances(self) -> np.ndarray:
        """Variances of the members, of shape (K, n[, m]), in squared units of y."""
        return self.factor**2 * (self._moments[1] - self._shared)

    @cached_property
    def _shared(self) -> float | np.ndarray:
        """Variances (K, n[, m]) that members have by their common spread, before the factor."""
        inner: Any = self.inner
        if getattr(inner, "spread", None) is not None:
            rest = replace(inner, spread=None)._moments_of(self.transform.inverse)[1]
        elif getattr(inner, "shared_scale", None) is not None:
            rest = self._moments[1]
        else:
            return 0.0
        # The variance of a member is noise and shared error in the ratio that they have in the
        # transformed y.
        own = inner.member_shared
        noise = rest * inner.member_variances / (inner.member_variances + own)
        return np.maximum(self._moments[1] - noise, 0)

    @property
    def shared_variance(self) -> float | np.ndarray:  # type: ignore[override]
        """Variance of the function that all members share, in squared units of y."""
        shared = self._shared
        return self.factor**2 * self._average(shared) if isinstance(shared, np.ndarray) else 0.0

    @property
    def shared_functions(self) -> np.ndarray | None:
        """Arrays (r, n[, m]) whose squares sum to the variance that members share."""
        inner: np.ndarray | None = getattr(self.inner, "shared_functions", None)
        if inner is None:
            return None
        return inner * np.sqrt(self.shared_variance / np.maximum((inner**2).sum(axis=0), _TINY))

    def _cdf_at(self, y: np.ndarray) -> np.ndarray:
        return self.inner._cdf_at(self.transform.forward((y - self.shift) / self.factor))

    def _log_prob_at(self, y: np.ndarray) -> np.ndarray:
        # Density of y = density of z times dz/dy.
        y = (y - self.shift) / self.factor
        slope = self.transform.log_derivative(y) - np.log(self.factor)
        slope = slope.sum(axis=tuple(range(1, y.ndim)))  # (n,)
        return self.inner._log_prob_at(self.transform.forward(y)) + slope

    def _inverse_cdf_at(self, levels: np.ndarray) -> np.ndarray:
        z = self.inner._inverse_cdf_at(levels)
        return self.shift + self.factor * self.transform.inverse(z)

    def _draw(self, n_samples: int, seed: int, rng: np.random.Generator) -> np.ndarray:
        z = self.inner._draw(n_samples, seed, rng)
        return self.shift + self.factor * self.transform.inverse(z)

    def scaled(self, factor: Factor) -> TransformedMixture:
        mean = self.mean
        # mean + factor * (y - mean) is again a shift and a factor of the same inner mixture.
        stretched = TransformedMixture(
            self.inner, self.transform, mean + factor * (self.shift - mean), factor * self.factor
        )
        stretched.__dict__["_moments"] = self._moments  # do not depend on shift and factor
        return stretched

    def rows(self, rows: RowIndex) -> TransformedMixture:
        """Select rows by a slice or positions."""
        inner = self.inner.rows(rows)
        return TransformedMixture(inner, self.transform, self.shift[rows], self.factor[rows])

    def output(self, k: int) -> TransformedMixture:
        """Select the marginal distribution of one of several outputs."""
        shift, factor = self.shift[:, k], self.factor[:, k]
        return TransformedMixture(self.inner.output(k), self.transform.output(k), shift, factor)


def _gathered(name: str, doc: str) -> Any:
    """Make a property of `GroupedDistribution` from that of its records."""
    return property(lambda self: self._gather([getattr(p, name) for p in self.parts]), doc=doc)


@dataclass(frozen=True, eq=False)
class GroupedDistribution(Continuous):
    """Distribution for every row, with a separate record for each group of rows.

    Parameters
    ----------
    parts : tuple of distributions
        One record for each group, all with the same number of outputs.
    rows : tuple of ndarray of int
        Positions of the rows of each record. Together they hold 0 to n - 1, each once.

    Raises
    ------
    ValueError
        If the rows are not 0 to n - 1.

    Examples
    --------
    >>> import numpy as np
    >>> from skuq.predictive import GaussianMixture
    >>> narrow = GaussianMixture(np.zeros((1, 1)), np.ones((1, 1)))
    >>> wide = GaussianMixture(np.zeros((1, 2)), np.full((1, 2), 5.0))
    >>> GroupedDistribution((narrow, wide), (np.array([1]), np.array([0, 2]))).std
    array([5., 1., 5.])
    """

    parts: tuple[Any, ...]
    rows: tuple[np.ndarray, ...]

    def __post_init__(self) -> None:
        together = np.sort(np.concatenate(self.rows))
        if len(self.parts) != len(self.rows) or (together != np.arange(len(together))).any():
            raise ValueError(
                "`rows` must hold each row from 0 to n - 1 once, with one array a record. Got "
                f"{len(self.parts)} records and rows {[rows.tolist() for rows in self.rows]}."
            )

    @property
    def _shape(self) -> tuple[int, ...]:
        return (sum(map(len, self.rows)), *self.parts[0]._shape[1:])

    def _gather(self, values: Sequence[np.ndarray], axis: int = 0) -> np.ndarray:
        """Put the records' values, whose rows are on `axis`, into the order of the rows."""
        together = np.concatenate(values, axis=axis)
        # The argsort of a permutation is its inverse.
        return np.take(together, np.argsort(np.concatenate(self.rows)), axis=axis)

    mean = _gathered("mean", "Point prediction of each record, of shape (n[, m]).")
    variance = _gathered("variance", "Variance of each record, in squared units of y.")
    aleatoric_variance = _gathered("aleatoric_variance", "Variance of the noise.")
    epistemic_variance = _gathered("epistemic_variance", "Variance beyond the noise's.")

    def uncertainty(self, ddof: int = 0) -> Uncertainty:
        """Compute the mean and standard deviations by source; see `GaussianMixture.uncertainty`."""
        parts = zip(*(part.uncertainty(ddof) for part in self.parts))
        return Uncertainty(*(self._gather(values) for values in parts))

    def _cdf_at(self, y: np.ndarray) -> np.ndarray:
        return self._gather([part._cdf_at(y[rows]) for part, rows in zip(self.parts, self.rows)])

    def _log_prob_at(self, y: np.ndarray) -> np.ndarray:
        return self._gather(
            [part._log_prob_at(y[rows]) for part, rows in zip(self.parts, self.rows)]
        )

    def _draw(self, n_samples: int, seed: int, rng: np.random.Generator) -> np.ndarray:
        # All records draw from one seed: a draw takes one member for the rows of all groups.
        return self._gather([part._draw(n_samples, seed, rng) for part in self.parts], axis=1)

    def _inverse_cdf_at(self, levels: np.ndarray) -> np.ndarray:
        found = [p._inverse_cdf_at(levels[:, rows]) for p, rows in zip(self.parts, self.rows)]
        return self._gather(found, axis=1)

    def output(self, k: int) -> GroupedDistribution:
        """Select the marginal distribution of one of several outputs."""
        return GroupedDistribution(tuple(part.output(k) for part in self.parts), self.rows)


_TINY = 1e-300  # variance below which a spread counts as none
# Scores beyond this are measured in standard deviations, since levels near 0 and 1 are rounded.
_LARGEST_SCORE = 6.0
_EDGE = special.ndtr(-_LARGEST_SCORE)
_STEEPEST = 0.05  # smallest slope of a map of scores, so that the density is finite
# Nodes of the trapezoidal rule for moments of a function of a standard normal.
_NODES = np.linspace(-10, 10, 401)
_NODE_WEIGHTS = np.exp(-0.5 * _NODES**2) / np.exp(-0.5 * _NODES**2).sum()


def normal_scores(base: Any, y: np.ndarray) -> np.ndarray:
    """Compute the normal scores (n[, m]) of y under a distribution.

    Scores beyond -6 and 6 are extrapolated: they grow by 1 with each standard deviation of the
    row's distribution.
    """
    level = base.cdf(y)
    scores = special.ndtri(np.clip(level, _EDGE, 1 - _EDGE))
    # The side of y, 1 or -1, where its level is too close to 1 or 0 to be inverted; 0 elsewhere.
    side = np.sign(level - 0.5) * ((level < _EDGE) | (level > 1 - _EDGE))
    if side.any():
        # From the quantiles at +-6 on, scores grow in units of the row's standard deviation: the
        # map from y to scores stays continuous and can be inverted.
        low, high = base.inverse_cdf(_as_column([_EDGE, 1 - _EDGE], y.ndim))
        with np.errstate(over="ignore"):  # a score may be infinite
            distance = np.maximum(np.where(side > 0, y - high, low - y) / base.std, 0)
        scores = scores + np.where(side == 0, 0.0, np.copysign(distance, side))
    return scores


def _as_column(values: ArrayLike, n_axes: int) -> np.ndarray:
    """Append axes of length 1 to values (q,)."""
    return np.reshape(values, (-1, *[1] * n_axes))


def increasing(nominal: np.ndarray, tracked: np.ndarray) -> np.ndarray:
    """Raise scores (q[, m]) where they grow by less than 0.05 times the nominal ones."""
    least = _STEEPEST * _as_column(nominal, tracked.ndim - 1)
    # The scores minus the line of the least slope must not fall from one level to the next.
    return least + np.maximum.accumulate(tracked - least, axis=0)


@dataclass(frozen=True, eq=False)
class AdaptedDistribution(Calibrated):
    """Distribution with normal scores mapped to those of observed values.

    The quantile of level p is the y at which the base distribution has the score r(z), where z is
    the standard normal quantile at p. The map r corrects a bias (r(0) is not 0), a wrong width (the
    slope of r is not 1) and skewness.

    Parameters
    ----------
    base : distribution
        It must have mean, variance parts, cdf, inverse_cdf, log_prob and sample.
    nominal : ndarray of shape (q,)
        Scores z at the knots of r; increasing.
    tracked : ndarray of shape (q,) or (q, m)
        Scores r(z). Between knots r is linear; beyond them it continues with the mean slope from
        the middle.

    Notes
    -----
    `mean` is the point prediction of the base, not the mean of this distribution. `variance` is the
    mean squared distance from the point prediction, so that a bias increases it. It is exact for
    normals; for others it is the variance of the base times the factor of a normal. Each of several
    outputs has its own map, and the log density takes the outputs as independent.

    Examples
    --------
    >>> import numpy as np
    >>> from skuq.predictive import GaussianMixture
    >>> normal = GaussianMixture(np.zeros((1, 1)), np.ones((1, 1)))
    >>> z = np.array([-1.0, 0.0, 1.0])
    >>> wider = AdaptedDistribution(normal, z, 1 + 2 * z)
    >>> wider.interval(0.9).round(2)  # 1 ± 2 * 1.645
    array([[-2.29,  4.29]])
    """

    nominal: np.ndarray
    tracked: np.ndarray

    _of_outputs = ("tracked",)

    @property
    def _knots(self) -> tuple[np.ndarray, np.ndarray]:
        """Nominal and tracked scores of the map r, with a further knot far beyond either end."""
        nominal, tracked = _as_column(self.nominal, self.tracked.ndim - 1), self.tracked
        ends, middle, far = [0, -1], len(nominal) // 2, 1e3
        # Mean slopes (2[, m]) from the middle to either end.
        slopes = (tracked[ends] - tracked[middle]) / (nominal[ends] - nominal[middle])
        low, high = np.maximum(slopes, _STEEPEST)[:, None]
        x = np.concatenate([nominal[:1] - far, nominal, nominal[-1:] + far])
        y = np.concatenate([tracked[:1] - far * low, tracked, tracked[-1:] + far * high])
        return np.broadcast_to(x, y.shape), y

    @property
    def _variance_factor(self) -> np.ndarray:
        """Second moment () or (m,) of the mapped scores of a standard normal."""
        shape = self.tracked.shape[1:]
        nodes = np.broadcast_to(_as_column(_NODES, len(shape)), (len(_NODES), *shape))
        # E[r(Z)^2] and not the variance of r(Z): a bias, r(0) not 0, counts.
        return np.asarray(_NODE_WEIGHTS @ by_output(np.interp, nodes, *self._knots) ** 2)

    @property
    def variance(self) -> np.ndarray:
        """Mean squared distance from the point prediction, in squared units of y."""
        return self._scale_part(self.base.variance)

    def _scale_part(self, part: np.ndarray) -> np.ndarray:
        return self._variance_factor * part

    @property
    def _std_factor(self) -> np.ndarray:
        return np.sqrt(self._variance_factor)

    def _cdf_at(self, y: np.ndarray) -> np.ndarray:
        # P(Y <= y) = Phi(r^-1(s)), where s is the score of y under the base.
        nominal, tracked = self._knots
        scores = by_output(np.interp, normal_scores(self.base, y), tracked, nominal)
        return np.asarray(special.ndtr(scores))

    def _inverse_cdf_at(self, levels: np.ndarray) -> np.ndarray:
        scores = by_output(np.interp, special.ndtri(levels), *self._knots)
        # The inverse of `normal_scores`.
        inside = np.clip(scores, -_LARGEST_SCORE, _LARGEST_SCORE)
        found: np.ndarray = self.base.inverse_cdf(special.ndtr(inside))
        beyond = scores - inside
        return found + self.base.std * beyond if beyond.any() else found

    def _log_prob_at(self, y: np.ndarray) -> np.ndarray:
        if y.ndim == 2:
            marginals = [self.output(k)._log_prob_at(column) for k, column in enumerate(y.T)]
            return np.sum(marginals, axis=0)
        scores = normal_scores(self.base, y)
        nominal = np.interp(scores, *self._knots[::-1])
        # d(score)/dy is f(y) / phi(score) of the base, and 1 / std beyond the largest score.
        rise = self.base.log_prob(y) + 0.5 * scores**2 + LOG_SQRT_2PI
        rise = np.where(abs(scores) < _LARGEST_SCORE, rise, -np.log(self.base.std))
        # Change of variables from z to y: log phi(z) - log r'(z) + log ds/dy, with z = r^-1(s).
        slope = interp_slope(nominal, *self._knots)
        return np.asarray(-0.5 * nominal**2 - LOG_SQRT_2PI - np.log(slope) + rise)
