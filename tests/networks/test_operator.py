"""Operator networks, their output maps and losses, against formulas and Keras."""

import numpy as np
import operators
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from operators import Dense, EncoderDecoder, OperatorHead
from plans import ARRAYS, float32, numpy_of, tensors
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


@pytest.fixture(params=NETWORKS.values(), ids=NETWORKS.keys())
def network(request):
    return request.param


def rows_of(network, n=11, lead=()):
    size = (*lead, n, network.n_inputs + network.n_queries)
    return np.random.default_rng(1).normal(size=size)


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


def by_keras(network, weights):
    """The same network out of Keras' layers: a model of u and y with outputs and features."""
    u, y = keras.Input((network.n_inputs,)), keras.Input((network.n_queries,))
    weights, built = iter(weights), []

    def dense(value, units, activation):
        v, bias = next(weights), next(weights)
        kernel = v * next(weights) if network.factorized else v
        layer = layers.Dense(units, activation=activation)
        result = layer(value)
        built.append((layer, [kernel, bias]))
        return result

    beta = u
    for units in network.encoder_units:
        beta = dense(beta, units, network.activation)
    beta = dense(beta, network.latent, "linear")
    is_split, n_layers = network.decoder == "split", len(network.decoder_units)
    length = network.latent // n_layers if is_split else network.latent
    if network.fourier_scale is None:
        value = layers.Concatenate()([y] * (length // network.n_queries + 1))[:, :length]
    else:
        phase = ops.matmul(y, np.asarray(next(weights), dtype="float32"))
        value = layers.Concatenate()([ops.cos(phase), ops.sin(phase)])
    for k, units in enumerate(network.decoder_units):
        if is_split:
            value = layers.Concatenate()([value, beta[:, k * length : (k + 1) * length]])
        elif k == 0:
            value = layers.Concatenate()([value, beta])
        value = dense(value, units, network.activation)
    repeated = layers.Concatenate()([y] * (network.latent // network.n_queries + 1))
    features = layers.Concatenate()([beta, value, repeated[:, : network.latent]])
    model = keras.Model([u, y], [dense(value, network.n_raw, "linear"), features])
    for layer, values in built:
        layer.set_weights(values)
    assert next(weights, None) is None
    return model


def test_network_is_that_built_with_keras(network):
    weights, x = network.draw(np.random.default_rng(0)), rows_of(network)
    raw, features = network(ARRAYS, weights, x)
    assert raw.shape == (11, network.n_raw) and features.shape == (11, network.n_features)
    model = by_keras(network, weights)
    expected = model.predict([x[:, : network.n_inputs], x[:, network.n_inputs :]], verbose=0)
    assert_allclose(raw, expected[0], atol=1e-5)
    assert_allclose(features, expected[1], atol=1e-5)


def test_tensors_give_what_arrays_give(network):
    weights, x = network.draw(np.random.default_rng(0)), rows_of(network)
    assert [np.shape(part) for part in weights] == network.shapes
    on_tensors = network(tensors(), float32(weights), *float32([x]))
    for array, other in zip(network(ARRAYS, weights, x), on_tensors):
        assert_allclose(numpy_of(other), array, atol=1e-5)


def test_members_at_once_are_each_alone(network):
    members = [network.draw(np.random.default_rng(k)) for k in range(3)]
    stacked, x = [np.stack(parts) for parts in zip(*members)], rows_of(network, lead=(3,))
    raw, features = network(ARRAYS, stacked, x)
    for k, weights in enumerate(members):
        alone = network(ARRAYS, weights, x[k])
        assert_allclose(raw[k], alone[0], atol=1e-12)
        assert_allclose(features[k], alone[1], atol=1e-12)


def small_base(n_inputs=3, n_queries=2, n_raw=2, width=4):
    u, y = keras.Input((n_inputs,)), keras.Input((n_queries,))
    hidden = layers.Dense(width, activation="tanh", name="hidden")(layers.Concatenate()([u, y]))
    return keras.Model([u, y], layers.Dense(n_raw, name="out")(layers.LayerNormalization()(hidden)))


def test_keras_base_gives_outputs_then_what_enters_the_last_layer_and_rows():
    model = small_base()
    network = keras.models.model_from_json(operators.keras_base(model, 3, 2, 2))
    assert network.output_shape == (None, 2 + 4 + 5)
    network.set_weights(model.get_weights())
    x = np.random.default_rng(0).normal(size=(6, 5)).astype("float32")
    given = network.predict(x, verbose=0)
    parts = [x[:, :3], x[:, 3:]]
    assert_allclose(given[:, :2], model.predict(parts, verbose=0), atol=1e-6)
    hidden = keras.Model(model.inputs, model.get_layer("out").input).predict(parts, verbose=0)
    assert_allclose(given[:, 2:6], hidden, atol=1e-6)
    assert_array_equal(given[:, 6:], x)


def test_equal_keras_bases_are_one_network():
    """Keras counts names through a session: they must not make programs differ."""
    first, again, other = (
        operators.EpistemicNetwork(
            operators.keras_base(model, 3, 2, 2), 2, operators.EpiNetLayers(9, 2)
        ).without_names()
        for model in (small_base(), small_base(), small_base(width=5))
    )
    assert first == again and hash(first) == hash(again) and first != other


def one_input():
    x = keras.Input((5,))
    return keras.Model(x, layers.Dense(2)(x))


def without_weights():
    u, y = keras.Input((3,)), keras.Input((2,))
    return keras.Model([u, y], layers.Multiply()([u[:, :2], y]))


def with_lambda():
    u, y = keras.Input((3,)), keras.Input((2,))
    value = layers.Lambda(lambda v: v)(layers.Concatenate()([u, y]))
    return keras.Model([u, y], layers.Dense(2)(value))


@cases(
    ("make", "message"),
    (lambda: small_base(2), r"shapes \[\(None, 3\), \(None, 2\)\]"),
    (lambda: small_base(n_raw=1), r"one output of shape \(None, 2\)"),
    (one_input, "functional Keras model with inputs u and y"),
    (lambda: None, "functional Keras model with inputs u and y"),
    (lambda: keras.Sequential([layers.Dense(2)]), "functional Keras model"),
    (without_weights, "must have weights"),
    (with_lambda, "cannot be rebuilt"),
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


@pytest.mark.parametrize(("name", "part"), [("decaying", lambda a: a), ("bounded", expit)])
def test_output_maps_are_their_formulas(draws, name, part):
    head, raw = OperatorHead(2, output_map=name), draws[1]
    assert head.n_raw == 4
    expected = part(raw[..., :2]) * np.exp(-np.log1p(np.exp(raw[..., 2:])))
    values, scale = head.values(ARRAYS, raw)
    assert scale is None
    assert_allclose(values, expected, rtol=1e-5)
    assert_allclose(numpy_of(head.values(tensors(), ops.convert_to_tensor(raw))[0]), expected, 1e-5)


def test_output_map_of_ones_own_runs_on_arrays_too(draws):
    head, raw = OperatorHead(4, output_map=ops.tanh), draws[1]
    assert head.n_raw == 4
    for space in (ARRAYS, tensors()):
        assert_allclose(head.values(space, raw)[0], np.tanh(raw), rtol=1e-5)


def test_squared_and_huber_are_means_over_draws_and_outputs(draws):
    y, raw = draws[0], draws[1][..., :2]
    error = raw - y
    squared = numpy_of(OperatorHead(2).loss(y, raw))
    assert_allclose(squared, (0.5 * error**2).mean(axis=(0, 2)), rtol=1e-5)
    huber = np.where(abs(error) <= 1, 0.5 * error**2, abs(error) - 0.5)
    found = numpy_of(OperatorHead(2, "huber").loss(y, raw))
    assert_allclose(found, huber.mean(axis=(0, 2)), rtol=1e-5)
    assert (found < squared).any()


def test_nll_is_that_of_a_mixture_of_all_draws(draws):
    """Eq. 5, with one normal for each index z."""
    y, raw = draws
    head = OperatorHead(2, "nll")
    assert head.n_raw == 4
    mean, scale = head.values(ARRAYS, raw)
    mixture = tfd.MixtureSameFamily(
        tfd.Categorical(probs=np.full(3, 1 / 3, dtype="float32")),
        tfd.Independent(tfd.Normal(np.moveaxis(mean, 0, 1), np.moveaxis(scale, 0, 1)), 1),
    )
    assert_allclose(numpy_of(head.loss(y, raw)), -numpy_of(mixture.log_prob(y)) / 2, rtol=1e-5)


def test_members_losses_are_each_alone(draws):
    y, raw = draws
    members = np.stack([raw, 2 * raw])
    for kind in ("squared", "huber", "nll"):
        part = slice(None, 4 if kind == "nll" else 2)
        head = OperatorHead(2, kind)
        together = numpy_of(head.loss(np.stack([y, y]), members[..., part]))
        for k in range(2):
            alone = numpy_of(head.loss(y, members[k][..., part]))
            assert_allclose(together[k], alone, rtol=1e-5)
