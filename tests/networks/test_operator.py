"""Operator networks and EpiNets, output maps and losses, against formulas and Keras."""

import numpy as np
import operators
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from operators import Dense, DrawingNetwork, EpiNetLayers, EpistemicNetwork, OperatorHead
from plans import ARRAYS, Run, float32, numpy_of, sequential, tensors
from scipy.special import expit, ndtr
from tiers import cases

from skuq.backend import keras, ops, tfd, value_and_gradient

layers = keras.layers
NETWORKS = {
    "split": operators.EncoderDecoder(3, 2, 2, (7,), 6, "split", (8, 9)),
    "concat": operators.EncoderDecoder(3, 2, 2, (7,), 6, "concat", (8, 9)),
    "deep": operators.EncoderDecoder(3, 2, 1, (7, 5, 4), 7, "split", (8, 9, 4)),
    "fourier": operators.EncoderDecoder(3, 2, 2, (7,), 6, "split", (8, 9), fourier_scale=2.0),
    "fourier concat": operators.EncoderDecoder(
        3, 1, 2, (7,), 6, "concat", (8, 9), fourier_scale=2.0
    ),
    "plain": operators.EncoderDecoder(3, 2, 2, (7,), 6, factorized=False, activation="tanh"),
    "one layer": operators.EncoderDecoder(1, 1, 1, (4,), 3, "split", (5,), activation="relu"),
}
Y, RAW = (np.random.default_rng(0).normal(size=s).astype("float32") for s in ((5, 2), (3, 5, 4)))
BASE = operators.EncoderDecoder(2, 1, 2, (6,), 4, "split", (5, 7))
EPINET = EpiNetLayers(BASE.n_features, 2, 3, (6,), (5, 4), 0.75)


def test_draw_has_the_given_scales():
    plain, factorized = Dense(200, 100), Dense(200, 100, factorized=True)
    drawn = [layer.draw(np.random.default_rng(0)) for layer in (plain, factorized)]
    kernels = [layer.kernel(weights) for layer, weights in zip((plain, factorized), drawn)]
    assert_allclose(kernels[0], kernels[1], rtol=1e-12)
    assert kernels[0].std() == pytest.approx(np.sqrt(2 / 300), rel=0.02)  # Glorot
    log = np.log(drawn[1][2])  # N(1, 0.01)
    assert log.mean() == pytest.approx(1, abs=4e-3) and log.std() == pytest.approx(0.01, rel=0.25)
    assert_array_equal(drawn[0][1], 0)
    network = operators.EncoderDecoder(1, 50, 1, latent=200, decoder="concat", fourier_scale=5.0)
    frequencies = network.draw(np.random.default_rng(0))[9]
    assert frequencies.shape == (50, 100) and frequencies.std() == pytest.approx(5, rel=0.05)


def by_formula(network, weights, x):
    """Outputs and features by the formulas, with Keras' activations."""
    u, y = np.split(x, [network.n_inputs], axis=1)
    weights = iter(weights)

    def dense(value, activation=network.activation):
        kernel, bias = next(weights), next(weights)
        kernel = kernel * next(weights) if network.factorized else kernel
        return numpy_of(keras.activations.get(activation)(value @ kernel + bias))

    beta = u
    for _ in network.encoder_units:
        beta = dense(beta)
    beta = dense(beta, "linear")
    is_split, n_layers = network.decoder == "split", len(network.decoder_units)
    size = network.latent // n_layers if is_split else network.latent
    parts = np.split(beta, np.arange(size, network.latent, size), axis=1)
    value = np.resize(y.T, (size, len(y))).T  # y as often as it fits
    if network.fourier_scale is not None:
        phase = y @ next(weights)
        value = np.concatenate([np.cos(phase), np.sin(phase)], axis=1)
    for k in range(n_layers):
        given = parts[k : k + 1]  # of one that is not split, the first layer reads all
        value = dense(np.concatenate([value, *given], axis=1))
    repeated = np.resize(y.T, (network.latent, len(y))).T
    features, raw = np.concatenate([beta, value, repeated], axis=1), dense(value, "linear")
    assert next(weights, None) is None
    return raw, features


