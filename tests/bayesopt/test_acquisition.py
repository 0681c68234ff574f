"""Acquisition functions against closed forms, and their maximisers against grids."""

from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy import optimize, stats
from tiers import cases, slow_after

from skuq import bayesopt
from skuq.backend import ops, value_and_gradient
from skuq.bayesopt import LeakyExpectedImprovement, UpperConfidenceBound, _acquisition, _maximize
from skuq.bayesopt._acquisition import ACQUISITIONS, AcquisitionTask, CompiledAcquisition
from skuq.predictive import Posterior

programs = _acquisition._programs
EVERY = [bayesopt.ExpectedImprovement(), LeakyExpectedImprovement(0.1), bayesopt.PosteriorMean()]
EVERY += [UpperConfidenceBound(0.7), UpperConfidenceBound(0.7, deviation="absolute")]
EVERY += [bayesopt.PosteriorUncertainty()]
every_acquisition = pytest.mark.parametrize("acquisition", EVERY, ids=repr)
MU, SIGMA = np.array([-1.0, 0.0, 0.3, 2.0]), np.array([0.5, 1.0, 2.0, 0.1])
BOX = np.array([[-1.0, 2.0], [10.0, 11.0]])


@pytest.fixture
def normals():
    """Draws (n, 4) of normals with means MU and standard deviations SIGMA, at equal quantiles."""
    z = stats.norm.ppf((np.arange(4096) + 0.5) / 4096)
    return MU + SIGMA * (z / z.std())[:, None]


def test_acquisitions_of_normals_are_closed_forms(normals):
    best, delta = 0.2, 0.1
    z = (MU - best) / SIGMA
    exact = (MU - best) * stats.norm.cdf(z) + SIGMA * stats.norm.pdf(z)
    # One draw from each of 4096 quantiles: an error of some 1/4096 of the scale.
    found = bayesopt.ExpectedImprovement()(np, normals, best)
    assert_allclose(found, exact, atol=1e-3)
    mixed = (1 - delta) * found + delta * (MU - best)
    assert_allclose(LeakyExpectedImprovement(delta)(np, normals, best), mixed, atol=1e-12)
    exact = MU + 1.5 * SIGMA
    assert_allclose(UpperConfidenceBound(1.5)(np, normals, None), exact, rtol=1e-9)
    absolute = UpperConfidenceBound(1.5, deviation="absolute")(np, normals, None)
    assert_allclose(absolute, exact, atol=3e-3)
    assert_allclose(bayesopt.PosteriorUncertainty()(np, normals, None), SIGMA, rtol=1e-9)
    assert_allclose(bayesopt.PosteriorMean()(np, normals, None), MU, atol=1e-12)


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
def test_acquisition_of_batches_of_one_in_other_units_and_of_equal_draws(acquisition, normals):
    single = acquisition(np, normals, 0.2)
    assert_allclose(acquisition(np, normals[:, :, None], 0.2), single, rtol=1e-12)
    found = acquisition(np, 1e-20 * normals, 1e-20 * 0.2)
    assert_allclose(found / 1e-20, single, rtol=1e-9, atol=1e-12)

    def total(values):
        return ops.sum(acquisition(ops, values, 1.0)), None

    *_, gradient = value_and_gradient(total, ops.ones((8, 3)))
    assert np.isfinite(np.asarray(gradient)).all()


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


def test_acquisition_at_and_key(normals):
    absolute, other = (UpperConfidenceBound(beta, deviation="absolute") for beta in (1.0, 3.0))
    assert_array_equal(absolute.at(3.0)(np, normals, None), other(np, normals, None))
    assert bayesopt.PosteriorMean().at(3.0).beta_at(5) is None
    keys = [LeakyExpectedImprovement(*delta).key for delta in ((), (0.01,), (0.02,))]
    assert keys[0] == keys[1] != keys[2]
    assert len({LeakyExpectedImprovement(delta).key for delta in ([0.1], [0.1], [0.2])}) == 2
    assert UpperConfidenceBound(1.0).key == UpperConfidenceBound(2.0).key != absolute.key


def waves(xp, arguments, X):
    """Draws of a function of random cosines: smooth, with many local maxima."""
    frequencies, phases, weights = arguments
    return xp.matmul(weights, xp.transpose(xp.cos(xp.matmul(X, frequencies) + phases)))


def wave_posterior(seed=0, n_draws=16):
    rng = np.random.RandomState(seed)
    frequencies = rng.normal(size=(2, 12)) * [[2.0], [6.0]]
    weights = rng.normal(size=12) + 0.3 * rng.normal(size=(n_draws, 12))
    return Posterior(waves, (frequencies, rng.uniform(0, 6, 12), weights), "waves", n_draws)


def slope(xp, arguments, X):
    """Lines that rise with every input: their maximum is a corner."""
    return xp.matmul(arguments[0], xp.transpose(X))


CORNER = Posterior(slope, ([[1.0, 1.0], [2.0, 3.0]],), "slope", 2)


