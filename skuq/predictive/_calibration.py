"""The numbers of a calibration, and how they change what the members of an ensemble predict.

Notation: K members, J normals of each, n rows, m outputs, S scales of the tail.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from scipy import optimize, special

from skuq.files._registry import saved_as
from skuq.predictive._classes import scaled_probabilities
from skuq.predictive._distributions import Mixture
from skuq.predictive._two_piece import TwoPieceNormal

_MOST_SHARED = 0.95  # largest epistemic part of a normal's standard deviation
#: Keeps the gradient of a root finite at 0.
ROOT_FLOOR = 1e-30


@saved_as("predictive.Calibration")
@dataclass(frozen=True)
class Calibration:
    """Numbers that calibrate what an ensemble predicts; the defaults change nothing.

    All are in units of the standardised y. Regressors use the first five, classifiers the others.

    Attributes
    ----------
    factor, floor : float
        Factor of all standard deviations, and a standard deviation added to each member's noise in
        quadrature.
    shared : float
        Standard deviation of the errors that members share, in standard deviations of their means.
        It changes how much of the uncertainty is epistemic, but not the distribution.
    most_noise : tuple of float
        Largest variance of the noise of each output, where training rows show how large it is; more
        is epistemic. Empty leaves the noise as it is.
    tail : tuple of (float, float, float)
        Scale, floor and share of the distributions of which each member's is then mixed; none if
        it stays as it is. The floors are epistemic.
    temperature : float
        Number by which the networks' logits are divided.
    constant : tuple of float
        Probabilities of the classes that are added to those of the networks, which are multiplied
        by what is left to 1. Empty adds none.
    """

    factor: float = 1.0
    floor: float = 0.0
    shared: float = 0.0
    most_noise: tuple[float, ...] = ()
    tail: tuple[tuple[float, float, float], ...] = ()
    temperature: float = 1.0
    constant: tuple[float, ...] = ()

    @property
    def arrays(self) -> NumberArrays | None:
        """The numbers for regressors as arrays; None if they change nothing."""
        found = self.factor, self.floor, self.shared
        if not (self.tail or self.most_noise) and found == (1.0, 0.0, 0.0):
            return None
        tail = np.transpose(self.tail or [(1.0, 0.0, 1.0)])
        limits = np.array(self.most_noise or [np.inf])
        return NumberArrays(*[*np.array(found), limits, *tail])

    @property
    def shares_errors(self) -> bool:
        """Whether a part of the members' own distributions is epistemic."""
        has_floors = any(floor > 0 for _, floor, _ in self.tail)
        return self.shared > 0 or bool(self.most_noise) or has_floors


#: Changes nothing.
UNCALIBRATED = Calibration()


class NumberArrays(NamedTuple):
    """Numbers of a `Calibration` of normals, as arrays or tensors."""

    factor: Any
    floor: Any
    shared: Any
    most_noise: Any  # (m,)
    scales: Any  # (S,) of the tail
    floors: Any  # (S,)
    shares: Any  # (S,)


