"""Base classes of distributions, draws of the regression function, and mixtures of classes.

Notation: K members, n rows, m outputs (the last axis is absent where y was 1-D); C classes, whose
entropies are in nats and whose codes (n,) are the positions of the rows' classes.
"""

import copy
import math
from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple, Self, TypeAlias

import numpy as np
from numpy.typing import ArrayLike
from scipy import linalg, special

from skuq import _params
from skuq._params import as_floats, check_member_weights, check_probabilities, read_only_copy
from skuq.files._registry import saved_as

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


class Interval(NamedTuple):
    """Ends of prediction intervals, each of shape (n,) or (n, m), in units of y.

    With k coverages each has the shape (n, k) or (n, k, m).

    Examples
    --------
    >>> import numpy as np
    >>> from skuq.predictive import GaussianMixture
    >>> lower, upper = GaussianMixture(np.array([[0.0]]), np.ones((1, 1))).interval(0.95)
    >>> lower.round(2), upper.round(2)
    (array([-1.96]), array([1.96]))
    """

    lower: np.ndarray
    upper: np.ndarray


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


_FARTHEST_SCORE = 1e100  # normal scores beyond it would overflow when squared


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


def central_interval(quantile: Callable[[np.ndarray], np.ndarray], coverage: ArrayLike) -> Interval:
    """Compute central intervals, as `Continuous.interval` describes them, from quantiles."""
    given = as_floats(coverage, "coverage")
    upper = (1 + given) / 2  # rounds to 1 for the coverage nearest to 1
    if given.ndim > 1 or not given.size or not ((given > 0) & (upper < 1)).all():
        raise ValueError(
            "`coverage` must lie strictly in (0, 1), and be a number or have shape (k,). "
            f"Got {coverage!r}."
        )
    levels = np.stack([(1 - given) / 2, upper])
    # 1 - 0.9 is less than 0.1 in float64: without rounding the end would be another one than
    # the quantile at 0.05 where a distribution function has a step there.
    levels = np.where(np.minimum(levels, 1 - levels) < 1e-12, levels, np.round(levels, 15))
    found = quantile(levels.ravel())
    found = found.reshape(len(found), *levels.shape, *found.shape[2:])
    return Interval(found[:, 0], found[:, 1])


