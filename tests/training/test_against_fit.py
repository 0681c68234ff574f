"""The compiled program compared with ``model.fit`` with equal callbacks, weights and order."""

from functools import partial

import numpy as np
import pytest
import training_data
from numpy.testing import assert_allclose
from plans import draw_variables, sequential
from tiers import cases, slow_after
from training_data import OPTIMIZERS, STEADY, rule_of, train_member

from skuq.backend import keras, ops
from skuq.networks import GaussianHead
from skuq.training import Recipe

make_data = partial(training_data.make_data, n_train=53, n_valid=21)  # the last batch is partial


class HeadLoss(keras.losses.Loss):
    def __init__(self, head):
        super().__init__(reduction="sum_over_batch_size")
        self.head = head

    def call(self, y_true, y_pred):
        return self.head.loss(y_true, y_pred)


def make_model(n_outputs=1, regularizer=None):
    layers = keras.layers
    first = layers.Dense(12, activation="tanh", kernel_regularizer=regularizer)
    return sequential((3,), first, layers.Dense(8, "swish"), layers.Dense(2 * n_outputs))


def make_optimizer(name, learning_rate, **settings):
    settings = {"learning_rate": learning_rate, **settings}
    return keras.optimizers.get({"class_name": name, "config": settings})


def callbacks_of(recipe):
    plateau, stop = recipe.reduce_lr_patience, recipe.early_stopping_patience
    return [
        keras.callbacks.ReduceLROnPlateau(patience=plateau, factor=recipe.reduce_lr_factor),
        keras.callbacks.EarlyStopping(patience=stop, restore_best_weights=True),
        keras.callbacks.TerminateOnNaN(),
    ]


def split_flat(model, flat):
    sizes = [int(np.prod(v.shape)) for v in model.trainable_variables]
    parts = np.split(flat, np.cumsum(sizes)[:-1])
    return [p.reshape(v.shape) for p, v in zip(parts, model.trainable_variables)]


def fit_with_keras(model, head, recipe, data, flat, optimizer, callbacks):
    """History and final flat weights of Keras' own training, rows in their order."""
    for variable, value in zip(model.trainable_variables, split_flat(model, flat)):
        variable.assign(value)
    # Without XLA: the same numbers, and a second less to compile.
    model.compile(optimizer, HeadLoss(head), jit_compile=False)
    validation = {"validation_data": (data.x_valid, data.y_valid, data.weight_valid)}
    settings = {"batch_size": recipe.batch_size, "epochs": recipe.epochs, "callbacks": callbacks}
    settings |= {"sample_weight": data.weight, "shuffle": False, "verbose": 0}
    history = model.fit(data.x, data.y, **validation, **settings)
    weights = [ops.convert_to_numpy(v).ravel() for v in model.trainable_variables]
    return history.history, np.concatenate(weights)


def compare(recipe, data, *, n_outputs=1, jit=False, regularizer=None, rtol=1e-4):
    model, head = make_model(n_outputs, regularizer), GaussianHead(n_outputs)
    initial = draw_variables(model, 3)
    options = {"start": [initial], "permutations": [np.arange], "jit": jit}
    member = train_member(model, head, recipe, data, 1, **options)
    fitting = make_optimizer(recipe.optimizer, recipe.learning_rate), callbacks_of(recipe)
    history, weights = fit_with_keras(model, head, recipe, data, initial[0], *fitting)
    assert len(member.history["loss"]) == len(history["loss"])
    assert_allclose(member.history["val_loss"], history["val_loss"], rtol=rtol, atol=1e-5)
    assert_allclose(member.history["learning_rate"], history["learning_rate"], rtol=1e-6)
    assert_allclose(member.weights, weights, rtol=rtol, atol=rtol * np.abs(weights).max())
    return member, history