def calibrate_normals(
    normals: tuple[Any, Any, Any], weights: Any, arrays: NumberArrays | None, xp: Any = np
) -> tuple[tuple[Any, Any, Any], Any]:
    """Calibrate the normals (K, J, n, m) of members, in units of the standardised y.

    Means are stretched about the mixture's mean by the factor a, variances become
    ``a**2 * variance + floor**2``, and each member is mixed of itself, stretched about its own mean
    to the scales of the tail, with the tail's floors. Return the normals, and the part of each
    standard deviation that is epistemic: `shared` times the standard deviation of the members'
    means as they were, the tail's floor, and the noise beyond `most_noise`, but at most 0.95 of the
    normal's own, since each keeps some noise. Where noise exceeds `most_noise`, the normals of a
    member get nearer to each other and wider, so that its variance stays. Without `arrays` nothing
    changes.
    """
    if arrays is None:
        return normals, 0.0
    loc, scale, probability = normals
    factor, floor, shared, most_noise, scales, floors, shares = arrays
    mean = xp.sum(probability * loc, axis=1)
    centre = xp.tensordot(weights, mean, axes=1)
    variance = xp.tensordot(weights, xp.square(mean - centre), axes=1)
    # Symbolic tensors of Keras stand to the left of numbers.
    mean = ((mean - centre) * factor + centre)[:, None]
    loc = (loc - centre) * factor + centre
    scale = xp.sqrt(xp.square(scale * factor) + floor**2)
    apart = xp.sum(probability * xp.square(loc - mean), axis=1, keepdims=True)
    noise = xp.sum(probability * (xp.square(scale) + apart), axis=1)
    ratio = xp.maximum(xp.tensordot(weights, noise, axes=1) / most_noise, 1.0)
    excess = 1 - 1 / ratio
    loc = (loc - mean) / xp.sqrt(ratio) + mean
    scale = xp.sqrt(xp.square(scale) + apart * excess)
    tail = range(scales.shape[0])
    loc = xp.concatenate([(loc - mean) * scales[s] + mean for s in tail], axis=1)
    widths = [xp.sqrt(xp.square(scale * scales[s]) + floors[s] ** 2) for s in tail]
    unknown = xp.square(scale) * excess  # noise that no training row has shown
    errors = [
        xp.sqrt(variance * shared**2 + unknown * scales[s] ** 2 + (floors[s] ** 2 + ROOT_FLOOR))
        for s in tail
    ]
    probability = xp.concatenate([probability * shares[s] for s in tail], axis=1)
    parts = [xp.minimum(error, width * _MOST_SHARED) for error, width in zip(errors, widths)]
    return (loc, xp.concatenate(widths, axis=1), probability), xp.concatenate(parts, axis=1)


def calibrated_moments(
    normals: tuple[Any, Any, Any], weights: Any, arrays: NumberArrays | None, xp: Any
) -> tuple[Any, Any, Any]:
    """Compute the moments of calibrated normals (K, J, n, m), arrays or tensors.

    Returns means and variances of the members' noise, (K, n, m) each, and the variance (n, m) of
    the errors that they share.
    """
    (loc, scale, probability), part = calibrate_normals(normals, weights, arrays, xp)
    mean = xp.sum(probability * loc, axis=1)
    variance = xp.square(scale) + xp.square(loc - mean[:, None])
    # Means move by the average of their components.
    moved = xp.square(xp.sum(probability * part, axis=1))
    noise = xp.sum(probability * variance, axis=1) - moved
    return mean, noise, xp.tensordot(weights, moved, axes=1)


SMALLEST_UNCERTAINTY = 1e-150  # of a model that claims to be certain; its square is not yet 0
_LEAST_DENSITY = np.finfo(float).tiny  # of which a logarithm is taken
_STEP = 0.1  # of a factor's logarithm, for differences in place of derivatives
_SMALLEST_SPREAD = 1e-6  # variance of the logarithms of groups' variances that counts as none


def fit_std_factor(
    mixtures: Sequence[Mixture | TwoPieceNormal],
    ys: Sequence[np.ndarray],
    weights: Sequence[np.ndarray],
) -> float:
    """Fit the factor c of all standard deviations by maximum likelihood.

    Each set of rows has its own mixtures, targets and weights, as the folds of a cross-validation
    do. With a single normal for each row, c is ``sqrt(mean(((y - mean) / std) ** 2))``. The
    likelihood of mixtures can have several maxima, so that c is searched from a grid. If all errors
    are 0, c is 1.

    References
    ----------
    Heiss et al., "NOMU", section 4.1.2 and appendix B.2.1 (NLL_min).
    """
    weight = np.concatenate(weights)
    errors = np.concatenate([abs(y - m.mean) / m.std for m, y in zip(mixtures, ys)])
    moment = root_mean_square(errors, weight)
    if moment == 0:
        return 1.0
    # One normal for each row: the maximum has a closed form.
    if all(m.is_normal for m in mixtures):
        return moment

    def nll(log_c: float) -> float:
        scaled = (m.scaled(np.exp(log_c)) for m in mixtures)
        return -sum(w @ s.log_prob(y) for s, y, w in zip(scaled, ys, weights))

    # The search begins at the best point of a coarse grid. Moments alone would start it far from
    # the maximum if one member has a very large standard deviation.
    start = np.log(moment)
    grid = np.unique(
        np.concatenate([np.linspace(min(start, 0) - 2, max(start, 0) + 2, 25), [0.0, start]])
    )
    return float(np.exp(minimise(nll, grid)))


