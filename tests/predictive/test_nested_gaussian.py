import numpy as np
from numpy.testing import assert_allclose

from skuq.predictive import GaussianMixture, NestedGaussianMixture


def nested(seed=0, k=2, j=3, shape=(5,)):
    rng = np.random.default_rng(seed)
    loc, scale = rng.normal(0, 3, (k, j, *shape)), rng.uniform(0.1, 2, (k, j, *shape))
    probabilities = np.moveaxis(rng.dirichlet(np.ones(j), (k, *shape)), -1, 1)
    return NestedGaussianMixture(loc, scale, probabilities, rng.dirichlet(np.ones(k)))


def test_moments_by_hand():
    # Members 1/4 N(0, 1) + 3/4 N(4, 1), of mean 3 and variance 1 + 3, and N(1, 4).
    m = NestedGaussianMixture(
        [[[0.0], [4.0]], [[1.0], [9.0]]],
        [[[1.0], [1.0]], [[2.0], [1.0]]],
        [[[0.25], [0.75]], [[1.0], [0.0]]],
    )
    assert_allclose(m.member_means[:, 0], [3, 1])
    assert_allclose(m.member_variances[:, 0], [4, 4])
    assert_allclose((m.mean[0], m.aleatoric_variance[0], m.epistemic_variance[0]), (2, 4, 1))


def test_equal_probabilities_are_more_members_but_for_the_parts(global_random_seed):
    m = nested(global_random_seed)
    m = NestedGaussianMixture(m.loc, m.scale, np.full((2, 3, 5), 1 / 3))
    flat = GaussianMixture(m.loc.reshape(6, 5), m.scale.reshape(6, 5))
    y = np.random.default_rng(1).normal(0, 3, 5)
    assert_allclose(m.log_prob(y), flat.log_prob(y), rtol=1e-12)
    assert_allclose(m.quantile(0.2), flat.quantile(0.2), rtol=1e-10)
    assert_allclose(m.variance, flat.variance, rtol=1e-12)
    assert (m.aleatoric_variance > flat.aleatoric_variance).all()


def test_components_of_probability_0_do_not_matter():
    m = nested(k=1)
    far = np.concatenate([m.loc, np.full((1, 1, 5), 1e12)], axis=1)
    wide = np.concatenate([m.scale, np.full((1, 1, 5), 1e9)], axis=1)
    none = np.concatenate([m.probabilities, np.zeros((1, 1, 5))], axis=1)
    more = NestedGaussianMixture(far, wide, none)
    levels = [1e-6, 0.3, 0.99]
    assert_allclose(more.quantile(levels), m.quantile(levels), rtol=1e-12)
    assert_allclose(more.variance, m.variance, rtol=1e-12)
    y = np.zeros(5)
    assert_allclose(more.log_prob(y), m.log_prob(y), rtol=1e-12)
    assert_allclose(more.sample(100, rng=0), m.sample(100, rng=0))


def test_draws_choose_the_mode_of_each_row():
    loc = np.broadcast_to(np.array([-100.0, 100.0])[:, None], (1, 2, 40))
    draws = NestedGaussianMixture(loc, np.ones((1, 2, 40)), np.full((1, 2, 40), 0.5)).sample(500, 0)
    assert_allclose((draws > 0).sum(axis=0).std(), np.sqrt(40) / 2, rtol=0.16)
    assert abs((draws > 0).mean() - 0.5) < 0.02
