import numpy as np
import pytest
from numpy.testing import assert_allclose

from skuq.metrics import coverage_score, interval_loss, mean_width, quantile_loss


def test_coverage_counts_ends_and_weights():
    assert coverage_score([0, 1, 2], [0, 0, 0], [1, 1, 1]) == pytest.approx(2 / 3)
    assert coverage_score([0, 9], [0, 0], [1, 1], sample_weight=[3, 1]) == 0.75


def test_intervals_may_be_unbounded():
    assert coverage_score([0.0, 1.0], [-np.inf, 2.0], [np.inf, 3.0]) == 0.5
    assert mean_width([-np.inf], [0.0]) == np.inf


@pytest.mark.parametrize("coverage", [0.5, 0.9])
def test_interval_loss_is_scoringrules(global_random_seed, coverage):
    scoringrules = pytest.importorskip("scoringrules")
    rng = np.random.default_rng(global_random_seed)
    y, centre, half = 2 * rng.normal(size=(3, 40, 2))
    ends = centre - abs(half), centre + abs(half)
    expected = scoringrules.interval_score(y, *ends, 1 - coverage).mean()
    assert_allclose(interval_loss(y, *ends, coverage), expected)


@pytest.mark.parametrize("shape", [(30,), (30, 2)])
def test_quantile_loss_is_scoringrules(global_random_seed, shape):
    scoringrules = pytest.importorskip("scoringrules")
    rng = np.random.default_rng(global_random_seed)
    levels = [0.1, 0.5, 0.7]
    y, quantiles = rng.normal(size=shape), rng.normal(size=(30, 3, *shape[1:]))
    expected = np.mean(
        [scoringrules.quantile_score(y, quantiles[:, k], level) for k, level in enumerate(levels)]
    )
    assert_allclose(quantile_loss(y, quantiles, levels), expected)


def test_rows_of_no_weight_may_be_unbounded():
    lower, upper = [-np.inf, 0.0], [np.inf, 1.0]
    assert mean_width(lower, upper, sample_weight=[0, 1]) == 1
    assert interval_loss([0.5, 0.5], lower, upper, 0.9, sample_weight=[0, 1]) == 1
    assert mean_width([0.0, 0.0], [1.0, 3.0], sample_weight=[1e308, 1e308]) == 2
