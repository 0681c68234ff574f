"""Distributions given by parameters, of classes and of functions: values by hand, limits, draws."""

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.testing import assert_allclose, assert_array_equal
from scipy import stats
from tiers import cases

from skuq._random import quasi_random_normals
from skuq.predictive import (
    CategoricalMixture,
    EpistemicNormal,
    GaussianMixture,
    Posterior,
    TransformedMixture,
    TwoPieceNormal,
)

#: z = log(y), of as many outputs as you like.
LOG = SimpleNamespace(forward=np.log, inverse=np.exp, log_derivative=lambda y: -np.log(y))
# Hypothesis tries subnormals, zeros and equal members, too.
SHAPES = st.tuples(st.integers(1, 4), st.integers(1, 3), st.integers(1, 5))


def test_mixtures_ddof_and_components_of_probability_0(rng):
    # Mean 3, variance 9/2 + 1/4 + 25/4 = 11. Weights 1/2, 1/4, 1/4 are worth 8/3 members.
    m = GaussianMixture([[0.0], [4.0], [8.0]], [[1.0], [2.0], [2.0]], [0.5, 0.25, 0.25])
    assert_allclose(np.ravel(m.uncertainty(1)) ** 2, [9, 2.5, 11 * 8 / 5, 2.5 + 11 * 8 / 5])
    # For two members it is the sample variance, whatever their weights; one here rounds to 1.
    m = GaussianMixture([[0.0], [4.0]], [[1.0], [1.0]], [1.0, 1e-18])
    assert_allclose(m.uncertainty(1).epistemic ** 2, 8)
    # Components of probability 0 do not matter.
    loc, scale = rng.normal(0, 3, (1, 3, 5)), rng.uniform(0.1, 2, (1, 3, 5))
    probabilities = rng.dirichlet(np.ones(3), (1, 5)).transpose(0, 2, 1)
    m = GaussianMixture(loc, scale, probabilities=probabilities)
    further = ((m.loc, 1e12), (m.scale, 1e9), (m.probabilities, 0.0))
    arrays = [np.concatenate([a, np.full((1, 1, 5), value)], axis=1) for a, value in further]
    more, levels = GaussianMixture(*arrays[:2], probabilities=arrays[2]), [1e-6, 0.3, 0.99]
    assert_allclose(more.quantile(levels), m.quantile(levels), rtol=1e-12)
    assert_allclose(more.variance, m.variance, rtol=1e-12)
    assert_allclose(more.log_prob(0.0), m.log_prob(0.0), rtol=1e-12)
    assert_allclose(more.sample(100, rng=0), m.sample(100, rng=0))


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


def test_epistemic_normal_parts_and_draws_are_those_given(rng):
    # 3, 4, 5; a mixture of one member would call all of 25 noise.
    m = EpistemicNormal([1.0, 2.0], [3.0, 0.0], [4.0, 5.0])
    assert isinstance(m, GaussianMixture)
    assert_array_equal((m.loc[0], m.scale[0]), [[1, 2], [5, 5]])
    expected = [9, 0], [16, 25], [25, 25]
    assert_array_equal((m.aleatoric_variance, m.epistemic_variance, m.variance), expected)
    assert_array_equal(m.uncertainty(1), [[1, 2], [3, 0], [4, 5], [5, 5]])
    m = EpistemicNormal(np.zeros(1), np.full(1, 3e-200), np.full(1, 4e-200))
    assert_allclose((m.std, m.uncertainty().total), 5e-200)
    functions = rng.normal(size=(3, 5, 2))  # Draws of functions have their covariance.
    epistemic = np.sqrt((functions**2).sum(axis=0))
    m = EpistemicNormal(np.ones((5, 2)), np.full((5, 2), 0.2), epistemic, functions)
    for found, factor in ((m, 1.0), (m.scaled(np.array([2.0, 0.5])), np.tile([2.0, 0.5], 5))):
        # Blocks of rows that draw with one seed share the functions.
        blocks = [found.rows(rows).sample(20_000, 1, seed=3) for rows in ([0, 1], [2, 3, 4])]
        for draws in (found.sample(20_000, 0), np.concatenate(blocks)):
            flat = factor * functions.reshape(3, 10)
            expected = flat.T @ flat + np.diag(found.aleatoric_variance.ravel())
            assert_allclose(np.cov(draws.reshape(10, -1)), expected, atol=0.05 * expected.max())
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


