"""NOMU's network, loss and readout, against their formulas."""

import numpy as np
import plans
import pytest
from heads import READOUTS, NomuHead, build_nomu
from numpy.testing import assert_allclose
from plans import make_plan, numpy_of
from tiers import cases

from skuq.backend import keras

layers = keras.layers


def settings(**values):
    return {name: np.float32([value]) for name, value in values.items()}


def numbers(n_raw, scale=1.0):
    rng = np.random.default_rng(0)
    y, raw = rng.normal(size=(7, 2)), scale * rng.normal(size=(7, n_raw))
    return y.astype("float32"), raw.astype("float32")


@pytest.mark.parametrize("stable", [False, True])
def test_nomu_head_has_the_terms_of_definition_3_3(stable):
    """Or the stable ones of Eq. 54 and 55."""
    head, (y, raw) = NomuHead(2, stable=stable), numbers(4, scale=3)
    assert head.n_raw == 4
    f, r = raw[:, :2], raw[:, 2:]
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


def test_nomu_head_of_two_sides_meets_y_from_above_and_below():
    """Eq. 63, and (c) of Definition 3.3 for each side, whatever the level of y."""
    y, raw = numbers(6)
    f, up, down = raw[:, :2], raw[:, 2:4], raw[:, 4:]
    expected = ((f + up - y) ** 2 + (f - down - y) ** 2).sum(axis=1)
    head, pi_sqr = NomuHead(2, n_sides=2, stable=False), settings(pi_sqr=1.0)
    assert_allclose(numpy_of(head.row_loss(y, raw, pi_sqr)), expected, rtol=1e-5)
    # With the mean given, y is its error, and nothing else changes.
    apart = NomuHead(2, n_sides=2, stable=False, with_mean=False)
    assert_allclose(numpy_of(apart.row_loss(y - f, raw[:, 2:], pi_sqr)), expected, rtol=1e-5)
    # Definition C.1 has (c) of the bounds f + r and r - f.
    c = numpy_of(head.artificial_loss(raw, settings(pi_exp=0.2, c_exp=1.5)))
    assert_allclose(c, 0.2 * np.exp(-1.5 * raw[:, 2:]).sum(axis=1), rtol=1e-5)


def test_nomu_readout_is_eq_2_and_remark_3_2():
    r, low, high = np.linspace(-1, 100, 500), 0.1, 2.0
    expected = high * (1 - np.exp(-(np.maximum(0, r) + low) / high))
    for kind, sigma in (("exponential", expected), ("linear", np.clip(r, low, high))):
        assert_allclose(READOUTS[kind](r, low, high), sigma, rtol=1e-12)


def units_into(model, name):
    """Inputs of a dense layer."""
    return model.get_layer(name).kernel.shape[0]


@cases(("connect", "into_output", "into_2"), (0, 13, 11), (1, 13 + 7, 11), (2, 13 + 7, 11 + 5))
def test_build_nomu_connects_layers_backwards(connect, into_output, into_2):
    units = {"hidden_units": (5, 7), "side_hidden_units": (11, 13)}
    model = build_nomu((3,), 2, **units, connect_layers=connect)
    assert model.output_shape == (None, 4)
    names = "side_output", "side_hidden_2", "side_hidden_1"
    assert [units_into(model, name) for name in names] == [into_output, into_2, 3]
    assert make_plan(model.to_json()) is not None
    with pytest.raises(ValueError, match=r"at most 2 .* Got 3"):
        build_nomu((3,), 1, **units, connect_layers=3)
    with pytest.raises(ValueError, match=r"at most 1 .* Got 2"):
        build_nomu((3,), 1, mean_network=rescaled, side_hidden_units=(5,), connect_layers=2)


def test_build_nomu_has_penalties_and_first_weights_per_part():
    units, l2 = {"hidden_units": (4,), "side_hidden_units": (4,)}, {"l2": 0.25, "side_l2": 0.5}
    model = build_nomu((3,), 1, **units, **l2, initial_range=0.05)
    penalties = {"mean_hidden_1": 0.25, "mean_output": 0.25, "side_output": 0.25}
    for name, penalty in {**penalties, "side_hidden_1": 0.5}.items():
        layer = model.get_layer(name)
        assert layer.kernel_regularizer.l2 == layer.bias_regularizer.l2 == pytest.approx(penalty)
    assert all(0 < abs(weight).max() <= 0.05 for weight in model.get_weights())


def net(input_shape, n_outputs, units=6):
    inputs = keras.Input(input_shape)
    x = layers.BatchNormalization()(layers.Dense(units, activation="tanh")(inputs))
    return keras.Model(inputs, layers.Dense(n_outputs)(x))


def relu(input_shape, n_outputs, *first):
    hidden = layers.Dense(9, "relu"), layers.Dense(n_outputs)
    return plans.sequential(input_shape, *first, *hidden)


def two_heads(input_shape, n_outputs):
    inputs = keras.Input(input_shape)
    x = layers.Dense(8, activation="relu")(inputs)
    return keras.Model(inputs, layers.Concatenate()([layers.Dense(1)(x) for _ in range(n_outputs)]))


def rescaled(input_shape, n_outputs):
    return relu(input_shape, n_outputs, layers.Rescaling(0.5))


@pytest.mark.parametrize(("build", "width"), [(net, 6), (relu, 9), (two_heads, 8), (rescaled, 9)])
def test_build_nomu_takes_any_keras_model_for_f_and_r(build, width):
    """The last hidden layer of f enters r: that of all heads together, and no rescaled input."""
    model = build_nomu((3,), 2, mean_network=build, side_network=net)
    assert model.output_shape == (None, 4)
    assert units_into(model, "side_output") == 6 + width
    assert make_plan(model.to_json()) is not None


def features_of(model):
    """Inputs of the last layer of r."""
    seen = keras.Model(model.input, model.get_layer("side_output").input)
    return lambda x: numpy_of(seen(np.asarray(x, dtype="float32")))


def test_build_nomu_freezes_a_given_mean():
    given = net((3,), 1)
    scale, offset = [2.0, 3.0, 4.0], [1.0, 0.0, -1.0]
    model = build_nomu((3,), 1, side_hidden_units=(5,), given=(given, scale, offset))
    assert model.output_shape == (None, 1)
    trained = {v.path.split("/")[0] for v in model.trainable_variables}
    assert trained == {"side_hidden_1", "side_output"}
    # f's last hidden layer, seen through the copy, for inputs in the user's units.
    x = np.random.default_rng(1).normal(size=(4, 3)).astype("float32")
    features = keras.Model(given.input, given.layers[-1].input)
    expected = numpy_of(features((x * scale + offset).astype("float32")))
    assert_allclose(features_of(model)(x)[:, -6:], expected, rtol=1e-5, atol=1e-6)
    alone = build_nomu((3,), 2, side_hidden_units=(5,), given="apart")
    assert alone.output_shape == (None, 2) and units_into(alone, "side_output") == 5


def test_build_nomu_standardises_features_of_a_given_mean():
    given = relu((3,), 1), [1.0, 2.0, 3.0], [100.0, 200.0, -300.0]  # features of hundreds
    rows = np.random.default_rng(0).normal(size=(50, 3))
    model = build_nomu((3,), 1, side_hidden_units=(5,), given=given, sample=rows)
    features = features_of(model)(rows)[:, 5:]
    assert_allclose(features.mean(axis=0), 0, atol=1e-3)
    assert_allclose(features.var(axis=0).mean(), 1, rtol=1e-3)
    assert make_plan(model.to_json()) is not None
