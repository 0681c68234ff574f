"""Scores of regressors against other libraries, optimisers, and values by hand."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy import optimize, stats

from skuq import metrics


def draw(seed, *shape):
    rng, shape = np.random.default_rng(seed), shape or (40,)
    return rng.normal(size=shape), 0.5 * rng.normal(size=shape), rng.uniform(0.1, 1.5, shape)


def draw_mixtures(seed, *shape, n_members=4):
    rng = np.random.default_rng(seed)
    loc, scale = rng.normal(size=(n_members, *shape)), rng.uniform(0.1, 3, (n_members, *shape))
    return rng.normal(size=shape), loc, scale, rng.dirichlet(np.ones(n_members))


def test_nll_is_scipys(global_random_seed):
    y, mean, std = draw(global_random_seed, 20)
    weight = np.random.default_rng(1).uniform(size=20)
    expected = np.average(-stats.norm(mean, std).logpdf(y), weights=weight)
    assert_allclose(metrics.gaussian_nll_loss(y, mean, std, sample_weight=weight), expected)


@pytest.mark.parametrize("shape", [(20,), (20, 3)])
def test_mixture_nll_is_tensorflow_probabilitys(global_random_seed, shape):
    tfd = pytest.importorskip("tensorflow_probability").distributions
    y, loc, scale, weights = draw_mixtures(global_random_seed, *shape)
    normal = tfd.Normal(np.moveaxis(loc, 0, 1), np.moveaxis(scale, 0, 1))
    if len(shape) == 2:
        normal = tfd.Independent(normal, reinterpreted_batch_ndims=1)
    mixture = tfd.MixtureSameFamily(tfd.Categorical(probs=weights), normal)
    expected = -np.mean(mixture.log_prob(y)) * 20 / y.size
    assert_allclose(metrics.mixture_nll_loss(y, loc, scale, weights), expected, rtol=1e-6)


def test_mixture_nll_is_finite_far_away():
    # Both densities underflow: log of half a normal density at 100, the other is nothing.
    expected = np.log(2) - stats.norm.logpdf(100)
    assert_allclose(metrics.mixture_nll_loss([100.0], [[0.0], [-50.0]], np.ones((2, 1))), expected)


def test_crps_is_scoringrules(global_random_seed):
    scoringrules = pytest.importorskip("scoringrules")
    y, mean, std = draw(global_random_seed, 50, 2)
    assert_allclose(metrics.crps_loss(y, mean, std), scoringrules.crps_normal(y, mean, std).mean())
    y, loc, scale, weights = draw_mixtures(global_random_seed, 50, 2)
    members = (np.moveaxis(part, 0, -1) for part in (loc, scale))
    expected = scoringrules.crps_mixnorm(y, *members, np.broadcast_to(weights, (50, 2, 4)))
    assert_allclose(metrics.crps_mixture_loss(y, loc, scale, weights), expected.mean(), rtol=1e-6)


def test_members_of_no_weight_are_left_out():
    y, loc, scale, _ = draw_mixtures(0, 6)
    for loss in (metrics.mixture_nll_loss, metrics.crps_mixture_loss):
        expected = loss(y, loc[:2], scale[:2])
        assert_allclose(loss(y, loc, scale, [0.5, 0.5, 0, 0]), expected)


def test_rescaled_auc_is_the_area_under_the_curve(global_random_seed):
    y, mean, std = draw(global_random_seed)
    weight = np.random.default_rng(1).uniform(size=40)
    for given in ({}, {"sample_weight": weight}):
        _, coverage, width = metrics.coverage_width_curve(y, mean, std, **given)
        area = np.diff(coverage) @ width[1:]
        assert_allclose(metrics.coverage_width_auc(y, mean, std, **given), area)
    # Bounds reach the targets at c = 1, 2 and 4; the mean width is 2 c. Steps of 1/3.
    assert metrics.nll_min_loss(y, y, std) == -np.inf
    y, mean, std = np.array([1.0, 1.0, 6.0]), np.zeros(3), np.array([1.0, 0.5, 1.5])
    assert_allclose(metrics.coverage_width_auc(y, mean, std), (2 + 4 + 8) / 3)


def test_rescaled_curve_puts_ties_into_one_point_and_starts_with_exact_predictions():
    scale, coverage, width = metrics.coverage_width_curve([0, 0, 1, -1], np.zeros(4), np.ones(4))
    assert_allclose((scale, coverage, width), ([0, 1], [0.5, 1], [0, 2]))
    # A row without weight has no point on the curve, even if it is the last.
    weight = {"sample_weight": [1, 1, 0]}
    curve = metrics.coverage_width_curve([0, 1, 5], np.zeros(3), np.ones(3), **weight)
    assert_allclose(curve, ([0, 1], [0.5, 1], [0, 2]))


def test_rescaled_nll_min_is_found_by_an_optimiser(global_random_seed):
    y, mean, std = draw(global_random_seed)
    weight = np.random.default_rng(1).uniform(size=40)
    found = optimize.minimize_scalar(
        lambda log_c: metrics.gaussian_nll_loss(y, mean, np.exp(log_c) * std, sample_weight=weight)
    )
    loss = metrics.nll_min_loss(y, mean, std, sample_weight=weight)
    assert_allclose(loss, found.fun, rtol=1e-9)


def test_intervals_by_hand():
    assert metrics.coverage_score([0, 1, 2], [0, 0, 0], [1, 1, 1]) == pytest.approx(2 / 3)
    assert metrics.coverage_score([0, 9], [0, 0], [1, 1], sample_weight=[3, 1]) == 0.75
    assert metrics.coverage_score([0.0, 1.0], [-np.inf, 2.0], [np.inf, 3.0]) == 0.5
    assert metrics.mean_width([-np.inf], [0.0]) == np.inf
    lower, upper = [-np.inf, 0.0], [np.inf, 1.0]
    assert metrics.mean_width(lower, upper, sample_weight=[0, 1]) == 1
    assert metrics.interval_loss([0.5, 0.5], lower, upper, 0.9, sample_weight=[0, 1]) == 1
    assert metrics.mean_width([0.0, 0.0], [1.0, 3.0], sample_weight=[1e308, 1e308]) == 2


@pytest.mark.parametrize("coverage", [0.5, 0.9])
def test_intervals_interval_loss_is_scoringrules(global_random_seed, coverage):
    scoringrules = pytest.importorskip("scoringrules")
    rng = np.random.default_rng(global_random_seed)
    y, centre, half = 2 * rng.normal(size=(3, 40, 2))
    ends = centre - abs(half), centre + abs(half)
    expected = scoringrules.interval_score(y, *ends, 1 - coverage).mean()
    assert_allclose(metrics.interval_loss(y, *ends, coverage), expected)


@pytest.mark.parametrize("shape", [(30,), (30, 2)])
def test_intervals_quantile_loss_is_scoringrules(global_random_seed, shape):
    scoringrules = pytest.importorskip("scoringrules")
    rng = np.random.default_rng(global_random_seed)
    levels = [0.1, 0.5, 0.7]
    y, quantiles = rng.normal(size=shape), rng.normal(size=(30, 3, *shape[1:]))
    pairs = enumerate(levels)
    expected = np.mean([scoringrules.quantile_score(y, quantiles[:, k], p) for k, p in pairs])
    assert_allclose(metrics.quantile_loss(y, quantiles, levels), expected)


@pytest.mark.parametrize("n_levels", [2, 100])
def test_calibration_curve_and_error_are_uncertainty_toolboxs(global_random_seed, n_levels):
    toolbox = pytest.importorskip("uncertainty_toolbox.metrics_calibration")
    y, mean, std = draw(global_random_seed)
    # Its quantile levels are counted from above.
    given, keywords = (y, std, mean), {"prop_type": "quantile", "num_bins": n_levels}
    expected = toolbox.get_proportion_lists_vectorized(*given, **keywords)
    curve = metrics.quantile_calibration_curve(y, mean, std, n_levels=n_levels)
    assert_allclose(curve, expected, atol=1e-12)
    error = toolbox.mean_absolute_calibration_error(*given, **keywords)
    assert_allclose(metrics.calibration_error(y, mean, std, n_levels=n_levels), error)


def test_calibration_limits():
    even = (np.arange(1000) + 0.5) / 1000
    assert metrics.calibration_error(pit=even) < 0.001
    assert metrics.calibration_error(pit=[0.0]) == pytest.approx(0.5)
    # Too wide: quantiles are off by up to 1/4.
    assert metrics.calibration_error(pit=0.25 + 0.5 * even) == pytest.approx(0.125, abs=0.01)