def mixture(seed=0):
    """Three members of unequal weights, six rows, and four classes."""
    rng = np.random.default_rng(seed)
    return CategoricalMixture(rng.dirichlet(np.full(4, 0.5), (3, 6)), rng.dirichlet(np.ones(3)))


def test_mode_and_values_are_of_the_average_and_of_scipys_entropies(global_random_seed):
    m = mixture(global_random_seed)
    mean = np.average(m.proba, axis=0, weights=m.weights)
    assert_allclose(m.mean, mean)
    assert_allclose(m.std**2, np.average((m.proba - mean) ** 2, axis=0, weights=m.weights))
    total, aleatoric, epistemic = m.uncertainty()
    assert_allclose(total, stats.entropy(mean, axis=1), rtol=1e-12)
    assert_allclose(aleatoric, m.weights @ stats.entropy(m.proba, axis=2), rtol=1e-12)
    divergences = stats.entropy(m.proba, mean[None], axis=2)  # KL(member || mean)
    assert_allclose(epistemic, m.weights @ divergences, rtol=1e-12)
    codes = np.array([0, 1, 2, 3, 0, 1])
    assert_allclose(m.log_prob(codes), np.log(mean[np.arange(6), codes]), rtol=1e-12)
    assert_allclose(m.to_tfp().log_prob(codes), m.log_prob(codes), rtol=1e-10)
    # Two of three members vote for class 0, narrowly; the third is sure of class 1.
    m = CategoricalMixture([[[0.51, 0.49]], [[0.51, 0.49]], [[0.01, 0.99]]])
    assert_array_equal(m.mode, [1])
    assert_array_equal(CategoricalMixture([[[0.2, 0.4, 0.4]]]).mode, [1])
    # To second order the mutual information is the sum of variance / (2 mean).
    step = 1e-7
    m = CategoricalMixture([[[0.3 + step, 0.7 - step]], [[0.3 - step, 0.7 + step]]])
    # A difference of entropies would be good to 1e-2: 1e-16 of 2e-14.
    assert_allclose(m.uncertainty().epistemic, step**2 * (1 / 0.3 + 1 / 0.7) / 2, rtol=1e-8)
    # Probabilities at their limits
    m = CategoricalMixture([[[1.0, 5e-324]], [[1.0, 0.0]]])  # half of 5e-324 is 0
    assert_array_equal(m.uncertainty().epistemic, 0)
    m = CategoricalMixture([[[1 + 5e-7, 0.0]]])
    assert_array_equal(m.uncertainty(), 0)
    assert_array_equal(m.mean, [[1 + 5e-7, 0.0]])  # used as given
    m = CategoricalMixture([[[1.0, 0.0], [0.25, 0.75]]])
    assert_allclose(m.log_prob([1, 1]), [np.log(np.finfo(float).tiny), np.log(0.75)], rtol=1e-15)


@given(arrays(float, SHAPES, elements=st.floats(0, 1)))
def test_parts_add_up_and_stay_in_bounds(raw):
    raw[..., 0] += raw.sum(axis=2) < 1e-3  # rows that would not normalise
    m = CategoricalMixture(raw / raw.sum(axis=2, keepdims=True))
    total, aleatoric, epistemic = m.uncertainty()
    assert_array_equal(total, aleatoric + epistemic)
    assert (aleatoric >= 0).all() and (epistemic >= 0).all()
    n_members, _, n_classes = m.proba.shape
    assert (total <= np.log(n_classes) + 1e-12).all()
    # The mutual information is bounded by the entropy of the members' weights too.
    assert (epistemic <= np.log(n_members) + 1e-12).all() and np.isfinite(m.log_mean).all()


