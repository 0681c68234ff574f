"""Weights of NOMU for mixed integer programmes."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from tiers import cases

from skuq import NOMURegressor
from skuq.networks import NOMUNetwork, NOMUReadout

pytestmark = pytest.mark.filterwarnings("ignore::skuq.exceptions.SmallValidationWarning")


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(0)
    X = rng.uniform([-1, 0], [1, 50], (12, 2))
    return X, 100 + 7 * np.sin(3 * X[:, 0]) + X[:, 1]


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
    *({**CONNECTED, "noise_std": "learned"}, {}),
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
