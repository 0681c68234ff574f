"""Fit the scale of an epistemic part, and NOMU's readout, by maximum likelihood."""

from collections.abc import Callable, Iterable

import numpy as np

from skuq.predictive._calibration import minimise, root_mean_square
from skuq.predictive._distributions import Factor

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
    high, known = (enough / epistemic).max(), (least, 1.0)
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
    Some l_max must be larger than some l_min.

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
    c, _ = fit_epistemic_scale(error, readout(raw, l_min, l_max), aleatoric, weights, beyond=beyond)
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
