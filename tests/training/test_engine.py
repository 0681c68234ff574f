"""Programs, first weights, predictions in parts, networks with draws, and checks of networks."""

import gc
import math
import weakref
from dataclasses import replace

import numpy as np
import operators
import pytest
import threadpoolctl
from heads import build_tabular
from numpy.testing import assert_allclose, assert_array_equal
from operators import DrawingNetwork, first_draw
from plans import Run, draw_variables, float32, make_plan, sequential, tensors, wrong_sum
from scipy import stats
from tiers import cases, slow
from training_data import INDEX_STREAM, PLAIN, make_data, normal, train_member, train_stack, uniform

from skuq.backend import BoundedCache, keras, ops, value_and_gradient
from skuq.exceptions import SearchSpaceError
from skuq.networks import GaussianHead, Member
from skuq.tables import TrainingData
from skuq.training import Recipe, TrainingJob, TrainingRun, predict_members
from skuq.training._network_checks import build_checked

layers = keras.layers
Dense, HEAD = layers.Dense, GaussianHead()
# Keras cannot import it by its name.
UNREGISTERED = type("Unregistered", (layers.Layer,), {"call": lambda self, x: 2 * x})
KINDS = {
    "Add": lambda inputs: layers.Add()(inputs),
    "Average": lambda inputs: layers.Average()(inputs),
    "+": lambda inputs: sum(inputs[1:], start=inputs[0]),
}


def network(units=6):
    return sequential((3,), layers.Dense(units, "relu"), layers.Dense(2))


def test_held_out_inputs_are_predicted_in_place_of_the_validation_rows():
    """The global random state is neither used nor changed."""
    keras.utils.set_random_seed(1)
    before, inputs = np.random.get_state()[1].copy(), np.random.default_rng(1).normal(size=(7, 3))
    plain = train_member(network(), HEAD, Recipe(epochs=2), make_data(), 5)
    assert_array_equal(before, np.random.get_state()[1])
    keras.utils.set_random_seed(2)
    asked = train_member(network(), HEAD, Recipe(epochs=2), make_data(), 5, held_out=inputs)
    assert_array_equal(plain.weights, asked.weights)
    for member, rows in ((plain, make_data().x_valid), (asked, inputs)):
        assert_allclose(member.held_out, predict_members([member], rows)[0], rtol=1e-6)


def drawn_variables(model, seed=1):
    """Keras' own values of each trainable variable, with those drawn again."""
    ends = np.cumsum([math.prod(v.shape) for v in model.trainable_variables])[:-1]
    drawn = np.split(draw_variables(model, seed)[0], ends)
    return [(v, v.numpy().ravel(), d) for v, d in zip(model.trainable_variables, drawn)]


@keras.saving.register_keras_serializable("skuq_tests")
class Own(layers.Layer):
    """Weights without a named initializer, and an integer that is no random state."""

    def build(self, shape):
        self.w = self.add_weight(shape=(shape[-1], 2), initializer="glorot_uniform", name="w")
        order = {"initializer": "ones", "dtype": "int32", "trainable": False, "name": "order"}
        self.order = self.add_weight(shape=(2,), **order)

    def call(self, x):
        return keras.ops.matmul(x, self.w)