def maximize_acquisition(
    posterior, acquisition="mean", objective=None, bounds=BOX, best=None, **settings
):
    """Maximise an acquisition, which may be given by its short form."""
    if isinstance(acquisition, str):
        acquisition = ACQUISITIONS[acquisition]()
    task = AcquisitionTask(posterior, acquisition, objective, bounds, best, 1)
    return _maximize.maximize_acquisition(task, **{"random_state": 0, **settings})


def numpy_and_compiled(posterior, acquisition, q=1, pending=None):
    """The acquisition in BOX as a function of NumPy, and as compiled programs."""
    task = AcquisitionTask(posterior, acquisition, None, BOX, 0.5, q, pending)
    programs = [CompiledAcquisition(task, dtype) for dtype in ("float32", "float64")]
    return _acquisition.acquisition_of(task), *programs


def test_minimize_batch_finds_minima_keeps_bounds_and_drops_starts_of_no_value(rng):
    starts, sizes = rng.uniform(size=(40, 2)), []

    def rosenbrock(x):
        """Values and gradients of 2-D Rosenbrock on [-2, 2]^2, from the unit box."""
        sizes.append(len(x))
        values = np.array([optimize.rosen(point) for point in 4 * x - 2])
        return values, 4 * np.array([optimize.rosen_der(point) for point in 4 * x - 2])

    x, values = _maximize.minimize_batch(rosenbrock, starts, max_rounds=500)
    assert_allclose(x, 0.75, atol=1e-3)  # (1, 1), for every start
    assert values.max() < 1e-6
    sizes.clear()
    _maximize.minimize_batch(rosenbrock, starts, max_rounds=30, survivors={3: 5})
    assert sizes[:3] == [40, 40, 40] and max(sizes[3:]) <= 5

    # A bowl whose centre is outside in the first variable: the minimum is on the nearest face.
    def bowl(x):
        offsets = x - [1.4, 0.3, -0.2]
        values = np.where(x[:, 1] > 0.9, np.nan, np.sum(offsets**2, axis=1))
        return values, 2 * offsets

    starts = rng.uniform(size=(9, 3)) * 0.9
    starts[0, 1] = 0.95
    x, values = _maximize.minimize_batch(bowl, starts, max_rounds=50)
    assert values[0] == np.inf
    assert_array_equal(x[0], starts[0])
    assert_allclose(x[1:], np.tile([1.0, 0.3, 0.0], (8, 1)), atol=1e-5)


@pytest.mark.parametrize("q", slow_after(1, [2, 1]))
@pytest.mark.parametrize("name", ACQUISITIONS)
def test_compiled_acquisition_has_values_of_numpy_and_gradients_of_differences(name, q, rng):
    posterior, acquisition = wave_posterior(), ACQUISITIONS[name]().at(0.8)
    level = acquisition.pending_level(posterior([[0.2, 10.2], [0.4, 10.1]]))
    u = rng.uniform(0.1, 0.9, size=(5, 2 * q))
    exact, program, double = numpy_and_compiled(posterior, acquisition, q, level)
    values, gradients = program.values_and_gradients(u)
    # Inputs of 11 times frequencies of 6 in single precision: 1e-5 of values of some 3.
    assert_allclose(values, exact(u), atol=2e-4)
    assert_allclose(double(u), exact(u), atol=1e-12)
    for j, moved in enumerate(1e-6 * np.eye(2 * q)):
        differences = (exact(u + moved) - exact(u - moved)) / 2e-6
        assert_allclose(gradients[:, j], differences, rtol=1e-3, atol=1e-2)
    value, gradient = program.values_and_gradients(u[3:4], rows=1)
    assert_allclose(value[0], values[3], atol=1e-4)
    assert_allclose(gradient[0], gradients[3], rtol=1e-4, atol=1e-3)
    alone, *_ = numpy_and_compiled(posterior, acquisition, q)
    assert np.abs(alone(u) - exact(u)).max() > 1e-3


@pytest.mark.parametrize("method", ["lbfgs", "scipy", "direct"])
def test_maximize_acquisition_finds_the_grids_maximum(method):
    posterior, acquisition = wave_posterior(), UpperConfidenceBound()
    side = np.linspace(0, 1, 150)
    grid = np.stack(np.meshgrid(side, side), axis=-1).reshape(-1, 2)
    exact, *_ = numpy_and_compiled(posterior, acquisition)
    settings = {"method": method, "n_restarts": 30}
    x, value = maximize_acquisition(posterior, acquisition, **settings)
    assert x.shape == (1, 2) and value >= exact(grid).max() - 1e-3
    assert_allclose(acquisition(np, posterior(x), 0.0), value, atol=1e-3)
    assert_array_equal(maximize_acquisition(posterior, acquisition, **settings)[0], x)
    if method != "direct":  # an optimum in a corner is found exactly
        assert_array_equal(maximize_acquisition(CORNER, **settings)[0], [[2.0, 11.0]])
    box = np.array([[0.1, 0.3], [-1 / 3, 1e-9]])  # does not round well
    x, _ = maximize_acquisition(CORNER, bounds=box, **settings)
    assert ((box[:, 0] <= x) & (x <= box[:, 1])).all()


