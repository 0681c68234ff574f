"""Losses with terms for inputs without targets: the engine compared with a loop in Keras."""

import numpy as np
import pytest
import tensorflow as tf
from heads import NomuHead, build_nomu
from numpy.testing import assert_allclose
from plans import draw_variables
from tiers import slow_after
from training_data import STEADY, train_member, train_stack

from skuq.backend import keras
from skuq.tables import TrainingData
from skuq.training import Recipe

PI_SQR, PI_EXP, C_EXP = 0.1, 0.5, 3.0
SETTINGS = (("pi_sqr", PI_SQR), ("pi_exp", PI_EXP), ("c_exp", C_EXP))
N_ARTIFICIAL, EPOCHS = 9, 6


def data(n=11, seed=0):
    rng = np.random.default_rng(seed)
    x, y = rng.uniform(-1, 1, (n, 2)), rng.normal(size=(n, 1))
    return TrainingData.without_validation(x, y, np.ones(n))


def recipe(**changes):
    settings = {"learning_rate": 0.01, "batch_size": 2**30, "epochs": EPOCHS, "keep": "last"}
    settings |= {"n_artificial": N_ARTIFICIAL, "loss_settings": SETTINGS, **STEADY}
    return Recipe(**{**settings, **changes})


def network(**options):
    return build_nomu((2,), 1, hidden_units=(8,), side_hidden_units=(6,), **options)


def uniform(n, rng):
    return rng.uniform(-1, 1, (n, 2))


class Recorder:
    """Draws inputs, and remembers them."""

    def __init__(self):
        self.drawn = []

    def __call__(self, n, rng):
        self.drawn.append(uniform(n, rng).astype("float32"))
        return self.drawn[-1]


def keras_loop(table, initial, drawn, *, connect_gradient, l2=0.0, batches=None):
    """The same training with Keras' Adam and a gradient tape, written apart."""
    model = network(l2=l2, side_l2=2 * l2) if l2 else network()
    ends = np.cumsum([np.prod(v.shape) for v in model.trainable_variables])[:-1]
    for variable, part in zip(model.trainable_variables, np.split(initial, ends)):
        variable.assign(part.reshape(variable.shape))
    adam = keras.optimizers.Adam(0.01)
    batches = batches or [np.arange(len(table.x))]
    drawn = iter(np.concatenate(drawn).reshape(-1, N_ARTIFICIAL, 2))
    for _ in range(EPOCHS):
        for rows in batches:
            artificial = next(drawn)
            with tf.GradientTape() as tape:
                out = model(table.x[rows])
                loss = tf.reduce_sum((out[:, :1] - table.y[rows]) ** 2)
                r_rows = _raw_uncertainty(model, table.x[rows], connect_gradient)
                r_apart = _raw_uncertainty(model, artificial, connect_gradient)
                loss += PI_SQR * tf.reduce_sum(r_rows**2)
                loss += PI_EXP * tf.reduce_mean(tf.exp(-C_EXP * r_apart))
                loss += tf.add_n(model.losses) if model.losses else 0.0
            gradient = tape.gradient(loss, model.trainable_variables)
            adam.apply_gradients(zip(gradient, model.trainable_variables))
    return np.concatenate([v.numpy().ravel() for v in model.trainable_variables])


def _raw_uncertainty(model, x, connect_gradient):
    """r layer by layer, with the connection to f cut or not."""
    features = model.get_layer("mean_hidden_1")(x)
    if not connect_gradient:
        features = tf.stop_gradient(features)
    side = model.get_layer("side_hidden_1")(x)
    return model.get_layer("side_output")(tf.concat([side, features], axis=1))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("connect_gradient", "l2", "jit"),
    slow_after(1, [(False, 0.05, True), (False, 0.0, False), (True, 0.05, False)]),
)
def test_a_run_is_that_of_a_loop_with_keras_optimiser(connect_gradient, l2, jit):
    model = network(l2=l2, side_l2=2 * l2) if l2 else network()
    initial = draw_variables(model, 4)
    recorder = Recorder()
    head = NomuHead(stable=False, detached=None if connect_gradient else NomuHead.detached)
    options = {"start": [initial], "artificial": recorder, "jit": jit}
    member = train_member(model, head, recipe(), data(), 1, **options)
    options = {"connect_gradient": connect_gradient, "l2": l2}
    expected = keras_loop(data(), initial[0], recorder.drawn, **options)
    # Single precision, through some steps of Adam.
    assert_allclose(member.weights, expected, rtol=2e-3, atol=2e-5)


def test_batches_have_the_sum_over_their_rows_and_all_of_the_artificial_term():
    table, recorder, initial = data(12), Recorder(), draw_variables(network(), 4)
    options = {"start": [initial], "permutations": [np.arange], "artificial": recorder}
    head, in_batches = NomuHead(stable=False), recipe(batch_size=4)
    member = train_member(network(), head, in_batches, table, 1, **options)
    options = {"connect_gradient": False, "batches": np.split(np.arange(12), 3)}
    expected = keras_loop(table, initial[0], recorder.drawn, **options)
    assert_allclose(member.weights, expected, rtol=2e-3, atol=2e-5)


def test_members_of_a_stack_have_settings_of_their_own():
    settings = [{**dict(SETTINGS), "pi_exp": value} for value in (0.01, 0.5, 2.0)]
    recipes = [recipe(loss_settings=tuple(each.items())) for each in settings]
    together = train_stack(network(), NomuHead(), recipes, data(), [3, 3, 4], artificial=uniform)
    for member, settings, seed in zip(together, recipes, (3, 3, 4)):
        alone = train_member(network(), NomuHead(), settings, data(), seed, artificial=uniform)
        assert_allclose(member.weights, alone.weights, rtol=2e-3, atol=2e-5)
    assert abs(together[0].weights - together[1].weights).max() > 1e-3


def test_draws_do_not_depend_on_how_a_run_is_cut(monkeypatch):
    whole, parts = Recorder(), Recorder()
    train_member(network(), NomuHead(), recipe(), data(), 1, artificial=whole)
    monkeypatch.setattr("skuq.training._train._SLICE_SECONDS", 0.0)
    train_member(network(), NomuHead(), recipe(), data(), 1, artificial=parts)
    np.testing.assert_array_equal(np.concatenate(whole.drawn), np.concatenate(parts.drawn))


def test_batch_statistics_are_those_of_rows_with_targets():
    def normed(input_shape, n_outputs):
        inputs = keras.Input(input_shape)
        x = keras.layers.BatchNormalization(momentum=0.0)(inputs)
        x = keras.layers.Dense(4, activation="relu")(x)
        return keras.Model(inputs, keras.layers.Dense(n_outputs)(x))

    model = build_nomu((2,), 1, mean_network=normed, side_hidden_units=(4,))
    options = {"artificial": lambda n, rng: np.full((n, 2), 50.0)}
    far = train_member(model, NomuHead(), recipe(epochs=1), data(), 1, **options)
    mean = next(value for value in far.state if value.shape == (2,))
    assert_allclose(mean, data().x.mean(axis=0), rtol=1e-5)
