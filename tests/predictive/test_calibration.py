"""Calibration: of standard deviations, of probabilities, and by rows that members have not seen."""

import functools

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy import optimize, special, stats
from tiers import cases
from training_data import NumberTargets

from skuq.predictive import EpistemicNormal, GaussianMixture
from skuq.predictive._calibration import (
    TAIL_SCALES,
    UNCALIBRATED,
    Calibration,
    fit_out_of_bag,
    fit_scale,
    fit_std_factor,
    fit_tail,
    fit_temperature,
    pool_variances,
    shrink_std_factor,
)
from skuq.predictive._classes import scaled_probabilities
from skuq.predictive._distributions import central_interval, conformal_quantile


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
    base = GaussianMixture(rng.normal(size=(3, 80)), scale)
    y = 3 * rng.normal(size=80)
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


def test_temperature_is_most_likely_and_known(rng):
    true = special.softmax(rng.normal(size=(20_000, 3)) * 2, axis=1)
    sure = true**2 / (true**2).sum(axis=1, keepdims=True)
    codes = (true.cumsum(axis=1) < rng.random((20_000, 1))).sum(axis=1)
    assert_allclose(fit_temperature(sure, codes, np.ones(20_000)), 2.0, rtol=0.03)
    assert_allclose(scaled_probabilities(sure, 0.5), true, atol=1e-12)
    # A class of probability 0 counts as possible.
    found = scaled_probabilities(np.array([[0.0, 1.0]]), 0.5)
    assert_allclose(found[0], np.array([2.0**-26, 1]) / (1 + 2.0**-26))


def test_temperature_has_a_prior():
    """Without it, it would be 0 if all rows have the more probable class."""
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
        ends = np.stack([base.mean - radius, base.mean + radius], axis=1)
        assert_allclose(central_interval(quantile, coverage), ends)
    assert_array_equal(quantile(0.5), base.mean)
    with pytest.raises(ValueError, match="calibration rows reach a coverage of 0.9. Got 0.95"):
        central_interval(quantile, 0.95)


def test_groups_that_differ_by_chance_get_one_variance(rng):
    degrees = np.array([10.0, 50.0, 100.0, 20.0])
    chance = rng.chisquare(degrees) / degrees
    assert_allclose(pool_variances(chance, degrees), np.average(chance, weights=degrees))
    # Groups of many rows that differ keep their own; one without errors gets the common one.
    true = np.array([1.0, 9.0, 100.0, 0.01, 0.0])
    found = pool_variances(true, np.array([500.0, 500.0, 500.0, 500.0, 1.0]))
    assert_allclose(found[:4], true[:4], rtol=0.05)
    assert 0.01 < found[4] < 1
    assert_allclose(pool_variances(np.array([0.0, 0.0]), np.ones(2)), 0)
    assert_allclose(pool_variances(np.array([0.0, 4.0]), np.ones(2)), 4)


def test_few_groups_are_not_pooled_more_than_many():
    # Of pairs of groups too: the estimated variance of the true logarithms is unbiased.
    degrees, a = np.array([20.0, 20.0]), 2.0
    spread = a**2 / 2 - special.polygamma(1, 10.0)  # the variance of two numbers, less their noise
    found = pool_variances(np.exp([0, a]), degrees)
    prior = optimize.brentq(lambda x: special.polygamma(1, x) - spread, 0.01, 100)
    typical = np.exp(a / 2 - special.digamma(10.0) + np.log(10) + special.digamma(prior))
    typical /= prior
    assert_allclose(found, (2 * prior * typical + 20 * np.exp([0, a])) / (2 * prior + 20))


def fit_members(loc, scale, y, unseen=None, weight=None):
    """Fit the calibration of members, each a mixture of as many equal normals as `loc` has."""
    part, equal = np.full(loc.shape, 1 / loc.shape[1]), np.full(len(loc), 1 / len(loc))
    unseen = np.ones((len(loc), len(y)), bool) if unseen is None else unseen
    weight = np.ones(len(y)) if weight is None else weight
    return fit_out_of_bag(loc, scale, part, equal, unseen, y, weight)


@cases(("claim", "floor", "expected"), (0.5, 0.0, (2, 0)), (1.0, 0.7, (1, 0.7)))
def test_factor_and_floor_are_told_apart(claim, floor, expected, rng):
    """Members claim a part of the noise, or errors have a floor."""
    noise = rng.uniform(0.3, 1.5, (20_000, 1))
    y = rng.normal(size=(20_000, 1)) * np.hypot(noise, floor)
    scale = np.broadcast_to(claim * noise, (8, 1, 20_000, 1))
    found = fit_members(0 * scale, scale, y, rng.uniform(size=(8, 20_000)) < 0.1)
    assert_allclose((found.factor, found.floor), expected, rtol=0.03, atol=0.1)
    assert dict(zip(TAIL_SCALES, (share for *_, share in found.tail)))[1.0] > 0.9


def test_few_rows_give_no_correction(rng):
    scale, unseen = np.full((2, 1, 60, 1), 0.2), np.zeros((2, 60), bool)
    y, light = rng.normal(size=(60, 1)), np.r_[0.0, np.ones(59)]  # a row without weight is none
    for n_first, n_second, weight in ((0, 0, None), (29, 0, None), (29, 1, light), (29, 1, None)):
        unseen[1, :n_first] = True
        unseen[0, 29 : 29 + n_second] = True
        found = fit_members(0 * scale, scale, y, unseen, weight)
        fitted = n_second == 1 and weight is None
        assert ((found.factor, found.floor) != (1.0, 0.0)) == fitted