def test_first_weights_follow_initializers_or_are_kept_as_are_frozen_layers_that_were_changed():
    first = {"kernel_initializer": "he_normal", "bias_initializer": "ones"}
    model = sequential((50,), layers.Dense(400, **first), layers.BatchNormalization())
    (_, _, kernel), (_, _, bias), *_ = drawn_variables(model)
    # 20 000 draws: the std of an estimated std is 1/sqrt(40 000) of it, 0.5 %.
    assert abs(kernel.std() / np.sqrt(2 / 50) - 1) < 0.02 and (bias == 1).all()
    flat, (moving_mean, moving_variance) = draw_variables(model, 1)
    assert (moving_mean == 0).all() and (moving_variance == 1).all()
    assert_array_equal(flat, draw_variables(model, 1)[0])
    assert not np.array_equal(flat, draw_variables(model, 2)[0])
    model = sequential((3,), Own())
    with pytest.warns(UserWarning, match="`w_initializer`: all members start from"):
        flat, state = draw_variables(model, 1)
    assert_array_equal(flat, model.trainable_variables[0].numpy().ravel())
    assert_array_equal(state[0], [1, 1])
    # Frozen layers are drawn again only as long as Keras drew all of them.
    random, trained, half = layers.Dense(5, trainable=False), layers.Dense(4), layers.Dense(3)
    model = sequential((3,), random, trained, half, layers.Dense(1))
    trained.trainable = False
    _, first = draw_variables(model, 0)
    assert not np.array_equal(first[0], random.kernel.numpy())  # all are as they were drawn
    half.kernel.trainable = False  # of a layer that is trained
    for variable in (trained.kernel, trained.bias, half.kernel):  # one of them is enough
        before = variable.numpy()
        variable.assign(before + 1)
        _, state = draw_variables(model, 0)
        for value, own in zip(state, model.non_trainable_variables, strict=True):
            assert_array_equal(value, own.numpy())
        variable.assign(before)


def attention():
    inputs = keras.Input((10, 32))
    attended = layers.MultiHeadAttention(8, 16)(inputs, inputs)
    return keras.Model(inputs, layers.Dense(20)(layers.Flatten()(attended)))


def recurrent():
    return sequential(
        (6, 4, 2),
        layers.ConvLSTM1D(3, 2, return_sequences=True),
        layers.TimeDistributed(layers.Flatten()),
        layers.Bidirectional(layers.LSTM(5, return_sequences=True)),
        layers.RNN([layers.LSTMCell(4), layers.GRUCell(3)], return_sequences=True),
        layers.LSTM(2, unit_forget_bias=False),
    )


@pytest.mark.parametrize(("make", "n_biases"), [(recurrent, 6), (attention, 5)])
def test_first_weights_of_special_layers_are_as_in_keras(make, n_biases):
    variables = drawn_variables(make())
    assert sum(variable.name == "bias" for variable, _, _ in variables) == n_biases
    for variable, of_keras, drawn in variables:
        if variable.name == "bias":
            assert_array_equal(drawn, of_keras, variable.path)
            continue
        assert not np.array_equal(drawn, of_keras)
        if len(drawn) > 1000:
            assert_allclose(drawn.std(), of_keras.std(), rtol=0.1)


def untrained(model, seed=1):
    flat, state = draw_variables(model, seed)
    history = {"loss": np.ones(1), "val_loss": np.ones(1), "learning_rate": np.ones(1)}
    return Member(model.to_json(), flat, tuple(state), history, 0, None, seed, 0.0, "graph")


def test_long_inputs_are_predicted_in_chunks_and_networks_without_a_plan_through_keras():
    member, x = untrained(network()), np.random.default_rng(0).normal(size=(2**14, 3))
    (raw,) = predict_members([member], x)
    some = [0, 2**13, 2**14 - 1]
    assert_allclose(raw[some], predict_members([member], x[some])[0], rtol=1e-12)
    member = untrained(sequential((3,), layers.Dense(6), layers.Dropout(0.5), layers.Dense(2)))
    threads = set()

    def mask(*arguments):
        pools = threadpoolctl.threadpool_info()
        threads.update(pool["num_threads"] for pool in pools if pool["user_api"] == "blas")
        return np.arange(18).reshape(3, 1, 6) / 10

    options = {"dropout_mask": mask, "n_draws": 3}
    with threadpoolctl.threadpool_limits(2, user_api="blas"):
        (whole,) = predict_members([member], x[:8192], **options)
    assert threads == {1}  # others would mainly wait
    assert whole.shape == (3, 8192, 2)
    some = predict_members([member], x[8183:8192], **options)[0]
    assert_allclose(whole[:, -9:], some, rtol=1e-12)
    # More rows than one validation pass holds: the same loss as by hand.
    long = make_data(64, 20_001)
    member = train_member(network(), HEAD, Recipe(epochs=2), long, 1)
    scores = HEAD.scores(long.y_valid, predict_members([member], long.x_valid)[0])
    assert abs(member.score - np.mean(long.weight_valid * scores)) < 1e-5
    normalizations = layers.BatchNormalization(), layers.UnitNormalization()
    odd = sequential((3,), layers.Dense(6, "tanh"), *normalizations, layers.Dense(2))
    assert make_plan(odd.to_json()) is None
    x, member = np.random.default_rng(0).normal(size=(9, 3)), untrained(odd)
    parts = [d.reshape(v.shape) for v, _, d in drawn_variables(odd)]
    twin = odd.stateless_call(parts, list(member.state), x.astype("float32"))[0]
    for cache in (True, False):
        (raw,) = predict_members([member], x, cache=cache)
        assert raw.dtype == np.float64
        assert_allclose(raw, keras.ops.convert_to_numpy(twin), rtol=1e-4, atol=1e-5)


