"""Layers for tables: each compared with its formula, in every way that it can run."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from plans import ACTIVATIONS, ARRAYS, Run, bin_edges, draw_variables, make_plan, rebuild, tensors
from processes import run_python
from tiers import cases

from skuq.backend import keras, ops
from skuq.networks import NumericEmbedding
from skuq.networks import _tabular_layers as tabular

EDGES = [[-1.0, -0.25, 0.5, 2.0], [0.0, 1.0, 1.0, 1.0], [3.0, 3.0, 3.0, 3.0]]  # 3, 1 and 0 bins

PIECES = {"columns": [0, 3, 5], "edges": EDGES, "dim": 2}
LAYERS = {
    "scale": lambda: tabular.FeatureScale(),
    "parametric": lambda: tabular.ParametricActivation("mish"),
    "ntk": lambda: tabular.NTKDense(5),
    "periodic": lambda: NumericEmbedding(n_frequencies=5),
    "periodic, some": lambda: NumericEmbedding(columns=[1, 2, 5], n_frequencies=5, dim=3),
    "piecewise linear": lambda: NumericEmbedding("piecewise-linear", **PIECES),
    "categories": lambda: tabular.CategoryEmbedding([4, 1], [7, 3], [3, 2]),
    "all categories": lambda: tabular.CategoryEmbedding(range(6), [4] * 6),
}


def model_of(name):
    inputs = keras.Input((6,), name="input")
    return keras.Model(inputs, LAYERS[name]()(inputs), name="model")


def rows(n=7, lead=()):
    """Numbers, and codes in columns 1 and 4, some of which are no category's."""
    x = np.random.default_rng(1).normal(size=(*lead, n, 6)) * 2
    x[..., 1], x[..., 4] = np.round(x[..., 1]), np.round(3 * x[..., 4])
    return x


def random_parts(model, plan, seed):
    rng = np.random.default_rng(seed)
    flat, state = draw_variables(model, seed)
    parts = plan.split(flat.astype(float) + 0.3 * rng.normal(size=flat.size))
    return parts, [value.astype(float) for value in state]


def by_keras(model, parts, state, x):
    parts, state = ([np.float32(v) for v in values] for values in (parts, state))
    y, _ = model.stateless_call(parts, state, ops.convert_to_tensor(np.float32(x)))
    return ops.convert_to_numpy(y)