def test_draws_have_the_frequencies_and_one_member_for_all_rows(global_random_seed):
    m = mixture(global_random_seed)
    draws = m.sample(20_000, rng=global_random_seed)
    assert draws.shape == (6, 20_000) and draws.dtype.kind == "i"
    shares = (draws[..., None] == np.arange(4)).mean(axis=1)
    error = 5 * np.sqrt(m.mean * (1 - m.mean) / 20_000) + 1e-12  # five standard errors
    assert (np.abs(shares - m.mean) <= error).all()
    # A draw is one member for all rows.
    draws = CategoricalMixture([[[1.0, 0.0]] * 4, [[0.0, 1.0]] * 4]).sample(200, rng=0)
    assert (np.ptp(draws, axis=0) == 0).all()  # rows agree on the member
    assert 0.3 < draws[0].mean() < 0.7
    alike = CategoricalMixture([[[0.5, 0.5]] * 400]).sample(2000, rng=0)
    # Given the member, they are independent: the variance of a count is n p (1 - p).
    assert_allclose(alike.sum(axis=0).std(), 10, rtol=0.08)

    class Extremes(np.random.Generator):  # which draw no impossible class
        def random(self, size):
            return np.resize([0.0, np.nextafter(1, 0)], size)

    # Sums just below 1, and zeros at either end, where a cdf could overflow into them.
    m = CategoricalMixture([[[0.0, 0.5, 0.5 - 9e-7, 0.0]]])
    assert_array_equal(m.sample(2, rng=Extremes(np.random.PCG64(0))), [[1, 2]])


@cases(
    ("proba", "weights", "message"),
    *((wrong, None, "shape") for wrong in ([[0.5, 0.5]], np.empty((0, 2, 2)), np.empty((1, 2, 0)))),
    ([[[0.5, 0.5 + 2e-6]]], None, "sum to 1"),
    ([[[1.5, -0.5]]], None, "non-negative"),
    ([[[np.nan, 1.0]]], None, "non-negative"),
    ([[[1.0]], [[1.0]]], [0.7, 0.7], "sum to 1"),
    ([[[1.0]], [[1.0]]], [0.0, 1.0], "2 positive numbers"),
)
def test_bad_mixtures_and_codes_are_refused(proba, weights, message):
    with pytest.raises(ValueError, match=message):
        CategoricalMixture(proba, weights)
    for codes in ([0], [0, 4], [0, -1], [0.0, 1.0]):
        with pytest.raises(ValueError, match=r"codes must be 2 integers in \[0, 4\)"):
            CategoricalMixture(np.full((1, 2, 4), 0.25)).log_prob(codes)


def lines(slopes, **changes):
    settings = {"key": "lines", "n_draws": len(slopes), "output_shape": ()}
    return Posterior(lambda xp, a, X: a[0] @ X.T, (slopes,), **{**settings, **changes})


def test_posterior_evaluates_every_draw_at_every_row_in_chunks(monkeypatch, rng):
    draws = lines([[1.0, 0.0], [2.0, 1.0]])([[1, 2], [3, 4], [5, 6]])
    assert_array_equal(draws, [[1, 3, 5], [4, 10, 16]])
    assert draws.dtype == "float64" and lines(np.eye(2))(np.empty((0, 2))).shape == (2, 0)
    posterior, X = lines(np.eye(3)), rng.normal(size=(11, 3))
    monkeypatch.setattr("skuq.predictive._distributions._ENTRIES_PER_CHUNK", 6)
    assert_array_equal(posterior(X), X.T)


@cases(
    ("changes", "X", "error", "message"),
    *(({}, X, ValueError, r"X must have shape \(n, n_features\)") for X in ([1.0, 2.0], 3.0)),
    ({"output_shape": (4,)}, np.ones((3, 2)), ValueError, r"\(2, 3, 4\).*Got \(2, 3\)"),
    ({"n_draws": 0}, None, ValueError, "n_draws"),
    ({"key": []}, None, TypeError, "hash"),
)
def test_posterior_refuses(changes, X, error, message):
    with pytest.raises(error, match=message):
        lines(np.eye(2), **changes)(X)


def test_quasi_random_normals_have_exact_moments_and_are_evenly_spread(global_random_seed):
    for n_draws in (2, 10, 128):
        normals = quasi_random_normals(n_draws, 5, np.random.default_rng(global_random_seed))
        assert_allclose(normals.mean(axis=0), 0, atol=1e-15 * n_draws)
        assert_allclose(np.mean(normals**2, axis=0), 1, rtol=1e-12)
    normals = quasi_random_normals(128, 16, np.random.default_rng(global_random_seed))
    # Kolmogorov's distance of 128 chance draws is 0.075 in the median; one in every 128th
    # quantile has 1/128, and the shift and the scale move it by a little.
    assert max(stats.kstest(column, "norm").statistic for column in normals.T) < 0.03
    for shape in ((1, 3), (8, 0)):
        with pytest.raises(ValueError, match="n_draws must be at least 2"):
            quasi_random_normals(*shape, np.random.default_rng(0))
