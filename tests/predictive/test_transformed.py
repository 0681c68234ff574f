import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy import stats

from skuq.predictive import GaussianMixture, StudentTMixture, TransformedMixture
from skuq.tables import TargetTransform


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
def test_is_scipys_lognormal(shape, global_random_seed):
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


def test_is_scipys_johnson_su():
    m = TransformedMixture(GaussianMixture(np.zeros((1, 1)), np.ones((1, 1))), Johnson(0.8, 1.3))
    reference = stats.johnsonsu(0.8, 1.3)
    levels = [1e-6, 0.1, 0.5, 0.999]
    assert_allclose(m.quantile(levels)[0], reference.ppf(levels), rtol=1e-9)
    assert_allclose(m.log_prob([0.7]), reference.logpdf(0.7), rtol=1e-10)
    assert_allclose((m.mean[0], m.variance[0]), reference.stats("mv"), rtol=1e-8)


def test_moments_of_a_small_spread_are_those_of_the_slope():
    inner = GaussianMixture([[1.0]], [[1e-7]])
    m = TransformedMixture(inner, Logarithm())
    assert_allclose(m.std, 1e-7 * np.e, rtol=1e-6)
    assert_allclose(m.mean, np.e, rtol=1e-12)


@pytest.mark.parametrize("kind", ["standard", "yeo-johnson", "quantile"])
@pytest.mark.parametrize("n_outputs", [None, 2])
def test_with_target_transforms(kind, n_outputs, global_random_seed):
    rng = np.random.default_rng(global_random_seed)
    transform = TargetTransform(kind).fit(rng.exponential(2, (300, 2)) ** 1.5)
    shape = (3,) if n_outputs is None else (3, n_outputs)
    m = TransformedMixture(
        normals(global_random_seed, shape=shape, most=0.6),
        transform.output(0) if n_outputs is None else transform,
    )
    levels = np.array([0.01, 0.3, 0.8])
    for level, y in zip(levels, np.moveaxis(m.quantile(levels), 1, 0)):
        assert_allclose(m.cdf(y), level, rtol=1e-6)
    if n_outputs is not None:
        m = m.output(1)
    one = m.rows(slice(0, 1))
    ends, middle = m.quantile([1e-12, 1 - 1e-12])[0], m.quantile(0.5)[0]

    def moment(power, centre=0.0):
        y = np.unique(np.concatenate([np.linspace(*ends, 4001), m.quantile(LEVELS)[0]]))
        # Gauss' rule between the points: the density has corners.
        t, w = np.polynomial.legendre.leggauss(5)
        half = 0.5 * np.diff(y)[:, None]
        at = (0.5 * (y[1:] + y[:-1])[:, None] + half * t).ravel()
        density = np.exp(one.rows(np.zeros(len(at), dtype=int)).log_prob(at))
        return (density * (at - centre) ** power * (half * w).ravel()).sum()

    assert_allclose(moment(0), 1, rtol=1e-3)
    mean = middle + moment(1, middle)
    assert_allclose(one.mean, mean, rtol=3e-3, atol=1e-3)
    assert_allclose(one.std**2, moment(2, mean), rtol=2e-2)


LEVELS = np.linspace(0.001, 0.999, 999)


def test_tails_too_heavy_for_the_transform_are_said():
    inner = StudentTMixture(np.zeros((1, 1)), np.ones((1, 1)), np.full((1, 1), 3.0))
    m = TransformedMixture(inner, Logarithm())
    assert np.isfinite(m.quantile([0.05, 0.95])).all()  # they need no moments
    with pytest.raises(ValueError, match="grows too fast"):
        _ = m.std


@pytest.mark.parametrize("n_outputs", [None, 2])
def test_rows_with_factors_of_their_own(n_outputs):
    shape = (3,) if n_outputs is None else (3, n_outputs)
    factor = 1 + np.arange(np.prod(shape)).reshape(shape)  # as groups of rows are calibrated
    m = TransformedMixture(normals(shape=shape), Logarithm()).scaled(factor)
    assert_allclose(m.rows([2, 0]).std, m.std[[2, 0]])
    if n_outputs is not None:
        assert_allclose(m.output(1).std, m.std[:, 1])
        assert_allclose(m.rows(slice(1, 3)).output(1).interval(0.9), m.interval(0.9)[1:, :, 1])


def test_bad_arguments_are_refused():
    with pytest.raises(TypeError, match="inner must be a Mixture"):
        TransformedMixture(np.zeros(3), Logarithm())
    with pytest.raises(ValueError, match="factor must be positive"):
        TransformedMixture(normals(), Logarithm(), factor=0.0)
