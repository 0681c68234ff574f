import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy import integrate, stats

from skuq.metrics import coverage_score, crps_loss, gaussian_nll_loss


def test_nll_is_scipys(global_random_seed):
    rng = np.random.default_rng(global_random_seed)
    y, mean, std = rng.normal(size=20), rng.normal(size=20), rng.uniform(0.1, 3, 20)
    weight = rng.uniform(size=20)
    expected = np.average(-stats.norm(mean, std).logpdf(y), weights=weight)
    assert_allclose(gaussian_nll_loss(y, mean, std, sample_weight=weight), expected)


def test_crps_is_the_integral_of_its_definition():
    y, mean, std = 0.7, -0.2, 1.3
    normal = stats.norm(mean, std)
    below, _ = integrate.quad(lambda t: normal.cdf(t) ** 2, -np.inf, y)
    above, _ = integrate.quad(lambda t: normal.sf(t) ** 2, y, np.inf)
    assert_allclose(crps_loss([y], [mean], [std]), below + above, rtol=1e-8)


def test_coverage_counts_ends_and_weights():
    assert coverage_score([0, 1, 2], [0, 0, 0], [1, 1, 1]) == pytest.approx(2 / 3)
    assert coverage_score([0, 9], [0, 0], [1, 1], sample_weight=[3, 1]) == 0.75


def test_outputs_are_averaged():
    y = np.zeros((2, 2))
    std = np.array([[1.0, 2.0], [1.0, 2.0]])
    expected = np.mean([gaussian_nll_loss(y[:, k], y[:, k], std[:, k]) for k in (0, 1)])
    assert_allclose(gaussian_nll_loss(y, y, std), expected)


def test_bad_arguments_are_refused():
    with pytest.raises(ValueError, match="`std` must be positive"):
        gaussian_nll_loss([0.0], [0.0], [0.0])
    with pytest.raises(ValueError, match="`mean` must have the shape"):
        crps_loss([0.0, 1.0], [[0.0], [1.0]], [1.0, 1.0])
    with pytest.raises(ValueError, match="inconsistent"):
        coverage_score([0.0], [0.0, 1.0], [0.0, 1.0])
