import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy import stats

from skuq.metrics import (
    crps_loss,
    crps_mixture_loss,
    crps_sample_loss,
    gaussian_nll_loss,
    mixture_nll_loss,
)


def draw_normals(seed, *shape):
    rng = np.random.default_rng(seed)
    return rng.normal(size=shape), rng.normal(size=shape), rng.uniform(0.1, 3, shape)


def draw_mixtures(seed, *shape, n_members=4):
    rng = np.random.default_rng(seed)
    loc, scale = rng.normal(size=(n_members, *shape)), rng.uniform(0.1, 3, (n_members, *shape))
    return rng.normal(size=shape), loc, scale, rng.dirichlet(np.ones(n_members))


def test_nll_is_scipys(global_random_seed):
    y, mean, std = draw_normals(global_random_seed, 20)
    weight = np.random.default_rng(1).uniform(size=20)
    expected = np.average(-stats.norm(mean, std).logpdf(y), weights=weight)
    assert_allclose(gaussian_nll_loss(y, mean, std, sample_weight=weight), expected)


@pytest.mark.parametrize("shape", [(20,), (20, 3)])
def test_mixture_nll_is_tensorflow_probabilitys(global_random_seed, shape):
    tfd = pytest.importorskip("tensorflow_probability").distributions
    y, loc, scale, weights = draw_mixtures(global_random_seed, *shape)
    normal = tfd.Normal(np.moveaxis(loc, 0, 1), np.moveaxis(scale, 0, 1))
    if len(shape) == 2:
        normal = tfd.Independent(normal, reinterpreted_batch_ndims=1)
    mixture = tfd.MixtureSameFamily(tfd.Categorical(probs=weights), normal)
    expected = -np.mean(mixture.log_prob(y)) * 20 / y.size
    assert_allclose(mixture_nll_loss(y, loc, scale, weights), expected, rtol=1e-6)


def test_mixture_nll_is_finite_far_away():
    # Both densities underflow: log of half a normal density at 100, the other is nothing.
    expected = np.log(2) - stats.norm.logpdf(100)
    assert_allclose(mixture_nll_loss([100.0], [[0.0], [-50.0]], np.ones((2, 1))), expected)


def test_crps_is_scoringrules(global_random_seed):
    scoringrules = pytest.importorskip("scoringrules")
    y, mean, std = draw_normals(global_random_seed, 50, 2)
    assert_allclose(crps_loss(y, mean, std), scoringrules.crps_normal(y, mean, std).mean())


def test_crps_of_mixtures_is_scoringrules(global_random_seed):
    scoringrules = pytest.importorskip("scoringrules")
    y, loc, scale, weights = draw_mixtures(global_random_seed, 50, 2)
    members = (np.moveaxis(part, 0, -1) for part in (loc, scale))
    expected = scoringrules.crps_mixnorm(y, *members, np.broadcast_to(weights, (50, 2, 4)))
    assert_allclose(crps_mixture_loss(y, loc, scale, weights), expected.mean(), rtol=1e-6)


@pytest.mark.parametrize(("fair", "estimator"), [(True, "fair"), (False, "nrg")])
@pytest.mark.parametrize("shape", [(30,), (30, 2)])
def test_crps_of_draws_is_scoringrules(global_random_seed, fair, estimator, shape):
    scoringrules = pytest.importorskip("scoringrules")
    rng = np.random.default_rng(global_random_seed)
    y, samples = rng.normal(size=shape), rng.normal(size=(*shape, 11))
    expected = scoringrules.crps_ensemble(y, samples, estimator=estimator).mean()
    assert_allclose(crps_sample_loss(y, samples, fair=fair), expected, rtol=1e-9)


def test_members_of_no_weight_are_left_out():
    y, loc, scale, _ = draw_mixtures(0, 6)
    for loss in (mixture_nll_loss, crps_mixture_loss):
        expected = loss(y, loc[:2], scale[:2])
        assert_allclose(loss(y, loc, scale, [0.5, 0.5, 0, 0]), expected)