def times(factor):
    """A network with a layer of a class that each call defines again, under one name."""

    @keras.saving.register_keras_serializable("skuq_tests")
    class Times(layers.Layer):
        def call(self, x):
            return factor * x

    parts = [keras.Input((3,), name="x"), Times(name="t"), layers.Dense(2, name="y")]
    return keras.Sequential(parts, name="net")


def test_programs_go_with_their_classes_and_leave_nothing_behind(monkeypatch):
    keys = set()
    for factor in (1.0, 0.0):
        model = times(factor)
        (raw,) = predict_members([untrained(model)], make_data().x, cache=False)
        assert (np.ptp(raw, axis=0) == 0).all() == (factor == 0)  # nothing tells rows apart
        run = TrainingRun(TrainingJob.of_model(model, HEAD, Recipe(), [1]), make_data())
        assert run._model is model
        keys.add(run.key)
    assert len(keys) == 2
    # No activation keeps its graphs alive, as TensorFlow's own swish would.
    cache, graphs = BoundedCache(1), []
    monkeypatch.setattr("skuq.training._train.programs", cache)
    for activation in ("swish", "mish"):
        model = sequential((3,), layers.Dense(30, activation), layers.Dense(2))
        train_member(model, HEAD, Recipe(epochs=1), make_data(), 1, jit=False)
        graphs.append(weakref.ref(next(iter(cache._values.values())).graph))
    gc.collect()
    assert [graph() is None for graph in graphs] == [True, False]
    cache = BoundedCache(max_size=2)
    for key in "abac":
        cache.get(key, key.upper)
    assert [cache.get(key, lambda: "again") for key in "ab"] == ["A", "again"] and cache.n_made == 4


@pytest.mark.parametrize("dropout", [0.4, pytest.param(None, marks=slow)])
def test_dropout_falls_in_the_second_half(dropout):
    """The fourth of four steps has half the rate; its mask is the noise's own."""
    model = sequential((3,), layers.Dense(9, "tanh"), layers.Dropout(0.2), layers.Dense(2))
    flat, state = draw_variables(model, 3)
    settings = {"dropout": dropout, "dropout_schedule": "flat-cosine", **PLAIN}
    recipe = Recipe("sgd", 1e-30, batch_size=500, epochs=4, **settings)
    data, plan = make_data(), make_plan(model.to_json())
    member = train_member(model, HEAD, recipe, data, 1, start=[(flat, state)])
    words = np.random.SeedSequence(1).generate_state(4)
    order = np.random.default_rng(int(words[1]))
    for step, share in ((1, 1.0), (2, 1.0), (3, 1.0), (4, 0.5)):
        rows, rate = order.permutation(len(data.x)), share * (dropout or 0.2)

        def mask(number, own_rate, shape, step=step, rate=rate):
            key = ops.convert_to_tensor(np.uint32(words[2])), ops.convert_to_tensor(np.int32(step))
            numbers = uniform(*key, number, tuple(shape))
            return (np.asarray(numbers) >= np.float32(rate)) / (1 - rate)

        weights, run = plan.split(flat.astype(float)), Run(dropout_mask=mask)
        raw, _ = plan(weights, state, data.x[rows], run)
        expected = np.mean(data.weight[rows] * HEAD.scores(data.y[rows], raw))
        assert member.history["loss"][step - 1] == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("jit", [False, pytest.param(True, marks=slow)], ids=["graph", "xla"])
