"""Calibration: of standard deviations, of probabilities, and by rows that members have not seen."""

import functools
from dataclasses import replace
from unittest.mock import Mock

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy import optimize, special, stats
from tiers import cases

from skuq.predictive import EpistemicNormal, GaussianMixture, _distributions
from skuq.predictive._calibration import (
    UNCALIBRATED,
    calibrate_normals,
    fit_calibration,
    fit_correlation,
    fit_factor_and_floor,
    fit_std_factor,
    fit_temperature,
    shrink_std_factor,
)
from skuq.predictive._epistemic_scale import fit_epistemic_scale, fit_readout

L_MINS, L_MAXS = np.geomspace(0.005, 0.8, 12), np.geomspace(0.3, 10, 9)


def normal(mean, std):
    return GaussianMixture(mean[None], std[None])


def test_scale_of_normals_is_the_closed_form(rng):
    y, mean, std = rng.normal(size=(3, 50))
    weight, std = rng.uniform(size=50), abs(std) + 0.1
    folds = [slice(0, 20), slice(20, 50)]
    for base in (normal(mean, std), EpistemicNormal(mean, 0.6 * std, 0.8 * std)):
        parts = ([a[f] for f in folds] for a in (y, weight))
        c = fit_std_factor([base.rows(f) for f in folds], *parts)
        assert_allclose(c, np.sqrt(np.average(((y - mean) / std) ** 2, weights=weight)))


@pytest.mark.parametrize("widest", [2.0, 1e6])
def test_scale_of_mixtures_is_most_likely(widest, global_random_seed):
    """Also where a member is far too wide."""
    rng = np.random.default_rng(global_random_seed)
    scale = np.repeat([[0.5], [1.0], [widest]], 80, axis=1)
    base, y = GaussianMixture(rng.normal(size=(3, 80)), scale), 3 * rng.normal(size=80)
    c = fit_std_factor([base], [y], [np.ones(80)])
    factors = [1.0, 0.98, 1.02, *np.geomspace(1e-9, 10, 100)]
    assert np.argmax([base.scaled(f * c).log_prob(y).mean() for f in factors]) == 0


@pytest.mark.parametrize("std", [0.2, 0.8, 3.0])
def test_shrinkage_of_the_scale_by_hand(std):
    y = np.random.default_rng(0).standard_t(8, size=400)
    given = [normal(np.zeros(400), np.full(400, std))], [y], [np.ones(400)]
    c = fit_std_factor(*given)
    # The score of log c is z**2 - 1 and the curvature 2, with errors z in calibrated stds.
    z = y / (c * std)
    error = np.sqrt(np.mean((z**2 - 1) ** 2) / 400) / 2
    expected = c ** (1 - (2 * error / np.log(c)) ** 2)
    assert_allclose(shrink_std_factor(*given, c), expected, rtol=1e-3)


def test_temperature_is_most_likely_and_known_and_has_a_prior(rng):
    true = special.softmax(rng.normal(size=(20_000, 3)) * 2, axis=1)
    sure = true**2 / (true**2).sum(axis=1, keepdims=True)
    codes = (true.cumsum(axis=1) < rng.random((20_000, 1))).sum(axis=1)
    assert_allclose(fit_temperature(sure, codes, np.ones(20_000)), 2.0, rtol=0.03)
    assert_allclose(_distributions.scaled_probabilities(sure, 0.5), true, atol=1e-12)
    # A class of probability 0 counts as possible.
    found = _distributions.scaled_probabilities(np.array([[0.0, 1.0]]), 0.5)
    assert_allclose(found[0], np.array([2.0**-26, 1]) / (1 + 2.0**-26))
    # Without it, it would be 0 if all rows have the more probable class.
    found = fit_temperature(np.tile([0.3, 0.7], (10, 1)), np.ones(10, dtype=int), np.ones(10))
    grid = np.exp(np.linspace(-4, 1, 2001))
    nll = 10 * np.log1p((3 / 7) ** (1 / grid)) + 0.5 * np.log(grid) ** 2
    assert_allclose(found, grid[nll.argmin()], rtol=1e-2)


@pytest.mark.parametrize("shape", [(3,), (3, 2)])
def test_conformal_intervals_take_the_next_score(shape, rng):
    base = normal(rng.normal(size=shape), rng.uniform(0.5, 2, shape))
    scores = np.sort(rng.exponential(size=(9, *shape[1:])), axis=0)
    reach = np.broadcast_to(np.linspace(0.1, 0.9, 9), (*shape[1:], 9)).T
    quantile = functools.partial(_distributions.conformal_quantile, base, scores, reach)
    for coverage, place in [(0.5, 5), (0.9, 9), (0.55, 6), (0.1, 1)]:
        radius = scores[place - 1] * base.std
        ends = base.mean - radius, base.mean + radius
        assert_allclose(_distributions.central_interval(quantile, coverage), ends)
    assert_array_equal(quantile(0.5), base.mean)
    with pytest.raises(ValueError, match="calibration rows reach a coverage of 0.9. Got 0.95"):
        _distributions.central_interval(quantile, 0.95)


