"""Acquisition functions against closed forms of normals, loops and each other."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.testing import assert_allclose, assert_array_equal
from scipy import stats

from skuq.bayesopt import Acquisition
from skuq.bayesopt._acquisition import (
    ACQUISITIONS,
    expected_improvement,
    leaky_expected_improvement,
    mean,
    probability_of_improvement,
    uncertainty,
    upper_confidence_bound,
)
from skuq.predictive._posterior import quasi_random_normals

MU, SIGMA = np.array([-1.0, 0.0, 0.3, 2.0]), np.array([0.5, 1.0, 2.0, 0.1])


@pytest.fixture
def normals():
    """Draws of normals with means MU and standard deviations SIGMA."""
    return MU + SIGMA * quasi_random_normals(4096, 4, np.random.default_rng(0))


def test_expected_improvement_of_normals(normals):
    best = 0.2
    z = (MU - best) / SIGMA
    exact = (MU - best) * stats.norm.cdf(z) + SIGMA * stats.norm.pdf(z)
    # One draw from each of 4096 quantiles: an error of some 1/4096 of the scale.
    assert_allclose(expected_improvement(np, normals, best), exact, atol=1e-3)


def test_leaky_improvement_is_a_mixture_of_improvement_and_mean(normals):
    best, delta = 0.2, 0.1
    mixed = (1 - delta) * expected_improvement(np, normals, best) + delta * (MU - best)
    assert_allclose(leaky_expected_improvement(np, normals, best, delta), mixed, atol=1e-12)


def test_probability_of_improvement_of_normals(normals):
    exact = stats.norm.sf(0.2, MU, SIGMA)
    assert_allclose(probability_of_improvement(np, normals, 0.2), exact, atol=1e-3)
    # 128 draws, as in a step, are enough: the smoothing keeps mean and variance.
    few = MU + SIGMA * quasi_random_normals(128, 4, np.random.default_rng(0))
    assert_allclose(probability_of_improvement(np, few, 0.2), exact, atol=0.01)


def test_confidence_bounds_of_normals(normals):
    exact = MU + 1.5 * SIGMA
    assert_allclose(upper_confidence_bound(np, normals, 1.5), exact, rtol=1e-9)
    # E|g - mu| has the quantiles' error, some 1/4096 of the scale.
    absolute = upper_confidence_bound(np, normals, 1.5, deviation="absolute")
    assert_allclose(absolute, exact, atol=3e-3)
    assert_allclose(uncertainty(np, normals), SIGMA, rtol=1e-9)
    assert_allclose(mean(np, normals), MU, atol=1e-12)


@pytest.mark.parametrize("share", [0.0, 0.3, 0.999])
@given(unit=arrays(float, (7, 3), elements=st.floats(0, 1)), eps=st.floats(1e-3, 10))
def test_theorem_1_leaky_improvement_is_close_to_improvement(share, unit, eps):
    """With values and best in [a, b] and delta < eps / (b - a) they differ by less than eps."""
    a, b = -2.0, 3.0
    values, best = a + (b - a) * unit[:, :2], a + (b - a) * unit[0, 2]
    delta = share * min(1.0, eps / (b - a))
    leaky = leaky_expected_improvement(np, values, best, delta)
    assert (np.abs(leaky - expected_improvement(np, values, best)) < eps).all()


def test_theorem_1_bound_is_attained():
    # For a certain value a and best b the leaky form is delta * (b - a) below the improvement, 0.
    values = np.full((5, 1), -2.0)
    assert_allclose(leaky_expected_improvement(np, values, 3.0, 0.01), -0.05)


def literal_leaky_batch(values, best, delta):
    """Compute the sum of section 7 term by term."""
    total = np.zeros(values.shape[1])
    for draw in values:
        for i, batch in enumerate(draw):
            for value in batch:
                is_best = value == max(batch) and value - best > 0
                total[i] += (1.0 if is_best else delta) * (value - best)
    return total / len(values)


def test_leaky_batch_improvement_against_the_printed_sum(global_random_seed):
    values = np.random.RandomState(global_random_seed).normal(size=(9, 5, 3))
    assert_allclose(
        leaky_expected_improvement(np, values, 0.4, 0.05),
        literal_leaky_batch(values, 0.4, 0.05),
        rtol=1e-12,
    )


def test_a_batch_of_copies_improves_once():
    values = np.random.RandomState(0).normal(size=(9, 5, 1))
    copies = np.repeat(values, 3, axis=2)
    assert_allclose(
        leaky_expected_improvement(np, copies, 0.4, 0.0),
        expected_improvement(np, values, 0.4),
        rtol=1e-12,
    )


def test_batch_improvement_is_that_of_the_best_of_each_draw():
    # Draws (2, 0) and (0, 3) over best 1: improvements 1 and 2.
    values = np.array([[[2.0, 0.0]], [[0.0, 3.0]]])
    assert_allclose(expected_improvement(np, values, 1.0), [1.5])
    assert_allclose(mean(np, values), [2.5])
    # mu = (1, 1.5), |g - mu| = (1, 1.5) in both draws: 1.5 + sqrt(pi / 2) * 1.5.
    bound = 1.5 * (1 + np.sqrt(np.pi / 2))
    assert_allclose(upper_confidence_bound(np, values, 1.0), [bound])


@pytest.mark.parametrize("deviation", ["std", "absolute"])
@pytest.mark.parametrize("name", ACQUISITIONS)
def test_batches_of_one_are_points(name, deviation, normals):
    acquisition = Acquisition(name, delta=0.1, beta=0.7, deviation=deviation)
    single = acquisition(np, normals, 0.2)
    assert single.shape == (4,)
    assert_allclose(acquisition(np, normals[:, :, None], 0.2), single, rtol=1e-12)


@pytest.mark.parametrize("name", ACQUISITIONS)
@pytest.mark.parametrize("q", [None, 3])
def test_tensors_and_arrays_agree(name, q):
    from skuq.backend import ops

    shape = (64, 6) if q is None else (64, 6, q)
    values = np.random.RandomState(0).normal(size=shape).astype("float32")
    acquisition = Acquisition(name, beta=0.7)
    tensors = acquisition(ops, ops.convert_to_tensor(values), 0.2)
    assert_allclose(np.asarray(tensors), acquisition(np, values, 0.2), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ACQUISITIONS)
def test_units_of_values_do_not_matter(name, normals):
    acquisition = Acquisition(name, beta=0.7)
    expected, tiny = acquisition(np, normals, 0.2), 1e-20
    found = acquisition(np, tiny * normals, tiny * 0.2)
    assert_allclose(found if name == "pi" else found / tiny, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", ACQUISITIONS)
def test_gradients_are_finite_where_all_draws_agree(name):
    from skuq.backend import BACKEND, ops

    acquisition = Acquisition(name)
    same = ops.ones((8, 3))
    value = ops.sum(acquisition(ops, same, 1.0))
    *_, gradient = BACKEND.value_and_gradient(
        lambda values: (ops.sum(acquisition(ops, values, 1.0)), None), same
    )
    assert np.isfinite(value)
    assert np.isfinite(np.asarray(gradient)).all()


def test_beta_of_the_call_replaces_the_acquisitions_own(normals):
    assert_array_equal(
        Acquisition("ucb", beta=1.0)(np, normals, 0.0, beta=3.0),
        Acquisition("lcb", beta=3.0)(np, normals, 0.0),
    )


def test_equal_settings_make_equal_keys():
    assert hash(Acquisition("lei")) == hash(Acquisition("lei", delta=0.01))
    assert Acquisition("lei") != Acquisition("lei", delta=0.02)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"name": "best"}, "must be one of ei"),
        ({"delta": 1.5}, r"delta must be in \[0, 1\]. Got 1.5"),
        ({"beta": -1.0}, "beta must be finite and not negative"),
        ({"beta": np.nan}, "beta must be finite"),
        ({"deviation": "variance"}, 'deviation must be "std" or "absolute"'),
    ],
)
def test_unusable_settings_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        Acquisition(**settings)
