import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.testing import assert_allclose, assert_array_equal
from scipy import stats

from skuq.predictive import EpistemicNormal, TwoPieceNormal

LEVELS = np.array([1e-9, 0.05, 0.3, 0.5, 0.77, 1 - 1e-9])


def pieces(shape=(6,), seed=0, noise=True):
    rng = np.random.default_rng(seed)
    lower, upper, aleatoric = rng.uniform(0.1, 3, (3, *shape))
    return TwoPieceNormal(rng.normal(0, 3, shape), lower, upper, aleatoric if noise else None)


def spreads(n, least=1e-3):
    return arrays(float, n, elements=st.floats(least, 1e3))


RECORDS = st.builds(
    TwoPieceNormal,
    arrays(float, 3, elements=st.floats(-1e3, 1e3)),
    spreads(3),
    spreads(3),
    spreads(3, 0.0) | st.none(),
)


def test_values_by_hand():
    # s1 = 1, s2 = 3: a quarter lies below the mode, the density there is sqrt(2 / pi) / 4, and
    # the variance 4 (1 - 2 / pi) + 3.
    m = TwoPieceNormal([0.0], [1.0], [3.0])
    assert_allclose(m.cdf(0.0), 0.25, rtol=1e-15)
    assert_allclose(m.quantile(0.25), 0.0, atol=1e-15)
    assert_allclose(m.cdf(-1.0), 0.5 * stats.norm.cdf(-1), rtol=1e-14)
    assert_allclose(m.cdf(3.0), 1 - 1.5 * stats.norm.cdf(-1), rtol=1e-14)
    assert_allclose(np.exp(m.log_prob([0.0])), np.sqrt(2 / np.pi) / 4, rtol=1e-14)
    assert_allclose(m.expected, 2 * np.sqrt(2 / np.pi), rtol=1e-14)
    assert_allclose(m.variance, 7 - 8 / np.pi, rtol=1e-14)
    assert_array_equal(m.mean, [0.0])
    assert_array_equal(m.aleatoric_variance, [0.0])
    # Noise of 4/3 and 4: legs of 5/3 and 5.
    noisy = TwoPieceNormal([0.0], [1.0], [3.0], [4.0])
    assert_allclose(noisy.cdf(0.0), np.sqrt(17) / (np.sqrt(17) + 5), rtol=1e-14)


@pytest.mark.parametrize("shape", [(4,), (4, 2)])
def test_against_tensorflow_probability(shape):
    m = pieces(shape)
    tfp = m.to_tfp()
    y = np.random.default_rng(1).normal(0, 4, size=shape)
    assert_allclose(m.log_prob(y), tfp.log_prob(y), rtol=1e-10)
    assert_allclose(m.expected, tfp.mean(), rtol=1e-10)
    assert_allclose(m.variance, tfp.variance(), rtol=1e-10)
    if len(shape) == 1:
        assert_allclose(m.cdf(y), tfp.cdf(y), rtol=1e-10)
        assert_allclose(m.quantile(0.3), tfp.quantile(np.full(4, 0.3)), rtol=1e-10)


@pytest.mark.parametrize("shape", [(5,), (5, 2)])
def test_equal_sides_are_a_normal(shape):
    rng = np.random.default_rng(0)
    mean, spread, noise, y = rng.uniform(0.1, 2, (4, *shape))
    m, one = TwoPieceNormal(mean, spread, spread, noise), EpistemicNormal(mean, noise, spread)
    assert_allclose(m.uncertainty(), one.uncertainty(), rtol=1e-14)
    assert_allclose(m.expected, one.mean, rtol=1e-15)
    assert_allclose(m.cdf(y), one.cdf(y), rtol=1e-14)
    assert_allclose(m.log_prob(y), one.log_prob(y), rtol=1e-12)
    assert_allclose(m.quantile(LEVELS), one.quantile(LEVELS), rtol=1e-12)
    assert_allclose(m.interval(0.8), one.interval(0.8), rtol=1e-12)


@given(RECORDS)
def test_parts_add_up_and_no_part_exceeds_the_total(m):
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


def test_epistemic_variance_is_seen_beside_large_noise():
    # s1 s2 - a^2 to first order: (lower^2 + upper^2) / 2.
    m = TwoPieceNormal(np.zeros(1), np.full(1, 1e-6), np.full(1, 3e-6), np.full(1, 1e6))
    assert_allclose(m.epistemic_variance, 5e-12, rtol=1e-9)


def test_one_side_may_be_noise_alone():
    m = TwoPieceNormal(np.zeros(2), [0.0, 0.0], [2.0, 0.0], [1.0, 1.0])
    assert_allclose(m.cdf(0.0), [1 / (1 + np.sqrt(5)), 0.5])
    assert_array_equal(m.epistemic_variance[1], 0.0)
    assert m.epistemic_variance[0] > 0


def test_the_mean_moves_with_the_wider_side():
    m, factor = pieces((5, 2)), np.array([2.0, 0.5])
    assert_allclose(m.scaled(factor).expected - m.mode, (m.expected - m.mode) * factor)
    draws = m.sample(20_000, rng=1)
    assert (abs(draws.mean(axis=-1) - m.expected) < 5 * m.std / np.sqrt(20_000)).all()
    assert_allclose(draws.std(axis=-1), m.std, rtol=0.04)  # 5 standard errors, of kurtosis < 4


def test_a_draw_without_noise_has_one_level_for_all_rows():
    m = pieces((5, 2), noise=False)
    draw = m.sample(3, rng=0)[..., 1]
    levels = m.cdf(draw)
    assert_allclose(levels, np.repeat(levels[:1], 5, axis=0), rtol=1e-10)
    assert abs(levels[0, 0] - levels[0, 1]) > 1e-6  # outputs each have theirs


def test_a_draw_of_equal_sides_is_that_of_a_normal():
    rng = np.random.default_rng(0)
    mean, spread, noise = rng.uniform(0.1, 2, (3, 5, 2))
    draws = TwoPieceNormal(mean, spread, spread, noise).sample(20, rng=0)
    assert_allclose(draws, EpistemicNormal(mean, noise, spread).sample(20, rng=0), rtol=1e-9)