def fit_members(loc, scale, y, unseen=None, weight=None):
    """Fit the calibration of members, each a mixture of as many equal normals as `loc` has."""
    part, equal = np.full(loc.shape, 1 / loc.shape[1]), np.full(len(loc), 1 / len(loc))
    unseen = np.ones((len(loc), len(y)), bool) if unseen is None else unseen
    weight = np.ones(len(y)) if weight is None else weight
    return fit_calibration(loc, scale, part, equal, unseen, y, weight)


@pytest.mark.parametrize("weighted", [False, True])
def test_factor_and_share_are_most_likely(weighted, rng):
    """By SciPy, from the density of the mixture that the calibration predicts."""
    loc, scale = 0.3 * rng.normal(size=(2, 2, 80, 1)), rng.uniform(0.3, 1, (2, 2, 80, 1))
    y, half = 2 * rng.standard_t(3, size=(80, 1)), np.full(2, 0.5)
    weight = rng.integers(0, 3, 80) if weighted else np.ones(80)
    found = fit_members(loc, scale, y, weight=weight)
    rows = weight * (weight > 0).sum() / weight.sum()

    def loss(numbers):
        share = special.expit(numbers[1])
        arrays = replace(UNCALIBRATED, factor=np.exp(numbers[0]), share=share).arrays
        calibrated = calibrate_normals((loc, scale, np.full(loc.shape, 0.5)), half, arrays)
        fit = GaussianMixture(*calibrated[:2], half, calibrated[2]).log_prob(y)
        prior = np.log(share) + 19 * np.log1p(-share) - 9 * np.log1p((numbers[0] / 0.3) ** 2)
        return -prior - rows @ fit

    best = optimize.minimize(loss, [0.3, -3.0], method="Nelder-Mead", options={"xatol": 1e-6})
    assert_allclose(found.factor, np.exp(best.x[0]), rtol=2e-3)
    assert_allclose(found.share, special.expit(best.x[1]), rtol=1e-2)


@pytest.mark.parametrize("claim", [0.5, 1.0, 4.0])
def test_members_that_claim_a_part_of_the_noise_get_the_rest(claim, rng):
    noise = rng.uniform(0.3, 1.5, (20_000, 1))
    scale = np.broadcast_to(claim * noise, (8, 1, 20_000, 1))
    unseen = rng.uniform(size=(8, 20_000)) < 0.1
    found = fit_members(0 * scale, scale, rng.normal(size=(20_000, 1)) * noise, unseen)
    assert_allclose(found.factor, 1 / claim, rtol=0.03)
    assert found.share < 0.01


def test_unseen_members_tell_as_much_as_all_and_rows_without_them_nothing(rng):
    scale, unseen = np.full((2, 1, 60, 1), 0.2), np.zeros((2, 60), bool)
    y, light = rng.normal(size=(60, 1)), np.r_[np.zeros(30), np.ones(30)]
    assert fit_members(0 * scale, scale, y, unseen) == UNCALIBRATED
    unseen[1, :30] = True
    assert fit_members(0 * scale, scale, y, unseen, light) == UNCALIBRATED
    few = fit_members(0 * scale, scale, y, unseen)
    assert 1 < few.factor < 5  # thirty rows beside a hundred
    unseen[0, 30:] = True
    assert few == fit_members(0 * scale, scale, y, unseen, 1 - light)
    assert few.factor < fit_members(0 * scale, scale, y, unseen).factor
    rng = np.random.default_rng(0)
    loc = rng.normal(size=(8, 1, 4000, 1))
    y, scale = loc.mean(axis=0)[0] + 0.1 * rng.normal(size=(4000, 1)), np.full_like(loc, 0.1)
    unseen = np.arange(8)[:, None] == np.arange(4000) % 8
    # Errors of one member are those of its mean, and as large as the spread of all.
    assert_allclose(fit_members(loc, scale, y, unseen).factor, 1, rtol=0.1)


@cases(("value", "n_components"), (np.nan, 1), (np.inf, 2), (1e200, 2))
def test_predictions_that_are_not_finite_give_no_correction(value, n_components, rng):
    scale = np.ones((2, n_components, 100, 1))
    loc = 0 * scale
    loc[0, 0, 3] = value
    with np.errstate(all="ignore"):
        assert fit_members(loc, scale, rng.normal(size=(100, 1))) == UNCALIBRATED


def test_wide_components_do_not_narrow_others_and_their_share_is_found(rng):
    """Variances alone would make all components, a tenth of which are wide, a third as wide."""
    scale = np.repeat([[[[1.0]], [[15.0]]]], 2000, axis=2)
    probability = np.repeat([[[[0.9]], [[0.1]]]], 2000, axis=2)
    unseen, weight, y = np.ones((1, 2000), bool), np.ones(2000), 1.5 * rng.normal(size=(2000, 1))
    found = fit_calibration(0 * scale, scale, probability, np.ones(1), unseen, y, weight)
    assert 1.3 < found.factor < 1.6
    rng = np.random.default_rng(0)
    error = rng.choice([1.0, 3.0], size=(10_000, 2), p=[0.8, 0.2]) * rng.normal(size=(10_000, 2))
    # Rows count by their weights.
    y, weight = np.concatenate([error, 40 + error]), np.repeat([1.0, 1e-9], 10_000)
    scale = np.ones((1, 1, 20_000, 2))
    found = fit_members(0 * scale, scale, y, weight=weight)
    assert_allclose((found.factor, found.share), (1, 0.2), rtol=0.1)