def shrink_std_factor(
    mixtures: Sequence[Mixture | TwoPieceNormal],
    ys: Sequence[np.ndarray],
    weights: Sequence[np.ndarray],
    factor: float,
) -> float:
    """Shrink the most likely factor of all standard deviations towards 1, by its own error.

    The logarithm of the factor is multiplied by ``1 - (2 * error / logarithm)**2``, or by 0 where
    that is negative (the non-negative garrote). Hence a factor within two standard errors of 1 is
    1, and one that is clearly different hardly changes. The standard error stays right if errors
    have heavier tails than predicted (White's sandwich): a factor that depends on a few large
    errors has a large one.

    References
    ----------
    Breiman (1995), "Better Subset Regression Using the Nonnegative Garrote"; White (1982), "Maximum
    Likelihood Estimation of Misspecified Models".
    """
    if factor == 1:
        return 1.0

    def log_density(step: float) -> np.ndarray:
        scaled = (m.scaled(factor * np.exp(step)) for m in mixtures)
        return np.concatenate([s.log_prob(y) for s, y in zip(scaled, ys)])

    weight = np.concatenate(weights)
    below, middle, above = (log_density(step) for step in (-_STEP, 0.0, _STEP))
    # Derivatives by the logarithm of the factor. The step also smooths densities that have jumps.
    score = (above - below) / (2 * _STEP)
    curvature = weight @ (2 * middle - below - above) / _STEP**2
    if curvature <= 0:  # too few rows to tell how certain the factor is
        return factor
    error = np.sqrt(weight @ score**2) / curvature  # a row of weight 2 counts as two rows
    return float(factor ** max(0.0, 1 - (2 * error / np.log(factor)) ** 2))


def fit_scales(
    mixtures: Sequence[Any], y: np.ndarray, weight: np.ndarray, *, conformal: bool = False
) -> tuple[Any, ...]:
    """Fit a factor of the standard deviations of each output and, if `conformal`, the scores.

    Returns the factor (m,), or a number, and with `conformal` the sorted absolute errors in
    calibrated standard deviations, and the coverage of intervals of each; see `conformal_quantile`.

    Parameters
    ----------
    mixtures : sequence of distributions
        Predictions, fold by fold.
    y : ndarray of shape (n[, m])
        Truths, in the order of the folds.
    weight : ndarray of shape (n,)
        Positive weights. Those of a row that repeated folds predict several times add up to the
        row's own.
    conformal : bool, default=False
    """
    single = y.ndim == 1
    ends = np.cumsum([len(mixture.mean) for mixture in mixtures])[:-1]
    outputs = [
        _fit_scale_of_output(
            [m if single else m.output(k) for m in mixtures],
            np.split(y if single else y[:, k], ends),
            np.split(weight, ends),
            conformal,
        )
        for k in range(1 if single else y.shape[1])
    ]
    scale, *scores = (part[0] if single else np.stack(part, axis=-1) for part in zip(*outputs))
    return float(scale) if single else scale, *scores


def _fit_scale_of_output(
    mixtures: Sequence[Any],
    ys: Sequence[np.ndarray],
    weights: Sequence[np.ndarray],
    conformal: bool,
) -> tuple[Any, ...]:
    """Fit the factor of one output and, if `conformal`, the scores and their coverage."""
    scale = fit_std_factor(mixtures, ys, weights)
    if not all((m.std == 1).all() for m in mixtures):
        scale = shrink_std_factor(mixtures, ys, weights, scale)
    elif not any((y != m.mean).any() for m, y in zip(mixtures, ys)):
        scale = SMALLEST_UNCERTAINTY  # a regressor without uncertainty that makes no errors
    if not conformal:
        return (scale,)
    scaled = [mixture.scaled(scale) for mixture in mixtures]
    errors = np.concatenate([abs(y - m.mean) / m.std for m, y in zip(scaled, ys)])
    weight, order = np.concatenate(weights), np.argsort(errors)
    # The new row has weight 1 and an unknown error: it counts as outside (Lei et al., 2018).
    return scale, errors[order], np.cumsum(weight[order]) / (weight.sum() + 1)


