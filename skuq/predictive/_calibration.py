"""Parameters that calibration learns from predictions of rows a model has not seen.

Notation: n rows, m outputs (the last axis is absent where y was 1-D); predictions come in
folds, a mixture of each; weights w (n,).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np
from numpy.typing import ArrayLike
from scipy import optimize, special
from sklearn.neighbors import NearestNeighbors

from skuq.predictive._categorical_mixture import CategoricalMixture
from skuq.predictive._gaussian_mixture import GaussianMixture
from skuq.predictive._types import Factor

_SIGNIFICANT = 1.92  # nats: half of what a chi-square of one degree exceeds in one case of 20
_SMALLEST_PROBABILITY = np.finfo(float).eps  # that a temperature can work on
_SMALLEST_DENSITY = np.finfo(float).tiny
_NEGLIGIBLE = 1e-6  # share of a standard deviation that is as good as none
_MOST_PAIRED = 3000  # rows of a fold whose neighbours are looked for
_NEAR = 10  # neighbours that each of them is paired with
_LARGEST_SPREAD = 5.0
_SMALLEST_SPREAD = 1e-6  # variance of the logarithms of groups' variances that counts as none
_ROW_PRECISION = 0.1  # that a row gives a slope or a bias of logits, about
_STEP = 0.1  # of a search in the logarithm of a scale: each row's likelihood varies over about 1
_PAIR_FACTORS = np.geomspace(1e-3, 10, 24)  # scales tried for a pair, times that without noise
_PAIR_HALVINGS = 5  # of the step between them, in logarithms, about the best
_CHUNK = 2**15  # numbers worked on at a time: their temporaries stay in the cache
_MOST_TERMS = 2 * 10**8  # a few seconds' worth of likelihood terms


def fit_scale(
    mixtures: list[GaussianMixture], ys: list[np.ndarray], weights: list[np.ndarray]
) -> float:
    """Fit the factor c of all standard deviations by maximum likelihood.

    For one normal a row this is ``sqrt(mean(((y - mean) / std) ** 2))``; the mixture's own
    likelihood may have several maxima and is searched. Where every y is met exactly there
    is nothing to learn, and it is 1.

    References
    ----------
    Heiss et al., "NOMU", section 4.1.2 and appendix B.2.1 (NLL_min).
    """
    weight = np.concatenate(weights)
    errors = np.concatenate([abs(y - m.mean) / m.std for m, y in zip(mixtures, ys)])
    moment = _root_mean_square(errors, weight)
    if moment == 0:
        return 1.0
    if all(len(m.weights) == 1 and isinstance(m, GaussianMixture) for m in mixtures):
        return moment

    def nll(log_c: float) -> float:
        scaled = (m.scaled(np.exp(log_c)) for m in mixtures)
        return -sum(w @ s.log_prob(y) for s, y, w in zip(scaled, ys, weights))

    # From the best of a coarse grid, which holds 1 and the moments' answer: a member that is
    # wildly unsure pulls that far away from the maximum.
    start = np.log(moment)
    grid = np.unique(
        np.concatenate([np.linspace(min(start, 0) - 2, max(start, 0) + 2, 25), [0.0, start]])
    )
    return float(np.exp(_minimise(nll, grid)))


def _root_mean_square(values: np.ndarray, weights: np.ndarray) -> float:
    """Root mean square of values (n,), whose squares may overflow or vanish."""
    largest = abs(values).max()
    if largest == 0:
        return 0.0
    return float(largest * np.sqrt(np.average((values / largest) ** 2, weights=weights)))


def _minimise(loss: Callable[[float], float], grid: np.ndarray) -> float:
    """Minimise a scalar function: grid search, then refinement."""
    losses = [loss(x) for x in grid]
    best = int(np.argmin(losses))
    ends = grid[max(best - 1, 0)], grid[min(best + 1, len(grid) - 1)]
    found = optimize.minimize_scalar(loss, bounds=ends, method="bounded")
    return float(found.x if found.fun < losses[best] else grid[best])


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
    beyond = epistemic if beyond is None else beyond
    weight, error, epistemic, beyond = _terms(weights, error, epistemic, beyond)
    if aleatoric is not None:
        _, aleatoric = _terms(weights, aleatoric)
    if aleatoric is None or not aleatoric.any():
        return _root_mean_square(error / epistemic, weight) or 1.0, 1.0
    one = _fit_scale_with_known_noise(error, epistemic, beyond, aleatoric, weight), 1.0
    if not fit_noise:
        return one
    both = _fit_both_scales(error, epistemic, beyond, aleatoric, weight)

    def log_likelihood(c: float, k: float) -> float:
        std, far = (np.hypot(c * side, k * aleatoric) for side in (epistemic, beyond))
        return -(weight @ (_log_width(std, far) + 0.5 * (error / std) ** 2)) / np.sum(weight**2)

    return both if log_likelihood(*both) - log_likelihood(*one) > _SIGNIFICANT else one


def _terms(weights: np.ndarray, *arrays: np.ndarray) -> tuple[np.ndarray, ...]:
    """Normalised weights and arrays (n[, m]) of the rows that count, all of shape (n * m,)."""
    weights = np.asarray(weights, dtype=float)
    used = [np.asarray(array, dtype=float)[weights > 0] for array in arrays]
    weight = weights[weights > 0]
    weight = np.repeat(weight / weight.sum(), used[0][0].size) / used[0][0].size
    return weight, *(array.ravel() for array in used)


def _log_width(near: np.ndarray, far: np.ndarray) -> np.ndarray:
    """Log of a density's normaliser: the mean standard deviation of both sides."""
    return np.log(0.5 * (near + far))