@pytest.mark.parametrize("name", LAYERS)
def test_keras_and_plan_are_one(name):
    model = model_of(name)
    plan = make_plan(model.to_json())
    assert [w.shape for w in plan.weights] == [tuple(v.shape) for v in model.trainable_variables]
    assert plan.n_state == len(model.non_trainable_variables)
    parts, state = random_parts(model, plan, 0)
    x = rows()
    y, _ = plan(parts, state, x)
    assert y.shape == (7, *model.output_shape[1:]) and y.dtype == np.float64
    assert_allclose(by_keras(model, parts, state, x), y, rtol=1e-5, atol=1e-5)
    for xla in (False, True):
        arguments = [[np.float32(v) for v in values] for values in (parts, state)]
        there, _ = plan(*arguments, ops.convert_to_tensor(np.float32(x)), Run(tensors(xla)))
        assert_allclose(np.asarray(there), y, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("namespace", [ARRAYS, tensors()], ids=["numpy", "keras"])
def test_a_member_axis_is_as_many_layers(name, namespace):
    model = model_of(name)
    plan = make_plan(model.to_json())
    alone = [random_parts(model, plan, seed) for seed in range(3)]
    parts = [np.stack(values) for values in zip(*(parts for parts, _ in alone))]
    state = [np.stack(values) for values in zip(*(state for _, state in alone))]
    for x in (rows(), rows(lead=(3,))):  # shared, or rows of their own
        together, _ = plan(parts, state, x, Run(namespace))
        for k in range(3):
            expected, _ = plan(*alone[k], x if x.ndim == 2 else x[k])
            assert_allclose(np.asarray(together[k]), expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", LAYERS)
def test_layers_are_rebuilt_from_their_configuration(name):
    model = model_of(name)
    again = rebuild(model.to_json())
    assert make_plan(again.to_json()) == make_plan(model.to_json())
    assert again.output_shape == model.output_shape
    for one, two in zip(draw_variables(model, 5), draw_variables(again, 5)):
        for a, b in zip(one, two, strict=True):
            assert_array_equal(a, b)
    if name not in ("scale", "parametric"):
        assert not np.array_equal(draw_variables(model, 5)[0], draw_variables(model, 6)[0])


@pytest.mark.slow
def test_a_process_that_never_built_a_layer_can_rebuild_it():
    code = (
        "import sys\n"
        "from skuq.networks._plan import make_plan\n"
        "network = sys.stdin.read()\n"
        "assert make_plan(network) is not None and 'keras' not in sys.modules\n"
        "from skuq.networks._keras_models import rebuild\n"
        "print(rebuild(network).count_params())\n"
    )
    model = model_of("periodic")
    done = run_python(code, input=model.to_json())
    assert int(done.stdout) == model.count_params()


def check(name, formula, seed=0):
    """A layer's plan against ``formula(x, *weights) -> y`` for a row x."""
    model = model_of(name)
    plan = make_plan(model.to_json())
    parts, state = random_parts(model, plan, seed)
    x = rows()
    y, _ = plan(parts, state, x)
    assert_allclose(y, [formula(row, *parts) for row in x], rtol=1e-12, atol=1e-12)


def test_feature_scale_and_parametric_activation():
    check("scale", lambda x, scale: x * scale)
    check("parametric", lambda x, a: (1 - a) * x + a * x * np.tanh(np.log1p(np.exp(x))))
    check("ntk", lambda x, kernel, bias: np.dot(x, kernel / np.sqrt(6)) + bias)


def test_periodic_embedding():
    """PBLD: equation of Holzmueller et al. (2024), appendix A."""

    def formula(columns):
        def value(x, frequencies, phases, kernel, bias):
            embedded = []
            for j, column in enumerate(columns):
                waves = np.cos(2 * np.pi * frequencies[j] * x[column] + phases[j])
                embedded.append(waves @ kernel[j] + bias[j])
            return np.concatenate([*embedded, x])

        return value

    check("periodic", formula(range(6)))
    check("periodic, some", formula([1, 2, 5]))


def test_piecewise_linear_embedding():
    """A line between the knots (edge j, sum of the first j rows of the kernel)."""

    def formula(x, kernel, bias):
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
            ends = [heights[:1] - 100 * slopes[:1], heights, heights[-1:] + 100 * slopes[-1:]]
            heights = np.concatenate(ends)
            interpolated = [np.interp(x[column], far, heights[:, k]) for k in range(2)]
            embedded.append(np.array(interpolated) + bias[j])
        return np.concatenate([*embedded, x[[1, 2, 4]]])

    check("piecewise linear", formula)


def test_category_embedding():
    def formula(x, first, second):
        parts = [x[[0, 2, 3, 5]]]
        for column, table in ((4, first), (1, second)):
            code = int(x[column])
            parts.append(table[code if 0 <= code < len(table) else 0])
        return np.concatenate(parts)

    codes = rows()[:, 4]
    assert (codes < 0).any() and (codes > 6).any() and ((codes > 0) & (codes < 7)).any()
    check("categories", formula)


def test_first_values_are_the_papers():
    def drawn(layer, n):
        model = keras.Sequential([keras.Input((n,)), layer])
        plan = make_plan(model.to_json())
        drawn = plan.split(draw_variables(model, 1)[0])
        return {v.name: part for v, part in zip(model.trainable_variables, drawn)}

    ntk = drawn(tabular.NTKDense(300), 200)
    assert abs(ntk["kernel"].std() - 1) < 0.02 and abs(ntk["bias"].std() - 1) < 0.15
    pbld = drawn(NumericEmbedding(scale=0.3, n_frequencies=64), 40)
    assert abs(pbld["frequencies"].std() - 0.3) < 0.02
    assert np.abs(pbld["phases"]).max() > 3 and np.abs(pbld["phases"]).max() <= np.pi
    for part in (pbld["kernel"], pbld["bias"]):  # as PyTorch's linear layers: 1 / sqrt(64)
        assert 0.11 < np.abs(part).max() <= 0.125
    tables = drawn(tabular.CategoryEmbedding([0], [200], 30), 2)["vectors_0"]
    assert (tables[0] == 0).all() and abs(tables[1:].std() - 1) < 0.05


def test_edges_are_not_part_of_what_is_compiled():
    def plan(edges):
        layer = NumericEmbedding("piecewise-linear", edges=edges)
        return make_plan(keras.Sequential([keras.Input((3,)), layer]).to_json())

    one, other = plan(EDGES), plan(np.array(EDGES) + 1)
    assert one == other and hash(one) == hash(other)
    assert one != plan([[0.0, 1, 2]] * 3)
    assert make_plan(model_of("periodic").to_json()).width == 6 * 5
    assert make_plan(model_of("piecewise linear").to_json()).width == 3 * 3


def test_cosine_of_a_compiled_program_is_right_to_the_last_digits():
    import tensorflow as tf

    turns = np.linspace(-3, 3, 20_001, dtype="float32")
    x = tf.constant(turns)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = tensors(xla=True).cosine(x)
    slope = tape.gradient(y, x)
    exact = turns.astype(float)
    assert_allclose(y, np.cos(2 * np.pi * exact), atol=5e-7)
    assert_allclose(slope, -2 * np.pi * np.sin(2 * np.pi * exact), atol=1e-5)
    double = tf.constant(exact)  # which no polynomial is meant for
    assert_allclose(tensors(xla=True).cosine(double), np.cos(2 * np.pi * exact), atol=1e-13)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_of_a_compiled_program_are_keras_own(name):
    import tensorflow as tf

    x = tf.constant(np.concatenate([np.linspace(-100, 100, 2001), [0.0, 1e-9]]))
    if name == "exponential":
        x = x / 10
    slopes = []
    for function in (tensors(xla=True).activation(name), keras.activations.get(name)):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = function(x)
        slopes.append((y, tape.gradient(y, x)))
    for ours, theirs in zip(*slopes):
        assert_allclose(ours, theirs, rtol=1e-6, atol=1e-12)


def piecewise_linear(edges):
    return NumericEmbedding("piecewise-linear", edges=[edges])


@cases(
    ("make", "message"),
    (lambda: NumericEmbedding("fourier"), "`kind` must be .*Got 'fourier'"),
    (lambda: NumericEmbedding(dim=1), "at least 2. Got 1"),
    (lambda: NumericEmbedding(scale=0.0), "`scale` must be a positive number. Got 0.0"),
    (lambda: NumericEmbedding("piecewise-linear"), "needs `edges`. Got None"),
    (lambda: NumericEmbedding(edges=EDGES), "does not use `edges`"),
    (lambda: piecewise_linear([0.0, 2.0, 1.0]), "`edges` must increase"),
    (lambda: piecewise_linear([0.0, 0.0, 1.0]), "only the last one may repeat"),
    (lambda: piecewise_linear([0.0, np.nan]), "`edges` must .*finite"),
    (lambda: tabular.CategoryEmbedding([0, 1], [3]), "an entry for each of `columns`"),
    (lambda: tabular.CategoryEmbedding([0], [0]), "`n_codes` must be a positive whole number"),
    (lambda: tabular.NTKDense(2.5), "`units` must be a positive whole number. Got 2.5"),
    (lambda: NumericEmbedding(columns=[0, 6])(keras.Input((6,))), "inputs of 6 features"),
    (lambda: NumericEmbedding(columns=[0, 0])(keras.Input((6,))), "inputs of 6 features"),
    (lambda: tabular.FeatureScale()(keras.Input((6, 2))), "shape .n_samples, n_features."),
)
def test_what_makes_no_sense_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_bin_edges_hold_equally_many_rows():
    x = np.random.default_rng(0).normal(size=(1000, 2)) * [1, 100]
    edges = bin_edges(x, 8)
    assert edges.shape == (2, 9) and (np.diff(edges) > 0).all()
    for column, edges_of_column in zip(x.T, edges):
        counts, _ = np.histogram(column, edges_of_column)
        assert set(counts[1:-1]) <= {124, 125, 126}
    x = np.stack([np.tile([0.0, 1, 5], 10), np.full(30, 3.0)], axis=1)
    edges = bin_edges(x, 6)
    assert_array_equal(edges, [[0, 1, 5, 5, 5, 5, 5], [3] * 7])
    NumericEmbedding("piecewise-linear", edges=edges)  # which it takes
