"""Training compared with ``model.fit`` and with loops of Keras' optimisers, from equal weights."""

from functools import partial

import numpy as np
import tensorflow as tf
import training_data
from heads import NomuHead, build_nomu, build_tabular
from numpy.testing import assert_allclose
from plans import draw_variables, sequential
from tiers import cases
from training_data import OPTIMIZERS, PLAIN, assign, flat_weights, train_member

from skuq.backend import keras, ops
from skuq.networks import GaussianHead
from skuq.tables import TrainingData
from skuq.training import Recipe

make_data = partial(training_data.make_data, n_train=53, n_valid=21)  # the last batch is partial
PI_SQR, PI_EXP, C_EXP = 0.1, 0.5, 3.0
SETTINGS = (("pi_sqr", PI_SQR), ("pi_exp", PI_EXP), ("c_exp", C_EXP))
N_ARTIFICIAL, EPOCHS = 9, 6


def make_model(n_outputs=1, regularizer=None, bias_regularizer=None):
    penalties = {"kernel_regularizer": regularizer, "bias_regularizer": bias_regularizer}
    dense = partial(keras.layers.Dense, **penalties)
    return sequential((3,), dense(12, "tanh"), dense(8, "swish"), dense(2 * n_outputs))


def compare(recipe, ours, theirs, optimizer, callbacks=(), n_outputs=1):
    """Train with equal first weights and order of rows; compare weights and history."""
    data, head = make_data(n_outputs=n_outputs), GaussianHead(n_outputs)
    initial = draw_variables(ours, 3)
    options = {"start": [initial], "permutations": [np.arange], "jit": False}
    member = train_member(ours, head, recipe, data, 1, **options)
    assign(theirs, initial[0])
    # Without XLA: the same numbers, and a second less to compile.
    theirs.compile(optimizer, head.loss, jit_compile=False)
    settings = {"batch_size": recipe.batch_size, "epochs": recipe.epochs, "callbacks": callbacks}
    settings |= {"validation_data": (data.x_valid, data.y_valid, data.weight_valid)}
    settings |= {"sample_weight": data.weight, "shuffle": False, "verbose": 0}
    history, weights = theirs.fit(data.x, data.y, **settings).history, flat_weights(theirs)
    assert_allclose(member.weights, weights, rtol=1e-4, atol=1e-4 * np.abs(weights).max())
    assert_allclose(member.history["loss"], history["loss"], rtol=1e-4, atol=1e-5)
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
    variable, rule, rate = keras.Variable(w), training_data.rule_of(optimizer, **settings), 0.03
    config = {"learning_rate": rate, **settings}
    keras_optimizer = keras.optimizers.get({"class_name": optimizer, "config": config})
    slots = rule.init(w)
    for t in range(1, 5):
        g = ops.convert_to_tensor(rng.normal(size=7).astype("float32"))
        w, slots = rule.update(w, slots, g, ops.cast(t, "float32"), rate)
        keras_optimizer.apply([g], [variable])
    assert_allclose(w, variable, rtol=1e-5, atol=1e-6)


def test_equals_fit_with_callbacks_clipping_decay_and_penalties():
    """Two outputs, and a layer's own penalty."""
    recipe = Recipe(
        "adam", 0.1, batch_size=10, epochs=200, reduce_lr_factor=0.3, reduce_lr_patience=1,
        early_stopping_patience=4,
    )  # fmt: skip
    callbacks = [
        keras.callbacks.ReduceLROnPlateau(patience=1, factor=0.3),
        keras.callbacks.EarlyStopping(patience=4, restore_best_weights=True),
        keras.callbacks.TerminateOnNaN(),
    ]
    models = make_model(2, "l2"), make_model(2, "l2")
    member, history = compare(recipe, *models, keras.optimizers.Adam(0.1), callbacks, n_outputs=2)
    assert len(member.history["loss"]) == len(history["loss"]) < 200  # stopped early
    assert len(np.unique(history["learning_rate"])) > 2  # and reduced before
    assert_allclose(member.history["val_loss"], history["val_loss"], rtol=1e-4, atol=1e-5)
    assert_allclose(member.history["learning_rate"], history["learning_rate"], rtol=1e-6)
    assert member.best_epoch == int(np.argmin(history["val_loss"]))
    # The recipe's penalty is Keras' regulariser on kernels and biases.
    settings = {"clip_norm": 0.3, "weight_decay": 0.1, "l2": 0.01}
    recipe = Recipe("rmsprop", 0.02, batch_size=16, epochs=6, **settings, **PLAIN)
    optimizer = keras.optimizers.RMSprop(0.02, global_clipnorm=0.3, weight_decay=0.1)
    penalty = keras.regularizers.L2(0.01)
    compare(recipe, make_model(), make_model(1, penalty, penalty), optimizer)


