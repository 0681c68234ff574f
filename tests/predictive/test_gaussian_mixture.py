import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy import integrate, stats

from skuq.predictive import GaussianMixture


def mixture(seed=0, n_members=3, shape=(6,)):
    rng = np.random.default_rng(seed)
    loc = rng.normal(0, 3, size=(n_members, *shape))
    scale = rng.uniform(0.1, 2, size=(n_members, *shape))
    return GaussianMixture(loc, scale, rng.dirichlet(np.ones(n_members)))


def test_moments_by_hand():
    # N(0, 1) and N(2, 3**2) weighted 1/4, 3/4: 3/2, 1/4 + 27/4, 9/16 + 3/16.
    m = GaussianMixture([[0.0], [2.0]], [[1.0], [3.0]], [0.25, 0.75])
    moments = m.mean, m.aleatoric_variance, m.epistemic_variance
    assert_allclose(np.ravel(moments), [1.5, 7.0, 0.75], rtol=1e-15)


@pytest.mark.parametrize("shape", [(4,), (4, 2)])
def test_against_tensorflow_probability(shape):
    m = mixture(shape=shape)
    tfp = m.to_tfp()
    y = np.random.default_rng(1).normal(0, 3, size=shape)
    assert_allclose(m.log_prob(y), tfp.log_prob(y), rtol=1e-10)
    assert_allclose(m.mean, tfp.mean(), rtol=1e-10)
    assert_allclose(m.variance, tfp.variance(), rtol=1e-9)
    if len(shape) == 1:
        assert_allclose(m.cdf(y), tfp.cdf(y), rtol=1e-10)


def test_density_integrates_to_its_cdf():
    m = mixture(n_members=2, shape=(1,))
    area, _ = integrate.quad(lambda t: np.exp(m.log_prob(np.array([t]))[0]), -40, 1.3, limit=200)
    assert_allclose(area, m.cdf(1.3)[0], rtol=1e-6)


def test_parts_add_up_and_ignore_offsets(global_random_seed):
    m = mixture(global_random_seed)
    for ddof in (0, 1):
        mean, aleatoric, epistemic, total = m.uncertainty(ddof)
        assert_allclose(total**2, aleatoric**2 + epistemic**2, rtol=1e-12)
    far = GaussianMixture(m.loc + 1e8, m.scale, m.weights)
    # Rounding at 1e8 is 7.5e-9 a value, against spreads of order 1.
    assert_allclose(far.epistemic_variance, m.epistemic_variance, rtol=1e-6)


def test_ddof_is_equation_4_for_equal_weights(global_random_seed):
    rng = np.random.default_rng(global_random_seed)
    loc, scale = rng.normal(size=(5, 7)), rng.uniform(1, 2, (5, 7))
    m = GaussianMixture(loc, scale)
    assert_allclose(m.uncertainty(1).epistemic ** 2, loc.var(axis=0, ddof=1), rtol=1e-12)
    assert_allclose(m.uncertainty(0).epistemic ** 2, loc.var(axis=0), rtol=1e-12)


def test_weights_are_repeats(global_random_seed):
    """A member of weight 2/3 is the same member taken twice of three."""
    m = mixture(global_random_seed, n_members=2)
    weighted = GaussianMixture(m.loc, m.scale, [2 / 3, 1 / 3])
    repeated = GaussianMixture(m.loc[[0, 0, 1]], m.scale[[0, 0, 1]])
    for name in ("mean", "aleatoric_variance", "epistemic_variance"):
        assert_allclose(getattr(weighted, name), getattr(repeated, name), rtol=1e-12)
    assert_allclose(weighted.quantile(0.9), repeated.quantile(0.9), rtol=1e-9)


def test_one_member_is_a_normal():
    m = GaussianMixture([[1.0, 2.0]], [[0.5, 3.0]])
    assert_allclose(m.epistemic_variance, 0)
    assert_allclose(m.uncertainty(1).epistemic, 0)
    levels = [0.01, 0.5, 0.975]
    assert_allclose(
        m.quantile(levels), stats.norm([[1.0], [2.0]], [[0.5], [3.0]]).ppf(levels), rtol=1e-10
    )


