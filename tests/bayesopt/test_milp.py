"""The mixed integer programme against brute force."""

import itertools

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy import optimize
from surrogates import ReluReadout
from tiers import cases

from skuq import NOMURegressor
from skuq.bayesopt import maximize_readout
from skuq.networks import NOMUNetwork, NOMUReadout

pytestmark = pytest.mark.filterwarnings("ignore::skuq.exceptions.SmallValidationWarning")


def random_readout(rng, d, units, l_min=0.05, l_max=0.6):
    """Two hidden layers that see everything before them, and weights of order one."""
    hidden, n = [], d
    for n_units in units:
        hidden.append((rng.normal(size=(n, n_units)) / np.sqrt(d), rng.normal(size=n_units)))
        n += n_units
    mean, raw = ((rng.normal(size=n), rng.normal()) for _ in range(2))
    return ReluReadout(tuple(hidden), mean, raw, l_min, l_max, unit=0.8)


def upper_bound(readout, beta):
    def value(X):
        mean, std = readout(X)
        return mean + beta * std

    return value


@pytest.mark.parametrize("units", [(), (5,), (6, 4)])
@pytest.mark.parametrize("beta", [0.0, 1.0, 20.0])
def test_maximize_readout_equals_enumeration_on_binaries(global_random_seed, units, beta):
    readout = random_readout(np.random.default_rng(global_random_seed), 6, units)
    corners = np.array(list(itertools.product([0.0, 1.0], repeat=6)))
    values = upper_bound(readout, beta)(corners)
    x, value, optimal = maximize_readout(readout, [(0, 1)] * 6, beta, integer=True)
    assert optimal
    assert set(x) <= {0.0, 1.0}
    assert_allclose(value, values.max(), rtol=1e-12)


def test_maximize_readout_of_whole_numbers_and_one_hot_columns(global_random_seed):
    readout = random_readout(np.random.default_rng(global_random_seed), 4, (6, 4))
    # Column 0 in {-1, .., 2}; columns 1 to 3 a category.
    points = np.array([[k, *code] for k in range(-1, 3) for code in np.eye(3)])
    columns = {"integer": [True, False, False, False], "one_hot": [[1, 2, 3]]}
    x, value, optimal = maximize_readout(readout, [(-1, 2), *[(0, 1)] * 3], 2.0, **columns)
    assert optimal
    assert x.tolist() in points.tolist()
    assert_allclose(value, upper_bound(readout, 2.0)(points).max(), rtol=1e-12)


def test_maximize_readout_beats_a_grid_and_a_local_search(global_random_seed):
    bounds = np.array([(-3.0, 1.0), (10.0, 500.0)])
    rng = np.random.default_rng(global_random_seed)
    readout = random_readout(rng, 2, (8, 5))
    (first, _), *_ = readout.hidden
    first[1] /= 100  # the second column has other units
    value_of = upper_bound(readout, 1.5)
    axes = [np.linspace(*side, 201) for side in bounds]
    grid = np.stack(np.meshgrid(*axes), axis=-1).reshape(-1, 2)
    starts = grid[np.argsort(-value_of(grid))[:10]]
    found = [optimize.minimize(lambda x: -value_of(x[None])[0], x, bounds=bounds) for x in starts]
    x, value, optimal = maximize_readout(readout, bounds, 1.5)
    assert optimal
    assert (bounds[:, 0] <= x).all() and (x <= bounds[:, 1]).all()
    assert_allclose(value, value_of(x[None])[0], rtol=1e-12)  # matrix products differ in order
    # The solver's tolerances are 1e-6 of values of order 10 to 100.
    assert value >= max(value_of(grid).max(), *(-climb.fun for climb in found)) - 1e-4


def test_maximize_readout_finds_the_next_best_beside_excluded_points():
    readout = random_readout(np.random.default_rng(3), 3, (4,))
    corners = np.array(list(itertools.product([0.0, 1.0], repeat=3)))
    order = np.argsort(-upper_bound(readout, 1.0)(corners))
    found = np.empty((0, 3))
    for _ in corners:
        x, _, _ = maximize_readout(readout, [(0, 1)] * 3, 1.0, integer=True, exclude=found)
        found = np.vstack([found, x])
    assert_array_equal(found, corners[order])
    with pytest.raises(ValueError, match="No point is left"):
        maximize_readout(readout, [(0, 1)] * 3, 1.0, integer=True, exclude=found)


