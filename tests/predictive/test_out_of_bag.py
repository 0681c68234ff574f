"""Calibration by rows that members have not seen, on ensembles whose truth is known."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy import stats
from training_data import NumberTargets

from skuq.predictive._calibration import (
    TAIL_SCALES,
    UNCALIBRATED,
    Calibration,
    fit_out_of_bag,
    fit_scale,
    fit_tail,
)


def fit_out_of_bag_scale(loc, scale, unseen, y, weight):
    """Factor and floor of members that predict one normal each."""
    loc, scale = loc[:, None], scale[:, None]
    equal = np.full(len(loc), 1 / len(loc))
    found = fit_out_of_bag(loc, scale, np.ones_like(loc), equal, unseen, y, weight)
    return found.factor, found.floor


def ensemble(
    n_rows, *, noise=0.8, claim=1.0, error=0.3, floor=0.0, n_members=8, n_outputs=1, fraction=0.1
):
    """Members that claim `claim` times the noise, and the variance of errors at unseen rows."""
    rng = np.random.default_rng(0)
    noise = rng.uniform(*np.broadcast_to(noise, 2), (n_rows, n_outputs))
    variance = noise**2 + floor**2
    y = rng.normal(size=(n_rows, n_outputs)) * np.sqrt(variance)
    loc = error * rng.normal(size=(n_members, n_rows, n_outputs))
    scale = np.broadcast_to(claim * noise, loc.shape)
    unseen = rng.uniform(size=(n_members, n_rows)) < fraction
    weight = np.ones(n_rows)
    counts = unseen.sum(axis=0)
    averaged = np.mean(1 / counts[counts > 0])
    return (loc, scale, unseen, y, weight), variance + error**2 * averaged


def test_factor_and_floor_are_told_apart():
    arguments, _ = ensemble(60_000, noise=(0.3, 1.5), claim=0.5, error=0.0)
    factor, floor = fit_out_of_bag_scale(*arguments)
    assert_allclose(factor, 2, rtol=0.03)
    assert floor < 0.1
    arguments, _ = ensemble(60_000, noise=(0.3, 1.5), error=0.0, floor=0.7)
    factor, floor = fit_out_of_bag_scale(*arguments)
    assert_allclose((factor, floor), (1, 0.7), rtol=0.03)


def test_few_rows_give_no_correction():
    arguments, _ = ensemble(60, claim=0.2, fraction=0.5, n_members=2)
    loc, scale, unseen, y, weight = arguments
    unseen = np.zeros_like(unseen)
    unseen[1, :29] = True
    assert fit_out_of_bag_scale(loc, scale, unseen, y, weight) == (1.0, 0.0)
    unseen[0, 29] = True
    assert fit_out_of_bag_scale(loc, scale, unseen, y, weight) != (1.0, 0.0)
    weight = np.r_[0.0, np.ones(59)]  # a row without weight is none
    assert fit_out_of_bag_scale(loc, scale, unseen, y, weight) == (1.0, 0.0)
    unseen[:] = False
    assert fit_out_of_bag_scale(loc, scale, unseen, y, weight) == (1.0, 0.0)


@pytest.mark.parametrize("n_rows", [1, 8, 29, 400])
@pytest.mark.parametrize("error", [0.05, 1.0])
def test_few_rows_bound_what_a_far_error_costs(n_rows, error):
    """A component as wide as the errors were, shrunk to that of y; nothing of it for many rows."""
    loc, y = np.zeros((2, 1, n_rows, 1)), error * np.resize([1.0, -1.0], (n_rows, 1))
    given = loc, np.full_like(loc, 0.01), np.ones_like(loc), np.full(2, 0.5)
    found = fit_out_of_bag(*given, np.ones((2, n_rows), bool), y, np.ones(n_rows))
    scale, floor, share = found.tail[-1]
    assert found.shared == 0 and sum(part[2] for part in found.tail) == pytest.approx(1)
    if n_rows == 400:
        assert floor == 0
        return
    assert_allclose(share, 0.4 * np.exp(-n_rows / 40))
    assert_allclose((scale, floor), (1, error ** (n_rows / (n_rows + 8))))
    targets = NumberTargets(loss="crps", standardize=False)
    targets.fit_encoder(y[:, 0], np.ones(n_rows))
    raw = np.tile([0.0, -5.0], (2, 4, 1))
    calibrated = targets.head.mixture(raw, given[3], targets.fit(y), Calibration(tail=found.tail))
    assert calibrated.log_prob(np.full(4, floor)).min() > np.log(share / floor) - 1.5
    # The possible error of the model is epistemic.
    assert (calibrated.epistemic_variance > 0.8 * (share * floor) ** 2).all()
    total = calibrated.aleatoric_variance + calibrated.epistemic_variance
    assert_allclose(total, calibrated.variance)


@pytest.mark.parametrize("n_rows", [100, 600, 5000])
@pytest.mark.parametrize("change", [0.0, -0.3, 0.3, -2.0])
def test_correction_is_shrunk_unless_rows_leave_no_doubt(n_rows, change):
    """Rows count twice if standard deviations fall by a factor of exp(0.3), once if they rise."""
    total = np.random.default_rng(0).uniform(1, 2, (n_rows, 1))
    squares, weight = np.exp(2 * change) * total, np.ones(n_rows)
    full = np.square(fit_scale(squares, total, weight, prior_rows=0))
    fitted = full[0] * total + full[1]
    assert_allclose(fitted, squares, rtol=0.3)
    rows = n_rows * (1 + (min(np.log(fitted / total).mean() / 2, 0.0) / 0.3) ** 2)
    trust = rows / (rows + 100)
    found = np.square(fit_scale(squares, total, weight))
    assert_allclose(found, [1 + trust * (full[0] - 1), trust * full[1]], rtol=1e-6, atol=1e-12)


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e200])
@pytest.mark.parametrize("n_components", [1, 2])
def test_predictions_that_are_not_finite_give_no_correction(value, n_components):
    shape = (2, n_components, 100, 1)
    loc, part = np.zeros(shape), np.full(shape, 1 / n_components)
    loc[0, 0, 3] = value
    given = loc, np.ones(shape), part, np.full(2, 0.5), np.ones((2, 100), bool)
    with np.errstate(all="ignore"):
        y = np.random.default_rng(0).normal(size=(100, 1))
        assert fit_out_of_bag(*given, y, np.ones(100)) == UNCALIBRATED


def test_members_that_are_far_too_wide_become_as_narrow_as_their_errors():
    """The prior of 100 rows does not hold back a factor that 150 rows put at a hundredth."""
    y = 0.01 * np.random.default_rng(0).normal(size=(150, 1))
    for n_components in (1, 2):
        shape = (2, n_components, 150, 1)
        part = np.full(shape, 1 / n_components)
        given = np.zeros(shape), np.ones(shape), part, np.full(2, 0.5), np.ones((2, 150), bool)
        found = fit_out_of_bag(*given, y, np.ones(150))
        assert np.hypot(found.factor, found.floor) < 0.15


def test_wide_components_of_mixtures_do_not_narrow_the_others():
    """Variances alone would make all components, a tenth of which are wide, a third as wide."""
    y = 1.5 * np.random.default_rng(0).normal(size=(2000, 1))
    scale = np.repeat([[[[1.0]], [[15.0]]]], 2000, axis=2)
    probability = np.repeat([[[[0.9]], [[0.1]]]], 2000, axis=2)
    unseen, weight = np.ones((1, 2000), bool), np.ones(2000)
    found = fit_out_of_bag(0 * scale, scale, probability, np.ones(1), unseen, y, weight)
    assert 1.3 < found.factor < 1.6


def normal_densities(error):
    scales = np.array(TAIL_SCALES)[:, None, None]
    return stats.norm(0, scales).logpdf(error)


def test_tail_finds_the_density_of_a_scale_mixture(rng):
    true = np.array([0.3, 0.5, 0.2])
    scale = rng.choice(TAIL_SCALES, size=(10_000, 2), p=true)
    error = scale * rng.normal(size=scale.shape)
    densities = normal_densities(error)

    def log_likelihood(shares):
        return np.log(np.tensordot(shares, np.exp(densities), axes=1)).mean()

    found = fit_tail(densities, np.ones(10_000))
    assert_allclose(found[2], 0.2, atol=0.02)
    assert log_likelihood(found) > log_likelihood(true) - 1e-3
    assert log_likelihood(true) > log_likelihood((0.0, 1.0, 0.0)) + 0.1
    # Rows count by their weights.
    wild, weight = np.concatenate([error, 40 + error]), np.repeat([1.0, 1e-9], 10_000)
    assert_allclose(fit_tail(normal_densities(wild), weight)[2], 0.2, atol=0.02)


@pytest.mark.parametrize(("n_rows", "expected"), [(60, 1.3), (8_000, 2.0)])
def test_few_rows_have_the_typical_error_of_all_members(n_rows, expected, rng):
    """Errors of twice the spread, which varies: many rows tell, and few keep to the prior."""
    spread = np.exp(0.7 * rng.normal(size=(n_rows, 1)))
    loc = spread * rng.normal(size=(8, n_rows, 1))
    y = loc.mean(axis=0) + 2 * spread * rng.normal(size=(n_rows, 1)) + rng.normal(size=(n_rows, 1))
    one = np.ones((8, 1, n_rows, 1))
    unseen, weight = np.ones((8, n_rows), dtype=bool), np.ones(n_rows)
    found = fit_out_of_bag(loc[:, None], one, one, np.full(8, 1 / 8), unseen, y, weight)
    assert_allclose(np.hypot(found.factor, found.shared), expected, rtol=0.15)