@pytest.mark.parametrize("n_rows", [1, 29, 400])
@pytest.mark.parametrize("error", [0.05, 1.0])
def test_few_rows_bound_what_a_far_error_costs(n_rows, error):
    """A component as wide as the errors were, shrunk to that of y; nothing of it for many rows."""
    narrow, y = np.full((2, 1, n_rows, 1), 0.01), error * np.resize([1.0, -1.0], (n_rows, 1))
    found = fit_members(0 * narrow, narrow, y)
    scale, floor, share = found.tail[-1]
    assert found.shared == 0 and sum(part[2] for part in found.tail) == pytest.approx(1)
    if n_rows == 400:
        assert floor == 0
        return
    assert_allclose(share, 0.4 * np.exp(-n_rows / 40))
    assert_allclose((scale, floor), (1, error ** (n_rows / (n_rows + 8))))
    targets = NumberTargets(loss="crps", standardize=False)
    targets.fit_encoder(y[:, 0], np.ones(n_rows))
    raw, half = np.tile([0.0, -5.0], (2, 4, 1)), np.full(2, 0.5)
    calibrated = targets.head.mixture(raw, half, targets.fit(y), Calibration(tail=found.tail))
    assert calibrated.log_prob(np.full(4, floor)).min() > np.log(share / floor) - 1.5
    # The possible error of the model is epistemic.
    assert (calibrated.epistemic_variance > 0.8 * (share * floor) ** 2).all()


@pytest.mark.parametrize("n_rows", [100, 600])
@pytest.mark.parametrize("change", [0.0, -0.3, 0.3, -2.0])
def test_correction_is_shrunk_unless_rows_leave_no_doubt(n_rows, change):
    """Rows count twice if standard deviations fall by a factor of exp(0.3), once if they rise."""
    total = np.random.default_rng(0).uniform(1, 2, (n_rows, 1))
    squares, weight = np.exp(2 * change) * total, np.ones(n_rows)
    full = np.square(fit_scale(squares, total, weight, prior_rows=0))
    fitted = full[0] * total + full[1]
    assert_allclose(fitted, squares, rtol=0.3)
    rows = n_rows * (1 + (min(np.log(fitted / total).mean() / 2, 0.0) / 0.3) ** 2)
    trust = rows / (rows + 100)
    found = np.square(fit_scale(squares, total, weight))
    assert_allclose(found, [1 + trust * (full[0] - 1), trust * full[1]], rtol=1e-6, atol=1e-12)


@cases(("value", "n_components"), (np.nan, 1), (np.inf, 2), (1e200, 2))
def test_predictions_that_are_not_finite_give_no_correction(value, n_components, rng):
    scale = np.ones((2, n_components, 100, 1))
    loc = 0 * scale
    loc[0, 0, 3] = value
    with np.errstate(all="ignore"):
        assert fit_members(loc, scale, rng.normal(size=(100, 1))) == UNCALIBRATED


@pytest.mark.parametrize("n_components", [1, 2])
def test_members_that_are_far_too_wide_become_as_narrow_as_their_errors(n_components, rng):
    """The prior of 100 rows does not hold back a factor that 150 rows put at a hundredth."""
    scale = np.ones((2, n_components, 150, 1))
    found = fit_members(0 * scale, scale, 0.01 * rng.normal(size=(150, 1)))
    assert np.hypot(found.factor, found.floor) < 0.15


def test_wide_components_of_mixtures_do_not_narrow_the_others(rng):
    """Variances alone would make all components, a tenth of which are wide, a third as wide."""
    scale = np.repeat([[[[1.0]], [[15.0]]]], 2000, axis=2)
    probability = np.repeat([[[[0.9]], [[0.1]]]], 2000, axis=2)
    unseen, weight, y = np.ones((1, 2000), bool), np.ones(2000), 1.5 * rng.normal(size=(2000, 1))
    found = fit_out_of_bag(0 * scale, scale, probability, np.ones(1), unseen, y, weight)
    assert 1.3 < found.factor < 1.6


def test_tail_finds_the_density_of_a_scale_mixture(rng):
    true = np.array([0.3, 0.5, 0.2])
    scale = rng.choice(TAIL_SCALES, size=(10_000, 2), p=true)
    error = scale * rng.normal(size=scale.shape)
    normals = stats.norm(0, np.array(TAIL_SCALES)[:, None, None])
    # Rows count by their weights.
    wild, weight = np.concatenate([error, 40 + error]), np.repeat([1.0, 1e-9], 10_000)
    found = fit_tail(normals.logpdf(wild), weight)
    assert_allclose(found[2], 0.2, atol=0.02)
    densities = normals.pdf(error)
    found, best = (np.log(np.tensordot(s, densities, 1)).mean() for s in (found, true))
    assert found > best - 1e-3


@cases(("n_rows", "expected"), (60, 1.3), (8_000, 2.0))
def test_few_rows_have_the_typical_error_of_all_members(n_rows, expected, rng):
    """Errors of twice the spread, which varies: many rows tell, and few keep to the prior."""
    spread = np.exp(0.7 * rng.normal(size=(n_rows, 1)))
    loc = spread * rng.normal(size=(8, 1, n_rows, 1))
    noise = 2 * spread * rng.normal(size=(n_rows, 1)) + rng.normal(size=(n_rows, 1))
    found = fit_members(loc, np.ones_like(loc), loc.mean(axis=(0, 1)) + noise)
    assert_allclose(np.hypot(found.factor, found.shared), expected, rtol=0.15)