def test_vectors_of_many_categories_train(jit):
    """A table so large that it is a block of its own, from which rows are taken."""
    x, y = np.tile(np.arange(1.0, 41)[:, None] * 250, (2, 1)), np.sin(np.arange(80) % 40)[:, None]
    table = TrainingData(x, y, np.ones(80), x, y, np.ones(80))
    model = build_tabular((1,), 2, hidden_units=(16,), categories={0: 10_001}, activation="tanh")
    recipe = Recipe(learning_rate=0.03, batch_size=80, epochs=40, **PLAIN)
    member = train_member(model, HEAD, recipe, table, 1, jit=jit)
    assert np.sqrt(np.mean((predict_members([member], x)[0][:, :1] - y) ** 2)) < 0.3
    seed, plan = int(np.random.SeedSequence(1).generate_state(1)[0]), make_plan(model.to_json())
    first, last = (plan.split(w)[0] for w in (draw_variables(model, seed)[0], member.weights))
    assert_array_equal(np.flatnonzero((last != first).any(axis=1)), x[:40, 0].astype(int))


BASE = operators.EncoderDecoder(2, 1, 1, (6,), 4, "split", (5,))
LAYERS = operators.EpiNetLayers(BASE.n_features, 1, 3, (6,), (4,), 0.75)
EPISTEMIC = operators.EpistemicNetwork(BASE, 1, LAYERS)
DATA, PRIOR = make_data(40, 0), operators.EpistemicNetwork(BASE, 1, prior_scale=1.0)
OPERATOR_HEAD = operators.OperatorHead(1)
RECIPE = Recipe(learning_rate=0.01, batch_size=40, epochs=1, n_draws=4, **PLAIN)


def test_a_step_follows_the_gradient_of_the_loss_and_predictions_are_the_networks():
    """One step of gradient descent, with the indices that the step draws."""
    recipe = replace(RECIPE, optimizer="sgd")
    after = train_member(EPISTEMIC, OPERATOR_HEAD, recipe, DATA, 5)
    drawing, (flat, state) = DrawingNetwork(EPISTEMIC), first_draw(EPISTEMIC, 5)
    key = np.uint32(np.random.SeedSequence(5).generate_state(4)[2])
    index = normal(key, np.int32(1), INDEX_STREAM, (4, 3))
    x, y, weight = float32([DATA.x, DATA.y, DATA.weight])

    def loss(variables):
        run = Run(tensors(), training=True, index=index)
        draws = drawing.forward(variables, float32(state), x, run)[0]  # (S, N, 1)
        error = 0.5 * ops.square(draws[..., 0] - y[:, 0])
        return ops.mean(ops.mean(error, axis=0) * weight), ()

    _, _, slopes = value_and_gradient(loss, float32(drawing.split(flat)))
    slope = np.concatenate([np.ravel(slope) for slope in slopes])
    assert_allclose(after.weights, flat - recipe.learning_rate * slope, atol=1e-6)
    for frozen, found in zip(state, after.state, strict=True):
        assert_array_equal(found, frozen)
    member = train_member(EPISTEMIC, OPERATOR_HEAD, RECIPE, DATA, 5)
    drawing, index = DrawingNetwork(EPISTEMIC), np.random.default_rng(0).normal(size=(7, 3))
    run = Run(tensors(), index=float32([index])[0])
    weights, state = float32(drawing.split(member.weights)), float32(member.state)
    expected = drawing.forward(weights, state, *float32([DATA.x]), run)[0]
    draws = operators.predict_draws(member, DATA.x, index)
    assert draws.shape == (7, 40, 1) and draws.dtype == np.float64
    assert_allclose(draws, ops.convert_to_numpy(expected), atol=1e-5)
    index = np.random.default_rng(0).normal(size=(300, 3))
    x = make_data(100, 0).x  # so many draws that rows are predicted in parts
    together = operators.predict_draws(member, x, index)
    assert_allclose(together[:, -9:], operators.predict_draws(member, x[-9:], index), atol=1e-12)


