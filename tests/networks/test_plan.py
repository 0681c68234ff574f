"""Plans against Keras' own forward pass, in NumPy and as tensors."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from plans import ACTIVATIONS, ARRAYS, Run, draw_variables, make_plan, tensors, without_names
from tiers import cases

from skuq.backend import keras, ops

layers = keras.layers


def keras_output(model, parts, state, x, training=False):
    twin = keras.models.model_from_json(model.to_json().replace("float32", "float64"))
    y, new = twin.stateless_call(parts, list(state), ops.convert_to_tensor(x), training=training)
    return ops.convert_to_numpy(y), [ops.convert_to_numpy(value) for value in new]


def random_parts(model, plan, seed=0):
    rng = np.random.default_rng(seed)
    flat, state = draw_variables(model, seed)
    flat = flat.astype(float) + 0.1 * rng.normal(size=flat.size)
    moved = [v + rng.uniform(0, 1, v.shape) if v.dtype.kind == "f" else v for v in state]
    return plan.split(flat), moved


def everything():
    """A network with each layer a plan knows."""
    inputs = keras.Input((5,))
    x = layers.Dense(6, activation="gelu", kernel_regularizer="l2")(inputs)
    x = layers.BatchNormalization(momentum=0.7)(x)
    x = layers.Dropout(0.3)(x)
    y = layers.Dense(6, use_bias=False)(inputs)
    x = layers.Multiply()([layers.Add()([x, y]), y])
    x = layers.Concatenate()([x, inputs])
    x = layers.LayerNormalization()(x)
    x = layers.Activation("mish")(x)
    x = layers.BatchNormalization(center=False)(x)
    x = layers.LayerNormalization(scale=False)(x)
    return keras.Model(inputs, layers.Dense(2)(x))


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_are_keras_own(name):
    x = np.concatenate([np.linspace(-30, 30, 2001), [0.0, 1e-9, -1e-9]])
    ours = ACTIVATIONS[name](x)
    theirs = ops.convert_to_numpy(keras.activations.get(name)(ops.convert_to_tensor(x)))
    # Some of Keras' constants are rounded to float32 on the way.
    rounded = name in ("selu", "hard_sigmoid", "leaky_relu", "gelu")
    assert_allclose(ours, theirs, rtol=1e-6 if rounded else 1e-12, atol=1e-12)


@pytest.mark.parametrize("namespace", [ARRAYS, tensors()], ids=["numpy", "keras"])
@pytest.mark.parametrize("training", [False, True])
def test_each_layer_is_keras_own(namespace, training):
    model = everything()
    plan = make_plan(model.to_json())
    assert plan.n_dropouts == 1 and plan.n_state == len(model.non_trainable_variables)
    parts, state = random_parts(model, plan)
    x = np.random.default_rng(1).normal(size=(9, 5))
    run = Run(namespace, training=training, is_real=np.ones(9))
    y, new = plan(parts, state, x, run)
    text = model.to_json().replace('"rate": 0.3', '"rate": 0.0')
    without_dropout = keras.models.model_from_json(text)
    kept = [value for value in state if value.dtype.kind == "f"]
    expected, expected_state = keras_output(without_dropout, parts, kept, x, training)
    assert_allclose(np.asarray(y), expected, rtol=1e-6)  # gelu's constants
    for ours, theirs in zip([v for v in new if np.asarray(v).dtype.kind == "f"], expected_state):
        assert_allclose(np.asarray(ours), theirs, rtol=1e-6)


def test_filling_rows_do_not_count_in_batch_statistics():
    model = everything()
    plan = make_plan(model.to_json())
    parts, state = random_parts(model, plan)
    x = np.random.default_rng(1).normal(size=(9, 5))
    whole, state_of_whole = plan(parts, state, x[:6], Run(training=True, is_real=np.ones(6)))
    run = Run(training=True, is_real=np.r_[np.ones(6), np.zeros(3)])
    filled, state_of_filled = plan(parts, state, x, run)
    assert_allclose(filled[:6], whole, rtol=1e-12)
    for a, b in zip(state_of_whole, state_of_filled):
        assert_allclose(a, b, rtol=1e-12)


def test_a_member_axis_is_as_many_networks():
    model = everything()
    plan = make_plan(model.to_json())
    x = np.random.default_rng(1).normal(size=(4, 9, 5))
    alone = [random_parts(model, plan, seed) for seed in range(4)]
    parts = [np.stack(values) for values in zip(*(parts for parts, _ in alone))]
    state = [np.stack(values) for values in zip(*(state for _, state in alone))]
    for rows in (x, x[0]):  # rows of their own, or shared
        for training in (False, True):
            run = Run(training=training, is_real=np.ones(9))
            together, new = plan(parts, state, rows, run)
            for k in range(4):
                single, own_state = plan(*alone[k], rows[k] if rows.ndim == 3 else rows, run)
                assert_allclose(together[k], single, rtol=1e-12)
                for a, b in zip(new, own_state):
                    assert_allclose(np.asarray(a)[k], b, rtol=1e-12)


def test_dropout_masks_multiply():
    model = keras.Sequential([keras.Input((3,)), layers.Dropout(0.5), layers.Dense(1)])
    plan = make_plan(model.to_json())
    mask = np.array([[2.0, 0, 2], [0, 0, 2]])
    x, kernel = np.arange(6.0).reshape(2, 3) + 1, np.ones((3, 1))
    run = Run(dropout_mask=lambda number, rate, shape: mask)
    y, _ = plan([kernel, np.zeros(1)], [np.zeros(2)], x, run)
    assert_allclose(y, [[8.0], [12.0]])


def shared():
    inputs = keras.Input((3,))
    layer = layers.Dense(3)
    return keras.Model(inputs, layer(layer(inputs)))


def several_inputs():
    inputs = [keras.Input((3,)), keras.Input((3,))]
    return keras.Model(inputs, layers.Add()(inputs))


@cases(
    "model",
    keras.Sequential([keras.Input((3,)), layers.UnitNormalization()]),
    keras.Sequential([keras.Input((4, 3)), layers.Dense(2)]),
    keras.Sequential([keras.Input((3,)), layers.Dense(2, activity_regularizer="l2")]),
    keras.Sequential([keras.Input((3,)), layers.Dense(2, kernel_constraint="max_norm")]),
    keras.Sequential([keras.Input((3,)), layers.Dense(2, dtype="float64")]),
    keras.Sequential([keras.Input((3,)), layers.BatchNormalization(axis=1), layers.Softmax()]),
    keras.Sequential([keras.Input((3,), dtype="int32"), layers.Dense(2)]),
    keras.Sequential([keras.Input((3,)), layers.Dropout(1.0), layers.Dense(2)]),
    shared(),
    several_inputs(),
    ids=lambda model: "+".join(layer.__class__.__name__ for layer in model.layers),
)
def test_what_a_plan_does_not_know_has_none(model):
    assert make_plan(model.to_json()) is None


def test_plans_do_not_hang_on_names():
    one, two = everything(), everything()
    assert one.to_json() != two.to_json()
    assert make_plan(one.to_json()) == make_plan(two.to_json())
    assert hash(make_plan(one.to_json())) == hash(make_plan(two.to_json()))

    def network(name, activation):
        layer = layers.Dense(2, activation=activation, name=name)
        return keras.Sequential([keras.Input((3,)), layer]).to_json()

    assert without_names(network("a", "relu")) == without_names(network("b", "relu"))
    # A layer may be called like a value.
    assert without_names(network("relu", "relu")) != without_names(network("tanh", "tanh"))


def frozen():
    """Layers that do not train between others that do."""
    inputs = keras.Input((5,))
    x = layers.Rescaling([1.0, 2.0, 3.0, 4.0, 5.0], [0.0, 1.0, 0.0, -1.0, 2.0])(inputs)
    x = layers.Dense(6, activation="relu", trainable=False, kernel_regularizer="l2")(x)
    x = layers.BatchNormalization(trainable=False)(x)
    x = layers.BatchNormalization(momentum=0.6)(layers.Dense(6)(x))
    x = layers.Rescaling(0.5, 1.0)(x)
    x = layers.LayerNormalization(trainable=False)(x)
    return keras.Model(inputs, layers.Dense(2)(x))


@pytest.mark.parametrize("training", [False, True])
def test_frozen_layers_are_state_and_stand_still(training):
    model = frozen()
    plan = make_plan(model.to_json())
    assert len(plan.weights) == len(model.trainable_variables)
    assert plan.n_state == len(model.non_trainable_variables)
    parts, state = random_parts(model, plan)
    x = np.random.default_rng(1).normal(size=(7, 5))
    expected, new = keras_output(model, parts, state, x, training)
    run = Run(ARRAYS, training=training, is_real=np.ones(7))
    ours, new_state = plan(parts, state, x, run)
    assert_allclose(ours, expected, rtol=1e-6, atol=1e-8)
    for a, b in zip(new_state, new):
        assert_allclose(a, b, rtol=1e-6, atol=1e-9)
