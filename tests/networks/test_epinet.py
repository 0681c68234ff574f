"""EpiNets: against a loop over indices, rows and prior networks, and what they leave alone."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from operators import DrawingNetwork, EncoderDecoder, EpiNetLayers, EpistemicNetwork, keras_base
from plans import ARRAYS, Run, float32, numpy_of, tensors
from scipy.special import ndtr

from skuq.backend import BACKEND, keras, ops

N_ROWS, N_DRAWS, N_FEATURES = 5, 3, 4

EPINETS = {
    "two layers": EpiNetLayers(N_FEATURES, 2, 3, (6, 7), (5, 4), 0.75),
    "one layer": EpiNetLayers(N_FEATURES, 1, 4, (6,), (5,), 0.5),
    "plain": EpiNetLayers(N_FEATURES, 2, 3, (6, 7), (5, 4, 3), 2.0, factorized=False),
    "one index": EpiNetLayers(N_FEATURES, 2, 1, (6,), (5,), 1.0),
    "linear": EpiNetLayers(N_FEATURES, 2, 3, (), (), 1.0),
}


def drawn(epinet, seed=0):
    """Weights with biases other than 0, and the prior."""
    rng = np.random.default_rng(seed)
    weights, prior = epinet.draw(rng)
    return [w + 0.1 * rng.normal(size=w.shape) for w in weights], prior


def gelu(x):
    return x * ndtr(x)


def literal(epinet, weights, prior, features, index):
    """Eqs. 3 and 4 by loops: a network of [features, z] and one of features for each z_k."""
    n_index, n_raw = epinet.n_index, epinet.n_raw
    draws = np.zeros((len(index), len(features), n_raw))
    per_layer = 3 if epinet.factorized else 2
    trained = [weights[k : k + per_layer] for k in range(0, len(weights), per_layer)]
    first = np.split(prior[0], n_index, axis=1)
    for s, z in enumerate(index):
        for n, row in enumerate(features):
            value = np.concatenate([row, z])
            for k, (v, bias, *g) in enumerate(trained):
                kernel = v * g[0] if g else v
                value = value @ kernel + bias
                value = gelu(value) if k < len(trained) - 1 else value
            draws[s, n] = z @ value.reshape(n_index, n_raw)
            for k in range(n_index):
                value = row @ first[k]
                for kernels in prior[1:]:
                    value = gelu(value) @ kernels[k]
                draws[s, n] += epinet.prior_scale * z[k] * value
    return draws


@pytest.mark.parametrize("epinet", EPINETS.values(), ids=EPINETS.keys())
def test_draws_are_those_of_a_loop(epinet):
    """On arrays, as tensors, and of several members at once."""
    rng, members = np.random.default_rng(1), [drawn(epinet, k) for k in range(2)]
    features = rng.normal(size=(2, N_ROWS, N_FEATURES))
    index = rng.normal(size=(2, N_DRAWS, epinet.n_index))
    alone = []
    for k, (weights, prior) in enumerate(members):
        alone.append(epinet(ARRAYS, weights, prior, features[k], index[k]))
        expected = literal(epinet, weights, prior, features[k], index[k])
        assert_allclose(alone[k], expected, atol=1e-12)
        parts = float32(weights), float32(prior), *float32([features[k], index[k]])
        assert_allclose(numpy_of(epinet(tensors(), *parts)), alone[k], atol=2e-5)
    weights, priors = ([np.stack(part) for part in zip(*parts)] for parts in zip(*members))
    assert_allclose(epinet(ARRAYS, weights, priors, features, index), alone, atol=1e-12)


BASE = EncoderDecoder(2, 1, 2, (6,), 4, "split", (5, 7))
EPINET = EpiNetLayers(BASE.n_features, 2, 3, (6,), (5, 4), 0.75)


def keras_network():
    layers = keras.layers
    u, y = keras.Input((2,)), keras.Input((1,))
    value = layers.Dense(5, activation="tanh")(layers.Concatenate()([u, y]))
    model = keras.Model([u, y], layers.Dense(2)(layers.BatchNormalization()(value)))
    return keras_base(model, 2, 1, 2)


def networks():
    base = keras_network()
    return {
        "epinet": EpistemicNetwork(BASE, 2, EPINET),
        "features": EpistemicNetwork(None, 2, EpiNetLayers(3, 2, 3, (6,), (5, 4))),
        "randomised prior": EpistemicNetwork(BASE, 2, prior_scale=0.5),
        "base": EpistemicNetwork(BASE, 2),
        "keras epinet": EpistemicNetwork(base, 2, EpiNetLayers(5 + 3, 2, 3, (6,), (5, 4))),
        "keras prior": EpistemicNetwork(base, 2, prior_scale=0.5),
    }


def test_another_configuration_is_refused():
    with pytest.raises(ValueError, match="epistemic network"):
        EpistemicNetwork.from_json(keras.Sequential([keras.Input((1,))]).to_json())


def forward(network):
    """Draws of first weights, as a function of the trained variables."""
    drawing = DrawingNetwork(network)
    flat, state = drawing.draw(0)
    rng = np.random.default_rng(2)
    x, index = float32([rng.normal(size=(N_ROWS, 3)), rng.normal(size=(N_DRAWS, 3))])
    run = Run(tensors(), training=True, index=index)
    state = [ops.convert_to_tensor(value) for value in state]

    def draws(variables):
        return drawing.forward(variables, state, x, run)[0]

    return draws, float32(drawing.split(flat)), drawing


@pytest.mark.parametrize("network", networks().values(), ids=networks())
def test_shapes_and_first_weights_of_all_kinds(network):
    draws, variables, drawing = forward(network)
    assert [tuple(v.shape) for v in variables] == [tuple(shape) for shape in drawing.shapes]
    assert draws(variables).shape == (N_DRAWS if network.epinet else 1, N_ROWS, 2)
    (flat, state), again, other = (drawing.draw(seed) for seed in (0, 0, 1))
    assert flat.dtype == np.float32 and abs(other[0] - flat).max() > 0
    for one, two in zip([flat, *state], [again[0], *again[1]], strict=True):
        assert_array_equal(one, two)
    # The configuration comes back.
    same = EpistemicNetwork.from_json(network.to_json())
    assert same.without_names() == network.without_names()
    assert hash(same.without_names()) == hash(network.without_names())
    assert same.n_index == (3 if network.epinet else 0)


def gradient(network):
    draws, variables, drawing = forward(network)
    cotangent = np.random.default_rng(3).normal(size=(N_ROWS, 2)).astype("float32")

    def total(variables):
        return ops.sum(cotangent * ops.mean(draws(variables), axis=0)), ()

    _, _, slopes = BACKEND.value_and_gradient(total, variables)
    return [numpy_of(slope) for slope in slopes], drawing.n_base


@pytest.mark.parametrize("kind", ["operator", "keras", "prior"])
def test_base_learns_as_if_it_were_alone(kind):
    """The stop-gradient of Eq. 3; a prior is no variable and passes no gradient."""
    base = keras_network() if kind == "keras" else BASE
    more = {"prior_scale": 0.5}
    if kind != "prior":
        n_features = BASE.n_features if kind == "operator" else 8
        more = {"epinet": EpiNetLayers(n_features, 2, 3, (6,), (5, 4))}
    slopes, n_base = gradient(EpistemicNetwork(base, 2, **more))
    expected, _ = gradient(EpistemicNetwork(base, 2))
    assert n_base == len(expected) and (len(slopes) > n_base) == (kind != "prior")
    for slope, other in zip(slopes, expected):
        assert_allclose(slope, other, rtol=1e-4, atol=1e-6)
    assert all(abs(slope).max() > 0 for slope in expected[:-1])
    assert all(abs(slope).max() > 0 for slope in slopes[n_base:])


def test_draws_are_the_base_with_a_second_network_or_an_epinet_of_its_features():
    x = np.random.default_rng(2).normal(size=(N_ROWS, 3))
    index = np.random.default_rng(3).normal(size=(N_DRAWS, 3))
    drawing = DrawingNetwork(EpistemicNetwork(BASE, 2, prior_scale=0.5))
    flat, state = drawing.draw(0)
    draws = drawing.forward(drawing.split(flat), state, x, Run(ARRAYS))[0]
    base, prior = (BASE(ARRAYS, weights, x)[0] for weights in (drawing.split(flat), state))
    assert_allclose(draws[0], base + 0.5 * prior, atol=1e-9)
    assert abs(base - prior).max() > 0.01
    drawing = DrawingNetwork(EpistemicNetwork(BASE, 2, EPINET))
    flat, prior = drawing.draw(0)
    variables = drawing.split(flat)
    raw, features = BASE(ARRAYS, variables[: drawing.n_base], x)
    expected = raw + literal(EPINET, variables[drawing.n_base :], prior, features, index)
    draws = drawing.forward(variables, prior, x, Run(ARRAYS, index=index))[0]
    assert_allclose(draws, expected, atol=1e-9)
