import math

import numpy as np
import pytest
from plans import ACTIVATIONS, draw_variables, make_plan, sequential
from processes import run_python
from training_data import programs, split_table, train_member

from skuq.backend import BoundedCache, keras
from skuq.networks import GaussianHead, Member
from skuq.training import Recipe, TrainingJob, TrainingRun, predict_members
from skuq.training import _job as _arguments
from skuq.training import _train as _engine


def data(n_train=40, n_valid=20, seed=0):
    rng = np.random.default_rng(seed)
    n = n_train + n_valid
    return split_table(n_train, rng.normal(size=(n, 3)), rng.normal(size=(n, 1)), np.ones(n))


def network(units=6):
    return sequential((3,), keras.layers.Dense(units, "relu"), keras.layers.Dense(2))


def test_padded_rows_are_a_ladder():
    sizes = [_arguments.padded_rows(n) for n in range(1, 3000)]
    assert all(p >= n and p <= max(8, 1.25 * n) for n, p in enumerate(sizes, start=1))
    assert sizes == sorted(sizes) and len(set(sizes)) < 40
    assert _arguments.padded_rows(max(sizes)) == max(sizes)
    sizes = {1: 8, 8: 8, 9: 16, 1000: 1024, 1025: 2048, 2**14: 2**14, 2**14 + 1: 20_480}
    assert {n: _arguments.table_rows(n) for n in sizes} == sizes


def test_a_growing_table_of_few_rows_needs_few_programs():
    """A search fits after every result: it compiles when the rows double, up to 128 rows."""
    sizes = {9: 16, 16: 16, 17: 32, 65: 128, 128: 128, 129: 160, 600: 640}
    assert {n: _arguments.full_batch_rows(n) for n in sizes} == sizes
    recipe, before = Recipe(epochs=1, batch_size=100), programs.n_made
    for n in (33, 49, 64):
        train_member(network(units=5), GaussianHead(), recipe, data(n), 0)
    assert programs.n_made == before + 1


def test_held_out_inputs_are_predicted_in_place_of_the_validation_rows():
    inputs = np.random.default_rng(1).normal(size=(7, 3))
    recipe = Recipe(epochs=2)
    plain = train_member(network(), GaussianHead(), recipe, data(), 5)
    asked = train_member(network(), GaussianHead(), recipe, data(), 5, held_out=inputs)
    np.testing.assert_array_equal(plain.weights, asked.weights)
    assert plain.held_out.shape == (20, 2) and asked.held_out.shape == (7, 2)
    expected = predict_members([asked], inputs)[0]
    np.testing.assert_allclose(asked.held_out, expected, rtol=1e-6)


@pytest.mark.slow
def test_global_random_state_is_neither_used_nor_changed():
    keras.utils.set_random_seed(1)
    before = np.random.get_state()[1].copy()
    one = train_member(network(), GaussianHead(), Recipe(epochs=2), data(), 5)
    np.testing.assert_array_equal(before, np.random.get_state()[1])
    keras.utils.set_random_seed(2)
    two = train_member(network(), GaussianHead(), Recipe(epochs=2), data(), 5)
    np.testing.assert_array_equal(one.weights, two.weights)


def test_first_weights_follow_their_initializers():
    layers = keras.layers
    first = {"kernel_initializer": "he_normal", "bias_initializer": "ones"}
    others = layers.BatchNormalization(), layers.Dense(2)
    model = sequential((50,), layers.Dense(400, **first), *others)
    flat, state = draw_variables(model, 1)
    kernel = flat[: 50 * 400]
    # 20 000 draws: the std of an estimated std is 1/sqrt(40 000) of it, 0.5 %.
    assert abs(kernel.std() / np.sqrt(2 / 50) - 1) < 0.02
    np.testing.assert_array_equal(flat[50 * 400 : 50 * 400 + 400], 1)
    np.testing.assert_array_equal(state[0], 0)  # moving mean
    np.testing.assert_array_equal(state[1], 1)  # moving variance
    np.testing.assert_array_equal(flat, draw_variables(model, 1)[0])
    assert not np.array_equal(flat, draw_variables(model, 2)[0])


def test_first_weights_of_recurrent_layers_are_as_in_keras():
    layers = keras.layers
    model = sequential(
        (6, 4, 2),
        layers.ConvLSTM1D(3, 2, return_sequences=True, name="images"),
        layers.TimeDistributed(layers.Flatten(), name="flat"),
        layers.Bidirectional(layers.LSTM(5, return_sequences=True), name="both"),
        layers.RNN([layers.LSTMCell(4), layers.GRUCell(3)], return_sequences=True, name="cells"),
        layers.LSTM(2, unit_forget_bias=False, name="plain"),
    )
    flat, _ = draw_variables(model, 1)
    ends = np.cumsum([math.prod(v.shape) for v in model.trainable_variables])[:-1]
    n_biases = 0
    for variable, drawn in zip(model.trainable_variables, np.split(flat, ends)):
        if variable.name == "bias":
            np.testing.assert_array_equal(drawn, variable.numpy().ravel(), variable.path)
            n_biases += 1
        else:
            assert not np.array_equal(drawn, variable.numpy().ravel())
    assert n_biases == 6


