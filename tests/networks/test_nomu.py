"""NOMU's network, loss and readout, against their formulas."""

import numpy as np
import plans
import pytest
from heads import READOUTS, NomuHead, build_nomu
from numpy.testing import assert_allclose
from plans import make_plan, numpy_of

from skuq.backend import keras

layers = keras.layers


def settings(**values):
    return {name: np.float32([value]) for name, value in values.items()}


@pytest.fixture
def rows():
    rng = np.random.default_rng(0)
    y, raw = rng.normal(size=(7, 2)), 3 * rng.normal(size=(7, 4))
    return y.astype("float32"), raw.astype("float32")


@pytest.mark.parametrize("stable", [False, True])
def test_nomu_head_has_the_terms_of_definition_3_3(rows, stable):
    """Or the stable ones of Eq. 54 and 55."""
    y, raw = rows
    head, f, r = NomuHead(2, stable=stable), raw[:, :2], raw[:, 2:]
    assert head.n_raw == 4
    assert_allclose(numpy_of(head.loss(y, raw)), ((f - y) ** 2).sum(axis=1), rtol=1e-6)
    b = numpy_of(head.row_loss(y, raw, settings(pi_sqr=0.3)))
    huber = np.where(abs(r) <= 1, r**2, 2 * abs(r) - 1) if stable else r**2
    assert_allclose(b, 0.3 * huber.sum(axis=1), rtol=1e-6)
    c = numpy_of(head.artificial_loss(raw, settings(pi_exp=0.2, c_exp=1.5)))
    u = np.exp(-1.5 * r)
    if stable:
        u = np.where(r >= 0, u, 1 - 1.5 * r)
    assert_allclose(c, 0.2 * u.sum(axis=1), rtol=1e-5)
    far = np.array([[0.0, 0.0, -20.0, 0.0]], dtype="float32")
    loss = numpy_of(head.artificial_loss(far, settings(pi_exp=1.0, c_exp=30.0)))
    assert np.isfinite(loss) == stable


def test_nomu_head_of_two_sides_meets_y_from_above_and_below(rows):
    y, _ = rows
    raw = np.random.default_rng(1).normal(size=(7, 6)).astype("float32")
    f, up, down = raw[:, :2], raw[:, 2:4], raw[:, 4:]
    expected = ((f + up - y) ** 2 + (f - down - y) ** 2).sum(axis=1)  # Eq. 63
    head = NomuHead(2, n_sides=2, stable=False)
    b = numpy_of(head.row_loss(y, raw, settings(pi_sqr=1.0)))
    assert_allclose(b, expected, rtol=1e-5)
    # With the mean given, y is its error, and nothing else changes.
    apart = NomuHead(2, n_sides=2, stable=False, with_mean=False)
    found = numpy_of(apart.row_loss(y - f, raw[:, 2:], settings(pi_sqr=1.0)))
    assert_allclose(found, expected, rtol=1e-5)


def test_nomu_head_raises_two_sides_whatever_the_level_of_y():
    """(c) of Definition 3.3 for each side; Definition C.1 has it of the bounds f + r and r - f."""
    raw = np.random.default_rng(2).normal(size=(7, 3)).astype("float32")
    head = NomuHead(1, n_sides=2, stable=False)
    values = settings(pi_exp=0.2, c_exp=1.5)
    c = numpy_of(head.artificial_loss(raw, values))
    assert_allclose(c, 0.2 * np.exp(-1.5 * raw[:, 1:]).sum(axis=1), rtol=1e-5)
    higher = raw + np.array([5, 0, 0], dtype="float32")
    assert_allclose(numpy_of(head.artificial_loss(higher, values)), c, rtol=1e-6)


def test_nomu_readout_is_eq_2_and_remark_3_2():
    r, low, high = np.linspace(-1, 100, 500), 0.1, 2.0
    expected = high * (1 - np.exp(-(np.maximum(0, r) + low) / high))
    for kind, sigma in (("exponential", expected), ("linear", np.clip(r, low, high))):
        assert_allclose(READOUTS[kind](r, low, high), sigma, rtol=1e-12)


def units_into(model, name):
    """Inputs of a dense layer."""
    return model.get_layer(name).kernel.shape[0]


@pytest.mark.parametrize(
    "connect, into_output, into_2, into_1", [(0, 13, 11, 3), (1, 20, 11, 3), (2, 20, 16, 3)]
)
def test_build_nomu_connects_layers_backwards(connect, into_output, into_2, into_1):
    units = {"hidden_units": (5, 7), "side_hidden_units": (11, 13)}
    model = build_nomu((3,), 2, **units, connect_layers=connect)
    assert model.output_shape == (None, 4)
    assert units_into(model, "side_output") == into_output
    assert units_into(model, "side_hidden_2") == into_2
    assert units_into(model, "side_hidden_1") == into_1
    assert make_plan(model.to_json()) is not None
    with pytest.raises(ValueError, match=r"at most 2 .* Got 3"):
        build_nomu((3,), 1, **units, connect_layers=3)
    alone = build_nomu((3,), 2, side_hidden_units=(5,), given="apart")
    assert alone.output_shape == (None, 2)
    assert units_into(alone, "side_output") == 5


