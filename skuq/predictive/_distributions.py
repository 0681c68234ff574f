"""Base classes of predictive distributions: continuous distributions and weighted mixtures.

Notation: K members, n rows, m outputs (the last axis is absent where y was 1-D).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar, NamedTuple, Self, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from skuq._params import as_floats

#: Default of fields that `__post_init__` fills with an array.
FILLED_IN: Any = None
#: Argument of `numpy.random.default_rng`.
RandomSource: TypeAlias = np.random.Generator | int | None
#: Factor of standard deviations: one for all outputs, or (m,).
Factor: TypeAlias = float | np.ndarray
#: Rows to select.
RowIndex: TypeAlias = slice | np.ndarray


class Uncertainty(NamedTuple):
    """Mean and standard deviations by source, each (n_samples,) or (n_samples, n_outputs).

    All are in units of y, and ``total**2 == aleatoric**2 + epistemic**2``.

    Examples
    --------
    >>> import numpy as np
    >>> from skuq.predictive import GaussianMixture
    >>> two = GaussianMixture(np.array([[0.0], [6.0]]), np.full((2, 1), 4.0))
    >>> two.uncertainty()
    Uncertainty(mean=array([3.]), aleatoric=array([4.]), epistemic=array([3.]), total=array([5.]))
    """

    mean: np.ndarray
    aleatoric: np.ndarray
    epistemic: np.ndarray
    total: np.ndarray


class ClassUncertainty(NamedTuple):
    """Entropies of the predicted class, each of shape (n_samples,), in nats.

    `total` is the entropy of the averaged probabilities, at most log(n_classes). `aleatoric` is
    the members' average entropy. `epistemic` is the mutual information of class and member, which
    measures the members' disagreement. ``total == aleatoric + epistemic``.

    Examples
    --------
    >>> import numpy as np
    >>> from skuq.predictive import CategoricalMixture
    >>> proba = np.array([[[1.0, 0.0]], [[0.0, 1.0]]])  # two members that disagree
    >>> uncertainty = CategoricalMixture(proba).uncertainty()
    >>> uncertainty.total.round(3), uncertainty.aleatoric.round(3)
    (array([0.693]), array([0.]))
    """

    total: np.ndarray
    aleatoric: np.ndarray
    epistemic: np.ndarray


def ordered_quantiles(
    inverse_cdf: Callable[[np.ndarray], np.ndarray], shape: tuple[int, ...], probability: ArrayLike
) -> np.ndarray:
    """Compute quantiles of rows of this shape, as `Continuous.quantile` describes them.

    ``inverse_cdf(levels)`` has the shape (q, n[, m]) for levels that broadcast to it.
    """
    p, (n, *outputs) = as_floats(probability, "probability"), shape
    if not ((p > 0) & (p < 1)).all():
        raise ValueError(f"Probabilities must lie strictly in (0, 1). Got {probability!r}.")
    levels = p.reshape(-1, *[1] * (1 + len(outputs)))  # (q, 1[, 1])
    if p.ndim > 1:
        expected = (n, p.shape[1], *outputs)
        if p.ndim != levels.ndim or any(k not in (1, e) for k, e in zip(p.shape, expected)):
            table = ", ".join(map(str, (n, "q", *outputs)))
            raise ValueError(
                "Probabilities must be a number, or have shape (q,) or, for levels of each "
                f"row, ({table}). Got {p.shape}."
            )
        levels = np.moveaxis(p, 1, 0)
    found = inverse_cdf(levels)  # (q, n[, m])
    order = np.argsort(levels, axis=0, kind="stable")
    # Make quantiles exactly monotone: a root finder's tolerance can cross them by 1e-16.
    ordered = np.maximum.accumulate(np.take_along_axis(found, order, axis=0), axis=0)
    np.put_along_axis(found, order, ordered, axis=0)
    return found[0] if p.ndim == 0 else np.moveaxis(found, 0, 1)


def central_interval(
    quantile: Callable[[np.ndarray], np.ndarray], coverage: ArrayLike
) -> np.ndarray:
    """Compute central intervals, as `Continuous.interval` describes them, from quantiles."""
    given = as_floats(coverage, "coverage")
    upper = (1 + given) / 2  # rounds to 1 for the coverage nearest to 1
    if given.ndim > 1 or not given.size or not ((given > 0) & (upper < 1)).all():
        raise ValueError(
            "`coverage` must lie strictly in (0, 1), and be a number or have shape (k,). "
            f"Got {coverage!r}."
        )
    levels = np.stack([(1 - given) / 2, upper], axis=-1)
    # 1 - 0.9 is less than 0.1 in float64: without rounding the end would be another one than
    # the quantile at 0.05 where a distribution function has a step there.
    is_near_end = np.minimum(levels, 1 - levels) < 1e-12
    levels = np.where(is_near_end, levels, np.round(levels, 15))
    found = quantile(levels.ravel())
    return found.reshape(len(found), *levels.shape, *found.shape[2:])


class Continuous:
    """Continuous distribution for every row, given by arrays of parameters.

    A subclass is a frozen dataclass. It defines `_array_kinds`, `mean`, `aleatoric_variance`,
    `epistemic_variance`, `_draw`, and functions of arrays that are broadcast already: `_cdf_at`,
    `_log_prob_at` and `_inverse_cdf_at`.
    """

    #: Whether the distribution of each row is one normal.
    is_normal: Any = False

    @property
    def mean(self) -> np.ndarray:
        """Point prediction, of shape (n,) or (n, m), in units of y."""
        raise NotImplementedError

    @property
    def aleatoric_variance(self) -> np.ndarray:
        """Variance of the noise, in squared units of y."""
        raise NotImplementedError

    @property
    def epistemic_variance(self) -> np.ndarray:
        """Variance in excess of the noise's, in squared units of y."""
        raise NotImplementedError

    @property
    def variance(self) -> np.ndarray:
        """Sum of aleatoric and epistemic variance, in squared units of y."""
        return self.aleatoric_variance + self.epistemic_variance

    @property
    def std(self) -> np.ndarray:
        """Square root of the variance, in units of y."""
        return np.sqrt(self.variance)

    #: Mean and standard deviations by source: ``uncertainty(ddof=0)``.
    uncertainty: Callable[..., Uncertainty]

    def cdf(self, y: ArrayLike) -> np.ndarray:
        """Compute P(Y <= y) for each row and output.

        Parameters
        ----------
        y : float or array-like that broadcasts to (n[, m]) or (n, k[, m])
            Limits: one for all rows, one for each row (and output), or a table with one axis more
            of k limits for each row, as `quantile` returns it. A table (1, k[, m]) has the same
            limits for all rows. If there is one row, an array (k[, m]) has k limits of it.

        Returns
        -------
        ndarray of shape (n[, m]), or (n, k[, m]) for a table

        Raises
        ------
        ValueError
            If y has another shape.
        """
        return self._at_limits(self._cdf_at, y)

    def log_prob(self, y: ArrayLike) -> np.ndarray:
        """Compute the joint log density of each row's outputs.

        Parameters
        ----------
        y : float or array-like that broadcasts to (n[, m]) or (n, k[, m])
            Observed targets, one of each row, or a table of k values of each row; see `cdf`.

        Returns
        -------
        ndarray of shape (n,), or (n, k) for a table
            Log densities in nats; the density is per units of y.

        Raises
        ------
        ValueError
            If y has another shape.
        """
        return self._at_limits(self._log_prob_at, y)

    def _at_limits(self, function: Callable[[np.ndarray], np.ndarray], y: ArrayLike) -> np.ndarray:
        """Compute a function of y (n[, m]) at limits, whose shapes `cdf` lists."""
        y, (n, *outputs) = as_floats(y), self._shape
        n_axes = 1 + len(outputs)
        if n == 1 and y.ndim == n_axes:  # limits of the only row
            return self._at_limits(function, y[None])[0]
        shape = (n, *y.shape[1:2], *outputs) if y.ndim > n_axes else (n, *outputs)
        try:
            limits = np.broadcast_to(y, shape)
        except ValueError:
            table = ", ".join(map(str, (n, "k", *outputs)))
            raise ValueError(
                f"y must have shape {(n, *outputs)}, ({table}) for a table of k values of each "
                f"row, or one that broadcasts to these. Got {y.shape}."
            ) from None
        if y.ndim <= n_axes:
            return function(limits)
        return np.stack([function(column) for column in np.moveaxis(limits, 1, 0)], axis=1)

    #: Compute the cdf (n[, m]) at y (n[, m]).
    _cdf_at: Callable[[np.ndarray], np.ndarray]

    #: Compute the joint log density (n,) of the outputs at y (n[, m]).
    _log_prob_at: Callable[[np.ndarray], np.ndarray]

    #: Invert the cdf at levels (q, n[, m]).
    _inverse_cdf_at: Callable[[np.ndarray], np.ndarray]

    def inverse_cdf(self, levels: np.ndarray) -> np.ndarray:
        """Invert the cdf of each row and output, at common or at individual levels.

        Parameters
        ----------
        levels : ndarray that broadcasts to (q, n[, m])
            Levels strictly between 0 and 1.

        Returns
        -------
        ndarray of shape (q, n[, m])
        """
        levels = as_floats(levels, "levels")
        return self._inverse_cdf_at(np.broadcast_to(levels, (len(levels), *self._shape)))

    def quantile(self, probability: ArrayLike) -> np.ndarray:
        """Compute quantiles.

        Parameters
        ----------
        probability : float, or array-like of shape (q,) or that broadcasts to (n, q[, m])
            Levels strictly between 0 and 1: common to all rows, or a table of those of each row,
            as `cdf` returns it.

        Returns
        -------
        ndarray of shape (n[, m]) for a number, (n, q[, m]) for an array.

        Raises
        ------
        ValueError
            If a probability is outside (0, 1), or the array has another shape.
        """
        return ordered_quantiles(self.inverse_cdf, self._shape, probability)

    def interval(self, coverage: ArrayLike = 0.9) -> np.ndarray:
        """Compute the central interval, with equal probability on either side.

        Parameters
        ----------
        coverage : float or array-like of shape (k,), default=0.9
            Probability of the interval, or of each of k intervals, in (0, 1).

        Returns
        -------
        ndarray of shape (n, 2[, m]), or (n, k, 2[, m]) for several coverages
        """
        return central_interval(self.quantile, coverage)

    def sample(
        self, n_samples: int = 1, rng: RandomSource = None, seed: int | None = None
    ) -> np.ndarray:
        """Draw jointly for all rows, to shape (n[, m], n_samples).

        A draw is one possible outcome for all rows. They share what is epistemic: one member of a
        mixture or, in distributions of a single model, one normal number of each output for the
        model's part. NEON's has the covariance of its functions instead. The noise is drawn anew
        for every row and output. Distributions of other rows that draw with the same `seed` share
        what is epistemic, too.
        """
        rng = np.random.default_rng(rng)
        if seed is None:
            seed = int(rng.integers(2**63))
        return np.moveaxis(self._draw(n_samples, seed, rng), 0, -1)

    #: Draw (n_samples, n[, m]) by ``_draw(n_samples, seed, rng)``. Random numbers of a generator of
    #: this seed are shared by all rows, also by those of other distributions that draw with it.
    #: Those of `rng` are each row's own.
    _draw: Callable[[int, int, np.random.Generator], np.ndarray]

    #: Arrays (.., n[, m]), and how each of them follows y when y is stretched: a "location" moves
    #: and is stretched, a "scale" is stretched, a "shape" stays.
    _array_kinds: ClassVar[dict[str, str]]

    #: Number of the arrays' axes before that of the rows.
    _leading_axes: ClassVar[int] = 0

    @property
    def _shape(self) -> tuple[int, ...]:
        """Shape of y: (n,) or (n, m)."""
        first = next(iter(self._array_kinds))
        return getattr(self, first).shape[self._leading_axes :]

    def _map_arrays(self, change: Callable[[np.ndarray, str], np.ndarray]) -> Self:
        """Make a distribution whose arrays are ``change(array, kind)``."""
        kinds = self._array_kinds.items()
        arrays = {name: change(getattr(self, name), kind) for name, kind in kinds}
        return replace(self, **arrays)  # type: ignore[type-var]  # subclasses are dataclasses

    def scaled(self, factor: Factor) -> Self:
        """Stretch the distributions about their point predictions.

        Parameters
        ----------
        factor : float or ndarray of shape (m,)
            Positive factor of all standard deviations.
        """
        mean = self.mean

        def stretch(array: np.ndarray, kind: str) -> np.ndarray:
            if kind == "location":
                return mean + factor * (array - mean)
            return factor * array if kind == "scale" else array

        return self._map_arrays(stretch)

    def rows(self, rows: RowIndex) -> Self:
        """Select rows by a slice or positions."""
        pick = (..., rows) if len(self._shape) == 1 else (..., rows, slice(None))
        return self._map_arrays(lambda array, _: array[pick])

    def output(self, k: int) -> Self:
        """Select the marginal distribution of one of several outputs."""
        return self._map_arrays(lambda array, _: array[..., k])