def fit_temperature(probas: np.ndarray, codes: np.ndarray, weights: np.ndarray) -> float:
    """Fit the temperature T of averaged probabilities by maximum likelihood (Guo et al., 2017).

    The prior of log(T) is standard normal. Without it T would be 0 if every row's class is the most
    probable one, and a few such rows do not show that the classifier never errs.
    """
    rows = np.arange(len(codes))

    def nll(log_t: float) -> float:
        proba = scaled_probabilities(probas, 1 / np.exp(log_t))[rows, codes]
        # Minus the log prior of log(T), plus the NLL.
        return 0.5 * log_t**2 - weights @ np.log(np.maximum(proba, _LEAST_DENSITY))

    # Unimodal in 1 / T, as logistic regression with one coefficient is.
    return float(np.exp(optimize.minimize_scalar(nll, bounds=(-4, 4), method="bounded").x))


def root_mean_square(values: np.ndarray, weights: np.ndarray) -> float:
    """Compute the root mean square of values (n[, m]), whose squares may overflow or vanish."""
    largest = abs(values).max()
    if largest == 0:
        return 0.0
    squares = ((values / largest) ** 2).reshape(len(values), -1).mean(axis=1)
    return float(largest * np.sqrt(np.average(squares, weights=weights)))


def minimise(loss: Callable[[float], float], grid: np.ndarray) -> float:
    """Minimise a scalar function: grid search, then refinement."""
    losses = [loss(x) for x in grid]
    best = int(np.argmin(losses))
    # The neighbours of the best grid point bracket a minimum.
    ends = grid[max(best - 1, 0)], grid[min(best + 1, len(grid) - 1)]
    found = optimize.minimize_scalar(loss, bounds=ends, method="bounded")
    # The bounded search compares no values at the ends and may stop above the grid's best.
    return float(found.x if found.fun < losses[best] else grid[best])


def pool_variances(variances: np.ndarray, degrees: np.ndarray) -> np.ndarray:
    """Shrink the variances of groups towards a common one, by empirical Bayes.

    The true variances have a scaled inverse chi-square prior, and their estimates (G,) have the
    given degrees of freedom (G,). The two parameters of the prior are found from the mean and the
    variance of the logarithms. Groups that differ by no more than chance get one variance. A
    variance of 0 counts as unknown for the prior.

    References
    ----------
    Smyth (2004), "Linear models and empirical Bayes methods for assessing differential expression
    in microarray experiments", section 6.2.
    """
    used = variances > 0
    if used.sum() < 2:
        return np.full(len(variances), variances.max())
    half = 0.5 * degrees[used]
    # Unbiased logarithms of the variances, and the variances of their errors (Smyth, 6.2).
    logs = np.log(variances[used]) - special.digamma(half) + np.log(half)
    noise = special.polygamma(1, half)
    weight = 1 / (noise + 0.1)  # small for groups of few rows, which say little of the prior
    weight /= weight.sum()
    centre = weight @ logs
    # The weighted variance about the weighted mean has the expectation
    # sum w (1 - w) (spread + noise).
    share = weight * (1 - weight)
    spread = (weight @ (logs - centre) ** 2 - share @ noise) / share.sum()
    if spread < _SMALLEST_SPREAD:
        return np.full(len(variances), np.average(variances[used], weights=degrees[used]))
    # Half of the prior's degrees of freedom: where trigamma is the spread.
    prior = np.exp(
        optimize.brentq(lambda log_x: special.polygamma(1, np.exp(log_x)) - spread, -20, 20)
    )
    # The logarithm of a scaled inverse chi-square of d0 degrees has the variance trigamma(d0 / 2)
    # and the mean log(typical) - digamma(d0 / 2) + log(d0 / 2).
    typical = np.exp(centre + special.digamma(prior) - np.log(prior))
    # The posterior mean: prior and estimate weighted by their degrees of freedom.
    averaged: np.ndarray = (2 * prior * typical + degrees * variances) / (2 * prior + degrees)
    return averaged


