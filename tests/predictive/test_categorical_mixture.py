import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.testing import assert_allclose, assert_array_equal
from scipy import stats
from tiers import cases

from skuq.predictive import CategoricalMixture


def mixture(seed=0):
    """Three members of unequal weights, six rows, and four classes."""
    rng = np.random.default_rng(seed)
    return CategoricalMixture(rng.dirichlet(np.full(4, 0.5), (3, 6)), rng.dirichlet(np.ones(3)))


def test_mode_is_of_the_average_not_of_the_votes():
    # Two of three members vote for class 0, narrowly; the third is sure of class 1.
    m = CategoricalMixture([[[0.51, 0.49]], [[0.51, 0.49]], [[0.01, 0.99]]])
    assert_array_equal(m.mode, [1])
    assert_array_equal(CategoricalMixture([[[0.2, 0.4, 0.4]]]).mode, [1])


def test_values_are_averages_and_scipys_entropies(global_random_seed):
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


def test_small_disagreement_does_not_cancel():
    """To second order the mutual information is the sum of variance / (2 mean)."""
    step = 1e-7
    m = CategoricalMixture([[[0.3 + step, 0.7 - step]], [[0.3 - step, 0.7 + step]]])
    expected = step**2 * (1 / 0.3 + 1 / 0.7) / 2
    # A difference of entropies would be good to 1e-2: 1e-16 of 2e-14.
    assert_allclose(m.uncertainty().epistemic, expected, rtol=1e-8)


# Hypothesis tries subnormals, zeros and equal members, too.
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
    assert np.isfinite(m.log_mean).all()


def test_probabilities_at_their_limits():
    m = CategoricalMixture([[[1.0, 5e-324]], [[1.0, 0.0]]])  # half of 5e-324 is 0
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
    error = 5 * np.sqrt(m.mean * (1 - m.mean) / 20_000) + 1e-12  # five standard errors
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
    class Extremes(np.random.Generator):
        def random(self, size):
            return np.resize([0.0, np.nextafter(1, 0)], size)

    # Sums just below 1, and zeros at either end, where a cdf could overflow into them.
    m = CategoricalMixture([[[0.0, 0.5, 0.5 - 9e-7, 0.0]]])
    assert_array_equal(m.sample(2, rng=Extremes(np.random.PCG64(0))), [[1, 2]])


@cases(
    ("proba", "weights", "message"),
    ([[0.5, 0.5]], None, "shape"),
    (np.empty((0, 2, 2)), None, "shape"),
    (np.empty((1, 2, 0)), None, "shape"),
    ([[[0.5, 0.5 + 2e-6]]], None, "sum to 1"),
    ([[[1.5, -0.5]]], None, "non-negative"),
    ([[[np.nan, 1.0]]], None, "non-negative"),
    ([[[1.0]], [[1.0]]], [0.7, 0.7], "sum to 1"),
    ([[[1.0]], [[1.0]]], [0.0, 1.0], "2 positive numbers"),
)
def test_bad_mixtures_are_refused(proba, weights, message):
    with pytest.raises(ValueError, match=message):
        CategoricalMixture(proba, weights)


@pytest.mark.parametrize("codes", [[0], [0, 4], [0, -1], [0.0, 1.0]])
def test_bad_codes_are_refused(codes):
    with pytest.raises(ValueError, match=r"codes must be 2 integers in \[0, 4\)"):
        CategoricalMixture(np.full((1, 2, 4), 0.25)).log_prob(codes)