class Continuous:
    """Continuous distribution for every row, given by arrays of parameters.

    A subclass is a frozen dataclass. It defines `_array_kinds`, `mean`, `aleatoric_variance`,
    `epistemic_variance`, `_draw`, and functions of arrays that are broadcast already: `_cdf_at`,
    `_log_prob_at`, `_crps_at` and `_inverse_cdf_at`.
    """

    def __repr__(self) -> str:
        return describe(self, self.rows(slice(3)).mean, n_samples=self._shape[0])

    #: Whether the distribution of each row is one normal.
    is_normal: Any = False

    #: Correlation (m, m) of the outputs' normal scores, given the member; None if independent.
    correlation: np.ndarray | None = None

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

    def crps(self, y: ArrayLike) -> np.ndarray:
        """Compute the continuous ranked probability score of each row and output.

        It is exact. For mixtures it takes time with the square of the number of normals.

        Parameters
        ----------
        y : float or array-like that broadcasts to (n[, m]) or (n, k[, m])
            Observed targets, one of each row, or a table of k values of each row; see `cdf`.

        Returns
        -------
        ndarray of shape (n[, m]), or (n, k[, m]) for a table
            Scores in units of y; smaller is better.
        """
        return self._at_limits(self._crps_at, y)

    @np.errstate(under="ignore")
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

    #: Compute the CRPS (n[, m]) at y (n[, m]).
    _crps_at: Callable[[np.ndarray], np.ndarray]

    #: Invert the cdf at levels (q, n[, m]).
    _inverse_cdf_at: Callable[[np.ndarray], np.ndarray]

    @np.errstate(under="ignore")
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

    def interval(self, coverage: ArrayLike = 0.9) -> Interval:
        """Compute the central interval, with equal probability on either side.

        Parameters
        ----------
        coverage : float or array-like of shape (k,), default=0.9
            Probability of the interval, or of each of k intervals, in (0, 1).

        Returns
        -------
        Interval
            Named pair of the lower and upper ends, each of shape (n[, m]), or (n, k[, m]) for
            several coverages.
        """
        return central_interval(self.quantile, coverage)

    @np.errstate(under="ignore")
    def sample(
        self, n_samples: int = 1, rng: RandomSource = None, seed: int | None = None
    ) -> np.ndarray:
        """Draw jointly for all rows, to shape (n[, m], n_samples).

        A draw is one possible outcome for all rows. They share what is epistemic: one member of a
        mixture or, in distributions of a single model, one normal number of each output for the
        model's part. NEON's has the covariance of its functions instead. The noise is drawn anew
        for every row, and outputs have their `correlation`. Distributions of other rows that draw
        with the same `seed` share what is epistemic, too.
        """
        rng = np.random.default_rng(rng)
        seed = int(rng.integers(2**63)) if seed is None else seed
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
        return getattr(self, next(iter(self._array_kinds))).shape[self._leading_axes :]

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
        return self.with_correlation(None)._map_arrays(lambda array, _: array[..., k])

    def to_tfp(self) -> Any:
        """Convert to a TensorFlow Probability distribution, if it has such a one."""
        name = type(self).__name__
        correlated = "" if self.correlation is None else " with correlated outputs"
        raise NotImplementedError(
            f"TensorFlow Probability has no counterpart of {name}{correlated}. Use the methods of "
            f"{name}: cdf, log_prob, quantile, sample."
        )

    def with_correlation(self, correlation: ArrayLike | None) -> Self:
        """Correlate the outputs, and leave the distribution of each output as it is.

        Parameters
        ----------
        correlation : array-like of shape (m, m) or None
            Positive definite correlation matrix of the outputs' normal scores, given the member
            of a mixture: a Gaussian copula. None makes the outputs independent.
        """
        changed = copy.copy(self)
        vars(changed)["correlation"] = correlation
        changed._check_correlation()
        return changed

    def _check_correlation(self) -> None:
        """Make the correlation a read-only array, and check it."""
        if self.correlation is None:
            return
        found, m = read_only_copy(as_floats(self.correlation, "correlation")), self._shape[1:]
        valid = found.shape == m * 2 and m and np.allclose(found, found.T)
        if not (valid and np.allclose(np.diag(found), 1) and np.linalg.eigvalsh(found)[0] > 0):
            raise ValueError(
                "correlation must be a positive definite correlation matrix, of as many outputs "
                f"as the distribution has. Got {self.correlation!r}."
            )
        vars(self)["correlation"] = found

    def _correlated(self, numbers: np.ndarray) -> np.ndarray:
        """Give independent standard normal numbers (.., m) the outputs' correlation."""
        return correlate(numbers, self.correlation)

    def _log_copula(self, scores: np.ndarray) -> np.ndarray | float:
        """Compute what the correlation adds to the log density, at normal scores (n, m)."""
        if self.correlation is None:
            return 0.0
        scores = np.clip(scores, -_FARTHEST_SCORE, _FARTHEST_SCORE)
        root = np.linalg.cholesky(self.correlation)
        independent = linalg.solve_triangular(root, scores.T, lower=True)  # (m, n)
        squares = (scores**2).sum(axis=1) - (independent**2).sum(axis=0)
        return np.asarray(0.5 * squares - np.log(np.diag(root)).sum())


def epistemic_factor(weights: np.ndarray, ddof: int) -> float:
    """Compute the factor that changes the divisor of a variance of K means from K to K - ddof."""
    if not ddof:
        return 1.0
    if len(weights) == 1:
        return 0.0
    # With the effective number of members, K = 1 / sum(w^2), it is K / (K - 1), or 1 over the sum
    # of w (1 - w). If the largest weight is nearly 1, the difference would lose its digits.
    largest, rest = weights.argmax(), 1 - weights
    rest[largest] = np.delete(weights, largest).sum()
    return float(1 / (weights @ rest))


def describe(distribution: Any, mean: np.ndarray, **sizes: int) -> str:
    """Represent a distribution in one line: its sizes, and the means of its first three rows."""
    shown = "".join(f"{name}={size}, " for name, size in sizes.items())
    options: Any = {"precision": 4, "separator": ", ", "threshold": 12, "max_line_width": np.inf}
    first = np.array2string(mean, **options).replace("\n", "")
    return f"{type(distribution).__name__}({shown}mean[:3]={first})"


