"""Fit calibrations: scales, temperatures, conformal scores, and shapes from rows out of the bag.

Notation: K members, n rows, m outputs (the last axis is absent where y was 1-D); predictions come
in folds, a mixture of each; weights (n,) are 1 for a row of average weight.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from scipy import optimize, special

from skuq.predictive._calibration import UNCALIBRATED, Calibration
from skuq.predictive._classes import scaled_probabilities
from skuq.predictive._distributions import Factor, Mixture
from skuq.predictive._two_piece import TwoPieceNormal

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


_SIGNIFICANT = 1.92  # nats: half of what a chi-square of one degree exceeds in one case of 20
_NEGLIGIBLE = 1e-6  # share of a standard deviation that is as good as none
_GRID_STEP = 0.1  # in the logarithm of a scale: each row's likelihood varies over about 1
_PAIR_FACTORS = np.geomspace(1e-3, 10, 24)  # scales tried for a pair, times that without noise
_PAIR_HALVINGS = 5  # of the step between them, in logarithms, about the best
_CHUNK = 2**15  # numbers worked on at a time: their temporaries stay in the cache
_MOST_TERMS = 2 * 10**8  # a few seconds' worth of likelihood terms


def fit_epistemic_scale(
    error: np.ndarray,
    epistemic: np.ndarray,
    aleatoric: np.ndarray | None,
    weights: np.ndarray,
    *,
    fit_noise: bool = False,
    beyond: np.ndarray | None = None,
) -> tuple[float, float]:
    """Fit factors c of the model's and k of the noise's standard deviation.

    Under them errors are most likely to come from normals of mean 0 and variance
    ``c**2 * epistemic**2 + k**2 * aleatoric**2``. All arrays are (n,) or (n, m), weights (n,);
    outputs share the factors. For two-piece normals `epistemic` is the model's standard deviation
    on the side on which y lies, and `beyond` that on the other side.

    Without noise k is 1 and c the root mean square of ``error / epistemic``, the minimiser of
    Eq. 50. With `fit_noise` k is learnt (Eq. 58); otherwise noise is known and k is 1 (Eq. 59).
    It stays 1 too where a likelihood ratio test at 5 % does not speak against that: where the
    model's part hardly varies, errors cannot tell the two apart. Where noise alone explains the
    errors the best c is 0; returned is the smallest that is tried, at which the model's part is
    1e-6 of the noise's in a typical row. The same holds for k where it is learnt. If all errors
    are 0, what is not pinned by known noise is 1.

    References
    ----------
    Heiss et al., "NOMU", Eqs. 50, 51, 58 and 59.
    """
    # For normals both sides are the same.
    beyond = epistemic if beyond is None else beyond
    weight, error, epistemic, beyond = _terms(weights, error, epistemic, beyond)
    if aleatoric is not None:
        _, aleatoric = _terms(weights, aleatoric)
    # Without noise the minimum of Eq. 51 is at a root mean square.
    if aleatoric is None or not aleatoric.any():
        return root_mean_square(error / epistemic, weight) or 1.0, 1.0
    # The factor of the model's part that makes both parts equal in a typical row.
    balance = np.median(aleatoric[aleatoric > 0]) / np.median(epistemic)
    least = float(_NEGLIGIBLE * balance)

    def mean_nll(c: float, k: float) -> float:
        near, far = (np.hypot(c * side, k * aleatoric) for side in (epistemic, beyond))
        return float(weight @ (_log_width(near, far) + 0.5 * (error / near) ** 2))

    # From here on every row's variance is at least its squared error, and the loss grows.
    # It is sqrt(error^2 - aleatoric^2), factorised against overflow and cancellation.
    enough = np.sqrt(np.maximum(abs(error) - aleatoric, 0)) * np.sqrt(abs(error) + aleatoric)
    high = (enough / epistemic).max()
    known = least, 1.0
    if high > least:
        log_c = minimise(lambda log_c: mean_nll(np.exp(log_c), 1.0), _log_grid(least, high))
        known = float(np.exp(log_c)), 1.0
    if not fit_noise:
        return known
    both = 1.0, 1.0
    if error.any():
        # From a negligible model's part to a negligible noise.
        grid = _log_grid(least, balance / _NEGLIGIBLE)

        def profile_nll(log_ratio: float) -> float:
            near, far = (np.hypot(np.exp(log_ratio) * s, aleatoric) for s in (epistemic, beyond))
            # The best k at a ratio c / k is a root mean square. It is put in, and constants are
            # left out.
            return weight @ _log_width(near, far) + np.log(root_mean_square(error / near, weight))

        ratio = np.exp(minimise(profile_nll, grid))
        k = root_mean_square(error / np.hypot(ratio * epistemic, aleatoric), weight)
        both = float(k * ratio), k
    # Log likelihoods are means over terms, times the effective number of terms: their weights sum
    # to 1.
    gain = -mean_nll(*both) / np.sum(weight**2) + mean_nll(*known) / np.sum(weight**2)
    return both if gain > _SIGNIFICANT else known


def _terms(weights: np.ndarray, *arrays: np.ndarray) -> tuple[np.ndarray, ...]:
    """Normalise weights (n,), flatten arrays (n[, m]) to (n * m,), and drop rows of weight 0."""
    weights = np.asarray(weights, dtype=float)
    used = [np.asarray(array, dtype=float)[weights > 0] for array in arrays]
    weight = weights[weights > 0]
    weight = np.repeat(weight / weight.sum(), used[0][0].size) / used[0][0].size
    return weight, *(array.ravel() for array in used)


def _log_width(near: np.ndarray, far: np.ndarray) -> np.ndarray:
    """Compute the log of a two-piece normal's mean standard deviation, which normalises it."""
    return np.log(0.5 * (near + far))


