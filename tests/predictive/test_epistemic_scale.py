import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy import optimize, stats

from skuq.predictive._epistemic_scale import fit_epistemic_scale, fit_readout

L_MINS, L_MAXS = np.geomspace(0.005, 0.8, 12), np.geomspace(0.3, 10, 9)


def readout(raw, l_min, l_max):
    return l_max * (1 - np.exp(-(np.maximum(raw, 0) + l_min) / l_max))


def nll(c, k, error, epistemic, aleatoric, weights):
    std = np.sqrt((c * epistemic) ** 2 + (k * aleatoric) ** 2)
    losses = -stats.norm.logpdf(error, scale=std)
    return np.average(losses.reshape(len(error), -1).mean(axis=1), weights=weights)


def rows(seed, shape=(200, 2), c=1.7, k=0.6):
    """Errors of known factors, their parts, and weights."""
    rng = np.random.default_rng(seed)
    epistemic, aleatoric = np.exp(rng.normal(size=(2, *shape)))
    error = np.hypot(c * epistemic, k * aleatoric) * rng.normal(size=shape)
    return error, epistemic, aleatoric, rng.uniform(size=shape[0])


def test_scale_is_the_root_mean_square_or_most_likely_beside_known_noise(global_random_seed):
    data = rows(global_random_seed, k=1.0)
    c, k = fit_epistemic_scale(*data)
    factors = np.r_[1.0, 0.999, 1.001, np.geomspace(1e-4, 1e4, 400)]
    assert np.argmin([nll(c * f, 1, *data) for f in factors]) == 0 and k == 1
    # The better of two maxima: five rows fit a factor of 0.01, and one fits 3.3.
    error, epistemic = np.r_[np.full(5, 0.01), 0.005], np.r_[np.ones(5), 1e-3]
    c, _ = fit_epistemic_scale(error, epistemic, np.full(6, 1e-3), np.ones(6))
    assert_allclose(c, 0.01, rtol=0.01)
    c, _ = fit_epistemic_scale(error[4:], epistemic[4:], np.full(2, 1e-3), np.ones(2))
    assert_allclose(c, 3.3, rtol=0.01)
    error, epistemic, _, weights = rows(0, (200,))  # The root mean square without noise
    expected = np.sqrt(np.average((error / epistemic) ** 2, weights=weights))
    for none in (None, np.zeros(200)):
        found = fit_epistemic_scale(error, epistemic, none, weights, fit_noise=True)
        assert_allclose(found, (expected, 1.0), rtol=1e-12)


def test_noise_that_explains_everything_and_ends_of_the_readout():
    error, epistemic, aleatoric, weights = rows(0, c=1e-9, k=0.3)
    least = 1e-6 * np.median(aleatoric) / np.median(epistemic)
    found = fit_epistemic_scale(error, epistemic, aleatoric, weights)
    assert_allclose(found, (least, 1), rtol=0.2)  # a step of the grid, at most
    found = fit_epistemic_scale(0 * error, epistemic, aleatoric, weights)
    assert_allclose(found, (least, 1), rtol=1e-12)
    zero, one = np.zeros(5), np.ones(5)
    assert fit_epistemic_scale(zero, one, None, one) == (1.0, 1.0)
    assert fit_epistemic_scale(zero, one, one, one, fit_noise=True)[1] == 1.0
    assert fit_readout(zero, one, readout, one, [0.2, 0.1], [2.0, 1.0, 0.05]) == (0.1, 1.0, 1.0)
    error, raw, weights, _ = readout_rows(0, 0.0)  # l_max must be above l_min.
    l_min, l_max, _ = fit_readout(error, raw, readout, weights, [0.5, 3.0], [0.5, 2.0])
    assert (l_min, l_max) == (0.5, 2.0)