def epistemic_factor(weights: np.ndarray, ddof: int) -> float:
    """Compute the factor that changes the divisor of a variance of K means from K to K - ddof."""
    if not ddof:
        return 1.0
    if len(weights) == 1:
        return 0.0
    # With the effective number of members, K = 1 / sum(w^2), it is K / (K - 1), or 1 over the sum
    # of w (1 - w). If the largest weight is nearly 1, the difference would lose its digits.
    largest = weights.argmax()
    rest = 1 - weights
    rest[largest] = np.delete(weights, largest).sum()
    return float(1 / (weights @ rest))


def check_parameters(*leading: str, **arrays: ArrayLike) -> list[np.ndarray]:
    """Check that arrays have one shape: `leading` axes, rows and perhaps outputs.

    Leading axes are not empty. An array named `scale` must be positive.
    """
    checked = {name: np.asarray(array, dtype=float) for name, array in arrays.items()}
    shapes = [array.shape for array in checked.values()]
    axes = [*leading, "n_samples"]
    n_outputs_axes = len(shapes[0]) - len(axes)
    if len(set(shapes)) > 1 or n_outputs_axes not in (0, 1) or 0 in shapes[0][: len(leading)]:
        raise ValueError(
            f"{', '.join(arrays)} must all have shape ({', '.join(axes)}) or ({', '.join(axes)}, "
            f"n_outputs). Got {', '.join(map(str, shapes))}."
        )
    if "scale" in checked and not (checked["scale"] > 0).all():
        raise ValueError(f"scale must be positive. The smallest is {checked['scale'].min()}.")
    return list(checked.values())