def test_worth_xla_knows_convolutions_and_artificial_inputs():
    """XLA's own take about nine times as long on a CPU, however long the run."""
    layers = keras.layers
    model = sequential((8, 8, 1), layers.Conv2D(2, 3), layers.Flatten(), layers.Dense(2))
    dense = network().to_json()
    assert _engine.worth_xla(dense, 10**6, 100, stops_early=False)
    assert not _engine.worth_xla(model.to_json(), 10**6, 100, stops_early=False)
    # NOMU's default on a few rows: 1000 steps of four networks of two layers of 64 units.
    few_rows = network().to_json(), 1000, 35_000
    assert _engine.worth_xla(*few_rows, stops_early=False, has_artificial=True)
    assert not _engine.worth_xla(*few_rows, stops_early=False)


def untrained(model, seed=1):
    """A member with first weights."""
    flat, state = draw_variables(model, seed)
    history = {"loss": np.ones(1), "val_loss": np.ones(1), "learning_rate": np.ones(1)}
    return Member(model.to_json(), flat, tuple(state), history, 0, None, seed, 0.0, "graph")


def test_networks_without_a_plan_predict_the_same_through_keras():
    layers = keras.layers
    normalizations = layers.BatchNormalization(), layers.UnitNormalization()
    odd = sequential((3,), layers.Dense(6, "tanh"), *normalizations, layers.Dense(2))
    assert make_plan(odd.to_json()) is None
    x = np.random.default_rng(0).normal(size=(9, 3))
    for cache in (True, False):
        (raw,) = predict_members([untrained(odd)], x, cache=cache)
        assert raw.dtype == np.float64
        twin = keras.ops.convert_to_numpy(odd_output(odd, x))
        np.testing.assert_allclose(raw, twin, rtol=1e-4, atol=1e-5)


def odd_output(model, x):
    """Keras' own float32 forward pass with the weights of `untrained`."""
    member = untrained(model)
    sizes = [int(np.prod(v.shape)) for v in model.trainable_variables]
    parts = np.split(member.weights, np.cumsum(sizes)[:-1])
    parts = [p.reshape(v.shape) for p, v in zip(parts, model.trainable_variables)]
    return model.stateless_call(parts, list(member.state), x.astype("float32"))[0]


def test_long_inputs_are_predicted_in_chunks():
    member = untrained(network())
    x = np.random.default_rng(0).normal(size=(2**17, 3))
    (raw,) = predict_members([member], x)
    some = [0, 2**16, 2**17 - 1]
    np.testing.assert_allclose(raw[some], predict_members([member], x[some])[0], rtol=1e-12)
    layers = keras.layers
    parts = [keras.Input((3,)), layers.Dense(6, activation="tanh"), layers.Dropout(0.5)]
    member = untrained(keras.Sequential([*parts, layers.Dense(2)]))

    def mask(number, rate, shape):
        return np.arange(3 * 6).reshape(3, 1, 6) / 10

    x = np.random.default_rng(0).normal(size=(2**13, 3))
    options = {"dropout_mask": mask, "n_draws": 3}
    whole, some = (predict_members([member], part, **options)[0] for part in (x, x[-9:]))
    assert whole.shape == (3, 2**13, 2)
    np.testing.assert_allclose(whole[:, -9:], some, rtol=1e-12)


def test_long_validation_sets_are_passed_over_in_chunks():
    """More rows than one validation pass holds: the same loss as by hand."""
    long = data(n_train=64, n_valid=20_001)
    member = train_member(network(), GaussianHead(), Recipe(epochs=2), long, 1)
    (raw,) = predict_members([member], long.x_valid)
    mean, std = GaussianHead().distribution(raw)
    z = (long.y_valid - mean) / std
    expected = np.mean(0.5 * np.log(2 * np.pi) + np.log(std) + 0.5 * z**2)
    assert abs(member.score - expected) < 1e-5


def test_cache_is_bounded_and_keeps_what_is_used():
    cache = BoundedCache(max_size=2)
    for key in "abac":
        cache.get(key, key.upper)
    assert cache.get("a", lambda: "made again") == "A"
    assert cache.get("b", lambda: "made again") == "made again"
    assert cache.n_made == 4


@keras.saving.register_keras_serializable("skuq_tests")
class Own(keras.layers.Layer):
    """Weights without a named initializer, and an integer that is no random state."""

    def build(self, shape):
        self.w = self.add_weight(shape=(shape[-1], 2), initializer="glorot_uniform", name="w")
        order = {"initializer": "ones", "dtype": "int32", "trainable": False, "name": "order"}
        self.order = self.add_weight(shape=(2,), **order)

    def call(self, x):
        return keras.ops.matmul(x, self.w)