def test_adversarial_training_is_the_papers_algorithm():
    """One full-batch step of gradient descent, worked out with TensorFlow's own tape."""
    data, head, initial = make_data(), GaussianHead(), draw_variables(make_model(), 3)
    epsilon, rate = 0.05, 0.1
    recipe = Recipe("sgd", rate, batch_size=500, epochs=1, adversarial_epsilon=epsilon, **PLAIN)
    options = {"start": [initial], "permutations": [np.arange], "jit": False}
    member, model = train_member(make_model(), head, recipe, data, 1, **options), make_model()
    variables, x = [v.value for v in assign(model, initial[0])], tf.constant(data.x)

    def loss(x):
        return tf.reduce_mean(data.weight * head.loss(tf.constant(data.y), model(x)))

    with tf.GradientTape() as tape:
        tape.watch(x)
        value = loss(x)
    moved = x + epsilon * np.ptp(data.x, axis=0) * tf.sign(tape.gradient(value, x))
    with tf.GradientTape() as tape:
        total = 0.5 * (loss(x) + loss(moved))
    gradient = tape.gradient(total, variables)
    expected = initial[0] - rate * np.concatenate([np.ravel(g) for g in gradient])
    assert_allclose(member.weights, expected, rtol=1e-4, atol=1e-5)
    assert_allclose(member.history["loss"], [float(total)], rtol=1e-5)


def test_equals_keras_with_an_optimizer_for_each_variable():
    """Also that of a table so large that it is a block of its own, and its gradient slices."""
    recipe = Recipe(
        learning_rate=0.05, batch_size=500, epochs=8, beta_2=0.9, schedule="coslog4",
        weight_decay=0.5, weight_decay_schedule="flat-cosine",
        rate_factors_of_layers=(("scale", 6), ("embedding", 0.1), ("*/bias", 0.5)), **PLAIN,
    )  # fmt: skip
    rng = np.random.default_rng(0)
    x = rng.normal(size=(45, 4))
    x[:, 1] = rng.integers(0, 5, 45)  # a column of codes
    y = np.sin(2 * x[:, :1]) + (x[:, 1:2] == 3) + 0.1 * rng.normal(size=(45, 1))
    data = TrainingData.without_validation(x, y, rng.uniform(0.5, 2, 45))
    model = build_tabular(
        (4,), 2, hidden_units=(9, 9), activation="mish", categories={1: 22_000},
        embedding={"columns": [0, 2, 3], "n_frequencies": 5, "scale": 0.5},
    )  # fmt: skip
    flat, state = draw_variables(model, 3)
    options = {"start": [(flat, state)], "permutations": [np.arange], "jit": False}
    member, factors = train_member(model, GaussianHead(), recipe, data, 1, **options), []
    for variable in model.trainable_variables:
        layer, name = variable.path.split("/")
        factor = {"scale": 6, "embedding": 0.1}.get(layer)
        factors.append(factor or (0.5 if name == "bias" else 1))
    assert sorted(set(factors)) == [0.1, 0.5, 1, 6]
    t = np.arange(8) / 8
    rates = 0.5 * (1 - np.cos(2 * np.pi * np.log2(1 + 15 * t)))
    decays = np.where(t < 0.5, 1, 0.5 + 0.5 * np.cos(np.pi * (2 * t - 1)))
    variables = assign(model, flat)  # Full batches of Keras' own Adam, one optimiser a variable.
    settings = {"beta_2": recipe.beta_2, "weight_decay": 1.0}
    optimizers = [keras.optimizers.Adam(1.0, **settings) for _ in variables]
    for rate, decay in zip(rates, decays):
        with tf.GradientTape() as tape:
            losses = GaussianHead().loss(tf.constant(data.y), model(tf.constant(data.x)))
            loss = tf.reduce_mean(data.weight * losses)
        gradients = tape.gradient(loss, [v.value for v in variables])
        for optimizer, variable, gradient, factor in zip(optimizers, variables, gradients, factors):
            optimizer.learning_rate.assign(recipe.learning_rate * rate * factor)
            optimizer.weight_decay = recipe.weight_decay * decay
            optimizer.apply([tf.convert_to_tensor(gradient)], [variable])
    weights = flat_weights(model)
    assert np.abs(weights - flat).max() > 0.1
    assert_allclose(member.weights, weights, rtol=1e-3, atol=1e-4)