def test_a_prior_computed_once_trains_as_one_computed_in_each_step(monkeypatch):
    recipe = replace(RECIPE, n_draws=0, batch_size=8, epochs=3)
    rows, members = [(np.arange(30), None), (np.arange(39, 9, -1), None)], []
    for prior in (TrainingRun._prior, lambda run, template: None):
        monkeypatch.setattr(TrainingRun, "_prior", prior)
        monkeypatch.setattr("skuq.training._train.programs", BoundedCache(2))
        members.append(train_stack(PRIOR, OPERATOR_HEAD, recipe, DATA, [3, 4], splits=rows))
    for seed, once, each in zip([3, 4], *members):
        assert_allclose(once.weights, each.weights, atol=1e-5)
        weights, frozen = first_draw(PRIOR, seed)
        assert abs(once.weights - weights).max() > 0.01
        for before, after in zip(frozen, once.state, strict=True):
            assert_array_equal(before, after)
    monkeypatch.undo()
    for epsilon in (0.0, 0.1):  # adversarial training moves the rows
        recipe = replace(RECIPE, n_draws=0, adversarial_epsilon=epsilon)
        run = TrainingRun(TrainingJob.of_model(PRIOR, OPERATOR_HEAD, recipe, [3]), DATA)
        assert ("prior" in run._tables) == (epsilon == 0)


def draw(key, step=0, stream=0, shape=(200, 50)):
    return np.asarray(uniform(np.asarray(key, dtype="uint32"), np.int32(step), stream, shape))


def test_numbers_are_normal_or_uniform_and_independent():
    steps = [normal(np.uint32(12), np.int32(k), INDEX_STREAM, (100, 16)) for k in range(1, 41)]
    numbers = np.stack([ops.convert_to_numpy(values) for values in steps]).astype(float)
    n = numbers.size
    for power, mean, variance in ((1, 0, 1), (2, 1, 2), (4, 3, 96)):
        assert abs((numbers**power).mean() - mean) < 4 * np.sqrt(variance / n)
    assert abs(np.corrcoef(numbers.reshape(-1, 16).T) - np.eye(16)).max() < 4.5 / np.sqrt(n / 16)
    assert abs(np.corrcoef(numbers[:-1].ravel(), numbers[1:].ravel())[0, 1]) < 4 / np.sqrt(n)
    numbers = draw([1, 2, 3, 2**31])
    assert numbers.shape == (4, 200, 50) and numbers.min() >= 0 and numbers.max() < 1
    # 40 000 numbers; the test's level is 1e-4, and the draw is fixed.
    assert stats.kstest(numbers.ravel(), "uniform").pvalue > 1e-4
    columns = [draw(7), draw(8), draw(7, step=1), draw(7, stream=1), draw(7, step=2**20)]
    correlation = np.corrcoef([c.ravel() for c in columns])
    # The std of a correlation of 10 000 pairs is 0.01; ten of them.
    assert np.abs(correlation - np.eye(5)).max() < 0.04
    # Neighbours within a draw, along both axes.
    for a, b in ((numbers[:, 1:], numbers[:, :-1]), (numbers[..., 1:], numbers[..., :-1])):
        assert abs(np.corrcoef(a.ravel(), b.ravel())[0, 1]) < 0.03
    # Keys and steps that differ in a few bits give other numbers, not another order.
    assert len(np.intersect1d(draw(7), draw(6))) < 50


def check(network):
    return build_checked(network, (3,), 2, "`network`")


