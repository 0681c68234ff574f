import numpy as np
from numpy.testing import assert_allclose, assert_array_equal

from skuq.predictive import EpistemicNormal, GaussianMixture


def normal(shape=(6,), seed=0):
    rng = np.random.default_rng(seed)
    return EpistemicNormal(rng.normal(0, 3, shape), *rng.uniform(0.1, 2, (2, *shape)))


def test_parts_are_those_given():
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


def test_mean_is_kept_bit_for_bit():
    mean = np.array([-0.0, 0.1 + 0.2, 1e-310, 1e300])
    m = EpistemicNormal(mean, np.ones(4), np.ones(4))
    for kept in (m.mean, m.loc[0], m.scaled(3.0).mean, m.rows(slice(None)).mean):
        assert kept.tobytes() == mean.tobytes()


def test_parts_survive_rows_outputs_and_scaling():
    m = normal((6, 2))
    factor = np.array([2.0, 0.5])
    for part in ("aleatoric", "epistemic"):
        std = getattr(m, part)
        assert_array_equal(getattr(m.rows([4, 1]), part), std[[4, 1]])
        assert_array_equal(getattr(m.rows(slice(2, 4)), part), std[2:4])
        assert_array_equal(getattr(m.output(1), part), std[:, 1])
        assert_array_equal(getattr(m.scaled(factor), part), std * factor)
    for other in (m.rows([4, 1]), m.output(1), m.scaled(2.0)):
        assert isinstance(other, EpistemicNormal)
        assert_allclose(other.std, np.hypot(other.aleatoric, other.epistemic), rtol=1e-15)
    assert_array_equal(m.output(1).mean, m.mean[:, 1])


def test_rows_share_the_models_part_of_a_draw():
    # Rows of the model alone move as one; the noise of the others is their own.
    aleatoric, epistemic = np.array([1.0, 2.0, 0.0, 0.0]), np.array([0.0, 0.0, 1.0, 3.0])
    draws = EpistemicNormal(np.zeros(4), aleatoric, epistemic).sample(20_000, rng=0)
    assert_allclose(draws[3], 3 * draws[2], rtol=1e-15)
    assert (abs(np.corrcoef(draws[:3]) - np.eye(3)) < 5 / np.sqrt(20_000)).all()


def test_draws_of_functions_have_their_covariance():
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


def test_tiny_spreads_are_told_from_none():
    m = EpistemicNormal(np.zeros(1), np.full(1, 3e-200), np.full(1, 4e-200))
    assert_allclose(m.std, 5e-200)
    assert_allclose(m.uncertainty().total, 5e-200)
