"""Networks for tables in the engine, and the parts of a recipe for them only."""

import numpy as np
import pytest
from heads import build_tabular
from numpy.testing import assert_allclose, assert_array_equal
from plans import Run, draw_variables, make_plan, sequential
from scipy import stats
from tiers import slow
from training_data import STEADY, split_table, train_member

from skuq.backend import keras, ops
from skuq.networks import GaussianHead
from skuq.tables import TrainingData
from skuq.training import Recipe, _losses, _program, predict_members

HEAD = GaussianHead()
PLAIN = {**STEADY, "keep": "last"}


def make_data(n_train=45, n_valid=20, seed=0):
    """Three numbers and a column of codes."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n_train + n_valid, 4))
    x[:, 1] = rng.integers(0, 5, len(x))
    y = np.sin(2 * x[:, :1]) + (x[:, 1:2] == 3) + 0.1 * rng.normal(size=(len(x), 1))
    weight = rng.uniform(0.5, 2, len(x))
    return split_table(n_train, x, y, weight)


def realmlp(**settings):
    settings = {"dropout": 0.2, **settings}
    return build_tabular(
        (4,), 2, hidden_units=(9, 9), activation="mish", categories={1: 5}, category_dim=3,
        embedding={"columns": [0, 2, 3], "n_frequencies": 5, "scale": 0.5}, **settings,
    )  # fmt: skip


def small():
    return build_tabular((4,), 2, hidden_units=(9,), dropout=0.2)


def reference_run(model, recipe, data, flat, factors, rates, decays):
    """Full batches of Keras' own Adam, one optimiser a variable."""
    sizes = np.cumsum([int(np.prod(v.shape)) for v in model.trainable_variables])[:-1]
    for variable, value in zip(model.trainable_variables, np.split(flat, sizes)):
        variable.assign(value.reshape(variable.shape))
    import tensorflow as tf

    settings = {"beta_2": recipe.beta_2, "weight_decay": 1.0}
    optimizers = [keras.optimizers.Adam(1.0, **settings) for _ in model.trainable_variables]
    x, y = tf.constant(data.x), tf.constant(data.y)
    for rate, decay in zip(rates, decays):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(data.weight * HEAD.loss(y, model(x)))
        gradients = tape.gradient(loss, [v.value for v in model.trainable_variables])
        gradients = [tf.convert_to_tensor(gradient) for gradient in gradients]
        for optimizer, variable, gradient, factor in zip(
            optimizers, model.trainable_variables, gradients, factors
        ):
            optimizer.learning_rate.assign(recipe.learning_rate * rate * factor)
            optimizer.weight_decay = recipe.weight_decay * decay
            optimizer.apply([gradient], [variable])
    return np.concatenate([ops.convert_to_numpy(v).ravel() for v in model.trainable_variables])


def test_equals_keras_with_an_optimizer_for_each_variable():
    """Factors of layers, cycles of the rate, a scheduled decay and beta_2, all at once."""
    recipe = Recipe(
        learning_rate=0.05, batch_size=500, epochs=8, beta_2=0.9, schedule="coslog4",
        weight_decay=0.5, weight_decay_schedule="flat-cosine",
        rate_factors_of_layers=(("scale", 6), ("embedding", 0.1), ("*/bias", 0.5)), **PLAIN,
    )  # fmt: skip
    model, data = realmlp(dropout=None), make_data()
    flat, state = draw_variables(model, 3)
    options = {"start": [(flat, state)], "permutations": [np.arange], "jit": False}
    member = train_member(model, HEAD, recipe, data, 1, **options)
    factors = []
    for variable in model.trainable_variables:
        layer, name = variable.path.split("/")
        factor = {"scale": 6, "embedding": 0.1}.get(layer)
        factors.append(factor or (0.5 if name == "bias" else 1))
    assert sorted(set(factors)) == [0.1, 0.5, 1, 6]
    t = np.arange(8) / 8
    rates = 0.5 * (1 - np.cos(2 * np.pi * np.log2(1 + 15 * t)))
    decays = np.where(t < 0.5, 1, 0.5 + 0.5 * np.cos(np.pi * (2 * t - 1)))
    weights = reference_run(model, recipe, data, flat, factors, rates, decays)
    assert np.abs(weights - flat).max() > 0.1
    assert_allclose(member.weights, weights, rtol=1e-3, atol=1e-4)