@pytest.mark.parametrize("network", NETWORKS.values(), ids=NETWORKS.keys())
def test_network_is_that_of_the_formulas(network):
    """On arrays, as tensors, and of several members at once."""
    members = [network.draw(np.random.default_rng(k)) for k in range(2)]
    x = np.random.default_rng(1).normal(size=(2, 11, network.n_inputs + network.n_queries))
    together = network(ARRAYS, [np.stack(parts) for parts in zip(*members)], x)
    for k, weights in enumerate(members):
        assert [np.shape(part) for part in weights] == network.shapes
        on_tensors = network(tensors(), float32(weights), *float32([x[k]]))
        found = network(ARRAYS, weights, x[k]), on_tensors, by_formula(network, weights, x[k])
        for one, alone, tensor, expected in zip(together, *found):
            assert_allclose(alone, expected, rtol=1e-6, atol=1e-6)
            assert_allclose(one[k], alone, atol=1e-12)
            assert_allclose(numpy_of(tensor), alone, atol=1e-5)
        assert [part.shape[1] for part in found[0]] == [network.n_raw, network.n_features]


def small_base(n_inputs=3, n_queries=2, n_raw=2, width=4):
    u, y = keras.Input((n_inputs,)), keras.Input((n_queries,))
    hidden = layers.Dense(width, activation="tanh", name="hidden")(layers.Concatenate()([u, y]))
    return keras.Model([u, y], layers.Dense(n_raw, name="out")(layers.BatchNormalization()(hidden)))


def test_keras_base_gives_outputs_then_what_enters_the_last_layer_and_rows():
    model = small_base()
    network = keras.models.model_from_json(operators.keras_base(model, 3, 2, 2))
    network.set_weights(model.get_weights())
    x = np.random.default_rng(0).normal(size=(6, 5)).astype("float32")
    both = keras.Model(model.inputs, [model.output, model.get_layer("out").input])
    expected = [*map(numpy_of, both([x[:, :3], x[:, 3:]])), x]
    assert_allclose(numpy_of(network(x)), np.concatenate(expected, axis=1), atol=1e-6)
    # Keras counts names through a session: they must not make programs differ.
    bases = [operators.keras_base(small_base(width=width), 3, 2, 2) for width in (4, 4, 5)]
    networks = [EpistemicNetwork(base, 2, EpiNetLayers(9, 2)).without_names() for base in bases]
    assert len(set(networks[:2])) == 1 and networks[0] != networks[2]
    with pytest.raises(ValueError, match="epistemic network"):
        EpistemicNetwork.from_json(sequential((1,)).to_json())


def with_end(*end):
    """A model of u and y joined, with these layers."""
    u, y = keras.Input((3,)), keras.Input((2,))
    value = layers.Concatenate()([u, y])
    for layer in end:
        value = layer(value)
    return keras.Model([u, y], value)


@cases(
    ("make", "message"),
    (lambda: small_base(2), r"shapes \[\(None, 3\), \(None, 2\)\]"),
    (lambda: small_base(n_raw=1), r"one output of shape \(None, 2\)"),
    (lambda: sequential((5,), layers.Dense(2)), "functional Keras model with inputs u and y"),
    (lambda: None, "functional Keras model with inputs u and y"),
    (lambda: keras.Sequential([layers.Dense(2)]), "functional Keras model"),
    (lambda: with_end(lambda value: value[:, :2]), "must have weights"),
    (lambda: with_end(layers.Lambda(lambda v: v), layers.Dense(2)), "cannot be rebuilt"),
    ids=["inputs", "outputs", "one input", "none", "not built", "no weights", "lambda"],
)
def test_other_keras_models_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        operators.keras_base(make(), 3, 2, 2)


