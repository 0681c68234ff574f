"""Layers for tables: each compared with its formula, in every way that it can run."""

import numpy as np
import plans
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from plans import ACTIVATIONS, ARRAYS, Run, draw_variables, float32, make_plan, tensors
from tiers import cases

from skuq.backend import keras, ops
from skuq.networks import NumericEmbedding
from skuq.networks import _tabular_layers as tabular

EDGES = [[-1.0, -0.25, 0.5, 2.0], [0.0, 1.0, 1.0, 1.0], [3.0, 3.0, 3.0, 3.0]]  # 3, 1 and 0 bins
PIECES = {"columns": [0, 3, 5], "edges": EDGES, "dim": 2}


def scale(x, scale):
    return x * scale


def parametric(x, a):
    return (1 - a) * x + a * x * np.tanh(np.log1p(np.exp(x)))


def ntk(x, kernel, bias):
    return np.dot(x, kernel / np.sqrt(6)) + bias


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
    "scale": (lambda: tabular.FeatureScale(), scale),
    "parametric": (lambda: tabular.ParametricActivation("mish"), parametric),
    "ntk": (lambda: tabular.NTKDense(5), ntk),
    "periodic": (lambda: NumericEmbedding(n_frequencies=5), periodic(*range(6))),
    "some": (
        lambda: NumericEmbedding(columns=[1, 2, 5], n_frequencies=5, dim=3),
        periodic(1, 2, 5),
    ),
    "pieces": (lambda: NumericEmbedding("piecewise-linear", **PIECES), pieces),
    "codes": (lambda: tabular.CategoryEmbedding([4, 1], [7, 3], [3, 2]), categories([4, 1])),
    "all codes": (lambda: tabular.CategoryEmbedding(range(6), [4] * 6), categories(range(6))),
}


def model_of(name):
    return plans.sequential((6,), LAYERS[name][0]())


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


@pytest.mark.parametrize("name", LAYERS)
def test_keras_and_plan_are_one(name):
    """On arrays and as tensors, and of several members at once with rows of their own or not."""
    model, formula = model_of(name), LAYERS[name][1]
    plan = make_plan(model.to_json())
    assert [w.shape for w in plan.weights] == [tuple(v.shape) for v in model.trainable_variables]
    assert plan.n_state == len(model.non_trainable_variables)
    members = [random_parts(model, plan, seed) for seed in range(2)]
    parts, state = ([np.stack(v) for v in zip(*values)] for values in zip(*members))
    for x in (rows(), rows(lead=(2,))):
        together, _ = plan(parts, state, x, Run(ARRAYS))
        arguments = float32(parts), float32(state), *float32([x])
        for namespace in (tensors(), tensors(xla=True)):
            there, _ = plan(*arguments, Run(namespace))
            assert_allclose(np.asarray(there), together, rtol=1e-5, atol=1e-5)
        for k, (own_parts, own_state) in enumerate(members):
            own = x if x.ndim == 2 else x[k]
            alone, _ = plan(own_parts, own_state, own)
            assert alone.shape == (7, *model.output_shape[1:]) and alone.dtype == np.float64
            assert_allclose(together[k], alone, rtol=1e-10, atol=1e-12)
            expected = [formula(row, *own_parts) for row in own]
            assert_allclose(alone, expected, rtol=1e-12, atol=1e-12)
            arguments = float32(own_parts), float32(own_state), *float32([own])
            assert_allclose(model.stateless_call(*arguments)[0], alone, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", LAYERS)
def test_layers_are_rebuilt_from_their_configuration(name):
    model = model_of(name)
    again = plans.rebuild(model.to_json())
    assert make_plan(again.to_json()) == make_plan(model.to_json())
    assert again.output_shape == model.output_shape
    (flat, state), (same, same_state) = draw_variables(model, 5), draw_variables(again, 5)
    for one, two in zip([flat, *state], [same, *same_state], strict=True):
        assert_array_equal(one, two)
    if name not in ("scale", "parametric"):
        assert not np.array_equal(flat, draw_variables(model, 6)[0])


def test_first_values_are_the_papers():
    def drawn(layer, n):
        model = plans.sequential((n,), layer)
        parts = make_plan(model.to_json()).split(draw_variables(model, 1)[0])
        return {v.name: part for v, part in zip(model.trainable_variables, parts)}

    ntk = drawn(tabular.NTKDense(300), 200)
    assert abs(ntk["kernel"].std() - 1) < 0.02 and abs(ntk["bias"].std() - 1) < 0.15
    pbld = drawn(NumericEmbedding(scale=0.3, n_frequencies=64), 40)
    assert abs(pbld["frequencies"].std() - 0.3) < 0.02
    assert 3 < np.abs(pbld["phases"]).max() <= np.pi
    for part in (pbld["kernel"], pbld["bias"]):  # as PyTorch's linear layers: 1 / sqrt(64)
        assert 0.11 < np.abs(part).max() <= 0.125
    tables = drawn(tabular.CategoryEmbedding([0], [200], 30), 2)["vectors_0"]
    assert (tables[0] == 0).all() and abs(tables[1:].std() - 1) < 0.05


def values_and_slopes(function, x):
    import tensorflow as tf

    with tf.GradientTape() as tape:
        tape.watch(x)
        y = function(x)
    return np.asarray(y), np.asarray(tape.gradient(y, x))


def test_cosine_of_a_compiled_program_is_right_to_the_last_digits():
    x, cosine = np.linspace(-3, 3, 20_001, dtype="float32"), tensors(xla=True).cosine
    y, slope = values_and_slopes(cosine, ops.convert_to_tensor(x))
    exact = 2 * np.pi * x.astype(float)
    assert_allclose(y, np.cos(exact), atol=5e-7)
    assert_allclose(slope, -2 * np.pi * np.sin(exact), atol=1e-5)
    double = ops.convert_to_tensor(x.astype(float))  # which no polynomial is meant for
    assert_allclose(cosine(double), np.cos(exact), atol=1e-13)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_of_a_compiled_program_are_keras_own(name):
    x = np.concatenate([np.linspace(-100, 100, 2001), [0.0, 1e-9]])
    x = ops.convert_to_tensor(x / 10 if name == "exponential" else x)
    functions = tensors(xla=True).activation(name), keras.activations.get(name)
    for ours, theirs in zip(*(values_and_slopes(function, x) for function in functions)):
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
    edges = plans.bin_edges(x, 8)
    assert edges.shape == (2, 9) and (np.diff(edges) > 0).all()
    for column, edges_of_column in zip(x.T, edges):
        counts, _ = np.histogram(column, edges_of_column)
        assert set(counts[1:-1]) <= {124, 125, 126}
    x = np.stack([np.tile([0.0, 1, 5], 10), np.full(30, 3.0)], axis=1)
    edges = plans.bin_edges(x, 6)
    assert_array_equal(edges, [[0, 1, 5, 5, 5, 5, 5], [3] * 7])
    NumericEmbedding("piecewise-linear", edges=edges)  # which it takes