_FEWEST_ROWS = 30  # with fewer, neither factors nor a floor are fitted
# Prior of the factors of noise and model: its precision, and the logarithms of the squared factors.
# Errors of the ensemble's mean are 1.3 times its members' spread on problems of all kinds.
_PART_PRECISION, _PART_CENTRE = 20.0, (0.0, 2 * math.log(1.3))
_PRIOR_ROWS = 100  # weight of "no correction", in rows
_LARGE_CHANGE = 0.3  # of the logarithms of standard deviations; rows then count twice
_LOG_FACTORS = (-3.0, 3.0, 13)  # at which the likelihood of mixtures is looked at first
_FLOOR_SHARES = (0.25, 0.5, 1.0)  # of the floor of moments, which are looked at
_MOST_FACTOR_ROWS = 1000  # that fit the factor of mixtures
_BOUNDS = [(-6.0, 6.0), (-20.0, 6.0)]  # of the logarithms of the squared factor and floor
_FLOORS = (-8.0, -4.0, -1.0)  # where the search for the second begins

# The defensive component: its share where no row has been held out, the number of rows in which
# that falls by a factor of e, and the rows that y's own spread counts as in its width.
_DEFENSIVE_SHARE, _DEFENSIVE_ROWS, _SPREAD_ROWS = 0.4, 40, 8

_NOISY_SHARE = 0.99  # of the rows, those with less noise than `limit_noise` finds
_LEAST_RATIO = 1e-30  # of variances, of which a logarithm is taken

# Relative scales of the tail, and their shares where no row has told: few errors are large. The
# largest bounds what one row can cost; more scales than these did not improve any score.
TAIL_SCALES = (0.7, 1.0, 3.0)
_TAIL_PRIOR = np.array([0.0, 0.99, 0.01])
_TAIL_STEPS = 200  # of expectation maximisation
_SMALLEST_SHARE = 1e-4  # of a scale that is worth its time in predictions


