import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy import stats

from skuq.metrics import (
    calibration_error,
    miscalibration_area,
    mixture_pit_values,
    quantile_calibration_curve,
    sharpness,
)
from skuq.predictive import GaussianMixture

KINDS = ("quantile", "interval")


def draw(seed, n=60):
    rng = np.random.default_rng(seed)
    return rng.normal(size=n), 0.5 * rng.normal(size=n), rng.uniform(0.3, 1.5, n)


def toolbox():
    return pytest.importorskip("uncertainty_toolbox.metrics_calibration")


def theirs(y, mean, std, kind):
    """Arguments of the toolbox, whose quantile levels are counted from above."""
    return ((y, std, mean) if kind == "quantile" else (mean, std, y)), {"prop_type": kind}


def test_pit_of_mixtures_is_their_cdf(global_random_seed):
    rng = np.random.default_rng(global_random_seed)
    loc, scale = rng.normal(size=(3, 20, 2)), rng.uniform(0.5, 2, (3, 20, 2))
    weights = rng.dirichlet(np.ones(3))
    mixture = GaussianMixture(loc, scale, weights)
    y = rng.normal(size=(20, 2))
    assert_allclose(mixture_pit_values(y, loc, scale, weights), mixture.cdf(y))
    assert mixture_pit_values([99.0] * 20, loc[..., 0], scale[..., 0], weights).max() <= 1


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n_levels", [2, 11, 100])
def test_curve_and_error_are_uncertainty_toolboxs(global_random_seed, kind, n_levels):
    y, mean, std = draw(global_random_seed)
    given, keywords = theirs(y, mean, std, kind)
    keywords["num_bins"] = n_levels
    expected = toolbox().get_proportion_lists_vectorized(*given, **keywords)
    curve = quantile_calibration_curve(y, mean, std, kind=kind, n_levels=n_levels)
    assert_allclose(curve, expected, atol=1e-12)
    error = toolbox().mean_absolute_calibration_error(*given, **keywords)
    assert_allclose(calibration_error(y, mean, std, kind=kind, n_levels=n_levels), error)


@pytest.mark.parametrize("kind", KINDS)
def test_area_is_the_limit_of_uncertainty_toolboxs(global_random_seed, kind):
    y, mean, std = draw(global_random_seed)
    given, keywords = theirs(y, mean, std, kind)
    expected = toolbox().miscalibration_area(*given, **keywords, num_bins=20_001)
    # A step of the curve may lie anywhere within a bin: n of 1/n, half a bin each.
    assert_allclose(miscalibration_area(y, mean, std, kind=kind), expected, atol=5e-5)


def test_area_is_the_wasserstein_distance_from_uniform():
    pit = np.random.default_rng(0).beta(0.5, 0.7, size=50)
    uniform = (np.arange(200_000) + 0.5) / 200_000
    assert_allclose(miscalibration_area(pit=pit), stats.wasserstein_distance(pit, uniform))


@pytest.mark.parametrize("score", [calibration_error, miscalibration_area])
def test_limits(score):
    even = (np.arange(1000) + 0.5) / 1000
    assert score(pit=even) < 0.001
    assert score(pit=[0.0]) == pytest.approx(0.5)
    # Only the last of 100 levels holds any targets.
    assert score(pit=np.zeros(5), kind="interval") == pytest.approx(0.5, abs=0.011)
    # Symmetric and too wide: quantiles are off by up to 1/4, intervals by up to 1/2.
    narrow = 0.25 + 0.5 * even
    assert score(pit=narrow, kind="interval") == pytest.approx(0.25, abs=0.01)
    assert score(pit=narrow) == pytest.approx(0.125, abs=0.01)


def test_curve_of_several_outputs_has_a_column_for_each():
    pit = np.random.default_rng(0).uniform(size=(30, 2))
    expected, observed = quantile_calibration_curve(pit=pit, n_levels=7)
    assert observed.shape == (7, 2)
    for k in range(2):
        alone = quantile_calibration_curve(pit=pit[:, k], n_levels=7)
        assert_allclose((expected, observed[:, k]), alone)


def test_sharpness_is_uncertainty_toolboxs():
    _, _, std = draw(0)
    assert_allclose(sharpness(std), toolbox().sharpness(std))