def _balance(epistemic: np.ndarray, aleatoric: np.ndarray) -> float:
    """Factor of the model's part that makes both parts equal in a typical row."""
    return np.median(aleatoric[aleatoric > 0]) / np.median(epistemic)


def _log_grid(low: float, high: float) -> np.ndarray:
    """Grid from log(low) to log(high) in steps of about `_STEP`."""
    low, high = np.log(low), np.log(high)
    return np.linspace(low, high, max(int(np.ceil((high - low) / _STEP)), 1) + 1)


def _fit_scale_with_known_noise(
    error: np.ndarray,
    epistemic: np.ndarray,
    beyond: np.ndarray,
    aleatoric: np.ndarray,
    weight: np.ndarray,
) -> float:
    """Fit c of the variance ``c**2 * epistemic**2 + aleatoric**2``."""
    low = _NEGLIGIBLE * _balance(epistemic, aleatoric)
    # From here on every row's variance is at least its squared error, and the loss grows.
    enough = np.sqrt(np.maximum(abs(error) - aleatoric, 0)) * np.sqrt(abs(error) + aleatoric)
    high = (enough / epistemic).max()
    if high <= low:
        return float(low)

    def nll(log_c: float) -> float:
        std, far = (np.hypot(np.exp(log_c) * side, aleatoric) for side in (epistemic, beyond))
        return weight @ (_log_width(std, far) + 0.5 * (error / std) ** 2)

    return float(np.exp(_minimise(nll, _log_grid(low, high))))


def _fit_both_scales(
    error: np.ndarray,
    epistemic: np.ndarray,
    beyond: np.ndarray,
    aleatoric: np.ndarray,
    weight: np.ndarray,
) -> tuple[float, float]:
    """Fit c and k: for each ratio c / k the best k is a root mean square."""
    if not error.any():
        return 1.0, 1.0

    def std(log_ratio: float, side: np.ndarray = epistemic) -> np.ndarray:
        return np.hypot(np.exp(log_ratio) * side, aleatoric)

    def nll(log_ratio: float) -> float:
        own, far = std(log_ratio), std(log_ratio, beyond)
        return weight @ _log_width(own, far) + np.log(_root_mean_square(error / own, weight))

    balance = _balance(epistemic, aleatoric)
    found = _minimise(nll, _log_grid(_NEGLIGIBLE * balance, balance / _NEGLIGIBLE))
    k = _root_mean_square(error / std(found), weight)
    return float(k * np.exp(found)), k


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
    if errors.any():
        losses = _readout_losses(errors, raws, others, noise, weight, readout)
        n_scales = len(_PAIR_FACTORS) + 2 * _PAIR_HALVINGS if noise.any() else 1
        n_terms = len(l_mins) * len(l_maxs) * len(raws) * n_scales
        step = 2 ** max(int(np.ceil(0.5 * np.log2(n_terms / _MOST_TERMS))), 0)
        l_min, l_max = _best_pair(losses, l_mins, l_maxs, step)
    else:
        l_min, l_max = l_mins[0], l_maxs[l_maxs > l_mins[0]][0]
    beyond = None if raw_beyond is None else readout(raw_beyond, l_min, l_max)
    spread = readout(raw, l_min, l_max)
    c, _ = fit_epistemic_scale(error, spread, aleatoric, weights, beyond=beyond)
    return float(l_min), float(l_max), c


