import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy import stats

from skuq.predictive import StudentTMixture, TransformedMixture


class Straight:
    """z = (y - 1) / 2."""

    def forward(self, y):
        return (y - 1) / 2

    def inverse(self, z):
        return 1 + 2 * z

    def log_derivative(self, y):
        return np.full(np.shape(y), -np.log(2))


def members(seed=0, k=3, shape=(5,)):
    rng = np.random.default_rng(seed)
    loc, scale = rng.normal(0, 3, (k, *shape)), rng.uniform(0.1, 2, (k, *shape))
    return loc, scale, rng.uniform(2.1, 20, (k, *shape))


def test_is_scipys_mixture(global_random_seed):
    loc, scale, df = members(global_random_seed)
    weights = np.array([0.2, 0.3, 0.5])
    m = StudentTMixture(loc, scale, df, weights)
    reference = stats.t(df, loc, scale)
    y = np.random.default_rng(1).normal(0, 5, 5)
    assert_allclose(m.cdf(y), weights @ reference.cdf(y), rtol=1e-10)
    assert_allclose(m.log_prob(y), np.log(weights @ reference.pdf(y)), rtol=1e-10)
    assert_allclose(m.mean, weights @ reference.mean(), rtol=1e-12)
    assert_allclose(m.aleatoric_variance, weights @ reference.var(), rtol=1e-10)


def test_one_member_is_scipys_t():
    loc, scale, df = members(k=1)
    m = StudentTMixture(loc, scale, df)
    for level in (1e-12, 1e-3, 0.5, 0.77, 1 - 1e-12):
        assert_allclose(m.quantile(level), stats.t(df[0], loc[0], scale[0]).ppf(level), rtol=1e-9)


@pytest.mark.parametrize("df", [2.1, 2.5, 3.0, 10.0, 100.0, 1e6])
def test_moments_by_quadrature_are_exact_where_tails_are_straight(df):
    m = StudentTMixture(np.full((1, 1), 0.3), np.full((1, 1), 2.0), np.full((1, 1), df))
    bent = TransformedMixture(m, Straight())
    assert_allclose(bent.mean, 1 + 2 * m.mean, rtol=1e-9)
    assert_allclose(bent.variance, 4 * m.variance, rtol=1e-6)


def test_far_quantiles_of_heavy_tails():
    m = StudentTMixture([[0.0], [1.0]], [[1.0], [1e-6]], [[2.05], [50.0]])
    for level in (1e-9, 1e-5, 0.4, 0.6, 1 - 1e-9):
        assert_allclose(m.cdf(m.quantile(level)), level, rtol=1e-7)