class Mixture(Continuous):
    """Mixture of K members' distributions for every row; rows share the weights.

    Given the member, outputs are independent; over members they are not.

    Attributes
    ----------
    weights : ndarray of shape (K,)
        Positive weights of the members, summing to 1.

    See Also
    --------
    GaussianMixture, TransformedMixture

    Examples
    --------
    >>> import numpy as np
    >>> from skuq.predictive import GaussianMixture, Mixture
    >>> two = GaussianMixture(np.array([[0.0], [2.0]]), np.ones((2, 1)))
    >>> isinstance(two, Mixture)
    True
    >>> two.mean, two.epistemic_variance, two.weights
    (array([1.]), array([1.]), array([0.5, 0.5]))
    """

    #: Weights (K,) of the members.
    weights: np.ndarray

    @property
    def member_means(self) -> np.ndarray:
        """Means of the members, of shape (K, n[, m]), in units of y."""
        raise NotImplementedError

    @property
    def member_variances(self) -> np.ndarray:
        """Variances of the members, of shape (K, n[, m]), in squared units of y."""
        raise NotImplementedError

    #: Variance of the function that all members share, in squared units of y.
    shared_variance: float | np.ndarray = 0.0

    def _average(self, values: np.ndarray) -> np.ndarray:
        """Average (K, ..) over the members, with their weights."""
        return np.tensordot(self.weights, values, axes=1)

    @property
    def mean(self) -> np.ndarray:
        """Means of the mixture, of shape (n,) or (n, m), in units of y."""
        return self._average(self.member_means)

    @property
    def aleatoric_variance(self) -> np.ndarray:
        """Average variance of the members: noise, which more data would not reduce (Eq. 3)."""
        return self._average(self.member_variances)

    @property
    def epistemic_variance(self) -> np.ndarray:
        """Variance of the members' means with divisor K (Eq. 3), plus the one that they share.

        One member gives the shared variance alone.
        """
        return self._disagreement + self.shared_variance

    @property
    def _disagreement(self) -> np.ndarray:
        # Centre before squaring, since E[mu^2] - mean^2 cancels if the mean is large.
        means = self.member_means
        return self._average((means - self._average(means)) ** 2)

    def uncertainty(self, ddof: int = 0) -> Uncertainty:
        """Return the mean and the standard deviations by source.

        Parameters
        ----------
        ddof : {0, 1}, default=0
            Correction of the divisor of the epistemic variance: 1 divides by K - 1 as in
            AutoDEUQ's Eq. 4. With weights, K is their effective number 1 / sum(w^2). The members'
            disagreement is 0 for one member in both cases.
        """
        factor = epistemic_factor(self.weights, ddof)
        aleatoric, epistemic = self.aleatoric_variance, self.shared_variance
        epistemic = factor * self._disagreement + epistemic
        return Uncertainty(
            self.mean, np.sqrt(aleatoric), np.sqrt(epistemic), np.sqrt(aleatoric + epistemic)
        )

    def to_tfp(self) -> Any:
        """Convert to a TensorFlow Probability distribution, if it has such a one."""
        name = type(self).__name__
        raise NotImplementedError(
            f"TensorFlow Probability has no counterpart of {name}. Use the methods of {name}: "
            "cdf, log_prob, quantile, sample."
        )