def times(factor):
    """A network with a layer of a class that each call defines again, under one name."""

    @keras.saving.register_keras_serializable("skuq_tests")
    class Times(keras.layers.Layer):
        def call(self, x):
            return factor * x

    layers = [keras.Input((3,), name="x"), Times(name="t"), keras.layers.Dense(2, name="y")]
    return keras.Sequential(layers, name="net")


def test_a_class_that_is_defined_again_replaces_the_one_before():
    keys = set()
    for factor in (1.0, 0.0):
        model = times(factor)
        (raw,) = predict_members([untrained(model)], data().x, cache=False)
        assert (np.ptp(raw, axis=0) == 0).all() == (factor == 0)  # nothing tells rows apart
        run = TrainingRun(TrainingJob.of_model(model, GaussianHead(), Recipe(), [1]), data())
        assert run._model is model
        keys.add(run.key)
    assert len(keys) == 2


def test_what_cannot_be_redrawn_is_kept_with_a_warning():
    model = sequential((3,), Own())
    with pytest.warns(UserWarning, match="`w_initializer`: all members start from"):
        flat, state = draw_variables(model, 1)
    np.testing.assert_array_equal(flat, model.trainable_variables[0].numpy().ravel())
    np.testing.assert_array_equal(state[0], [1, 1])


def test_cancelled_training_ends_at_the_next_slice():
    with pytest.raises(InterruptedError, match="cancelled"):
        train_member(network(), GaussianHead(), Recipe(), data(), 1, cancelled=lambda: True)
    with pytest.raises(ValueError, match="recipe's `dropout`"):
        train_member(network(), GaussianHead(), Recipe(dropout=0.1), data(), 1)


@pytest.mark.slow
def test_dropped_programs_leave_nothing_behind():
    """No activation keeps its graphs alive, as TensorFlow's own swish would."""
    import gc
    import weakref

    graphs = []
    for units, name in enumerate(ACTIVATIONS, start=30):
        layers = keras.layers
        model = sequential((3,), layers.Dense(units, activation=name), layers.Dense(2))
        train_member(model, GaussianHead(), Recipe(epochs=1), data(), 1, jit=False)
        graphs.append(weakref.ref(next(reversed(programs._values.values())).graph))
    for units in range(100, 100 + programs.max_size):  # push all of them out
        model = sequential((3,), layers.Dense(units), layers.Dense(2))
        train_member(model, GaussianHead(), Recipe(epochs=1), data(), 1, jit=False)
    gc.collect()
    assert [graph() for graph in graphs] == [None] * len(graphs)


@pytest.mark.slow
def test_the_first_program_through_xla_is_quiet():
    code = (
        "import numpy as np\n"
        "from skuq.networks import GaussianHead\n"
        "from skuq.networks._dense import build_mlp\n"
        "from skuq.tables import TrainingData\n"
        "from skuq.training import Recipe, TrainingJob, train\n"
        "x, w = np.ones((9, 2)), np.ones(9)\n"
        "data = TrainingData(x, x[:, :1], w, x, x[:, :1], w)\n"
        "recipe, head = Recipe(epochs=1), GaussianHead()\n"
        "train(TrainingJob.of_model(build_mlp((2,), 2), head, recipe, [1], jit=True), data)"
    )
    assert run_python(code).stderr == ""


def test_attention_starts_with_the_scale_of_keras():
    inputs = keras.Input((10, 32))
    attention = keras.layers.MultiHeadAttention(8, 16)(inputs, inputs)
    model = keras.Model(inputs, keras.layers.Dense(20)(keras.layers.Flatten()(attention)))
    flat, _ = draw_variables(model, 0)
    ends = np.cumsum([math.prod(v.shape) for v in model.trainable_variables])[:-1]
    for variable, drawn in zip(model.trainable_variables, np.split(flat, ends)):
        np.testing.assert_allclose(drawn.std(), variable.numpy().std(), rtol=0.1)


def test_a_random_layer_of_a_trained_network_is_kept():
    random = keras.layers.Dense(5, trainable=False)
    trained, last = keras.layers.Dense(4), keras.layers.Dense(1)
    model = sequential((3,), random, trained, last)
    trained.trainable = False
    _, first = draw_variables(model, 0)
    assert not np.array_equal(first[0], random.kernel.numpy())  # all are as they were drawn
    for variable in (trained.kernel, trained.bias):  # one of them is enough
        before = variable.numpy()
        variable.assign(before + 1)
        _, state = draw_variables(model, 0)
        for value, own in zip(state, model.non_trainable_variables, strict=True):
            np.testing.assert_array_equal(value, own.numpy())
        variable.assign(before)


def test_a_frozen_variable_of_a_layer_that_is_trained_is_kept():
    layer = keras.layers.Dense(3)
    model = sequential((2,), layer, keras.layers.Dense(1))
    layer.kernel.assign(np.ones((2, 3)))
    layer.kernel.trainable = False
    _, (kernel,) = draw_variables(model, 0)
    np.testing.assert_array_equal(kernel, np.ones((2, 3)))