def ends_with(*last):
    def network(shape, n):
        inputs = keras.Input(shape)
        value = Dense(n)(Dense(4)(inputs))
        for layer in last:
            value = layer(value)
        return keras.Model(inputs, value)

    return network


def frozen(between):
    def network(shape, n):
        inputs, layer = keras.Input(shape), Dense(4, name="half")
        hidden = layer(inputs)
        layer.kernel.trainable = False
        return keras.Model(inputs, Dense(n)(between(hidden)))

    return network


def two_inputs(shape, n):
    a, b = keras.Input(shape), keras.Input(shape)
    return keras.Model([a, b], Dense(n)(a + b))


def sum_of_wide_and_narrow(shape, n):
    inputs = keras.Input(shape)
    return keras.Model(inputs, Dense(n)(layers.Add()([Dense(8)(inputs), Dense(1)(inputs)])))


@keras.saving.register_keras_serializable("skuq_tests")
class Forgetful(layers.Layer):
    """Loses its factor when it is rebuilt."""

    def __init__(self, factor=1.0, **arguments):
        super().__init__(**arguments)
        self.factor = factor

    def call(self, x):
        return self.factor * x

    def get_config(self):
        return {"name": self.name}


def adapted(shape, n):
    normalization = layers.Normalization()
    normalization.adapt(np.arange(12.0).reshape(4, 3))
    return sequential(shape, normalization, Dense(n))


def bfloat16(shape, n):
    return keras.Sequential([keras.Input(shape, dtype="bfloat16"), Dense(n)])


def with_own(layer):
    return lambda shape, n: sequential(shape, layer, Dense(n))


@cases(
    ("network", "message"),
    (lambda shape, n: None, "`network` must return a keras.Model. Got NoneType"),
    (lambda shape: None, r"Got `<lambda>\(shape\)`"),
    (lambda shape, n: sequential(shape, Dense(n + 1)), r"of shape \(None, 2\) .*Got \(None, 3\)"),
    (two_inputs, "one input of shape"),
    (lambda shape, n: sequential((n,), Dense(n)), r"input of shape \(None, 3\)"),
    (with_own(Dense(2, kernel_constraint="non_neg")), "kernel_constraint, and training programs"),
    (frozen(lambda hidden: hidden), "frozen variable 'kernel' in layer 'half'"),
    (frozen(layers.GroupNormalization(2)), "frozen variable 'kernel' in layer 'half'"),
    (sum_of_wide_and_narrow, r"of shape \(None, 1\) to one of shape \(None, 8\)"),
    (with_own(UNREGISTERED()), "cannot be rebuilt from its configuration"),
    (adapted, "copy computes other values.*Give a Normalization layer `mean` and `variance`"),
    (with_own(Forgetful(3.0)), "keeps more"),
    (with_own(Dense(2, dtype="mixed_float16")), "float32.*dtype policy"),
    (bfloat16, "takes, holds and computes float32. Got .'bfloat16', 'float32'."),
    # For instance probabilities from a softmax, which were taken for logits.
    (ends_with(Dense(2, "softmax")), "ends with the activation 'softmax'.*Dense"),
    (ends_with(layers.ReLU()), "ends with the activation 'ReLU'.*Dense"),
    (ends_with(keras.ops.softmax), "ends with the activation 'Softmax'.*Dense"),
    (ends_with(keras.Sequential([Dense(2, "tanh"), layers.Flatten()])), "activation 'tanh'"),
)
def test_build_checked_refuses(network, message):
    with pytest.raises(SearchSpaceError, match=message):
        check(network)


