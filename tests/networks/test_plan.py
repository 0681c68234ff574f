"""Plans of networks and layers for tables, against Keras' own forward pass and formulas."""

from functools import partial

import numpy as np
import plans
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from operators import slope
from plans import ACTIVATIONS, ARRAYS, Run, draw_variables, float32, make_plan, tensors
from scipy.differentiate import derivative
from tiers import cases

from skuq.backend import keras, ops, value_and_gradient
from skuq.networks import NumericEmbedding
from skuq.networks import _tabular_layers as tabular

layers, POINTS = keras.layers, np.linspace(-9, 9, 181)
ONE, TWO, DENSE = keras.Input((3,)), keras.Input((3,)), layers.Dense(3)
EDGES = [[-1.0, -0.25, 0.5, 2.0], [0.0, 1.0, 1.0, 1.0], [3.0, 3.0, 3.0, 3.0]]  # 3, 1 and 0 bins
BLENDED, BINNED = tabular.ParametricActivation, partial(NumericEmbedding, "piecewise-linear")


def keras_output(model, parts, state, x, training=False):
    twin = keras.models.model_from_json(model.to_json().replace("float32", "float64"))
    y, new = twin.stateless_call(parts, list(state), ops.convert_to_tensor(x), training=training)
    return ops.convert_to_numpy(y), [ops.convert_to_numpy(value) for value in new]


def random_parts(model, plan, seed=0, move=1):
    rng = np.random.default_rng(seed)
    flat, state = draw_variables(model, seed)
    flat = flat.astype(float) + 0.3 * rng.normal(size=flat.size)
    moved = [v + move * rng.random(v.shape) if v.dtype.kind == "f" else v for v in state]
    return plan.split(flat), moved


def everything():
    """A network with each layer a plan knows."""
    inputs = keras.Input((5,))
    x = layers.Dense(6, activation="gelu", kernel_regularizer="l2")(inputs)
    x = layers.BatchNormalization(momentum=0.7)(x)
    x, y = layers.Dropout(0.3)(x), layers.Dense(6, use_bias=False)(inputs)
    x = layers.Multiply()([layers.Add()([x, y]), y])
    x = layers.Concatenate()([x, inputs])
    x = layers.LayerNormalization()(x)
    x = layers.Activation("mish")(x)
    x = layers.BatchNormalization(center=False)(x)
    x = layers.LayerNormalization(scale=False)(x)
    return keras.Model(inputs, layers.Dense(2)(x))


def values_and_slopes(function, x):
    import tensorflow as tf

    with tf.GradientTape() as tape:
        tape.watch(x)
        y = function(x)
    return np.asarray(y), np.asarray(tape.gradient(y, x))


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_are_keras_own(name):
    """On arrays, and of a compiled program."""
    x = np.concatenate([np.linspace(-100, 100, 2001), [0.0, 1e-9, -1e-9]])
    x = x / 10 if name == "exponential" else x
    both = keras.activations.get(name), tensors(xla=True).activation(name)
    theirs, compiled = (values_and_slopes(f, ops.convert_to_tensor(x)) for f in both)
    # Some of Keras' constants are rounded to float32 on the way.
    rounded = name in ("selu", "hard_sigmoid", "leaky_relu", "gelu")
    assert_allclose(ACTIVATIONS[name](x), theirs[0], rtol=1e-6 if rounded else 1e-12, atol=1e-12)
    assert_allclose(compiled, theirs, rtol=1e-6, atol=1e-12)


@pytest.mark.parametrize("name", plans.SLOPES)
def test_slopes_are_those_of_numerical_differentiation(name):
    """And on tensors in single precision those on arrays."""
    found = slope(ARRAYS, name, POINTS)
    if name in ("gelu", "silu", "softplus", "tanh"):
        assert_allclose(found, derivative(ACTIVATIONS[name], POINTS).df, rtol=1e-9, atol=1e-10)
    assert_allclose(np.asarray(slope(tensors(), name, *float32([POINTS]))), found, atol=1e-6)


def test_large_arrays_give_what_single_rows_give():
    """Many rows run by other formulas, without overflows."""
    x = np.concatenate([np.linspace(-800, 800, 4001), np.linspace(-3, 3, 4001)])
    few = np.array_split(x, 20)
    for name, f in {**ACTIVATIONS, "cosine": ARRAYS.cosine}.items():
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


@cases(
    "model",
    plans.sequential((3,), layers.UnitNormalization()),
    plans.sequential((4, 3), layers.Dense(2)),
    plans.sequential((3,), layers.Dense(2, activity_regularizer="l2")),
    plans.sequential((3,), layers.Dense(2, kernel_constraint="max_norm")),
    plans.sequential((3,), layers.Dense(2, dtype="float64")),
    plans.sequential((3,), layers.BatchNormalization(axis=1), layers.Softmax()),
    keras.Sequential([keras.Input((3,), dtype="int32"), layers.Dense(2)]),
    plans.sequential((3,), layers.Dropout(1.0), layers.Dense(2)),
    keras.Model(ONE, DENSE(DENSE(ONE))),
    keras.Model([ONE, TWO], layers.Add()([ONE, TWO])),
    ids=lambda model: "+".join(layer.__class__.__name__ for layer in model.layers),
)
def test_what_a_plan_does_not_know_has_none(model):
    assert make_plan(model.to_json()) is None