def fit_out_of_bag(
    loc: np.ndarray,
    scale: np.ndarray,
    probability: np.ndarray,
    member_weights: np.ndarray,
    unseen: np.ndarray,
    y: np.ndarray,
    weight: np.ndarray,
) -> Calibration:
    """Fit the calibration of an ensemble on rows that members have not seen.

    A row's prediction is that of the members that have not trained on it. Under the factor a and
    the floor b its errors are most likely to come from normals of variance
    ``a**2 * total**2 + b**2``. The total is the noise of these members, and the variance of all
    members' means. If members are mixtures, factor and floor are then those under
    which y is most likely to come from the mixtures themselves: wide components of little
    probability have a large part in a variance, and hardly any in where most values lie. The tail
    gives the calibrated distribution the shape of the errors, see `fit_tail`.

    Few rows cannot tell whether the ensemble is far too sure. A defensive component (Hesterberg
    1995) bounds what that costs: each member is also mixed of itself with a floor, which is the
    root mean square of the errors, shrunk towards the standard deviation of y in its logarithm.
    The floor is epistemic. The component's share starts at 0.4 and falls by a factor of e every 40
    rows, so that nothing of it is left with some hundred rows.

    Priors protect ensembles with few rows. ``log(a**2)`` is standard normal. The fitted variance is
    averaged with the predicted one, which counts as much as 100 rows, or fewer if the fitted one is
    far smaller, see `_trust`.

    This calibrates the sum of noise and model. How much of it is the model's shows in how errors
    grow with the members' disagreement: they are most likely to come from normals of variance
    ``u**2 * noise + v**2 + c**2 * spread``, where the spread is the variance of the members' means.
    Errors that all members share make c larger than a. Some hundred errors hardly tell u and c, so
    the logarithms of their squares have a twentieth of the variance of that of a, about 1 and 1.3:
    the latter is the error of the mean over the spread on functions that are known. This tells the
    noise from the model, and leaves the sum as it is.

    Parameters
    ----------
    loc, scale, probability : ndarray of shape (K, J, n, m)
        Normals of the members, and their probabilities.
    member_weights : ndarray of shape (K,)
        Positive weights of the members, summing to 1.
    unseen : ndarray of bool of shape (K, n)
        Whether a member has not trained on a row.
    y : ndarray of shape (n, m)
    weight : ndarray of shape (n,)
        Non-negative.

    Returns
    -------
    Calibration
        Its factor is 1 and its floor 0 if there are fewer than 30 rows. It has no tail without rows
        or if errors are not finite. `shared` is ``sqrt(c**2 - a**2)``, or 0 where c is smaller or
        there are few rows.

    References
    ----------
    Hesterberg (1995), "Weighted Average Importance Sampling and Defensive Mixture Distributions".
    """
    # Rows that all members have trained on say nothing about new rows.
    used = unseen.any(axis=0) & (weight > 0)
    n_rows = int(used.sum())
    if n_rows == 0:
        return UNCALIBRATED
    loc, scale, probability = (part[:, :, used] for part in (loc, scale, probability))
    y, weight, unseen = y[used], weight[used], unseen[:, used]
    # Weights (K, n, 1) of the members that have not trained on the row.
    share = member_weights[:, None, None] * unseen[..., None]
    share = share / share.sum(axis=0)
    means = (probability * loc).sum(axis=1)  # (K, n, m)
    centre = (share * means).sum(axis=0)
    noise = (probability * (scale**2 + (loc - means[:, None]) ** 2)).sum(axis=1)
    # The spread is that of all members: a single unseen member would have none.
    spread = np.tensordot(member_weights, (means - np.tensordot(member_weights, means, 1)) ** 2, 1)
    noise = (share * noise).sum(axis=0)
    factor, floor = fit_scale((y - centre) ** 2, noise + spread, weight)
    # The unseen members' means differ by less than those of all members: widen each normal by the
    # rest of the spread.
    hidden = np.maximum(spread - (share * (means - centre) ** 2).sum(axis=0), 0)
    chance = probability * share[:, None]

    def log_density(a: float, b: float, scales: Sequence[float], step: int = 1) -> np.ndarray:
        """Compute log densities (S, n, m); each scale is about a member's own mean."""
        at = np.s_[:, :, ::step]
        width = np.sqrt(a**2 * (scale[at] ** 2 + hidden[::step]) + b**2)
        error = (y - centre - a * (means - centre))[:, None][at]
        inner = a * (loc - means[:, None])[at]
        return np.stack(
            [
                special.logsumexp(
                    -0.5 * ((error - c * inner) / (c * width)) ** 2 - np.log(c * width),
                    axis=(0, 1),
                    b=chance[at],
                )
                for c in scales
            ]
        )

    if n_rows >= _FEWEST_ROWS and loc.shape[1] > 1:
        factor, floor = _fit_mixtures(log_density, noise + spread, weight, (factor, floor))
    shared = 0.0
    if n_rows >= _FEWEST_ROWS and (spread > 0).any():
        # The prior keeps the members' own split if the errors say little about the parts.
        parts = _fit_variances(
            (y - centre) ** 2, [noise, spread], weight, _PART_PRECISION, _PART_CENTRE
        )
        shared = math.sqrt(max(parts[1] - factor**2, 0.0))
    shares = fit_tail(log_density(factor, floor, TAIL_SCALES), weight)
    mean_square = np.average((y - centre) ** 2, axis=0, weights=weight).mean()
    # The defensive component, and the tail without components of no share.
    reserve = _DEFENSIVE_SHARE * math.exp(-n_rows / _DEFENSIVE_ROWS)
    if reserve < _SMALLEST_SHARE or not shares:
        reserve = 0.0
    width = float(mean_square ** (0.5 * n_rows / (n_rows + _SPREAD_ROWS)))
    tail = [(c, 0.0, share * (1 - reserve)) for c, share in zip(TAIL_SCALES, shares)]
    tail.append((1.0, width, reserve))
    return Calibration(factor, floor, shared, tail=tuple(part for part in tail if part[2] > 0))