def _log_grid(low: float, high: float) -> np.ndarray:
    """Make a grid from log(low) to log(high) in steps of about `_GRID_STEP`."""
    low, high = np.log(low), np.log(high)
    return np.linspace(low, high, max(int(np.ceil((high - low) / _GRID_STEP)), 1) + 1)


def fit_readout(
    error: np.ndarray,
    raw: np.ndarray,
    readout: Callable[..., np.ndarray],
    weights: np.ndarray,
    l_mins: np.ndarray,
    l_maxs: np.ndarray,
    aleatoric: np.ndarray | None = None,
    raw_beyond: np.ndarray | None = None,
) -> tuple[float, float, float]:
    """Fit the ends of the readout's range and the factor c by maximum likelihood.

    The standard deviation of the model is ``c * readout(raw, l_min, l_max)``, positive and
    computed element by element from the network's side output; outputs share all three numbers.
    All pairs of the grids `l_mins` and `l_maxs` with l_min < l_max are tried. `aleatoric` is known
    noise. For two-piece normals `raw_beyond` is the side output on the side on which y does not
    lie. If all errors are 0 the result is the smallest pair, with the c of `fit_epistemic_scale`.
    Raise ValueError if no l_max is larger than any l_min.

    Notes
    -----
    Without noise the best c of a pair has a closed form (Eq. 51); with noise it is searched.
    All pairs are compared where that takes seconds, as it does for 100 x 80 pairs and 25 000
    rows without noise or 700 with it. For more, every second, fourth, .. value of the grids
    is tried first, and from the best of them goes downhill in steps that are halved: the pair
    found is better than its eight neighbours.

    References
    ----------
    Heiss et al., "NOMU", Eqs. 50 and 51, and appendix B.2.7.
    """
    l_mins, l_maxs = np.sort(l_mins), np.sort(l_maxs)
    if not l_maxs[-1] > l_mins[0]:
        raise ValueError(
            f"A value of `l_maxs` must exceed one of `l_mins`. The largest is {l_maxs[-1]}, the "
            f"smallest l_min {l_mins[0]}."
        )
    weight, errors, raws = _terms(weights, error, raw)
    others = None if raw_beyond is None else _terms(weights, raw_beyond)[1]
    noise = np.zeros_like(errors) if aleatoric is None else _terms(weights, aleatoric)[1]
    unit = max(abs(errors).max(), noise.max()) or 1.0  # squares neither overflow nor vanish
    square, noise_square = (errors / unit) ** 2, (noise / unit) ** 2
    # Number of pairs in a chunk (n_pairs, n_terms).
    size = max(_CHUNK // len(raws), 1)

    def losses(lows: np.ndarray, highs: np.ndarray) -> np.ndarray:
        """Compute the least losses over c of pairs."""
        found = []
        for at in range(0, len(lows), size):
            ends = lows[at : at + size, None], highs[at : at + size, None]  # (n_pairs, 1) each
            near = readout(raws, *ends)  # (n_pairs, n_terms)
            far = near if others is None else readout(others, *ends)
            if noise.any():
                found.append(_losses_with_noise(near, far, square, noise_square, weight))
            else:  # Eq. 51, without its constant
                mean_square = (square / near**2) @ weight
                found.append(_log_width(near, far) @ weight + 0.5 * np.log(mean_square))
        return np.concatenate(found)

    if errors.any():
        # Scales at which a pair's likelihood is computed; without noise, the best one is known.
        n_scales = len(_PAIR_FACTORS) + 2 * _PAIR_HALVINGS if noise.any() else 1
        n_terms = len(l_mins) * len(l_maxs) * len(raws) * n_scales
        # Every `step`-th value of both grids leaves n_terms / step^2 terms.
        step = 2 ** max(int(np.ceil(0.5 * np.log2(n_terms / _MOST_TERMS))), 0)
        l_min, l_max = _best_pair(losses, l_mins, l_maxs, step)
    else:
        l_min, l_max = l_mins[0], l_maxs[l_maxs > l_mins[0]][0]
    beyond = None if raw_beyond is None else readout(raw_beyond, l_min, l_max)
    spread = readout(raw, l_min, l_max)
    c, _ = fit_epistemic_scale(error, spread, aleatoric, weights, beyond=beyond)
    return float(l_min), float(l_max), c


def _best_pair(
    losses: Callable[..., np.ndarray], l_mins: np.ndarray, l_maxs: np.ndarray, step: int
) -> tuple[float, float]:
    """Find the pair of least loss: on coarse grids first, then by descent in halved steps."""

    def best_of(rows: Iterable[int], columns: Iterable[int]) -> tuple[float, int, int]:
        pairs = np.array([(i, j) for i in rows for j in columns if l_maxs[j] > l_mins[i]])
        found = losses(l_mins[pairs[:, 0]], l_maxs[pairs[:, 1]])
        return found.min(), *pairs[found.argmin()]

    # Both ends, so that there is a pair in which l_max is larger.
    grids = l_mins, l_maxs
    least, i, j = best_of(*(np.unique([*range(0, len(g), step), len(g) - 1]) for g in grids))
    while step > 1:
        step //= 2
        # Stay with one step as long as one of the eight neighbours is better.
        near, fell = step * np.array([-1, 0, 1]), True
        while fell:
            around = (np.clip(at + near, 0, len(g) - 1) for at, g in zip((i, j), grids))
            found = best_of(*map(np.unique, around))
            fell = found[0] < least
            least, i, j = min(found, (least, i, j))
    return l_mins[i], l_maxs[j]


def _losses_with_noise(
    near: np.ndarray,
    far: np.ndarray,
    square: np.ndarray,
    noise_square: np.ndarray,
    weight: np.ndarray,
) -> np.ndarray:
    """Compute the least loss over c of each row of spreads (n_pairs, n_terms)."""
    unit = ((square / near**2) @ weight)[:, None]  # c**2 of Eq. 51, that without noise
    near, far = unit * near**2, unit * far**2

    def loss(factor: Factor) -> np.ndarray:  # (n_pairs,) or a number
        near_variance, far_variance = (
            np.reshape(factor**2, (-1, 1)) * side + noise_square for side in (near, far)
        )
        return (
            _log_width(np.sqrt(near_variance), np.sqrt(far_variance)) @ weight
            + 0.5 * (square / near_variance) @ weight
        )

    # (n_scales, n_pairs), and the best scale of each pair.
    losses = np.stack([loss(factor) for factor in _PAIR_FACTORS])
    least, best = losses.min(axis=0), _PAIR_FACTORS[losses.argmin(axis=0)]
    step = _PAIR_FACTORS[1] / _PAIR_FACTORS[0]
    for _ in range(_PAIR_HALVINGS):
        # Compare the points half a step to either side, in logarithms.
        step = np.sqrt(step)
        for factor in (best / step, best * step):
            found = loss(factor)
            best = np.where(found < least, factor, best)
            least = np.minimum(found, least)
    return least


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
