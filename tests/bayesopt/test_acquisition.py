"""Acquisition functions against closed forms of normals, loops and each other."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy import stats
from tiers import cases

from skuq.bayesopt import (
    ExpectedImprovement,
    LeakyExpectedImprovement,
    PosteriorMean,
    PosteriorUncertainty,
    UpperConfidenceBound,
)

every_acquisition = pytest.mark.parametrize(
    "acquisition",
    [
        ExpectedImprovement(),
        LeakyExpectedImprovement(0.1),
        UpperConfidenceBound(0.7),
        UpperConfidenceBound(0.7, deviation="absolute"),
        PosteriorMean(),
        PosteriorUncertainty(),
    ],
    ids=repr,
)
MU, SIGMA = np.array([-1.0, 0.0, 0.3, 2.0]), np.array([0.5, 1.0, 2.0, 0.1])


@pytest.fixture
def normals():
    """Draws (n, 4) of normals with means MU and standard deviations SIGMA, at equal quantiles."""
    z = stats.norm.ppf((np.arange(4096) + 0.5) / 4096)
    return MU + SIGMA * (z / z.std())[:, None]


def test_expected_improvement_of_normals(normals):
    best, delta = 0.2, 0.1
    z = (MU - best) / SIGMA
    exact = (MU - best) * stats.norm.cdf(z) + SIGMA * stats.norm.pdf(z)
    # One draw from each of 4096 quantiles: an error of some 1/4096 of the scale.
    found = ExpectedImprovement()(np, normals, best)
    assert_allclose(found, exact, atol=1e-3)
    mixed = (1 - delta) * found + delta * (MU - best)
    assert_allclose(LeakyExpectedImprovement(delta)(np, normals, best), mixed, atol=1e-12)


def test_upper_confidence_bound_of_normals(normals):
    exact = MU + 1.5 * SIGMA
    assert_allclose(UpperConfidenceBound(1.5)(np, normals, None), exact, rtol=1e-9)
    # E|g - mu| has the quantiles' error, some 1/4096 of the scale.
    absolute = UpperConfidenceBound(1.5, deviation="absolute")(np, normals, None)
    assert_allclose(absolute, exact, atol=3e-3)
    assert_allclose(PosteriorUncertainty()(np, normals, None), SIGMA, rtol=1e-9)
    assert_allclose(PosteriorMean()(np, normals, None), MU, atol=1e-12)


def test_leaky_improvement_of_batches_is_the_printed_sum(rng):
    values = rng.normal(size=(9, 5, 3))
    best, delta = 0.4, 0.05
    total = np.zeros(5)
    for draw in values:  # section 7, term by term
        for i, batch in enumerate(draw):
            for value in batch:
                is_best = value == max(batch) and value > best
                total[i] += (1.0 if is_best else delta) * (value - best)
    found = LeakyExpectedImprovement(delta)(np, values, best)
    assert_allclose(found, total / len(values), rtol=1e-12)
    copies = np.repeat(values[:, :, :1], 3, axis=2)  # count once
    found = LeakyExpectedImprovement(0.0)(np, copies, best)
    assert_allclose(found, np.maximum(values[:, :, 0] - best, 0).mean(axis=0), rtol=1e-12)


@every_acquisition
def test_acquisition_of_batches_of_one_and_in_other_units(acquisition, normals):
    single = acquisition(np, normals, 0.2)
    assert_allclose(acquisition(np, normals[:, :, None], 0.2), single, rtol=1e-12)
    found = acquisition(np, 1e-20 * normals, 1e-20 * 0.2)
    assert_allclose(found / 1e-20, single, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("q", [1, 2])
@every_acquisition
def test_acquisition_beside_pending_points_is_that_of_the_whole_batch(acquisition, q, rng):
    values, known = rng.normal(size=(40, 5, q)), rng.normal(size=(40, 2))
    beside = acquisition(np, values, 0.4, pending=acquisition.pending_level(known))
    together = np.concatenate([values, np.repeat(known[:, None], 5, axis=1)], axis=-1)
    whole = acquisition(np, together, 0.4)
    if acquisition.uses_best:  # the gains of the known points are the same everywhere
        beside, whole = np.diff(beside), np.diff(whole)
    assert_allclose(beside, whole, atol=1e-12)


@every_acquisition
def test_acquisition_has_finite_gradients_where_all_draws_agree(acquisition):
    from skuq.backend import BACKEND, ops

    same = ops.ones((8, 3))
    *_, gradient = BACKEND.value_and_gradient(
        lambda values: (ops.sum(acquisition(ops, values, 1.0)), None), same
    )
    assert np.isfinite(np.asarray(gradient)).all()


def test_acquisition_at_and_key(normals):
    absolute, other = (UpperConfidenceBound(beta, deviation="absolute") for beta in (1.0, 3.0))
    assert_array_equal(absolute.at(3.0)(np, normals, None), other(np, normals, None))
    assert PosteriorMean().at(3.0).beta_at(5) is None
    keys = [LeakyExpectedImprovement(*delta).key for delta in ((), (0.01,), (0.02,))]
    assert keys[0] == keys[1] != keys[2]
    assert UpperConfidenceBound(1.0).key == UpperConfidenceBound(2.0).key != absolute.key


@cases(
    ("acquisition", "message"),
    (LeakyExpectedImprovement(1.5), "'delta' parameter .* Got 1.5"),
    (UpperConfidenceBound(-1.0), "'beta' parameter"),
    (UpperConfidenceBound(deviation="variance"), "'deviation' parameter"),
    (UpperConfidenceBound(mean_width=-1), "'mean_width' parameter"),
    (UpperConfidenceBound(2.0, mean_width=0.5), "`mean_width` determines `beta`"),
)
def test_acquisition_validate_refuses(acquisition, message):
    with pytest.raises(ValueError, match=message):
        acquisition.validate()