def check_parameters(*leading: str, **arrays: ArrayLike) -> list[np.ndarray]:
    """Check that arrays have one shape, `leading` axes, rows and perhaps outputs, and copy them.

    Leading axes are not empty. An array named `scale` must be positive. Copies are read-only.
    """
    checked = {name: read_only_copy(array) for name, array in arrays.items()}
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


def correlate(numbers: np.ndarray, correlation: np.ndarray | None) -> np.ndarray:
    """Give independent standard normal numbers (.., m) this correlation (m, m), if any."""
    return numbers if correlation is None else numbers @ np.linalg.cholesky(correlation).T


def normal_levels(scores: np.ndarray) -> np.ndarray:
    """Compute the levels of normal scores, strictly between 0 and 1, as quantiles need them."""
    return np.clip(special.ndtr(scores), np.finfo(float).tiny, 1 - np.finfo(float).epsneg)


class Mixture(Continuous):
    """Mixture of K members' distributions for every row; rows share the weights.

    Given the member, outputs are independent, unless the mixture has a `correlation`.

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

    def __repr__(self) -> str:
        sizes = {"n_samples": self._shape[0], "n_members": len(self.weights)}
        return describe(self, self.rows(slice(3)).mean, **sizes)

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
        raise _params.CoverageError(
            f"The calibration rows reach a coverage of {reach[-1]:.4g}. Got "
            f'{coverage.max():.4g}: calibrate on more rows, or take method="scale".'
        )
    return np.asarray(scores[at])


# Numbers of draws computed at a time. Hidden layers need about 30 times as many numbers.
_ENTRIES_PER_CHUNK = 2**20


@dataclass(frozen=True, eq=False)
class Posterior:
    """Draws of a fitted regressor's function, at any inputs and in any array library.

    `arguments` holds everything that changes from fit to fit. `function` stays the same, so that
    a program compiled from it can be used again after every later fit.

    Parameters
    ----------
    function : callable
        ``(xp, arguments, X) -> draws`` of shape ``(n_draws, n, *output_shape)``, for X of shape
        (n, n_features) in the user's units; draws are in units of y. `xp` is `numpy` (arrays
        in float64) or `keras.ops` (tensors, all in float32 or all in float64). The same X gives
        the same draws, and a row's draws do not depend on the other rows.
    arguments : tuple of ndarray
        Everything that changes from fit to fit: weights, scalers, indices.
    key : hashable or None
        Identity of the function: posteriors with equal keys have the same function. None means
        that `function` works in NumPy only, so that there are no exact gradients.
    n_draws : int
        Number of draws, at least 1.
    output_shape : tuple of int
        Shape of one row's output: () for one number, (q,) or (q, d_s) for function values.
    joint : bool, default=True
        Whether draws are from the joint distribution over rows. False if only the marginal
        distributions are right, for example if a draw is the mean plus a multiple of the standard
        deviation, with the same multiple for all rows.

    Raises
    ------
    TypeError
        If `function` is not callable, or `key` is not hashable.
    ValueError
        If `n_draws` is below 1.

    Examples
    --------
    >>> import numpy as np
    >>> from skuq.predictive import Posterior
    >>> slopes = np.array([1.0, 3.0])
    >>> lines = Posterior(
    ...     lambda xp, arguments, X: arguments[0][:, None] * X[:, 0],
    ...     arguments=(slopes,), key="lines", n_draws=2, output_shape=(),
    ... )
    >>> lines([[1.0], [2.0]])
    array([[1., 2.],
           [3., 6.]])
    """

    function: Callable[..., Any]
    arguments: tuple[np.ndarray, ...]
    key: Hashable | None
    n_draws: int
    output_shape: tuple[int, ...] = ()
    joint: bool = True

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise TypeError(f"function must be callable. Got {self.function!r}.")
        hash(self.key)
        if self.n_draws < 1:
            raise ValueError(f"n_draws must be at least 1. Got {self.n_draws}.")
        arguments = tuple(np.asarray(argument) for argument in self.arguments)
        vars(self).update(arguments=arguments, output_shape=tuple(self.output_shape))

    @np.errstate(under="ignore")
    def __call__(self, X: ArrayLike) -> np.ndarray:
        """Evaluate the draws at the rows of X, in NumPy.

        Parameters
        ----------
        X : array-like of shape (n, n_features)
            Inputs in the user's units.

        Returns
        -------
        ndarray of shape ``(n_draws, n, *output_shape)``
            Draws in float64, in units of y.

        Raises
        ------
        ValueError
            If X is not two-dimensional, or `function` returns another shape.
        """
        X = np.asarray(X, dtype="float64")
        if X.ndim != 2:
            raise ValueError(f"X must have shape (n, n_features). Got {X.shape}.")
        # Rows can be computed in chunks, since their draws do not depend on other rows.
        step = max(1, _ENTRIES_PER_CHUNK // max(1, self.n_draws * math.prod(self.output_shape)))
        parts = []
        for start in range(0, max(1, len(X)), step):
            rows = X[start : start + step]
            draws = np.asarray(self.function(np, self.arguments, rows), dtype="float64")
            expected = (self.n_draws, len(rows), *self.output_shape)
            if draws.shape != expected:
                raise ValueError(
                    "function must return draws of shape (n_draws, n, *output_shape) = "
                    f"{expected}. Got {draws.shape}."
                )
            parts.append(draws)
        return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)


# The smallest normal number; subnormal numbers can be flushed to 0.
_SMALLEST = np.finfo(float).tiny


@saved_as("predictive.CategoricalMixture")
@dataclass(frozen=True, eq=False, repr=False)
class CategoricalMixture:
    """Mixture of K distributions over C classes for every row; rows share the weights.

    Parameters
    ----------
    proba : ndarray of shape (K, n, C)
        Class probabilities of the members. Each row must sum to 1 within 1e-6; it is not
        normalised.
    weights : ndarray of shape (K,), optional
        Positive weights of the members, summing to 1; equal by default.

    Raises
    ------
    ValueError
        If proba has another shape, a row of it is not a distribution, or weights do not
        sum to 1.

    References
    ----------
    Zaidi et al., "Neural Ensemble Search", section 3.1 (the average of the members'
    outputs); Lakshminarayanan et al. (2017), section 2.4. Entropies by source: Depeweg
    et al. (2018), "Decomposition of Uncertainty in Bayesian Deep Learning".

    Examples
    --------
    >>> import numpy as np
    >>> torn = CategoricalMixture(np.array([[[1.0, 0.0]], [[0.0, 1.0]]]))
    >>> torn.mean, torn.std
    (array([[0.5, 0.5]]), array([[0.5, 0.5]]))

    Each member is certain of a different class: all of the log(2) nats are epistemic.

    >>> total, aleatoric, epistemic = torn.uncertainty()
    >>> aleatoric, epistemic.round(4)
    (array([0.]), array([0.6931]))
    """

    proba: np.ndarray
    weights: np.ndarray = FILLED_IN

    def __post_init__(self) -> None:
        proba = read_only_copy(self.proba)
        if proba.ndim != 3 or not len(proba) or not proba.shape[2]:
            raise ValueError(
                f"proba must have shape (n_members, n_samples, n_classes). Got {proba.shape}."
            )
        check_probabilities("Each row of proba", proba, axis=2)
        weights = check_member_weights(self.weights, len(proba), positive=True, tolerance=1e-9)
        vars(self).update(proba=proba, weights=weights)

    def __repr__(self) -> str:
        n_members, n_samples, _ = self.proba.shape
        return describe(self, self.mean[:3], n_samples=n_samples, n_members=n_members)

    def _average(self, values: np.ndarray) -> np.ndarray:
        """Average (K, ..) over the members, with their weights."""
        return np.tensordot(self.weights, values, axes=1)

    @property
    def mean(self) -> np.ndarray:
        """Averaged probabilities, of shape (n, C)."""
        return self._average(self.proba)

    @property
    def log_mean(self) -> np.ndarray:
        """Logarithm of `mean`, of shape (n, C), in nats; at least -708.4 instead of -inf."""
        return np.log(np.maximum(self.mean, _SMALLEST))

    @property
    def mode(self) -> np.ndarray:
        """Code of the class with the largest averaged probability, of shape (n,).

        Of several equal probabilities, the first class is taken.
        """
        return self.mean.argmax(axis=1)

    @property
    def std(self) -> np.ndarray:
        """Standard deviation of each class' probability over members, of shape (n, C).

        The divisor is K, so that one member gives 0.
        """
        return np.sqrt(self._average((self.proba - self.mean) ** 2))

    @np.errstate(under="ignore")
    def uncertainty(self) -> ClassUncertainty:
        """Compute the entropy of the averaged probabilities, by source.

        Returns
        -------
        ClassUncertainty
            Named tuple of total, aleatoric and epistemic entropy, each of shape (n,), in nats and
            never negative; ``total == aleatoric + epistemic``.
        """
        # Rounding could make both parts negative, and so could rows that sum to just above 1.
        aleatoric = np.maximum(self._average(special.entr(self.proba).sum(axis=2)), 0)
        # The mutual information is computed as a mean Kullback-Leibler divergence from the
        # average, because a difference of entropies cancels for members that nearly agree.
        # Subtracting p - mean, which averages to 0, makes each term non-negative and removes the
        # effect of rounding in the mean. The floor is for means of subnormal numbers, which can
        # round to 0.
        mean = self.mean
        terms = special.rel_entr(self.proba, np.maximum(mean, _SMALLEST)) - (self.proba - mean)
        divergence = terms.sum(axis=2)  # (K, n)
        epistemic = np.maximum(self._average(divergence), 0)
        # The total is the sum of its parts, so that they add up exactly.
        return ClassUncertainty(aleatoric + epistemic, aleatoric, epistemic)

    def log_prob(self, codes: ArrayLike) -> np.ndarray:
        """Compute the log of the averaged probability of each row's class, of shape (n,).

        Parameters
        ----------
        codes : array-like of int of shape (n,)
            Classes as integers in [0, C).

        Returns
        -------
        ndarray of shape (n,)
            Log probabilities in nats; about -708 instead of -inf for a probability of 0.

        Raises
        ------
        ValueError
            If codes are not n integers in [0, C).
        """
        codes = np.asarray(codes)
        _, n, n_classes = self.proba.shape
        integers = codes.shape == (n,) and codes.dtype.kind in "iu"
        if not integers or ((codes < 0) | (codes >= n_classes)).any():
            raise ValueError(f"codes must be {n} integers in [0, {n_classes}). Got {codes}.")
        return self.log_mean[np.arange(n), codes]

    def sample(
        self, n_samples: int = 1, rng: RandomSource = None, seed: int | None = None
    ) -> np.ndarray:
        """Draw class codes jointly for all rows, to shape (n, n_samples).

        Each draw takes one member for all rows, so that they depend on each other as the member
        predicts. Given the member, the classes of rows are drawn independently. Distributions of
        other rows that draw with the same `seed` take the same members.
        """
        rng = np.random.default_rng(rng)
        members = rng if seed is None else np.random.default_rng(seed)
        cdf = self.proba.cumsum(axis=2)
        # Make the cdf exactly 1 from the last possible class on: no impossible class is drawn.
        cdf /= cdf[..., -1:]
        member = members.choice(len(self.weights), size=n_samples, p=self.weights)
        uniform = rng.random((n_samples, cdf.shape[1]))
        codes = np.zeros(uniform.shape, dtype=int)
        # Loop over classes, because all at once would need an array of (n_samples, n, C).
        for edge in np.moveaxis(cdf[..., :-1], 2, 0):  # (K, n)
            codes += edge[member] <= uniform
        return codes.T

    def to_tfp(self) -> Any:
        """Convert to a TensorFlow Probability distribution with a batch of n independent rows."""
        from skuq.backend import tfd

        members = tfd.Categorical(probs=np.moveaxis(self.proba, 0, 1))  # (n, K, C)
        return tfd.MixtureSameFamily(tfd.Categorical(probs=self.weights), members)


_LEAST_PROBABILITY = np.finfo(float).eps  # that a temperature can work on


def scaled_probabilities(proba: np.ndarray, slope: float) -> np.ndarray:
    """Multiply the logarithms of probabilities (n, C) by a slope, and normalise.

    A probability of 0 counts as 2e-16, because a class that a neighbourhood or a tree has not seen
    is not impossible.
    """
    return np.asarray(
        special.softmax(slope * np.log(np.maximum(proba, _LEAST_PROBABILITY)), axis=-1)
    )