# Constants are so large that steps are others than with Keras' defaults.
@cases(
    ("optimizer", "settings"),
    *((name, {}) for name in OPTIMIZERS),
    ("sgd", {"momentum": 0.9}),
    *((name, {"beta_2": 0.9}) for name in ("adam", "adamax", "nadam")),
    *((name, {"epsilon": 0.03}) for name in OPTIMIZERS if name != "sgd"),
)
def test_rule_of_takes_the_steps_of_keras_optimizers(optimizer, settings, rng):
    w = ops.convert_to_tensor(rng.normal(size=7).astype("float32"))
    variable, rule, rate = keras.Variable(w), rule_of(optimizer, **settings), 0.03
    keras_optimizer = make_optimizer(optimizer, rate, **settings)
    slots = rule.init(w)
    for t in range(1, 9):
        g = ops.convert_to_tensor(rng.normal(size=7).astype("float32"))
        w, slots = rule.update(w, slots, g, ops.cast(t, "float32"), rate)
        keras_optimizer.apply([g], [variable])
    assert_allclose(w, variable, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("rate, plateau, stop", slow_after(1, [(0.1, 1, 4), (0.05, 3, 8)]))
def test_equals_fit_through_plateaus_and_early_stopping(rate, plateau, stop):
    patience = {"reduce_lr_patience": plateau, "early_stopping_patience": stop}
    recipe = Recipe("adam", rate, batch_size=10, epochs=200, reduce_lr_factor=0.3, **patience)
    member, history = compare(recipe, make_data())
    assert len(history["loss"]) < 200  # stopped early
    assert len(np.unique(history["learning_rate"])) > 2  # and reduced before
    assert member.best_epoch == int(np.argmin(history["val_loss"]))


@pytest.mark.slow
@cases(
    ("recipe", "rows", "settings"),
    (Recipe("adam", 0.02, batch_size=500, epochs=8), {}, {}),
    (Recipe("nadam", 0.01, batch_size=16, epochs=10), {"n_outputs": 3}, {"n_outputs": 3}),
    (Recipe("adam", 0.01, batch_size=16, epochs=10), {}, {"regularizer": "l2"}),
)
def test_equals_fit_with(recipe, rows, settings):
    compare(recipe, make_data(**rows), **settings)


def test_divergence_keeps_the_best_epoch_or_raises():
    data, head, model = make_data(), GaussianHead(), make_model()
    with pytest.raises(FloatingPointError, match="diverged.*learning_rate=1e"):
        train_member(model, head, Recipe("sgd", learning_rate=1e30, epochs=5), data, 1)


def compare_optimizer(recipe, optimizer, data=None, keras_model=None):
    """Our recipe against Keras' own optimizer object, without callbacks, last weights."""
    data = make_data() if data is None else data
    head, initial = GaussianHead(), draw_variables(make_model(), 3)
    options = {"start": [initial], "permutations": [np.arange], "jit": False}
    member = train_member(make_model(), head, recipe, data, 1, **options)
    keras_model = make_model() if keras_model is None else keras_model
    history, weights = fit_with_keras(keras_model, head, recipe, data, initial[0], optimizer, [])
    assert_allclose(member.weights, weights, rtol=1e-4, atol=1e-4 * np.abs(weights).max())
    return member, history


PLAIN = {**STEADY, "keep": "last"}


@pytest.mark.slow
def test_equals_fit_with_clipped_gradients_and_weight_decay():
    recipe = Recipe("sgd", 0.05, batch_size=16, epochs=6, clip_norm=0.3, **PLAIN)
    compare_optimizer(recipe, keras.optimizers.SGD(0.05, global_clipnorm=0.3))
    recipe = Recipe("rmsprop", 0.02, batch_size=16, epochs=6, weight_decay=0.1, **PLAIN)
    compare_optimizer(recipe, keras.optimizers.RMSprop(0.02, weight_decay=0.1))


@pytest.mark.slow
def test_equals_fit_with_l2_on_all_weights():
    """The recipe's penalty is Keras' regulariser on kernels and biases."""
    recipe = Recipe("adam", 0.02, batch_size=16, epochs=6, l2=0.01, **PLAIN)
    penalised = make_model()
    for layer in penalised.layers:
        layer.kernel_regularizer = layer.bias_regularizer = keras.regularizers.L2(0.01)
    penalised = keras.models.model_from_json(penalised.to_json())
    optimizer = keras.optimizers.Adam(0.02)
    member, history = compare_optimizer(recipe, optimizer, keras_model=penalised)
    assert_allclose(member.history["loss"], history["loss"], rtol=1e-4)


def test_adversarial_training_is_the_papers_algorithm():
    """One full-batch step of gradient descent, worked out with TensorFlow's own tape."""
    import tensorflow as tf

    data, head, initial = make_data(), GaussianHead(), draw_variables(make_model(), 3)
    epsilon, rate = 0.05, 0.1
    recipe = Recipe("sgd", rate, batch_size=500, epochs=1, adversarial_epsilon=epsilon, **PLAIN)
    options = {"start": [initial], "permutations": [np.arange], "jit": False}
    member = train_member(make_model(), head, recipe, data, 1, **options)
    model = make_model()
    for variable, value in zip(model.trainable_variables, split_flat(model, initial[0])):
        variable.assign(value)
    x = tf.constant(data.x)

    def loss(x):
        return tf.reduce_mean(data.weight * head.loss(tf.constant(data.y), model(x)))

    with tf.GradientTape() as tape:
        tape.watch(x)
        value = loss(x)
    moved = x + epsilon * np.ptp(data.x, axis=0) * tf.sign(tape.gradient(value, x))
    variables = [v.value for v in model.trainable_variables]
    with tf.GradientTape() as tape:
        tape.watch(variables)
        total = 0.5 * (loss(x) + loss(moved))
    gradient = tape.gradient(total, [v._value for v in model.trainable_variables])
    expected = initial[0] - rate * np.concatenate([np.ravel(g) for g in gradient])
    assert_allclose(member.weights, expected, rtol=1e-4, atol=1e-5)
    assert_allclose(member.history["loss"], [float(total)], rtol=1e-5)