def test_build_nomu_has_penalties_and_first_weights_per_part():
    units, l2 = {"hidden_units": (4,), "side_hidden_units": (4,)}, {"l2": 0.25, "side_l2": 0.5}
    model = build_nomu((3,), 1, **units, **l2, initial_range=0.05)
    for name, l2 in (("mean_hidden_1", 0.25), ("mean_output", 0.25), ("side_output", 0.25)):
        assert model.get_layer(name).kernel_regularizer.l2 == pytest.approx(l2)
        assert model.get_layer(name).bias_regularizer.l2 == pytest.approx(l2)
    assert model.get_layer("side_hidden_1").kernel_regularizer.l2 == pytest.approx(0.5)
    for weight in model.get_weights():
        assert 0 < abs(weight).max() <= 0.05


def net(input_shape, n_outputs, units=6):
    inputs = keras.Input(input_shape)
    x = layers.BatchNormalization()(layers.Dense(units, activation="tanh")(inputs))
    return keras.Model(inputs, layers.Dense(n_outputs)(x))


def sequential(input_shape, n_outputs):
    return plans.sequential(input_shape, layers.Dense(9, "relu"), layers.Dense(n_outputs))


@pytest.mark.parametrize("build", [net, sequential])
def test_build_nomu_takes_any_keras_model_for_f_and_r(build):
    model = build_nomu((3,), 2, mean_network=build, side_network=build)
    width = build((3,), 1).layers[-1].input.shape[-1]
    assert model.output_shape == (None, 4)
    assert units_into(model, "side_output") == 2 * width
    assert make_plan(model.to_json()) is not None


def test_build_nomu_freezes_a_given_mean():
    given = net((3,), 1)
    first = [0.3 * np.random.default_rng(0).normal(size=w.shape) for w in given.get_weights()[:2]]
    normalization = [np.ones(6), np.zeros(6), np.zeros(6), np.ones(6)]
    given.set_weights([*first, *normalization, *given.get_weights()[6:]])
    scale, offset = [2.0, 3.0, 4.0], [1.0, 0.0, -1.0]
    model = build_nomu((3,), 1, side_hidden_units=(5,), given=(given, scale, offset))
    assert model.output_shape == (None, 1)
    trained = {v.path.split("/")[0] for v in model.trainable_variables}
    assert trained == {"side_hidden_1", "side_output"}
    # f's last hidden layer, seen through the copy, for inputs in the user's units.
    feature = keras.Model(model.input, model.get_layer("side_output").input)
    x = np.random.default_rng(1).normal(size=(4, 3)).astype("float32")
    seen = feature.predict(x, verbose=0)[:, -6:]
    features = keras.Model(given.input, given.layers[-1].input)
    assert_allclose(seen, features.predict(x * scale + offset, verbose=0), rtol=1e-5, atol=1e-6)


def test_build_nomu_joins_the_layer_of_two_heads():
    def heads(input_shape, n_outputs):
        inputs = keras.Input(input_shape)
        x = layers.Dense(8, activation="relu")(inputs)
        return keras.Model(inputs, layers.Concatenate()([layers.Dense(1)(x), layers.Dense(1)(x)]))

    model = build_nomu((3,), 2, side_hidden_units=(5,), mean_network=heads)
    assert units_into(model, "side_output") == 5 + 8


def test_build_nomu_standardises_features_of_a_given_mean():
    given = sequential((3,), 1)
    rows = np.random.default_rng(0).normal(size=(50, 3))
    scale, offset = [1.0, 2.0, 3.0], [100.0, 200.0, -300.0]  # features of hundreds
    model = build_nomu((3,), 1, side_hidden_units=(5,), given=(given, scale, offset), sample=rows)
    seen = keras.Model(model.input, model.get_layer("side_output").input)
    features = seen.predict(rows, verbose=0)[:, 5:]
    assert_allclose(features.mean(axis=0), 0, atol=1e-3)
    assert_allclose(features.var(axis=0).mean(), 1, rtol=1e-3)
    assert make_plan(model.to_json()) is not None


def test_build_nomu_takes_no_rescaled_input_for_a_hidden_layer():
    def rescaled(input_shape, n_outputs):
        hidden = layers.Rescaling(0.5), layers.Dense(4, "relu")
        return plans.sequential(input_shape, *hidden, layers.Dense(n_outputs))

    model = build_nomu((3,), 1, mean_network=rescaled, side_hidden_units=(5,))
    assert units_into(model, "side_output") == 5 + 4
    with pytest.raises(ValueError, match=r"at most 1 .* Got 2"):
        build_nomu((3,), 1, mean_network=rescaled, side_hidden_units=(5,), connect_layers=2)