def _fit_mixtures(
    log_density: Callable[..., np.ndarray],
    total: np.ndarray,
    weight: np.ndarray,
    moments: tuple[float, float],
) -> tuple[float, float]:
    """Fit the factor and the floor of `fit_out_of_bag` to the densities of mixtures.

    The prior is that of `fit_scale`, and the tail is as it is before any row has told. The floor is
    at most that of the moments. The moments stay if no density is finite.
    """
    n_rows, used = len(weight), _TAIL_PRIOR > 0
    scales, shares = np.array(TAIL_SCALES)[used], _TAIL_PRIOR[used][:, None, None]
    step = -(-n_rows // _MOST_FACTOR_ROWS)  # so many rows tell a factor to two hundredths
    rows = weight[::step] / weight[::step].sum()

    def loss(log_a: float, b: float) -> float:
        density = log_density(math.exp(log_a), b, scales, step)
        density = special.logsumexp(density, axis=0, b=shares).mean(axis=1)
        return float(0.5 * (2 * log_a) ** 2 / n_rows - rows @ density)

    grid = np.linspace(*_LOG_FACTORS)
    floors = np.unique([0.0, *(moments[1] * np.array(_FLOOR_SHARES))])
    fits = [(minimise(functools.partial(loss, b=float(b)), grid), float(b)) for b in floors]
    log_a, floor = min(fits, key=lambda fit: loss(*fit))
    if not math.isfinite(loss(log_a, floor)):
        return moments
    square = math.exp(2 * log_a)
    return math.sqrt(1 + _trust(square, floor**2, total, weight) * (square - 1)), floor


def limit_noise(
    components: tuple[np.ndarray, np.ndarray, np.ndarray],
    weights: np.ndarray,
    calibration: Calibration,
) -> Calibration:
    """Limit the noise to the calibrated variance (m,) that one training row in a hundred exceeds.

    Components are the normals (K, J, n, m) predicted at training rows, as `fit_out_of_bag` takes
    them. Networks extrapolate noise as wildly as means, so more noise than here is not known.
    """
    loc, scale, probability = components
    apart = loc - (probability * loc).sum(axis=1, keepdims=True)
    noise = np.tensordot(weights, (probability * (scale**2 + apart**2)).sum(axis=1), axes=1)
    noise = calibration.factor**2 * noise + calibration.floor**2
    most = np.quantile(noise, _NOISY_SHARE, axis=0)
    most = np.where(np.isfinite(most), most, np.inf)  # no limit where predictions are not finite
    return replace(calibration, most_noise=tuple(most.tolist()))


def fit_tail(log_density: np.ndarray, weight: np.ndarray) -> tuple[float, ...]:
    """Fit the shares of the scales `TAIL_SCALES` in the shape of a predicted distribution.

    The predicted distribution becomes a mixture of itself at these relative scales. Shares are
    those of highest posterior density, by expectation maximisation. The prior counts 100 rows, of
    which one has the largest scale: without evidence a row far out costs little, and there is
    nearly no tail otherwise.

    Parameters
    ----------
    log_density : ndarray of shape (n_scales, n, m)
        Log densities, at each scale, of rows that have not been trained on.
    weight : ndarray of shape (n,)
        Positive.

    Returns
    -------
    tuple of float
        Shares, which sum to 1; without any, if densities are not finite.
    """
    if not np.isfinite(log_density).all():
        return ()
    likelihood = np.exp(log_density - log_density.max(axis=0))
    n_rows, n_outputs = log_density.shape[1:]
    rows = (weight * n_rows / weight.sum())[:, None] / n_outputs  # which sum to the number of rows
    share = np.full(len(likelihood), 1 / len(likelihood))
    for _ in range(_TAIL_STEPS):
        part = share[:, None, None] * likelihood
        counts = (rows * part / part.sum(axis=0)).sum(axis=(1, 2))
        share = (counts + _PRIOR_ROWS * _TAIL_PRIOR) / (n_rows + _PRIOR_ROWS)
    share = np.where(share < _SMALLEST_SHARE, 0.0, share)
    return tuple((share / share.sum()).tolist())


def fit_scale(
    squared_error: np.ndarray,
    total: np.ndarray,
    weight: np.ndarray,
    prior_rows: float = _PRIOR_ROWS,
    fewest_rows: int = _FEWEST_ROWS,
) -> tuple[float, float]:
    """Fit the factor and the floor of `fit_out_of_bag` to errors and predicted variances.

    Parameters
    ----------
    squared_error, total : ndarray of shape (n, m)
        Squared errors on rows that have not been trained on, and the variances predicted there.
    weight : ndarray of shape (n,)
        Non-negative.
    prior_rows : float, default=100
        Number of rows that the predicted variance counts as much as.
    fewest_rows : int, default=30
        With fewer rows nothing is fitted: the factor is 1 and the floor 0.
    """
    used = weight > 0
    if used.sum() < fewest_rows:
        return 1.0, 0.0
    factor, floor = _fit_variances(squared_error, [total], weight)
    # Average the fitted variance a^2 * total + b^2 with the predicted one; both are squares still.
    trust = _trust(factor, floor, total[used], weight[used], prior_rows)
    return float(np.sqrt(1 + trust * (factor - 1))), float(np.sqrt(trust * floor))


def _trust(
    squared_factor: float,
    squared_floor: float,
    total: np.ndarray,
    weight: np.ndarray,
    prior_rows: float = _PRIOR_ROWS,
) -> float:
    """Compute the weight of the fitted variance, ``squared_factor * total + squared_floor``.

    The predicted one, `total`, has the rest and counts as much as `prior_rows` rows. If the fitted
    one is smaller, rows count more often: the gain in log likelihood grows with their number and
    with the square of the change in the logarithm of standard deviations, so that few rows show
    that predictions are far too wide. A larger one can be due to a single row far out.
    """
    ratio = squared_factor + squared_floor / np.maximum(total, _LEAST_RATIO)
    change = np.average(np.log(np.maximum(ratio, _LEAST_RATIO)).mean(axis=1) / 2, weights=weight)
    if not math.isfinite(change):
        return 0.0
    rows = len(weight) * (1 + (min(change, 0.0) / _LARGE_CHANGE) ** 2)
    return float(rows / (rows + prior_rows))


def _fit_variances(
    squared_error: np.ndarray,
    terms: Sequence[np.ndarray],
    weight: np.ndarray,
    precision: float = 1.0,
    centre: Sequence[float] = (0.0,),
) -> np.ndarray:
    """Fit the squared factors of variances (n, m), and a squared floor that is added to them.

    Errors are normal, and so is the prior of each squared factor's logarithm, with these means and
    this precision. The result is 1 for each and 0 if errors are not finite.
    """
    used = weight > 0
    squared_error, n_used = squared_error[used], int(used.sum())
    # The floor is a term of its own: variances (n_terms, n, m).
    variances = np.stack([*(term[used] for term in terms), np.ones_like(squared_error)])
    prior = precision * np.array([1.0] * len(terms) + [0.0]) / n_used
    means = np.array([*centre, 0.0])
    # Weights (n, 1) of the entries (n, m), which sum to 1 over all of them.
    rows = (weight[used] / weight[used].sum())[:, None] / squared_error.shape[-1]

    def nll(logs: np.ndarray) -> tuple[float, np.ndarray]:
        # Logarithms of the squares: all variances stay positive.
        scaled = np.exp(logs)[:, None, None] * variances
        variance = scaled.sum(axis=0)
        # Twice the mean negative log likelihood of normals, without its constant, and the prior
        # on the same scale.
        loss = (rows * (np.log(variance) + squared_error / variance)).sum()
        slope = rows * (1 / variance - squared_error / variance**2)
        gradient = (slope * scaled).sum(axis=(1, 2)) + 2 * prior * (logs - means)
        return float(loss + prior @ (logs - means) ** 2), gradient

    # The loss can have several minima in the floor; factors always start at their prior's centre.
    bounds = [_BOUNDS[0]] * len(terms) + [_BOUNDS[1]]
    starts = [(*centre, floor) for floor in _FLOORS]
    fits = [
        optimize.minimize(nll, start, jac=True, method="L-BFGS-B", bounds=bounds)
        for start in starts
    ]
    best = min(fits, key=lambda fit: fit.fun)
    found: np.ndarray = np.exp(best.x)
    return found if np.isfinite(best.fun) else np.append(np.ones(len(terms)), 0.0)