def _readout_losses(
    errors: np.ndarray,
    raws: np.ndarray,
    others: np.ndarray | None,
    noise: np.ndarray,
    weight: np.ndarray,
    readout: Callable[..., np.ndarray],
) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    """Make the function from pairs (l_mins, l_maxs) to their least losses over c.

    All arrays are (n_terms,); `others` are the raw outputs on the sides where y does not lie.
    """
    unit = max(abs(errors).max(), noise.max()) or 1.0  # squares neither overflow nor vanish
    squares = (errors / unit) ** 2, (noise / unit) ** 2
    loss = _losses_with_noise if noise.any() else _losses_without_noise
    size = max(_CHUNK // len(raws), 1)

    def losses(lows: np.ndarray, highs: np.ndarray) -> np.ndarray:
        found = []
        for at in range(0, len(lows), size):
            ends = lows[at : at + size, None], highs[at : at + size, None]
            near = readout(raws, *ends)
            far = near if others is None else readout(others, *ends)
            found.append(loss(near, far, *squares, weight))
        return np.concatenate(found)

    return losses


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
        near, fell = step * np.array([-1, 0, 1]), True
        while fell:
            around = (np.clip(at + near, 0, len(g) - 1) for at, g in zip((i, j), grids))
            found = best_of(*map(np.unique, around))
            fell = found[0] < least
            least, i, j = min(found, (least, i, j))
    return l_mins[i], l_maxs[j]


def _losses_without_noise(
    near: np.ndarray, far: np.ndarray, square: np.ndarray, _: np.ndarray, weight: np.ndarray
) -> np.ndarray:
    """Loss (Eq. 51, without its constant) of each row of spreads (n_pairs, n_terms)."""
    return _log_width(near, far) @ weight + 0.5 * np.log((square / near**2) @ weight)


def _losses_with_noise(
    near: np.ndarray,
    far: np.ndarray,
    square: np.ndarray,
    noise_square: np.ndarray,
    weight: np.ndarray,
) -> np.ndarray:
    """Least loss over c of each row of spreads (n_pairs, n_terms)."""
    unit = ((square / near**2) @ weight)[:, None]  # c of Eq. 51, that without noise
    near, far = unit * near**2, unit * far**2

    def loss(factor: Factor) -> np.ndarray:  # (n_pairs,) or a number
        own, other = (np.reshape(factor**2, (-1, 1)) * side + noise_square for side in (near, far))
        return _log_width(np.sqrt(own), np.sqrt(other)) @ weight + 0.5 * (square / own) @ weight

    losses = np.stack([loss(factor) for factor in _PAIR_FACTORS])
    least, best = losses.min(axis=0), _PAIR_FACTORS[losses.argmin(axis=0)]
    step = _PAIR_FACTORS[1] / _PAIR_FACTORS[0]
    for _ in range(_PAIR_HALVINGS):
        step = np.sqrt(step)
        for factor in (best / step, best * step):
            found = loss(factor)
            best = np.where(found < least, factor, best)
            least = np.minimum(found, least)
    return least


def weighted_quantile(values: np.ndarray, weights: np.ndarray, levels: ArrayLike) -> np.ndarray:
    """Smallest values at which the share of weight reaches each level."""
    order = np.argsort(values)
    share = np.cumsum(weights[order]) / weights.sum()
    at = np.searchsorted(share, np.asarray(levels) - 1e-12)
    return values[order][np.minimum(at, len(values) - 1)]


def effective_rows(weights: np.ndarray) -> float:
    """Compute how many rows of equal weight tell as much as rows of these weights (n,)."""
    total = weights.sum()
    return float(total**2 / np.sum(weights**2)) if total > 0 else 0.0


def fit_levels(
    pit: np.ndarray, weights: np.ndarray, n_rows: float
) -> tuple[np.ndarray, np.ndarray]:
    """Fit knots (n_knots,) of the map from predicted to observed levels (Kuleshov et al., 2018).

    The isotonic fit of the observed on the predicted levels is the distribution function of
    the PIT values (n,). Between knots, of which each holds ten values or more, and twenty at
    most, it is linear, so that there is a density. Both ends increase strictly from 0 to 1.
    `n_rows` is the effective number of rows.
    """
    n_knots = int(
        np.clip((n_rows + 1e-6) // 10, 1, 20)
    )  # n_rows is rounded where weights are equal
    observed = np.arange(n_knots + 1) / n_knots
    inner = weighted_quantile(pit, weights, observed[1:-1])
    predicted = np.concatenate([[0.0], inner, [1.0]])
    # Strictly increasing where values pile up: a thousandth of the identity.
    return 0.999 * predicted + 0.001 * observed, observed


def fit_temperature(probas: np.ndarray, codes: np.ndarray, weights: np.ndarray) -> float:
    """Fit the temperature T of averaged probabilities by maximum likelihood (Guo et al., 2017).

    A standard normal prior of log(T) keeps it from 0 where every row's class is the most probable:
    a few such rows do not show that the classifier never errs.
    """
    rows = np.arange(len(codes))

    def nll(log_t: float) -> float:
        proba = tempered(probas, np.exp(log_t))[rows, codes]
        return 0.5 * log_t**2 - weights @ np.log(np.maximum(proba, _SMALLEST_DENSITY))

    # Unimodal in 1 / T, as logistic regression with one coefficient is.
    return float(np.exp(optimize.minimize_scalar(nll, bounds=(-4, 4), method="bounded").x))


def tempered(proba: np.ndarray, temperature: float) -> np.ndarray:
    """Probabilities to the power 1 / T, normalised.

    A 0 counts as the rounding of 1: a class that a neighbourhood or a tree has not seen is
    not impossible, and a temperature above 1 says how far it is.
    """
    return scaled_probabilities(proba, 1 / temperature, 0.0)


def scaled_probabilities(
    proba: np.ndarray, slopes: float | np.ndarray, biases: float | np.ndarray
) -> np.ndarray:
    """Probabilities (n, C) whose logarithms are multiplied and added to, normalised.

    Slopes and biases broadcast against (n, C).
    """
    logits = slopes * np.log(np.maximum(proba, _SMALLEST_PROBABILITY)) + biases
    powers = np.exp(logits - logits.max(axis=-1, keepdims=True))
    normalised: np.ndarray = powers / powers.sum(axis=-1, keepdims=True)
    return normalised


def fit_vector_scaling(
    probas: np.ndarray,
    codes: np.ndarray,
    weights: np.ndarray,
    centre: tuple[np.ndarray, np.ndarray],
    n_prior: float = 1.0,
) -> tuple[np.ndarray, np.ndarray]:
    """Fit a slope and a bias of each class' log probability (Guo et al., 2017, section 4.2).

    By maximum likelihood with a normal prior about `centre`, slopes and biases (C,), whose
    precision is that of `n_prior` rows.
    """
    logs = np.log(np.maximum(probas, _SMALLEST_PROBABILITY))
    rows, n_classes = np.arange(len(codes)), probas.shape[1]
    prior = np.concatenate(centre)
    precision = _ROW_PRECISION * n_prior

    def loss(parameters: np.ndarray) -> tuple[float, np.ndarray]:
        slopes, biases = parameters[:n_classes], parameters[n_classes:]
        logits = slopes * logs + biases
        logits -= logits.max(axis=1, keepdims=True)
        powers = np.exp(logits)
        total = powers.sum(axis=1)
        nll = weights @ (np.log(total) - logits[rows, codes])
        apart = powers / total[:, None]
        apart[rows, codes] -= 1
        apart *= weights[:, None]
        off = parameters - prior
        gradient = np.concatenate([(apart * logs).sum(axis=0), apart.sum(axis=0)])
        return nll + 0.5 * precision * off @ off, gradient + precision * off

    found = optimize.minimize(loss, prior, jac=True, method="L-BFGS-B").x
    return found[:n_classes], found[n_classes:]


def pool_variances(variances: np.ndarray, degrees: np.ndarray) -> np.ndarray:
    """Average the variance of each group with that of all, the more so the less groups differ.

    Empirical Bayes: variances (G,) with so many degrees of freedom are taken for draws around true
    ones with a scaled inverse chi-square distribution, whose two parameters are found from the
    mean and the variance of the logarithms. Groups that differ by no more than chance get one
    variance.

    References
    ----------
    Smyth (2004), "Linear models and empirical Bayes methods for assessing differential expression
    in microarray experiments", section 6.2.
    """
    used = variances > 0
    if used.sum() < 2:
        return np.full(len(variances), variances.max())
    half = 0.5 * degrees[used]
    logs = np.log(variances[used]) - special.digamma(half) + np.log(half)
    # A group of few rows tells little of how much groups differ.
    noise = special.polygamma(1, half)
    weight = 1 / (noise + 0.1)
    centre = np.average(logs, weights=weight)
    spread = np.average((logs - centre) ** 2 - noise, weights=weight)
    spread *= len(logs) / (len(logs) - 1)
    if spread < _SMALLEST_SPREAD:
        return np.full(len(variances), np.average(variances[used], weights=degrees[used]))
    prior = _inverse_trigamma(spread)  # half of the degrees of freedom
    typical = np.exp(centre + special.digamma(prior) - np.log(prior))
    averaged: np.ndarray = (2 * prior * typical + degrees * variances) / (2 * prior + degrees)
    return averaged


def _inverse_trigamma(value: float) -> float:
    """Find x with trigamma(x) = value."""

    def excess(log_x: float) -> float:
        return float(special.polygamma(1, np.exp(log_x))) - value

    return float(np.exp(optimize.brentq(excess, -20, 20)))


def fit_spread(
    mixtures: Sequence[CategoricalMixture],
    codes: Sequence[np.ndarray],
    weights: Sequence[np.ndarray],
) -> float:
    """Fit the factor of the members' differences from the average, fold by fold.

    The average says how likely each row's class is, and the differences how likely the classes of
    two rows are together: if one member is right on both, they are right together. So the factor
    s is that under which pairs of rows on which the members differ alike are most likely,

        sum log(1 + s**2 * cov(p(y), p(y')) / (mean p(y) * mean p(y'))),

    with a normal prior of s**2 about 1, of standard deviation 1. It is 1 for a single member.

    References
    ----------
    Osband et al. (2022), "The Neural Testbed: Evaluating Joint Predictions".
    """
    terms, shares = [], []
    for mixture, code, weight in zip(mixtures, codes, weights):
        rows = np.arange(len(code))
        if len(mixture.weights) == 1 or len(rows) < 2:
            continue
        if len(rows) > _MOST_PAIRED:
            rows = np.linspace(0, len(rows) - 1, _MOST_PAIRED).astype(int)
        apart = mixture.proba[:, rows] - mixture.mean[rows]  # (K, n, C)
        relative = apart[:, np.arange(len(rows)), code[rows]] / np.maximum(
            mixture.mean[rows, code[rows]], _SMALLEST_PROBABILITY
        )
        n_near = min(_NEAR, len(rows) - 1)
        search = NearestNeighbors(n_neighbors=n_near).fit(
            np.moveaxis(apart, 1, 0).reshape(len(rows), -1)
        )
        near = search.kneighbors(return_distance=False)  # (n, n_near), without the row itself
        terms.append(np.einsum("k,kn,knj->nj", mixture.weights, relative, relative[:, near]))
        shares.append(np.broadcast_to(weight[rows, None] / n_near, near.shape))
    if not terms:
        return 1.0
    ratio, share = (np.concatenate([part.ravel() for part in own]) for own in (terms, shares))

    def loss(square: float) -> float:
        return 0.5 * (square - 1) ** 2 - float(share @ np.log1p(square * ratio))

    # Below the number at which a pair would be impossible.
    largest = min(0.99 / max(-ratio.min(), 1e-9), _LARGEST_SPREAD**2)
    found = optimize.minimize_scalar(loss, bounds=(0.0, largest), method="bounded")
    return float(np.sqrt(found.x))