@pytest.mark.parametrize("shape", [(50,), (20, 3)])
def test_quantiles_invert_the_cdf(shape, global_random_seed):
    m = mixture(global_random_seed, shape=shape)
    levels = np.array([1e-6, 0.05, 0.3, 0.5, 0.9, 1 - 1e-9])
    found = m.quantile(levels)
    assert found.shape == (shape[0], 6, *shape[1:])
    for k, level in enumerate(levels):
        assert_allclose(m.cdf(found[:, k]), level, rtol=1e-7, atol=1e-12)
        assert_allclose(m.quantile(level), found[:, k], rtol=1e-12)


def test_quantiles_are_monotone_in_any_order(global_random_seed):
    m = mixture(global_random_seed, shape=(30,))
    levels = np.random.default_rng(0).uniform(0.001, 0.999, size=40)
    found = m.quantile(levels)[:, np.argsort(levels)]
    assert (np.diff(found, axis=1) >= 0).all()


def test_quantiles_of_extreme_mixtures():
    """Scales twelve orders apart, members far away, identical members."""
    m = GaussianMixture(
        [[0.0, 0.0, 5e8], [1e6, 0.0, 5e8]], [[1e-6, 1.0, 1e-3], [1e6, 1.0, 1e-3]], [0.5, 0.5]
    )
    for level in (0.05, 0.4, 0.6, 0.99):
        assert_allclose(m.cdf(m.quantile(level)), level, rtol=1e-4)


def test_interval_covers_its_own_samples():
    m = mixture(shape=(40,))
    low, high = m.interval(0.8).T
    draws = m.sample(20_000, rng=0)
    inside = ((draws >= low[:, None]) & (draws <= high[:, None])).mean(axis=1)
    # Standard error of a share of 0.8 in 20 000 draws: 0.003; 5 of them.
    assert_allclose(inside, 0.8, atol=0.015)


def test_samples_have_the_moments():
    m = mixture(shape=(5, 2))
    draws = m.sample(50_000, rng=1)
    assert draws.shape == (5, 2, 50_000)
    error = 5 * m.std / np.sqrt(50_000)
    assert (np.abs(draws.mean(axis=-1) - m.mean) < error).all()
    assert_allclose(draws.std(axis=-1), m.std, rtol=0.05)


def test_a_draw_is_one_member_for_all_rows():
    m = GaussianMixture([[0.0] * 4, [100.0] * 4], np.full((2, 4), 0.01))
    draws = m.sample(200, rng=0)
    assert (np.ptp(draws, axis=0) < 1).all()  # rows agree on the member
    assert 0.3 < (draws[0] > 50).mean() < 0.7


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([[0.0]], [[0.0]]), "positive"),
        (([0.0], [1.0]), "shape"),
        (([[0.0], [1.0]], [[1.0], [1.0]], [0.7, 0.7]), "sum to 1"),
        (([[0.0], [1.0]], [[1.0], [1.0]], [1.0]), "2 positive numbers"),
    ],
)
def test_bad_mixtures_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        GaussianMixture(*arguments)


def test_bad_levels_are_refused():
    with pytest.raises(ValueError, match="strictly in"):
        mixture().quantile([0.5, 1.0])
    with pytest.raises(ValueError, match="coverage"):
        mixture().interval(1.5)
    with pytest.raises(ValueError, match="y must have shape"):
        mixture().log_prob(np.zeros(3))


def test_quantiles_are_finite_where_scales_are_below_rounding():
    for loc, scale in (
        ([[0.0], [1e12]], [[1e-6], [1e-6]]),
        ([[1e15], [1e15]], [[1e-3], [2e-3]]),
        ([[1e15], [-1e15]], [[1e-9], [1e9]]),
    ):
        found = GaussianMixture(loc, scale).quantile([0.1, 0.4, 0.9])
        assert np.isfinite(found).all() and (np.diff(found) >= 0).all()


def test_weights_that_are_no_numbers_are_refused():
    with pytest.raises(ValueError, match="`weights` must be 2 positive numbers"):
        GaussianMixture(np.zeros((2, 1)), np.ones((2, 1)), np.array([np.nan, 1.0]))
