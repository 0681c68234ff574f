"""Distributions given by their parameters: values by hand, limit cases, and draws."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.testing import assert_allclose, assert_array_equal
from scipy import stats

from skuq.predictive import EpistemicNormal, GaussianMixture, TransformedMixture, TwoPieceNormal


def test_gaussian_mixture_ddof_of_weighted_members_is_their_effective_number():
    # Mean 3, variance 9/2 + 1/4 + 25/4 = 11. Weights 1/2, 1/4, 1/4 are worth 8/3 members.
    m = GaussianMixture([[0.0], [4.0], [8.0]], [[1.0], [2.0], [2.0]], [0.5, 0.25, 0.25])
    mean, aleatoric, epistemic, total = m.uncertainty(1)
    assert_allclose(np.ravel([mean, aleatoric**2, epistemic**2]), [3, 2.5, 11 * 8 / 5])
    assert_allclose(total**2, aleatoric**2 + epistemic**2)
    # For two members it is the sample variance, whatever their weights; one here rounds to 1.
    m = GaussianMixture([[0.0], [4.0]], [[1.0], [1.0]], [1.0, 1e-18])
    assert_allclose(m.uncertainty(1).epistemic ** 2, 8)


def test_gaussian_mixture_quantiles_of_extreme_scales():
    """Scales twelve orders apart, members far away, identical members."""
    loc, scale = [[0.0, 0.0, 5e8], [1e6, 0.0, 5e8]], [[1e-6, 1.0, 1e-3], [1e6, 1.0, 1e-3]]
    m = GaussianMixture(loc, scale, [0.5, 0.5])
    for level in (0.05, 0.4, 0.6, 0.99):
        assert_allclose(m.cdf(m.quantile(level)), level, rtol=1e-4)
    for loc, scale in (
        ([[0.0], [1e12]], [[1e-6], [1e-6]]),
        ([[1e15], [1e15]], [[1e-3], [2e-3]]),
        ([[1e15], [-1e15]], [[1e-9], [1e9]]),
    ):
        found = GaussianMixture(loc, scale).quantile([0.1, 0.4, 0.9])
        assert np.isfinite(found).all() and (np.diff(found) >= 0).all()


def test_nested_gaussian_components_of_probability_0_do_not_matter():
    rng = np.random.default_rng(0)
    loc, scale = rng.normal(0, 3, (1, 3, 5)), rng.uniform(0.1, 2, (1, 3, 5))
    probabilities = np.moveaxis(rng.dirichlet(np.ones(3), (1, 5)), -1, 1)
    m = GaussianMixture(loc, scale, probabilities=probabilities)
    far = np.concatenate([m.loc, np.full((1, 1, 5), 1e12)], axis=1)
    wide = np.concatenate([m.scale, np.full((1, 1, 5), 1e9)], axis=1)
    none = np.concatenate([m.probabilities, np.zeros((1, 1, 5))], axis=1)
    more = GaussianMixture(far, wide, probabilities=none)
    levels = [1e-6, 0.3, 0.99]
    assert_allclose(more.quantile(levels), m.quantile(levels), rtol=1e-12)
    assert_allclose(more.variance, m.variance, rtol=1e-12)
    y = np.zeros(5)
    assert_allclose(more.log_prob(y), m.log_prob(y), rtol=1e-12)
    assert_allclose(more.sample(100, rng=0), m.sample(100, rng=0))


def normal(shape=(6,), seed=0):
    rng = np.random.default_rng(seed)
    return EpistemicNormal(rng.normal(0, 3, shape), *rng.uniform(0.1, 2, (2, *shape)))


def test_epistemic_normal_parts_are_those_given():
    # 3, 4, 5; a mixture of one member would call all of 25 noise.
    m = EpistemicNormal([1.0, 2.0], [3.0, 0.0], [4.0, 5.0])
    assert isinstance(m, GaussianMixture)
    assert_array_equal(m.scale, [[5.0, 5.0]])
    assert_array_equal(m.aleatoric_variance, [9, 0])
    assert_array_equal(m.epistemic_variance, [16, 25])
    assert_array_equal(m.variance, [25, 25])
    assert_array_equal(m.weights, [1.0])
    for ddof in (0, 1):
        assert_array_equal(m.uncertainty(ddof), [[1, 2], [3, 0], [4, 5], [5, 5]])
    m = EpistemicNormal(np.zeros(1), np.full(1, 3e-200), np.full(1, 4e-200))
    assert_allclose(m.std, 5e-200)
    assert_allclose(m.uncertainty().total, 5e-200)


def test_epistemic_normal_draws_of_functions_have_their_covariance():
    functions = np.random.default_rng(0).normal(size=(3, 5, 2))
    epistemic = np.sqrt((functions**2).sum(axis=0))
    m = EpistemicNormal(np.ones((5, 2)), np.full((5, 2), 0.2), epistemic, functions)
    for found, factor in ((m, 1.0), (m.scaled(np.array([2.0, 0.5])), np.tile([2.0, 0.5], 5))):
        assert_allclose((found.functions**2).sum(axis=0), found.epistemic_variance)
        # Blocks of rows that draw with one seed share the functions.
        blocks = [found.rows(rows).sample(20_000, 1, seed=3) for rows in ([0, 1], [2, 3, 4])]
        for draws in (found.sample(20_000, 0), np.concatenate(blocks)):
            flat = factor * functions.reshape(3, 10)
            expected = flat.T @ flat + np.diag(found.aleatoric_variance.ravel())
            covariance = np.cov(draws.reshape(10, -1))
            assert_allclose(covariance, expected, atol=0.05 * expected.max())
    assert_array_equal(m.output(1).functions, functions[..., 1])


def spreads(n, least=1e-3):
    return arrays(float, n, elements=st.floats(least, 1e3))


MODES = arrays(float, 3, elements=st.floats(-1e3, 1e3))
RECORDS = st.builds(TwoPieceNormal, MODES, spreads(3), spreads(3), spreads(3, 0.0) | st.none())


@given(RECORDS)
def test_two_piece_parts_add_up_and_no_part_exceeds_the_total(m):
    s1, s2 = np.hypot(m.lower, m.aleatoric), np.hypot(m.upper, m.aleatoric)
    assert_allclose(m.variance, (1 - 2 / np.pi) * (s2 - s1) ** 2 + s1 * s2, rtol=1e-12)
    for ddof in (0, 1):
        mean, aleatoric, epistemic, total = m.uncertainty(ddof)
        assert_allclose(total**2, aleatoric**2 + epistemic**2, rtol=1e-13)
        assert (total >= np.maximum(aleatoric, epistemic) * (1 - 1e-15)).all()
        assert_array_equal(aleatoric, m.aleatoric)
        assert_array_equal(mean, m.mode)
    # Between the variances of the narrower and of a half-normal's reach of the wider side.
    narrow, wide = np.minimum(m.lower, m.upper), np.maximum(m.lower, m.upper)
    assert (m.epistemic_variance >= narrow**2 * (1 - 1e-12)).all()
    assert (m.epistemic_variance <= wide**2 * (1 + 1e-12)).all()


def test_two_piece_epistemic_variance_is_seen_beside_large_noise():
    # s1 s2 - a^2 to first order: (lower^2 + upper^2) / 2.
    m = TwoPieceNormal(np.zeros(1), np.full(1, 1e-6), np.full(1, 3e-6), np.full(1, 1e6))
    assert_allclose(m.epistemic_variance, 5e-12, rtol=1e-9)
    m = TwoPieceNormal(np.zeros(2), [0.0, 0.0], [2.0, 0.0], [1.0, 1.0])
    assert_allclose(m.cdf(0.0), [1 / (1 + np.sqrt(5)), 0.5])
    assert_array_equal(m.epistemic_variance[1], 0.0)
    assert m.epistemic_variance[0] > 0


class Logarithm:
    """z = log(y), of as many outputs as you like."""

    def forward(self, y):
        return np.log(y)

    def inverse(self, z):
        return np.exp(z)

    def log_derivative(self, y):
        return -np.log(y)

    def output(self, k):
        return self


class Johnson:
    """z = a + b * asinh(y): with a standard normal z, y is Johnson's SU distribution."""

    def __init__(self, a, b):
        self.a, self.b = a, b

    def forward(self, y):
        return self.a + self.b * np.arcsinh(y)

    def inverse(self, z):
        return np.sinh((z - self.a) / self.b)

    def log_derivative(self, y):
        return np.log(self.b) - 0.5 * np.log1p(y**2)