def conformal_quantile(
    distribution: Any, scores: np.ndarray, reach: np.ndarray, probability: ArrayLike
) -> np.ndarray:
    """Compute quantiles, as `GaussianMixture.quantile`, that are ends of conformal intervals.

    Intervals are symmetric about the mean. Raise ValueError if the scores are too few for a
    probability.

    Parameters
    ----------
    distribution : Mixture or TwoPieceNormal
        Distribution with calibrated standard deviations.
    scores : ndarray of shape (n_scores,) or (n_scores, m)
        Sorted absolute errors of held-out rows, in predicted standard deviations.
    reach : ndarray of the same shape
        Least coverage of intervals whose half width is the score: increasing, below 1.
    probability : float, or array-like of shape (q,) or that broadcasts to (n, q[, m])
    """
    mean, std = distribution.mean, distribution.std

    def ends(levels: np.ndarray) -> np.ndarray:
        levels = np.broadcast_to(levels, (len(levels), *mean.shape))
        coverage = abs(2 * levels - 1)  # of the central interval that ends at the level
        if scores.ndim == 1:
            radii = _radius(coverage, scores, reach)
        else:
            each = zip(np.moveaxis(coverage, -1, 0), scores.T, reach.T)
            radii = np.stack([_radius(*output) for output in each], axis=-1)
        return mean + np.sign(levels - 0.5) * std * radii

    return ordered_quantiles(ends, mean.shape, probability)


def _radius(coverage: np.ndarray, scores: np.ndarray, reach: np.ndarray) -> np.ndarray:
    """Find the smallest score whose interval has the coverage."""
    at = np.searchsorted(reach, coverage - 1e-9)  # 0.9 of ten rows is nine of them, rounded or not
    if (at >= len(scores)).any():
        raise ValueError(
            f"The calibration rows reach a coverage of {reach[-1]:.4g}. Got "
            f'{coverage.max():.4g}: calibrate on more rows, or take method="scale".'
        )
    return np.asarray(scores[at])
