"""Calibration: of standard deviations, of probabilities, and by rows that members have not seen."""

import functools
from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy import optimize, special
from tiers import cases

from skuq.predictive import EpistemicNormal, GaussianMixture
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
from skuq.predictive._distributions import (
    central_interval,
    conformal_quantile,
    scaled_probabilities,
)


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
    assert_allclose(scaled_probabilities(sure, 0.5), true, atol=1e-12)
    # A class of probability 0 counts as possible.
    found = scaled_probabilities(np.array([[0.0, 1.0]]), 0.5)
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
    quantile = functools.partial(conformal_quantile, base, scores, reach)
    for coverage, place in [(0.5, 5), (0.9, 9), (0.55, 6), (0.1, 1)]:
        radius = scores[place - 1] * base.std
        ends = base.mean - radius, base.mean + radius
        assert_allclose(central_interval(quantile, coverage), ends)
    assert_array_equal(quantile(0.5), base.mean)
    with pytest.raises(ValueError, match="calibration rows reach a coverage of 0.9. Got 0.95"):
        central_interval(quantile, 0.95)


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
    rng = np.random.default_rng(global_random_seed)
    scores, own = rng.normal(size=(2, 30, 10))
    levels = special.ndtr(scores), special.ndtr(scores[:, :1] + 0.3 * own)
    independent, common = (np.array(fit_correlation(u, np.ones(30)) or np.eye(10)) for u in levels)
    assert abs(independent - np.eye(10)).max() < 0.35 and 0.6 < common.min() < 0.95
    assert np.linalg.eigvalsh(common).min() > 0.01
    assert fit_correlation(levels[1][:9], np.ones(9)) == ()
    assert fit_correlation(levels[1][:, :1], np.ones(30)) == ()
