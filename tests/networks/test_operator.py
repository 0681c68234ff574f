"""Operator networks, their output maps and losses, against formulas and Keras."""

import numpy as np
import operators
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from operators import Dense, EncoderDecoder, OperatorHead
from plans import ARRAYS, float32, numpy_of, sequential, tensors
from scipy.special import expit
from tiers import cases

from skuq.backend import keras, ops, tfd

layers = keras.layers

NETWORKS = {
    "split": EncoderDecoder(3, 2, 2, (7,), 6, "split", (8, 9)),
    "concat": EncoderDecoder(3, 2, 2, (7,), 6, "concat", (8, 9)),
    "deep": EncoderDecoder(3, 2, 1, (7, 5, 4), 7, "split", (8, 9, 4)),
    "fourier": EncoderDecoder(3, 2, 2, (7,), 6, "split", (8, 9), fourier_scale=2.0),
    "fourier concat": EncoderDecoder(3, 1, 2, (7,), 6, "concat", (8, 9), fourier_scale=2.0),
    "plain": EncoderDecoder(3, 2, 2, (7,), 6, factorized=False, activation="tanh"),
    "one layer": EncoderDecoder(1, 1, 1, (4,), 3, "split", (5,), activation="relu"),
}


def test_draw_has_the_given_scales():
    plain, factorized = Dense(200, 100), Dense(200, 100, factorized=True)
    drawn = [layer.draw(np.random.default_rng(0)) for layer in (plain, factorized)]
    kernels = [layer.kernel(weights) for layer, weights in zip((plain, factorized), drawn)]
    assert_allclose(kernels[0], kernels[1], rtol=1e-12)
    assert kernels[0].std() == pytest.approx(np.sqrt(2 / 300), rel=0.02)  # Glorot
    log = np.log(drawn[1][2])  # N(1, 0.01)
    assert log.mean() == pytest.approx(1, abs=4e-3) and log.std() == pytest.approx(0.01, rel=0.25)
    assert_array_equal(drawn[0][1], 0)
    network = EncoderDecoder(1, 50, 1, latent=200, decoder="concat", fourier_scale=5.0)
    frequencies = network.draw(np.random.default_rng(0))[9]
    assert frequencies.shape == (50, 100)
    assert frequencies.std() == pytest.approx(5, rel=0.05)


def literal(network, weights, x):
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
    features = np.concatenate([beta, value, repeated], axis=1)
    raw = dense(value, "linear")
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
        found = network(ARRAYS, weights, x[k]), on_tensors, literal(network, weights, x[k])
        for one, alone, tensor, expected in zip(together, *found):
            assert_allclose(alone, expected, rtol=1e-6, atol=1e-6)
            assert_allclose(one[k], alone, atol=1e-12)
            assert_allclose(numpy_of(tensor), alone, atol=1e-5)
        assert [part.shape[1] for part in found[0]] == [network.n_raw, network.n_features]


def small_base(n_inputs=3, n_queries=2, n_raw=2, width=4):
    u, y = keras.Input((n_inputs,)), keras.Input((n_queries,))
    hidden = layers.Dense(width, activation="tanh", name="hidden")(layers.Concatenate()([u, y]))
    return keras.Model([u, y], layers.Dense(n_raw, name="out")(layers.LayerNormalization()(hidden)))


def test_keras_base_gives_outputs_then_what_enters_the_last_layer_and_rows():
    model = small_base()
    network = keras.models.model_from_json(operators.keras_base(model, 3, 2, 2))
    network.set_weights(model.get_weights())
    x = np.random.default_rng(0).normal(size=(6, 5)).astype("float32")
    both = keras.Model(model.inputs, [model.output, model.get_layer("out").input])
    expected = [*map(numpy_of, both([x[:, :3], x[:, 3:]])), x]
    assert_allclose(numpy_of(network(x)), np.concatenate(expected, axis=1), atol=1e-6)


def test_equal_keras_bases_are_one_network():
    """Keras counts names through a session: they must not make programs differ."""
    models = small_base(), small_base(), small_base(width=5)
    bases = [operators.keras_base(model, 3, 2, 2) for model in models]
    epinet = operators.EpiNetLayers(9, 2)
    first, again, other = (
        operators.EpistemicNetwork(base, 2, epinet).without_names() for base in bases
    )
    assert first == again and hash(first) == hash(again) and first != other


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


@pytest.fixture
def draws():
    """y (5, 2), and raw draws (3, 5, 4)."""
    rng = np.random.default_rng(0)
    return rng.normal(size=(5, 2)).astype("float32"), rng.normal(size=(3, 5, 4)).astype("float32")


def test_output_maps_are_their_formulas(draws):
    raw = draws[1]
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


def test_squared_and_huber_are_means_over_draws_and_outputs(draws):
    y, raw = draws[0], np.stack([draws[1][..., :2], 2 * draws[1][..., 2:]])  # of two members
    error = raw - y
    huber = np.where(abs(error) <= 1, 0.5 * error**2, abs(error) - 0.5)
    assert (abs(error) > 1).any()
    for kind, expected in (("squared", 0.5 * error**2), ("huber", huber)):
        found = numpy_of(OperatorHead(2, kind).loss(np.stack([y, y]), raw))
        assert_allclose(found, expected.mean(axis=(1, 3)), rtol=1e-5)


def test_nll_is_that_of_a_mixture_of_all_draws(draws):
    """Eq. 5, with one normal for each index z."""
    (y, raw), head = draws, OperatorHead(2, "nll")
    assert head.n_raw == 4
    members = np.stack([raw, 2 * raw])
    mean, scale = (np.moveaxis(part, 1, 2) for part in head.values(ARRAYS, members))
    mixture = tfd.MixtureSameFamily(
        tfd.Categorical(probs=np.full(3, 1 / 3, dtype="float32")),
        tfd.Independent(tfd.Normal(mean, scale), 1),
    )
    found = numpy_of(head.loss(np.stack([y, y]), members))
    assert_allclose(found, -numpy_of(mixture.log_prob(y)) / 2, rtol=1e-5)
