"""Plans against Keras' own forward pass, in NumPy and as tensors."""

import numpy as np
import plans
import pytest
from numpy.testing import assert_allclose
from operators import slope
from plans import ACTIVATIONS, ARRAYS, Run, make_plan, sequential, tensors, without_names
from scipy.differentiate import derivative
from tiers import cases

from skuq.backend import keras, ops

layers = keras.layers


def keras_output(model, parts, state, x, training=False):
    twin = keras.models.model_from_json(model.to_json().replace("float32", "float64"))
    y, new = twin.stateless_call(parts, list(state), ops.convert_to_tensor(x), training=training)
    return ops.convert_to_numpy(y), [ops.convert_to_numpy(value) for value in new]


def random_parts(model, plan, seed=0):
    rng = np.random.default_rng(seed)
    flat, state = plans.draw_variables(model, seed)
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


POINTS = np.linspace(-9, 9, 181)


@pytest.mark.parametrize("name", plans.SLOPES)
def test_slopes_are_those_of_numerical_differentiation(name):
    """And on tensors in single precision those on arrays."""
    found = slope(ARRAYS, name, POINTS)
    if name in ("gelu", "silu", "softplus", "tanh"):
        assert_allclose(found, derivative(ACTIVATIONS[name], POINTS).df, rtol=1e-9, atol=1e-10)
    computed = slope(tensors(), name, *plans.float32([POINTS]))
    assert_allclose(np.asarray(computed), found, atol=1e-6)


def test_large_arrays_give_what_single_rows_give():
    """Many rows run by other formulas, without overflows."""
    x = np.concatenate([np.linspace(-800, 800, 4001), np.linspace(-3, 3, 4001)])
    few = np.array_split(x, 20)
    functions = {**ACTIVATIONS, "cosine": ARRAYS.cosine}
    for name, f in functions.items():
        with np.errstate(all="ignore" if name == "exponential" else "raise", under="ignore"):
            expected = np.concatenate([f(part) for part in few])
            assert_allclose(f(x), expected, rtol=1e-14, atol=1e-12 if name == "cosine" else 0)


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


@pytest.mark.parametrize("make", [everything, frozen])
@pytest.mark.parametrize("namespace", [ARRAYS, tensors()], ids=["numpy", "keras"])
@pytest.mark.parametrize("training", [False, True])
def test_each_layer_is_keras_own(make, namespace, training):
    model = make()
    plan = make_plan(model.to_json())
    assert plan.n_dropouts == (make is everything)
    assert len(plan.weights) == len(model.trainable_variables)
    assert plan.n_state == len(model.non_trainable_variables)
    parts, state = random_parts(model, plan)
    x = np.random.default_rng(1).normal(size=(9, 5))
    y, new = plan(parts, state, x, Run(namespace, training=training, is_real=np.ones(9)))
    text = model.to_json().replace('"rate": 0.3', '"rate": 0.0')
    without_dropout = keras.models.model_from_json(text)
    kept = [value for value in state if value.dtype.kind == "f"]
    expected, expected_state = keras_output(without_dropout, parts, kept, x, training)
    assert_allclose(np.asarray(y), expected, rtol=1e-6, atol=1e-8)  # gelu's constants
    new = [value for value in map(np.asarray, new) if value.dtype.kind == "f"]
    for ours, theirs in zip(new, expected_state, strict=True):
        assert_allclose(ours, theirs, rtol=1e-6, atol=1e-9)


def test_filling_rows_do_not_count_in_batch_statistics():
    model = everything()
    plan = make_plan(model.to_json())
    parts, state = random_parts(model, plan)
    x, is_real = np.random.default_rng(1).normal(size=(9, 5)), np.repeat([1.0, 0.0], [6, 3])
    whole, after = plan(parts, state, x[:6], Run(training=True, is_real=np.ones(6)))
    filled, after_filled = plan(parts, state, x, Run(training=True, is_real=is_real))
    for a, b in zip([filled[:6], *after_filled], [whole, *after], strict=True):
        assert_allclose(a, b, rtol=1e-12)


@pytest.mark.parametrize("training", [False, True])
def test_a_member_axis_is_as_many_networks(training):
    model = everything()
    plan = make_plan(model.to_json())
    x = np.random.default_rng(1).normal(size=(3, 9, 5))
    alone = [random_parts(model, plan, seed) for seed in range(3)]
    parts, state = ([np.stack(v) for v in zip(*values)] for values in zip(*alone))
    run = Run(training=training, is_real=np.ones(9))
    for rows in (x, x[0]):  # rows of their own, or shared
        together, new = plan(parts, state, rows, run)
        for k in range(3):
            single, own_state = plan(*alone[k], rows[k] if rows.ndim == 3 else rows, run)
            for a, b in zip([together, *new], [single, *own_state], strict=True):
                assert_allclose(np.asarray(a)[k], b, rtol=1e-12)


def shared():
    inputs = keras.Input((3,))
    layer = layers.Dense(3)
    return keras.Model(inputs, layer(layer(inputs)))


def several_inputs():
    inputs = [keras.Input((3,)), keras.Input((3,))]
    return keras.Model(inputs, layers.Add()(inputs))


@cases(
    "model",
    sequential((3,), layers.UnitNormalization()),
    sequential((4, 3), layers.Dense(2)),
    sequential((3,), layers.Dense(2, activity_regularizer="l2")),
    sequential((3,), layers.Dense(2, kernel_constraint="max_norm")),
    sequential((3,), layers.Dense(2, dtype="float64")),
    sequential((3,), layers.BatchNormalization(axis=1), layers.Softmax()),
    keras.Sequential([keras.Input((3,), dtype="int32"), layers.Dense(2)]),
    sequential((3,), layers.Dropout(1.0), layers.Dense(2)),
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