def normals(seed=0, k=3, shape=(5,), most=1.5):
    rng = np.random.default_rng(seed)
    return GaussianMixture(
        rng.normal(size=(k, *shape)),
        rng.uniform(0.1, most, (k, *shape)),
        rng.dirichlet(np.ones(k)) if k > 1 else None,
    )


@pytest.mark.parametrize("shape", [(5,), (4, 2)])
def test_transformed_is_scipys_lognormal(shape, global_random_seed):
    inner = normals(global_random_seed, shape=shape)
    m = TransformedMixture(inner, Logarithm())
    reference = stats.lognorm(inner.scale, scale=np.exp(inner.loc))
    y = np.random.default_rng(1).lognormal(size=shape)
    assert_allclose(m.cdf(y), np.tensordot(inner.weights, reference.cdf(y), 1), rtol=1e-10)
    densities = reference.pdf(y).reshape(3, shape[0], -1).prod(axis=2)
    assert_allclose(m.log_prob(y), np.log(inner.weights @ densities), rtol=1e-9)
    assert_allclose(m.member_means, reference.mean(), rtol=1e-10)
    assert_allclose(m.member_variances, reference.var(), rtol=1e-9)
    assert_allclose(m.quantile(0.3), np.exp(inner.quantile(0.3)), rtol=1e-12)


def test_transformed_is_scipys_johnson_su():
    m = TransformedMixture(GaussianMixture(np.zeros((1, 1)), np.ones((1, 1))), Johnson(0.8, 1.3))
    reference = stats.johnsonsu(0.8, 1.3)
    levels = [1e-6, 0.1, 0.5, 0.999]
    assert_allclose(m.quantile(levels)[0], reference.ppf(levels), rtol=1e-9)
    assert_allclose(m.log_prob([0.7]), reference.logpdf(0.7), rtol=1e-10)
    assert_allclose((m.mean[0], m.variance[0]), reference.stats("mv"), rtol=1e-8)
    inner = GaussianMixture([[1.0]], [[1e-7]])
    m = TransformedMixture(inner, Logarithm())
    assert_allclose(m.std, 1e-7 * np.e, rtol=1e-6)
    assert_allclose(m.mean, np.e, rtol=1e-12)


def test_transformed_tails_too_heavy_for_the_transform_are_said():
    m = TransformedMixture(GaussianMixture(np.zeros((1, 1)), np.full((1, 1), 400.0)), Logarithm())
    assert np.isfinite(m.quantile([0.05, 0.95])).all()  # they need no moments
    with pytest.raises(ValueError, match="grows too fast"):
        _ = m.std
    with pytest.raises(TypeError, match="inner must be a GaussianMixture"):
        TransformedMixture(np.zeros(3), Logarithm())
    with pytest.raises(ValueError, match="factor must be positive"):
        TransformedMixture(normals(), Logarithm(), factor=0.0)