def few_rows(n=12):
    rng = np.random.default_rng(0)
    x, y = rng.uniform(-1, 1, (n, 2)), rng.normal(size=(n, 1))
    return TrainingData.without_validation(x, y, np.ones(n))


def recipe_of_nomu(**changes):
    settings = {"learning_rate": 0.01, "batch_size": 2**30, "epochs": EPOCHS, **PLAIN}
    settings |= {"n_artificial": N_ARTIFICIAL, "loss_settings": SETTINGS}
    return Recipe(**{**settings, **changes})


def nomu(l2):
    return build_nomu((2,), 1, hidden_units=(8,), side_hidden_units=(6,), l2=l2, side_l2=2 * l2)


def loop_of_nomu(table, initial, drawn, *, connect_gradient, l2, batches):
    """The same training with Keras' Adam and a gradient tape, written apart."""
    model = nomu(l2)
    variables, adam = assign(model, initial), keras.optimizers.Adam(0.01)
    drawn = iter(np.concatenate(drawn).reshape(-1, N_ARTIFICIAL, 2))
    for _ in range(EPOCHS):
        for rows in batches:
            artificial = next(drawn)
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum((model(table.x[rows])[:, :1] - table.y[rows]) ** 2)
                r_rows = _raw_uncertainty(model, table.x[rows], connect_gradient)
                r_apart = _raw_uncertainty(model, artificial, connect_gradient)
                loss += PI_SQR * tf.reduce_sum(r_rows**2)
                loss += PI_EXP * tf.reduce_mean(tf.exp(-C_EXP * r_apart))
                loss += tf.add_n(model.losses)
            adam.apply_gradients(zip(tape.gradient(loss, variables), variables))
    return flat_weights(model)


def _raw_uncertainty(model, x, connect_gradient):
    """r layer by layer, with the connection to f cut or not."""
    features = model.get_layer("mean_hidden_1")(x)
    if not connect_gradient:
        features = tf.stop_gradient(features)
    side = model.get_layer("side_hidden_1")(x)
    return model.get_layer("side_output")(tf.concat([side, features], axis=1))


@cases(("connect_gradient", "n_batches", "jit"), (False, 3, False), (True, 1, True), quick=1)
def test_losses_with_artificial_inputs_equal_a_loop_with_a_tape(connect_gradient, n_batches, jit):
    """Batches have the sum over their rows, and all of the artificial term."""
    table, l2, drawn = few_rows(), 0.05, []

    def artificial(n, rng):
        drawn.append(rng.uniform(-1, 1, (n, 2)).astype("float32"))
        return drawn[-1]

    model = nomu(l2)
    initial = draw_variables(model, 4)
    head = NomuHead(stable=False, detached=None if connect_gradient else NomuHead.detached)
    recipe = recipe_of_nomu(batch_size=12 // n_batches)
    options = {"start": [initial], "permutations": [np.arange], "artificial": artificial}
    member = train_member(model, head, recipe, table, 1, jit=jit, **options)
    options = {"connect_gradient": connect_gradient, "l2": l2}
    batches = np.split(np.arange(12), n_batches)
    expected = loop_of_nomu(table, initial[0], drawn, batches=batches, **options)
    # Single precision, through some steps of Adam.
    assert_allclose(member.weights, expected, rtol=2e-3, atol=2e-5)


def test_batch_statistics_are_those_of_rows_with_targets():
    def normed(input_shape, n_outputs):
        inputs = keras.Input(input_shape)
        x = keras.layers.BatchNormalization(momentum=0.0)(inputs)
        x = keras.layers.Dense(4, activation="relu")(x)
        return keras.Model(inputs, keras.layers.Dense(n_outputs)(x))

    model = build_nomu((2,), 1, mean=normed, side_hidden_units=(4,))
    options = {"artificial": lambda n, rng: np.full((n, 2), 50.0)}
    far = train_member(model, NomuHead(), recipe_of_nomu(epochs=1), few_rows(), 1, **options)
    mean = next(value for value in far.state if value.shape == (2,))
    assert_allclose(mean, few_rows().x.mean(axis=0), rtol=1e-5)