def test_output_maps_and_losses_are_their_formulas():
    raw = RAW
    scale = np.exp(-np.log1p(np.exp(raw[..., 2:])))
    for head, expected in (
        (OperatorHead(2, output_map="decaying"), raw[..., :2] * scale),
        (OperatorHead(2, output_map="bounded"), expit(raw[..., :2]) * scale),
        (OperatorHead(4, output_map=ops.tanh), np.tanh(raw)),
    ):
        assert head.n_raw == 4
        for space in (ARRAYS, tensors()):
            values, std = head.values(space, raw)
            assert std is None
            assert_allclose(values, expected, rtol=1e-5)
    raw = np.stack([RAW[..., :2], 2 * RAW[..., 2:]])  # of two members
    error = raw - Y
    huber = np.where(abs(error) <= 1, 0.5 * error**2, abs(error) - 0.5)
    assert (abs(error) > 1).any()
    for kind, expected in (("squared", 0.5 * error**2), ("huber", huber)):
        found = numpy_of(OperatorHead(2, kind).loss(np.stack([Y, Y]), raw))
        assert_allclose(found, expected.mean(axis=(1, 3)), rtol=1e-5)
    # Eq. 5, with one normal for each index z.
    head, members = OperatorHead(2, "nll"), np.stack([RAW, 2 * RAW])
    assert head.n_raw == 4
    mean, scale = (np.moveaxis(part, 1, 2) for part in head.values(ARRAYS, members))
    equal = tfd.Categorical(probs=np.full(3, 1 / 3, dtype="float32"))
    mixture = tfd.MixtureSameFamily(equal, tfd.Independent(tfd.Normal(mean, scale), 1))
    found = numpy_of(head.loss(np.stack([Y, Y]), members))
    assert_allclose(found, -numpy_of(mixture.log_prob(Y)) / 2, rtol=1e-5)


N_ROWS, N_DRAWS, N_FEATURES = 5, 3, 4
EPINETS = {
    "two layers": EpiNetLayers(N_FEATURES, 2, 3, (6, 7), (5, 4), 0.75),
    "one layer": EpiNetLayers(N_FEATURES, 1, 4, (6,), (5,), 0.5),
    "plain": EpiNetLayers(N_FEATURES, 2, 3, (6, 7), (5, 4, 3), 2.0, factorized=False),
    "one index": EpiNetLayers(N_FEATURES, 2, 1, (6,), (5,), 1.0),
}


def drawn(epinet, seed=0):
    """Weights with biases other than 0, and the prior."""
    rng = np.random.default_rng(seed)
    weights, prior = epinet.draw(rng)
    return [w + 0.1 * rng.normal(size=w.shape) for w in weights], prior


def by_loop(epinet, weights, prior, features, index):
    """Eqs. 3 and 4 by loops: a network of [features, z] and one of features for each z_k."""
    n_index, n_raw, gelu = epinet.n_index, epinet.n_raw, lambda x: x * ndtr(x)
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
    index, alone = rng.normal(size=(2, N_DRAWS, epinet.n_index)), []
    for k, (weights, prior) in enumerate(members):
        alone.append(epinet(ARRAYS, weights, prior, features[k], index[k]))
        expected = by_loop(epinet, weights, prior, features[k], index[k])
        assert_allclose(alone[k], expected, atol=1e-12)
        parts = float32(weights), float32(prior), *float32([features[k], index[k]])
        assert_allclose(numpy_of(epinet(tensors(), *parts)), alone[k], atol=2e-5)
    weights, priors = ([np.stack(part) for part in zip(*parts)] for parts in zip(*members))
    assert_allclose(epinet(ARRAYS, weights, priors, features, index), alone, atol=1e-12)


def gradient(network):
    """The gradient of draws by the first weights, and how many variables the base has."""
    drawing, rng = DrawingNetwork(network), np.random.default_rng(2)
    flat, state = drawing.draw(0)
    variables = float32(drawing.split(flat))
    assert [tuple(v.shape) for v in variables] == [tuple(shape) for shape in drawing.shapes]
    state = [ops.convert_to_tensor(value) for value in state]
    x, index, cotangent = float32([rng.normal(size=(n, 3)) for n in (N_ROWS, N_DRAWS, N_ROWS)])
    run = Run(tensors(), training=True, index=index)

    def total(variables):
        draws = drawing.forward(variables, state, x, run)[0]
        return ops.sum(cotangent[:, :2] * ops.mean(draws, axis=0)), ()

    _, _, slopes = value_and_gradient(total, variables)
    return [numpy_of(slope) for slope in slopes], drawing.n_base


@pytest.mark.parametrize("kind", ["operator", "keras", "prior"])
def test_base_learns_as_if_it_were_alone(kind):
    """The stop-gradient of Eq. 3; a prior is no variable and passes no gradient."""
    base = operators.keras_base(small_base(2, 1, width=5), 2, 1, 2) if kind == "keras" else BASE
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
    expected = raw + by_loop(EPINET, variables[drawing.n_base :], prior, features, index)
    draws = drawing.forward(variables, prior, x, Run(ARRAYS, index=index))[0]
    assert_allclose(draws, expected, atol=1e-9)