def test_build_checked_takes_a_linear_end_and_forgets_how_a_model_was_compiled(monkeypatch):
    """Its losses and metrics are not used, and files need not allow them."""

    def network(shape, n):
        inner = sequential(shape, Dense(4))
        inner.compile("adam", "mse")
        model = sequential(shape, inner, Dense(n))
        model.compile("adam", keras.losses.log_cosh, metrics=["mae"])
        return model

    written = check(network).to_json()
    assert not any(part in written for part in ("Adam", "mse", "log_cosh", "mae"))
    check(ends_with(Dense(2, activation="linear")))
    check(ends_with(Dense(2, activation="tanh"), lambda x: 3 * x))
    # `python -OO` leaves docstrings out: a module then has attributes that are None.
    monkeypatch.setattr(keras.activations, "__doc__", None)
    check(ends_with(Dense(2), layers.Rescaling(2.0)))


# Sums that Keras computes wrongly are found, and no others.


def model_of(kind, shapes):
    inputs = [keras.Input(shape) for shape in shapes]
    return keras.Model(inputs, KINDS[kind](inputs))


def rows_that_differ(kind, shapes, rng):
    """Numbers of rows, up to 6, for which Keras differs from NumPy."""
    model, found, rank = model_of(kind, shapes), [], max(map(len, shapes))
    for n_rows in range(1, 7):
        terms = [rng.normal(size=(n_rows, *shape)) for shape in shapes]
        # Layers give all terms the same rank.
        same_rank = [(n_rows, *(1,) * (rank - len(shape)), *shape) for shape in shapes]
        wanted = sum(t.reshape(s) if kind != "+" else t for t, s in zip(terms, same_rank))
        wanted = wanted / len(terms) if kind == "Average" else wanted
        got = np.asarray(model([term.astype("float32") for term in terms]))
        if got.shape != wanted.shape or not np.allclose(got, wanted, atol=1e-5):
            found.append(n_rows)
    return found


def random_shapes(kind, rng):
    """Shapes of two or three terms that can be broadcast."""
    while True:
        rank, n_terms = rng.integers(1, 4), rng.integers(2, 4)
        ranks = rng.integers(1, rank + 1, n_terms) if kind != "+" else [rank] * n_terms
        shapes = [tuple(rng.integers(1, 4, rank).tolist()) for rank in ranks]
        padded = [(1,) * (max(ranks) - len(shape)) + shape for shape in shapes]
        if all(len({*sizes} - {1}) < 2 for sizes in zip(*padded)):
            return shapes


@pytest.mark.parametrize("kind", KINDS)
def test_sums_are_refused_exactly_if_keras_differs_from_numpy(kind, global_random_seed):
    rng, n_refused = np.random.default_rng(global_random_seed), 0
    for _ in range(20):
        shapes = random_shapes(kind, rng)
        said, rows = wrong_sum(model_of(kind, shapes)), rows_that_differ(kind, shapes, rng)
        assert (said is not None) == bool(rows), (shapes, rows, said)
        if said is not None and len(shapes) == 2:
            assert f"With {' or '.join(map(str, rows))} rows" in said
        n_refused += said is not None
    assert n_refused > 3


def test_the_advice_can_be_followed_and_models_inside_of_models_are_searched():
    said = wrong_sum(model_of("+", [(4,), (1,)]))
    assert "to one of shape (None, 4)" in said and "Swap the two terms" in said
    assert wrong_sum(model_of("+", [(1,), (4,)])) is None
    outer = [(1, 6), (6, 1)]
    assert "Write `a - (-b)`" in wrong_sum(model_of("+", outer))
    assert wrong_sum(model_of("+", outer[::-1]))
    one, other = map(keras.Input, outer)
    assert wrong_sum(keras.Model([one, other], one - (-other))) is None
    assert wrong_sum(model_of("Add", [(1, 3, 1), (3,), (1,)])) is not None
    add, x = layers.Add(name="total"), keras.Input((4,))
    wide, narrow = Dense(4)(x), Dense(1)(x)
    wrong = keras.Model(x, add([wide, narrow]))
    right = keras.Model(x, add([narrow, wide]))  # the same layer, called on other tensors
    assert wrong_sum(right) is None
    for outer in (wrong, keras.Sequential([keras.Input((4,)), wrong]), keras.Model(x, wrong(x))):
        assert "'total'" in wrong_sum(outer)