def test_plans_do_not_hang_on_names():
    one, two = everything(), everything()
    assert one.to_json() != two.to_json() and make_plan(one.to_json()) == make_plan(two.to_json())
    assert hash(make_plan(one.to_json())) == hash(make_plan(two.to_json()))

    def network(name, activation):
        layer = layers.Dense(2, activation=activation, name=name)
        return keras.Sequential([keras.Input((3,)), layer]).to_json()

    same, other = [("a", "relu"), ("b", "relu")], [("relu", "relu"), ("tanh", "tanh")]
    a, b, c, d = (plans.without_names(network(*given)) for given in (*same, *other))
    assert a == b and c != d  # a layer may be called like a value


def periodic(*columns):
    """PBLD: equation of Holzmueller et al. (2024), appendix A."""

    def value(x, frequencies, phases, kernel, bias):
        embedded = []
        for j, column in enumerate(columns):
            waves = np.cos(2 * np.pi * frequencies[j] * x[column] + phases[j])
            embedded.append(waves @ kernel[j] + bias[j])
        return np.concatenate([*embedded, x])

    return value


def pieces(x, kernel, bias):
    """A line between the knots (edge j, sum of the first j rows of the kernel)."""
    embedded = []
    for j, column in enumerate([0, 3, 5]):
        knots = np.unique(EDGES[j])
        heights = np.cumsum(np.vstack([np.zeros((1, 2)), kernel[j]]), axis=0)[: len(knots)]
        if len(knots) == 1:
            embedded.append(bias[j])
            continue
        # The outermost pieces go on: two knots far out.
        slopes = np.diff(heights, axis=0) / np.diff(knots)[:, None]
        far = np.concatenate([knots[:1] - 100, knots, knots[-1:] + 100])
        ends = heights[:1] - 100 * slopes[:1], heights, heights[-1:] + 100 * slopes[-1:]
        curves = np.concatenate(ends).T
        embedded.append([np.interp(x[column], far, curve) for curve in curves] + bias[j])
    return np.concatenate([*embedded, x[[1, 2, 4]]])


def categories(columns):
    def value(x, *tables):
        parts = [np.delete(x, columns)]
        for column, table in zip(columns, tables):
            code = int(np.round(x[column]))
            parts.append(table[code if 0 <= code < len(table) else 0])
        return np.concatenate(parts)

    return value


LAYERS = {
    "scale": (lambda: tabular.FeatureScale(), lambda x, scale: x * scale),
    "mish": (lambda: BLENDED("mish"), lambda x, a: x + a * x * (np.tanh(np.log1p(np.exp(x))) - 1)),
    "silu": (lambda: BLENDED("silu"), lambda x, a: x - a * x / (1 + np.exp(x))),
    "ntk": (lambda: tabular.NTKDense(5), lambda x, kernel, bias: x @ kernel / np.sqrt(6) + bias),
    "periodic": (lambda: NumericEmbedding(n_frequencies=5), periodic(*range(6))),
    "some": (lambda: NumericEmbedding(columns=[1, 2], n_frequencies=5, dim=3), periodic(1, 2)),
    "pieces": (lambda: BINNED(columns=[0, 3, 5], edges=EDGES, dim=2), pieces),
    "codes": (lambda: tabular.CategoryEmbedding([4, 1], [7, 3], [3, 2]), categories([4, 1])),
    "all codes": (lambda: tabular.CategoryEmbedding(range(6), [4] * 6), categories(range(6))),
}


def squares(plan, state, x, run, parts):
    return ops.sum(plan(parts, state, x, run)[0] ** 2), ()


@pytest.mark.parametrize("name", LAYERS)
def test_keras_and_plan_are_one(name):
    """On arrays and as tensors, with gradients, of members with rows of their own or not."""
    make, formula = LAYERS[name]
    model = plans.sequential((6,), make())
    plan = make_plan(model.to_json())
    assert [w.shape for w in plan.weights] == [tuple(v.shape) for v in model.trainable_variables]
    assert plan.n_state == len(model.non_trainable_variables)
    members = [random_parts(model, plan, seed, 0) for seed in range(2)]
    parts, state = ([np.stack(v) for v in zip(*values)] for values in zip(*members))
    for lead in ((), (2,)):
        # Numbers, and codes in columns 1 and 4, some of which are no category's.
        x = np.random.default_rng(1).normal(size=(*lead, 7, 6)) * 2
        x[..., 1], x[..., 4] = np.round(x[..., 1]), np.round(3 * x[..., 4])
        together, _ = plan(parts, state, x, Run(ARRAYS))
        arguments = float32(parts), float32(state), *float32([x])
        for namespace in (tensors(), tensors(xla=True)):
            assert_allclose(plan(*arguments, Run(namespace))[0], together, rtol=1e-5, atol=1e-5)
            loss = partial(squares, plan, state, x, Run(namespace))
            *_, slopes = value_and_gradient(loss, [ops.convert_to_tensor(part) for part in parts])
            ends = [loss([p * (1 + h) for p in parts])[0] for h in (-1e-6, 1e-6)]
            rise = 2e-6 * sum(ops.sum(g * p) for g, p in zip(slopes, parts))
            assert_allclose(ends[1] - ends[0], rise, rtol=1e-5)
        for k, (own_parts, own_state) in enumerate(members):
            own = x if x.ndim == 2 else x[k]
            alone, _ = plan(own_parts, own_state, own)
            assert alone.shape == (7, *model.output_shape[1:]) and alone.dtype == np.float64
            assert_allclose(together[k], alone, rtol=1e-10, atol=1e-12)
            assert_allclose(alone, [formula(r, *own_parts) for r in own], rtol=1e-12, atol=1e-12)
            arguments = float32(own_parts), float32(own_state), *float32([own])
            assert_allclose(model.stateless_call(*arguments)[0], alone, rtol=1e-5, atol=1e-5)