def test_maximize_acquisition_compiles_once_or_warns_and_takes_direct():
    def objective(values):
        return -((values - 1.0) ** 2)

    before = programs.n_made
    for seed, best, beta in ((0, 0.0, 2.0), (1, -3.0, 4.0)):
        task = wave_posterior(seed), UpperConfidenceBound(beta), objective, BOX + seed, best
        maximize_acquisition(*task, n_restarts=8 + seed, random_state=seed)
        assert programs.n_made - before == 2  # one of values, and one of gradients

    def squared(values):
        return -np.square(np.asarray(values) - 1.0)

    posterior, before = wave_posterior(n_draws=2), programs.n_made
    for _ in range(2):
        with pytest.warns(UserWarning, match="no gradients.*DIRECT"):
            _, value = maximize_acquisition(posterior, objective=squared, n_restarts=20)
    assert programs.n_made - before == 1  # the failure is compiled once
    _, exact = maximize_acquisition(posterior, objective=objective, n_restarts=20)
    assert_allclose(value, exact, atol=1e-2)


@pytest.mark.parametrize("key", ["broken", None])
def test_maximize_acquisition_where_there_is_no_value(key):
    def broken(xp, arguments, X):
        return xp.log(arguments[0] - xp.transpose(X)[0])  # NaN where x > 0.5

    posterior = Posterior(broken, (np.full((2, 1), 0.5),), key, 2)
    with np.errstate(invalid="ignore", divide="ignore"):
        x, value = maximize_acquisition(posterior, n_restarts=10)
    assert x[0, 0] == -1.0
    assert_allclose(value, np.log(1.5), rtol=1e-6)
    everywhere = replace(posterior, arguments=(np.full((2, 1), np.nan),))
    with pytest.raises(ValueError, match="NaN or infinite at all of"):
        maximize_acquisition(everywhere, n_restarts=10)


def test_maximize_acquisition_of_many_outputs_and_away_from_pending_points():
    def function(xp, arguments, X):
        return arguments[0] + X[None]  # outputs are the inputs, shifted by draw

    def objective(values):
        return -((values[..., 0] - 0.5) ** 2) - (values[..., 1] - 10.25) ** 2

    posterior = Posterior(function, (np.zeros((2, 1, 1)),), "identity", 2, (2,))
    x, value = maximize_acquisition(posterior, objective=objective, n_restarts=10)
    assert_allclose(x, [[0.5, 10.25]], atol=1e-3)
    assert_allclose(value, 0.0, atol=1e-5)
    for wrong, message in ((None, "give an objective"), (lambda v: v, "must make one number")):
        with pytest.raises(ValueError, match=message):
            maximize_acquisition(posterior, objective=wrong, n_restarts=2)
    first, _ = maximize_acquisition(CORNER, n_restarts=5)
    settings = {"n_restarts": 5, "pending": first, "min_distance": 0.1}
    second, _ = maximize_acquisition(CORNER, "uncertainty", **settings)
    assert np.linalg.norm((second - first) / np.ptp(BOX, axis=1)) >= 0.1
    with pytest.raises(ValueError, match="Lower min_distance"):
        maximize_acquisition(CORNER, n_restarts=2, pending=[[0.5, 10.5]], min_distance=2.0)
    with pytest.raises(ValueError, match='"lbfgs" needs a surrogate with gradients'):
        maximize_acquisition(replace(CORNER, key=None), method="lbfgs")


@cases("method, unit, constant", ("lbfgs", 1.0, 1e8), ("lbfgs", 1e60, 0.0), ("scipy", 1.0, 1e9))
def test_maximize_acquisition_ignores_level_and_unit_of_outputs(method, unit, constant):
    near, acquisition = wave_posterior(), UpperConfidenceBound()

    def moved(xp, arguments, X):
        *of_waves, unit, constant = arguments
        return unit * waves(xp, of_waves, X) + constant

    far = replace(near, function=moved, arguments=(*near.arguments, unit, constant), key="moved")
    expected, _ = maximize_acquisition(near, acquisition, n_restarts=20)
    x, _ = maximize_acquisition(far, acquisition, method=method, n_restarts=20)
    value, highest = (acquisition(np, near(point), None) for point in (x, expected))
    assert value > highest - 1e-3 * abs(highest)


def test_maximize_acquisition_takes_small_steps_in_double_precision():
    """A maximum so flat, on a large constant, that single precision cannot place it."""

    def bowl(xp, arguments, X):
        return arguments[0][:, None] - xp.sum(xp.square((X - arguments[1]) / arguments[2]), axis=1)

    top, sides = np.array([0.5123456, 10.4567]), np.ptp(BOX, axis=1)
    posterior = Posterior(bowl, (np.array([30.0, 30.0]), top, sides), "bowl", 2)
    for starts, tolerance in (([top + 0.002 * sides], 1e-7), ((), 0.01)):
        x, _ = maximize_acquisition(posterior, n_restarts=20, starts=starts)
        assert np.abs((x - top) / sides).max() < tolerance