def test_maximize_readout_within_no_time_returns_some_point():
    readout = random_readout(np.random.default_rng(0), 8, (40, 40))
    x, value, optimal = maximize_readout(readout, [(-1, 1)] * 8, 1.0, time_limit=0.01)
    assert not optimal
    assert np.abs(x).max() <= 1
    assert_allclose(value, upper_bound(readout, 1.0)(x[None])[0], rtol=1e-12)


@cases(
    ("arguments", "settings", "message"),
    (([(0, 1)], 1.0), {}, "2 pairs"),
    (([(0, 1), (1, 1)], 1.0), {}, "low < high"),
    (([(0, 1)] * 2, -1.0), {}, "`beta`"),
    (([(0, 1)] * 2, np.nan), {}, "`beta`"),
    (([(0.5, 1)] * 2, 1.0, True), {}, "whole numbers"),
    (([(0, 1)] * 2, 1.0), {"exclude": np.zeros((1, 2))}, "0 or 1"),
)
def test_maximize_readout_refuses(arguments, settings, message):
    readout = random_readout(np.random.default_rng(0), 2, (3,))
    with pytest.raises(ValueError, match=message):
        maximize_readout(readout, *arguments, **settings)


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(0)
    X = rng.uniform([-1, 0], [1, 50], (12, 2))
    return X, 100 + 7 * np.sin(3 * X[:, 0]) + X[:, 1]


def affine(input_shape, n_outputs):
    from skuq.backend import keras

    layers, inputs = keras.layers, keras.Input(input_shape)
    first = layers.Dense(4, activation="relu")(layers.Rescaling(0.5, 0.1)(inputs))
    second = layers.Dense(4, bias_initializer="ones")(first)
    joined = layers.BatchNormalization()(layers.Add()([first, second]))
    activated = layers.Dropout(0.5)(layers.Activation("relu")(joined))
    return keras.Model(inputs, layers.Dense(n_outputs)(activated))


def product(input_shape, n_outputs):
    from skuq.backend import keras

    layers, inputs = keras.layers, keras.Input(input_shape)
    factors = [layers.Dense(3)(inputs) for _ in range(2)]
    return keras.Model(inputs, layers.Dense(n_outputs)(layers.Multiply()(factors)))


def fitted(rows, **settings):
    readout = NOMUReadout("linear", l_min=0.05, l_max=0.4, c=0.7)
    model = NOMURegressor(NOMUNetwork((5, 4)), readout=readout, epochs=3, random_state=0)
    return model.set_params(**settings).fit(*rows)


CONNECTED = {"network__side_hidden_units": (6,), "network__connect_layers": 2}


@cases(
    "settings",
    *({**CONNECTED, "noise_std": "learned"}, {"network": affine}, {}),
    *({"network__connect_layers": 0}, {"network__side_hidden_units": (4, 3, 3)}),
    {**CONNECTED, "network__hidden_units": (5, 4, 3)},
    quick=2,
)
def test_readout_weights_say_what_the_model_predicts(rows, settings):
    model = fitted(rows, **settings)
    readout = model.readout_weights()
    X = np.random.default_rng(1).uniform([-2, -20], [2, 90], (50, 2))
    mean, std = readout(X)
    parts = model.predict_uncertainty(X)
    assert_allclose(mean, parts.mean, rtol=1e-10)
    assert_allclose(std, parts.epistemic, rtol=1e-10)
    assert readout.n_inputs == 2
    if "noise_std" in settings:  # the units of a frozen mean are not repeated
        assert sum(len(bias) for _, bias in readout.hidden) == 5 + 4 + 6


@cases(
    ("settings", "message"),
    ({"network__activation": "tanh"}, "relu"),
    ({"band": "asymmetric"}, "symmetric"),
    ({"readout__kind": "exponential"}, "linear"),
    ({"network": product}, "dense layers"),
    ({}, "one output"),
)
def test_readout_weights_refuse(rows, settings, message):
    X, y = rows
    model = fitted((X, y if settings else np.stack([y, y], axis=1)), **settings)
    with pytest.raises(ValueError, match=message):
        model.readout_weights()
