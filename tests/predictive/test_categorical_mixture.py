import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.testing import assert_allclose, assert_array_equal
from scipy import stats
from tiers import cases

from skuq.predictive import CategoricalMixture


def mixture(seed=0, n_members=3, n_samples=6, n_classes=4, concentration=0.5):
    rng = np.random.default_rng(seed)
    proba = rng.dirichlet(np.full(n_classes, concentration), size=(n_members, n_samples))
    return CategoricalMixture(proba, rng.dirichlet(np.ones(n_members)))


def test_values_by_hand():
    # Weights 1/4 and 3/4: means (1/4) 1 + (3/4) (1/3) = 1/2; spread sqrt(3)/4 * (2/3).
    m = CategoricalMixture([[[1.0, 0.0]], [[1 / 3, 2 / 3]]], [0.25, 0.75])
    assert_allclose(m.mean, [[0.5, 0.5]], rtol=1e-15)
    assert_allclose(m.std, np.full((1, 2), np.sqrt(3) / 6), rtol=1e-15)
    # H(1/3, 2/3) = log 3 - (2/3) log 2, and the first member has none.
    total, aleatoric, epistemic = m.uncertainty()
    assert_allclose(total, np.log(2), rtol=1e-15)
    assert_allclose(aleatoric, 0.75 * (np.log(3) - 2 / 3 * np.log(2)), rtol=1e-15)
    assert_allclose(epistemic, 1.5 * np.log(2) - 0.75 * np.log(3), rtol=1e-14)
    assert_allclose(m.log_prob([1]), -np.log(2), rtol=1e-15)


def test_mode_is_of_the_average_not_of_the_votes():
    # Two of three members vote for class 0, narrowly; the third is sure of class 1.
    m = CategoricalMixture([[[0.51, 0.49]], [[0.51, 0.49]], [[0.01, 0.99]]])
    assert_array_equal(m.mode, [1])
    ties = CategoricalMixture([[[0.2, 0.4, 0.4]]])
    assert_array_equal(ties.mode, [1])


def test_against_scipy_entropies(global_random_seed):
    m = mixture(global_random_seed)
    total, aleatoric, epistemic = m.uncertainty()
    assert_allclose(total, stats.entropy(m.mean, axis=1), rtol=1e-12)
    assert_allclose(aleatoric, m.weights @ stats.entropy(m.proba, axis=2), rtol=1e-12)
    divergences = stats.entropy(m.proba, m.mean[None], axis=2)  # KL(member || mean)
    assert_allclose(epistemic, m.weights @ divergences, rtol=1e-12)


def test_against_tensorflow_probability():
    m = mixture()
    tfp = m.to_tfp()
    codes = np.array([0, 1, 2, 3, 0, 1])
    assert_allclose(m.log_prob(codes), tfp.log_prob(codes), rtol=1e-10)
    assert tuple(tfp.sample(5, seed=0).shape) == (5, 6)


def test_small_disagreement_does_not_cancel():
    """To second order the mutual information is the sum of variance / (2 mean)."""
    step = 1e-7
    m = CategoricalMixture([[[0.3 + step, 0.7 - step]], [[0.3 - step, 0.7 + step]]])
    expected = step**2 * (1 / 0.3 + 1 / 0.7) / 2
    # A difference of entropies would be good to 1e-2: 1e-16 of 2e-14. Left here are the
    # third order, 0 by symmetry, and the rounding of 0.3 + step, 5e-17 of 1e-7.
    assert_allclose(m.uncertainty().epistemic, expected, rtol=1e-8)


# Smallest subnormals, exact zeros and equal members are among what hypothesis tries.
SHAPES = st.tuples(st.integers(1, 4), st.integers(1, 3), st.integers(1, 5))


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
    assert (epistemic <= np.log(n_members) + 1e-12).all()
    assert np.isfinite(m.log_mean).all() and (m.std >= 0).all()


def test_probabilities_at_their_limits():
    m = CategoricalMixture([[[1.0, 5e-324]], [[1.0, 0.0]]])  # half of 5e-324 is 0
    assert np.isfinite(m.uncertainty()).all()
    assert_array_equal(m.uncertainty().epistemic, 0)
    m = CategoricalMixture([[[1 + 5e-7, 0.0]]])
    assert_array_equal(m.uncertainty(), 0)
    assert_array_equal(m.mean, [[1 + 5e-7, 0.0]])  # used as given
    m = CategoricalMixture([[[1.0, 0.0], [0.25, 0.75]]])
    assert_allclose(m.log_prob([1, 1]), [np.log(np.finfo(float).tiny), np.log(0.75)], rtol=1e-15)


def test_sampling_frequencies(global_random_seed):
    m = mixture(global_random_seed)
    draws = m.sample(20_000, rng=global_random_seed)
    assert draws.shape == (6, 20_000) and draws.dtype.kind == "i"
    shares = (draws[..., None] == np.arange(4)).mean(axis=1)
    # Five standard errors of a share, which are at most 0.0035.
    error = 5 * np.sqrt(m.mean * (1 - m.mean) / 20_000) + 1e-12
    assert (np.abs(shares - m.mean) <= error).all()


def test_a_draw_is_one_member_for_all_rows():
    certain = CategoricalMixture([[[1.0, 0.0]] * 4, [[0.0, 1.0]] * 4])
    draws = certain.sample(200, rng=0)
    assert (np.ptp(draws, axis=0) == 0).all()  # rows agree on the member
    assert 0.3 < draws[0].mean() < 0.7
    alike = CategoricalMixture([[[0.5, 0.5]] * 400]).sample(2000, rng=0)
    # Given the member, they are independent: the variance of a count is n p (1 - p).
    assert_allclose(alike.sum(axis=0).std(), 10, rtol=0.08)


def test_impossible_classes_are_never_drawn():
    # Sums just below 1, and zeros at either end, where a cdf could overflow into them.
    proba = np.array([0.0, 0.5, 0.5 - 9e-7, 0.0])
    draws = CategoricalMixture([[proba]]).sample(1000, rng=0)
    assert set(draws.ravel()) == {1, 2}

    class Extremes(np.random.Generator):
        def random(self, size):
            return np.resize([0.0, np.nextafter(1, 0)], size)

    draws = CategoricalMixture([[proba]]).sample(2, rng=Extremes(np.random.PCG64(0)))
    assert_array_equal(draws, [[1, 2]])


@cases(
    ("arguments", "message"),
    (([[0.5, 0.5]],), "shape"),
    ((np.empty((0, 2, 2)),), "shape"),
    ((np.empty((1, 2, 0)),), "shape"),
    (([[[0.5, 0.4]]],), "sum to 1"),
    (([[[0.5, 0.5 + 2e-6]]],), "sum to 1"),
    (([[[1.5, -0.5]]],), "non-negative"),
    (([[[np.nan, 1.0]]],), "non-negative"),
    (([[[1.0]], [[1.0]]], [0.7, 0.7]), "sum to 1"),
    (([[[1.0]], [[1.0]]], [1.0]), "2 positive numbers"),
    (([[[1.0]], [[1.0]]], [0.0, 1.0]), "2 positive numbers"),
    (([[[1.0]], [[1.0]]], [np.nan, 1.0]), "2 positive numbers"),
)
def test_bad_mixtures_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        CategoricalMixture(*arguments)


@pytest.mark.parametrize("codes", [[0], [[0, 1]], [0, 4], [0, -1], [0.0, 1.0], ["a", "b"]])
def test_bad_codes_are_refused(codes):
    with pytest.raises(ValueError, match=r"codes must be 2 integers in \[0, 4\)"):
        mixture(n_samples=2).log_prob(codes)