def test_first_values_and_bins_are_the_papers():
    def drawn(layer, n):
        model = plans.sequential((n,), layer)
        parts = make_plan(model.to_json()).split(draw_variables(model, 1)[0])
        return {v.name: part for v, part in zip(model.trainable_variables, parts)}

    ntk = drawn(tabular.NTKDense(300), 200)
    assert abs(ntk["kernel"].std() - 1) < 0.02 and abs(ntk["bias"].std() - 1) < 0.15
    pbld = drawn(NumericEmbedding(scale=0.3, n_frequencies=64), 40)
    assert abs(pbld["frequencies"].std() - 0.3) < 0.02 and 3 < np.abs(pbld["phases"]).max() <= np.pi
    # As PyTorch's linear layers: 1 / sqrt(64).
    assert all(0.11 < np.abs(pbld[name]).max() <= 0.125 for name in ("kernel", "bias"))
    tables = drawn(tabular.CategoryEmbedding([0], [200], 30), 2)["vectors_0"]
    assert (tables[0] == 0).all() and abs(tables[1:].std() - 1) < 0.05
    x = np.random.default_rng(0).normal(size=(1000, 2)) * [1, 100]  # Bins hold equally many rows.
    edges = plans.bin_edges(x, 8)
    assert edges.shape == (2, 9) and (np.diff(edges) > 0).all()
    assert all(set(np.histogram(*both)[0][1:-1]) <= {124, 125, 126} for both in zip(x.T, edges))
    x = np.stack([np.tile([0.0, 1, 5], 10), np.full(30, 3.0)], axis=1)
    assert_array_equal(plans.bin_edges(x, 6), [[0, 1, 5, 5, 5, 5, 5], [3] * 7])
    BINNED(edges=plans.bin_edges(x, 6))  # which it takes
    x = 3 - np.spacing(np.float32(2)) * (np.arange(60)[:, None] % 40)  # neighbours in float32
    BINNED(edges=plans.bin_edges(x, 30))


def test_cosine_of_a_compiled_program_is_right_to_the_last_digits():
    x, cosine = np.linspace(-3, 3, 20_001, dtype="float32"), tensors(xla=True).cosine
    y, slope = values_and_slopes(cosine, ops.convert_to_tensor(x))
    exact = 2 * np.pi * x.astype(float)
    assert_allclose(y, np.cos(exact), atol=5e-7)
    assert_allclose(slope, -2 * np.pi * np.sin(exact), atol=1e-5)
    assert_allclose(cosine(ops.convert_to_tensor(exact / 2 / np.pi)), np.cos(exact), atol=1e-13)


@cases(
    ("make", "message"),
    (lambda: NumericEmbedding("fourier"), "`kind` must be .*Got 'fourier'"),
    (lambda: NumericEmbedding(dim=1), "at least 2. Got 1"),
    (lambda: NumericEmbedding(scale=0.0), "`scale` must be a positive number. Got 0.0"),
    (lambda: NumericEmbedding("piecewise-linear"), "needs `edges`. Got None"),
    (lambda: NumericEmbedding(edges=EDGES), "does not use `edges`"),
    (lambda: BINNED(edges=[[0.0, 2.0, 1.0]]), "`edges` must increase"),
    (lambda: BINNED(edges=[[0.0, 0.0, 1.0]]), "only the last one may repeat"),
    (lambda: BINNED(edges=[[0.0, np.nan]]), "`edges` must .*finite"),
    (lambda: tabular.CategoryEmbedding([0], [0]), "`n_codes` must be a positive whole number"),
    (lambda: tabular.NTKDense(2.5), "`units` must be a positive whole number. Got 2.5"),
    (lambda: NumericEmbedding(columns=[0, 6])(keras.Input((6,))), "inputs of 6 features"),
    (lambda: NumericEmbedding(columns=[0, 0])(keras.Input((6,))), "inputs of 6 features"),
    (lambda: tabular.FeatureScale()(keras.Input((6, 2))), "shape .n_samples, n_features."),
)
def test_what_makes_no_sense_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
