import numpy as np
from numpy.testing import assert_allclose

from skuq.predictive import GaussianMixture


def test_moments_by_hand():
    # N(0, 1) and N(2, 3**2) weighted 1/4, 3/4: 3/2, 1/4 + 27/4, 9/16 + 3/16.
    m = GaussianMixture([[0.0], [2.0]], [[1.0], [3.0]], [0.25, 0.75])
    moments = m.mean, m.aleatoric_variance, m.epistemic_variance
    assert_allclose(np.ravel(moments), [1.5, 7.0, 0.75], rtol=1e-15)


def test_ddof_is_equation_4_for_equal_weights(global_random_seed):
    rng = np.random.default_rng(global_random_seed)
    loc, scale = rng.normal(size=(5, 7)), rng.uniform(1, 2, (5, 7))
    for ddof in (0, 1):
        found = GaussianMixture(loc, scale).uncertainty(ddof).epistemic
        assert_allclose(found**2, loc.var(axis=0, ddof=ddof), rtol=1e-12)


def test_ddof_of_weighted_members_is_their_effective_number():
    # Mean 3, variance 9/2 + 1/4 + 25/4 = 11. Weights 1/2, 1/4, 1/4 are worth 8/3 members.
    m = GaussianMixture([[0.0], [4.0], [8.0]], [[1.0], [2.0], [2.0]], [0.5, 0.25, 0.25])
    mean, aleatoric, epistemic, total = m.uncertainty(1)
    assert_allclose(np.ravel([mean, aleatoric**2, epistemic**2]), [3, 2.5, 11 * 8 / 5])
    assert_allclose(total**2, aleatoric**2 + epistemic**2)
    # For two members it is the sample variance, whatever their weights; one here rounds to 1.
    m = GaussianMixture([[0.0], [4.0]], [[1.0], [1.0]], [1.0, 1e-18])
    assert_allclose(m.uncertainty(1).epistemic ** 2, 8)


def test_quantiles_of_extreme_mixtures():
    """Scales twelve orders apart, members far away, identical members."""
    m = GaussianMixture(
        [[0.0, 0.0, 5e8], [1e6, 0.0, 5e8]], [[1e-6, 1.0, 1e-3], [1e6, 1.0, 1e-3]], [0.5, 0.5]
    )
    for level in (0.05, 0.4, 0.6, 0.99):
        assert_allclose(m.cdf(m.quantile(level)), level, rtol=1e-4)


def test_quantiles_are_finite_where_scales_are_below_rounding():
    for loc, scale in (
        ([[0.0], [1e12]], [[1e-6], [1e-6]]),
        ([[1e15], [1e15]], [[1e-3], [2e-3]]),
        ([[1e15], [-1e15]], [[1e-9], [1e9]]),
    ):
        found = GaussianMixture(loc, scale).quantile([0.1, 0.4, 0.9])
        assert np.isfinite(found).all() and (np.diff(found) >= 0).all()
