import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy import optimize

from skuq.metrics import (
    coverage_score,
    coverage_width_auc,
    coverage_width_curve,
    gaussian_nll_loss,
    mean_width,
    nll_min_loss,
)


def draw(seed, n=40):
    rng = np.random.default_rng(seed)
    return rng.normal(size=n), 0.5 * rng.normal(size=n), rng.uniform(0.1, 1.5, n)


def test_auc_by_hand():
    # Bounds reach the targets at c = 1, 2 and 4; the mean width is 2 c. Steps of 1/3.
    y, mean, std = np.array([1.0, 1.0, 6.0]), np.zeros(3), np.array([1.0, 0.5, 1.5])
    assert_allclose(coverage_width_auc(y, mean, std), (2 + 4 + 8) / 3)


def test_auc_is_the_area_under_the_curve(global_random_seed):
    y, mean, std = draw(global_random_seed)
    weight = np.random.default_rng(1).uniform(size=40)
    for given in ({}, {"sample_weight": weight}):
        _, coverage, width = coverage_width_curve(y, mean, std, **given)
        area = np.diff(coverage) @ width[1:]
        assert_allclose(coverage_width_auc(y, mean, std, **given), area)


def test_curve_is_made_of_coverage_and_mean_width(global_random_seed):
    y, mean, std = draw(global_random_seed)
    for c, coverage, width in zip(*coverage_width_curve(y, mean, std)):
        ends = mean - c * std, mean + c * std
        # On a bound that is rounded a target may be counted or not.
        slack = mean - c * std - 1e-12, mean + c * std + 1e-12
        assert_allclose(coverage_score(y, *slack), coverage)
        assert_allclose(mean_width(*ends), width, atol=1e-15)


def test_curve_puts_ties_into_one_point_and_starts_with_exact_predictions():
    scale, coverage, width = coverage_width_curve([0, 0, 1, -1], np.zeros(4), np.ones(4))
    assert_allclose((scale, coverage, width), ([0, 1], [0.5, 1], [0, 2]))
    # A row without weight has no point on the curve, even if it is the last.
    curve = coverage_width_curve([0, 1, 5], np.zeros(3), np.ones(3), sample_weight=[1, 1, 0])
    assert_allclose(curve, ([0, 1], [0.5, 1], [0, 2]))


def test_nll_min_is_found_by_an_optimiser(global_random_seed):
    y, mean, std = draw(global_random_seed)
    weight = np.random.default_rng(1).uniform(size=40)
    found = optimize.minimize_scalar(
        lambda log_c: gaussian_nll_loss(y, mean, np.exp(log_c) * std, sample_weight=weight)
    )
    loss, scale = nll_min_loss(y, mean, std, return_scale=True, sample_weight=weight)
    assert_allclose(loss, found.fun, rtol=1e-9)
    assert_allclose(scale, np.exp(found.x), rtol=1e-6)
    assert_allclose(loss, gaussian_nll_loss(y, mean, scale * std, sample_weight=weight))


def test_nll_min_has_a_scale_for_each_output():
    y, mean, std = (np.stack([draw(0)[k], 3 * draw(1)[k]], axis=1) for k in range(3))
    loss, scale = nll_min_loss(y, mean, std, return_scale=True)
    alone = [nll_min_loss(*(a[:, k] for a in (y, mean, std)), return_scale=True) for k in (0, 1)]
    assert_allclose(scale, [c for _, c in alone])
    assert_allclose(loss, np.mean([value for value, _ in alone]))


@pytest.mark.parametrize("factor", [1e-3, 1e4])
def test_the_size_of_std_does_not_matter(factor):
    y, mean, std = draw(0)
    for score in (coverage_width_auc, nll_min_loss):
        assert_allclose(score(y, mean, factor * std), score(y, mean, std))


def test_limits():
    y, _, std = draw(0)
    assert coverage_width_auc(y, y, std) == 0
    assert nll_min_loss(y, y, std, return_scale=True) == (-np.inf, 0.0)
    assert_allclose(coverage_width_curve(y, y, std), ([0.0], [1.0], [0.0]))
    assert coverage_width_auc([1.0], [0.0], [3.0]) == 2