@cases(("claim", "floor"), (0.5, 0.0), (1.0, 0.7))
def test_factor_and_floor_are_told_apart(claim, floor, rng):
    """Predictions claim a part of the noise, or errors have a floor."""
    noise = rng.uniform(0.3, 1.5, 20_000)
    squares = (rng.normal(size=20_000) * np.hypot(noise, floor)) ** 2
    found = fit_factor_and_floor(squares, (claim * noise) ** 2, rng.uniform(size=20_000))
    assert_allclose(found, (1 / claim, floor), rtol=0.03, atol=0.1)
    few = np.ones(29)
    assert fit_factor_and_floor(9 * few, few, few) == (1.0, 0.0)
    assert fit_factor_and_floor(9 * few, few, few, fewest_rows=1) != (1.0, 0.0)
    assert fit_factor_and_floor(np.nan * squares, noise, noise) == (1.0, 0.0)


@pytest.mark.parametrize("r", [0.0, 0.5, 0.98, -0.98, 1.0])
def test_correlation_of_outputs_is_that_of_errors(r, global_random_seed):
    first, second, third = np.random.default_rng(global_random_seed).normal(size=(3, 800))
    z = np.stack([first, r * first + np.sqrt(1 - r**2) * second, third, 0 * first], axis=1)
    levels, weight = special.ndtr(z), np.ones(800)
    found, expected = np.array(fit_correlation(levels, weight) or np.eye(4)), np.eye(4)
    expected[0, 1] = expected[1, 0] = r
    error = 5 * (1 - expected**2) / np.sqrt(800)  # five standard errors
    assert (abs(found - expected) <= error + 1e-5).all() and np.linalg.eigvalsh(found).min() > 1e-7
    # Neither the size of the errors matters, nor rows that come again or do not count.
    assert_allclose(fit_correlation(special.ndtr(0.1 * z), weight) or np.eye(4), found)
    twice = np.concatenate([levels, levels]), np.ones(1600), np.tile(np.arange(800), 2)
    assert_array_equal(fit_correlation(*twice) or np.eye(4), found)
    more = np.concatenate([levels, special.ndtr(np.ones((9, 4))), np.full((1, 4), np.nan)])
    weight = np.append(weight, np.repeat([0.0, 1.0], [9, 1]))
    assert_array_equal(fit_correlation(more, weight) or np.eye(4), found)


def test_correlation_of_few_rows_is_shrunk(global_random_seed):
    scores, own = np.random.default_rng(global_random_seed).normal(size=(2, 30, 10))
    levels = special.ndtr(scores), special.ndtr(scores[:, :1] + 0.3 * own)
    independent, common = (np.array(fit_correlation(u, np.ones(30)) or np.eye(10)) for u in levels)
    assert abs(independent - np.eye(10)).max() < 0.35 and 0.6 < common.min() < 0.95
    assert np.linalg.eigvalsh(common).min() > 0.01
    assert fit_correlation(levels[1][:9], np.ones(9)) == ()
    assert fit_correlation(levels[1][:, :1], np.ones(30)) == ()


def readout(raw, l_min, l_max):
    return l_max * (1 - np.exp(-(np.maximum(raw, 0) + l_min) / l_max))


def nll(c, k, error, epistemic, aleatoric, weights):
    std = np.sqrt((c * epistemic) ** 2 + (k * aleatoric) ** 2)
    losses = -stats.norm.logpdf(error, scale=std)
    return np.average(losses.reshape(len(error), -1).mean(axis=1), weights=weights)


def rows(seed, shape=(200, 2), c=1.7, k=0.6):
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
    losses, counted = brute_force(error, raw, weights, noise), Mock(wraps=readout)

    def fit():
        l_min, l_max, c = fit_readout(error, raw, counted, weights, L_MINS, L_MAXS, noise)
        i, j = np.searchsorted(L_MINS, l_min), np.searchsorted(L_MAXS, l_max)
        spread = readout(raw, l_min, l_max)
        assert_allclose(losses[i, j], nll(c, 1, error, spread, noise, weights))
        return i, j, sum(np.size(call.args[1]) for call in counted.call_args_list)

    i, j, n_all = fit()
    # Pairs are compared by scales 0.0125 apart, in logarithms, at a curvature of at most 2.
    assert losses[i, j] <= np.nanmin(losses) + 0.0125**2
    monkeypatch.setattr("skuq.predictive._epistemic_scale._MOST_TERMS", 3000)
    i, j, n_both = fit()  # a coarse search of fewer pairs ends below its neighbours
    assert n_both < 2 * n_all
    around = losses[max(i - 1, 0) : i + 2, max(j - 1, 0) : j + 2]
    assert losses[i, j] <= np.nanmin(around) + 0.0125**2
    assert losses[i, j] <= np.nanmin(losses) + 0.01