@pytest.mark.slow
def test_dropout_falls_in_the_second_half():
    """The fourth of four steps has half the rate; its mask is the noise's own."""
    model, data = small(), make_data()
    flat, state = draw_variables(model, 3)
    losses = {}
    for dropout in (None, 0.4):
        for schedule in ("constant", "flat-cosine"):
            recipe = Recipe(
                "sgd", 1e-30, batch_size=500, epochs=4, dropout=dropout,
                dropout_schedule=schedule, **PLAIN,
            )  # fmt: skip
            member = train_member(model, HEAD, recipe, data, 1, start=[(flat, state)])
            losses[dropout, schedule] = member.history["loss"]
        constant, falling = losses[dropout, "constant"], losses[dropout, "flat-cosine"]
        assert_allclose(falling[:3], constant[:3], rtol=1e-6)
        rate = 0.2 if dropout is None else dropout
        for step, share in ((3, 1.0), (4, 0.5)):
            expected = dropped_loss(model, flat, state, data, step, share * rate)
            assert falling[step - 1] == pytest.approx(expected, rel=1e-4)
        assert abs(falling[3] - constant[3]) > 1e-3


def dropped_loss(model, flat, state, data, step, rate):
    words = np.random.SeedSequence(1).generate_state(4)
    order = np.random.default_rng(int(words[1]))
    for _ in range(step):
        rows = order.permutation(len(data.x))
    rows = np.resize(rows, 48)  # as padded

    def mask(number, own_rate, shape):
        key = ops.convert_to_tensor(np.uint32(words[2])), ops.convert_to_tensor(np.int32(step))
        numbers = _losses.uniform(*key, number, tuple(shape))
        return (np.asarray(numbers) >= np.float32(rate)) / (1 - rate)

    plan = make_plan(model.to_json())
    raw, _ = plan(plan.split(flat.astype(float)), state, data.x[rows], Run(dropout_mask=mask))
    mean, std = HEAD.distribution(raw[: len(data.x)])
    real = rows[: len(data.x)]
    losses = -stats.norm.logpdf(data.y[real], mean, std)[:, 0]
    return np.mean(data.weight[real] * losses)


@pytest.mark.parametrize("jit", [False, pytest.param(True, marks=slow)], ids=["graph", "xla"])
def test_vectors_of_many_categories_train(jit):
    """A table so large that it is a block of its own, from which rows are taken."""
    x = np.tile(np.arange(1.0, 41)[:, None] * 250, (2, 1))
    y = np.sin(np.arange(80) % 40)[:, None]
    data = TrainingData(x, y, np.ones(80), x, y, np.ones(80))
    model = build_tabular((1,), 2, hidden_units=(16,), categories={0: 10_001}, activation="tanh")
    recipe = Recipe(learning_rate=0.03, batch_size=80, epochs=150, **PLAIN)
    member = train_member(model, HEAD, recipe, data, 1, jit=jit)
    raw = predict_members([member], x)[0]
    assert np.sqrt(np.mean((raw[:, :1] - y) ** 2)) < 0.1
    table = make_plan(model.to_json()).split(member.weights)[0]
    seed = int(np.random.SeedSequence(1).generate_state(1)[0])
    first = make_plan(model.to_json()).split(draw_variables(model, seed)[0])[0]
    moved = (table != first).any(axis=1)
    assert_array_equal(np.flatnonzero(moved), x[:40, 0].astype(int))


def test_names_of_no_layer_are_refused():
    recipe = Recipe(epochs=1, rate_factors_of_layers={"scale": 2.0, "hiden_1": 0.1})
    with pytest.raises(ValueError, match=r"match no weight of the network: \['hiden_1'\]"):
        train_member(small(), HEAD, recipe, make_data(), 1)
    unplanned = keras.layers.UnitNormalization(), keras.layers.Dropout(0.1)
    model = sequential((4,), *unplanned, keras.layers.Dense(2))
    recipe = Recipe(epochs=1, dropout_schedule="flat-cosine")
    with pytest.raises(ValueError, match="dropout_schedule='flat-cosine' cannot be used"):
        train_member(model, HEAD, recipe, make_data(), 1)


@pytest.mark.parametrize("jit", [False, True])
@pytest.mark.parametrize("lead", [(), (2,)])
def test_numbers_of_variables_spread_over_blocks(jit, lead):
    shapes = [(300, 300), (4,), (3, 2), (5_000,), (2, 40, 70)]
    blocks = _program.Blocks(shapes, jit)
    numbers = np.arange(10.0).reshape(2, 5)[: len(lead) + 1]
    numbers = numbers if lead else numbers[0]
    ones = blocks.pack(np.ones((*lead, sum(blocks.sizes))))
    spread = blocks.join([a * b for a, b in zip(ones, blocks.spread(numbers))])
    assert_array_equal(spread, np.repeat(numbers, blocks.sizes, axis=-1))
