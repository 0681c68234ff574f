"""Distributions given by their parameters: values by hand, limit cases, and draws."""

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.testing import assert_allclose, assert_array_equal
from scipy import stats
from tiers import cases

from skuq.predictive import EpistemicNormal, GaussianMixture, TransformedMixture, TwoPieceNormal


def test_gaussian_mixture_ddof_of_weighted_members_is_their_effective_number():
    # Mean 3, variance 9/2 + 1/4 + 25/4 = 11. Weights 1/2, 1/4, 1/4 are worth 8/3 members.
    m = GaussianMixture([[0.0], [4.0], [8.0]], [[1.0], [2.0], [2.0]], [0.5, 0.25, 0.25])
    found = np.ravel(m.uncertainty(1)) ** 2
    assert_allclose(found, [9, 2.5, 11 * 8 / 5, 2.5 + 11 * 8 / 5])
    # For two members it is the sample variance, whatever their weights; one here rounds to 1.
    m = GaussianMixture([[0.0], [4.0]], [[1.0], [1.0]], [1.0, 1e-18])
    assert_allclose(m.uncertainty(1).epistemic ** 2, 8)


@cases(
    ("loc", "scale"),
    ([0.0, 1e6], [1e-6, 1e6]),
    ([5e8, 5e8], [1e-3, 1e-3]),
    ([0.0, 1e12], [1e-6, 1e-6]),
    ([1e15, -1e15], [1e-9, 1e9]),
)
def test_gaussian_mixture_quantiles_of_extreme_scales(loc, scale):
    m = GaussianMixture(np.transpose([loc]), np.transpose([scale]))
    found = m.quantile([0.05, 0.4, 0.6, 0.99])[0]
    assert np.isfinite(found).all() and (np.diff(found) >= 0).all()
    if abs(loc[1]) < 1e9:
        assert_allclose(m.cdf(found), [0.05, 0.4, 0.6, 0.99], rtol=1e-4)


def test_nested_gaussian_components_of_probability_0_do_not_matter(rng):
    loc, scale = rng.normal(0, 3, (1, 3, 5)), rng.uniform(0.1, 2, (1, 3, 5))
    probabilities = rng.dirichlet(np.ones(3), (1, 5)).transpose(0, 2, 1)
    m = GaussianMixture(loc, scale, probabilities=probabilities)
    further = ((m.loc, 1e12), (m.scale, 1e9), (m.probabilities, 0.0))
    arrays = [np.concatenate([a, np.full((1, 1, 5), value)], axis=1) for a, value in further]
    more = GaussianMixture(*arrays[:2], probabilities=arrays[2])
    levels = [1e-6, 0.3, 0.99]
    assert_allclose(more.quantile(levels), m.quantile(levels), rtol=1e-12)
    assert_allclose(more.variance, m.variance, rtol=1e-12)
    assert_allclose(more.log_prob(0.0), m.log_prob(0.0), rtol=1e-12)
    assert_allclose(more.sample(100, rng=0), m.sample(100, rng=0))


def test_epistemic_normal_parts_are_those_given():
    # 3, 4, 5; a mixture of one member would call all of 25 noise.
    m = EpistemicNormal([1.0, 2.0], [3.0, 0.0], [4.0, 5.0])
    assert isinstance(m, GaussianMixture)
    assert_array_equal((m.loc[0], m.scale[0]), [[1, 2], [5, 5]])
    expected = [9, 0], [16, 25], [25, 25]
    assert_array_equal((m.aleatoric_variance, m.epistemic_variance, m.variance), expected)
    assert_array_equal(m.uncertainty(1), [[1, 2], [3, 0], [4, 5], [5, 5]])
    m = EpistemicNormal(np.zeros(1), np.full(1, 3e-200), np.full(1, 4e-200))
    assert_allclose((m.std, m.uncertainty().total), 5e-200)