def test_both_scales_are_most_likely(global_random_seed):
    data = rows(global_random_seed)
    c, k = fit_epistemic_scale(*data, fit_noise=True)
    starts = [(a, b) for a in (-2, 2) for b in (-2, 2)]
    options = {"method": "Nelder-Mead", "options": {"xatol": 1e-6, "fatol": 1e-11}}
    found = [optimize.minimize(lambda x: nll(*np.exp(x), *data), s, **options) for s in starts]
    assert_allclose(nll(c, k, *data), min(each.fun for each in found), rtol=1e-8)
    # It is 1 unless the data speak against that: a likelihood ratio test at 5 %.
    few = [array[:3] for array in data]
    assert k != 1 and fit_epistemic_scale(*few, fit_noise=True) == fit_epistemic_scale(*few)


@pytest.mark.parametrize("fit_noise", [False, True])
def test_weights_are_repeats_and_neither_outputs_nor_units_matter(fit_noise):
    error, epistemic, aleatoric, _ = rows(2)
    weights = np.random.default_rng(0).integers(0, 4, 200)
    error[weights == 0] = 1e9  # without weight a row has no say
    c, k = fit_epistemic_scale(error, epistemic, aleatoric, weights, fit_noise=fit_noise)
    parts = (np.repeat(a, weights, axis=0).T.ravel() for a in (error, epistemic, aleatoric))
    error, epistemic, aleatoric = parts
    for unit, scale in [(1.0, 1.0), (1e-120, 1.0), (1e120, 1e60), (1e-8, 1e-60)]:
        given = unit * error, scale * epistemic, unit * aleatoric, np.full(len(error), 3.0)
        found = fit_epistemic_scale(*given, fit_noise=fit_noise)
        # The search stops at 1e-5 in the logarithm.
        assert_allclose(found, (c * unit / scale, k), rtol=1e-4)


def readout_rows(seed, noise):
    rng = np.random.default_rng(seed)
    raw, noise = rng.gamma(1, 1, 300) - 0.3, np.full(300, noise)
    error = np.hypot(0.5 * readout(raw, 0.05, 2.0), noise) * rng.normal(size=300)
    return error, raw, rng.uniform(size=300), noise


def brute_force(error, raw, weights, noise):
    """The least loss of each pair by its best c, NaN where l_max is not larger."""
    losses = np.full((len(L_MINS), len(L_MAXS)), np.nan)
    for i, j in np.ndindex(losses.shape):
        if L_MAXS[j] > L_MINS[i]:
            spread = readout(raw, L_MINS[i], L_MAXS[j])
            c, _ = fit_epistemic_scale(error, spread, noise, weights)
            losses[i, j] = nll(c, 1.0, error, spread, noise, weights)
    return losses


@pytest.mark.parametrize("noise", [0.0, 1e-3, 0.5])
def test_readout_is_as_good_as_the_best_pair(noise, global_random_seed, monkeypatch):
    error, raw, weights, noise = readout_rows(global_random_seed, noise)
    losses, seen = brute_force(error, raw, weights, noise), []

    def counted(raw, l_min, l_max):
        seen.append(np.size(l_min))
        return readout(raw, l_min, l_max)

    def fit():
        l_min, l_max, c = fit_readout(error, raw, counted, weights, L_MINS, L_MAXS, noise)
        i, j = np.searchsorted(L_MINS, l_min), np.searchsorted(L_MAXS, l_max)
        spread = readout(raw, l_min, l_max)
        assert_allclose(losses[i, j], nll(c, 1, error, spread, noise, weights))
        return i, j, sum(seen)

    i, j, n_all = fit()
    # Pairs are compared by scales 0.0125 apart, in logarithms, at a curvature of at most 2.
    assert losses[i, j] <= np.nanmin(losses) + 0.0125**2
    monkeypatch.setattr("skuq.predictive._epistemic_scale._MOST_TERMS", 3000)
    i, j, n_both = fit()  # a coarse search of fewer pairs ends below its neighbours
    assert n_both < 2 * n_all
    around = losses[max(i - 1, 0) : i + 2, max(j - 1, 0) : j + 2]
    assert losses[i, j] <= np.nanmin(around) + 0.0125**2
    assert losses[i, j] <= np.nanmin(losses) + 0.01
