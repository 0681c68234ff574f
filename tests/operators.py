"""Operators to learn, for tests of NEON and of ensembles of operator networks."""

import numpy as np
from numpy.testing import assert_allclose

from skuq.backend import compile_program, keras, ops, value_and_gradient
from skuq.networks import _dense as _dense_layers
from skuq.networks import _operator_network as _operator
from skuq.tables._functions import FunctionTargets as FunctionTargets
from skuq.training import _network_checks as _networks
from skuq.training import _predict

EpiNetLayers, EpistemicNetwork = _operator.EpiNetLayers, _operator.EpistemicNetwork
EncoderDecoder, OperatorHead = _operator.EncoderDecoder, _operator.OperatorHead
Dense, slope = _dense_layers.Dense, _dense_layers.slope
DrawingNetwork, keras_base = _networks.DrawingNetwork, _operator.keras_base
predict_draws, read_network = _predict.predict_draws, _predict.read_network
INPUTS, QUERIES = np.linspace(0.5, 2, 6)[:, None], np.linspace(0, 1, 4)
VALUES = np.sin(INPUTS * QUERIES)
SMALL = {"network__encoder_units": 8, "network__latent": 8, "network__decoder_units": 8}
SMALL |= {"training__steps": 5, "batch_size": None, "random_state": 0}


def build(estimator, *args, **settings):
    """Make an estimator; settings of the default network are left out where one is given."""
    if "network" in settings or settings.get("pretrained") is not None:
        settings = {k: v for k, v in settings.items() if not k.startswith("network__")}
    return estimator(*args).set_params(**settings)


# A smooth operator: u -> u_1 sin(u_2 y).
POINTS = np.linspace(0, 2, 12)
WAVE_SETTINGS = {"query_points": POINTS, "batch_size": None, "learning_rate": 5e-3}
WAVE_SETTINGS |= {"network__encoder_units": 16, "network__latent": 16, "random_state": 0}
WAVE_SETTINGS |= {"network__decoder_units": (16, 16)}


def waves(u, y=POINTS):
    return u[:, :1] * np.sin(u[:, 1:] * y)


def inputs(n, low=0.5, high=1.5, seed=0):
    return np.random.default_rng(seed).uniform(low, high, (n, 2))


# Rows far from INPUTS.
FURTHER = np.array([[4.0], [6.0], [-3.0]])
NEAR, FAR = inputs(30, seed=1), inputs(30, 2.5, 3.5, seed=2)


def std_of(model, X, **options):
    return model.predict(X, return_std=True, **options)[1]


def single(posterior):
    """A posterior's arguments as float32 tensors."""
    return tuple(ops.convert_to_tensor(a.astype("float32")) for a in posterior.arguments)


def derivatives_of(jacobian, values):
    """Derivatives of a model of one output that is linear in its weights."""
    return _dense_layers.Derivatives(values[:, None], ((jacobian, np.ones((1, len(values), 1))),))


def first_draw(network, seed):
    """Weights and prior with which the training of a network begins."""
    network = read_network(network) if isinstance(network, str) else network
    return DrawingNetwork(network).draw(int(np.random.SeedSequence(seed).generate_state(4)[0]))


def operator_of_keras(d_u, d_y, n_raw):
    """A network of u and y with a layer that no plan knows."""
    layers = keras.layers
    u, y = keras.Input((d_u,)), keras.Input((d_y,))
    value = layers.Dense(8, activation="tanh")(layers.Concatenate()([u, y]))
    return keras.Model([u, y], layers.Dense(n_raw)(layers.PReLU()(value)))


def assert_exact_gradients(posterior, X, jit):
    """Compare gradients of a weighted sum of all draws with finite differences in float64."""
    weights = np.linspace(1, 2, posterior.n_draws)

    def program(arguments, x):
        def total(x):
            draws = ops.reshape(posterior.function(ops, arguments, x), (len(weights), -1))
            return ops.sum(weights.astype("float32") * ops.sum(draws, axis=1)), ()

        return value_and_gradient(total, x)[2]

    def each_row(x):
        draws = posterior(x)
        return weights @ draws.reshape(*draws.shape[:2], -1).sum(axis=2)

    x = ops.convert_to_tensor(X.astype("float32"))
    gradient = compile_program(program, (single(posterior), x), jit=jit)(single(posterior), x)
    for k, step in enumerate(1e-5 * np.eye(2)):
        up, down = each_row(X + step), each_row(X - step)
        assert_allclose(np.asarray(gradient)[:, k], (up - down) / 2e-5, rtol=2e-3, atol=2e-3)