def test_epistemic_normal_draws_of_functions_have_their_covariance(rng):
    functions = rng.normal(size=(3, 5, 2))
    epistemic = np.sqrt((functions**2).sum(axis=0))
    m = EpistemicNormal(np.ones((5, 2)), np.full((5, 2), 0.2), epistemic, functions)
    for found, factor in ((m, 1.0), (m.scaled(np.array([2.0, 0.5])), np.tile([2.0, 0.5], 5))):
        # Blocks of rows that draw with one seed share the functions.
        blocks = [found.rows(rows).sample(20_000, 1, seed=3) for rows in ([0, 1], [2, 3, 4])]
        for draws in (found.sample(20_000, 0), np.concatenate(blocks)):
            flat = factor * functions.reshape(3, 10)
            expected = flat.T @ flat + np.diag(found.aleatoric_variance.ravel())
            covariance = np.cov(draws.reshape(10, -1))
            assert_allclose(covariance, expected, atol=0.05 * expected.max())
    assert_array_equal(m.output(1).functions, functions[..., 1])


def numbers(least):
    return arrays(float, 3, elements=st.floats(least, 1e3))


@given(numbers(-1e3), numbers(1e-3), numbers(1e-3), numbers(0.0) | st.none())
def test_two_piece_variance_is_wallis_and_has_two_parts(mode, lower, upper, aleatoric):
    m = TwoPieceNormal(mode, lower, upper, aleatoric)
    s1, s2 = np.hypot(lower, m.aleatoric), np.hypot(upper, m.aleatoric)
    assert_allclose(m.variance, (1 - 2 / np.pi) * (s2 - s1) ** 2 + s1 * s2, rtol=1e-12)
    mean, noise, epistemic, total = m.uncertainty(1)
    assert_allclose(total**2, noise**2 + epistemic**2, rtol=1e-13)
    assert_array_equal((mean, noise), (mode, m.aleatoric))
    # Between the variances of the narrower and of the wider side.
    narrow, wide = np.minimum(lower, upper), np.maximum(lower, upper)
    assert (epistemic >= narrow * (1 - 1e-12)).all() and (epistemic <= wide * (1 + 1e-12)).all()


def test_two_piece_epistemic_variance_is_seen_beside_large_noise():
    # s1 s2 - a^2 to first order: (lower^2 + upper^2) / 2.
    m = TwoPieceNormal(np.zeros(1), np.full(1, 1e-6), np.full(1, 3e-6), np.full(1, 1e6))
    assert_allclose(m.epistemic_variance, 5e-12, rtol=1e-9)
    m = TwoPieceNormal(np.zeros(2), [0.0, 0.0], [2.0, 0.0], [1.0, 1.0])
    assert_allclose(m.cdf(0.0), [1 / (1 + np.sqrt(5)), 0.5])
    assert m.epistemic_variance[0] > m.epistemic_variance[1] == 0


#: z = log(y), of as many outputs as you like.
LOG = SimpleNamespace(forward=np.log, inverse=np.exp, log_derivative=lambda y: -np.log(y))


@pytest.mark.parametrize("shape", [(5,), (4, 2)])
def test_transformed_is_scipys_lognormal(shape, rng):
    scale, weights = rng.uniform(0.1, 1.5, (3, *shape)), rng.dirichlet(np.ones(3))
    inner = GaussianMixture(rng.normal(size=(3, *shape)), scale, weights)
    m, reference = TransformedMixture(inner, LOG), stats.lognorm(scale, scale=np.exp(inner.loc))
    y = rng.lognormal(size=shape)
    assert_allclose(m.cdf(y), np.tensordot(weights, reference.cdf(y), 1), rtol=1e-10)
    densities = reference.pdf(y).reshape(3, shape[0], -1).prod(axis=2)
    assert_allclose(m.log_prob(y), np.log(weights @ densities), rtol=1e-9)
    assert_allclose(m.member_means, reference.mean(), rtol=1e-10)
    assert_allclose(m.member_variances, reference.var(), rtol=1e-9)
    narrow = TransformedMixture(GaussianMixture([[1.0]], [[1e-7]]), LOG)
    assert_allclose((narrow.mean, narrow.std / 1e-7), np.e, rtol=1e-6)


def test_transformed_tails_too_heavy_for_the_transform_are_said():
    wide = GaussianMixture([[0.0]], [[400.0]])
    m = TransformedMixture(wide, LOG)
    assert np.isfinite(m.quantile([0.05, 0.95])).all()  # they need no moments
    with pytest.raises(ValueError, match="grows too fast"):
        _ = m.std
    with pytest.raises(TypeError, match="inner must be a GaussianMixture"):
        TransformedMixture(np.zeros(3), LOG)
    with pytest.raises(ValueError, match="factor must be positive"):
        TransformedMixture(wide, LOG, factor=0.0)
